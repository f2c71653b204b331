"""The whole answer about a file of measured delays, in seconds."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from exactlyonce_env.delay_laws import FloatArray
from exactlyonce_env.delay_steps import Empirical, Landed, landed_at
from exactlyonce_env.errors import UserError
from exactlyonce_env.measured.families import FITS, FamilyFit, fit_families
from exactlyonce_env.measured.options import DelayFileOptions
from exactlyonce_env.measured.product_limit import ProductLimit, product_limit
from exactlyonce_env.measured.reading import MeasuredDelays, read_delays
from exactlyonce_env.measured.saved import SavedDelays, is_saved, load_saved
from exactlyonce_env.measured.tail import TailIndex, tail_index

LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
"""Quantile levels of a report."""

MOST_STEPS = 4096
"""Steps of a saved law; more are thinned."""

MISFIT = 0.05
"""A family whose cdf is off by more than this (or than chance explains) does not fit."""

KOLMOGOROV_95 = 1.358
"""Asymptotic 95 % point of sqrt(n) times the greatest distance, for a law fixed beforehand."""

TAIL_MISFIT = 1.25
"""A fitted quantile outside the measured interval by more than this factor is warned about."""

FEW_EVENTS = 30


@dataclass(frozen=True)
class DelayFit:
    """What a file of measured delays says, and how surely."""

    measured: MeasuredDelays
    curve: ProductLimit
    families: tuple[FamilyFit, ...]
    tail: TailIndex | None

    @property
    def misfit_threshold(self) -> float:
        """Distance beyond which a family is said not to fit: 0.05 or, if greater, chance at n."""
        return max(MISFIT, KOLMOGOROV_95 / float(np.sqrt(self.curve.ended.sum())))

    @property
    def quantiles(self) -> dict[str, dict[str, float | None]]:
        """Quantiles [s] with 95 % limits by level; None where the estimate never reaches them."""
        names = ("value_s", "low_s", "high_s")
        return {f"{p:g}": dict(zip(names, self.curve.quantile(p), strict=True)) for p in LEVELS}

    def landed(self, t_s: float) -> Landed:
        """Chance that a request has ended by ``t_s`` [s], with its 95 % interval.

        The value is None beyond the last observation and, with delayed entry, before the first.
        """
        c = self.curve
        window = (c.observed_from_s, c.last_observed_s)
        return landed_at(t_s, c.times_s, c.cdf, c.low, c.high, window)

    def law(self) -> Empirical:
        """The estimate as a law of at most `MOST_STEPS` steps.

        Thinning moves mass to later steps only, so a delay is never made shorter; half of the
        steps kept are even in the cdf and half in the logarithm of the survival, which keeps the
        tail.  The upper limit of a kept step is that of the last step it stands for.
        """
        c = self.curve
        keep = _thinned(c.cdf)
        until = np.append(keep[1:], c.cdf.size) - 1
        return Empirical(
            times_s=tuple(c.times_s[keep].tolist()),
            cdf=tuple(c.cdf[keep].tolist()),
            cdf_low=tuple(c.low[keep].tolist()),
            cdf_high=tuple(np.maximum(c.high[keep], c.high[until]).tolist()),
            n=self.measured.n,
            censored=self.measured.censored,
            last_observed_s=c.last_observed_s,
            observed_from_s=c.observed_from_s,
            source=self.measured.source,
        )

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """How the file was read and how the figures are meant."""
        c, m = self.curve, self.measured
        notes = [*m.notes, "intervals are 95 % and take the rows as independent of each other"]
        said = m.options.censored_at, m.options.event_column, m.options.limit_column
        if m.censored == 0 and said == (None, None, None):
            notes.append(
                "no row is censored; if requests that timed out were left out of the file, the "
                "tail is longer than it looks here"
            )
        if c.observed_from_s > 0.0:
            notes.append(
                f"delayed entry: delays up to {c.observed_from_s:g} s cannot show, so everything "
                "here is about the longer ones"
            )
        without = sorted(set(FITS) - {fitted.family for fitted in self.families})
        if self.families and without:
            notes.append(f"no maximum likelihood in this sample: {', '.join(without)}")
        if c.cdf.size > MOST_STEPS:
            notes.append(
                f"the law keeps {_thinned(c.cdf).size} of {c.cdf.size} distinct times, rounded up"
            )
        return tuple(notes)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What a reader of the figures must know before trusting them."""
        c, m = self.curve, self.measured
        found = list(m.warnings)
        if c.left_out_rows:
            found.append(
                f"for a while no row at all is under observation; {c.left_out_rows} rows on the "
                f"far side of such a gap are left out, the figures cover "
                f"{c.observed_from_s:g} s to {c.last_observed_s:g} s"
            )
        events = int(c.ended.sum())
        if events < FEW_EVENTS:
            found.append(f"only {events} delays were seen to end; the intervals are wide")
        if c.cdf[-1] < 1.0:
            found.append(
                f"{1.0 - c.cdf[-1]:.3g} of the delays outlast the longest one seen to end, "
                f"{c.times_s[-1]:g} s; nothing is said about how long they take"
            )
        found.extend(self._fit_warnings())
        if self.tail is not None and not self.tail.steady:
            found.append("the tail index depends on how many rows it is taken from: no power law")
        return tuple(found)

    def _fit_warnings(self) -> list[str]:
        if not self.families:
            return ["all delays are equal, so no family was fitted"]
        limit = self.misfit_threshold
        best = self.families[0]
        closest = min(self.families, key=lambda fitted: fitted.max_distance)
        if closest.max_distance > limit:
            return [
                f"no family fits: the closest, {closest.family}, is off by up to "
                f"{closest.max_distance:.3f} in probability (limit {limit:.3f}); use the "
                "measured law"
            ]
        if best.max_distance > limit:
            return [
                f"the best family by AIC, {best.family}, is off by up to {best.max_distance:.3f} "
                f"in probability (limit {limit:.3f}); {closest.family} is closer"
            ]
        worst = best.worst_quantile
        if worst is not None and worst.excess > TAIL_MISFIT:
            return [
                f"{best.family} fits the bulk but not every quantile: at {worst.p:g} it says "
                f"{worst.fitted_s:.3g} s where {worst.measured_s:.3g} s was measured; use the "
                "measured law for long waits"
            ]
        return []

    def to_json(self) -> dict[str, Any]:
        """The report in JSON's types; times in seconds, None where nothing is known."""
        m, c = self.measured, self.curve
        return {
            "n": m.n,
            "censored": m.censored,
            "censored_share": m.censored / m.n,
            "quantiles": self.quantiles,
            "families": [fitted.to_json() for fitted in self.families],
            "misfit_threshold": self.misfit_threshold,
            "tail_index": None if self.tail is None else self.tail.to_json(),
            "last_event_s": float(c.times_s[-1]),
            "last_observed_s": c.last_observed_s,
            "observed_from_s": c.observed_from_s,
            "unit": m.unit,
            "column": m.column,
            "notes": list(self.notes),
            "warnings": list(self.warnings),
            "manifest": self.manifest,
        }

    @property
    def manifest(self) -> dict[str, Any]:
        """Name, hash, format and reading options of the source."""
        m = self.measured
        return {
            "source": m.source,
            "sha256": m.sha256,
            "kind": m.kind,
            "options": m.options.to_json(),
        }

    def saved(self) -> SavedDelays:
        """The law with its report, as `save` writes it."""
        return SavedDelays(self.law(), self.to_json(), self.manifest)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the law and its report as JSON; complete or not at all."""
        return self.saved().save(path)


def fit_delays(measured: MeasuredDelays) -> DelayFit:
    """Estimate the law, the tail and the parametric families of measured delays."""
    rows = measured.times_s, measured.completed, measured.entry_s
    curve = product_limit(*rows)
    families = fit_families(*rows, curve)
    return DelayFit(measured, curve, tuple(families), tail_index(*rows))


def open_delays(
    path: str | os.PathLike[str], options: DelayFileOptions | None = None
) -> SavedDelays:
    """Take a saved delay as it is, and fit a raw file first.

    Raises
    ------
    UserError
        As `read_delays` and `load_saved` do, and if a saved delay comes with reading options.
    """
    if is_saved(path):
        given = {} if options is None else options.to_json()
        if given:
            raise UserError(
                f"{os.fspath(path)!r} is a saved delay; {', '.join(given)} can only be said about "
                "the file it was made from"
            )
        return load_saved(path)
    return fit_delays(read_delays(path, options)).saved()


def _thinned(cdf: FloatArray) -> npt.NDArray[np.int64]:
    """Indices of at most `MOST_STEPS` steps, the last one among them."""
    if cdf.size <= MOST_STEPS:
        return np.arange(cdf.size)
    survival = 1.0 - cdf
    least = survival[survival > 0.0].min()
    half = MOST_STEPS // 2
    levels = np.concatenate(
        (
            np.linspace(cdf[0], cdf[-1], half),
            1.0 - np.geomspace(survival[0], least, half),
        )
    )
    kept = np.unique(np.minimum(np.searchsorted(cdf, levels), cdf.size - 1))
    return np.union1d(kept[: MOST_STEPS - 1], [cdf.size - 1]).astype(np.int64)
