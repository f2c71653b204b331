"""The delay laws against published figures, scipy and the compiled sampler."""

from __future__ import annotations

import pickle
from decimal import Decimal, getcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from exactlyonce_env.delays import (
    REFERENCE_TAIL,
    Component,
    Empirical,
    Exponential,
    Fixed,
    Law,
    LogNormal,
    LogUniform,
    Lomax,
    Mixture,
    Pareto,
    Uniform,
    Weibull,
    encode,
)
from exactlyonce_env.errors import UserError
from exactlyonce_env.quantiles import BEYOND_S, delay_quantile

LAWS: list[tuple[Law, Any]] = [
    (Uniform(loc=3.0, scale=60.0), stats.uniform(3.0, 60.0)),
    (LogUniform(a=40.0, b=7200.0), stats.loguniform(40.0, 7200.0)),
    (Exponential(loc=2.0, scale=90.0), stats.expon(2.0, 90.0)),
    (Weibull(c=0.5, loc=1.0, scale=30.0), stats.weibull_min(0.5, 1.0, 30.0)),
    (Weibull(c=3.0, scale=30.0), stats.weibull_min(3.0, 0.0, 30.0)),
    (LogNormal(s=1.5, loc=0.5, scale=20.0), stats.lognorm(1.5, 0.5, 20.0)),
    (Pareto(b=2.5, loc=1.0, scale=5.0), stats.pareto(2.5, 1.0, 5.0)),
    (Pareto(b=0.9, scale=5.0), stats.pareto(0.9, 0.0, 5.0)),
    (Lomax(c=0.8, scale=120.0), stats.lomax(0.8, 0.0, 120.0)),
    (Lomax(c=3.0, loc=4.0, scale=10.0), stats.lomax(3.0, 4.0, 10.0)),
]
IDS = [f"{law.family}-{i}" for i, (law, _) in enumerate(LAWS)]  # type: ignore[attr-defined]

LEVELS = np.concatenate(
    (np.geomspace(1e-12, 0.5, 60), 1.0 - np.geomspace(1e-12, 0.5, 60), np.linspace(0.01, 0.99, 33))
)
# scipy computes 1 - (1 - u)^(-1/c) in the plain way, which cancels for small u.
CANCELLING = {"lomax": 1e-4}

STEPS = Empirical(times_s=(1.0, 2.5, 7.0), cdf=(0.2, 0.7, 0.95), n=20, censored=1)
TWO = Mixture(
    components=(
        Component(weight=0.25, law=Fixed(value_s=90.0)),
        Component(weight=0.75, law=Exponential(scale=60.0)),
    )
)
THREE = Mixture(
    components=(
        Component(weight=0.5, law=LogNormal(s=0.3, scale=2.0)),
        Component(weight=0.3, law=Lomax(c=1.2, loc=5.0, scale=30.0)),
        Component(weight=0.2, law=STEPS),
    )
)


def sampled(law: Law, levels: np.ndarray) -> np.ndarray:
    table, offsets = encode([Fixed(value_s=1.0), law])
    return np.array([delay_quantile(table, offsets[1], u) for u in levels])


def test_the_reference_tail_has_its_published_figures() -> None:
    assert REFERENCE_TAIL.median_s == pytest.approx(536.656, abs=5e-4)
    assert REFERENCE_TAIL.median_s == pytest.approx(np.sqrt(40.0 * 7200.0), rel=1e-14)
    assert np.round(REFERENCE_TAIL.cdf([60, 300, 900, 3600]), 4).tolist() == [
        0.0781, 0.3880, 0.5996, 0.8665,
    ]  # fmt: skip
    assert REFERENCE_TAIL.support_s == (40.0, 7200.0)


def test_quantiles_known_in_closed_form() -> None:
    assert Exponential(scale=100.0).median_s == pytest.approx(100.0 * np.log(2.0), rel=1e-15)
    assert Lomax(c=0.5, scale=120.0).quantile(0.75) == pytest.approx(15 * 120.0, rel=1e-14)
    assert Pareto(b=1.0, scale=3.0).quantile(0.9) == pytest.approx(30.0, rel=1e-14)
    assert Weibull(c=0.5, scale=10.0).quantile(1.0 - np.exp(-2.0)) == pytest.approx(40.0)
    assert LogNormal(s=2.0, scale=7.0).median_s == 7.0
    assert LogNormal(s=1.0, scale=1.0).p99_s == pytest.approx(np.exp(2.3263478740408408))
    assert Fixed(value_s=90.0).p99_s == 90.0


@pytest.mark.parametrize(("law", "reference"), LAWS, ids=IDS)
def test_a_law_agrees_with_scipy(law: Law, reference: Any) -> None:
    levels = LEVELS[CANCELLING.get(law.family, 0.0) <= LEVELS]  # type: ignore[attr-defined]
    np.testing.assert_allclose(law.quantile(levels), reference.ppf(levels), rtol=1e-10)
    low, high = reference.support()
    assert law.support_s == (low, high)
    t = np.concatenate((reference.ppf(LEVELS), [0.0, 0.5 * low, low, min(high, 1e9)]))
    np.testing.assert_allclose(law.cdf(t), reference.cdf(t), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(law.survival(t), reference.sf(t), rtol=1e-10, atol=1e-12)
    inside = t[(t > low) & (reference.sf(t) > 1e-5)]  # beyond, scipy's 1 - cdf cancels
    np.testing.assert_allclose(law.density(inside), reference.pdf(inside), rtol=1e-10)
    rate = reference.pdf(inside) / reference.sf(inside)
    np.testing.assert_allclose(law.hazard(inside), rate, rtol=1e-10)


@pytest.mark.parametrize(("law", "reference"), LAWS, ids=IDS)
def test_the_compiled_quantile_agrees(law: Law, reference: Any) -> None:
    wanted = np.minimum(law.quantile(LEVELS), BEYOND_S)
    np.testing.assert_allclose(sampled(law, LEVELS), wanted, rtol=1e-10)
    least = CANCELLING.get(law.family, 0.0)  # type: ignore[attr-defined]
    levels = LEVELS[least <= LEVELS]
    wanted = np.minimum(reference.ppf(levels), BEYOND_S)
    np.testing.assert_allclose(sampled(law, levels), wanted, rtol=1e-10)


@pytest.mark.parametrize("u", [1e-12, 1e-9, 1e-6, 1e-5])
def test_small_lomax_quantiles_against_forty_digits(u: float) -> None:
    getcontext().prec = 40
    exact = ((1 - Decimal(u)).ln() / Decimal("-0.8")).exp() - 1
    law = Lomax(c=0.8, scale=120.0)
    wanted = float(exact * 120)
    assert law.quantile(u) == pytest.approx(wanted, rel=1e-12)
    assert sampled(law, np.array([u]))[0] == pytest.approx(wanted, rel=1e-12)


def test_hazards_far_in_the_tail_stay_exact() -> None:
    # There pdf and sf both vanish in double precision.
    assert Exponential(scale=10.0).hazard(1e6) == 0.1
    assert Weibull(c=2.0, scale=1.0).hazard(1e3) == pytest.approx(2e3, rel=1e-14)
    assert Lomax(c=0.8, scale=120.0).hazard(1e300) == pytest.approx(8e-301, rel=1e-14)
    # Mills' ratio: the normal hazard at z lies between z and z + 1/z.
    law = LogNormal(s=0.1, scale=1.0)
    t = np.exp(0.1 * 50.0)
    assert 50.0 < float(law.hazard(t)) * 0.1 * t < 50.0 + 1 / 50.0


def test_the_loguniform_hazard_turns_at_b_over_e() -> None:
    turn = 7200.0 / np.e
    rates = REFERENCE_TAIL.hazard([0.9 * turn, turn, 1.1 * turn])
    assert rates[1] < rates[0]
    assert rates[1] < rates[2]
    assert rates[1] == pytest.approx(1.0 / turn, rel=1e-12)


def test_hazards_at_the_edges() -> None:
    assert Uniform(loc=1.0, scale=2.0).hazard([0.5, 1.0, 2.0]).tolist() == [0.0, 0.5, 1.0]
    assert np.isnan(Uniform(loc=1.0, scale=2.0).hazard([3.0, 4.0])).all()
    assert Fixed(value_s=5.0).hazard([4.0, 5.0]).tolist() == [0.0, np.inf]
    assert np.isnan(Fixed(value_s=5.0).hazard(6.0))
    assert STEPS.hazard([0.5, 1.0, 2.0]).tolist() == [0.0, np.inf, 0.0]
    assert np.isnan(STEPS.hazard(8.0))
    assert Pareto(b=2.0, scale=5.0).hazard([4.9, 5.0]).tolist() == [0.0, 0.4]


def test_a_step_function_is_right_continuous_and_ends() -> None:
    assert STEPS.cdf([0.99, 1.0, 2.4, 2.5, 100.0]).tolist() == [0.0, 0.2, 0.2, 0.7, 0.95]
    assert STEPS.quantile([0.0, 0.2, 0.21, 0.95]).tolist() == [1.0, 1.0, 2.5, 7.0]
    assert STEPS.quantile(0.951) == np.inf
    assert STEPS.support_s == (1.0, np.inf)
    assert (STEPS.median_s, STEPS.p99_s) == (2.5, np.inf)
    table, offsets = encode([STEPS])
    assert delay_quantile(table, offsets[0], 0.95) == 7.0
    assert delay_quantile(table, offsets[0], 0.951) == BEYOND_S
    whole = Empirical(times_s=(1.0, 2.0), cdf=(0.5, 1.0))
    assert whole.support_s == (1.0, 2.0)
    assert sampled(whole, np.array([1.0 - 2**-53]))[0] == 2.0


def test_what_has_landed_by_a_measured_law() -> None:
    law = Empirical(
        times_s=(1.0, 2.0), cdf=(0.25, 0.75), cdf_low=(0.1, 0.5), cdf_high=(0.5, 0.9),
        n=4, censored=1, last_observed_s=3.0,
    )  # fmt: skip
    seen = law.landed(1.5)
    assert (seen.value, seen.low, seen.high, seen.note) == (0.25, 0.1, 0.5, None)
    before = law.landed(0.5)
    assert (before.value, before.low, before.high) == (0.0, 0.0, 0.5)
    after = law.landed(2.5)
    assert (after.value, after.low, after.high) == (0.75, 0.5, 0.9)
    assert "no delay longer than 2 s was seen to end" in str(after.note)
    beyond = law.landed(3.5)
    assert (beyond.value, beyond.low, beyond.high) == (None, 0.5, 1.0)
    assert "beyond 3 s" in str(beyond.note)
    with pytest.raises(UserError, match="waiting time"):
        law.landed(float("nan"))


def test_a_late_entering_measurement_is_silent_about_short_delays() -> None:
    law = Empirical(times_s=(6.0, 7.0), cdf=(0.5, 1.0), observed_from_s=5.0)
    assert law.landed(4.0).value is None
    assert "delayed entry" in str(law.landed(4.0).note)
    assert law.landed(6.5).value == 0.5


def test_a_mixture_is_the_weighted_sum() -> None:
    t = np.array([0.0, 10.0, 89.999, 90.0, 500.0])
    tail = Exponential(scale=60.0)
    np.testing.assert_allclose(TWO.cdf(t), 0.25 * (t >= 90.0) + 0.75 * tail.cdf(t), rtol=1e-14)
    np.testing.assert_allclose(TWO.survival(t), 1.0 - TWO.cdf(t), atol=1e-15)
    assert TWO.hazard(90.0) == np.inf
    before = 0.75 * np.exp(-0.5) / 60.0 / (0.25 + 0.75 * np.exp(-0.5))
    assert TWO.hazard(30.0) == pytest.approx(before, rel=1e-14)
    assert TWO.hazard(1000.0) == pytest.approx(1.0 / 60.0, rel=1e-12)
    assert TWO.support_s == (0.0, np.inf)


def test_a_mixture_of_atoms_has_exact_quantiles() -> None:
    law = Mixture(
        components=(
            Component(weight=0.25, law=Fixed(value_s=10.0)),
            Component(weight=0.75, law=Fixed(value_s=0.3)),
        )
    )
    assert law.quantile([0.0, 0.75, 0.7500001, 1.0]).tolist() == [0.3, 0.3, 10.0, 10.0]
    at_atom = 0.75 * (1.0 - np.exp(-1.5))
    assert TWO.quantile([at_atom + 0.01, at_atom + 0.2]).tolist() == [90.0, 90.0]
    assert TWO.quantile(1.0) == np.inf
    assert THREE.quantile(0.9999999) > 1e3
    open_ended = Mixture(components=(Component(weight=1.0, law=STEPS),))
    assert open_ended.quantile([0.7, 0.96]).tolist() == [2.5, np.inf]


@pytest.mark.parametrize("law", [TWO, THREE], ids=["two", "three"])
def test_a_mixture_is_sampled_by_its_own_law(law: Mixture) -> None:
    n = 6000
    drawn = np.sort(sampled(law, (np.arange(n) + 0.5) / n))
    drawn = drawn[drawn < BEYOND_S]
    # Evenly spaced uniforms are even inside each component, so only rounding of counts is left.
    counted = np.searchsorted(drawn, drawn, side="right") / n
    assert np.abs(counted - law.cdf(drawn)).max() <= 1.5 * len(law.components) / n


def test_mixtures_nest() -> None:
    inner = Component(weight=0.5, law=TWO)
    law = Mixture(components=(inner, Component(weight=0.5, law=Fixed(value_s=1.0))))
    assert law.cdf(90.0) == pytest.approx(0.5 + 0.5 * float(TWO.cdf(90.0)))
    assert sampled(law, np.array([0.05, 0.9])).tolist() == [90.0, 1.0]


def test_the_arena_has_the_documented_layout() -> None:
    table, offsets = encode([Fixed(value_s=90.0), TWO, STEPS, LogUniform(a=1.0, b=np.e)])
    assert table.dtype == np.float64
    assert offsets.dtype == np.int64
    assert table[:2].tolist() == [0.0, 90.0]
    o = offsets[1]
    assert table[o : o + 4].tolist() == [8.0, 2.0, 0.25, 1.0]
    parts = table[o + 4 : o + 6].astype(int)
    assert table[parts[0] : parts[0] + 2].tolist() == [0.0, 90.0]
    assert table[parts[1] : parts[1] + 3].tolist() == [3.0, 0.0, 60.0]
    o = offsets[2]
    assert table[o : o + 8].tolist() == [9.0, 3.0, 1.0, 2.5, 7.0, 0.2, 0.7, 0.95]
    assert table[offsets[3] :].tolist() == [2.0, 0.0, 1.0, 1.0, np.e]
    empty, none = encode([])
    assert (empty.size, none.size) == (0, 0)


@pytest.mark.parametrize("law", [law for law, _ in LAWS] + [TWO, THREE, STEPS])
def test_laws_survive_copies_and_refuse_changes(law: Law) -> None:
    law.cdf(1.0)  # fills caches, which must not count
    assert pickle.loads(pickle.dumps(law)) == law
    assert type(law).model_validate(law.model_dump()) == law
    assert type(law).model_validate_json(law.model_dump_json()) == law
    assert hash(type(law).model_validate(law.model_dump())) == hash(law)
    with pytest.raises(ValueError, match="frozen"):
        law.family = "fixed"  # type: ignore[attr-defined]


def test_scalars_and_arrays_keep_their_shape() -> None:
    law = Lomax(c=0.8, scale=120.0)
    assert np.shape(law.cdf(3.0)) == ()
    assert isinstance(law.cdf(3.0), float)
    assert law.quantile(np.full((2, 3), 0.5)).shape == (2, 3)
    assert TWO.quantile(np.full((2, 3), 0.5)).shape == (2, 3)
    assert np.isnan(law.quantile([-0.1, 1.1, np.nan])).all()


positive = st.floats(0.05, 50.0)
simple_laws = st.one_of(
    st.builds(Fixed, value_s=positive),
    st.builds(Uniform, loc=positive, scale=positive),
    st.builds(Exponential, loc=positive, scale=positive),
    st.builds(Weibull, c=st.floats(0.3, 5.0), scale=positive),
    st.builds(LogNormal, s=st.floats(0.1, 3.0), scale=positive),
    st.builds(Pareto, b=st.floats(0.3, 5.0), scale=positive),
    st.builds(Lomax, c=st.floats(0.3, 5.0), loc=positive, scale=positive),
    st.just(STEPS),
)


@st.composite
def mixtures(draw: st.DrawFn) -> Mixture:
    parts = draw(st.lists(st.tuples(st.integers(1, 9), simple_laws), min_size=1, max_size=4))
    total = sum(weight for weight, _ in parts)
    return Mixture(
        components=tuple(Component(weight=weight / total, law=law) for weight, law in parts)
    )


@given(law=st.one_of(simple_laws, mixtures()), u=st.floats(1e-9, 1.0 - 1e-9))
def test_quantile_is_the_least_time_that_reaches_the_level(law: Law, u: float) -> None:
    t = float(law.quantile(u))
    if not np.isfinite(t):
        assert float(law.cdf(1e300)) < u
        return
    assert float(law.cdf(t)) >= u - 1e-12
    assert float(law.cdf(t * (1.0 - 1e-6))) <= u + 1e-12 or t == law.support_s[0]


@given(law=st.one_of(simple_laws, mixtures()), times=st.lists(st.floats(0.0, 1e6), min_size=2))
def test_cdf_and_survival_are_complementary_and_monotone(law: Law, times: list[float]) -> None:
    t = np.sort(times)
    np.testing.assert_allclose(law.cdf(t) + law.survival(t), 1.0, atol=1e-12)
    assert (np.diff(law.cdf(t)) >= -1e-15).all()
    low, high = law.support_s
    assert float(law.cdf(np.nextafter(low, 0.0))) <= 1e-12
    if np.isfinite(high):
        assert float(law.cdf(high)) == pytest.approx(1.0)
