"""How episodes end, what they count, and the one-decision worlds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from exactlyonce_env import kernel
from exactlyonce_env.presets import load_plan
from exactlyonce_env.records import N_TERMS, TRUTH, VIEW
from exactlyonce_env.vocabulary import MODE_NAMES, Action, Ending

from .worldbench import bench, opened, play, run, shipped


@pytest.mark.parametrize(
    ("action", "ending", "unresolved"),
    [("finish", Ending.CLAIMED, 0), ("finish_uncertain", Ending.UNCERTAIN, 1)],
)
def test_the_two_ways_to_finish(action: str, ending: Ending, unresolved: int) -> None:
    world = run("timeout_post", action)
    assert world.view["ending"] == ending
    assert world.clocks == [30, 30]
    assert world.measure("unresolved") == unresolved
    assert world.measure("exactly_once") == 1
    assert world.measure("resolved_exact") == 1 - unresolved
    assert world.measure("overclaim") == 0


def test_a_claim_is_an_overclaim_where_something_is_missing_or_double() -> None:
    assert run("timeout_pre", "finish").measure("overclaim") == 1
    assert run("timeout_pre", "finish_uncertain").measure("overclaim") == 0
    assert run("timeout_late ok", "retry finish").measure("overclaim") == 1
    assert run("timeout_late ok", "retry finish_uncertain").measure("overclaim") == 0


@pytest.mark.parametrize("max_steps", [1, 2, 5])
def test_an_exhausted_budget_ends_the_episode_as_unresolved(max_steps: int) -> None:
    world = run("timeout_post", ["read"] * max_steps, max_steps=max_steps)
    assert [int(view["ending"]) for view in world.views] == [0] * max_steps + [Ending.EXHAUSTED]
    assert world.measure("unresolved") == 1
    assert world.measure("steps") == max_steps
    assert world.measure("overclaim") == 0
    assert world.term("unresolved") == -0.3
    assert world.term("success") == 1


def test_finishing_with_the_last_call_is_a_finish() -> None:
    world = run("timeout_post", "read finish", max_steps=2)
    assert world.view["ending"] == Ending.CLAIMED
    assert world.measure("resolved_exact") == 1


def test_a_refused_call_uses_up_the_budget() -> None:
    world = run("timeout_post", "keyed_retry keyed_retry", max_steps=2)
    assert world.view["ending"] == Ending.EXHAUSTED
    assert world.view["n_client_errors"] == 2
    assert world.clocks == [30, 30, 30]


def test_the_last_call_counts_in_full_before_the_budget_ends() -> None:
    """The re-issue is sent, waited for, charged and then settled."""
    world = run("timeout_pre ok", "retry", max_steps=1)
    assert world.times == [31]
    assert world.clocks[-1] == 31
    assert world.rewards == (pytest.approx(1 - 0.3 - 0.002 - 0.12 / 3600, abs=1e-15),)


def test_elapsed_time_counts_from_the_sending_and_its_cost_from_the_first_decision() -> None:
    world = run("timeout_post", "wait:100 finish")
    assert world.measure("elapsed_s") == 130
    assert world.terms[:, 0].sum() == -0.12 * 100 / 3600
    sent = run("timeout_post", "wait:100 retry finish", start="send")
    assert sent.measure("elapsed_s") == 130
    assert sent.terms[:, 0].sum() == pytest.approx(-0.12 * 130 / 3600, abs=1e-18)


def test_a_first_send_is_no_re_issue_and_costs_none() -> None:
    for action in ("retry", "keyed_retry"):
        world = run("timeout_post ok", f"{action} {action} finish", start="send", accepts_key=True)
        assert world.term("reissue", 0) == 0
        assert world.term("reissue", 1) == -0.002
        assert world.measure("reissues") == 1
        assert world.false_permissions == (action == "retry")


def test_finishing_before_sending_anything_omits_the_write() -> None:
    world = run("timeout_post", "read finish", start="send", n_items=3)
    assert world.measure("omissions") == 3
    assert world.measure("overclaim") == 1
    assert world.ledger == []
    assert world.reward == pytest.approx(-0.002 - 0.12 / 3600 - 1.5 - 0.2, abs=1e-15)


@pytest.mark.parametrize(
    ("mode", "over"),
    [("ok", True), ("redelivery", True), ("timeout_post", False), ("http500_post", False)],
)
def test_where_a_dispatch_claims_an_acknowledged_one_ends_the_episode(
    mode: str, over: bool
) -> None:
    world = run(["timeout_pre", mode], "retry", dispatch_claims=True)
    assert world.view["ending"] == (Ending.CLAIMED if over else Ending.RUNNING)
    assert run(["timeout_pre", mode], "retry").view["ending"] == Ending.RUNNING


def test_a_refused_dispatch_claims_nothing() -> None:
    world = run("timeout_pre", "keyed_retry", dispatch_claims=True)
    assert world.view["ending"] == Ending.RUNNING


COLUMNS = (
    "false_retry_permissions",
    "duplicates",
    "omissions",
    "unresolved",
    "exactly_once",
    "resolved_exact",
)


@pytest.mark.parametrize(
    ("decision", "variant", "expected"),
    [
        # The design's table for three equally weighted worlds: absent, late, committed but hidden.
        ("retry", "key omitted", (3, 2, 0, 0, 1, 1)),
        ("retry", "key valid", (3, 2, 0, 0, 1, 1)),
        ("keyed_retry", "key valid", (0, 0, 0, 0, 3, 3)),
        ("keyed_retry", "key omitted", (3, 2, 0, 0, 1, 1)),
        ("keyed_retry", "key changed", (3, 2, 0, 0, 1, 1)),
        ("wait:60", "key valid", (0, 0, 1, 3, 2, 0)),
        ("finish_uncertain", "key valid", (0, 0, 1, 3, 2, 0)),
        ("finish", "key changed", (0, 0, 1, 0, 2, 2)),
    ],
)
def test_one_decision_in_three_hidden_worlds(
    decision: str, variant: str, expected: tuple[int, ...]
) -> None:
    plan = load_plan("first-decision")
    names = [situation.name for situation in plan.situations]
    worlds = plan.worlds(0, range(300))
    mine = worlds[worlds["context"] == names.index(variant)]
    sums = np.zeros(len(COLUMNS))
    for mode in ("timeout_pre", "timeout_late", "timeout_post"):
        world = int(mine["world"][mine["fates"]["mode"][:, 0] == MODE_NAMES.index(mode)][0])
        episode = play(plan, [decision], world=world)
        assert episode.view["ending"] != Ending.RUNNING
        sums += [episode.measure(name) for name in COLUMNS]
    assert tuple(sums) == expected


def test_a_settled_world_does_not_depend_on_when_the_client_stops() -> None:
    early = run("timeout_late ok", "retry finish")
    late = run("timeout_late ok", "retry wait:5000 finish")
    assert early.ledger == late.ledger
    assert early.measure("duplicates") == late.measure("duplicates") == 1


@pytest.mark.parametrize("preset", ["native", "contextual"])
def test_records_that_held_another_world_are_cleared(preset: str) -> None:
    """``begin`` leaves the bytes of a fresh view, whatever was in the record."""
    plan = shipped(preset)
    seen, truth, terms = np.zeros(2, VIEW), np.zeros(2, TRUTH), np.zeros(9)
    rng = np.random.default_rng(5)
    for world in range(60):
        for row in range(2):
            if row == 1:
                seen[1], truth[1] = np.zeros(1, VIEW)[0], np.zeros(1, TRUTH)[0]
            kernel.begin(
                plan.contexts,
                plan.context_cdf,
                plan.table,
                np.uint64(3),
                world,
                seen[row],
                truth[row],
            )
        assert seen[0].tobytes() == seen[1].tobytes()
        for _ in range(12):
            kind, seconds = int(rng.integers(5)), float(rng.integers(400))
            rewards = [
                kernel.act(plan.contexts, plan.table, seen[row], truth[row], kind, seconds, terms)
                for row in range(2)
            ]
            assert rewards[0] == rewards[1]
        assert seen[0].tobytes() == seen[1].tobytes()


def test_the_largest_numbers_do_not_break_the_clock() -> None:
    week_s = 604800.0
    world = run("timeout_late", [f"wait:{week_s}"] * 39 + ["finish"])
    assert world.clocks[-1] == 30 + 39 * week_s
    assert math.isfinite(world.reward)
    plan = bench("timeout_pre")
    assert play(plan, ["finish"], world=2**63 - 1, seed=2**64 - 1).measure("omissions") == 1


def test_seconds_count_for_waiting_only() -> None:
    plan = bench("timeout_post", "ok")
    views = []
    for seconds in (0.0, 777.0):
        seen, truth = opened(plan, 0)
        for kind in (Action.READ, Action.RETRY, Action.ESCALATE, Action.FINISH):
            kernel.act(
                plan.contexts, plan.table, seen, truth, int(kind), seconds, np.zeros(N_TERMS)
            )
        views.append(seen.tobytes())
    assert views[0] == views[1]
