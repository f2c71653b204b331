"""Models, clusters, seeds and invariance against computed or published values."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from evaluation.statistics.clusters import cluster_bootstrap, intraclass_correlation
from evaluation.statistics.invariance import first_action_agreement, total_variation_test
from evaluation.statistics.models import gee, mixed_model, shapley_shares
from evaluation.statistics.seeds import interquartile_mean, iqm_interval, performance_profile
from exactlyonce_env.errors import UserError

# Six targets rated by four judges: P. E. Shrout and J. L. Fleiss (1979), Psychol. Bull. 86:420-428,
# table 2; ICC(1,1) = .17.
RATINGS = np.array(
    [[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]]
)


def test_published_intraclass_correlation() -> None:
    found = intraclass_correlation(RATINGS.ravel(), np.repeat(np.arange(6), 4))
    assert round(found, 2) == 0.17


def test_a_correlation_that_does_not_exist_is_refused() -> None:
    for values, clusters, words in (
        ([1, 2], ["a", "a"], "two clusters"),
        ([1, 2], ["a", "b"], "larger ones"),
        ([1, 1, 1, 1], ["a", "a", "b", "b"], "the same"),
        ([1, 2, 3], ["a", "b"], "one length"),
        ([1, math.nan], ["a", "a"], "finite"),
    ):
        with pytest.raises(UserError, match=words):
            intraclass_correlation(values, clusters)
    assert intraclass_correlation([0, 0, 1, 1], ["a", "a", "b", "b"]) == 1.0
    assert intraclass_correlation([0, 1, 0, 1], ["a", "a", "b", "b"]) == -1.0


def test_whole_clusters_are_resampled() -> None:
    # Two clusters of constant values: the mean of a resample is 0, .5 or 1.
    found = cluster_bootstrap([0.0] * 5 + [1.0] * 5, ["a"] * 5 + ["b"] * 5, resamples=400)
    assert (found.value, found.low, found.high, found.clusters) == (0.5, 0.0, 1.0, 2)
    assert "only 2 clusters" in found.caveat
    flat = cluster_bootstrap([1.0] * 40, list(range(40)), resamples=50)
    assert (flat.low, flat.high, flat.caveat) == (1.0, 1.0, "")
    again = cluster_bootstrap([0.0] * 5 + [1.0] * 5, ["a"] * 5 + ["b"] * 5, resamples=400)
    assert again == found


def test_the_interquartile_mean_is_that_of_the_middle_half() -> None:
    assert interquartile_mean(range(8)) == 3.5
    assert interquartile_mean([0, 0, 1, 1, 1, 1, 100, -100]) == pytest.approx(0.75)
    assert interquartile_mean([5.0]) == 5.0
    found = iqm_interval(np.arange(12.0).reshape(3, 4), resamples=500)
    assert found.value == interquartile_mean(range(12)) == 5.5
    assert found.low <= found.value <= found.high
    same = iqm_interval(np.ones((3, 2)), resamples=10)
    assert (same.low, same.high) == (1.0, 1.0)
    for bad in ([], [[math.inf]], [1.0, 2.0]):
        with pytest.raises(UserError):
            iqm_interval(bad)


def test_a_profile_counts_what_lies_above() -> None:
    found = performance_profile([[0.1, 0.5], [0.9, 0.5]], [0.0, 0.5, 0.95])
    assert found.shares == (1.0, 0.25, 0.0)


def by_hand(y: np.ndarray, cluster: np.ndarray) -> tuple[float, float]:
    """Intercept of a logistic GEE and its Mancl-DeRouen error, from the formula."""
    p = y.mean()
    information = len(y) * p * (1 - p)
    meat = 0.0
    for g in np.unique(cluster):
        own = y[cluster == g] - p
        m = len(own)
        # (I - H)^-1 for H = D A^-1 D' V^-1 of an intercept: all entries p(1-p) / information.
        leverage = np.full((m, m), p * (1 - p) / information)
        corrected = np.linalg.solve(np.eye(m) - leverage, own)
        meat += corrected.sum() ** 2
    return math.log(p / (1 - p)), math.sqrt(meat) / information


def test_the_clustered_model_has_bias_reduced_errors() -> None:
    y = np.array([1, 1, 0, 1, 0, 0, 1, 0, 1, 1, 1, 0, 0, 0, 1, 1])
    cluster = np.repeat(np.arange(5), [3, 4, 2, 4, 3])
    (found,) = gee(y, {"all": ["x"] * len(y)}, cluster)
    value, error = by_hand(y, cluster)
    assert found.value == pytest.approx(value, abs=1e-6)
    assert found.error == pytest.approx(error, rel=1e-6)
    from scipy.stats import t

    assert found.high - found.value == pytest.approx(t.ppf(0.975, 4) * error, rel=1e-6)
    assert found.p == pytest.approx(2 * t.sf(abs(value / error), 4), rel=1e-5)


def test_a_coefficient_is_the_difference_of_logits() -> None:
    y = [1] * 30 + [0] * 10 + [1] * 10 + [0] * 30
    arm = ["a"] * 40 + ["b"] * 40
    effects = gee(y, {"arm": arm}, [k % 8 for k in range(80)])
    assert [e.name for e in effects] == ["intercept", "arm=b"]
    assert effects[1].value == pytest.approx(2 * math.log(10 / 30), abs=1e-6)


def test_what_a_model_cannot_say_is_refused() -> None:
    for success, factors, clusters, words in (
        ([1, 1, 1], {"f": [0, 1, 0]}, [0, 1, 2], "never varies"),
        ([1, 0, 2], {"f": [0, 1, 0]}, [0, 1, 2], "0 and 1"),
        ([1, 0, 1], {"f": [0, 1]}, [0, 1, 2], "one length"),
        ([1, 0, 1], {"f": [0, 1, 0]}, [0, 1, 1], "three clusters"),
        ([1, 0, 1, 0] * 3, {"f": [0, 1, 0, 1] * 3}, [0, 1, 2, 3] * 3, "decides success"),
    ):
        with pytest.raises(UserError, match=words):
            gee(success, factors, clusters)


def simulated(
    seed: int = 1,
) -> tuple[np.ndarray, dict[str, list[int]], list[int], list[int], float]:
    """Successes, factors, tasks, instances, and the spread of the tasks that was drawn."""
    rng = np.random.default_rng(seed)
    rows = list(product(range(40), range(3), range(2), range(2), range(5)))
    task, instance, one, other, _ = (list(column) for column in zip(*rows, strict=True))
    shift = rng.normal(0.0, 0.8, 40)
    logit = -0.4 + 1.5 * np.array(one) + shift[task]
    y = rng.random(len(rows)) < 1 / (1 + np.exp(-logit))
    return y, {"model": one, "fault": other}, task, instance, float(shift.std())


def test_the_mixed_model_finds_what_was_put_in() -> None:
    y, factors, tasks, instances, spread = simulated()
    fit = mixed_model(y, factors, tasks, instances)
    effects = {e.name: e for e in fit.effects}
    assert effects["model=1"].value == pytest.approx(1.5, abs=0.35)
    assert effects["fault=1"].value == pytest.approx(0.0, abs=0.3)
    assert fit.sd["task"] == pytest.approx(spread, abs=0.12)
    assert fit.sd["task x instance"] < 0.3


def test_shapley_shares_sum_to_the_whole_and_know_an_idle_factor() -> None:
    y = np.array([1, 1, 1, 0, 0, 0, 1, 0] * 10)
    useful = [0, 0, 0, 1, 1, 1, 0, 1] * 10
    noisy = [0, 1, 0, 1, 1, 0, 1, 0] * 10
    idle = [0, 0, 0, 0, 0, 0, 0, 0] * 10
    # `useful` decides success, so the model of all explains everything.
    shares = shapley_shares(y, {"useful": useful, "noisy": noisy, "idle": idle})
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-6)
    assert shares["idle"] == pytest.approx(0.0, abs=1e-9)
    assert shares["useful"] > 0.9
    # Two copies of one factor share alike.
    same = shapley_shares(y, {"one": noisy, "other": noisy})
    assert same["one"] == pytest.approx(same["other"])
    alone = shapley_shares(y, {"one": noisy})
    assert alone["one"] == pytest.approx(sum(same.values()), abs=1e-6)


def test_a_single_factor_has_mcfaddens_value() -> None:
    # 30 of 40 against 10 of 40: log-likelihoods by hand.
    y = [1] * 30 + [0] * 10 + [1] * 10 + [0] * 30
    found = shapley_shares(y, {"arm": ["a"] * 40 + ["b"] * 40})
    full = 2 * (30 * math.log(0.75) + 10 * math.log(0.25))
    null = 80 * math.log(0.5)
    assert found["arm"] == pytest.approx(1 - full / null, abs=1e-8)


def test_agreement_across_worlds_and_within() -> None:
    found = first_action_agreement([[["read", "read"], ["read", "retry"]]])
    assert (found.across, found.pairs_across) == (0.5, 4)
    assert (found.within, found.pairs_within) == (0.5, 2)
    once = first_action_agreement([[["read"], ["read"], ["retry"]]])
    assert once.across == pytest.approx(1 / 3)
    assert math.isnan(once.within)
    with pytest.raises(UserError, match="two matched worlds"):
        first_action_agreement([[["read"]]])


def test_permuting_within_pairs() -> None:
    # All eight pairs differ the same way: 2 of 256 arrangements are as far apart.
    found = total_variation_test(["a"] * 8, ["b"] * 8)
    assert (found.distance, found.p) == (1.0, 2 / 256)
    alike = total_variation_test(["a", "b"] * 40, ["b", "a"] * 40)
    assert (alike.distance, alike.p) == (0.0, 1.0)
    many = total_variation_test(["a"] * 60 + ["b"] * 40, ["a"] * 50 + ["b"] * 50, permutations=999)
    assert many.distance == pytest.approx(0.1)
    assert many.p == pytest.approx(2 / 1024, abs=0.004)
    with pytest.raises(UserError, match="one length"):
        total_variation_test(["a"], [])
