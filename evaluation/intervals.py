"""95 % intervals for the measures of many episodes.

Shares of episodes get Wilson's score interval: it stays inside [0, 1] and keeps a width when no
episode, or every one, shows the event, which is common here (a policy that never duplicates).

Means get Student's t-interval. The alternative, a bootstrap of a few thousand resamples, would
draw some 10^10 numbers for 30 policies x 20 measures x 20,000 worlds and at that size agrees with
t, whose error in coverage falls with skewness / sqrt(n). Neither is honest where the mean does not
exist: a policy that waits as long as needed under a delay of infinite mean has a mean time that
grows with the number of worlds, whatever interval stands beside it.

Only `scipy.special` is loaded, inside the functions that need a quantile: `scipy.stats` and
statsmodels take a second or more to import, longer than the summary of a whole run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from exactlyonce_env.errors import UserError

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its interval; `low` and `high` are NaN where no interval is defined."""

    value: float  # [unit of the measure]
    low: float  # lower end at the stated confidence
    high: float  # upper end at the stated confidence
    n: int  # observations behind it

    @property
    def ci(self) -> list[float | None]:
        """`[low, high]` as JSON can carry it: null for an end that is not defined."""
        return [None if math.isnan(end) else end for end in (self.low, self.high)]


def wilson_interval(count: int, n: int, *, confidence: float = CONFIDENCE) -> Estimate:
    """Compute Wilson's score interval for a share of `count` in `n` independent trials.

    Source: E. B. Wilson (1927), J. Am. Stat. Assoc. 22:209-212; method 3 of R. G. Newcombe (1998),
    Stat. Med. 17:857-872. No continuity correction.

    Raises UserError when n is zero, the count lies outside 0..n, or the confidence outside (0, 1).
    """
    if n < 1:
        raise UserError("a share needs at least one episode, got none")
    if not 0 <= count <= n:
        raise UserError(f"a count must lie in 0..{n} (the number of episodes), got {count}")
    z = _normal_quantile(confidence)
    share = count / n
    spread = z * math.sqrt(share * (1.0 - share) / n + z * z / (4.0 * n * n))
    centre = share + z * z / (2.0 * n)
    scale = 1.0 + z * z / n
    # The formula gives 0 and 1 exactly at the ends; rounding must not push past them.
    low = 0.0 if count == 0 else (centre - spread) / scale
    high = 1.0 if count == n else (centre + spread) / scale
    return Estimate(share, low, high, n)


def share_interval(flags: ArrayLike, *, confidence: float = CONFIDENCE) -> Estimate:
    """Compute the share of true flags with its Wilson interval; `flags` is (n,) bool.

    Raises UserError when the flags are empty, not one-dimensional or not boolean.
    """
    values = np.asarray(flags)
    if values.dtype != np.bool_ or values.ndim != 1:
        raise UserError(
            f"a share needs a one-dimensional bool array, got {values.dtype} of shape "
            f"{values.shape}"
        )
    return wilson_interval(int(np.count_nonzero(values)), values.size, confidence=confidence)


def mean_interval(values: ArrayLike, *, confidence: float = CONFIDENCE) -> Estimate:
    """Compute the mean of (n,) numbers with Student's t-interval on n - 1 degrees of freedom.

    Source: Student (1908), Biometrika 6:1-25. All values equal: the interval is that one value.
    A single value has no spread to estimate, so its interval is NaN, not a point.

    Raises UserError when the values are empty, not one-dimensional, or not all finite.
    """
    numbers = _finite(values)
    n = numbers.size
    if n == 1:
        return Estimate(float(numbers[0]), math.nan, math.nan, 1)
    if numbers.min() == numbers.max():
        value = float(numbers[0])
        return Estimate(value, value, value, n)
    mean = float(numbers.mean())
    half = _t_quantile(n - 1, confidence) * float(numbers.std(ddof=1)) / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n)


def paired_mean_interval(
    values: ArrayLike, baseline: ArrayLike, *, confidence: float = CONFIDENCE
) -> Estimate:
    """Compute the mean of `values - baseline` over the same episodes with its t-interval.

    Both are (n,) numbers and position i of both is the same world. The pairing removes the variance
    that the worlds bring to both sides.

    Raises UserError when the lengths differ, or as `mean_interval` does.
    """
    first, second = _finite(values), _finite(baseline)
    if first.size != second.size:
        raise UserError(f"paired values must match in number, got {first.size} and {second.size}")
    return mean_interval(first - second, confidence=confidence)


def paired_share_interval(
    both: int, only_first: int, only_second: int, neither: int, *, confidence: float = CONFIDENCE
) -> Estimate:
    """Compute the difference of two shares on the same episodes: first minus second.

    Counts of episodes where both, only the first, only the second, or neither has the event.
    Wilson's limits of each share are combined by square-and-add, allowing for the correlation phi
    of the pairs. Without discordant pairs it keeps a width, unlike the t-interval.

    Source: method 10 of R. G. Newcombe (1998), Stat. Med. 17:2635-2650.

    Raises UserError when a count is negative or all are zero.
    """
    counts = (both, only_first, only_second, neither)
    if min(counts) < 0:
        raise UserError(f"counts of pairs must not be negative, got {counts}")
    n = sum(counts)
    first = wilson_interval(both + only_first, n, confidence=confidence)
    second = wilson_interval(both + only_second, n, confidence=confidence)
    phi = _pair_correlation(both, only_first, only_second, neither)

    def combine(one: float, other: float) -> float:
        return math.sqrt(max(0.0, one * one - 2.0 * phi * one * other + other * other))

    difference = (only_first - only_second) / n
    low = difference - combine(first.value - first.low, second.high - second.value)
    high = difference + combine(first.high - first.value, second.value - second.low)
    return Estimate(difference, max(-1.0, low), min(1.0, high), n)


def _pair_correlation(both: int, only_first: int, only_second: int, neither: int) -> float:
    """Newcombe's phi: a positive association is reduced by n/2 in the numerator, not below 0."""
    margins = (
        (both + only_first)
        * (only_second + neither)
        * (both + only_second)
        * (only_first + neither)
    )
    if margins == 0:
        return 0.0
    association = float(both * neither - only_first * only_second)
    if association > 0.0:
        half = (both + only_first + only_second + neither) / 2.0
        association = max(association - half, 0.0)
    return association / math.sqrt(margins)


def _finite(values: ArrayLike) -> NDArray[np.float64]:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1:
        raise UserError(f"a mean needs a one-dimensional array, got shape {numbers.shape}")
    if numbers.size == 0:
        raise UserError("a mean needs at least one episode, got none")
    bad = int(numbers.size - np.count_nonzero(np.isfinite(numbers)))
    if bad:
        raise UserError(f"{bad} of {numbers.size} values are not finite numbers")
    return numbers


def _normal_quantile(confidence: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(0.5 + _checked(confidence) / 2.0))


def _t_quantile(degrees: int, confidence: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.5 + _checked(confidence) / 2.0))


def _checked(confidence: float) -> float:
    if not 0.0 < confidence < 1.0:
        raise UserError(f"confidence must lie between 0 and 1, got {confidence}")
    return confidence
