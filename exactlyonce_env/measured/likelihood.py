"""Rows of a sample as distinct values with counts, and the search for a maximum over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from exactlyonce_env.delay_laws import FloatArray

SEARCH_POINTS = 81

COARSE = 1000
"""Distinct values that suffice to find where a maximum lies."""


@dataclass(frozen=True)
class Likelihood:
    """Distinct values and their counts: times at which rows ended, were left open, and entered."""

    ended: FloatArray
    ended_n: FloatArray
    open: FloatArray
    open_n: FloatArray
    entry: FloatArray
    entry_n: FloatArray

    @classmethod
    def of(
        cls, times: FloatArray, completed: npt.NDArray[np.bool_], entry: FloatArray | None
    ) -> Likelihood:
        """Count the distinct values; entries of 0 condition on nothing and are left out."""
        return cls(
            *_counted(times[completed]),
            *_counted(times[~completed]),
            *_counted(np.array([]) if entry is None else entry[entry > 0.0]),
        )

    @property
    def events(self) -> float:
        """Number of delays that were seen to end."""
        return float(self.ended_n.sum())

    def sum_ended(self, function: Callable[[FloatArray], FloatArray]) -> float:
        """Sum of ``function`` over the delays that ended."""
        return float(self.ended_n @ function(self.ended))

    def sum_watched(self, function: Callable[[FloatArray], FloatArray]) -> float:
        """Sum over all last times less the sum over all entry times."""
        return float(
            self.ended_n @ function(self.ended)
            + self.open_n @ function(self.open)
            - self.entry_n @ function(self.entry)
        )

    def coarse(self) -> Likelihood:
        """A copy with at most `COARSE` values of each kind; the rows themselves if they are few."""
        if max(self.ended.size, self.open.size, self.entry.size) <= COARSE:
            return self
        return Likelihood(
            *_gathered(self.ended, self.ended_n),
            *_gathered(self.open, self.open_n),
            *_gathered(self.entry, self.entry_n),
        )

    def map(self, function: Callable[[FloatArray], FloatArray]) -> Likelihood:
        """The same rows with every time sent through an increasing function."""
        return Likelihood(
            function(self.ended), self.ended_n,
            function(self.open), self.open_n,
            function(self.entry), self.entry_n,
        )  # fmt: skip


def _counted(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    distinct, counts = np.unique(values, return_counts=True)
    return distinct, counts.astype(np.float64)


def _gathered(values: FloatArray, counts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The longest half of `COARSE` values as they are, the rest gathered into as many means.

    Where a law ends just above the longest row, its likelihood hangs on the longest few alone.
    """
    if values.size <= COARSE:
        return values, counts
    half = COARSE // 2
    short, short_n = values[:-half], counts[:-half]
    starts = np.linspace(0, short.size, half, endpoint=False).astype(np.int64)
    totals = np.add.reduceat(short_n, starts)
    means = np.add.reduceat(short * short_n, starts) / totals
    return np.concatenate((means, values[-half:])), np.concatenate((totals, counts[-half:]))


def maximise(
    of: Callable[[Likelihood], Callable[[float], float]],
    rows: Likelihood,
    low: float,
    high: float,
) -> tuple[float, float, bool]:
    """Best point on [low, high] of the smooth function ``of(rows)``, its value, and if on the rim.

    The search runs over a coarse copy of the rows; the rows themselves are asked only close to the
    best point found, or all over where that turns out not to hold it.
    """
    grid = np.linspace(low, high, SEARCH_POINTS)
    step = float(grid[1] - grid[0])
    coarse = rows.coarse()
    start, value, rim = _best(of(coarse), grid)
    if coarse is rows:
        return start, value, rim
    around = np.linspace(max(start - step, low), min(start + step, high), 3)
    point, value, edge = _best(of(rows), around)
    return (point, value, rim) if rim or not edge else _best(of(rows), grid)


def _best(value: Callable[[float], float], grid: FloatArray) -> tuple[float, float, bool]:
    """Best point of a smooth function, its value, and whether the best grid point is an end."""
    from scipy.optimize import minimize_scalar

    values = np.array([value(float(x)) for x in grid])
    best = int(np.argmax(np.where(np.isfinite(values), values, -np.inf)))
    bounds = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, grid.size - 1)])
    found = minimize_scalar(
        lambda x: -value(float(x)), bounds=bounds, method="bounded", options={"xatol": 1e-10}
    )
    return float(found.x), -float(found.fun), best in (0, grid.size - 1)
