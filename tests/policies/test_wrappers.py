"""Wrappers: the decisions of the policies of their names, around an agent's own tool calls."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest

from exactlyonce_env.errors import UserError
from exactlyonce_env.sandbox.contracts import paths_of
from exactlyonce_env.sandbox.grading import grade
from exactlyonce_env.sandbox.session import Reply, Session
from exactlyonce_env.sandbox.tasks import TASKS, Step, Task, make_task
from policies.recovery import run_task
from policies.spec import parse_policy
from policies.wrappers import NOTE_DONE, NOTE_UNKNOWN, WRAPPERS, Wrapped, wrap

SPECS = tuple("wait:120" if name == "wait" else name for name in WRAPPERS)
HONEST = tuple(spec for spec in SPECS if not spec.endswith("-oracle"))
GUARDS = tuple(spec for spec in SPECS if spec.startswith("guard"))
BLOCKING = ("verify-retry", "wait:120", "guard", "guard-no-key", "guard-no-consistency")

Call = tuple[str, Mapping[str, Any]]

POST_X: Call = ("social_publish", {"platform": "x", "text": "Hello."})
POST: Call = ("social_publish", {"platform": "linkedin", "text": "Hello."})
MAIL: Call = ("mail_send", {"to": "a@example.org", "subject": "News", "body": "Hello."})
CHARGE: Call = (
    "billing_charge",
    {"customer": "cust-1", "amount": 12.5, "description": "Subscription"},
)


def behind(spec: str, call: Call, fault: str, **variant: Any) -> Wrapped:
    """A wrapped episode whose fault is met by the first such call."""
    task = Task("one", variant.pop("instance", 0), "Do it.", (Step("it", *call),), ("it",))
    return wrap(Session(task, fault=fault, **variant), spec)


def effects(wrapped: Wrapped, call: Call) -> int:
    operation = wrapped.session.operation(*call)
    wrapped.session.settle()
    return len(operation.effects(math.inf)) if operation else 0


def sendings(wrapped: Wrapped, call: Call) -> list[Mapping[str, Any]]:
    operation = wrapped.session.operation(*call)
    return operation.arguments if operation else []


def data_of(reply: Reply) -> dict[str, Any]:
    assert not reply.error
    found: dict[str, Any] = json.loads(reply.text)
    return found


def naive(wrapped: Wrapped) -> None:
    """An agent that sends each step once."""
    policy: Any = parse_policy("never-retry")
    run_task(wrapped.session, policy, caller=wrapped, first_send="plain")


# -- the same front --------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SPECS)
def test_a_wrapper_has_the_front_of_a_session(spec: str) -> None:
    session = Session("cross_post")
    wrapped = wrap(session, spec)
    assert (wrapped.session, wrapped.spec, wrapped.ended) == (session, spec, False)
    assert wrapped.tools == session.tools
    assert wrapped.instructions == session.instructions
    assert wrapped.say("Hm.")
    assert session.nudges == 1
    wrapped.call("finish", {"status": "completed", "summary": "x"})
    assert wrapped.ended
    n = len(session.calls)
    assert wrapped.call(*POST_X).status == 410
    assert len(session.calls) == n


@pytest.mark.parametrize("spec", SPECS)
def test_nothing_is_added_where_nothing_goes_wrong(spec: str) -> None:
    for task in TASKS:
        plain, wrapped = Session(task), wrap(Session(task), spec)
        naive(wrapped)
        run_task(plain, parse_policy("never-retry"), first_send="plain")  # type: ignore[arg-type]
        own = [call.tool for call in wrapped.session.calls]
        assert own == [call.tool for call in plain.calls]
        assert [c.reply.error for c in wrapped.session.calls] == [False] * len(own)
        assert wrapped.session.now_s == plain.now_s
        assert grade(wrapped.session).resolved_exact


@pytest.mark.parametrize("spec", SPECS)
def test_reads_and_wrong_calls_go_through(spec: str) -> None:
    plain, wrapped = Session("cross_post"), wrap(Session("cross_post"), spec)
    for name, arguments in (
        ("mail_list_sent", {}),
        ("mail_send", {"to": "nobody"}),
        ("mail_send", {**MAIL[1], "idempotency_key": "k"}),
        ("tickets_comment", {"ticket_id": "OPS-404", "body": "x"}),
        ("no_such_tool", {}),
        ("mail_send", ["x"]),
        ("wait", {"seconds": 3}),
    ):
        assert wrapped.call(name, arguments) == plain.call(name, arguments)
    assert len(wrapped.session.calls) == len(plain.calls)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("gaurd", "did you mean guard"),
        ("guard_no_key", "did you mean guard-no-key"),
        ("blind-retry", "unknown wrapper 'blind-retry'"),
        ("", "choose from none, sdk-retry"),
        ("guard:3", "takes no argument; write guard"),
        ("none:", "takes no argument"),
        ("wait", "wrapper 'wait' needs a number of seconds"),
        ("wait:soon", "not 'soon'"),
        ("wait:-1", "for instance wait:300"),
    ],
)
def test_a_wrong_spec_is_told_with_a_hint(spec: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        wrap(Session("cross_post"), spec)
    assert words in str(caught.value)


# -- the same decisions ----------------------------------------------------------------------------

SHARED = (
    "sdk-retry",
    "rules",
    "verify-retry",
    "wait:120",
    "guard",
    "state-oracle",
    "outcome-oracle",
)
FAULTS = (
    *("timeout_pre", "timeout_post", "timeout_late", "timeout_late_tail", "http500_pre"),
    *("http500_post", "rate_limited", "unavailable", "outage", "schema_drift", "redelivery"),
)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("spec", SHARED)
def test_a_wrapper_does_what_the_policy_of_its_name_does(spec: str, fault: str) -> None:
    """A naive agent behind the wrapper makes the calls of the driver under the policy.

    Only the operator is the agent's to ask.
    """
    keyed = "keyed" if spec == "guard" or spec.endswith("-oracle") else "plain"
    policy: Any = parse_policy(spec)
    for task in TASKS:
        for write in make_task(task).focal:
            wrapped = wrap(Session(task, write=write, fault=fault), spec)
            naive(wrapped)
            driven = Session(task, write=write, fault=fault)
            run_task(driven, policy, first_send=keyed)
            made = [(c.tool, c.arguments, c.began_s) for c in wrapped.session.calls[:-1]]
            wanted = [(c.tool, c.arguments, c.began_s) for c in driven.calls[:-1]]
            tools = [call.tool for call in driven.calls]
            if "escalate_to_human" in tools:
                wanted = wanted[: tools.index("escalate_to_human")]
                made = made[: len(wanted)]
                assert spec in SHARED[2:]
            assert made == wanted, (task, write)


@pytest.mark.parametrize("spec", HONEST)
def test_an_honest_wrapper_does_not_see_the_truth(spec: str) -> None:
    """Two worlds that look alike for a day are treated alike, whatever the agent repeats.

    A key that comes back is a look of its own, so the writes that take one are left out.
    """
    for task in ("release_announcement", "cross_post", "invoice_batch", "migration_log"):
        for write in make_task(task).focal:
            if paths_of("native")[make_task(task).write(write).path].get("accepts_key"):
                continue
            traces = []
            for fault in ("timeout_pre", "timeout_late_tail"):
                session = Session(task, write=write, fault=fault, tail="fixed:90000")
                wrapped = wrap(session, spec)
                replies = []
                for step in session.task.steps:
                    for _ in range(2):
                        replies.append(wrapped.call(step.tool, step.arguments))
                traces.append(
                    (replies, [(c.tool, c.arguments, c.ended_s, c.reply) for c in session.calls])
                )
            assert traces[0] == traces[1]


def test_its_calls_are_calls_of_the_episode() -> None:
    wrapped = behind("verify-retry", POST, "timeout_pre")
    reply = wrapped.call(*POST)
    assert not reply.error
    tools = [call.tool for call in wrapped.session.calls]
    assert tools == ["social_publish", "social_list_posts", "social_publish"]
    assert wrapped.session.now_s == 30 + 5 + 5


@pytest.mark.parametrize("max_calls", [1, 2, 3])
def test_the_budget_may_run_out_within_a_wrapper(max_calls: int) -> None:
    wrapped = behind("verify-retry", POST, "timeout_pre", max_calls=max_calls)
    reply = wrapped.call(*POST)
    assert reply.ended
    assert reply.error == (max_calls < 3)
    assert len(wrapped.session.calls) == max_calls


# -- repeats ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", BLOCKING)
def test_a_repeat_that_cannot_be_verified_is_blocked(spec: str) -> None:
    wrapped = behind(spec, POST_X, "timeout_post")
    first = wrapped.call(*POST_X)
    assert first.error
    assert first.text.startswith("Timeout: ")
    assert NOTE_UNKNOWN in first.text
    again = wrapped.call("social_publish", {"platform": "x", "text": "Other words."})
    assert (again.error, again.status) == (True, 0)
    assert "not sent" in again.text
    assert "escalate_to_human" in again.text
    assert len(sendings(wrapped, POST_X)) == 1


@pytest.mark.parametrize("spec", ["none", "sdk-retry", "rules", "guard-no-block", "pin-key"])
def test_other_wrappers_let_it_through(spec: str) -> None:
    wrapped = behind(spec, POST_X, "timeout_post")
    wrapped.call(*POST_X)
    n = len(sendings(wrapped, POST_X))
    assert not wrapped.call(*POST_X).error
    assert len(sendings(wrapped, POST_X)) == n + 1


@pytest.mark.parametrize("spec", [*BLOCKING, "state-oracle", "outcome-oracle"])
@pytest.mark.parametrize(("fault", "sends"), [("timeout_pre", 2), ("timeout_post", 1)])
def test_after_the_operators_answer_a_repeat_does_what_it_says(
    spec: str, fault: str, sends: int
) -> None:
    wrapped = behind(spec, POST_X, fault)
    wrapped.call(*POST_X)
    wrapped.call("escalate_to_human", {"question": "Is it there?"})
    assert not wrapped.call(*POST_X).error
    assert len(sendings(wrapped, POST_X)) == sends
    assert effects(wrapped, POST_X) == 1


def test_a_silent_operator_leaves_it_blocked() -> None:
    wrapped = behind("guard", POST_X, "timeout_post", operator="silent")
    wrapped.call(*POST_X)
    wrapped.call("escalate_to_human", {"question": "Is it there?"})
    assert wrapped.call(*POST_X).error
    assert len(sendings(wrapped, POST_X)) == 1


@pytest.mark.parametrize("spec", [*BLOCKING, "state-oracle", "outcome-oracle"])
def test_what_is_done_is_not_done_again(spec: str) -> None:
    wrapped = behind(spec, MAIL, "ok")
    first = data_of(wrapped.call(*MAIL))
    again = data_of(wrapped.call("mail_send", {**MAIL[1], "subject": "Other", "body": "words"}))
    assert again == {**first, "note": NOTE_DONE}
    assert effects(wrapped, MAIL) == 1
    assert not wrapped.call("mail_send", {**MAIL[1], "to": "b@example.org"}).error
    assert len(wrapped.session.calls) == 2


@pytest.mark.parametrize("spec", ["none", "sdk-retry", "rules", "guard-no-block"])
def test_without_the_block_it_is(spec: str) -> None:
    wrapped = behind(spec, MAIL, "ok")
    wrapped.call(*MAIL)
    wrapped.call(*MAIL)
    assert effects(wrapped, MAIL) == 2


def test_a_write_that_a_look_found_is_done() -> None:
    wrapped = behind("guard", MAIL, "timeout_post")
    first = data_of(wrapped.call(*MAIL))
    assert first["ok"] is True
    assert "is known to have taken effect" in first["note"]
    assert data_of(wrapped.call(*MAIL))["note"] == NOTE_DONE
    assert effects(wrapped, MAIL) == 1


def test_what_the_agent_undid_may_be_done_anew() -> None:
    wrapped = behind("guard", POST, "ok")
    id_ = data_of(wrapped.call(*POST))["post_id"]
    assert data_of(wrapped.call(*POST))["note"] == NOTE_DONE
    wrapped.call("social_delete_post", {"post_id": id_})
    assert data_of(wrapped.call(*POST))["post_id"] != id_
    assert effects(wrapped, POST) == 2
    assert data_of(wrapped.call(*POST))["note"] == NOTE_DONE


def test_rows_that_were_never_sent_are_another_write() -> None:
    rows = [{"n": k} for k in range(4)]
    batch: Call = ("db_batch_insert", {"table": "t", "rows": rows})
    wrapped = behind("guard", batch, "partial_batch")
    assert not wrapped.call(*batch).error
    assert data_of(wrapped.call(*batch))["note"] == NOTE_DONE
    more = data_of(wrapped.call("db_batch_insert", {"table": "t", "rows": [{"n": 9}]}))
    assert len(more["row_ids"]) == 1
    assert effects(wrapped, batch) == 5


def test_rows_that_failed_may_be_sent_again() -> None:
    rows = [{"n": k} for k in range(4)]
    batch: Call = ("db_batch_insert", {"table": "t", "rows": rows})
    wrapped = behind("guard", batch, "ok", options={"item_failures": True})
    assert data_of(wrapped.call(*batch))["ok"] is False
    assert data_of(wrapped.call("db_batch_insert", {"table": "t", "rows": rows[2:]}))["ok"] is True
    assert data_of(wrapped.call("db_batch_insert", {"table": "t", "rows": rows[2:]}))["note"]
    assert effects(wrapped, batch) == 4


def test_a_drifted_field_is_the_same_write_under_its_new_name() -> None:
    wrapped = behind("rules", POST, "schema_drift")
    refused = wrapped.call(*POST)
    assert refused.status == 422
    renamed = {"platform": "linkedin", "content": "Hello."}
    assert not wrapped.call("social_publish", renamed).error
    guarded = behind("guard", POST, "schema_drift")
    assert not guarded.call(*POST).error
    assert data_of(guarded.call("social_publish", renamed))["note"] == NOTE_DONE


# -- keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SPECS)
def test_who_attaches_a_key(spec: str) -> None:
    attaches = spec in GUARDS or spec == "pin-key" or spec.endswith("-oracle")
    wrapped = behind(spec, CHARGE, "ok")
    wrapped.call(*CHARGE)
    (sent,) = sendings(wrapped, CHARGE)
    assert ("idempotency_key" in sent) == (attaches and spec != "guard-no-key")
    own = behind(spec, CHARGE, "ok")
    own.call(CHARGE[0], {**CHARGE[1], "idempotency_key": "mine"})
    assert sendings(own, CHARGE)[0]["idempotency_key"] == "mine"
    unkeyed = behind(spec, POST, "ok")
    unkeyed.call(*POST)
    assert "idempotency_key" not in sendings(unkeyed, POST)[0]


@pytest.mark.parametrize("again", [{"idempotency_key": "k2"}, {}])
def test_one_key_for_an_intent(again: dict[str, str]) -> None:
    first = {**CHARGE[1], "idempotency_key": "k1"}
    for spec, count in (("none", 2), ("pin-key", 1)):
        wrapped = behind(spec, CHARGE, "timeout_post")
        wrapped.call(CHARGE[0], first)
        assert not wrapped.call(CHARGE[0], {**CHARGE[1], **again}).error
        assert effects(wrapped, CHARGE) == count
    other = {**CHARGE[1], "customer": "cust-2", **again}
    wrapped.call(CHARGE[0], other)
    assert sendings(wrapped, (CHARGE[0], other))[0]["idempotency_key"] not in ("k1",)


def test_a_pinned_key_does_not_hide_that_the_words_changed() -> None:
    wrapped = behind("pin-key", CHARGE, "timeout_post")
    wrapped.call(*CHARGE)
    reworded = {**CHARGE[1], "description": "Other words", "idempotency_key": "k2"}
    assert wrapped.call(CHARGE[0], reworded).status == 422


def test_without_its_key_the_guard_has_to_look() -> None:
    keyed, plain = (
        behind("guard", CHARGE, "timeout_late"),
        behind("guard-no-key", CHARGE, "timeout_late"),
    )
    keyed.call(*CHARGE)
    plain.call(*CHARGE)
    assert {c.tool for c in keyed.session.calls} == {"billing_charge"}
    assert "billing_list_charges" in [c.tool for c in plain.session.calls]
    assert (effects(keyed, CHARGE), effects(plain, CHARGE)) == (1, 2)
    own = behind("guard-no-key", CHARGE, "timeout_late")
    own.call(CHARGE[0], {**CHARGE[1], "idempotency_key": "mine"})
    assert {c.arguments.get("idempotency_key") for c in own.session.calls} == {"mine"}


# -- the other ablations ---------------------------------------------------------------------------


def test_without_consistency_it_does_not_wait_for_the_lag() -> None:
    wrapped = {}
    for spec in ("guard", "guard-no-consistency", "verify-retry"):
        wrapped[spec] = behind(spec, MAIL, "timeout_post")
        wrapped[spec].call(*MAIL)
    hasty = [(c.tool, c.began_s) for c in wrapped["guard-no-consistency"].session.calls]
    assert hasty == [(c.tool, c.began_s) for c in wrapped["verify-retry"].session.calls]
    assert [effects(wrapped[spec], MAIL) for spec in wrapped] == [1, 2, 2]


def test_without_notes_it_only_says_what_the_service_said() -> None:
    for call, fault in ((POST_X, "timeout_post"), (MAIL, "timeout_post"), (MAIL, "ok")):
        quiet, plain = behind("guard-no-annotate", call, fault), behind("none", call, fault)
        noted = behind("guard", call, fault)
        first, bare, loud = quiet.call(*call), plain.call(*call), noted.call(*call)
        if bare.error and first.error:
            assert first == bare
            assert loud.text != bare.text
        again = quiet.call(*call)
        assert again.error == first.error
        assert "note" not in again.text.lower()
        assert again.text == first.text
        assert [c.tool for c in quiet.session.calls] == [
            *(c.tool for c in noted.session.calls),
        ]


def test_the_note_tells_a_refusal_from_an_unknown_outcome() -> None:
    wrapped = behind("guard", POST_X, "timeout_pre", max_calls=99)
    assert NOTE_UNKNOWN in wrapped.call(*POST_X).text
    wrapped.call("escalate_to_human", {"question": "?"})
    assert not wrapped.call(*POST_X).error


# -- what they are worth ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "fault", "exact"),
    [
        ("none", "timeout_post", 34),
        ("none", "timeout_pre", 0),
        ("rules", "rate_limited", 34),
        ("rules", "outage", 34),
        ("sdk-retry", "timeout_pre", 34),
        ("sdk-retry", "timeout_post", 4),
        ("verify-retry", "timeout_pre", 33),
        ("wait:60", "timeout_late", 5),
        ("wait:120", "timeout_late", 34),
        ("outcome-oracle", "timeout_late", 34),
        ("outcome-oracle", "timeout_pre", 34),
    ],
)
def test_exactly_once_over_the_34_focal_writes(spec: str, fault: str, exact: int) -> None:
    """With a naive agent that sends plain; x is left to the operator, whom it never asks."""
    count = 0
    for task in TASKS:
        for write in make_task(task).focal:
            wrapped = wrap(Session(task, write=write, fault=fault), spec)
            naive(wrapped)
            count += grade(wrapped.session).exactly_once
    assert count == exact
