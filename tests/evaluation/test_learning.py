"""Gaps, slices, patience and agreement: arithmetic by hand, and the optimum against itself."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evaluation.learning import (
    TRANSFER_LAWS,
    References,
    across_seeds,
    agreement,
    first_reissues_s,
    gap_closed,
    persistence,
    persistence_errors,
    references,
    slices,
    told,
    transfer_plan,
)
from exactlyonce_env.presets import load_plan
from exactlyonce_env.vocabulary import Mode
from policies.bayes.policy import BayesOptimal
from policies.rollout import run_policy
from policies.spec import parse_policy


@pytest.fixture(scope="module")
def late_tail() -> References:
    return references(load_plan("late-tail"), worlds=400)


def test_gap_closed_is_the_ratio_of_paired_means():
    wait, optimum = np.array([0.0, 1.0, 0.0, 1.0]), np.array([1.0, 1.0, 1.0, 1.0])
    policy = np.array([1.0, 1.0, 0.0, 0.5])
    found = gap_closed(policy, wait, optimum)
    assert found is not None
    assert found.value == pytest.approx(0.25)
    # Residuals (p - w) - R (o - w) = 0.75, 0, -0.25, -0.5 over the gap of 0.5.
    residuals = np.array([1.5, 0.0, -0.5, -1.0])
    half = 3.182446305284263 * residuals.std(ddof=1) / 2.0
    assert found.low == pytest.approx(0.25 - half)
    assert found.high == pytest.approx(0.25 + half)


def test_the_ends_of_the_gap_are_exact():
    wait, optimum = np.array([0.2, 0.4, 0.1]), np.array([0.9, 0.4, 0.6])
    nothing, all_of_it = gap_closed(wait, wait, optimum), gap_closed(optimum, wait, optimum)
    assert nothing is not None
    assert all_of_it is not None
    assert (nothing.value, nothing.low, nothing.high) == pytest.approx((0.0, 0.0, 0.0))
    assert (all_of_it.value, all_of_it.low, all_of_it.high) == pytest.approx((1.0, 1.0, 1.0))
    assert gap_closed(wait, optimum, wait) is None


def test_the_best_wait_is_that_of_the_worlds_asked_for():
    found = _by_hand()
    whole = found.gap(np.array([1.0, 1.0, 1.0, 0.0]))
    assert whole.best_wait.delta_s == 60.0  # of equals the shortest
    assert whole.gap_closed is not None
    assert whole.gap_closed.value == pytest.approx((0.75 - 0.5) / (1.0 - 0.5))
    assert whole.difference.value == pytest.approx(-0.25)
    assert not whole.narrow
    half = found.gap(np.array([1.0, 1.0, 1.0, 0.0]), np.array([False, False, True, True]))
    assert half.best_wait.delta_s == 300.0
    assert half.narrow
    assert half.gap_closed is None
    assert half.difference.value == pytest.approx(-0.5)


def test_slices_partition_the_worlds():
    plan = load_plan("contextual", config={"split": "test"})
    n = 2000
    episodes = run_policy(plan, parse_policy("never-retry"), 0, np.arange(n))
    parts = slices(_by_hand(plan, episodes.contexts, episodes.modes))
    dimensions = {part.dimension for part in parts}
    assert dimensions == {"contract", "fault", "duplicate/time"}
    for dimension in dimensions:
        count = sum(part.members.astype(int) for part in parts if part.dimension == dimension)
        assert np.array_equal(count, np.ones(n))
    by_name = {part.name: part.members for part in parts}
    assert set(by_name) >= {"none, key", "none, no key", "strong, key", "authoritative, no key"}
    assert np.array_equal(by_name["acknowledged"], np.isin(episodes.modes, [0, Mode.REDELIVERY]))
    costs = plan.contracts["costs"]
    ratio = (costs["duplicate"] / costs["time_per_hour"])[episodes.contexts]
    assert ratio[by_name["quartile 1"]].max() < ratio[by_name["quartile 2"]].min()
    assert ratio[by_name["quartile 3"]].max() < ratio[by_name["quartile 4"]].min()
    chances = [np.mean(by_name[f"quartile {k}"]) for k in (1, 2, 3, 4)]
    assert chances == pytest.approx([0.25] * 4, abs=0.05)


def test_a_wait_re_issues_after_its_delta():
    """``wait:300`` of late-tail reads 300 s after the sending and re-issues if nothing shows."""
    plan, ids = load_plan("late-tail"), np.arange(300)
    first_s = first_reissues_s(plan, parse_policy("wait:300"), 0, ids)  # type: ignore[arg-type]
    reissues = run_policy(plan, parse_policy("wait:300"), 0, ids).outcomes["reissues"]
    assert np.array_equal(np.isnan(first_s), reissues == 0)
    there = first_s[~np.isnan(first_s)]
    assert 0 < len(there) < 300
    assert there.min() >= 300.0
    assert there.max() <= 300.0 + 2.0 * plan.contracts["latency_s"][0]


def test_the_sending_of_the_original_is_no_re_issue():
    plan = load_plan("first-decision")
    first_s = first_reissues_s(plan, parse_policy("never-retry"), 0, np.arange(100))  # type: ignore[arg-type]
    assert np.isnan(first_s).all()


def test_persistence_errors_are_in_octaves():
    first_s = np.array([100.0, 400.0, 50.0, np.nan, 7.0, 0.0])
    optimal_s = np.array([200.0, 100.0, 50.0, 80.0, np.nan, 0.0])
    errors = persistence_errors(first_s, optimal_s)
    assert errors[:3].tolist() == [1.0, 2.0, 0.0]
    assert np.isnan(errors[3:5]).all()
    assert errors[5] == 0.0
    modes = np.array([Mode.TIMEOUT_PRE] * 3 + [Mode.HTTP500_PRE] * 3, dtype=np.int8)
    found = {row["group"]: row for row in persistence(errors, modes)}
    assert found["all"] == {"group": "all", "median_log2": 0.5, "n": 4}
    assert found["timeout"] == {"group": "timeout", "median_log2": 1.0, "n": 3}
    assert found["server error"]["n"] == 1
    assert found["explicit"] == {"group": "explicit", "median_log2": None, "n": 0}


def test_the_optimum_is_as_patient_as_itself_and_closes_the_gap(late_tail):
    again = first_reissues_s(late_tail.plan, BayesOptimal(late_tail.plan), 0, np.arange(400))
    errors = persistence_errors(again, late_tail.first_reissue_s)
    (row,) = persistence(errors)
    assert row["n"] > 50
    assert row["median_log2"] == 0.0
    gap = late_tail.gap(late_tail.rewards)
    assert gap.gap_closed is not None
    assert gap.gap_closed.value == pytest.approx(1.0)
    assert gap.difference.value == 0.0
    standard_error = late_tail.rewards.std() / math.sqrt(400)
    assert abs(gap.bayes.value - late_tail.predicted) < 4.0 * standard_error


def test_the_optimum_agrees_with_itself_and_blind_retries_do_not(late_tail):
    solution, ids = late_tail.optimum.solution, np.arange(100)
    own = agreement(solution, late_tail.optimum, 0, ids)
    assert [row["decile"] for row in own] == list(range(10))
    assert sum(row["n"] for row in own) > 200
    assert all(row["share"] in (None, 1.0) for row in own)
    assert all((row["share"] is None) == (row["n"] == 0) for row in own)
    # A third of the originals is absent: that is what is believed before anything was seen.
    blind = agreement(solution, parse_policy("blind-retry"), 0, ids)  # type: ignore[arg-type]
    assert blind[3]["n"] >= 100
    assert blind[3]["share"] == 0.0


@pytest.mark.parametrize("name", TRANSFER_LAWS)
def test_the_view_tells_the_law_of_a_transfer(name):
    law = TRANSFER_LAWS[name]
    plan = transfer_plan(law)
    assert len(plan.contexts) == 1024
    found = told(plan)
    levels = [0.1, 0.5, 0.9, 0.99]
    assert list(found["quantiles_s"].values()) == pytest.approx([law.quantile(q) for q in levels])
    assert (found["bounded"] > 0.0) == math.isfinite(law.support_s[1])


def _by_hand(plan=None, contexts=None, modes=None) -> References:
    """Four worlds with rewards that can be followed by hand, or the worlds given."""
    plan = plan or load_plan("late-tail")
    n = 4 if contexts is None else len(contexts)
    return References(
        plan=plan,
        seed=0,
        optimum=BayesOptimal(plan),
        rewards=np.ones(n),
        waits={300.0: np.array([0.0, 0.0, 1.0, 1.0]), 60.0: np.array([1.0, 1.0, 0.0, 0.0])},
        polls={60.0: np.array([0.0, 0.0, 0.0, 1.0])},
        predicted=1.0,
        contexts=np.zeros(n, dtype=np.int32) if contexts is None else contexts,
        modes=np.zeros(n, dtype=np.int8) if modes is None else modes,
        first_reissue_s=np.full(n, np.nan),
    )


def test_the_measures_over_seeds_and_presets():
    rows = [
        {"preset": preset, "seed": seed, "gap_closed": gap}
        for preset, gaps in (
            ("late-tail", (0.98, 0.96, 0.99)),
            ("stale-tail", (0.90, 0.94, None)),
            ("late-fixed", (None, None, None)),
        )
        for seed, gap in enumerate(gaps)
    ]
    found = across_seeds(rows)
    assert (found["tasks"], found["runs"]) == (["late-tail", "stale-tail"], [0, 1])
    assert found["iqm"]["value"] == pytest.approx((0.94 + 0.96) / 2)
    assert found["mean"]["value"] == pytest.approx(0.945)
    assert found["optimality_gap"]["value"] == pytest.approx(0.055)
    shares = dict(zip(found["profile"]["thresholds"], found["profile"]["shares"], strict=True))
    assert (shares[0.9], shares[0.95], shares[1.0]) == (0.75, 0.5, 0.0)
    assert "one training seed" in across_seeds(rows[:1])["why"]
    assert "no preset" in across_seeds(rows[6:])["why"]
