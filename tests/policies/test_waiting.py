"""The law of waiting: wait:Δ succeeds if and only if the delay is at most Δ, whatever the lag."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from exactlyonce_env.plan import Plan
from exactlyonce_env.presets import load_plan
from exactlyonce_env.vocabulary import Mode
from policies.rollout import Episodes, run_policy
from policies.spec import parse_policy

from .episodebench import VERIFYING, plan_of, shipped

TIMEOUT_S = 30.0
LATE = (Mode.TIMEOUT_LATE, Mode.TIMEOUT_LATE_TAIL)


def run(plan: Plan, spec: str, n: int, seed: int = 0) -> Episodes:
    return run_policy(plan, parse_policy(spec), seed, np.arange(n))


def delays_s(plan: Plan, n: int, seed: int = 0) -> np.ndarray:
    """(n,) true delay of each original; infinity where it never commits."""
    return plan.worlds(seed, range(n))["fates"]["commit_delay_s"][:, 0]


def test_wait_60_doubles_exactly_the_late_worlds_of_90_s() -> None:
    episodes = run(shipped("late-fixed"), "wait:60", 3000)
    late = episodes.modes == Mode.TIMEOUT_LATE
    assert 800 < late.sum() < 1200
    np.testing.assert_array_equal(episodes.outcomes["duplicates"], late)
    np.testing.assert_array_equal(episodes.outcomes["exactly_once"], ~late)


@pytest.mark.parametrize("delta_s", [90, 120])
def test_a_wait_of_90_s_and_more_is_exactly_once_in_every_world_of_90_s(delta_s: int) -> None:
    episodes = run(shipped("late-fixed"), f"wait:{delta_s}", 3000)
    assert episodes.outcomes["exactly_once"].all()
    assert not episodes.outcomes["unresolved"].any()


@pytest.mark.parametrize("delta_s", [0, 10, 60, 300, 3600])
@pytest.mark.parametrize("preset", ["late-tail", "stale-tail", "late-lomax"])
def test_wait_succeeds_if_and_only_if_the_delay_is_at_most_delta(
    preset: str, delta_s: float
) -> None:
    plan = shipped(preset)
    episodes = run(plan, f"wait:{delta_s}", 3000)
    delay_s = delays_s(plan, 3000)
    wanted = (delay_s <= max(delta_s, TIMEOUT_S)) | np.isinf(delay_s)
    np.testing.assert_array_equal(episodes.outcomes["exactly_once"] != 0, wanted)
    assert 0 < wanted.sum() < len(wanted)


@pytest.mark.parametrize("lag_s", [0.0, 0.1, 1.0, 33.3, 120.0, 5000.0])
@pytest.mark.parametrize("delta_s", [0.0, 59.9, 77.7, 600.0])
def test_the_documented_lag_does_not_matter(delta_s: float, lag_s: float) -> None:
    plan = load_plan("late-tail", config={"contract": {"readback": "eventual", "lag_s": lag_s}})
    reference = run(shipped("late-tail"), f"wait:{delta_s}", 1000).outcomes
    lagging = run(plan, f"wait:{delta_s}", 1000).outcomes
    for name in ("exactly_once", "duplicates", "reads", "reissues"):
        np.testing.assert_array_equal(lagging[name], reference[name])
    read_s = max(delta_s, TIMEOUT_S) + lag_s
    assert lagging["elapsed_s"].min() == pytest.approx(read_s + 1.0, abs=1e-9)


@pytest.mark.parametrize("delta_s", [0.1, 0.3, 59.9, 77.7, 90.0, 1234.5678])
@pytest.mark.parametrize("lag_s", [0.0, 0.1, 0.7, 33.3, 120.0])
def test_a_delay_of_exactly_delta_counts_as_in_time(delta_s: float, lag_s: float) -> None:
    plan = plan_of(
        "timeout_late", readback="eventual", lag_s=lag_s, faults={"late_fixed_s": delta_s}
    )
    assert run(plan, f"wait:{delta_s}", 1).outcomes["exactly_once"].all()
    later = plan_of(
        "timeout_late", readback="eventual", lag_s=lag_s, faults={"late_fixed_s": delta_s + 31.0}
    )
    assert not run(later, f"wait:{delta_s}", 1).outcomes["exactly_once"].any()


@pytest.mark.parametrize("lag_s", [20.0, 100.0])
@pytest.mark.parametrize("delta_s", [0.0, 60.0, 300.0])
def test_an_undocumented_lag_costs_exactly_the_worlds_it_hides(
    delta_s: float, lag_s: float
) -> None:
    config = {"contract": {"readback": "eventual", "lag_s": lag_s, "lag_documented": False}}
    plan = load_plan("late-tail", config=config)
    delay_s = delays_s(plan, 2000)
    wanted = (delay_s + lag_s <= max(delta_s, TIMEOUT_S)) | np.isinf(delay_s)
    episodes = run(plan, f"wait:{delta_s}", 2000)
    np.testing.assert_array_equal(episodes.outcomes["exactly_once"] != 0, wanted)


def test_after_a_failed_reissue_it_waits_from_that_last_attempt() -> None:
    # Both attempts commit 50 s after their sending: each is in time for a wait of 60 s.
    plan = plan_of("rate_limited", "timeout_late", faults={"late_fixed_s": 50})
    outcomes = run(plan, "wait:60", 1).outcomes
    assert outcomes["exactly_once"].all()
    assert outcomes["elapsed_s"][0] == 6 + 60 + 1


@pytest.mark.parametrize("delta_s", [60, 300, 900, 3600])
@pytest.mark.parametrize("family", ["wait", "poll"])
def test_the_share_of_late_writes_in_time_is_the_reference_tail(family: str, delta_s: int) -> None:
    episodes = run(shipped("late-tail"), f"{family}:{delta_s}", 20_000)
    late = episodes.modes == Mode.TIMEOUT_LATE_TAIL
    share = episodes.outcomes["exactly_once"][late].mean()
    p = stats.loguniform(40, 7200).cdf(delta_s)
    assert abs(share - p) <= 4 * math.sqrt(p * (1 - p) / late.sum())
    assert episodes.outcomes["exactly_once"][~late].all()


@pytest.mark.parametrize("delta_s", [0, 60, 900])
@pytest.mark.parametrize("preset", ["late-tail", "stale-tail"])
def test_polling_loses_nothing_against_waiting_and_stops_earlier(preset: str, delta_s: int) -> None:
    polled = run(shipped(preset), f"poll:{delta_s}", 2000).outcomes
    waited = run(shipped(preset), f"wait:{delta_s}", 2000).outcomes
    np.testing.assert_array_equal(polled["exactly_once"], waited["exactly_once"])
    assert (polled["elapsed_s"] <= waited["elapsed_s"]).all()


@pytest.mark.parametrize("lag_s", [0.0, 75.0])
@pytest.mark.parametrize("spec", [*VERIFYING, "poll:700", "wait:700", "guard"])
def test_whoever_completes_an_absent_world_by_t_doubles_every_later_one(
    spec: str, lag_s: float
) -> None:
    """Verification alone cannot do both: what is done within T is doubled where δ > T + lag."""
    contract = {"readback": "eventual", "lag_s": lag_s}
    absent = run(plan_of("timeout_pre", **contract), spec, 1).outcomes
    assert absent["exactly_once"].all()
    bound_s = absent["elapsed_s"][0] + lag_s
    plan = load_plan(
        "late-tail", config={"contract": contract, "faults": {"original": {"timeout_late_tail": 1}}}
    )
    beyond = delays_s(plan, 1000) > bound_s
    assert beyond.sum() > 100
    assert (run(plan, spec, 1000).outcomes["duplicates"][beyond] >= 1).all()
