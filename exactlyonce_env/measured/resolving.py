"""Each value of a delay column completed, censored, dropped or refused, as the options say."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from exactlyonce_env.delay_laws import FloatArray
from exactlyonce_env.errors import UserError
from exactlyonce_env.measured import columns
from exactlyonce_env.measured.options import DelayFileOptions
from exactlyonce_env.measured.tables import Cells, Table

BoolArray = npt.NDArray[np.bool_]

OUTCOMES = {
    **dict.fromkeys(("true", "t", "yes", "y"), 1),
    **dict.fromkeys(("false", "f", "no", "n"), 0),
}
"""Words of an event column: 1 = completed, 0 = censored."""


class Resolver:
    """The delay column on its way to times: each value completed, censored, dropped or refused."""

    def __init__(
        self, file: str, table: Table, delay: Cells, copies: int, options: DelayFileOptions
    ) -> None:
        self._file = file
        self._table = table
        self._delay = delay
        self._copies = copies
        self._options = options
        self.notes: list[str] = []

    def resolve(
        self, keep: BoolArray | None, event: Cells | None, entry: Cells | None, limit: Cells | None
    ) -> tuple[FloatArray, BoolArray, FloatArray | None]:
        """Times, completion and entry times of the rows that remain, in the file's unit."""
        options, values = self._options, self._delay.numbers
        used = np.ones(values.size, dtype=np.bool_) if keep is None else np.tile(keep, self._copies)
        if keep is not None:
            self.notes.append(f"--where keeps {int(keep.sum())} of {keep.size} rows")
        dropped = used & self._any_marker(options.drop_markers, "--drop-marker")
        used &= ~dropped
        if options.drop_markers:
            self.notes.append(f"{int(dropped.sum())} rows dropped as no request (--drop-marker)")
        done = self._completed(event, used)
        if self._table.kind == "jtl":
            used &= ~self._failed_at_once(used & ~done)
        marked = used & self._any_marker(options.timeout_markers, "--timeout-marker")
        completed = done & ~marked
        usable = values > 0.0  # False for nan
        if options.keep_zeros and (used & (values == 0.0)).any():
            values = self._zeros_raised(values, used)
            usable = values > 0.0
        open_ended = used & ~completed & (marked | ~usable)
        self._refuse(used & ~open_ended & ~usable)
        limits = self._limits(limit, used, open_ended)
        if limits is not None:
            capped = used & (open_ended | (values >= limits))
            completed = completed & ~capped
            values = np.where(capped, limits, values)
            self.notes.append(f"{int(capped.sum())} rows reach the time-out and are censored there")
        if event is not None:
            self.notes.append(f"{int((used & ~done).sum())} rows censored by {event.label}")
        starts = None if entry is None else self._entries(entry, used, values, completed, limits)
        if starts is not None:
            used &= starts < values
        return values[used], completed[used], None if starts is None else starts[used]

    def _any_marker(self, markers: tuple[str, ...], option: str) -> BoolArray:
        found = np.zeros(self._delay.numbers.size, dtype=np.bool_)
        for marker in markers:
            hit = columns.matches(self._delay, marker)
            if not hit.any():
                self.notes.append(f"no cell equals {option} {marker}")
            found |= hit
        return found

    def _completed(self, event: Cells | None, used: BoolArray) -> BoolArray:
        """Rows (n,) that the event column calls completed; all of them without one."""
        if event is None:
            return np.ones(self._delay.numbers.size, dtype=np.bool_)
        outcome = np.where(event.numbers == 1.0, 1, np.where(event.numbers == 0.0, 0, -1))
        said = [OUTCOMES.get(word.lower(), -1) for word in event.words.values()]
        outcome[list(event.words)] = said
        outcome = np.tile(outcome, self._copies)
        strange = used & (outcome < 0)
        if strange.any():
            row = int(np.flatnonzero(strange)[0]) % event.numbers.size
            shown = event.words.get(row, f"{event.numbers[row]:g}")
            raise UserError(
                f"{self._file}: {int(strange.sum())} rows of the event {event.label} are neither "
                f"1/true (completed) nor 0/false (censored); the first is {shown!r}, "
                f"{self._table.place(row)}"
            )
        return outcome == 1

    def _failed_at_once(self, failed: BoolArray) -> BoolArray:
        """JMeter rows (n,) that failed within the clock's millisecond: watched for no time."""
        at_once = np.asarray(failed & (self._delay.numbers == 0.0))
        if at_once.any():
            self.notes.append(
                f"{int(at_once.sum())} rows failed after 0 ms and say nothing; left out"
            )
        return at_once

    def _zeros_raised(self, values: FloatArray, used: BoolArray) -> FloatArray:
        positive = values[used & (values > 0.0)]
        if positive.size == 0:
            raise UserError(f"{self._file}: {self._delay.label} holds no value above 0")
        least = float(positive.min())
        zeros = used & (values == 0.0)
        self.notes.append(
            f"{int(zeros.sum())} zeros taken as the least positive delay, {least:g} (--keep-zeros)"
        )
        return np.where(zeros, least, values)

    def _refuse(self, bad: BoolArray) -> None:
        """Raise for values that are no delay and that no option explains."""
        if not bad.any():
            return
        values, words = self._delay.numbers, self._delay.words
        blank = np.zeros_like(bad)
        worded = np.zeros_like(bad)
        for row, word in words.items():
            (worded if word else blank)[row] = True
        kinds = [
            (values < 0.0, "negative"),
            (worded, "no numbers"),
            (blank, "blank"),
            (values == 0.0, "zero"),
        ]
        kind, name = next((bad & kind, name) for kind, name in kinds if (bad & kind).any())
        row = int(np.flatnonzero(kind)[0])
        shown = words.get(row, "") if name in ("no numbers", "blank") else f"{values[row]:g}"
        marker = shown if shown and " " not in shown else f"'{shown}'" if shown else "blank"
        zeros = ", or --keep-zeros if the clock is too coarse" if name == "zero" else ""
        raise UserError(
            f"{self._file}: {int(kind.sum())} values of {self._delay.label} are {name} (first: "
            f"{self._place(row)}{f', {shown!r}' if shown else ''}); say --timeout-marker {marker} "
            f"with --censored-at X if they timed out, --drop-marker {marker} if they are no "
            f"request{zeros}"
        )

    def _limits(
        self, limit: Cells | None, used: BoolArray, open_ended: BoolArray
    ) -> FloatArray | None:
        """Time-outs (n,) of the rows, or None where none was given and none is needed."""
        size = self._delay.numbers.size
        if limit is not None:
            limits = np.tile(limit.numbers, self._copies)
            bad = used & ~(limits > 0.0)
            if bad.any():
                row = int(np.flatnonzero(bad)[0]) % limit.numbers.size
                raise UserError(
                    f"{self._file}: {int(bad.sum())} rows of the limit {limit.label} are not above "
                    f"0 (first: {self._table.place(row)})"
                )
            return limits
        if self._options.censored_at is not None:
            return np.full(size, self._options.censored_at)
        if open_ended.any():
            row = int(np.flatnonzero(open_ended)[0])
            raise UserError(
                f"{self._file}: {int(open_ended.sum())} rows timed out but do not say when (first: "
                f"{self._place(row)}); give --censored-at X, the time-out in the column's unit, or "
                "--limit-column"
            )
        return None

    def _entries(
        self,
        entry: Cells,
        used: BoolArray,
        values: FloatArray,
        completed: BoolArray,
        limits: FloatArray | None,
    ) -> FloatArray:
        """Entry times (n,); rows censored before they entered tell nothing and are left out."""
        starts = np.tile(entry.numbers, self._copies)
        bad = used & ~(starts >= 0.0)
        if bad.any():
            row = int(np.flatnonzero(bad)[0]) % entry.numbers.size
            raise UserError(
                f"{self._file}: {int(bad.sum())} rows of the entry {entry.label} are no number "
                f">= 0 (first: {self._table.place(row)})"
            )
        late = used & (starts >= values)
        at_limit = late & ~completed if limits is not None else np.zeros_like(late)
        wrong = late & ~at_limit
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise UserError(
                f"{self._file}: {int(wrong.sum())} rows enter at or after their own delay (first: "
                f"{self._place(row)}, entry {starts[row]:g}, delay {values[row]:g}); an entry time "
                "must lie before the delay"
            )
        if at_limit.any():
            self.notes.append(f"{int(at_limit.sum())} rows entered after the time-out; left out")
        return starts

    def _place(self, row: int) -> str:
        rows = self._delay.numbers.size // self._copies
        return self._table.place(row % rows)
