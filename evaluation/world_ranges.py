"""Sets of world ids as half-open ranges, the form in which they are asked for and stored."""

from __future__ import annotations

from collections.abc import Iterable

from exactlyonce_env.errors import UserError

WorldRange = tuple[int, int]  # half-open: (first id, last id + 1)


def merge_ranges(ranges: Iterable[WorldRange]) -> tuple[WorldRange, ...]:
    """Return the same ids as sorted, disjoint, non-touching half-open ranges.

    Raises UserError for a range that is empty or starts below 0.
    """
    merged: list[WorldRange] = []
    for start, stop in sorted((int(start), int(stop)) for start, stop in ranges):
        if start < 0 or stop <= start:
            raise UserError(f"world ids {start}:{stop} are no range, want 0 <= start < stop")
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return tuple(merged)


def subtract_ranges(
    ranges: Iterable[WorldRange], taken: Iterable[WorldRange]
) -> tuple[WorldRange, ...]:
    """Return the ids of `ranges` not in `taken`, as sorted disjoint half-open ranges."""
    left: list[WorldRange] = []
    holes = merge_ranges(taken)
    for start, stop in merge_ranges(ranges):
        for hole_start, hole_stop in holes:
            if hole_stop <= start or hole_start >= stop:
                continue
            if start < hole_start:
                left.append((start, hole_start))
            start = hole_stop
        if start < stop:
            left.append((start, stop))
    return tuple(left)


def format_ranges(ranges: Iterable[WorldRange]) -> str:
    """Write ranges as they are typed on the command line: `0:100,200:300`."""
    return ",".join(f"{start}:{stop}" for start, stop in ranges)
