"""Our own logarithm, exponential and normal quantile against NumPy's and SciPy's."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exactlyonce_env import arithmetic
from exactlyonce_env.delays import delays_from_spec, encode
from exactlyonce_env.quantiles import BEYOND_S, LEAST_U, delay_quantile

LIMIT = 1e-15
"""Relative error allowed: 4.5 units in the last place."""

Floats = npt.NDArray[np.float64]


def errors(ours: Floats, true: Floats) -> Floats:
    """Relative errors; absolute ones where the truth is 0."""
    return np.abs(ours - true) / np.where(true == 0.0, 1.0, np.abs(true))


def over(function: object, values: Floats) -> Floats:
    return np.array([function(float(x)) for x in values])  # type: ignore[operator]


MAGNITUDES = np.concatenate([10.0 ** np.linspace(-307, 308, 4000), np.linspace(0.4, 2.6, 4001)])
NEAR_ONE = np.concatenate([1.0 + 2.0 ** -np.arange(1, 53), 1.0 - 2.0 ** -np.arange(2, 54)])


@pytest.mark.parametrize("values", [MAGNITUDES, NEAR_ONE], ids=["all", "near 1"])
def test_log(values: Floats) -> None:
    assert errors(over(arithmetic.log, values), np.log(values)).max() <= LIMIT


def test_log_is_exact_where_it_can_be() -> None:
    assert arithmetic.log(1.0) == 0.0
    for k in (-1022, -1, 1, 2, 1023):
        assert arithmetic.log(2.0**k) == pytest.approx(k * math.log(2.0), rel=3e-16)


def test_log1p() -> None:
    tiny = 10.0 ** np.linspace(-300, 3, 4000)
    values = np.concatenate([tiny, -(10.0 ** np.linspace(-300, -0.01, 4000))])
    assert errors(over(arithmetic.log1p, values), np.log1p(values)).max() <= LIMIT
    assert arithmetic.log1p(0.0) == 0.0


def test_log1p_coarse_serves_single_precision() -> None:
    values = np.concatenate([[0.0], 10.0 ** np.linspace(-12, 15, 5000)])
    absolute = np.abs(over(arithmetic.log1p_coarse, values) - np.log1p(values))
    assert absolute.max() <= 1e-8


def test_exp() -> None:
    values = np.concatenate([np.linspace(-708, 709, 8001), 10.0 ** np.linspace(-300, 0, 500)])
    assert errors(over(arithmetic.exp, values), np.exp(values)).max() <= LIMIT
    assert arithmetic.exp(0.0) == 1.0
    assert arithmetic.exp(709.1) == math.inf
    assert arithmetic.exp(-708.1) == 0.0


def test_expm1() -> None:
    small = 10.0 ** np.linspace(-300, 0, 3000)
    values = np.concatenate([small, -small, np.linspace(-50, 700, 3001)])
    assert errors(over(arithmetic.expm1, values), np.expm1(values)).max() <= LIMIT
    assert arithmetic.expm1(0.0) == 0.0


def test_normal_quantile() -> None:
    from scipy import special

    tails = 10.0 ** np.linspace(-300, -0.31, 2000)
    middle = np.linspace(0.001, 0.999, 1999)
    for values in (tails, middle):
        true = special.ndtri(values)
        assert errors(over(arithmetic.normal_quantile, values), true).max() <= LIMIT
    assert arithmetic.normal_quantile(0.5) == 0.0
    assert arithmetic.normal_quantile(0.975) == pytest.approx(1.959963984540054, rel=1e-15)
    # u and 1 - u are exact floats here, so the two sides must be mirror images.
    for u in (0.25, 0.125, 2.0**-20):
        assert arithmetic.normal_quantile(u) == -arithmetic.normal_quantile(1.0 - u)


@given(st.floats(1e-300, 1e300), st.floats(1e-300, 1e300))
def test_log_is_monotone(x: float, y: float) -> None:
    """To within its error: what is larger by more than that has the larger logarithm."""
    low, high = sorted((x, y))
    assert arithmetic.log(low) <= arithmetic.log(high) + LIMIT * abs(arithmetic.log(high))


@given(st.floats(-700, 700))
def test_exp_and_log_undo_each_other(x: float) -> None:
    assert arithmetic.log(arithmetic.exp(x)) == pytest.approx(x, rel=1e-15, abs=3e-16)


# The sampler --------------------------------------------------------------------------------------

SPECS = {
    "fixed:90": lambda u: 90.0,
    "uniform:loc=5,scale=50": lambda u: 5 + 50 * u,
    "loguniform:a=40,b=7200": lambda u: 40 * 180**u,
    "expon:scale=80": lambda u: -80 * math.log1p(-u),
    "weibull_min:c=0.7,scale=80": lambda u: 80 * (-math.log1p(-u)) ** (1 / 0.7),
    "pareto:b=2.5,scale=30": lambda u: 30 * (1 - u) ** (-1 / 2.5),
    "lomax:c=0.8,scale=120": lambda u: 120 * math.expm1(-math.log1p(-u) / 0.8),
}


@pytest.mark.parametrize("spec", SPECS)
def test_sampler_by_closed_forms(spec: str) -> None:
    table, offsets = encode([delays_from_spec("fixed:1"), delays_from_spec(spec)])
    for u in (0.0, 1e-9, 0.01, 0.25, 0.5, 0.75, 0.99, 1 - 1e-6):
        expected = min(SPECS[spec](u), BEYOND_S)
        assert delay_quantile(table, offsets[1], u) == pytest.approx(expected, rel=1e-13, abs=1e-12)


def test_reference_tail() -> None:
    """The figures of the design: median 536.7 s and F at four times."""
    law = delays_from_spec("loguniform:a=40,b=7200")
    table, offsets = encode([law])
    assert delay_quantile(table, offsets[0], 0.5) == pytest.approx(536.656, abs=1e-3)
    for t_s, share in ((60, 0.0781), (300, 0.3880), (900, 0.5996), (3600, 0.8665)):
        assert round(float(law.cdf(t_s)), 4) == share
        assert delay_quantile(table, offsets[0], float(law.cdf(t_s))) == pytest.approx(t_s)


def test_sampler_stays_finite_and_within_the_support() -> None:
    for spec in [*SPECS, "lognorm:s=3,scale=50"]:
        law = delays_from_spec(spec)
        table, offsets = encode([law])
        low, high = law.support_s
        for u in (0.0, LEAST_U, 0.5, 1 - LEAST_U, 1.0):
            delay_s = delay_quantile(table, offsets[0], u)
            assert low <= delay_s <= min(high, BEYOND_S)


@given(st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))
def test_sampler_is_monotone(u: float, v: float) -> None:
    low, high = sorted((u, v))
    for spec in ("loguniform:a=40,b=7200", "lomax:c=0.8,scale=120", "lognorm:s=1,scale=50"):
        table, offsets = encode([delays_from_spec(spec)])
        smaller, larger = (delay_quantile(table, offsets[0], x) for x in (low, high))
        assert smaller <= larger * (1 + 1e-14)


def test_mixture_spends_the_leading_part_of_the_number_on_its_choice() -> None:
    mixture = {
        "family": "mixture",
        "components": [
            {"weight": 0.25, "law": {"family": "fixed", "value_s": 7}},
            {"weight": 0.75, "law": {"family": "uniform", "loc": 100, "scale": 60}},
        ],
    }
    table, offsets = encode([delays_from_spec(mixture)])
    assert delay_quantile(table, offsets[0], 0.2499) == 7
    assert delay_quantile(table, offsets[0], 0.25) == pytest.approx(100)
    assert delay_quantile(table, offsets[0], 0.625) == pytest.approx(130)


def test_empirical_quantile_is_the_smallest_time_that_reaches_u() -> None:
    law = {"family": "empirical", "times_s": [1, 2, 5], "cdf": [0.2, 0.6, 0.9]}
    table, offsets = encode([delays_from_spec(law)])
    for u, expected in ((0, 1), (0.2, 1), (0.2001, 2), (0.6, 2), (0.9, 5), (0.9001, BEYOND_S)):
        assert delay_quantile(table, offsets[0], u) == expected
