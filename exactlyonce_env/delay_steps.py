"""The law of a measured delay: a step function that ends where the observation ended."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from exactlyonce_env.delay_laws import FloatArray, Law
from exactlyonce_env.errors import UserError


@dataclass(frozen=True)
class Landed:
    """How sure it is that a write in flight has landed by ``t_s``.

    ``value`` is None past the last observation: then only ``low`` is known, and ``note`` says why.
    ``low`` and ``high`` are the ends of the 95 % interval; None where the law came without one.
    """

    t_s: float
    value: float | None
    low: float | None
    high: float | None
    note: str | None = None


@dataclass(frozen=True, eq=False)
class _Steps:
    """The steps as arrays; compared by identity, so that equal laws need not compare arrays."""

    times_s: FloatArray
    cdf: FloatArray


class Empirical(Law):
    """A measured delay: a step function with an end, beyond which nothing is claimed.

    ``cdf[i]`` holds on [times_s[i], times_s[i+1]).  Where the last cdf is below 1 the remaining
    delays were still open at ``last_observed_s``; their quantiles are inf, and the sampler puts
    them at `exactlyonce_env.quantiles.BEYOND_S`.  If ``observed_from_s`` is above 0 (delayed
    entry), the law is that of the delays longer than it.
    """

    family: Literal["empirical"] = "empirical"
    times_s: tuple[float, ...] = Field(min_length=1, description="distinct delays, ascending [s]")
    cdf_steps: tuple[float, ...] = Field(
        alias="cdf", min_length=1, description="P(T <= times_s[i]), ascending, at most 1"
    )
    cdf_low: tuple[float, ...] | None = Field(None, description="lower end of the 95 % interval")
    cdf_high: tuple[float, ...] | None = Field(None, description="upper end of the 95 % interval")
    n: int = Field(0, ge=0, description="rows measured, censored ones included; 0 = not said")
    censored: int = Field(0, ge=0, description="rows still open when last seen")
    last_observed_s: float = Field(0.0, ge=0, description="longest observation [s]; 0 = last event")
    observed_from_s: float = Field(0.0, ge=0, description="delays up to here cannot be seen [s]")
    source: str = Field("", description="where it was measured")

    @model_validator(mode="after")
    def _is_a_distribution(self) -> Empirical:
        times, steps = np.array(self.times_s), np.array(self.cdf_steps)
        if times.shape != steps.shape:
            raise ValueError(f"times_s has {times.size} values and cdf {steps.size}; need as many")
        if times[0] < 0.0 or np.any(np.diff(times) <= 0.0):
            raise ValueError("times_s must be >= 0 and strictly ascending")
        if steps[0] <= 0.0 or steps[-1] > 1.0 or np.any(np.diff(steps) < 0.0):
            raise ValueError("cdf must be ascending with values above 0 and at most 1")
        for name, limits in (("cdf_low", self.cdf_low), ("cdf_high", self.cdf_high)):
            if limits is not None and len(limits) != times.size:
                raise ValueError(f"{name} has {len(limits)} values and times_s {times.size}")
        if self.censored > self.n:
            raise ValueError(f"censored={self.censored} must not exceed n={self.n}")
        if 0.0 < self.last_observed_s < times[-1]:
            raise ValueError(f"last_observed_s must not lie before the last delay, {times[-1]:g}")
        return self

    @cached_property
    def _steps(self) -> _Steps:
        return _Steps(np.array(self.times_s), np.array(self.cdf_steps))

    @property
    def last_event_s(self) -> float:
        """The longest delay that was seen to end [s]."""
        return self.times_s[-1]

    @property
    def horizon_s(self) -> float:
        """End of what was observed [s]: the last event or, if later, the last open row."""
        return max(self.last_observed_s, self.times_s[-1])

    @property
    def support_s(self) -> tuple[float, float]:
        """First event and last event; inf for the second where rows stayed open."""
        return self.times_s[0], self.times_s[-1] if self.cdf_steps[-1] >= 1.0 else np.inf

    def _quantile(self, u: FloatArray) -> FloatArray:
        times, steps = self._steps.times_s, self._steps.cdf
        return np.append(times, np.inf)[np.searchsorted(steps, u, side="left")]

    def _cdf(self, t: FloatArray) -> FloatArray:
        times, steps = self._steps.times_s, self._steps.cdf
        return np.concatenate(([0.0], steps))[np.searchsorted(times, t, side="right")]

    def _survival(self, t: FloatArray) -> FloatArray:
        return 1.0 - self._cdf(t)

    def _density(self, t: FloatArray) -> FloatArray:
        times = self._steps.times_s
        return np.where(np.isin(t, times), np.inf, np.where(t > times[-1], np.nan, 0.0))

    def landed(self, t_s: float) -> Landed:
        """Chance that a write has landed by ``t_s`` [s] with its 95 % interval.

        Past the last observation the value is None.  Between two steps of a thinned law the
        interval is wide enough for every step left out.
        """
        times, steps = self._steps.times_s, self._steps.cdf
        low = None if self.cdf_low is None else np.array(self.cdf_low)
        high = None if self.cdf_high is None else np.array(self.cdf_high)
        window = (self.observed_from_s, self.horizon_s)
        return landed_at(t_s, times, steps, low, high, window)


def landed_at(
    t_s: float,
    times_s: FloatArray,
    cdf: FloatArray,
    low: FloatArray | None,
    high: FloatArray | None,
    window_s: tuple[float, float],
) -> Landed:
    """`Landed` at ``t_s`` from a step function (arrays of one length) seen within ``window_s``."""
    if not t_s >= 0.0:
        raise UserError(f"a waiting time must be a number of seconds >= 0, not {t_s!r}")
    first_s, horizon_s = window_s
    if t_s <= first_s and first_s > 0.0:
        note = f"delays up to {first_s:g} s cannot show in this measurement (delayed entry)"
        return Landed(t_s, None, None, None, note)
    step = int(np.searchsorted(times_s, t_s, side="right")) - 1
    low_at = None if low is None else float(low[step]) if step >= 0 else 0.0
    if t_s > horizon_s:
        note = f"nothing was observed beyond {horizon_s:g} s"
        return Landed(t_s, None, low_at, None if high is None else 1.0, note)
    beyond = None
    if t_s > times_s[-1]:
        beyond = (
            f"no delay longer than {times_s[-1]:g} s was seen to end; rows beyond it stayed open"
        )
    high_at = None if high is None else float(high[max(step, 0)])
    return Landed(t_s, float(cdf[step]) if step >= 0 else 0.0, low_at, high_at, beyond)
