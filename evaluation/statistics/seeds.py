"""Learned policies over tasks and training seeds: interquartile means and performance profiles.

Source: R. Agarwal et al. (2021), Deep Reinforcement Learning at the Edge of the Statistical
Precipice, NeurIPS 34; the measures of the library rliable.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evaluation.statistics.checks import check_confidence
from exactlyonce_env.errors import UserError

__all__ = ["Profile", "SeedEstimate", "interquartile_mean", "iqm_interval", "performance_profile"]


@dataclass(frozen=True)
class SeedEstimate:
    """An interquartile mean with its stratified bootstrap interval."""

    value: float
    low: float
    high: float
    runs: int
    tasks: int


def interquartile_mean(scores: npt.ArrayLike) -> float:
    """Mean of the middle half of all scores; a quarter is cut off at either end.

    Computed by `scipy.stats.trim_mean`, which cuts ``floor(n / 4)`` at either end.

    Raises
    ------
    UserError
        For none, or one that is not finite.
    """
    from scipy.stats import trim_mean

    values = _checked(np.ravel(np.asarray(scores, dtype=np.float64))[:, None])
    return float(trim_mean(values, 0.25, axis=None))


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

    Raises
    ------
    UserError
        For another shape, none, or one that is not finite.
    """
    from scipy.stats import trim_mean

    values = _checked(np.asarray(scores, dtype=np.float64))
    check_confidence(confidence)
    runs, tasks = values.shape
    generator = np.random.default_rng(seed)
    drawn = generator.integers(runs, size=(resamples, runs, tasks))
    samples = np.take_along_axis(values[None], drawn, axis=1).reshape(resamples, -1)
    found = trim_mean(samples, 0.25, axis=1)
    tail = 0.5 * (1.0 - confidence)
    low, high = np.quantile(found, [tail, 1.0 - tail])
    return SeedEstimate(interquartile_mean(values), float(low), float(high), runs, tasks)


@dataclass(frozen=True)
class Profile:
    """Share of runs and tasks that score above each of the thresholds."""

    thresholds: tuple[float, ...]
    shares: tuple[float, ...]


def performance_profile(scores: npt.ArrayLike, thresholds: npt.ArrayLike) -> Profile:
    """The run-score distribution: for each threshold the share of scores above it.

    Parameters
    ----------
    scores
        (runs, tasks) numbers.
    thresholds
        (t,) numbers.

    Raises
    ------
    UserError
        For another shape, none, or one that is not finite.
    """
    values = _checked(np.asarray(scores, dtype=np.float64))
    levels = np.ravel(np.asarray(thresholds, dtype=np.float64))
    if not levels.size or not np.isfinite(levels).all():
        raise UserError("thresholds must be finite numbers, one or more")
    shares = (values[None] > levels[:, None, None]).mean(axis=(1, 2))
    return Profile(tuple(levels.tolist()), tuple(shares.tolist()))


def _checked(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    if values.ndim != 2 or not values.size:
        raise UserError(f"scores must be runs x tasks, not of shape {values.shape}")
    if not np.isfinite(values).all():
        raise UserError("scores must be finite numbers")
    return values
