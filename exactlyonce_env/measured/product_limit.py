"""The product-limit estimate with delayed entry, and its 95 % limits.

Kaplan and Meier, "Nonparametric estimation from incomplete observations", JASA 53 (1958), 457-481;
with left truncation the risk set at t holds the rows that have entered before t and not left
before it.  Pointwise limits by the log-log transform of Greenwood's variance (Kalbfleisch and
Prentice, "The Statistical Analysis of Failure Time Data", 2nd ed., section 1.4.1); those of a
quantile by inverting them (Brookmeyer and Crowley, Biometrics 38 (1982), 29-41).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from exactlyonce_env.delay_laws import FloatArray

Z95 = 1.959963984540054
"""Normal quantile of 0.975."""

ROUNDING = 1e-10
"""A product of many ratios may miss a level such as 0.9 by its rounding; this much is forgiven."""


@dataclass(frozen=True)
class ProductLimit:
    """The estimated law of the delays longer than ``observed_from_s``, until ``last_observed_s``.

    Arrays have one entry for each distinct time at which a delay ended (m,).  ``left_out_rows``
    were watched only in stretches that the risk set's gaps separate from the stretch used.
    """

    times_s: FloatArray
    ended: npt.NDArray[np.int64]
    at_risk: npt.NDArray[np.int64]
    cdf: FloatArray
    low: FloatArray
    high: FloatArray
    observed_from_s: float
    last_observed_s: float
    left_out_rows: int

    def quantile(self, p: float) -> tuple[float | None, float | None, float | None]:
        """Smallest time at which the cdf reaches ``p``, and its limits; None where not reached."""
        return tuple(  # type: ignore[return-value]
            self._first(curve >= p - ROUNDING) for curve in (self.cdf, self.high, self.low)
        )

    def _first(self, reached: npt.NDArray[np.bool_]) -> float | None:
        return float(self.times_s[int(np.argmax(reached))]) if reached.any() else None


def product_limit(
    times_s: FloatArray, completed: npt.NDArray[np.bool_], entry_s: FloatArray | None = None
) -> ProductLimit:
    """Estimate the law of a delay from right-censored, possibly left-truncated rows.

    Parameters
    ----------
    times_s
        (n,) float64 [s]: when the row was last seen.
    completed
        (n,) bool: whether the delay ended then; at least one row did.
    entry_s
        (n,) float64 [s], each below its time: a row is at risk on (entry, time].

    Notes ----- With delayed entry the risk set may run empty while later rows are still to enter.
    What happens in such a gap is unknown, and an estimate carried across it would claim that
    everything had landed (or that nothing could).  The stretch between gaps in which the most
    delays ended is used alone, and the law is then the conditional one from that stretch's first
    entry on.
    """
    start, end = _stretch(times_s, completed, entry_s)
    inside = (times_s > start) & (times_s <= end)
    left_out = int(times_s.size - np.count_nonzero(inside))
    exits = np.sort(times_s[inside])
    times, counts = np.unique(times_s[inside & completed], return_counts=True)
    entered = (
        np.full(times.shape, exits.size)
        if entry_s is None
        else np.searchsorted(np.sort(entry_s[inside]), times, side="left")
    )
    at_risk = entered - np.searchsorted(exits, times, side="left")
    ended = counts.astype(np.int64)
    survival = np.asarray(np.cumprod(1.0 - ended / at_risk), dtype=np.float64)
    low, high = _limits(survival, ended, at_risk)
    return ProductLimit(
        times_s=times,
        ended=ended,
        at_risk=at_risk.astype(np.int64),
        cdf=1.0 - survival,
        low=low,
        high=high,
        observed_from_s=start,
        last_observed_s=float(exits[-1]),
        left_out_rows=left_out,
    )


def _stretch(
    times_s: FloatArray, completed: npt.NDArray[np.bool_], entry_s: FloatArray | None
) -> tuple[float, float]:
    """First entry and last time of the gap-free stretch in which the most delays ended."""
    if entry_s is None:
        return 0.0, float(times_s.max())
    exits = np.sort(times_s)
    last = np.unique(exits)
    open_after = np.searchsorted(np.sort(entry_s), last, side="right") - np.searchsorted(
        exits, last, side="right"
    )
    ends = last[open_after == 0]
    which = np.searchsorted(ends, times_s, side="left")
    best = int(np.argmax(np.bincount(which[completed], minlength=ends.size)))
    return float(entry_s[which == best].min()), float(ends[best])


def _limits(
    survival: FloatArray, ended: npt.NDArray[np.int64], at_risk: npt.NDArray[np.int64]
) -> tuple[FloatArray, FloatArray]:
    """Pointwise 95 % limits (m,), (m,) of the cdf.

    Where the estimate reaches 1 the variance is undefined: the lower limit stays where it was one
    step before, the upper one is 1.  If that is the first step, nothing is known: 0 and 1.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        greenwood = np.cumsum(ended / (at_risk * (at_risk - ended)))
        spread = Z95 * np.sqrt(greenwood) / np.log(survival)
        low = 1.0 - survival ** np.exp(spread)
        high = 1.0 - survival ** np.exp(-spread)
    sure = survival > 0.0
    if not sure.all():
        first = int(np.argmin(sure))
        low[first:] = low[first - 1] if first else 0.0
        high[first:] = 1.0
    return low, high
