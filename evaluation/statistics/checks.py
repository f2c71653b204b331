"""Checks that the statistics share: what is not defined is refused in one line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from exactlyonce_env.errors import UserError

__all__ = ["check_confidence", "check_count", "completions", "is_count", "or_why"]


LARGEST = 1e100
"""Numbers from here on are refused: their squares and sums would overflow."""

MAX_N = 1_000_000_000
"""Largest number of trials: every count up to it is exact in floating arithmetic."""


def is_count(number: Any) -> bool:
    """Whether something is a whole number from 0 on; true and false are none."""
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def check_count(count: int, n: int, name: str = "count", missing: int = 0) -> None:
    """Refuse a count that is no whole number in 0..n, or that leaves no room for what is missing.

    n is at most `MAX_N`.

    Raises
    ------
    UserError
        Naming the number.
    """
    for what, number in ((name, count), (f"n of {name}", n), (f"missing of {name}", missing)):
        if not is_count(number):
            raise UserError(f"{what} must be a whole number from 0 on, not {number!r}")
    if n < 1:
        raise UserError(f"n of {name} must be at least 1: there is no share of nothing")
    if n > MAX_N:
        raise UserError(f"n of {name} must be at most {MAX_N:,}")
    if count + missing > n:
        more = f" + {missing} missing" if missing else ""
        raise UserError(f"{name} {count}{more} exceeds n = {n}")


def check_confidence(confidence: float) -> None:
    """Refuse a confidence outside (0, 1).

    Raises
    ------
    UserError
        Naming it.
    """
    if not (math.isfinite(confidence) and 0.0 < confidence < 1.0):
        raise UserError(f"confidence must lie between 0 and 1, not {confidence!r}")


def completions(count: int, missing: int) -> Iterator[int]:
    """The counts that are possible when each missing response may have gone either way."""
    yield from range(count, count + missing + 1)


def or_why(analysis: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What an analysis finds, or ``why`` it is not defined for the data."""
    try:
        return analysis()
    except UserError as error:
        return {"why": str(error)}
