from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from evaluation.intervals import (
    mean_interval,
    paired_mean_interval,
    paired_share_interval,
    share_interval,
    wilson_interval,
)
from exactlyonce_env.errors import UserError

# Student (1908), Biometrika 6: hours of sleep gained by ten patients under two drugs.
SLEEP_FIRST = np.array([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0])
SLEEP_SECOND = np.array([1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4])


@pytest.mark.parametrize(
    ("count", "n", "low", "high"),
    [
        # Newcombe (1998), Stat. Med. 17:857-872, table I, method 3.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_matches_published_intervals(count: int, n: int, low: float, high: float) -> None:
    estimate = wilson_interval(count, n)
    assert estimate.value == count / n
    assert round(estimate.low, 4) == low
    assert round(estimate.high, 4) == high


@given(st.integers(1, 100_000), st.floats(0.0, 1.0), st.sampled_from([0.8, 0.95, 0.99]))
def test_wilson_equals_statsmodels(n: int, share: float, confidence: float) -> None:
    from statsmodels.stats.proportion import proportion_confint

    count = round(share * n)
    estimate = wilson_interval(count, n, confidence=confidence)
    low, high = proportion_confint(count, n, alpha=1 - confidence, method="wilson")
    assert estimate.low == pytest.approx(low, abs=1e-12)
    assert estimate.high == pytest.approx(high, abs=1e-12)


@given(st.integers(1, 5000), st.floats(0.0, 1.0))
def test_wilson_stays_inside_and_mirrors(n: int, share: float) -> None:
    count = round(share * n)
    estimate, mirrored = wilson_interval(count, n), wilson_interval(n - count, n)
    assert 0.0 <= estimate.low <= estimate.value <= estimate.high <= 1.0
    assert estimate.low < estimate.high
    assert estimate.low == pytest.approx(1.0 - mirrored.high, abs=1e-12)


def test_share_counts_true_flags() -> None:
    flags = np.array([True, False, True, True])
    assert share_interval(flags) == wilson_interval(3, 4)


def test_mean_matches_students_own_data() -> None:
    # R: t.test(extra ~ group, paired = TRUE) on `sleep` gives 0.7001142 and 2.4598858.
    estimate = paired_mean_interval(SLEEP_SECOND, SLEEP_FIRST)
    assert estimate.value == pytest.approx(1.58, abs=1e-12)
    assert estimate.low == pytest.approx(0.7001142, abs=5e-8)
    assert estimate.high == pytest.approx(2.4598858, abs=5e-8)
    assert estimate.n == 10


@given(
    arrays(np.float64, st.integers(2, 50), elements=st.floats(-1e6, 1e6, width=32)),
    st.sampled_from([0.8, 0.95, 0.99]),
)
def test_mean_equals_scipy(values: np.ndarray, confidence: float) -> None:
    from scipy.stats import ttest_1samp

    estimate = mean_interval(values, confidence=confidence)
    if values.min() == values.max():
        assert (estimate.low, estimate.value, estimate.high) == (values[0],) * 3
        return
    expected = ttest_1samp(values, 0.0).confidence_interval(confidence)
    scale = float(np.abs(values).max())
    assert estimate.low == pytest.approx(expected.low, rel=1e-9, abs=1e-9 * scale)
    assert estimate.high == pytest.approx(expected.high, rel=1e-9, abs=1e-9 * scale)


def test_equal_values_give_that_value_without_rounding() -> None:
    # The floating mean of many 0.1s is not 0.1.
    estimate = mean_interval(np.full(1001, 0.1))
    assert (estimate.value, estimate.low, estimate.high) == (0.1, 0.1, 0.1)


def test_a_single_value_has_no_interval() -> None:
    estimate = mean_interval([3.0])
    assert estimate.value == 3.0
    assert math.isnan(estimate.low)
    assert math.isnan(estimate.high)
    assert estimate.ci == [None, None]


@pytest.mark.parametrize(
    ("table", "low", "high"),
    [
        # Newcombe (1998), Stat. Med. 17:2635-2650, method 10, for 36/12/2/0.
        ((36, 12, 2, 0), 0.0569, 0.3404),
        # Altman, Machin, Bryant & Gardner, Statistics with Confidence (2000), table 6.2.
        ((14, 5, 0, 22), 0.011, 0.226),
        # Fagerland, Lydersen & Laake (2014), Stat. Med. 33:2850-2875: Bentur's patients.
        ((1, 1, 7, 12), -0.507, -0.026),
    ],
)
def test_paired_share_matches_published_intervals(
    table: tuple[int, int, int, int], low: float, high: float
) -> None:
    estimate = paired_share_interval(*table)
    digits = len(str(abs(low)).split(".")[1])
    assert estimate.value == pytest.approx((table[1] - table[2]) / sum(table))
    assert round(estimate.low, digits) == low
    assert round(estimate.high, digits) == high


@given(*[st.integers(0, 400)] * 4)
def test_paired_share_holds_the_difference_and_turns_round(a: int, b: int, c: int, d: int) -> None:
    if a + b + c + d == 0:
        with pytest.raises(UserError, match="at least one episode"):
            paired_share_interval(a, b, c, d)
        return
    estimate, turned = paired_share_interval(a, b, c, d), paired_share_interval(a, c, b, d)
    assert -1.0 <= estimate.low <= estimate.value <= estimate.high <= 1.0
    assert estimate.low < estimate.high
    assert estimate.low == pytest.approx(-turned.high, abs=1e-12)


def test_paired_share_keeps_a_width_without_discordant_pairs() -> None:
    estimate = paired_share_interval(90, 0, 0, 10)
    assert estimate.value == 0.0
    assert estimate.low < 0.0 < estimate.high


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wilson_interval(0, 0), "at least one episode"),
        (lambda: wilson_interval(5, 4), r"0\.\.4"),
        (lambda: wilson_interval(-1, 4), r"0\.\.4"),
        (lambda: wilson_interval(1, 4, confidence=95.0), "between 0 and 1"),
        (lambda: share_interval(np.array([], dtype=bool)), "at least one episode"),
        (lambda: share_interval(np.array([0, 1])), "bool"),
        (lambda: mean_interval([]), "at least one episode"),
        (lambda: mean_interval([1.0, math.nan, math.inf]), "2 of 3 values"),
        (lambda: mean_interval([[1.0, 2.0]]), "one-dimensional"),
        (lambda: mean_interval([1.0, 2.0], confidence=0.0), "between 0 and 1"),
        (lambda: paired_mean_interval([1.0, 2.0], [1.0]), "2 and 1"),
        (lambda: paired_share_interval(1, -1, 0, 0), "negative"),
    ],
)
def test_what_is_not_defined_is_refused(call, message: str) -> None:
    with pytest.raises(UserError, match=message) as refusal:
        call()
    assert "\n" not in str(refusal.value)


def test_importing_the_modules_loads_no_heavy_library(run_python) -> None:
    modules = ("intervals", "paired", "manifest", "store", "frontier", "columns")
    heavy = ("scipy.stats", "statsmodels", "pandas", "pyarrow", "matplotlib")
    code = (
        f"import sys\nfrom evaluation import {', '.join(modules)}\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    assert run_python("-c", code).stdout.strip() == "[]"
