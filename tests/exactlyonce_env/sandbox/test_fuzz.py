"""Random calls: nothing escapes, the ledger adds up, and an ended episode stays ended."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from exactlyonce_env.rules import count_items
from exactlyonce_env.sandbox.behaviour import BEHAVIOURS, behaviour_of
from exactlyonce_env.sandbox.contracts import CONTRACTS, FAULTS
from exactlyonce_env.sandbox.grading import grade
from exactlyonce_env.sandbox.operations import Operation
from exactlyonce_env.sandbox.services import READS, Reader
from exactlyonce_env.sandbox.session import MAX_CALLS, Reply, Session
from exactlyonce_env.sandbox.tasks import TASKS, make_task
from exactlyonce_env.sandbox.tools import PATHS, PLATFORMS, TOOLS
from exactlyonce_env.vocabulary import Ending
from policies.wrappers import WRAPPERS, wrap

from .sandboxbench import BATCH

TEXT = st.text(max_size=12) | st.sampled_from(["", "0", "\ud800", "\x00", "9" * 5000, "x" * 10**5])
NUMBER = st.integers() | st.floats() | st.sampled_from([10**400, -0.0, 1e308])
JSON = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ODD: st.SearchStrategy[Any] = JSON | st.sampled_from(
    [object(), {1: 2}, {1: 2, "a": 3}, {"a": {1}}, b"x", [], "x", 7, {"text": {"a": object()}}]
)
KEYS = st.sampled_from(["k", "k2", "k3"])
OPTIONS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "key_retention_s": st.sampled_from([1.0, 60.0, 1e9]),
        "in_flight_same_key": st.sampled_from(["coalesce", "conflict"]),
        "key_mismatch": st.sampled_from(["reject", "conflict", "ignore"]),
        "cached_failures": st.booleans(),
        "unique": st.booleans(),
        "stranger": st.booleans(),
        "stale_every": st.integers(0, 3),
        "page_size": st.integers(0, 3),
        "misleading_errors": st.booleans(),
        "item_failures": st.booleans(),
    },
)
TABLES = ("migrations", "audit", "flags")


def executions_of(operation: Operation) -> int:
    """How many executions the kernel's records of a settled operation hold."""
    truth = operation.truth[0]["attempts"][: operation.seen["n_attempts"][0]]
    return sum(
        int(count_items(int(one["effect"]))) + int(count_items(int(one["copy_effect"])))
        for one in truth
    )


def listed(session: Session, kind: str) -> list[str]:
    """Ids of all records of a kind that the reading tools show in the end."""
    lag_of = dict.fromkeys(PATHS, 0.0)
    reader = Reader(session.records, math.inf, lag_of)
    ops = session.records.operations
    everyone = {
        "post": [("social_list_posts", {"platform": name}) for name in PLATFORMS[:3]],
        "charge": [("billing_list_charges", {})],
        "ticket": [
            ("tickets_list", {"project": name})
            for name in {
                op.arguments[0]["project"]
                for op in ops.values()
                if op.intent[0] == "tickets/create"
            }
            | {h.fields["project"] for h in session.records.held("ticket", 0.0)}
        ],
        "mail": [("mail_list_sent", {})],
        "row": [
            ("db_query", {"table": name})
            for name in {i[1] for i in ops if i[0] in ("database/insert", BATCH)}
            | {str(h.fields["table"]) for h in session.records.held("row", 0.0)}
        ],
        "run": [
            ("deploy_list_runs", {"service": name})
            for name in {i[1] for i in ops if i[0] == "deployments/run"}
            | {str(h.fields["service"]) for h in session.records.held("run", 0.0)}
        ],
    }[kind]
    names = {"mail": "mail_id", "row": "row_id"}.get(kind, f"{kind}_id")
    ids = []
    for tool, arguments in everyone:
        (entries,) = READS[tool](reader, arguments).values()
        ids += [entry[names] for entry in entries if ":" not in entry[names]]
    return ids


def in_the_ledger(session: Session, kind: str) -> list[str]:
    """The same from the ledger: what was there before and every effect, less what was removed."""
    records = session.records
    ids = sorted(records.seeded_ids(kind))
    for intent, operation in records.operations.items():
        if PATHS[intent[0]].kind == kind and intent[0] != "social/x":
            ids += [records.id_of(operation, e, kind) for e in operation.effects(math.inf)]
    return [id_ for id_ in ids if id_ not in records.removed]


def check_books(session: Session) -> None:
    """What must hold of an ended episode."""
    measures = grade(session)
    assert grade(session) == measures  # grading changes nothing
    json.dumps(measures.to_dict(), allow_nan=False)
    assert behaviour_of(session) in BEHAVIOURS
    for operation in session.records.operations.values():
        effects = operation.effects(math.inf)
        assert len(set(effects)) == len(effects)
        folded = [effect for effect in effects if effect in operation._folded]
        assert len(effects) - len(folded) == executions_of(operation)
        assert all(0 <= effect.sending < len(operation.arguments) for effect in effects)
        assert len(operation.permitted) == len(operation.arguments)
    for kind in ("post", "charge", "ticket", "mail", "row", "run"):
        if kind == "post" and session.options.stranger and session.focal.path == "social/x":
            continue
        assert sorted(listed(session, kind)) == sorted(in_the_ledger(session, kind)), kind


class RandomCalls(RuleBasedStateMachine):
    """An agent that does anything."""

    session: Session
    caller: Any

    @initialize(
        data=st.data(),
        task=st.sampled_from(sorted(TASKS)),
        instance=st.integers(0, 50),
        fault=st.sampled_from(FAULTS),
        contract=st.sampled_from(CONTRACTS),
        operator=st.sampled_from(["answers", "silent"]),
        options=OPTIONS,
        wrapper=st.sampled_from(["none"] * 6 + [n for n in WRAPPERS if n != "wait"] + ["wait:60"]),
    )
    def begin(
        self,
        data: st.DataObject,
        task: str,
        instance: int,
        fault: str,
        contract: str,
        operator: str,
        options: dict[str, Any],
        wrapper: str,
    ) -> None:
        made = make_task(task, instance)
        if fault == "partial_batch":
            made, write = make_task("migration_log", instance), "batch"
        else:
            write = data.draw(st.sampled_from(made.focal))
        self.session = Session(
            made, write=write, fault=fault, contract=contract, operator=operator, options=options
        )
        self.caller = wrap(self.session, wrapper)
        self.before_s = 0.0
        self.ids = ["nothing"]

    def take(self, name: Any, arguments: Any) -> Reply:
        session = self.session
        ended, n, state = session.ended, len(session.calls), session.now_s
        reply = self.caller.call(name, arguments)
        assert isinstance(reply, Reply)
        reply.text.encode()
        assert reply.ended == session.ended
        if ended:
            assert (reply.error, reply.status) == (True, 410)
            assert (len(session.calls), session.now_s) == (n, state)
        else:
            assert len(session.calls) > n or self.caller.spec != "none"
        if not reply.error:
            found = json.loads(reply.text)
            assert isinstance(found, dict)
            for entries in found.values():
                if isinstance(entries, list):
                    self.ids += [
                        value
                        for entry in entries
                        if isinstance(entry, dict)
                        for name, value in entry.items()
                        if name.endswith("_id")
                    ]
        return reply

    @rule(data=st.data(), key=st.none() | KEYS, words=st.none() | st.just("other words"))
    def do_a_step(self, data: st.DataObject, key: str | None, words: str | None) -> None:
        step = data.draw(st.sampled_from(self.session.task.steps))
        arguments = dict(step.arguments)
        if key:
            arguments["idempotency_key"] = key
        for name in ("text", "body", "description"):
            if words and name in arguments:
                arguments[name] = words
        if "rows" in arguments:
            arguments["rows"] = data.draw(
                st.lists(
                    st.sampled_from([*arguments["rows"], {"a": 1}, {"b": [2]}]),
                    min_size=1,
                    max_size=5,
                )
            )
        self.take(step.tool, arguments)

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(READS)))
        arguments: dict[str, Any] = {}
        for field in TOOLS[name].properties:
            if field in TOOLS[name].optional and data.draw(st.booleans()):
                continue
            arguments[field] = data.draw(
                st.sampled_from(
                    {
                        "platform": list(PLATFORMS),
                        "project": ["OPS", "COMMS", "SUPPORT"],
                        "table": list(TABLES),
                        "where": [{}, {"event": "x"}, {"a": 1}],
                        "cursor": ["0", "1", "99", "x", "9" * 5000],
                        "ticket_id": self.ids,
                    }.get(field, ["a", "is out"])
                )
            )
        self.take(name, arguments)

    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        name = data.draw(
            st.sampled_from(
                [name for name, tool in TOOLS.items() if tool.kind == "undo"]
                + ["billing_refund", "tickets_get"]
            )
        )
        arguments: dict[str, Any] = {
            field: "audit" if field == "table" else data.draw(st.sampled_from(self.ids))
            for field in TOOLS[name].properties
            if field != "idempotency_key"
        }
        self.take(name, arguments)

    @rule(seconds=st.sampled_from([0, 2.0, 30, 85.0, 300.0, 86400]))
    def wait(self, seconds: float) -> None:
        self.take("wait", {"seconds": seconds})

    @rule()
    def ask(self) -> None:
        self.take("escalate_to_human", {"question": "?"})

    @rule(name=st.sampled_from([*TOOLS, "x"]) | TEXT | st.none() | st.just(["x"]), arguments=ODD)
    def nonsense(self, name: Any, arguments: Any) -> None:
        if name != "finish":
            self.take(name, arguments)

    @rule(data=st.data(), name=st.sampled_from([n for n in TOOLS if n != "finish"]))
    def odd_arguments(self, data: st.DataObject, name: str) -> None:
        fields = [*TOOLS[name].properties, "extra", "idempotency_key"]
        chosen = data.draw(st.lists(st.sampled_from(fields), unique=True))
        self.take(name, {field: data.draw(ODD) for field in chosen})

    @rule(status=st.sampled_from(["completed", "uncertain", "failed", "done"]), many=st.booleans())
    @precondition(lambda self: len(self.session.calls) > 4)
    def finish(self, status: str, many: bool) -> None:
        arguments: Mapping[str, Any] = {"status": status, "summary": "x"}
        if many:
            arguments = {**arguments, "uncertain_operations": ["x"]}
        self.take("finish", arguments)

    @rule(words=TEXT)
    @precondition(lambda self: len(self.session.calls) > 2)
    def say(self, words: str) -> None:
        answer = self.caller.say(words)
        assert (answer is None) == self.session.ended

    @invariant()
    def time_goes_on(self) -> None:
        if not hasattr(self, "session"):
            return
        session = self.session
        assert session.now_s >= self.before_s
        self.before_s = session.now_s
        assert len(session.calls) <= MAX_CALLS
        if len(session.calls) == MAX_CALLS:
            assert session.ended
        for call, after in zip(session.calls, session.calls[1:], strict=False):
            assert call.ended_s == after.began_s
        for operation in session.records.operations.values():
            assert operation.seen["clock_s"][0] + operation.origin_s <= session.now_s + 1e-6

    def teardown(self) -> None:
        if hasattr(self, "session"):
            check_books(self.session)


RandomCalls.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestRandomCalls = RandomCalls.TestCase


def test_the_budget_ends_the_episode() -> None:
    session = Session("cross_post")
    for n in range(MAX_CALLS):
        assert not session.ended
        reply = session.call("wait", {"seconds": 1})
        assert reply.ended == (n == MAX_CALLS - 1)
    assert session.ending == Ending.EXHAUSTED
    late = session.call("finish", {"status": "completed", "summary": "x"})
    assert (late.status, late.ended, len(session.calls)) == (410, True, MAX_CALLS)
    assert grade(session).unresolved
    assert not grade(session).overclaim


def test_a_finish_on_the_last_call_counts() -> None:
    session = Session("cross_post", max_calls=2)
    session.call("wait", {"seconds": 1})
    session.call("finish", {"status": "completed", "summary": "x"})
    assert session.ending == Ending.CLAIMED


def test_two_turns_without_a_call_are_answered_and_the_third_ends_it() -> None:
    session = Session("cross_post")
    assert session.say("Hm.")
    assert session.say("Hm.")
    assert session.say("Hm.") is None
    assert session.ended
    assert session.say("Hm.") is None
    assert session.call("wait", {"seconds": 1}).status == 410


@pytest.mark.parametrize("n", [9, 12, 30])
def test_more_sendings_than_a_record_holds(n: int) -> None:
    """Attempts that no longer matter give up their place; every effect is kept."""
    session = Session("cross_post", write="post_mastodon", fault="timeout_late", max_calls=99)
    arguments = {"platform": "mastodon", "text": "x"}
    for _ in range(n):
        session.call("social_publish", arguments)
    shown = json.loads(session.call("social_list_posts", {"platform": "mastodon"}).text)["posts"]
    late = session.now_s - 5.0 >= 90.0
    assert len(shown) == n - 1 + late
    assert len({post["post_id"] for post in shown}) == len(shown)
    session.call("wait", {"seconds": 90})
    check_books(session)
    operation = session.operation("social_publish", arguments)
    assert operation is not None
    assert len(operation.effects(math.inf)) == n


@pytest.mark.parametrize("fault", ["ok", "timeout_post", "timeout_late"])
def test_a_key_protects_however_often_it_comes_back(fault: str) -> None:
    session = Session("cross_post", write="post_mastodon", fault=fault, max_calls=99)
    arguments = {"platform": "mastodon", "text": "x"}
    for key in ("k", "other"):
        for _ in range(20):
            session.call("social_publish", {**arguments, "idempotency_key": key})
    operation = session.operation("social_publish", arguments)
    assert operation is not None
    session.settle()
    assert len(operation.effects(math.inf)) == 2


def test_a_caller_may_change_what_it_passed() -> None:
    session = Session("migration_log")
    rows = [{"a": 1}, {"a": 2}]
    session.call("db_batch_insert", {"table": "t", "rows": rows})
    rows[0]["a"] = 99
    shown = json.loads(session.call("db_query", {"table": "t"}).text)["rows"]
    assert [row["a"] for row in shown] == [1, 2]


@settings(max_examples=50)
@given(ODD, st.sampled_from(sorted(TOOLS)))
def test_what_is_wrong_with_a_call_is_told_and_nothing_changes(value: Any, name: str) -> None:
    session = Session("cross_post", fault="timeout_post")
    reply = session.call(name, {"nothing_like_it": value})
    assert reply.error
    assert reply.status == 400
    assert reply.text.startswith("HTTP 400: ")
    assert not session.records.operations
    assert session.armed
