"""How many worlds a paired comparison needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from exactlyonce_env.errors import UserError

__all__ = ["Power", "plan_pairs", "power_of"]

MAX_PAIRS = 10_000_000
NEGLIGIBLE = 1e-12
"""Probability of discordant counts that are left out of the sum."""


@dataclass(frozen=True)
class Power:
    """A planned comparison.

    Attributes
    ----------
    pairs
        Worlds that both policies meet.
    power
        Probability that the exact McNemar test finds the difference.
    baseline, detect
        Share of the baseline, and the other's minus it.
    discordance
        Share of worlds in which the two differ.
    alpha
        Two-sided level.
    """

    pairs: int
    power: float
    baseline: float
    detect: float
    discordance: float
    alpha: float


def power_of(
    baseline: float,
    detect: float,
    discordance: float | None = None,
    *,
    pairs: int,
    alpha: float = 0.05,
) -> Power:
    """Exact power of the exact McNemar test with so many pairs.

    Parameters
    ----------
    baseline, detect
        Share of the baseline, and the difference to it.
    discordance
        Share of worlds in which the two differ; None: as if they were independent.
    pairs
        Number of worlds.
    alpha
        Two-sided level.

    Source: S. W. Duffy (1984), Biometrics 40:1005-1015: given the number of discordant pairs the
    statistic is binomial, and that number is binomial itself.

    Raises
    ------
    UserError
        For shares that cannot be.
    """
    share = _checked(baseline, detect, discordance, alpha)
    if not 1 <= pairs <= MAX_PAIRS:
        raise UserError(f"--pairs must lie in 1..{MAX_PAIRS}, not {pairs}")
    return Power(pairs, _power(pairs, share, detect, alpha), baseline, detect, share, alpha)


def plan_pairs(
    baseline: float,
    detect: float,
    discordance: float | None = None,
    *,
    power: float = 0.8,
    alpha: float = 0.05,
) -> Power:
    """The fewest pairs from which on the power never falls below the one wanted, to within 1 %.

    The power of an exact test saws; the number is found by bisection on its smooth approximation
    and then raised until the exact power holds.

    Raises
    ------
    UserError
        As `power_of`, for a power outside (0, 1), and where more than ten million are needed.
    """
    share = _checked(baseline, detect, discordance, alpha)
    if not (math.isfinite(power) and 0.0 < power < 1.0):
        raise UserError(f"--power must lie between 0 and 1, not {power!r}")
    low, high = 1, 2
    while _power(high, share, detect, alpha) < power:
        low, high = high, 2 * high
        if high > MAX_PAIRS:
            raise UserError(f"more than {MAX_PAIRS:,} pairs are needed")
    while high - low > 1:
        middle = (low + high) // 2
        if _power(middle, share, detect, alpha) < power:
            low = middle
        else:
            high = middle
    step = max(high // 200, 1)
    while any(_power(high + k * step, share, detect, alpha) < power for k in range(4)):
        high += step
    return Power(high, _power(high, share, detect, alpha), baseline, detect, share, alpha)


def _checked(baseline: float, detect: float, discordance: float | None, alpha: float) -> float:
    """The share of discordant pairs."""
    for name, value in (("--baseline", baseline), ("--baseline + --detect", baseline + detect)):
        if not (math.isfinite(value) and 0.0 <= value <= 1.0):
            raise UserError(f"{name} must be a share, 0 to 1, not {value:g}")
    if detect == 0.0:
        raise UserError("--detect must not be 0: no number of worlds finds nothing")
    if not (math.isfinite(alpha) and 0.0 < alpha < 1.0):
        raise UserError(f"--alpha must lie between 0 and 1, not {alpha!r}")
    other = baseline + detect
    if discordance is None:
        return baseline * (1.0 - other) + other * (1.0 - baseline)
    most = min(baseline + other, 2.0 - baseline - other)
    if not abs(detect) <= discordance <= most + 1e-12:
        raise UserError(
            f"--discordance must lie in {abs(detect):g}..{most:g} for these shares, "
            f"not {discordance:g}"
        )
    return discordance


def _power(pairs: int, discordance: float, detect: float, alpha: float) -> float:
    """Sum over the number of discordant pairs of the power given it."""
    from scipy.stats import binom

    low = int(binom.ppf(NEGLIGIBLE, pairs, discordance))
    high = int(binom.isf(NEGLIGIBLE, pairs, discordance))
    numbers = np.arange(low, high + 1)
    weights = binom.pmf(numbers, pairs, discordance)
    # Largest tail count that is still significant: P(X <= k) <= alpha / 2 under a half.
    critical = binom.ppf(alpha / 2.0, numbers, 0.5).astype(int)
    critical -= binom.cdf(critical, numbers, 0.5) > alpha / 2.0
    first = (discordance + detect) / (2.0 * discordance)
    found = binom.cdf(critical, numbers, first) + binom.sf(numbers - critical - 1, numbers, first)
    return float(np.sum(weights * np.where(critical >= 0, found, 0.0)))
