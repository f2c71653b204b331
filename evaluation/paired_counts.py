"""Pairs of episodes of which some are missing: every way in which they may have gone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from evaluation.intervals import paired_share_interval
from evaluation.statistics.checks import or_why
from exactlyonce_env.errors import UserError

__all__ = ["PairCounts", "accounted", "count_pairs", "envelope"]

MAX_ASSIGNMENTS = 4_000_000
"""Numbers of discordant pairs whose tests are gone through."""


@dataclass(frozen=True)
class PairCounts:
    """Pairs by what is known of them.

    Attributes
    ----------
    both, only_a, only_b, neither
        Complete pairs, by which side succeeded.
    a_succeeded, a_failed
        Pairs whose B is missing, by how A went.
    b_succeeded, b_failed
        Pairs whose A is missing, by how B went.
    unknown
        Pairs of which both are missing.
    """

    both: int = 0
    only_a: int = 0
    only_b: int = 0
    neither: int = 0
    a_succeeded: int = 0
    a_failed: int = 0
    b_succeeded: int = 0
    b_failed: int = 0
    unknown: int = 0

    @property
    def complete(self) -> int:
        """Pairs of which both came to an end."""
        return self.both + self.only_a + self.only_b + self.neither

    @property
    def missing_a(self) -> int:
        """Pairs whose A is missing."""
        return self.b_succeeded + self.b_failed + self.unknown

    @property
    def missing_b(self) -> int:
        """Pairs whose B is missing."""
        return self.a_succeeded + self.a_failed + self.unknown

    @property
    def planned(self) -> int:
        """All pairs."""
        return self.complete + self.missing_a + self.missing_b - self.unknown


_KINDS = {
    (True, True): "both",
    (True, False): "only_a",
    (False, True): "only_b",
    (False, False): "neither",
    (True, None): "a_succeeded",
    (False, None): "a_failed",
    (None, True): "b_succeeded",
    (None, False): "b_failed",
    (None, None): "unknown",
}


def count_pairs(pairs: Iterable[tuple[bool | None, bool | None]]) -> PairCounts:
    """Count pairs of successes; None is missing."""
    counts = dict.fromkeys(_KINDS.values(), 0)
    for pair in pairs:
        counts[_KINDS[pair]] += 1
    return PairCounts(**counts)


def accounted(pairs: PairCounts) -> dict[str, Any]:
    """How many pairs were planned, how many are missing, and their `envelope`."""
    return {
        "planned": pairs.planned,
        "missing_a": pairs.missing_a,
        "missing_b": pairs.missing_b,
        "incomplete": pairs.planned - pairs.complete,
        "envelope": or_why(lambda: envelope(pairs)),
    }


def envelope(pairs: PairCounts) -> dict[str, Any]:
    """What the missing episodes may have done to the difference in success, B minus A.

    Returns
    -------
    ``difference``: smallest and largest over every assignment; ``ci``: the outermost limits of
    Newcombe's intervals of these two; ``mcnemar_p``: smallest and largest p of the exact test over
    every assignment.

    Raises
    ------
    UserError
        For no pair, and where there are too many assignments to go through.
    """
    if not pairs.planned:
        raise UserError("no pair was planned")
    # Where one side is known, the pair may be discordant one way only.
    for_a, for_b, either = (
        pairs.a_succeeded + pairs.b_failed,
        pairs.a_failed + pairs.b_succeeded,
        pairs.unknown,
    )
    worst = paired_share_interval(
        pairs.both + pairs.b_succeeded,
        pairs.only_b,
        pairs.only_a + for_a + either,
        pairs.neither + pairs.a_failed,
    )
    best = paired_share_interval(
        pairs.both + pairs.a_succeeded,
        pairs.only_b + for_b + either,
        pairs.only_a,
        pairs.neither + pairs.b_failed,
    )
    return {
        "difference": [worst.value, best.value],
        "ci": [worst.low, best.high],
        "mcnemar_p": _tests(pairs.only_a, pairs.only_b, for_a, for_b, either),
    }


def _tests(only_a: int, only_b: int, for_a: int, for_b: int, either: int) -> list[float]:
    """Smallest and largest p of the exact McNemar test over every feasible number of pairs."""
    from scipy.special import bdtr

    if (for_a + either + 1) * (for_b + either + 1) > MAX_ASSIGNMENTS:
        raise UserError(f"more than {MAX_ASSIGNMENTS:,} assignments of the missing episodes")
    more_a, more_b = np.meshgrid(
        np.arange(for_a + either + 1), np.arange(for_b + either + 1), indexing="ij"
    )
    feasible = np.maximum(more_a - for_a, 0) + np.maximum(more_b - for_b, 0) <= either
    a, b = only_a + more_a[feasible], only_b + more_b[feasible]
    p = np.minimum(1.0, 2.0 * bdtr(np.minimum(a, b), a + b, 0.5))
    return [float(p.min()), float(p.max())]
