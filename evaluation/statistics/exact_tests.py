"""Tests of paired and stratified shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evaluation.statistics.checks import check_count
from exactlyonce_env.errors import UserError

__all__ = ["Equivalence", "Stratum", "stratified_exact", "tost_paired"]

MAX_SUPPORT = 100_000
"""Counts of arm 1 that are possible in all: the convolution takes their square."""

TOST_CONFIDENCE = 0.90
"""Level of the interval that goes with two one-sided tests at 5 %."""


@dataclass(frozen=True)
class Stratum:
    """Events and trials of two arms in one stratum."""

    count1: int
    n1: int
    count2: int
    n2: int


def stratified_exact(strata: Sequence[Stratum]) -> float:
    """Two-sided p of the exact conditional test of a common odds ratio of one.

    Given the margins of every stratum the count of arm 1 is hypergeometric; the sum over the strata
    has the convolution of them.  p is twice the smaller tail, at most 1, which differs from the
    minimum-likelihood p where arms are unequal.

    Source: J. J. Gart (1971), Rev. Int. Stat. Inst. 39:148-169; A. Agresti (1992), Stat. Sci.
    7:131-153, section 3.

    Raises
    ------
    UserError
        For no stratum, counts outside their n, and more possible counts than `MAX_SUPPORT`.
    """
    from scipy.stats import hypergeom

    if not strata:
        raise UserError("strata is empty; a stratified test needs at least one stratum")
    pmf, offset, observed = np.array([1.0]), 0, 0
    for number, stratum in enumerate(strata, 1):
        check_count(stratum.count1, stratum.n1, f"count1 of stratum {number}")
        check_count(stratum.count2, stratum.n2, f"count2 of stratum {number}")
        events = stratum.count1 + stratum.count2
        low, high = max(0, events - stratum.n2), min(stratum.n1, events)
        if len(pmf) + high - low > MAX_SUPPORT:
            raise UserError(f"more than {MAX_SUPPORT:,} counts of arm 1 are possible")
        support = np.arange(low, high + 1)
        own = hypergeom.pmf(support, stratum.n1 + stratum.n2, events, stratum.n1)
        pmf = np.convolve(pmf, own)
        offset += low
        observed += stratum.count1
    place = observed - offset
    lower, upper = math.fsum(pmf[: place + 1]), math.fsum(pmf[place:])
    return min(1.0, 2.0 * min(lower, upper))


@dataclass(frozen=True)
class Equivalence:
    """What two one-sided tests say.

    Attributes
    ----------
    difference
        (b - c) / n.
    p
        The larger of the two p-values: small where the shares differ by less than the margin.
    low, high
        The 90 % Wald interval of the difference.
    """

    difference: float
    p: float
    low: float
    high: float


def tost_paired(b: int, c: int, n: int, margin: float) -> Equivalence:
    """Two one-sided tests that two paired shares differ by less than a declared margin.

    Parameters
    ----------
    b, c
        Pairs in which only the first, or only the second, shows the event.
    n
        All pairs.
    margin
        Largest difference that counts as none, 0 < margin < 1.

    Without a discordant pair the Wald error is zero: p is 0, and the interval a point.

    Source: D. J. Schuirmann (1987), J. Pharmacokinet. Biopharm. 15:657-680; the Wald variance of a
    paired difference as in J.-P. Liu et al. (2002), Stat. Med. 21:231-245.

    Raises
    ------
    UserError
        For counts that do not fit, and a margin outside (0, 1).
    """
    from scipy.special import ndtr, ndtri

    check_count(b, n, "b")
    check_count(c, n, "c")
    if b + c > n:
        raise UserError(f"b + c = {b + c} exceeds n = {n}")
    if not (math.isfinite(margin) and 0.0 < margin < 1.0):
        raise UserError(f"margin must lie between 0 and 1, not {margin!r}")
    difference = (b - c) / n
    error = math.sqrt(max((b + c) / n - difference * difference, 0.0) / n)
    half = float(ndtri(0.5 + TOST_CONFIDENCE / 2.0)) * error
    if error == 0.0:
        p = 0.0 if abs(difference) < margin else 1.0
    else:
        p = float(ndtr((abs(difference) - margin) / error))
    return Equivalence(difference, p, difference - half, difference + half)
