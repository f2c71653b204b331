"""Further published and enumerated values, and each statistic at its edges."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from evaluation.intervals import mean_interval, paired_share_interval, wilson_interval
from evaluation.paired import holm, mcnemar_exact
from evaluation.statistics.clusters import cluster_bootstrap, intraclass_correlation
from evaluation.statistics.exact_tests import Stratum, stratified_exact, tost_paired
from evaluation.statistics.invariance import first_action_agreement, total_variation_test
from evaluation.statistics.models import gee, mixed_model, shapley_shares
from evaluation.statistics.power import plan_pairs, power_of
from evaluation.statistics.ranks import kendall_tau_b
from evaluation.statistics.seeds import (
    iqm_interval,
    performance_profile,
    probability_of_improvement,
    seed_measures,
)
from evaluation.statistics.shares import (
    Arm,
    clopper_pearson,
    effective_n,
    mover_interaction,
    newcombe,
    wilson,
)
from exactlyonce_env.errors import UserError

# --- values from elsewhere ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arms", "low", "high"),
    [
        ((6, 7, 2, 7), 0.0582, 0.8062),
        ((5, 56, 0, 29), -0.0381, 0.1926),
        ((0, 10, 0, 20), -0.1611, 0.2775),
        ((0, 10, 0, 10), -0.2775, 0.2775),
    ],
)
def test_the_rest_of_newcombe_1998_table_ii(arms: Any, low: float, high: float) -> None:
    """R. G. Newcombe (1998), Stat. Med. 17:873-890, table II, method 10: examples (c) to (f)."""
    a, m, b, n = arms
    found = newcombe(Arm(a, m), Arm(b, n))
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)
    turned = newcombe(Arm(b, n), Arm(a, m))
    assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low))


@pytest.mark.parametrize(("count", "n"), [(0, 7), (1, 7), (3, 7), (7, 7), (55, 80), (999, 1000)])
def test_clopper_pearson_is_a_pair_of_beta_quantiles(count: int, n: int) -> None:
    from scipy.stats import beta

    found = clopper_pearson(count, n, 0.9)
    low = beta.ppf(0.05, count, n - count + 1) if count else 0.0
    high = beta.ppf(0.95, count + 1, n - count) if count < n else 1.0
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9)


def test_published_stratified_test() -> None:
    """Penicillin in rabbits: Agresti (1990), Categorical Data Analysis, section 7.3.

    R: mantelhaen.test(Rabbits, exact = TRUE) gives S = 16 and p = 0.03994.
    """
    cured_and_died = [(0, 0, 6, 5), (3, 0, 3, 6), (6, 2, 0, 4), (5, 6, 1, 0), (2, 5, 0, 0)]
    strata = [Stratum(a, a + c, b, b + d) for a, b, c, d in cured_and_died]
    assert round(stratified_exact(strata), 5) == 0.03994


def test_one_stratum_is_twice_fishers_one_sided_test() -> None:
    """Fisher's tea: 3 of 4 against 1 of 4; one-sided p = 17/70."""
    assert stratified_exact([Stratum(3, 4, 1, 4)]) == pytest.approx(34 / 70)
    # Unequal arms, by hand: C(2,2) C(8,0) ways of 45 to have both events in the arm of two.
    assert stratified_exact([Stratum(2, 2, 0, 8)]) == pytest.approx(2 / 45)


def test_documented_tau_b() -> None:
    """The example of `scipy.stats.kendalltau`."""
    found = kendall_tau_b([12, 2, 1, 12, 2], [1, 4, 7, 1, 0])
    assert found.low == found.high == pytest.approx(-0.47140452079103173)


def test_tau_b_counts_pairs() -> None:
    x, y = [3, 1, 4, 1, 5, 9, 2], [2, 7, 1, 8, 2, 8, 1]
    signs = [(np.sign(x[i] - x[j]), np.sign(y[i] - y[j])) for i in range(len(x)) for j in range(i)]
    above = sum(a * b for a, b in signs)
    below = math.sqrt(sum(a * a for a, _ in signs) * sum(b * b for _, b in signs))
    assert kendall_tau_b(x, y).low == pytest.approx(above / below)


def test_holm_by_hand() -> None:
    """In order .005 x 5, .01 x 4, .02 x 3, .03 x 2 (no less than the one before), .5 x 1."""
    p = [0.01, 0.02, 0.03, 0.005, 0.5]
    np.testing.assert_allclose(holm(p), [0.04, 0.06, 0.06, 0.025, 0.5])
    np.testing.assert_allclose(holm([0.0, 1.0, 1.0]), [0.0, 1.0, 1.0])
    assert holm([0.2]).tolist() == [0.2]


def test_two_one_sided_tests_by_another_way() -> None:
    """Means of scores +1, -1 and 0 with the variance of n, by statsmodels' z-test."""
    from statsmodels.stats.weightstats import DescrStatsW

    b, c, n, margin = 9, 4, 120, 0.1
    scores = np.array([1.0] * b + [-1.0] * c + [0.0] * (n - b - c))
    error = scores.std() / math.sqrt(n)
    described = DescrStatsW(scores)
    found = tost_paired(b, c, n, margin)
    assert found.difference == pytest.approx(described.mean)
    from scipy.stats import norm

    lower = norm.sf((scores.mean() + margin) / error)
    upper = norm.cdf((scores.mean() - margin) / error)
    assert found.p == pytest.approx(max(lower, upper))
    limits = norm.interval(0.90, scores.mean(), error)
    assert (found.low, found.high) == pytest.approx(limits)


def test_the_power_sums_over_all_tables() -> None:
    """Every (b, c) of 25 pairs whose McNemar test is significant, with its trinomial weight."""
    from scipy.stats import multinomial

    baseline, detect, discordance, n = 0.3, 0.3, 0.5, 25
    gain, loss = (discordance + detect) / 2, (discordance - detect) / 2
    total = 0.0
    for b in range(n + 1):
        for c in range(n + 1 - b):
            if mcnemar_exact(b, c) <= 0.05:
                total += multinomial.pmf([b, c, n - b - c], n, [gain, loss, 1 - gain - loss])
    found = power_of(baseline, detect, discordance, pairs=n)
    assert found.power == pytest.approx(total, abs=1e-9)


def test_permutations_are_all_swaps() -> None:
    first, second = list("aabcab"), list("bacbbc")

    def distance(one: list[str], other: list[str]) -> float:
        kinds = set(one + other)
        return sum(abs(one.count(k) - other.count(k)) for k in kinds) / (2 * len(one))

    observed = distance(first, second)
    found = []
    for swaps in product((False, True), repeat=6):
        one = [b if s else a for a, b, s in zip(first, second, swaps, strict=True)]
        other = [a if s else b for a, b, s in zip(first, second, swaps, strict=True)]
        found.append(distance(one, other) >= observed - 1e-12)
    tested = total_variation_test(first, second)
    assert tested.distance == pytest.approx(observed)
    assert tested.p == pytest.approx(sum(found) / 64)


def test_shapley_shares_of_two_factors_by_another_fit() -> None:
    import statsmodels.api as sm

    rng = np.random.default_rng(3)
    one, other = rng.integers(2, size=300), rng.integers(3, size=300)
    y = (rng.random(300) < 0.2 + 0.4 * one + 0.1 * other).astype(int)

    def pseudo(*columns: Any) -> float:
        return float(sm.Logit(y, sm.add_constant(np.column_stack(columns))).fit(disp=0).prsquared)

    dummies = [(other == k).astype(float) for k in (1, 2)]
    alone, rest, both = pseudo(one), pseudo(*dummies), pseudo(one, *dummies)
    found = shapley_shares(y, {"one": one.tolist(), "other": other.tolist()})
    assert found["one"] == pytest.approx((alone + both - rest) / 2, abs=1e-8)
    assert found["other"] == pytest.approx((rest + both - alone) / 2, abs=1e-8)


def test_the_correlation_is_that_of_a_random_effects_table() -> None:
    """Clusters of unequal size, by hand: means 1, 0 and 1/2 of 2, 3 and 2."""
    found = intraclass_correlation([1, 1, 0, 0, 0, 0, 1], [0, 0, 1, 1, 1, 2, 2])
    grand = 3 / 7
    between = (2 * (1 - grand) ** 2 + 3 * grand**2 + 2 * (0.5 - grand) ** 2) / 2
    within = 0.5 / 4
    typical = (7 - (4 + 9 + 4) / 7) / 2
    assert found == pytest.approx((between - within) / (between + (typical - 1) * within))


# --- measures over training seeds -----------------------------------------------------------------

SCORES = np.array([[0.2, 0.9, 1.4], [0.4, 1.1, 0.1], [0.6, 0.7, 0.3], [0.5, 0.8, 0.2]])


def test_the_measures_of_rliable_by_their_definitions() -> None:
    found = seed_measures(SCORES, resamples=400)
    ordered = sorted(SCORES.ravel())
    assert found["iqm"].value == pytest.approx(np.mean(ordered[3:9]))
    assert found["mean"].value == pytest.approx(SCORES.mean())
    assert found["median"].value == pytest.approx(np.median(SCORES.mean(axis=0)))
    gaps = [max(0.0, 1.0 - score) for score in SCORES.ravel()]
    assert found["optimality_gap"].value == pytest.approx(np.mean(gaps))
    for estimate in found.values():
        assert estimate.low <= estimate.value <= estimate.high
        assert (estimate.runs, estimate.tasks) == (4, 3)
    assert found["iqm"] == iqm_interval(SCORES, resamples=400)
    nearer = seed_measures(SCORES, target=0.5, resamples=10)["optimality_gap"].value
    assert nearer == pytest.approx(np.mean([max(0.0, 0.5 - s) for s in SCORES.ravel()]))


def test_runs_are_drawn_task_by_task() -> None:
    # One task never varies: only the other moves the mean, between 0 and 1 halved.
    found = seed_measures([[0.0, 5.0], [1.0, 5.0]], resamples=4000)["mean"]
    assert (found.value, found.low, found.high) == (2.75, 2.5, 3.0)


def test_the_profile_has_limits() -> None:
    found = performance_profile(SCORES, [0.0, 0.55, 2.0], resamples=500)
    assert found.shares == (1.0, 6 / 12, 0.0)
    assert (found.low[0], found.high[0], found.low[2], found.high[2]) == (1.0, 1.0, 0.0, 0.0)
    assert found.low[1] < found.shares[1] < found.high[1]


def test_the_probability_of_improvement_counts_pairs() -> None:
    from scipy.stats import mannwhitneyu

    other = SCORES[:3] + np.array([-0.1, 0.2, 0.0])
    found = probability_of_improvement(SCORES, other, resamples=300)
    shares = [mannwhitneyu(SCORES[:, k], other[:, k]).statistic / 12 for k in range(3)]
    assert found.value == pytest.approx(np.mean(shares))
    assert found.low <= found.value <= found.high
    alike = probability_of_improvement(SCORES, SCORES, resamples=10)
    assert alike.value == pytest.approx(0.5)
    assert probability_of_improvement(SCORES + 9, SCORES, resamples=10).low == 1.0
    with pytest.raises(UserError, match="same tasks"):
        probability_of_improvement(SCORES, SCORES[:, :2])


# --- empty, all-zero, all-one, unequal ------------------------------------------------------------


def arms(*pairs: tuple[int, int]) -> tuple[dict[str, Arm], dict[str, Arm]]:
    a, b, c, d = (Arm(count, n) for count, n in pairs)
    return {"unlabeled": a, "labeled": b}, {"unlabeled": c, "labeled": d}


def test_all_and_none_in_four_arms() -> None:
    for share in (0, 1):
        found = mover_interaction(*arms(*[(share * n, n) for n in (10, 10, 10, 10)]))
        assert (found.smallest, found.p_low, found.p_high) == (0.0, 1.0, 1.0)
        assert found.low == -found.high < 0.0
    unequal = mover_interaction(*arms((0, 10), (20, 20), (30, 30), (0, 40)))
    assert unequal.smallest == 2.0
    assert 1.0 < unequal.low < 2.0
    assert unequal.high == 2.0
    assert unequal.p_high < 1e-6


def test_all_and_none_of_shares_and_pairs() -> None:
    assert wilson(0, 9)[0].low == 0.0
    assert wilson(9, 9)[0].high == 1.0
    assert wilson_interval(0, 9).high == pytest.approx(1.0 - wilson_interval(9, 9).low)
    assert paired_share_interval(9, 0, 0, 0).value == paired_share_interval(0, 0, 0, 9).value == 0.0
    assert paired_share_interval(0, 9, 0, 0).high == 1.0
    assert mean_interval([0.0, 0.0]).ci == [0.0, 0.0]
    every = tost_paired(30, 0, 30, 0.5)
    assert (every.difference, every.p, every.low, every.high) == (1.0, 1.0, 1.0, 1.0)
    assert effective_n(80, 1.0, 5.0) == 16.0
    assert effective_n(80, 0.0, 5.0) == effective_n(80, 0.7, 1.0) == 80.0


def test_all_and_none_of_clusters() -> None:
    for value in (0.0, 1.0):
        found = cluster_bootstrap([value] * 4, ["a", "a", "b", "b"], resamples=20)
        assert (found.value, found.low, found.high) == (value, value, value)
        with pytest.raises(UserError, match="the same"):
            intraclass_correlation([value] * 4, ["a", "a", "b", "b"])


def test_clusters_of_unequal_size_weigh_by_their_size() -> None:
    values, clusters = [0.0, 1.0, 1.0, 1.0], ["a", "b", "b", "b"]
    found = cluster_bootstrap(values, clusters, resamples=500)
    # Both clusters twice, or one of each: 0, 3/4 or 1.
    assert (found.value, found.low, found.high) == (0.75, 0.0, 1.0)
    named = cluster_bootstrap(values, clusters, lambda drawn: float(np.mean(drawn)), resamples=500)
    assert named == found
    top = cluster_bootstrap(values, clusters, lambda drawn: float(np.max(drawn)), resamples=500)
    assert (top.value, top.low, top.high) == (1.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: clopper_pearson(0, 0), "at least 1"),
        (lambda: clopper_pearson(1, 2_000_000_000), "at most"),
        (lambda: newcombe(Arm(0, 0), Arm(1, 2)), "at least 1"),
        (lambda: newcombe(Arm(1, 2), Arm(0, 0)), "at least 1"),
        (lambda: newcombe(Arm(1, 2, -1), Arm(1, 2)), "missing of count1"),
        (lambda: mover_interaction(*arms((0, 0), (1, 2), (1, 2), (1, 2))), "coded unlabeled"),
        (lambda: mover_interaction(*[{k: Arm(0, 99, 99) for k in ("unlabeled", "labeled")}] * 2),
         "assignments"),
        (lambda: effective_n(10, math.nan, 2.0), "icc"),
        (lambda: effective_n(10, 0.5, 0.5), "mean_cluster_size"),
        (lambda: stratified_exact([Stratum(0, 0, 1, 2)]), "at least 1"),
        (lambda: stratified_exact([Stratum(10**6, 10**7, 10**6, 10**7)]), "possible"),
        (lambda: tost_paired(0, 0, 0, 0.1), "at least 1"),
        (lambda: tost_paired(0, 0, 10, math.nan), "margin"),
        (lambda: kendall_tau_b([], []), "two or more"),
        (lambda: kendall_tau_b([1, 2], [math.inf, 1]), "finite"),
        (lambda: kendall_tau_b([1, 2], [2, 1], [10**30, 0]), "completions"),
        (lambda: kendall_tau_b([1, 2], [2, 1], [1]), "needs 2 numbers"),
        (lambda: kendall_tau_b([1, 2], [2, 1], [-1, 0]), "whole numbers"),
        (lambda: cluster_bootstrap([], []), "one length"),
        (lambda: cluster_bootstrap([1.0, 2.0], ["a", "a"]), "two clusters"),
        (lambda: cluster_bootstrap([1.0, 2.0], ["a", "b"], resamples=0), "resamples"),
        (lambda: cluster_bootstrap([1.0, 2.0], ["a", "b"], confidence=1.0), "confidence"),
        (lambda: cluster_bootstrap([1e200, 2.0], ["a", "b"]), "below"),
        (lambda: gee([], {"f": []}, []), "list of flags"),
        (lambda: gee([0, 0, 0], {"f": [1, 2, 1]}, [1, 2, 3]), "never varies"),
        (lambda: gee([0, 1] * 6, {"f": [1, 1, 2, 2] * 3}, [1] * 4 + [2] * 4 + [3] * 4), "no error"),
        (lambda: mixed_model([1, 1], {"f": [1, 2]}, [1, 2], [1, 2]), "never varies"),
        (lambda: mixed_model([1, 0], {"f": [1, 2]}, [1], [1, 2]), "one length"),
        (lambda: mixed_model([1, 0], {}, [1, 2], [1, 2]), "one length"),
        (lambda: shapley_shares([], {"f": []}), "list of flags"),
        (lambda: shapley_shares([1, 1], {"f": [1, 2]}), "never varies"),
        (lambda: shapley_shares([1, 0], {}), "no factor"),
        (lambda: shapley_shares([1, 0], {"f": [1]}), "one length"),
        (lambda: shapley_shares([1, 0], {str(k): [1, 2] for k in range(11)}), "up to ten"),
        (lambda: first_action_agreement([]), "two matched worlds"),
        (lambda: total_variation_test([], []), "one length"),
        (lambda: total_variation_test(["a"], ["b"], permutations=0), "permutations"),
        (lambda: power_of(0.3, 0.1, pairs=0), "--pairs"),
        (lambda: power_of(0.3, 0.1, pairs=9, alpha=0.0), "--alpha"),
        (lambda: plan_pairs(0.3, 0.1, power=1.0), "--power"),
        (lambda: plan_pairs(0.5, 1e-6, 0.5), "more than"),
        (lambda: iqm_interval([[1.0]], resamples=0), "resamples"),
        (lambda: seed_measures([[1.0]], target=math.nan), "target"),
        (lambda: performance_profile([[1.0]], []), "thresholds"),
        (lambda: performance_profile([], [1.0]), "runs x tasks"),
        (lambda: probability_of_improvement([], [[1.0]]), "runs x tasks"),
    ],
)  # fmt: skip
def test_what_is_not_defined_is_refused(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as refused:
        call()
    assert "\n" not in str(refused.value)


def test_the_mixed_model_is_the_same_each_time() -> None:
    rng = np.random.default_rng(5)
    y, arm = rng.integers(2, size=60), ["a", "b"] * 30
    task = [k // 10 for k in range(60)]
    one, other = (mixed_model(y, {"arm": arm}, task, task) for _ in range(2))
    assert one == other
    assert [effect.name for effect in one.effects] == ["intercept", "arm=b"]
    # A factor that decides success has an effect all the same, held by its prior.
    decided = mixed_model([0, 1] * 30, {"arm": arm}, task, task)
    assert 2.0 < decided.effects[1].value < 10.0


def test_tau_b_goes_through_orders_not_completions() -> None:
    """Four things with nine missing each: 10,000 completions a side, 75 orders of four at most."""
    x, y, missing = [1, 2, 3, 4], [1, 3, 2, 5], [9, 9, 9, 9]
    found = kendall_tau_b(x, y, missing, missing)
    assert (found.low, found.high) == (-1.0, 1.0)
    # All ties on a side: x at 4 to 10 and y at 5 to 10 all alike.
    assert found.undefined == 7 * 10**4 + 6 * 10**4 - 7 * 6
    with pytest.raises(UserError, match="pairs of orders"):
        kendall_tau_b(range(8), range(8), [3] * 8, [3] * 8)
