"""Responses that come in clusters: correlation within them, and resampling of whole clusters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evaluation.statistics.checks import LARGEST, check_confidence
from exactlyonce_env.errors import UserError

__all__ = ["Bootstrap", "cluster_bootstrap", "intraclass_correlation"]

FEW_CLUSTERS = 20
"""With fewer clusters than these the percentile bootstrap is too narrow; results say so."""

MAX_RESAMPLES = 1_000_000


def intraclass_correlation(values: npt.ArrayLike, clusters: npt.ArrayLike) -> float:
    """One-way random-effects intra-class correlation by analysis of variance.

    Parameters
    ----------
    values
        (n,) numbers or flags.
    clusters
        (n,) labels.

    It may be negative.  Without any variance it is not defined.

    Source: A. Donner (1986), Int. Stat. Rev. 54:67-82, the analysis-of-variance estimator.

    Raises
    ------
    UserError
        For arrays of other shapes, fewer than two clusters, clusters of one only, and no variance.
    """
    numbers, codes, sizes = _grouped(values, clusters)
    n, k = numbers.size, sizes.size
    if k < 2:
        raise UserError(f"a correlation within clusters needs two clusters or more, not {k}")
    if n == k:
        raise UserError("every cluster holds one value; a correlation needs larger ones")
    means = np.bincount(codes, numbers) / sizes
    between = float(np.sum(sizes * (means - numbers.mean()) ** 2)) / (k - 1)
    within = float(np.sum((numbers - means[codes]) ** 2)) / (n - k)
    typical = (n - float(np.sum(sizes.astype(np.float64) ** 2)) / n) / (k - 1)
    denominator = between + (typical - 1.0) * within
    if denominator == 0.0:
        raise UserError("all values are the same; a correlation within clusters is not defined")
    return (between - within) / denominator


@dataclass(frozen=True)
class Bootstrap:
    """An interval from resampled clusters.

    Attributes
    ----------
    value, low, high
        The statistic and its percentile limits.
    clusters
        Number of clusters.
    caveat
        What limits it; empty: nothing does.
    """

    value: float
    low: float
    high: float
    clusters: int
    caveat: str


def cluster_bootstrap(
    values: npt.ArrayLike,
    clusters: npt.ArrayLike,
    statistic: Callable[[npt.NDArray[np.float64]], float] | None = None,
    *,
    resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Bootstrap:
    """Resample whole clusters, tasks as a rule, with replacement.

    Parameters
    ----------
    values
        (n,) numbers or flags; of a comparison the paired differences.
    clusters
        (n,) labels.
    statistic
        Of the joined values of the clusters drawn; None: their mean.
    resamples, confidence, seed
        How many, which level, and the generator's key.

    Source: A. C. Davison and D. V. Hinkley (1997), Bootstrap Methods and their Application, section
    3.8, resampling at the highest level.

    Raises
    ------
    UserError
        For arrays of other shapes, fewer than two clusters, and numbers out of range.
    """
    numbers, codes, sizes = _grouped(values, clusters)
    check_confidence(confidence)
    if sizes.size < 2:
        raise UserError("resampling clusters needs two clusters or more")
    if not 1 <= resamples <= MAX_RESAMPLES:
        raise UserError(f"resamples must lie in 1..{MAX_RESAMPLES}, not {resamples}")
    generator = np.random.default_rng(seed)
    found = np.empty(resamples)
    if statistic is None:
        value, sums = float(np.mean(numbers)), np.bincount(codes, numbers)
        for k in range(resamples):
            drawn = generator.integers(sizes.size, size=sizes.size)
            found[k] = sums[drawn].sum() / sizes[drawn].sum()
    else:
        value = statistic(numbers)
        members = np.split(numbers[np.argsort(codes, kind="stable")], np.cumsum(sizes)[:-1])
        for k in range(resamples):
            drawn = generator.integers(sizes.size, size=sizes.size)
            found[k] = statistic(np.concatenate([members[j] for j in drawn]))
    tail = 0.5 * (1.0 - confidence)
    low, high = np.quantile(found, [tail, 1.0 - tail])
    caveat = ""
    if sizes.size < FEW_CLUSTERS:
        caveat = f"only {sizes.size} clusters: the interval is too narrow"
    return Bootstrap(value, float(low), float(high), int(sizes.size), caveat)


def _grouped(
    values: npt.ArrayLike, clusters: npt.ArrayLike
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Values, the number of each one's cluster, and the clusters' sizes."""
    numbers, labels = np.asarray(values, dtype=np.float64), np.asarray(clusters)
    if numbers.ndim != 1 or labels.shape != numbers.shape or not numbers.size:
        raise UserError(
            f"values and clusters must be two lists of one length, not of shapes "
            f"{numbers.shape} and {labels.shape}"
        )
    if not (np.abs(numbers) < LARGEST).all():
        raise UserError(f"values must be finite numbers below {LARGEST:g}")
    _, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    return numbers, codes, sizes
