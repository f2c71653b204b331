"""Intervals of shares and of their differences, with envelopes over missing responses.

A count is on the *planned* denominator: of ``n`` planned responses ``missing`` did not come, and
``count`` of those that came show the event.  An envelope runs over every way in which the missing
ones may have gone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product

from evaluation.statistics.checks import check_confidence, check_count, completions
from exactlyonce_env.errors import UserError

__all__ = [
    "Arm",
    "Interaction",
    "Interval",
    "clopper_pearson",
    "effective_n",
    "mover_interaction",
    "newcombe",
    "wilson",
]

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """Lower and upper limit of a share, or of a difference."""

    low: float
    high: float


@dataclass(frozen=True)
class Arm:
    """Responses of one arm.

    Attributes
    ----------
    count
        Events among the responses that came.
    n
        Planned responses.
    missing
        Responses that did not come.
    """

    count: int
    n: int
    missing: int = 0

    def check(self, name: str) -> None:
        """Refuse numbers that fit no arm."""
        check_count(self.count, self.n, name, self.missing)


def clopper_pearson(count: int, n: int, confidence: float = CONFIDENCE) -> Interval:
    """The exact interval of a binomial share.

    A one-sided limit at confidence c is that of the two-sided interval at 2c - 1.

    Source: C. J. Clopper and E. S. Pearson (1934), Biometrika 26:404-413; computed by scipy.

    Raises
    ------
    UserError
        For a count outside 0..n, no trial, or a confidence outside (0, 1).
    """
    from scipy.stats import binomtest

    check_count(count, n)
    check_confidence(confidence)
    found = binomtest(count, n).proportion_ci(confidence, method="exact")
    return Interval(float(found.low), float(found.high))


def effective_n(n: int, icc: float, mean_cluster_size: float) -> float:
    """Kish's effective sample size, n / (1 + (m - 1) rho).

    Source: L. Kish (1965), Survey Sampling, section 5.4.

    Raises
    ------
    UserError
        For a correlation outside [-1, 1], clusters smaller than 1, or a product that leaves none.
    """
    if not (math.isfinite(icc) and -1.0 <= icc <= 1.0):
        raise UserError(f"icc must lie in -1..1, not {icc!r}")
    if not (math.isfinite(mean_cluster_size) and mean_cluster_size >= 1.0):
        raise UserError(f"mean_cluster_size must be at least 1, not {mean_cluster_size!r}")
    inflation = 1.0 + (mean_cluster_size - 1.0) * icc
    if inflation <= 0.0:
        raise UserError(f"icc {icc:g} is impossible in clusters of {mean_cluster_size:g}")
    return n / inflation


def wilson(
    count: int,
    n: int,
    *,
    icc: float | None = None,
    mean_cluster_size: float | None = None,
    confidence: float = CONFIDENCE,
) -> tuple[Interval, float]:
    """Wilson's score interval, on the effective sample size where responses come in clusters.

    Parameters
    ----------
    count, n
        Events and trials.
    icc, mean_cluster_size
        Intra-class correlation, estimated once an experiment, and mean size of a cluster; both or
        neither.
    confidence
        Level.

    Returns
    -------
    The interval, and the effective number of trials.

    Source: E. B. Wilson (1927), J. Am. Stat. Assoc. 22:209-212, at the observed share and Kish's n;
    computed by statsmodels.

    Raises
    ------
    UserError
        As `clopper_pearson` and `effective_n`, and for one of the two without the other.
    """
    from statsmodels.stats.proportion import proportion_confint

    check_count(count, n)
    check_confidence(confidence)
    if (icc is None) != (mean_cluster_size is None):
        raise UserError("icc and mean_cluster_size come together")
    size = float(n)
    if icc is not None and mean_cluster_size is not None:
        size = effective_n(n, icc, mean_cluster_size)
    low, high = proportion_confint(count / n * size, size, 1.0 - confidence, method="wilson")
    return Interval(_clip(low), _clip(high)), size


def _clip(share: float) -> float:
    """A limit, without the last digits that rounding puts outside [0, 1] or beside its ends."""
    value = float(share)
    if value < 1e-15:
        return 0.0
    return 1.0 if value > 1.0 - 1e-15 else value


@dataclass(frozen=True)
class Difference:
    """A difference with its envelope.

    Attributes
    ----------
    smallest, largest
        The difference over every assignment of the missing responses; equal where none is missing.
    low, high
        The outermost limits over all of them.
    """

    smallest: float
    largest: float
    low: float
    high: float


def newcombe(one: Arm, other: Arm, confidence: float = CONFIDENCE) -> Difference:
    """The difference of two independent shares, arm 1 minus arm 2, by Wilson limits.

    Source: R. G. Newcombe (1998), Stat. Med. 17:873-890, method 10; computed by statsmodels.

    Raises
    ------
    UserError
        As `clopper_pearson`, by arm.
    """
    from statsmodels.stats.proportion import confint_proportions_2indep

    one.check("count1")
    other.check("count2")
    check_confidence(confidence)
    found = []
    for k1, k2 in product(_ends(one), _ends(other)):
        low, high = confint_proportions_2indep(
            k1, one.n, k2, other.n, method="newcomb", compare="diff", alpha=1.0 - confidence
        )
        found.append(((k1 * other.n - k2 * one.n) / (one.n * other.n), float(low), float(high)))
    differences, lows, highs = zip(*found, strict=True)
    return Difference(
        min(differences), max(differences), max(min(lows), -1.0), min(max(highs), 1.0)
    )


def _ends(arm: Arm) -> tuple[int, ...]:
    """The outermost completions: differences and their limits are monotone in each count."""
    return tuple(dict.fromkeys((arm.count, arm.count + arm.missing)))


@dataclass(frozen=True)
class Interaction(Difference):
    """A difference of differences with its envelope.

    Attributes
    ----------
    p_low, p_high
        Smallest and largest two-sided p-value over the assignments: one minus the confidence at
        which the interval just reaches zero.
    """

    p_low: float
    p_high: float


MAX_ASSIGNMENTS = 200_000


def mover_interaction(
    coded: Mapping[str, Arm], canonical: Mapping[str, Arm], confidence: float = CONFIDENCE
) -> Interaction:
    """A difference of differences, by Wilson limits combined by square-and-add (MOVER).

    (labeled - unlabeled) among the coded, minus (labeled - unlabeled) among the canonical.

    Parameters
    ----------
    coded, canonical
        The arms ``unlabeled`` and ``labeled`` of each.
    confidence
        Level.

    Source: G. Y. Zou and A. Donner (2008), Stat. Med. 27:1693-1702, with the limits of E. B. Wilson
    (1927).

    Raises
    ------
    UserError
        As `clopper_pearson`, by arm, and where there are too many assignments to go through.
    """
    check_confidence(confidence)
    arms = [coded["labeled"], coded["unlabeled"], canonical["labeled"], canonical["unlabeled"]]
    names = ("coded labeled", "coded unlabeled", "canonical labeled", "canonical unlabeled")
    for arm, name in zip(arms, names, strict=True):
        arm.check(name)
    if math.prod(arm.missing + 1 for arm in arms) > MAX_ASSIGNMENTS:
        raise UserError(f"more than {MAX_ASSIGNMENTS:,} assignments of the missing responses")
    differences, lows, highs, ps = [], [], [], []
    for counts in product(*(completions(arm.count, arm.missing) for arm in arms)):
        pairs = [(count, arm.n) for count, arm in zip(counts, arms, strict=True)]
        difference, low, high = _mover(pairs, confidence)
        differences.append(difference)
        lows.append(low)
        highs.append(high)
        ps.append(_inverted_p(lambda c, p=pairs: _mover(p, c)))  # type: ignore[misc]
    return Interaction(min(differences), max(differences), min(lows), max(highs), min(ps), max(ps))


def _mover(pairs: list[tuple[int, int]], confidence: float) -> tuple[float, float, float]:
    """Estimate and limits of p1 - p2 - p3 + p4."""
    from scipy.special import ndtri

    z = float(ndtri(0.5 + confidence / 2.0))
    shares, below, above = [], [], []
    for count, n in pairs:
        share = count / n
        middle = (share + z * z / (2 * n)) / (1 + z * z / n)
        spread = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
        shares.append(share)
        below.append(share - max(middle - spread, 0.0))
        above.append(min(middle + spread, 1.0) - share)
    signs = (1, -1, -1, 1)
    estimate = math.fsum(s * p for s, p in zip(signs, shares, strict=True))
    down = [b if s > 0 else a for s, b, a in zip(signs, below, above, strict=True)]
    up = [a if s > 0 else b for s, b, a in zip(signs, below, above, strict=True)]
    return estimate, estimate - math.hypot(*down), estimate + math.hypot(*up)


def _inverted_p(limits: Callable[[float], tuple[float, float, float]]) -> float:
    """One minus the confidence at which an interval just reaches zero."""
    from scipy.optimize import brentq

    estimate, _, _ = limits(0.5)
    if estimate == 0.0:
        return 1.0

    def nearest(confidence: float) -> float:
        _, low, high = limits(confidence)
        return low if estimate > 0.0 else -high

    top = 1.0 - 1e-15
    if nearest(top) > 0.0:
        return 0.0
    if nearest(1e-12) <= 0.0:
        return 1.0
    return float(1.0 - brentq(nearest, 1e-12, top, xtol=1e-15))
