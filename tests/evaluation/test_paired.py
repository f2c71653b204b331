from __future__ import annotations

from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from evaluation.intervals import mean_interval, paired_share_interval
from evaluation.paired import (
    compare_to_baseline,
    holm,
    mcnemar_exact,
    paired_difference,
    regret,
    require_same_worlds,
)
from exactlyonce_env.errors import UserError


@pytest.mark.parametrize(
    ("b", "c", "p"),
    [
        # Armitage & Berry, Statistical Methods in Medical Research: two media for tubercle bacilli.
        (12, 2, 0.0129),
        # Fagerland, Lydersen & Laake (2013), BMC Med. Res. Methodol. 13:91: both of its examples.
        (1, 7, 0.0703),
        (6, 16, 0.0525),
    ],
)
def test_mcnemar_matches_published_values(b: int, c: int, p: float) -> None:
    assert round(mcnemar_exact(b, c), 4) == p


def test_mcnemar_by_hand() -> None:
    assert mcnemar_exact(0, 5) == pytest.approx(2 * 0.5**5, abs=0.0)
    assert mcnemar_exact(0, 0) == 1.0
    assert mcnemar_exact(3, 3) == 1.0


@given(st.integers(0, 300), st.integers(0, 300))
def test_mcnemar_equals_the_sum_in_whole_numbers(b: int, c: int) -> None:
    tail = sum(comb(b + c, k) for k in range(min(b, c) + 1))
    assert mcnemar_exact(b, c) == pytest.approx(min(1.0, 2 * tail / 2 ** (b + c)), rel=1e-9)


@given(st.integers(0, 3000), st.integers(0, 3000))
def test_mcnemar_equals_statsmodels_and_is_symmetric(b: int, c: int) -> None:
    from statsmodels.stats.contingency_tables import mcnemar

    expected = mcnemar([[0, b], [c, 0]], exact=True).pvalue
    # The reference falls to 0 some way above the smallest floating number.
    assert mcnemar_exact(b, c) == pytest.approx(min(1.0, expected), rel=1e-9, abs=1e-290)
    assert mcnemar_exact(b, c) == mcnemar_exact(c, b)


def test_holm_worked_example() -> None:
    # R: p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm") gives 0.03 0.06 0.06 0.02.
    adjusted = holm([0.01, 0.04, 0.03, 0.005])
    np.testing.assert_allclose(adjusted, [0.03, 0.06, 0.06, 0.02], rtol=1e-14)


@settings(max_examples=15)  # statsmodels takes a tenth of a second for each
@given(arrays(np.float64, st.integers(1, 40), elements=st.floats(0.0, 1.0)))
def test_holm_equals_statsmodels_and_keeps_order(p: np.ndarray) -> None:
    from statsmodels.stats.multitest import multipletests

    adjusted = holm(p)
    np.testing.assert_allclose(adjusted, multipletests(p, method="holm")[1], rtol=1e-12)
    assert (adjusted >= p).all()
    assert (np.diff(adjusted[np.argsort(p, kind="stable")]) >= 0.0).all()


def test_holm_of_nothing_is_nothing() -> None:
    assert holm([]).size == 0


def test_difference_of_flags_is_a_paired_share() -> None:
    first = np.array([True, True, True, False, False, True])
    second = np.array([True, False, False, True, False, False])
    assert paired_difference(first, second) == paired_share_interval(1, 3, 1, 1)


def test_difference_of_numbers_is_the_mean_of_differences() -> None:
    first, second = np.array([3, 5, 9]), np.array([1, 1, 1])
    assert paired_difference(first, second) == mean_interval([2, 4, 8])


def test_regret_is_what_the_clairvoyant_got_more() -> None:
    estimate = regret([0.5, 0.0, 1.0], [1.0, 1.0, 1.0])
    assert estimate.value == pytest.approx(0.5)
    assert regret([1.0, 0.2], [1.0, 0.2]).value == 0.0


def _episodes(exact: list[bool], reward: list[float], first: int = 0) -> dict[str, np.ndarray]:
    return {
        "world": np.arange(first, first + len(exact)),
        "exactly_once": np.array(exact),
        "reward": np.array(reward),
    }


def test_comparison_of_three_policies() -> None:
    base = _episodes([False] * 8, [0.0] * 8)
    better = _episodes([True] * 6 + [False] * 2, [1.0] * 6 + [0.0] * 2)
    same = _episodes([False] * 8, [0.0] * 8)
    episodes = {"better": better, "base": base, "same": same}
    first, second = compare_to_baseline(episodes, "base", measures=["exactly_once", "reward"])

    assert (first.policy, first.baseline, first.n) == ("better", "base", 8)
    assert (first.exactly_once.only_policy, first.exactly_once.only_baseline) == (6, 0)
    assert first.exactly_once.p == pytest.approx(2 * 0.5**6)
    assert first.exactly_once.p_holm == pytest.approx(2 * 2 * 0.5**6)  # a family of two
    assert first.differences["exactly_once"] == paired_share_interval(0, 6, 0, 2)
    assert first.differences["reward"] == mean_interval(better["reward"])
    assert second.policy == "same"
    assert (second.exactly_once.p, second.exactly_once.p_holm) == (1.0, 1.0)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60), st.randoms())
def test_comparison_does_not_depend_on_the_order_of_worlds(pairs, random) -> None:
    shuffled = pairs.copy()
    random.shuffle(shuffled)

    def compare(rows):
        one, other = ([bool(row[side]) for row in rows] for side in (0, 1))
        columns = {name: _episodes(x, [0.0] * len(x)) for name, x in (("a", one), ("b", other))}
        return compare_to_baseline(columns, "b", measures=["exactly_once"])

    assert compare(pairs) == compare(shuffled)


@pytest.mark.parametrize(
    ("worlds", "message"),
    [
        ([0, 1, 2], "'p' lacks 1 worlds of 'q', first 3"),
        ([0, 1, 2, 3, 7], "'q' lacks 1 worlds of 'p', first 7"),
        ([1, 0, 2, 3], "another order"),
        ([0, 1, 2, 3, 3], "more than once"),
    ],
)
def test_worlds_that_do_not_match_are_refused(worlds: list[int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        require_same_worlds(worlds, [0, 1, 2, 3], policy="p", baseline="q")


def test_comparison_refuses_misaligned_or_missing_input() -> None:
    one = _episodes([True, False], [1.0, 0.0])
    shifted = _episodes([True, False], [1.0, 0.0], first=1)
    with pytest.raises(UserError, match="cannot be paired"):
        compare_to_baseline({"a": one, "b": shifted}, "a", measures=["reward"])
    with pytest.raises(UserError, match="unknown baseline 'c', choose from: a, b"):
        compare_to_baseline({"a": one, "b": one}, "c", measures=["reward"])
    with pytest.raises(UserError, match="no column 'reads'"):
        compare_to_baseline({"a": one, "b": one}, "a", measures=["reads"])
    counts = {**one, "exactly_once": np.array([1, 0])}
    with pytest.raises(UserError, match="must be bool"):
        compare_to_baseline({"a": one, "b": counts}, "a", measures=["reward"])


@pytest.mark.parametrize("p", [[0.5, 1.5], [-0.1], [np.nan]])
def test_holm_refuses_what_is_no_probability(p: list[float]) -> None:
    with pytest.raises(UserError, match=r"\[0, 1\]"):
        holm(p)


def test_mcnemar_refuses_negative_counts() -> None:
    with pytest.raises(UserError, match="negative"):
        mcnemar_exact(-1, 3)
