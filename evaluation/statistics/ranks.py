"""Agreement of orders."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from evaluation.statistics.checks import is_count
from exactlyonce_env.errors import UserError

__all__ = ["Agreement", "kendall_tau_b"]

MAX_COMPLETIONS = 200_000
"""Completions of a side."""

MAX_ORDERS = 50_000
"""Pairs of orders that tau-b is computed of."""


@dataclass(frozen=True)
class Agreement:
    """Kendall's tau-b over every feasible completion.

    Attributes
    ----------
    low, high
        Smallest and largest value.
    undefined
        Completions in which one side is all ties, where tau-b does not exist.
    """

    low: float
    high: float
    undefined: int = 0


def kendall_tau_b(
    x: Sequence[float],
    y: Sequence[float],
    missing_x: Sequence[int] = (),
    missing_y: Sequence[int] = (),
) -> Agreement:
    """How far two orders of the same things agree; ties stay ties.

    Parameters
    ----------
    x, y
        A count of each thing under either variant.
    missing_x, missing_y
        How many further responses of each may have counted too; nothing: none.

    Source: M. G. Kendall (1945), Biometrika 33:239-251; computed by scipy.

    Raises
    ------
    UserError
        For lists of other lengths, numbers that are not finite, too many completions, and where
        tau-b exists in none of them.
    """
    if len(x) != len(y) or len(x) < 2:
        raise UserError(f"x and y need the same number, two or more, not {len(x)} and {len(y)}")
    for name, values in (("x", x), ("y", y)):
        if not all(math.isfinite(value) for value in values):
            raise UserError(f"{name} holds something that is no finite number")
    rooms = []
    for name, values, missing in (("missing_x", x, missing_x), ("missing_y", y, missing_y)):
        if missing and len(missing) != len(values):
            raise UserError(f"{name} needs {len(values)} numbers, not {len(missing)}")
        if not all(is_count(m) for m in missing):
            raise UserError(f"{name} must hold whole numbers from 0 on")
        rooms.append(list(missing) or [0] * len(values))
    if any(math.prod(m + 1 for m in room) > MAX_COMPLETIONS for room in rooms):
        raise UserError(f"a side has more than {MAX_COMPLETIONS:,} completions")
    # Only the order counts, and few orders come of many completions.
    orders = [
        Counter(
            _order([v + k for v, k in zip(values, more, strict=True)])
            for more in product(*(range(m + 1) for m in room))
        )
        for values, room in zip((x, y), rooms, strict=True)
    ]
    if len(orders[0]) * len(orders[1]) > MAX_ORDERS:
        raise UserError(f"the completions have more than {MAX_ORDERS:,} pairs of orders")
    found, undefined = [], 0
    for one, n_one in orders[0].items():
        for other, n_other in orders[1].items():
            value = _tau(one, other)
            if math.isnan(value):
                undefined += n_one * n_other
            else:
                found.append(value)
    if not found:
        raise UserError("tau-b is not defined: one side is all ties")
    return Agreement(min(found), max(found), undefined)


def _order(values: Sequence[float]) -> tuple[int, ...]:
    """The rank of each value among the different ones."""
    ranks = {value: rank for rank, value in enumerate(sorted(set(values)))}
    return tuple(ranks[value] for value in values)


def _tau(x: Sequence[float], y: Sequence[float]) -> float:
    from scipy.stats import kendalltau

    if len(set(x)) == 1 or len(set(y)) == 1:
        return math.nan
    return float(kendalltau(x, y, variant="b").statistic)
