"""The view as an object: words, permission rules, fields and text."""

from __future__ import annotations

import copy
import doctest
import json
import math
import pickle

import numpy as np
import pytest

from exactlyonce_env import view
from exactlyonce_env.errors import UserError
from exactlyonce_env.presets import load_plan
from exactlyonce_env.records import CONTRACT, VIEW
from exactlyonce_env.view import Attempt, ContradictionError, Report, View, view_fields, view_text
from exactlyonce_env.vocabulary import Action, Key

STRONG = {"readback": "strong"}
TIMEOUT = Attempt(0.0, 30.0, "timeout")
KEYED = {"readback": "strong", "accepts_key": True, "original_key": "sent"}


def seen_of(preset: str, *actions: tuple[Action, float], world: int = 0) -> View:
    """The view of a kernel's world after some actions."""
    from exactlyonce_env import kernel
    from exactlyonce_env.records import TRUTH

    plan = load_plan(preset)
    seen, truth, terms = np.zeros(1, VIEW), np.zeros(1, TRUTH), np.zeros(9)
    key = np.uint64(0)
    kernel.begin(plan.contexts, plan.context_cdf, plan.table, key, world, seen[0], truth[0])
    for action, seconds in actions:
        kernel.act(plan.contexts, plan.table, seen[0], truth[0], int(action), seconds, terms)
    return View.of(seen[0], plan.contracts[seen[0].context])


# --- the rules of permission, one by one ----------------------------------------------------------


def test_a_timeout_without_evidence_permits_nothing() -> None:
    verdict = View(STRONG, [TIMEOUT]).permits("none")
    assert (verdict.permitted, verdict.rule) == (False, "no rule")
    assert "attempt 0 (timeout at 30 s)" in verdict.reason


def test_a_read_that_shows_nothing_does_not_settle_a_timeout_without_a_bound() -> None:
    assert not View(STRONG, [TIMEOUT], reports=[Report(1e6)]).permits()


@pytest.mark.parametrize("response", ["rate_limited", "unavailable", "schema"])
def test_an_explicit_rejection_permits(response: str) -> None:
    view = View(STRONG, [Attempt(0.0, 1.0, response)])
    assert (view.permits().permitted, view.permits().rule) == (True, "known absent")


def test_a_server_error_permits_after_a_read_that_shows_nothing() -> None:
    error = Attempt(0.0, 1.0, "server_error")
    assert not View(STRONG, [error]).permits()
    assert View(STRONG, [error], reports=[Report(1.0)]).permits().rule == "known absent"


@pytest.mark.parametrize(("read_s", "permitted"), [(99.9, False), (100.0, True)])
def test_a_documented_bound_permits_once_it_has_passed(read_s: float, permitted: bool) -> None:
    bounded = {**STRONG, "in_flight_bound_s": 100.0}
    assert View(bounded, [TIMEOUT], reports=[Report(read_s)]).permits().permitted is permitted


@pytest.mark.parametrize(("read_s", "permitted"), [(159.9, False), (160.0, True)])
def test_an_eventual_read_must_be_older_by_the_lag(read_s: float, permitted: bool) -> None:
    lagging = {"readback": "eventual", "lag_s": 60.0, "in_flight_bound_s": 100.0}
    assert View(lagging, [TIMEOUT], reports=[Report(read_s)]).permits().permitted is permitted


def test_an_undocumented_lag_never_proves_absence() -> None:
    hidden = {
        "readback": "eventual",
        "lag_s": 5.0,
        "lag_documented": False,
        "in_flight_bound_s": 100.0,
    }
    assert not View(hidden, [TIMEOUT], reports=[Report(1e6)]).permits()


def test_an_authoritative_not_executed_permits() -> None:
    contract = {"readback": "authoritative"}
    absent = Attempt(0.0, 30.0, "timeout", authority="not_executed")
    pending = Attempt(0.0, 30.0, "timeout", authority="pending")
    assert View(contract, [absent], reports=[Report(30.0)]).permits().rule == "known absent"
    assert not View(contract, [pending], reports=[Report(30.0)]).permits()


def test_the_operator_is_evidence_like_a_strong_read() -> None:
    contract = {"readback": "none", "in_flight_bound_s": 100.0}
    report = Report(930.0, source="operator")
    assert View(contract, [TIMEOUT], reports=[report]).permits().rule == "known absent"
    assert not View({"readback": "none"}, [TIMEOUT], reports=[report]).permits()


def test_an_idempotent_write_is_always_permitted() -> None:
    assert View({**STRONG, "idempotent": True}, [TIMEOUT]).permits().rule == "idempotent"


def test_the_same_key_protects_until_its_record_expires() -> None:
    original = Attempt(0.0, 30.0, "timeout", key="pinned")
    short = {**KEYED, "key_retention_s": 60.0}
    alive = View(short, [original], clock_s=59.9)
    assert alive.permits("pinned").rule == "protected replay"
    assert not alive.permits("none")
    assert not alive.permits("other")
    expired = View(short, [original], clock_s=60.0).permits("pinned")
    assert not expired
    assert "may have expired at 60 s" in expired.reason


def test_a_key_does_not_protect_an_original_without_one() -> None:
    contract = {**STRONG, "accepts_key": True}
    verdict = View(contract, [TIMEOUT]).permits("pinned")
    assert not verdict
    assert "did not carry this key" in verdict.reason


def test_the_candidate_key_decides_for_the_action_word() -> None:
    original = Attempt(0.0, 30.0, "timeout", key="pinned")
    assert View(KEYED, [original]).permits("keyed_retry").rule == "protected replay"
    other = {**KEYED, "candidate_key": "different"}
    assert not View(other, [original]).permits("keyed_retry")
    assert View(other, [original]).permits(Action.KEYED_RETRY) == View(other, [original]).permits(
        Key.OTHER
    )
    assert View(KEYED, [original]).permits(Action.RETRY) == View(KEYED, [original]).permits("none")


def test_a_batch_is_judged_by_the_items_re_sent() -> None:
    contract = {**STRONG, "n_items": 3}
    error = Attempt(0.0, 1.0, "server_error")
    partly = View(contract, [error], reports=[Report(1.0, (0, 1))])
    assert partly.permits().rule == "known absent"  # sends item 2 only
    assert partly.attempts[0].known_absent_items == (2,)
    whole = View(contract, [error], reports=[Report(1.0, (0, 1, 2))])
    assert not whole.permits()  # sends everything again


def test_a_request_that_cannot_be_sent_is_not_permitted() -> None:
    assert View(STRONG, [TIMEOUT]).permits("pinned").rule == "not possible"
    ended = View(STRONG, [Attempt(0.0, 1.0, "schema")], ending="claimed")
    assert ended.permits().rule == "not possible"
    used_up = View({**STRONG, "max_attempts": 1}, [Attempt(0.0, 1.0, "schema")])
    assert used_up.permits().rule == "not possible"


def test_the_first_send_is_no_re_issue() -> None:
    assert View(STRONG, start="send").permits().rule == "first send"


def test_unknown_key_words_are_refused() -> None:
    with pytest.raises(UserError, match="choose from none, pinned, other"):
        View(STRONG, [TIMEOUT]).permits("secret")
    with pytest.raises(UserError, match="unknown key"):
        View(STRONG, [TIMEOUT]).permits(Action.READ)


# --- views by hand and by the kernel --------------------------------------------------------------


def test_a_view_by_hand_is_the_kernels_view() -> None:
    kernel_view = seen_of("late-tail", (Action.WAIT, 60.0), (Action.READ, 0.0), world=1)
    by_hand = View(kernel_view.contract, [TIMEOUT], reports=[Report(90.0, (0,))])
    assert by_hand == kernel_view
    assert by_hand.tobytes() == kernel_view.tobytes()
    assert hash(by_hand) == hash(kernel_view)
    assert (by_hand.fields, by_hand.text) == (kernel_view.fields, kernel_view.text)


def test_what_earlier_reports_proved_absent_stays_known() -> None:
    error = Attempt(0.0, 1.0, "server_error")
    again = Attempt(2.0, 3.0, "success")
    view = View(STRONG, [error, again], reports=[Report(1.0), Report(3.0, (0,))])
    assert view.attempts[0].known_absent_items == (0,)
    assert view.attempts[1].known_absent_items == ()


def test_a_long_history_is_checked_report_by_report() -> None:
    reports = [Report(30.0 + k) for k in range(30)]
    assert View(STRONG, [TIMEOUT], reports=reports).seen.n_reads == 30
    with pytest.raises(ContradictionError, match="the report of 58 s no longer shows"):
        View(STRONG, [TIMEOUT], reports=[*reports[:27], Report(57.0, (0,)), *reports[28:]])


def test_mappings_stand_for_the_small_records() -> None:
    told = {"sent_s": 0.0, "answered_s": 30.0, "response": "timeout"}
    assert View(STRONG, [told], reports=[{"at_s": 30.0}]) == View(
        STRONG, [TIMEOUT], reports=[Report(30.0)]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"contract": {"readback": "sometimes"}}, "View: contract.readback"),
        ({"contract": STRONG, "attempts": [{"when": 3}]}, "View: Attempt"),
        ({"contract": STRONG, "attempts": ["timeout"]}, "must be of type Attempt"),
        ({"contract": STRONG, "attempts": [Attempt(0, 30, "lost")]}, "unknown response"),
        ({"contract": STRONG, "attempts": [Attempt(0, 30, "none")]}, "response has no meaning"),
        ({"contract": STRONG, "attempts": [Attempt(0, 30, "timeout", "mine")]}, "unknown key"),
        ({"contract": STRONG, "operator": "busy"}, "unknown operator 'busy'; choose from"),
        ({"contract": STRONG, "counts": {"sleeps": 1}}, "unknown count"),
        ({"contract": STRONG, "counts": {"reads": -1}}, "must be an integer >= 0"),
        ({"contract": STRONG, "reports": [Report(1.0, (), "rumour")]}, "unknown source"),
        ({"contract": STRONG, "costs": {"fun": 1}}, "View: "),
        ({"contract": STRONG, "start": "later"}, "View: start"),
    ],
)
def test_unknown_words_are_refused_in_one_line(arguments: dict, message: str) -> None:
    arguments = {"attempts": [TIMEOUT], **arguments}
    with pytest.raises(UserError, match=r"^[^\n]*$") as refused:
        View(**arguments).check()
    assert message in str(refused.value)


def test_a_foreign_record_is_refused() -> None:
    with pytest.raises(UserError, match="dtype CONTRACT"):
        View(np.zeros(1, VIEW)[0], [TIMEOUT])
    with pytest.raises(UserError, match="leave costs out"):
        View(np.zeros(1, CONTRACT)[0], [TIMEOUT], costs={"read": 1.0})


def test_a_view_is_frozen_and_copies_its_records() -> None:
    plan = load_plan("late-tail")
    seen = np.zeros(1, VIEW)
    seen[0].n_attempts = 1
    seen[0].attempts[0].payload = 1
    seen["context"] = 7
    view = View.of(seen[0], plan.contracts[0])
    seen[0].clock_s = 99.0
    assert view.clock_s == 0.0
    assert view.seen.context == 0  # where a contract stands in its preset is not for the client
    with pytest.raises(AttributeError):
        view.seen = seen[0]  # type: ignore[misc]
    with pytest.raises((ValueError, TypeError)):
        view.seen.clock_s = 1.0


@pytest.mark.parametrize("again", [copy.deepcopy, lambda view: pickle.loads(pickle.dumps(view))])
def test_a_view_survives_copying_and_pickling(again) -> None:
    view = seen_of("native", (Action.RETRY, 0.0), (Action.READ, 0.0))
    assert again(view) == view
    assert again(view).text == view.text


def test_unequal_histories_are_unequal_views() -> None:
    assert View(STRONG, [TIMEOUT]) != View(STRONG, [TIMEOUT], clock_s=31.0)
    assert View(STRONG, [TIMEOUT]) != View({**STRONG, "irreversible": True}, [TIMEOUT])
    assert View(STRONG, [TIMEOUT]) != "a view"


# --- fields and text ------------------------------------------------------------------------------


def test_the_fields_of_a_timeout() -> None:
    view = View(
        {**KEYED, "readback": "eventual", "lag_s": 60.0, "lag_documented": False, "n_items": 2},
        [Attempt(0.0, 30.0, "timeout", key="pinned")],
        reports=[Report(45.5)],
        costs={"duplicate": 2.5},
    )
    fields = view.fields
    assert fields["clock_s"] == 46.5
    assert fields["deciding_s"] == 16.5
    assert fields["ending"] is None
    assert fields["attempts"] == [
        {
            "number": 0,
            "sent_s": 0.0,
            "answered_s": 30.0,
            "response": "timeout",
            "key": "pinned",
            "items": [0, 1],
            "known_absent_items": [],
            "authority": "unknown",
        }
    ]
    assert fields["last_read"] == {
        "at_s": 45.5,
        "age_s": 1.0,
        "source": "read",
        "items_shown": [],
    }
    assert fields["operator"] == "not_asked"
    assert fields["operator_at_s"] is None
    assert (fields["reads"], fields["waits"], fields["steps_left"]) == (1, 1, 38)
    assert fields["contract"]["lag_s"] == "unknown"
    assert fields["contract"]["lag_documented"] is False
    assert fields["contract"]["in_flight_bound_s"] == "unknown"
    assert fields["contract"]["key_retention_s"] == 86400.0
    assert fields["documented"]["late_share"] == "unknown"
    assert fields["costs"]["duplicate"] == 2.5
    json.dumps(fields, allow_nan=False)


def test_every_contract_field_is_told() -> None:
    from exactlyonce_env.config import Contract

    told = View(STRONG, [TIMEOUT]).fields["contract"]
    assert set(told) == {*Contract.model_fields, "start"}


def test_documented_numbers_are_told() -> None:
    fields = seen_of("late-tail").fields["documented"]
    assert fields["late_delay_s"]["0.5"] == pytest.approx(math.sqrt(40 * 7200))
    assert fields["late_share"] == pytest.approx(1 / 3)
    text = seen_of("late-tail").text
    assert "50 % within 536.656 s" in text
    assert "never executed 33.33 %, executed before the timeout 33.33 %" in text


def test_a_retry_after_is_told_as_the_time_left() -> None:
    limited = Attempt(0.0, 1.0, "rate_limited")
    view = View(STRONG, [limited], retry_at_s=6.0, clock_s=3.0)
    assert view.retry_after_left_s == view.fields["retry_after_left_s"] == 3.0
    assert "Retry-After: 3 s left" in view.text
    assert View(STRONG, [limited], retry_at_s=6.0, clock_s=9.0).retry_after_left_s == 0.0


def test_the_text_of_a_timeout_that_was_read() -> None:
    text = View(STRONG, [TIMEOUT], reports=[Report(90.0)]).text
    assert "- one write that must take effect exactly once" in text
    assert "attempt 0: sent at 0 s without a key; no response, the client timed out at 30 s" in text
    assert "- last report, of 90 s (1 s ago), by a read: no effect" in text
    assert "- attempt 0: its outcome is open" in text
    assert "- budget: 38 of 40 calls left, 5 of 6 attempts left" in text
    assert text.endswith("\n")


def test_the_text_tells_what_a_lagging_read_covers() -> None:
    lagging = {"readback": "eventual", "lag_s": 60.0}
    told = View(lagging, [TIMEOUT], reports=[Report(90.0)]).text
    assert "by a read that shows what was committed by 30 s: no effect" in told
    hidden = {**lagging, "lag_documented": False}
    told = View(hidden, [TIMEOUT], reports=[Report(90.0)]).text
    assert "60 s" not in told  # the hidden lag
    assert "by a read that need not show anything yet" in told


def test_a_batch_is_told_item_by_item() -> None:
    contract = {**STRONG, "n_items": 3}
    error = Attempt(0.0, 1.0, "server_error")
    text = View(contract, [error], reports=[Report(1.0, (0,))]).text
    assert "one batch of 3 items, numbered 0 to 2" in text
    assert "the effects of item 0, not of items 1, 2" in text
    assert "no effect, now or later, on items 1, 2; open for item 0" in text


@pytest.mark.parametrize(
    ("contract", "phrase"),
    [
        ({"readback": "none"}, "read-back: none"),
        ({"readback": "authoritative"}, "pending, committed, or not executed for good"),
        ({"readback": "eventual", "lag_s": 7.5}, "committed at least 7.5 s before"),
        (
            {"accepts_key": True},
            "idempotency keys: accepted; the record of a key lives for 86400 s",
        ),
        ({"accepts_key": True, "key_retention_s": None}, "lives for ever"),
        ({"accepts_key": True, "in_flight_same_key": "conflict"}, "is refused with HTTP 409"),
        ({"accepts_key": True, "candidate_key": "different"}, "sends another key than"),
        ({"idempotent": True}, "idempotent: executing it again changes nothing"),
        ({"irreversible": True}, "irreversible: nothing can undo it"),
        ({"in_flight_bound_s": 45.0}, "has executed 45 s after it was sent, or never will"),
        ({"operator_answer_rate": 0.5}, "answers with probability 0.5"),
        ({"operator_answer_rate": 0.0}, "never answers"),
        ({"operator_sees_in_flight": True}, "requests in flight seen"),
        ({"dispatch_claims": True}, "ends the episode and claims completion"),
    ],
)
def test_every_promise_is_in_the_text(contract: dict, phrase: str) -> None:
    with_it = View({**STRONG, **contract}, [TIMEOUT]).text
    assert phrase in with_it
    assert phrase not in View(STRONG, [TIMEOUT]).text


def test_the_functions_take_records_and_nothing_hidden() -> None:
    view = seen_of("keys-everywhere", (Action.KEYED_RETRY, 0.0), (Action.READ, 0.0))
    assert view_text(view.seen, view.contract) == view.text
    assert view_fields(view.seen, view.contract) == view.fields


def test_the_operator_and_a_read_of_one_moment_are_not_told_apart_wrongly() -> None:
    contract = {"readback": "eventual", "lag_s": 60.0}
    asked = View(contract, [TIMEOUT], reports=[Report(930.0, (0,), "operator")])
    assert asked.last_report == Report(930.0, (0,), "operator")
    read_at_once = View(
        contract, [TIMEOUT], reports=[Report(930.0, (0,), "operator"), Report(930.0)]
    )
    assert read_at_once.last_report is not None
    assert read_at_once.last_report.source == "operator or read"
    assert "an earlier report showed item 0 as well" in read_at_once.text


def test_repr_names_the_moment_and_the_responses() -> None:
    assert repr(View(STRONG, [TIMEOUT])) == "<View at 30 s: timeout>"
    assert repr(View(STRONG, start="send")) == "<View at 0 s: nothing sent>"


def test_a_contradiction_is_a_user_error() -> None:
    with pytest.raises(UserError, match="contradictory view"):
        View(STRONG, [Attempt(0.0, 31.0, "timeout")]).permits()
    assert issubclass(ContradictionError, UserError)


def test_the_examples_in_the_docstrings() -> None:
    found = doctest.testmod(view)
    assert found.attempted > 0
    assert found.failed == 0
