"""Signs that a file says less than it seems to: undeclared time-outs, a cut tail, likeness."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from exactlyonce_env.delay_laws import FloatArray
from exactlyonce_env.measured.options import UNITS

USUAL_TIMEOUTS_S = (0.5, 1, 2, 3, 5, 6, 10, 15, 20, 25, 29, 30, 45, 60, 90, 120, 180, 300, 600, 900)
"""Time-outs that clients and services are commonly set to [s]."""

JUST_ABOVE = 0.005  # a client gives up a few milliseconds after its time-out
JUST_BELOW = 0.01
PILE_ROWS = 3
TAIL_ROWS = 1000  # a maximum just below a round number means little in a small sample
SLOW_MEDIAN_S = 20.0
SLOW_MAXIMUM_S = 600.0
ALIKE = 0.2
ALIKE_ROWS = 100


def suspicions(
    times_s: FloatArray, completed: npt.NDArray[np.bool_], unit: str, unit_assumed: bool
) -> list[str]:
    """Warnings about delays ``times_s`` (n,) [s] of which ``completed`` (n,) were seen to end.

    Nothing is changed by them: what a value means is for the user to say.
    """
    ended = times_s[completed]
    found = []
    median, longest = float(np.median(ended)), float(ended.max())
    if unit_assumed and unit == "s" and (median > SLOW_MEDIAN_S or longest > SLOW_MAXIMUM_S):
        found.append(
            f"seconds were assumed: the median delay is {median:g} s and the longest "
            f"{longest:g} s; if the column is in milliseconds, say --unit ms"
        )
    if float(times_s.max()) <= longest:  # else rows were watched for longer: it is no limit
        found.extend(_limit(ended, longest, times_s.size, UNITS[unit]))
    return found


def alike_lines(matrix: FloatArray) -> list[str]:
    """Warn if columns (m,) or rows (n,) of a matrix (m, n) of delays each have their own level."""
    logs = np.log(np.where(matrix > 0.0, matrix, np.nan))
    spread = np.nanvar(logs)
    if not spread > 0.0 or min(matrix.shape) < 2:
        return []
    shares = {}
    for name, axis in (("columns", 1), ("rows", 0)):
        counts = (~np.isnan(logs)).sum(axis=axis)
        means = np.nansum(logs, axis=axis) / np.maximum(counts, 1)
        between = float(counts @ (means - np.nanmean(logs)) ** 2 / counts.sum() / spread)
        # Without any likeness, chance alone gives (lines - 1) / (cells - 1).
        if between > ALIKE + (counts.size - 1) / max(int(counts.sum()) - 1, 1):
            shares[name] = between
    if not shares:
        return []
    parts = " and ".join(f"{name} explain {share:.0%}" for name, share in shares.items())
    return [
        f"cells of one line of the matrix are alike ({parts} of the variance of the log delays), "
        "so the intervals are too narrow"
    ]


def _limit(ended: FloatArray, longest: float, n: int, per_second: float) -> list[str]:
    cap = next((c for c in USUAL_TIMEOUTS_S if c <= longest <= c * (1.0 + JUST_ABOVE)), None)
    above = 0 if cap is None else int((ended >= cap).sum())
    equal = int((ended == longest).sum())
    if cap is not None and above >= 2:
        return [
            f"{above} completed rows lie at or just above {cap:g} s, a usual time-out; if they "
            f"timed out, say --censored-at {cap * per_second:g}"
        ]
    if equal >= PILE_ROWS:
        return [
            f"{equal} completed rows share the longest delay, {longest:g} s; if that is a "
            f"time-out, say --censored-at {longest * per_second:g}"
        ]
    cut = next((c for c in USUAL_TIMEOUTS_S if c * (1.0 - JUST_BELOW) < longest < c), None)
    if cut is not None and n >= TAIL_ROWS:
        return [
            f"the longest delay, {longest:g} s, lies just below {cut:g} s; if longer ones were "
            "left out of the file, the tail is longer than it looks here"
        ]
    return []


def alike_neighbours(times_s: FloatArray) -> list[str]:
    """Warn if rows next to each other are alike; a sorted file cannot tell."""
    steps = np.diff(times_s)
    if times_s.size < ALIKE_ROWS or (steps >= 0.0).all() or (steps <= 0.0).all():
        return []
    logs = np.log(times_s)
    if logs.std() == 0.0:
        return []
    deviation = logs - logs.mean()
    likeness = float((deviation[1:] * deviation[:-1]).sum() / (deviation**2).sum())
    if likeness <= ALIKE:
        return []
    return [
        f"rows next to each other are alike (correlation {likeness:.2f} of the log delays), so the "
        "intervals are too narrow; several kinds of requests may be mixed (--where keeps one)"
    ]
