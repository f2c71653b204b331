"""The history of a real client: the same views that a simulated world would have shown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from exactlyonce_env.client_history import ClientHistory
from exactlyonce_env.episode import Replay, replay
from exactlyonce_env.errors import UserError
from exactlyonce_env.presets import load_plan
from exactlyonce_env.view import View

ACTIONS = ("read", "wait:15", "wait:300", "retry", "keyed_retry", "escalate")
STRONG = {"readback": "strong", "latency_s": 1.0}


class Clock:
    """A clock that tests set."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def history(self, contract: Any, **options: Any) -> ClientHistory:
        return ClientHistory(contract, clock=self, **options)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def retold(told: Replay, contract: Any) -> list[View]:
    """The views of a client that lives through a replay with its own clock."""
    clock = Clock(0.0)
    history, views = clock.history(contract), []
    for step in told.steps:
        fields = step.view.fields
        clock.now_s = step.clock_s
        attempts, report = fields["attempts"], fields["last_read"]
        shown = report["items_shown"] if report else []
        authority = [attempt["authority"] for attempt in attempts]
        left_s = fields["retry_after_left_s"]
        if step.action in (None, "retry", "keyed_retry"):
            if attempts and (step.action is None or len(attempts) > len(views[-1].attempts)):
                history.sent(
                    attempts[-1]["response"],
                    keyed=step.action == "keyed_retry",
                    retry_after_s=left_s,
                )
            elif step.action is not None:
                return views  # a client error: nothing was sent
        elif step.action == "read" and fields["read_error"]:
            history.read_failed(outage=fields["read_error"] == "outage", retry_after_s=left_s)
        elif step.action == "read":
            told_all = fields["contract"]["readback"] == "authoritative"
            history.read(*shown, authority=authority if told_all else ())
        elif step.action == "escalate" and fields["operator"] == "silent":
            history.operator_silent()
        elif step.action == "escalate":
            sees = fields["contract"]["operator_sees_in_flight"]
            history.operator(*shown, authority=authority if sees else ())
        else:
            history.waited()
        views.append(history.view)
    return views


@pytest.mark.parametrize("preset", ["late-tail", "stale-tail", "native", "contextual"])
def test_it_keeps_the_views_of_a_simulated_world(preset: str) -> None:
    plan = load_plan(preset)
    generator = np.random.Generator(np.random.Philox(7))
    compared, words = 0, set()
    for world in range(60):
        actions = [ACTIONS[k] for k in generator.integers(0, len(ACTIONS), 7)]
        if preset == "native":
            actions.insert(0, "retry")
        told = replay(plan, 1, world, actions)
        contract = plan.contracts[plan.worlds(1, [world])[0]["context"]]
        views = retold(told, contract)
        for step, view in zip(told.steps, views, strict=False):
            assert view.tobytes() == step.view.tobytes(), (world, step.action)
            compared += 1
            words.add(step.action)
    assert compared > 250
    assert {"read", "retry", "escalate", "wait:15"} <= words


def test_what_takes_longer_than_promised_is_waiting(clock: Clock) -> None:
    history = clock.history(STRONG)
    clock.now_s += 30.5
    history.sent("timeout")
    assert history.view.clock_s == 30.0  # half a second of slack
    clock.now_s += 100
    view = history.view
    assert (view.clock_s, view.fields["waits"], view.fields["steps_taken"]) == (130.5, 1, 1)
    clock.now_s += 8
    history.read()
    assert history.view.clock_s == 138.5
    assert history.view.fields["last_read"]["at_s"] == 130.5
    assert history.view.fields["waits"] == 2


def test_a_fast_call_takes_its_documented_time(clock: Clock) -> None:
    history = clock.history(STRONG)
    clock.now_s += 30
    history.sent("timeout")
    clock.now_s += 0.02
    history.read()
    assert history.view.clock_s == 31.0
    clock.now_s += 60
    history.waited()
    assert history.view.clock_s == pytest.approx(90.02)


def test_real_times_never_contradict_the_contract(clock: Clock) -> None:
    generator = np.random.Generator(np.random.Philox(11))
    history = clock.history(STRONG)
    clock.now_s += 30 + generator.exponential(0.5)
    history.sent("timeout")
    for k in range(12):
        clock.now_s += generator.exponential(1.0)
        (history.read, history.waited, lambda: history.sent("server_error"))[
            k % 3 if k < 9 else 0
        ]()
        assert history.view.check().permits("none") in (history.view.permits("retry"),)
        assert abs(history.view.clock_s - (clock.now_s - 1000)) < 12


def test_a_rejection_is_known_to_be_absent(clock: Clock) -> None:
    history = clock.history(STRONG, start="send")
    clock.now_s += 1
    history.sent("rate_limited", retry_after_s=5)
    assert history.view.permits("none").rule == "known absent"
    assert history.view.retry_after_left_s == 5


def test_the_key_of_the_original_is_the_contracts(clock: Clock) -> None:
    keyed = {**STRONG, "accepts_key": True, "original_key": "sent"}
    history = clock.history(keyed)
    clock.now_s += 30
    history.sent("timeout")
    assert history.view.attempts[0].key == "pinned"
    assert history.view.permits("keyed_retry").rule == "protected replay"


def test_a_failing_read_without_a_503_is_time_lost(clock: Clock) -> None:
    history = clock.history(STRONG)
    clock.now_s += 30
    history.sent("timeout")
    clock.now_s += 10
    history.read_failed()
    view = history.view.check()
    assert (view.fields["reads"], view.fields["waits"], view.clock_s) == (0, 1, 40.0)


def test_the_budget_of_calls_ends_the_history(clock: Clock) -> None:
    history = clock.history({**STRONG, "max_steps": 2})
    clock.now_s += 30
    history.sent("timeout")
    for _ in range(2):
        clock.now_s += 1
        history.read()
    assert history.view.check().ending == "exhausted"
    with pytest.raises(UserError, match="budget of 2 calls is used up"):
        history.read()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda h: h.sent("timedout"), "unknown response 'timedout' .did you mean timeout"),
        (lambda h: h.sent("success", keyed=True), "the write takes no key"),
        (lambda h: h.read(1), "there is no item 1; they are 0..0"),
        (lambda h: h.read(0, authority=["pending"]), "this read gives none"),
        (lambda h: [h.sent("timeout") for _ in range(6)], "all 6 attempts"),
    ],
)
def test_what_cannot_have_happened_is_refused(clock: Clock, call: Any, said: str) -> None:
    history = clock.history(STRONG)
    clock.now_s += 30
    history.sent("timeout")
    before = history.view
    with pytest.raises(UserError, match=said):
        call(history)
    if "6 attempts" not in said:
        assert history.view == before
