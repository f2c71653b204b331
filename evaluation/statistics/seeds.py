"""Learned policies over tasks and training seeds: aggregate measures and performance profiles.

Source of all of them: R. Agarwal et al. (2021), Deep Reinforcement Learning at the Edge of the
Statistical Precipice, NeurIPS 34; the measures of the library rliable.  Scores are (runs, tasks);
an interval resamples the runs of each task on their own (a bootstrap stratified by task) and takes
percentiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evaluation.statistics.checks import LARGEST, check_confidence
from exactlyonce_env.errors import UserError

__all__ = [
    "Profile",
    "SeedEstimate",
    "interquartile_mean",
    "iqm_interval",
    "performance_profile",
    "probability_of_improvement",
    "seed_measures",
]

MAX_DRAWN = 50_000_000
"""Scores that may be drawn in all: resamples x runs x tasks."""

Floats = npt.NDArray[np.float64]
Measure = Callable[[Floats], Floats]


@dataclass(frozen=True)
class SeedEstimate:
    """A measure with its stratified bootstrap interval."""

    value: float
    low: float
    high: float
    runs: int
    tasks: int


def interquartile_mean(scores: npt.ArrayLike) -> float:
    """Mean of the middle half of all scores; a quarter is cut off at either end.

    Computed by `scipy.stats.trim_mean`, which cuts ``floor(n / 4)`` at either end.

    Source: see the module.

    Raises
    ------
    UserError
        For none, or one that is not finite.
    """
    values = _checked(np.ravel(np.asarray(scores, dtype=np.float64))[:, None])
    return float(_iqm(values[None])[0])


def _iqm(scores: Floats) -> Floats:
    from scipy.stats import trim_mean

    found: Floats = trim_mean(scores.reshape(len(scores), -1), 0.25, axis=1)
    return found


def _mean(scores: Floats) -> Floats:
    found: Floats = scores.mean(axis=1).mean(axis=1)
    return found


def _median(scores: Floats) -> Floats:
    found: Floats = np.median(scores.mean(axis=1), axis=1)
    return found


def iqm_interval(
    scores: npt.ArrayLike, *, resamples: int = 2000, confidence: float = 0.95, seed: int = 0
) -> SeedEstimate:
    """Interquartile mean over runs and tasks; seeds are resampled within each task.

    Parameters
    ----------
    scores
        (runs, tasks) numbers.
    resamples, confidence, seed
        How many, which level, and the generator's key.

    Source: see the module.

    Raises
    ------
    UserError
        For another shape, none, one that is not finite, and numbers out of range.
    """
    return _interval(scores, {"iqm": _iqm}, resamples, confidence, seed)["iqm"]


def seed_measures(
    scores: npt.ArrayLike,
    *,
    target: float = 1.0,
    resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, SeedEstimate]:
    """The aggregate measures of runs over tasks.

    Parameters
    ----------
    scores
        (runs, tasks) numbers.
    target
        Score that counts as reached.
    resamples, confidence, seed
        How many, which level, and the generator's key.

    Returns
    -------
    ``iqm``: interquartile mean of all scores; ``mean`` and ``median``: of the tasks' mean scores;
    ``optimality_gap``: mean of what scores fall short of the target, which those above do not make
    up for.

    Source: see the module.

    Raises
    ------
    UserError
        As `iqm_interval`, and for a target that is not finite.
    """
    if not np.isfinite(target):
        raise UserError(f"target must be a finite number, not {target!r}")

    def shortfall(drawn: Floats) -> Floats:
        found: Floats = target - np.minimum(drawn, target).mean(axis=(1, 2))
        return found

    measures = {"iqm": _iqm, "mean": _mean, "median": _median, "optimality_gap": shortfall}
    return _interval(scores, measures, resamples, confidence, seed)


def _interval(
    scores: npt.ArrayLike,
    measures: Mapping[str, Measure],
    resamples: int,
    confidence: float,
    seed: int,
) -> dict[str, SeedEstimate]:
    values = _checked(np.asarray(scores, dtype=np.float64))
    drawn = _resampled(values, resamples, confidence, np.random.default_rng(seed))
    found = {}
    for name, measure in measures.items():
        low, high = _ends(measure(drawn), confidence)
        value = float(measure(values[None])[0])
        found[name] = SeedEstimate(value, float(low), float(high), *values.shape)
    return found


def _resampled(
    values: Floats, resamples: int, confidence: float, generator: np.random.Generator
) -> Floats:
    """(resamples, runs, tasks) scores; the runs of each task are drawn on their own."""
    check_confidence(confidence)
    most = MAX_DRAWN // values.size
    if not 1 <= resamples <= most:
        raise UserError(f"resamples must lie in 1..{most} for so many scores, not {resamples}")
    rows = generator.integers(len(values), size=(resamples, *values.shape))
    return np.take_along_axis(values[None], rows, axis=1)


def _ends(found: Floats, confidence: float) -> Floats:
    tail = 0.5 * (1.0 - confidence)
    ends: Floats = np.quantile(found, [tail, 1.0 - tail], axis=0)
    return ends


@dataclass(frozen=True)
class Profile:
    """Share of runs and tasks that score above each of the thresholds, with its limits."""

    thresholds: tuple[float, ...]
    shares: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def performance_profile(
    scores: npt.ArrayLike,
    thresholds: npt.ArrayLike,
    *,
    resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Profile:
    """The run-score distribution: for each threshold the share of scores above it.

    Parameters
    ----------
    scores
        (runs, tasks) numbers.
    thresholds
        (t,) numbers.
    resamples, confidence, seed
        How many, which level, and the generator's key.  The limits hold for each threshold on its
        own.

    Source: see the module.

    Raises
    ------
    UserError
        For another shape, none, one that is not finite, and numbers out of range.
    """
    values = _checked(np.asarray(scores, dtype=np.float64))
    levels = np.ravel(np.asarray(thresholds, dtype=np.float64))
    if not levels.size or not np.isfinite(levels).all():
        raise UserError("thresholds must be finite numbers, one or more")
    drawn = _resampled(values, resamples, confidence, np.random.default_rng(seed))
    shares = [float((values > level).mean()) for level in levels]
    ends = [_ends((drawn > level).mean(axis=(1, 2)), confidence).tolist() for level in levels]
    low, high = zip(*ends, strict=True)
    return Profile(tuple(levels.tolist()), tuple(shares), low, high)


def probability_of_improvement(
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> SeedEstimate:
    """How likely a run of x scores above one of y in a task drawn at random; ties count half.

    Parameters
    ----------
    x, y
        (runs, tasks) numbers, of the same tasks; the numbers of runs may differ.
    resamples, confidence, seed
        How many, which level, and the generator's key.

    ``runs`` of the result are those of x.

    Source: see the module; in each task the statistic of H. B. Mann and D. R. Whitney (1947), Ann.
    Math. Stat. 18:50-60, over the pairs of runs.

    Raises
    ------
    UserError
        For other shapes, none, one that is not finite, and numbers out of range.
    """
    one, other = (_checked(np.asarray(side, dtype=np.float64)) for side in (x, y))
    if one.shape[1] != other.shape[1]:
        raise UserError(
            f"x and y must be of the same tasks, not of {one.shape[1]} and {other.shape[1]}"
        )

    def share(left: Floats, right: Floats) -> Floats:
        total = np.zeros(len(left))
        for k in range(left.shape[1]):
            above = left[:, k, None, :] - right
            total += ((above > 0.0) + 0.5 * (above == 0.0)).mean(axis=(1, 2))
        return total / left.shape[1]

    generator = np.random.default_rng(seed)
    drawn = [_resampled(side, resamples, confidence, generator) for side in (one, other)]
    low, high = _ends(share(*drawn), confidence)
    value = float(share(one[None], other[None])[0])
    return SeedEstimate(value, float(low), float(high), *one.shape)


def _checked(values: Floats) -> Floats:
    if values.ndim != 2 or not values.size:
        raise UserError(f"scores must be runs x tasks, not of shape {values.shape}")
    if not (np.abs(values) < LARGEST).all():
        raise UserError(f"scores must be finite numbers below {LARGEST:g}")
    return values
