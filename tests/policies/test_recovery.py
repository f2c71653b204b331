"""The recovery driver: the happy path by itself, what goes wrong by a policy."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from exactlyonce_env.plan import Plan
from exactlyonce_env.sandbox.carrying_out import MAX_KEY
from exactlyonce_env.sandbox.grading import Grade, grade
from exactlyonce_env.sandbox.session import Reply, Session
from exactlyonce_env.sandbox.tasks import Step, Task
from exactlyonce_env.vocabulary import Action
from policies.base import ActionBatch, PlannedPolicy, Policy, ViewBatch
from policies.recovery import Recovery, key_of, run_task
from policies.spec import parse_policy


def run(session: Session, policy: str = "guard", **options: Any) -> Grade:
    decider: Any = parse_policy(policy)
    run_task(session, decider, **options)
    return grade(session)


def batch_of(n: int, fault: str, instance: int = 0) -> Session:
    rows = [{"n": k} for k in range(n)]
    step = Step("batch", "db_batch_insert", {"table": "t", "rows": rows})
    return Session(Task("batch", instance, "Insert.", (step,), ("batch",)), fault=fault)


def tools(session: Session) -> list[str]:
    return [call.tool for call in session.calls]


def test_the_happy_path_asks_nobody() -> None:
    class Never(Policy):
        def act(self, batch: ViewBatch) -> ActionBatch:
            raise AssertionError("nothing went wrong")

    session = Session("hotfix_long")
    run_task(session, Never())
    assert tools(session) == [step.tool for step in session.task.steps] + ["finish"]
    assert session.finished["status"] == "completed"
    assert session.finished["uncertain_operations"] == []


@pytest.mark.parametrize(("first_send", "keys"), [("keyed", 1), ("plain", 0)])
def test_first_sends_carry_a_key_where_one_is_taken(first_send: str, keys: int) -> None:
    session = Session("cross_post")
    run(session, first_send=first_send)
    keyed = [call for call in session.calls if "idempotency_key" in call.arguments]
    assert len(keyed) == keys
    assert all(call.arguments["platform"] == "mastodon" for call in keyed)


def test_the_policy_sees_the_view_of_the_open_write_alone() -> None:
    seen: list[tuple[int, float, int]] = []

    class Watching(Policy):
        def act(self, batch: ViewBatch) -> ActionBatch:
            (view,) = batch.views
            seen.append((int(view["n_attempts"]), float(view["clock_s"]), int(view["n_reads"])))
            assert len(batch.own_contracts) == 1
            actions = ActionBatch.empty(1)
            actions.kinds[:] = Action.READ if view["n_reads"] == 0 else Action.FINISH_UNCERTAIN
            return actions

    session = Session("release_announcement", write="ticket", fault="timeout_post")
    run_task(session, Watching())
    assert seen == [(1, 30.0, 0), (1, 35.0, 1)]
    assert session.finished["uncertain_operations"] == ["ticket"]
    assert session.finished["status"] == "uncertain"
    assert grade(session).exactly_once  # the rest was done all the same


def test_a_policy_made_for_a_plan_gets_the_plan_of_the_sandbox() -> None:
    plans: list[Plan] = []

    class Planned(PlannedPolicy):
        @property
        def spec(self) -> str:
            return "planned"

        def for_plan(self, plan: Plan) -> Policy:
            plans.append(plan)
            policy = parse_policy("guard")
            assert isinstance(policy, Policy)
            return policy

    session = Session("cross_post", fault="timeout_post")
    run_task(session, Planned())
    assert plans == [session.plan]


def test_everything_goes_through_the_caller() -> None:
    class Counting:
        def __init__(self, session: Session) -> None:
            self.session, self.names = session, []

        names: list[str]

        def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> Reply:
            self.names.append(name)
            return self.session.call(name, arguments)

    session = Session("release_announcement", write="mail", fault="timeout_late")
    caller = Counting(session)
    run(session, "wait:300", caller=caller)
    assert caller.names == tools(session)
    assert "wait" in caller.names


@pytest.mark.parametrize("policy", ["verify-retry", "guard", "state-oracle", "outcome-oracle"])
@pytest.mark.parametrize("n", [2, 3, 4, 6, 30])
@pytest.mark.parametrize("fault", ["partial_batch", "http500_pre", "http500_post", "timeout_pre"])
def test_batches_of_any_size(fault: str, n: int, policy: str) -> None:
    session = batch_of(n, fault)
    measures = run(session, policy)
    assert measures.resolved_exact
    writes = [call for call in session.calls if call.tool == "db_batch_insert"]
    if fault == "partial_batch":
        missing = [row["n"] for row in writes[1].arguments["rows"]]
        assert missing == list(range(max(n // 2, 1), n))


def test_an_operator_who_is_silent_leaves_the_write_uncertain() -> None:
    session = Session("cross_post", fault="timeout_post", operator="silent")
    measures = run(session)
    assert session.finished["uncertain_operations"] == ["post_x"]
    assert (measures.unresolved, measures.escalations, measures.operator_s) == (True, 1, 900.0)


@pytest.mark.parametrize(("fault", "sends"), [("timeout_pre", 2), ("timeout_post", 1)])
def test_the_operators_answer_decides_where_nothing_can_be_read(fault: str, sends: int) -> None:
    session = Session("cross_post", fault=fault)
    assert run(session).resolved_exact
    posts = [call for call in session.calls if call.arguments.get("platform") == "x"]
    assert len(posts) == sends


def test_the_budget_of_calls_may_run_out() -> None:
    session = Session("release_announcement", write="mail", fault="timeout_pre", max_calls=5)
    assert run(session).unresolved
    assert len(session.calls) == 5


def test_a_wait_may_be_longer_than_one_call_takes() -> None:
    session = Session("release_announcement", write="mail", fault="timeout_pre")
    assert run(session, "wait:200000").resolved_exact
    waits = [call.arguments["seconds"] for call in session.calls if call.tool == "wait"]
    assert len(waits) == 3
    assert math.fsum(waits) == pytest.approx(200000 + 120 - 30)


def test_a_minted_key_names_the_intent_and_is_never_too_long() -> None:
    assert key_of(("mail/send", "a@b")) == "mail/send:a@b"
    long = key_of(("mail/send", "a" * 500))
    assert len(long) <= MAX_KEY
    assert long != key_of(("mail/send", "a" * 501))
    session = Session("cross_post")
    keyed = {"customer": "c" * 500, "amount": 1, "description": "x", "idempotency_key": long}
    assert not session.call("billing_charge", keyed).error


def test_a_re_issue_repeats_the_request_as_it_was_first_sent() -> None:
    session = Session("invoice_batch", fault="timeout_pre")
    step = session.task.steps[0]
    arguments = {**step.arguments, "idempotency_key": "mine"}
    session.call(step.tool, arguments)
    operation = session.operation(step.tool, arguments)
    assert operation is not None
    policy: Any = parse_policy("verify-retry")
    recovery = Recovery(session, session, policy)
    assert recovery.resolve(operation, arguments)
    sent = [call.arguments for call in session.calls if call.tool == step.tool]
    assert sent == [arguments, arguments]


def test_deciding_changes_nothing() -> None:
    session = Session("invoice_batch", fault="timeout_late")
    step = session.task.steps[0]
    session.call(step.tool, step.arguments)
    operation = session.operation(step.tool, step.arguments)
    assert operation is not None
    for name in ("guard", "outcome-oracle"):
        policy: Any = parse_policy(name)
        recovery = Recovery(session, session, policy)
        before = operation.seen.tobytes(), operation.truth.tobytes(), session.now_s
        decisions = {recovery.decide(operation) for _ in range(3)}
        assert len(decisions) == 1
        assert (operation.seen.tobytes(), operation.truth.tobytes(), session.now_s) == before


def test_other_calls_age_the_view() -> None:
    clocks: list[float] = []

    class Clock(Policy):
        def act(self, batch: ViewBatch) -> ActionBatch:
            clocks.append(float(batch.views["clock_s"][0]))
            actions = ActionBatch.empty(1)
            actions.kinds[:] = Action.FINISH_UNCERTAIN
            return actions

    session = Session("release_announcement", write="ticket", fault="timeout_post")
    for step in session.task.steps:
        session.call(step.tool, step.arguments)
    step = session.task.steps[2]
    operation = session.operation(step.tool, step.arguments)
    assert operation is not None
    Recovery(session, session, Clock()).decide(operation)
    assert clocks == [session.now_s - operation.origin_s]
    assert np.isclose(clocks[0], 35.0)


def test_what_the_driver_says_in_the_end_is_what_it_knows() -> None:
    session = Session("release_announcement", write="mail", fault="timeout_pre")
    run(session, "never-retry")
    (last,) = [call for call in session.calls if call.tool == "finish"]
    assert json.loads(last.reply.text) == {"ok": True}
    assert last.arguments["summary"] == "not certain: mail"
