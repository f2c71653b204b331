"""How heavy the tail is: Hill's estimator, adjusted for censoring and delayed entry.

Above a threshold u a Pareto tail has survival (t / u)^-alpha.  Its maximum-likelihood index from
the rows longer than u is (delays seen to end) / sum log(t / max(entry, u)); without censoring that
is Hill's estimator (Annals of Statistics 3 (1975), 1163-1174), with it the adjusted one of
Beirlant et al. (Extremes 10 (2007), 151-174).  Given the exposure the number of ended delays is
Poisson, hence the interval from gamma quantiles.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from exactlyonce_env.delay_laws import FloatArray

LEAST_ENDED = 10
"""Fewer ended delays above the threshold give no usable index."""


@dataclass(frozen=True)
class TailIndex:
    """Tail index alpha with its 95 % interval, from the ``k`` longest rows.

    alpha <= 1 means an infinite mean.  ``at_other_k`` shows the estimate from half and from twice
    as many rows: where it moves far outside the interval, the tail is no power law over that
    range.
    """

    alpha: float
    low: float
    high: float
    k: int
    ended: int
    threshold_s: float
    at_other_k: dict[int, tuple[float, float, float]]

    @property
    def steady(self) -> bool:
        """Whether the intervals at the other k meet this one."""
        return all(
            low <= self.high and high >= self.low for _, low, high in self.at_other_k.values()
        )

    def to_json(self) -> dict[str, Any]:
        """All fields and ``steady``."""
        other = {
            str(k): {"alpha": alpha, "low": low, "high": high}
            for k, (alpha, low, high) in self.at_other_k.items()
        }
        return {**asdict(self), "at_other_k": other, "steady": self.steady}


def tail_index(
    times_s: FloatArray, completed: npt.NDArray[np.bool_], entry_s: FloatArray | None = None
) -> TailIndex | None:
    """Index of the tail from the n^(2/3) longest rows (a quarter of them at most).

    None where fewer than `LEAST_ENDED` delays above the threshold were seen to end.
    """
    k = int(min(np.ceil(times_s.size ** (2.0 / 3.0)), times_s.size // 4))
    main = _index(times_s, completed, entry_s, k)
    if main is None:
        return None
    ended, exposure, threshold = main
    others = {j: _index(times_s, completed, entry_s, j) for j in (k // 2, 2 * k)}
    at_other_k = {j: _interval(*found[:2]) for j, found in others.items() if found is not None}
    return TailIndex(*_interval(ended, exposure), k, ended, threshold, at_other_k)


def _interval(ended: int, exposure: float) -> tuple[float, float, float]:
    """The index and its 95 % interval from a Poisson count over an exposure."""
    from scipy.special import gammaincinv

    low = gammaincinv(ended, 0.025) / exposure
    high = gammaincinv(ended + 1, 0.975) / exposure
    return ended / exposure, float(low), float(high)


def _index(
    times_s: FloatArray, completed: npt.NDArray[np.bool_], entry_s: FloatArray | None, k: int
) -> tuple[int, float, float] | None:
    """Ended delays, exposure and threshold of the rows above the (k+1)-th longest."""
    if not 1 <= k < times_s.size:
        return None
    threshold = float(np.partition(times_s, -k - 1)[-k - 1])
    above = times_s > threshold
    start = np.full(times_s.shape, threshold) if entry_s is None else np.maximum(entry_s, threshold)
    exposure = float(np.log(times_s[above] / start[above]).sum())
    ended = int(np.count_nonzero(completed & above))
    if ended < LEAST_ENDED or exposure <= 0.0:
        return None
    return ended, exposure, threshold
