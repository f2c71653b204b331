"""Parametric families by maximum likelihood, with censoring and delayed entry, ranked by AIC.

The log-likelihood of rows with times t, censored times c and entries v is sum log f(t) + sum log
S(c) - sum log S(v).  For a law with cumulative hazard H and hazard h it is sum log h(t) - sum H(t
and c) + sum H(v); with the best scale put in, one parameter at most is left to search for (the
lognormal keeps two).  ``loc`` stays 0 except for the uniform, whose ends are the sample's, as are
the left ends of the Pareto and the log-uniform.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from exactlyonce_env.delay_laws import FloatArray, Law
from exactlyonce_env.delays import FAMILIES
from exactlyonce_env.measured.likelihood import Likelihood, maximise
from exactlyonce_env.measured.product_limit import ProductLimit

TAIL_LEVELS = (0.5, 0.75, 0.9, 0.95, 0.99)
"""Levels at which fitted and measured quantiles are compared."""

LARGEST_RATIO = 1e6
"""A shape or scale at this many times the data's own is taken for "without bound"."""


FAR = 30.0
"""The lognormal is searched within this many deviations, and within e to this power of one."""


@dataclass(frozen=True)
class QuantileMisfit:
    """Where a fitted quantile strays furthest from the measured one, at level ``p``.

    ``excess`` >= 1 is the factor by which it lies outside the measured 95 % interval.
    """

    p: float
    fitted_s: float
    measured_s: float
    excess: float


@dataclass(frozen=True)
class FamilyFit:
    """One family at its maximum likelihood.

    ``max_distance`` is the greatest distance between its cdf and the product-limit estimate within
    the observed range; ``note`` says where the maximum lies on the rim of what was searched.
    """

    family: str
    parameters: dict[str, float]
    log_likelihood: float
    free_parameters: int
    max_distance: float
    worst_quantile: QuantileMisfit | None = None
    note: str | None = None

    @property
    def aic(self) -> float:
        """Akaike's criterion, 2 k - 2 log L."""
        return 2.0 * self.free_parameters - 2.0 * self.log_likelihood

    def law(self) -> Law:
        """The fitted law."""
        return FAMILIES[self.family].model_validate({"family": self.family, **self.parameters})

    def to_json(self) -> dict[str, Any]:
        """The fit with its parameters beside the family's name."""
        return {
            "family": self.family,
            "aic": self.aic,
            **self.parameters,
            "log_likelihood": self.log_likelihood,
            "free_parameters": self.free_parameters,
            "max_distance": self.max_distance,
            "worst_quantile": None if self.worst_quantile is None else asdict(self.worst_quantile),
            **({"note": self.note} if self.note else {}),
        }


Maximum = tuple[dict[str, float], float, int, str | None]
"""Parameters, log-likelihood, number of free parameters, note."""


def fit_families(
    times_s: FloatArray,
    completed: npt.NDArray[np.bool_],
    entry_s: FloatArray | None,
    curve: ProductLimit,
) -> list[FamilyFit]:
    """All families at their maximum likelihood, best AIC first.

    A family whose likelihood has no maximum is left out; the list is empty if all delays are equal.
    """
    rows = Likelihood.of(times_s, completed, entry_s)
    if rows.ended.size < 2:
        return []
    fits = []
    for family, fit in FITS.items():
        with np.errstate(all="ignore"):
            parameters, log_likelihood, free, note = fit(rows)
        known = [log_likelihood, *parameters.values()]
        if not np.isfinite(known).all() or any(
            value <= 0.0 for name, value in parameters.items() if name != "loc"
        ):
            continue
        law = FAMILIES[family].model_validate({"family": family, **parameters})
        worst = _worst_quantile(law, curve)
        distance = max_distance(law, curve)
        fits.append(FamilyFit(family, parameters, log_likelihood, free, distance, worst, note))
    return sorted(fits, key=lambda fitted: fitted.aic)


def max_distance(law: Law, curve: ProductLimit) -> float:
    """Greatest |F_law - F_estimate| at and just before the steps, given T > ``observed_from_s``."""
    survived = float(law.survival(curve.observed_from_s))
    if survived <= 0.0:
        return 1.0
    fitted = 1.0 - np.asarray(law.survival(curve.times_s)) / survived
    before = np.concatenate(([0.0], curve.cdf[:-1]))
    return float(np.maximum(np.abs(fitted - curve.cdf), np.abs(fitted - before)).max())


def _worst_quantile(law: Law, curve: ProductLimit) -> QuantileMisfit | None:
    """The tail level whose fitted quantile lies furthest outside its measured interval.

    A distance in probability hardly sees the tail, and a waiting bound is chosen there.
    """
    survived = float(law.survival(curve.observed_from_s))
    found = []
    for p in TAIL_LEVELS:
        measured, low, high = curve.quantile(p)
        if measured is None or low is None or high is None:
            continue
        fitted = float(law.quantile(1.0 - survived * (1.0 - p)))
        excess = max(low / fitted, fitted / high, 1.0) if fitted > 0.0 else np.inf
        if np.isfinite(fitted) and np.isfinite(excess):
            found.append(QuantileMisfit(p, fitted, measured, excess))
    return max(found, key=lambda misfit: misfit.excess) if found else None


def _exponential(rows: Likelihood) -> Maximum:
    """Total time watched over the number of ended delays."""
    scale = rows.sum_watched(lambda t: t) / rows.events
    value = -rows.events * (np.log(scale) + 1.0)
    return {"loc": 0.0, "scale": scale}, float(value), 1, None


def _weibull(rows: Likelihood) -> Maximum:
    middle = float(np.exp(rows.sum_ended(np.log) / rows.events))
    scaled = rows.map(lambda t: t / middle)

    def per_event(sample: Likelihood, c: float) -> float:
        return sample.sum_watched(lambda x: np.power(x, c)) / sample.events

    def of(sample: Likelihood) -> Callable[[float], float]:
        logs = sample.sum_ended(np.log)

        def value(log_c: float) -> float:
            c = float(np.exp(log_c))
            return (
                sample.events * float(log_c - np.log(per_event(sample, c)) - 1.0) + (c - 1) * logs
            )

        return value

    log_c, best, rim = maximise(of, scaled, np.log(0.02), np.log(200.0))
    c = float(np.exp(log_c))
    scale = middle * per_event(scaled, c) ** (1.0 / c)
    note = "the shape lies on the rim of the search" if rim else None
    return {"c": c, "loc": 0.0, "scale": scale}, best - rows.events * np.log(middle), 2, note


def _lomax(rows: Likelihood) -> Maximum:
    def shape(sample: Likelihood, scale: float) -> float:
        return sample.events / sample.sum_watched(lambda t: np.log1p(t / scale))

    def of(sample: Likelihood) -> Callable[[float], float]:
        def value(log_scale: float) -> float:
            scale = float(np.exp(log_scale))
            rate = sample.sum_ended(lambda t: np.log(scale + t))
            return sample.events * float(np.log(shape(sample, scale)) - 1.0) - rate

        return value

    low = np.log(rows.ended[0] / LARGEST_RATIO)
    high = np.log(rows.ended[-1] * LARGEST_RATIO)
    log_scale, best, rim = maximise(of, rows, low, high)
    scale = float(np.exp(log_scale))
    note = "tends to the exponential: the data show no heavy tail" if rim else None
    return {"c": shape(rows, scale), "loc": 0.0, "scale": scale}, best, 2, note


def _pareto(rows: Likelihood) -> Maximum:
    scale = float(rows.ended[0])
    b = rows.events / rows.sum_watched(lambda t: np.log(np.maximum(t, scale) / scale))
    value = rows.events * (np.log(b) - 1.0) - rows.sum_ended(np.log)
    return {"b": float(b), "loc": 0.0, "scale": scale}, float(value), 2, None


def _lognormal(rows: Likelihood) -> Maximum:
    logs = rows.map(np.log)
    events = rows.events
    mean = logs.sum_ended(lambda y: y) / events
    deviation = float(np.sqrt(logs.sum_ended(lambda y: (y - mean) ** 2) / events))
    constant = -events * (mean + 0.5 * np.log(2.0 * np.pi))
    if not (rows.open.size or rows.entry.size):
        best = constant - events * (np.log(deviation) + 0.5)
        return {"s": deviation, "loc": 0.0, "scale": float(np.exp(mean))}, float(best), 2, None
    from scipy.optimize import minimize

    def loss(x: FloatArray) -> tuple[float, FloatArray]:
        """-log L less its constant, and its slope in (mu - mean) / deviation and log s."""
        shift, s = deviation * float(x[0]), float(np.exp(x[1]))
        squares = events * (deviation**2 + shift**2) / s**2
        value = -0.5 * squares - events * x[1]
        slope = np.array([-events * shift / s**2, squares - events])
        for y, n, sign in ((logs.open, logs.open_n, 1.0), (logs.entry, logs.entry_n, -1.0)):
            z = (y - mean - shift) / s
            log_survival, hazard = _normal_tail(z)
            value += sign * float(n @ log_survival)
            slope += sign * np.array([float(n @ hazard) / s, float(n @ (hazard * z))])
        return -value / events, -slope * np.array([deviation, 1.0]) / events

    centre = float(np.log(deviation))
    bounds = [(-FAR, FAR), (centre - FAR, centre + FAR)]
    steps = {"ftol": 1e-15, "gtol": 1e-9, "maxiter": 500}
    found = minimize(
        loss, np.array([0.0, centre]), jac=True, bounds=bounds, method="L-BFGS-B", options=steps
    )
    mu, s = mean + deviation * float(found.x[0]), float(np.exp(found.x[1]))
    rim = max(abs(found.x[0]), abs(found.x[1] - centre)) > 0.99 * FAR
    note = "the maximum lies on the rim of the search" if rim else None
    best = constant - events * float(found.fun)
    return {"s": s, "loc": 0.0, "scale": float(np.exp(mu))}, float(best), 2, note


def _normal_tail(z: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Logarithm of the standard normal survival at ``z``, and the hazard there."""
    from scipy.special import log_ndtr

    log_survival = log_ndtr(-z)
    return log_survival, np.exp(-0.5 * z * z - 0.5 * np.log(2.0 * np.pi) - log_survival)


def _ends(rows: Likelihood) -> tuple[float, float, float]:
    """Ends a < b of the best uniform law, and its log-likelihood."""
    a = float(rows.ended[0])
    least_b = max(float(values[-1]) for values in (rows.ended, rows.open) if values.size)

    def at(sample: Likelihood, b: float) -> float:
        width = b - a
        logs = sample.open_n @ np.log(np.minimum(b - sample.open, width) / width)
        entered = sample.entry_n @ np.log(np.minimum(b - sample.entry, width) / width)
        return float(logs - entered - sample.events * np.log(width))

    def of(sample: Likelihood) -> Callable[[float], float]:
        return lambda log_gap: at(sample, least_b + float(np.exp(log_gap)))

    least_gap, largest_gap = np.log(1e-9 * (least_b - a)), np.log(1e3 * (least_b - a))
    log_gap, best, _ = maximise(of, rows, least_gap, largest_gap)
    touching = at(rows, least_b)
    if touching >= best:
        return a, least_b, touching
    return a, least_b + float(np.exp(log_gap)), best


def _uniform(rows: Likelihood) -> Maximum:
    a, b, value = _ends(rows)
    return {"loc": a, "scale": b - a}, value, 2, None


def _loguniform(rows: Likelihood) -> Maximum:
    _, b, value = _ends(rows.map(np.log))
    # The ends are the sample's own; exp(log t) would move them by a rounding error.
    a_s, b_s = float(rows.ended[0]), float(np.exp(b))
    if b == np.log(rows.ended[-1]):
        b_s = float(rows.ended[-1])
    return {"a": a_s, "b": b_s}, value - rows.sum_ended(np.log), 2, None


FITS: dict[str, Callable[[Likelihood], Maximum]] = {
    "expon": _exponential,
    "weibull_min": _weibull,
    "lognorm": _lognormal,
    "lomax": _lomax,
    "pareto": _pareto,
    "loguniform": _loguniform,
    "uniform": _uniform,
}
"""Every family that is fitted, with its maximum-likelihood estimator."""
