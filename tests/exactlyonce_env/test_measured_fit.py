"""Estimates from measured delays: published figures, hand-computed cases, independent code."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from exactlyonce_env.delays import Exponential, Law, LogNormal, Lomax, Uniform, delays_from_spec
from exactlyonce_env.errors import UserError
from exactlyonce_env.measured import (
    DelayFileOptions,
    DelayFit,
    MeasuredDelays,
    fit_delays,
    load_saved,
    open_delays,
    read_delays,
)
from exactlyonce_env.measured.families import FITS
from exactlyonce_env.measured.fit import MOST_STEPS
from exactlyonce_env.measured.product_limit import product_limit
from exactlyonce_env.measured.tail import tail_index

SAMPLES = Path(__file__).parents[1] / "data" / "delays"

# Weeks in remission on 6-MP, + = censored: Freireich et al., Blood 21 (1963), 699-716.
REMISSION = "6 6 6 6+ 7 9+ 10 10+ 11+ 13 16 17+ 19+ 20+ 22 23 25+ 32+ 32+ 34+ 35+"


def rows(text: str) -> tuple[np.ndarray, np.ndarray]:
    words = text.split()
    times = np.array([float(word.rstrip("+")) for word in words])
    return times, np.array([not word.endswith("+") for word in words])


def fitted(times: Any, completed: Any = None, entry: Any = None) -> DelayFit:
    t = np.asarray(times, dtype=np.float64)
    done = np.ones(t.shape, dtype=np.bool_) if completed is None else np.asarray(completed)
    return fit_delays(
        MeasuredDelays(t, done, None if entry is None else np.asarray(entry, dtype=np.float64))
    )


def family(fit: DelayFit, name: str) -> dict[str, Any]:
    return next(entry for entry in fit.to_json()["families"] if entry["family"] == name)


def drawn(law: Law, n: int, key: int) -> np.ndarray:
    return np.asarray(law.quantile(np.random.Generator(np.random.Philox(key)).random(n)))


# ---- the product-limit estimate ------------------------------------------------------------------


def test_published_remission_figures() -> None:
    curve = product_limit(*rows(REMISSION))
    assert curve.times_s.tolist() == [6, 7, 10, 13, 16, 22, 23]
    assert curve.at_risk.tolist() == [21, 17, 15, 12, 11, 7, 6]
    assert curve.ended.tolist() == [3, 1, 1, 1, 1, 1, 1]
    survival = [0.857, 0.807, 0.753, 0.690, 0.627, 0.538, 0.448]
    assert np.round(1.0 - curve.cdf, 3).tolist() == survival
    # Limits and median as common packages print them with the log-log transform.
    assert np.round(1.0 - curve.high[:3], 3).tolist() == [0.620, 0.563, 0.503]
    assert np.round(1.0 - curve.low[:3], 3).tolist() == [0.952, 0.923, 0.889]
    assert curve.quantile(0.5) == (23.0, 13.0, None)
    assert curve.quantile(0.75) == (None, 23.0, None)
    assert curve.last_observed_s == 35.0


def test_a_hand_computed_left_truncated_case() -> None:
    entry = np.array([0.0, 0.0, 1.0, 2.0, 4.0])
    times = np.array([2.0, 5.0, 3.0, 4.0, 6.0])
    completed = np.array([True, False, True, True, True])
    curve = product_limit(times, completed, entry)
    # The row entering at 2 is not at risk at 2, nor the one entering at 4 at 4.
    assert curve.times_s.tolist() == [2.0, 3.0, 4.0, 6.0]
    assert curve.at_risk.tolist() == [3, 3, 2, 1]
    np.testing.assert_allclose(curve.cdf, [1 / 3, 5 / 9, 7 / 9, 1.0], rtol=1e-15)
    assert (curve.observed_from_s, curve.left_out_rows) == (0.0, 0)


def test_complete_data_give_the_plain_empirical_law() -> None:
    times = np.array([3.0, 1.0, 2.0, 2.0, 5.0])
    curve = product_limit(times, np.ones(5, dtype=np.bool_))
    np.testing.assert_allclose(curve.cdf, [0.2, 0.6, 0.8, 1.0], rtol=1e-15)
    assert curve.cdf[-1] == 1.0
    assert (curve.low[-1], curve.high[-1]) == (curve.low[-2], 1.0)


def test_levels_that_are_met_exactly_count_as_reached() -> None:
    n = 1000
    curve = product_limit(np.arange(1.0, n + 1.0), np.ones(n, dtype=np.bool_))
    for p in (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999):
        assert curve.quantile(p)[0] == round(p * n)


def test_censoring_at_the_time_of_an_event_comes_after_it() -> None:
    curve = product_limit(*rows("1 2 2+ 3"))
    assert curve.at_risk.tolist() == [4, 3, 1]


def test_a_gap_in_the_risk_set_does_not_end_the_law() -> None:
    # The first row is alone and lands at 1; carried on, S would be 0 from there.
    times, entry = [1.0, 6.0, 7.0, 8.0, 9.0], [0.0, 5.0, 5.0, 5.0, 6.5]
    fit = fitted(times, entry=entry)
    assert fit.curve.left_out_rows == 1
    assert fit.curve.observed_from_s == 5.0
    np.testing.assert_allclose(fit.curve.cdf, [1 / 3, 5 / 9, 7 / 9, 1.0], rtol=1e-15)
    assert any("no row at all is under observation" in warning for warning in fit.warnings)
    assert fit.landed(3.0).value is None
    # The stretch with more ended delays is kept, be it the earlier one.
    early = fitted([1.0, 2.0, 3.0, 9.0], entry=[0.0, 0.0, 0.0, 8.0])
    assert early.curve.last_observed_s == 3.0
    assert early.landed(5.0).value is None
    assert early.landed(2.5).value == pytest.approx(2 / 3)


times_lists = st.lists(
    st.tuples(st.integers(1, 12), st.booleans(), st.integers(0, 11)), min_size=3, max_size=40
)


@given(times_lists)
def test_it_agrees_with_statsmodels(raw: list[tuple[int, bool, int]]) -> None:
    from statsmodels.duration.survfunc import SurvfuncRight

    # A row watched throughout keeps the risk set from running empty.
    data = [(13, False, 0), (1, True, 0), *((t, done, min(e, t - 1)) for t, done, e in raw)]
    times, done, entry = (np.array(column) for column in zip(*data, strict=True))
    times, entry = times.astype(float), entry.astype(float)
    for use in (None, entry):
        ours = product_limit(times, done, use)
        theirs = SurvfuncRight(times, done.astype(int), entry=use)
        here = np.isin(theirs.surv_times, ours.times_s)
        np.testing.assert_allclose(1.0 - ours.cdf, theirs.surv_prob[here], rtol=1e-12)
        assert ours.at_risk.tolist() == theirs.n_risk[here].tolist()


@pytest.mark.filterwarnings("ignore:The confidence interval is undefined:RuntimeWarning")
def test_limits_agree_with_scipy() -> None:
    rng = np.random.Generator(np.random.Philox(5))
    times = np.round(rng.exponential(3.0, 80), 1) + 0.1
    done = rng.random(80) < 0.7
    ours = product_limit(times, done)
    theirs = stats.ecdf(stats.CensoredData.right_censored(times, ~done))
    limits = theirs.cdf.confidence_interval(0.95, method="log-log")
    here = np.isin(theirs.cdf.quantiles, ours.times_s) & np.isfinite(limits.low.probabilities)
    inner = ours.cdf < 1.0
    np.testing.assert_allclose(ours.cdf[inner], theirs.cdf.probabilities[here], rtol=1e-12)
    np.testing.assert_allclose(ours.low[inner], limits.low.probabilities[here], rtol=1e-9)
    np.testing.assert_allclose(ours.high[inner], limits.high.probabilities[here], rtol=1e-9)


def test_intervals_cover_the_truth() -> None:
    law = Exponential(scale=10.0)
    rng = np.random.Generator(np.random.Philox(6))
    covered = {"cdf": 0, "median": 0, "tail": 0}
    for _ in range(300):
        delay, limit = rng.exponential(10.0, 120), rng.uniform(5.0, 40.0, 120)
        curve = product_limit(np.minimum(delay, limit), delay <= limit)
        step = int(np.searchsorted(curve.times_s, 8.0, side="right")) - 1
        covered["cdf"] += bool(curve.low[step] <= law.cdf(8.0) <= curve.high[step])
        _, low, high = curve.quantile(0.5)
        covered["median"] += bool(low is not None and low <= law.median_s <= (high or np.inf))
        _, low, high = curve.quantile(0.9)
        truth = float(law.quantile(0.9))
        covered["tail"] += bool((low or 0.0) <= truth <= (high or np.inf))
    # 95 % nominal; 300 runs put four standard errors at 5 points.
    assert all(count >= 0.90 * 300 for count in covered.values()), covered


# ---- what has landed -------------------------------------------------------------------------


def test_the_chance_of_having_landed_stops_with_the_observation() -> None:
    fit = fitted(*rows(REMISSION))
    at_ten = fit.landed(10.0)
    assert at_ten.value == pytest.approx(1 - 0.7529411764705882)
    assert (at_ten.low, at_ten.high) == (fit.curve.low[2], fit.curve.high[2])
    assert fit.landed(3.0).value == 0.0
    open_rows = fit.landed(30.0)
    assert open_rows.value == fit.curve.cdf[-1]
    assert "no delay longer than 23 s" in str(open_rows.note)
    beyond = fit.landed(35.001)
    assert (beyond.value, beyond.high) == (None, 1.0)
    assert beyond.low == fit.curve.low[-1]
    for t in (0.0, 6.0, 12.0, 23.0, 30.0, 35.0, 36.0):
        assert fit.law().landed(t) == fit.landed(t)
    with pytest.raises(UserError):
        fit.landed(-1.0)


def test_all_landed_does_not_license_longer_claims() -> None:
    fit = fitted([1.0, 2.0, 3.0])
    assert fit.landed(3.0).value == 1.0
    assert fit.landed(3.0).low < 1.0  # type: ignore[operator]
    assert fit.landed(3.1).value is None


# ---- the law that is kept ----------------------------------------------------------------------


def test_a_law_of_many_times_is_thinned_and_never_shortens_a_delay() -> None:
    times = drawn(Lomax(c=0.8, scale=120.0), 60_000, 1)
    fit = fitted(times, times < np.quantile(times, 0.999))
    law, curve = fit.law(), fit.curve
    assert curve.times_s.size > 50_000
    assert 3_000 < len(law.times_s) <= MOST_STEPS
    assert law.times_s[-1] == curve.times_s[-1]
    assert law.cdf_steps[-1] == curve.cdf[-1]
    kept = np.asarray(law.cdf(curve.times_s))
    assert (kept <= curve.cdf).all()
    assert (curve.cdf - kept).max() < 1e-3
    u = np.linspace(0.001, curve.cdf[-1], 997)
    whole = curve.times_s[np.searchsorted(curve.cdf, u)]
    assert (law.quantile(u) >= whole).all()
    # The tail keeps its relative accuracy.
    tail = curve.cdf > 0.99
    ratio = (1.0 - kept[tail]) / (1.0 - curve.cdf[tail])
    assert ratio.max() < 1.01
    for t in curve.times_s[::997]:
        whole_step, kept_step = fit.landed(float(t)), law.landed(float(t))
        assert kept_step.low <= whole_step.low  # type: ignore[operator]
        assert kept_step.high >= whole_step.high - 1e-12  # type: ignore[operator]


def test_few_times_are_kept_as_they_are() -> None:
    fit = fitted(*rows(REMISSION))
    law = fit.law()
    assert law.times_s == tuple(fit.curve.times_s.tolist())
    assert law.cdf_steps == tuple(fit.curve.cdf.tolist())
    assert (law.n, law.censored, law.horizon_s) == (21, 12, 35.0)


def test_saving_and_loading(tmp_path: Path) -> None:
    options = DelayFileOptions(unit="ms", censored_at=6000.0)
    fit = fit_delays(read_delays(SAMPLES / "headerless.csv", options))
    path = fit.save(tmp_path / "delays.json")
    saved = load_saved(path)
    assert saved.law == fit.law()
    assert saved.fit == json.loads(json.dumps(fit.to_json()))
    assert saved.manifest["source"] == "headerless.csv"
    assert saved.manifest["sha256"] == fit.measured.sha256
    assert saved.manifest["options"] == {"unit": "ms", "censored_at": 6000.0}
    assert delays_from_spec(path) == fit.law()
    assert open_delays(path) == saved
    assert open_delays(SAMPLES / "headerless.csv", options).law == saved.law
    with pytest.raises(UserError, match="is a saved delay; unit, censored_at can only be said"):
        open_delays(path, options)
    with pytest.raises(UserError, match="is a saved delay already"):
        read_delays(path)
    again = path.read_bytes()
    fit.save(path)
    assert path.read_bytes() == again
    assert os.listdir(tmp_path) == ["delays.json"]
    assert path.stat().st_mode & stat.S_IRUSR


def test_a_place_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    fit = fitted([1.0, 2.0, 3.0])
    with pytest.raises(UserError, match="cannot write"):
        fit.save(tmp_path / "none" / "delays.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="cannot write"):
        fit.save(tmp_path / "folder")
    assert os.listdir(tmp_path) == ["folder"]


# ---- families --------------------------------------------------------------------------------


def test_the_exponential_is_total_time_over_events() -> None:
    fit = family(fitted(*rows(REMISSION)), "expon")
    assert fit["scale"] == pytest.approx(359.0 / 9.0, rel=1e-14)
    assert fit["loc"] == 0.0
    assert fit["log_likelihood"] == pytest.approx(-9.0 * (np.log(359.0 / 9.0) + 1.0))
    assert fit["aic"] == pytest.approx(2.0 - 2.0 * fit["log_likelihood"])


def test_entry_times_leave_the_exposure() -> None:
    fit = fitted([4.0, 6.0, 9.0], [True, True, False], [1.0, 0.0, 2.0])
    assert family(fit, "expon")["scale"] == pytest.approx((19.0 - 3.0) / 2.0, rel=1e-14)


def test_families_in_closed_form() -> None:
    times = np.array([1.0, 2.0, 4.0, 8.0])
    fit = fitted(times)
    pareto = family(fit, "pareto")
    assert (pareto["scale"], pareto["loc"]) == (1.0, 0.0)
    assert pareto["b"] == pytest.approx(4.0 / (6.0 * np.log(2.0)), rel=1e-14)
    logs = np.log(times)
    lognormal = family(fit, "lognorm")
    assert lognormal["scale"] == pytest.approx(np.exp(logs.mean()), rel=1e-14)
    assert lognormal["s"] == pytest.approx(logs.std(), rel=1e-14)
    loguniform, uniform = family(fit, "loguniform"), family(fit, "uniform")
    assert (loguniform["a"], loguniform["b"]) == (1.0, 8.0)
    assert (uniform["loc"], uniform["scale"]) == (1.0, 7.0)
    assert uniform["log_likelihood"] == pytest.approx(-4.0 * np.log(7.0), rel=1e-12)
    assert loguniform["log_likelihood"] == pytest.approx(
        -logs.sum() - 4.0 * np.log(np.log(8.0)), rel=1e-12
    )


def test_a_uniform_under_one_common_timeout() -> None:
    # With d ended, all censored ones at X: the length is n (X - a) / d.
    fit = fitted([1.0, 2.0, 3.0, 5.0, 5.0], [True, True, True, False, False])
    uniform = family(fit, "uniform")
    assert uniform["loc"] == 1.0
    assert uniform["scale"] == pytest.approx(5.0 * 4.0 / 3.0, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "reference", "names"),
    [
        ("weibull_min", stats.weibull_min, ("c", "loc", "scale")),
        ("lognorm", stats.lognorm, ("s", "loc", "scale")),
        ("lomax", stats.lomax, ("c", "loc", "scale")),
    ],
)
def test_censored_maxima_agree_with_scipy(name: str, reference: Any, names: tuple[str]) -> None:
    rng = np.random.Generator(np.random.Philox(7))
    delay = drawn(Lomax(c=1.5, scale=20.0), 400, 8)
    limit = rng.uniform(10.0, 120.0, 400)
    times, done = np.minimum(delay, limit), delay <= limit
    ours = family(fitted(times, done), name)
    sample = stats.CensoredData.right_censored(times, ~done)
    theirs = reference.fit(sample, 1.0, scale=20.0, floc=0.0)
    found = [ours[key] for key in names]

    def log_likelihood(parameters: Any) -> float:
        law = reference(*parameters)
        return float(law.logpdf(times[done]).sum() + law.logsf(times[~done]).sum())

    assert ours["log_likelihood"] == pytest.approx(log_likelihood(found), rel=1e-10)
    assert ours["log_likelihood"] >= log_likelihood(theirs) - 1e-6
    np.testing.assert_allclose(found, theirs, rtol=2e-3)


@pytest.mark.parametrize("n", [500, 9_000], ids=["exact", "coarse search first"])
@pytest.mark.parametrize("name", sorted(FITS))
def test_the_maximum_is_one_with_entry_and_censoring(name: str, n: int) -> None:
    rng = np.random.Generator(np.random.Philox(9))
    delay = drawn(LogNormal(s=1.0, scale=5.0), n, 10)
    entry, limit = rng.exponential(2.0, n), 2.0 + rng.exponential(20.0, n)
    seen = (delay > entry) & (limit > entry)
    delay, entry, limit = delay[seen], entry[seen], limit[seen]
    times, done = np.minimum(delay, limit), delay <= limit
    fit = fitted(times, done, entry)
    best = next(found for found in fit.families if found.family == name)

    def log_likelihood(parameters: dict[str, float]) -> float:
        law = delays_from_spec({"family": name, **parameters})
        with np.errstate(divide="ignore"):
            return float(
                np.log(law.density(times[done])).sum()
                + np.log(law.survival(times[~done])).sum()
                - np.log(law.survival(entry)).sum()
            )

    assert best.log_likelihood == pytest.approx(log_likelihood(best.parameters), rel=1e-9)
    for key, value in best.parameters.items():
        if value == 0.0:
            continue
        for factor in (0.99, 1.01, 1.0 - 1e-4, 1.0 + 1e-4):
            moved = {**best.parameters, key: value * factor}
            if name == "uniform" and key == "loc":  # keep the upper end
                moved["scale"] += value * (1.0 - factor)
            assert log_likelihood(moved) <= best.log_likelihood + 1e-7


@pytest.mark.parametrize(
    ("law", "tolerance"),
    [(Lomax(c=0.8, scale=120.0), 0.1), (LogNormal(s=1.2, scale=0.4), 0.03)],
)
def test_the_family_that_made_the_data_wins(law: Any, tolerance: float) -> None:
    delay = drawn(law, 5_000, 11)
    limit = float(law.quantile(0.9))
    fit = fitted(np.minimum(delay, limit), delay < limit)
    best = fit.families[0]
    assert best.family == law.family
    assert best.law().median_s == pytest.approx(law.median_s, rel=tolerance)
    assert best.max_distance < 0.03
    assert not any("no family fits" in warning for warning in fit.warnings)


def test_families_are_ranked_by_aic_and_described() -> None:
    fit = fitted(drawn(Exponential(scale=3.0), 500, 12))
    report = fit.to_json()["families"]
    assert {entry["family"] for entry in report} == set(FITS)
    assert [entry["aic"] for entry in report] == sorted(entry["aic"] for entry in report)
    assert report[0]["family"] == "expon"
    for found in fit.families:
        assert found.to_json()["free_parameters"] == (1 if found.family == "expon" else 2)


def test_light_tails_say_so_where_the_lomax_has_no_maximum() -> None:
    fit = fitted(drawn(Uniform(scale=3.0), 300, 13))
    assert "tends to the exponential" in family(fit, "lomax")["note"]


def test_a_plain_warning_when_nothing_fits() -> None:
    warm = drawn(Uniform(loc=0.01, scale=0.002), 600, 14)
    cold = drawn(Uniform(loc=5.0, scale=0.2), 400, 15)
    fit = fitted(np.concatenate((warm, cold)))
    assert any(warning.startswith("no family fits: the closest") for warning in fit.warnings)
    closest = min(entry["max_distance"] for entry in fit.to_json()["families"])
    assert closest > fit.misfit_threshold == 0.05


def test_a_good_bulk_with_a_bad_tail_is_warned_about() -> None:
    bulk = drawn(LogNormal(s=1.0, scale=0.3), 20_000, 16)
    bulk[:400] = drawn(Uniform(loc=15.0, scale=5.0), 400, 17)
    fit = fitted(bulk)
    assert any("fits the bulk but not every quantile" in warning for warning in fit.warnings)
    worst = fit.families[0].worst_quantile
    assert worst is not None
    assert worst.p == 0.99
    assert worst.excess > 2.0


def test_the_distance_is_that_of_kolmogorov_and_smirnov() -> None:
    times = drawn(Exponential(scale=3.0), 200, 18)
    for found in fitted(times).families:
        distance = stats.kstest(times, found.law().cdf).statistic
        assert found.max_distance == pytest.approx(distance, rel=1e-9)


def test_equal_delays_have_a_law_but_no_family() -> None:
    fit = fitted([0.25] * 5)
    assert fit.to_json()["families"] == []
    assert fit.to_json()["quantiles"]["0.5"] == {"value_s": 0.25, "low_s": 0.25, "high_s": None}
    assert any("all delays are equal" in warning for warning in fit.warnings)
    assert (fit.curve.low[0], fit.curve.high[0]) == (0.0, 1.0)


# ---- the tail ----------------------------------------------------------------------------------


def test_hills_estimator_by_hand() -> None:
    times = np.exp(np.arange(60) / 10.0)
    index = tail_index(times, np.ones(60, dtype=np.bool_))
    assert index is not None
    # k = 15 longest over the 16th: logs 0.1, 0.2, ..., 1.5, whose sum is 12.
    assert (index.k, index.ended) == (15, 15)
    assert index.alpha == pytest.approx(15.0 / 12.0, rel=1e-12)
    assert index.threshold_s == times[44]
    assert index.low == pytest.approx(stats.chi2.ppf(0.025, 30) / 24.0)
    assert index.high == pytest.approx(stats.chi2.ppf(0.975, 32) / 24.0)


def test_censored_rows_add_exposure_and_no_event() -> None:
    times = np.exp(np.arange(60) / 10.0)
    done = np.ones(60, dtype=np.bool_)
    done[[50, 55]] = False
    index = tail_index(times, done)
    assert index is not None
    assert index.ended == 13
    assert index.alpha == pytest.approx(13.0 / 12.0, rel=1e-12)
    entered = np.zeros(60)
    entered[59] = times[58]
    late = tail_index(times, done, entered)
    assert late is not None
    assert late.alpha == pytest.approx(13.0 / (12.0 - 1.5 + 0.1), rel=1e-12)


def test_a_power_law_is_recovered_through_a_timeout() -> None:
    delay = drawn(Lomax(c=0.8, scale=1.0), 50_000, 19)
    limit = float(np.quantile(delay, 0.995))
    index = tail_index(np.minimum(delay, limit), delay < limit)
    assert index is not None
    assert index.low < 0.8 < index.high
    assert index.steady


def test_too_few_events_in_the_tail_give_no_index() -> None:
    assert tail_index(*rows(REMISSION)) is None
    assert fitted(*rows(REMISSION)).to_json()["tail_index"] is None
    assert tail_index(np.full(100, 2.0), np.ones(100, dtype=np.bool_)) is None


# ---- the report --------------------------------------------------------------------------------


def test_the_report_keeps_its_contract() -> None:
    options = DelayFileOptions(timeout_markers=("-1",), censored_at=1.5)
    report = fit_delays(read_delays(SAMPLES / "calls.parquet", options)).to_json()
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert (report["n"], report["censored"], report["unit"]) == (120, 3, "s")
    assert report["column"] == "column 'duration_s'"
    assert report["last_observed_s"] == 1.5
    assert list(report["quantiles"]) == [
        "0.1",
        "0.25",
        "0.5",
        "0.75",
        "0.9",
        "0.95",
        "0.99",
        "0.999",
    ]
    for entry in report["quantiles"].values():
        assert set(entry) == {"value_s", "low_s", "high_s"}
    assert report["quantiles"]["0.999"]["value_s"] is None
    median = report["quantiles"]["0.5"]
    assert median["low_s"] <= median["value_s"] <= median["high_s"]
    assert any("outlast the longest one" in warning for warning in report["warnings"])
    assert any("independent" in note for note in report["notes"])


def test_milliseconds_and_seconds_tell_the_same(tmp_path: Path) -> None:
    milliseconds = (SAMPLES / "headerless.csv").read_text().splitlines()
    values = [float(line.rsplit(",", 1)[1]) for line in milliseconds]
    path = tmp_path / "s.csv"
    path.write_text("".join(f"{value / 1000.0!r}\n" for value in values))
    in_s = fit_delays(read_delays(path, DelayFileOptions(unit="s", censored_at=6.0)))
    in_ms = fit_delays(
        read_delays(SAMPLES / "headerless.csv", DelayFileOptions(unit="ms", censored_at=6000.0))
    )
    assert in_s.to_json()["quantiles"] == in_ms.to_json()["quantiles"]
    assert in_s.families == in_ms.families


@given(
    st.lists(st.tuples(st.integers(1, 400), st.booleans()), min_size=3, max_size=60),
    st.booleans(),
)
def test_any_usable_sample_gives_a_report(raw: list[tuple[int, bool]], late: bool) -> None:
    times = np.array([0.01 * t for t, _ in raw])
    done = np.array([d for _, d in raw])
    done[0] = True
    fit = fitted(times, done, 0.5 * times if late else None)
    report = json.loads(json.dumps(fit.to_json(), allow_nan=False))
    assert report["n"] == len(raw)
    for entry in report["quantiles"].values():
        known = [entry[key] for key in ("low_s", "value_s", "high_s") if entry[key] is not None]
        assert known == sorted(known)
    assert load_law_again(fit)


def load_law_again(fit: DelayFit) -> bool:
    return delays_from_spec(json.loads(fit.law().model_dump_json(exclude_none=True))) == fit.law()
