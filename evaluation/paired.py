"""Policies compared on the same worlds.

All policies meet the same worlds, so every comparison is of pairs: the difference per world, not
the difference of two unrelated means. Functions here are pure and take arrays that are aligned by
world id; `require_same_worlds` is the guard in front of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evaluation.intervals import (
    CONFIDENCE,
    Estimate,
    paired_mean_interval,
    paired_share_interval,
)
from exactlyonce_env.errors import UserError

Columns = Mapping[str, NDArray[Any]]  # measure -> (n,) values; "world" -> (n,) int64 ids


@dataclass(frozen=True, slots=True)
class McNemar:
    """Exact McNemar test of one policy against the baseline on a yes/no measure."""

    only_policy: int  # b: worlds where only the policy has the event
    only_baseline: int  # c: worlds where only the baseline has it
    p: float  # two-sided
    p_holm: float  # adjusted over all policies compared with this baseline


@dataclass(frozen=True, slots=True)
class Comparison:
    """One policy against the baseline, over the worlds that both met."""

    policy: str
    baseline: str
    n: int  # worlds
    differences: Mapping[str, Estimate]  # measure -> policy minus baseline
    exactly_once: McNemar


def require_same_worlds(
    worlds: ArrayLike, baseline_worlds: ArrayLike, *, policy: str, baseline: str
) -> None:
    """Refuse two arrays of world ids that are not the same ids in the same order.

    Raises UserError naming both policies and where they first differ.
    """
    first, second = np.asarray(worlds), np.asarray(baseline_worlds)
    if np.array_equal(first, second):
        return
    who = f"policies {policy!r} and {baseline!r} cannot be paired"
    if np.array_equal(np.sort(first), np.sort(second)):
        raise UserError(f"{who}: the same worlds in another order, sort both by world id")
    missing = np.setdiff1d(second, first)
    extra = np.setdiff1d(first, second)
    if missing.size:
        raise UserError(
            f"{who}: {policy!r} lacks {missing.size} worlds of {baseline!r}, first {missing[0]}"
        )
    if extra.size:
        raise UserError(
            f"{who}: {baseline!r} lacks {extra.size} worlds of {policy!r}, first {extra[0]}"
        )
    raise UserError(f"{who}: a world id occurs more than once")


def paired_difference(
    values: ArrayLike, baseline: ArrayLike, *, confidence: float = CONFIDENCE
) -> Estimate:
    """Compute the mean of policy minus baseline over the same worlds, with its interval.

    Both are (n,) and aligned by world. Two bool arrays get Newcombe's interval for paired shares,
    numbers get the t-interval of the differences.

    Raises UserError when the lengths differ or nothing is there.
    """
    first, second = np.asarray(values), np.asarray(baseline)
    if first.dtype == np.bool_ and second.dtype == np.bool_:
        return paired_share_interval(*_pair_counts(first, second), confidence=confidence)
    return paired_mean_interval(first, second, confidence=confidence)


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """Compute the two-sided p-value of the exact McNemar test from the two discordant counts.

    Given b + c discordant pairs, b is binomial(b + c, 1/2) when neither side is better; p is twice
    the smaller tail, at most 1. No discordant pair: p = 1.

    Source: the exact conditional form of Q. McNemar (1947), Psychometrika 12:153-157.

    Raises UserError when a count is negative.
    """
    if only_first < 0 or only_second < 0:
        raise UserError(
            f"discordant counts must not be negative, got {only_first} and {only_second}"
        )
    from scipy.special import bdtr

    tail = bdtr(min(only_first, only_second), only_first + only_second, 0.5)
    return min(1.0, 2.0 * float(tail))


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """Adjust p-values by Holm's step-down rule, in the order given; (k,) in, (k,) out.

    The i-th smallest of k is multiplied by k - i (i from 0), then made non-decreasing and capped
    at 1. Holds the family-wise error under any dependence, and policies on the same worlds depend.

    Source: S. Holm (1979), Scand. J. Stat. 6:65-70.

    Raises UserError when a value lies outside [0, 1] or is NaN.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1:
        raise UserError(f"p-values must be one-dimensional, got shape {p.shape}")
    outside = p[~((p >= 0.0) & (p <= 1.0))]
    if outside.size:
        raise UserError(f"p-values must lie in [0, 1], got {outside[0]}")
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def regret(
    rewards: ArrayLike, clairvoyant_rewards: ArrayLike, *, confidence: float = CONFIDENCE
) -> Estimate:
    """Compute the mean reward that `clairvoyant` got beyond the policy on the same worlds.

    Both are (n,) and aligned by world. Zero is the best possible: no client can do better.

    Raises UserError as `paired_mean_interval` does.
    """
    return paired_mean_interval(clairvoyant_rewards, rewards, confidence=confidence)


def compare_to_baseline(
    episodes: Mapping[str, Columns],
    baseline: str,
    *,
    measures: Sequence[str],
    confidence: float = CONFIDENCE,
) -> list[Comparison]:
    """Compare every policy but the baseline with it, in the order given.

    `episodes` maps a policy to its columns: `world` (n,) int64, `exactly_once` (n,) bool and every
    name in `measures`. McNemar's test is made on `exactly_once`, Holm's correction over all the
    policies compared.

    Raises UserError for an unknown baseline, a missing column, or worlds that do not match.
    """
    if baseline not in episodes:
        raise UserError(f"unknown baseline {baseline!r}, choose from: {', '.join(episodes)}")
    others = [policy for policy in episodes if policy != baseline]
    reference = episodes[baseline]
    for policy in episodes:
        _require_columns(episodes[policy], ("world", "exactly_once", *measures), policy)
        require_same_worlds(
            episodes[policy]["world"], reference["world"], policy=policy, baseline=baseline
        )
    tables = [
        _pair_counts(episodes[policy]["exactly_once"], reference["exactly_once"])
        for policy in others
    ]
    p_values = [mcnemar_exact(table[1], table[2]) for table in tables]
    return [
        Comparison(
            policy=policy,
            baseline=baseline,
            n=sum(table),
            differences={
                name: paired_difference(
                    episodes[policy][name], reference[name], confidence=confidence
                )
                for name in measures
            },
            exactly_once=McNemar(table[1], table[2], p, float(p_holm)),
        )
        for policy, table, p, p_holm in zip(others, tables, p_values, holm(p_values), strict=True)
    ]


def _pair_counts(first: NDArray[Any], second: NDArray[Any]) -> tuple[int, int, int, int]:
    """Count pairs with (both, only the first, only the second, neither) of two (n,) bools."""
    if first.shape != second.shape:
        raise UserError(f"paired flags must match in number, got {first.size} and {second.size}")
    if first.dtype != np.bool_ or second.dtype != np.bool_:
        raise UserError(f"paired flags must be bool, got {first.dtype} and {second.dtype}")
    both = int(np.count_nonzero(first & second))
    only_first = int(np.count_nonzero(first)) - both
    only_second = int(np.count_nonzero(second)) - both
    return both, only_first, only_second, first.size - both - only_first - only_second


def _require_columns(columns: Columns, names: Iterable[str], policy: str) -> None:
    missing = [name for name in names if name not in columns]
    if missing:
        raise UserError(
            f"policy {policy!r} has no column {missing[0]!r}, it has: {', '.join(columns)}"
        )
