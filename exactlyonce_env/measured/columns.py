"""Which columns of a file hold the delay, the outcome and the entry times, and in which unit."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
import numpy.typing as npt

from exactlyonce_env.errors import UserError
from exactlyonce_env.measured.options import ALL, DelayFileOptions
from exactlyonce_env.measured.tables import Cells, Table, as_number

JMETER_TIMES = {"elapsed", "Latency", "Connect", "IdleTime"}
"""Columns of a JMeter results file that hold milliseconds."""

JMETER_OUTCOME = "success"
JMETER_CODE = "responseCode"

_MILLISECONDS = re.compile(r"(?:^|[^a-z])(?:ms|msec|msecs|millis|milliseconds)[)\]]?$", re.I)
_SECONDS = re.compile(r"(?:^|[^a-z])(?:s|sec|secs|seconds)[)\]]?$", re.I)
_CAMEL_CASE = re.compile(r"[a-z0-9](?:Ms|Millis)$")


@dataclass(frozen=True)
class Roles:
    """Column indices by role; ``delay`` has more than one for a whole matrix."""

    delay: tuple[int, ...]
    event: int | None
    entry: int | None
    limit: int | None
    notes: tuple[str, ...]


def assign(table: Table, options: DelayFileOptions, file: str) -> Roles:
    """Find the columns; a `UserError` that lists them where the delay could be more than one."""
    event = _optional(table, options.event_column, "event column")
    entry = _optional(table, options.entry_column, "entry column")
    limit = _optional(table, options.limit_column, "limit column")
    notes: list[str] = []
    if event is None and table.kind == "jtl" and JMETER_OUTCOME in (table.names or ()):
        event = table.index(JMETER_OUTCOME, "event column")
        notes.append(
            "JMeter results: success=false means censored at the time elapsed (--event-column)"
        )
    taken = {event, entry, limit} | {condition_column(table, text)[0] for text in options.where}
    numeric = [i for i, number in enumerate(table.numeric) if number and i not in taken]
    if options.column is not None:
        whole = options.column == ALL and ALL not in (table.names or ())
        delay = tuple(numeric) if whole else (table.index(options.column, "column"),)
        if not delay:
            raise UserError(f"{file} has no numeric column; the columns are {table.listing()}")
        return Roles(delay, event, entry, limit, tuple(notes))
    if table.kind == "jtl":
        return Roles((table.index("elapsed", "column"),), event, entry, limit, tuple(notes))
    if not numeric:
        first = table.columns([0])[0].words.get(0, "")
        raise UserError(
            f"{file} has no numeric column that could be a delay; the columns are "
            f"{table.listing()}; column 1 begins with {first!r} at {table.place(0)}; say which "
            "with --column"
        )
    if len(numeric) > 1:
        raise UserError(
            f"{file} has {len(numeric)} numeric columns: {table.listing(numeric)}; say which "
            f"holds the delays with --column NAME or NUMBER, or --column {ALL} for a whole matrix "
            "of delays"
        )
    if len(table.numeric) > 1:
        notes.append(f"{table.label(numeric[0])} is the only numeric one")
    return Roles((numeric[0],), event, entry, limit, tuple(notes))


def jmeter_failures(table: Table, success: Cells) -> list[str]:
    """Warn about failed rows that did get a response: they ended, which censoring does not say."""
    if JMETER_CODE not in (table.names or ()):
        return []
    codes = table.columns([table.index(JMETER_CODE, "column")])[0].numbers
    answered = [row for row, word in success.words.items() if word == "false" and codes[row] > 0]
    if not answered:
        return []
    return [
        f"failed rows with an HTTP status, so that a response did come: {len(answered)} (first: "
        f"{table.place(answered[0])}); they count as still open at the time elapsed"
    ]


def _optional(table: Table, column: str | None, role: str) -> int | None:
    return None if column is None else table.index(column, role)


def unit_of(table: Table, index: int) -> str | None:
    """Unit that a column's name gives away: ``delay_ms``, ``Latency (s)``, ``durationMs``."""
    name = table.names[index] if table.names else ""
    if table.kind == "jtl" and name in JMETER_TIMES:
        return "ms"
    if _MILLISECONDS.search(name) or _CAMEL_CASE.search(name):
        return "ms"
    return "s" if _SECONDS.search(name) else None


@dataclass(frozen=True)
class Unit:
    """The unit of the delays, whether it is a mere default, and what to tell about it."""

    name: str
    assumed: bool
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def unit(table: Table, roles: Roles, options: DelayFileOptions) -> Unit:
    """Settle the unit: what the user says, else what the column's name says, else seconds.

    Raises
    ------
    UserError
        Where the names of the columns disagree and the user says nothing.
    """
    said = {name for index in roles.delay if (name := unit_of(table, index)) is not None}
    entry_says = None if roles.entry is None else unit_of(table, roles.entry)
    if options.unit is not None:
        odd = sorted(name for name in said | {entry_says} if name not in (None, options.unit))
        warnings = [f"--unit {options.unit} was taken although a name says {name}" for name in odd]
        notes = (f"unit {options.unit}, as --unit says",)
        return Unit(options.unit, False, notes, tuple(warnings))
    name = min(said, default="s")
    if len(said) > 1 or entry_says not in (None, name):
        raise UserError(
            f"the names of the delay and entry columns ({table.listing(roles.delay, 4)}"
            + (f"; {table.listing([roles.entry])}" if roles.entry is not None else "")
            + ") do not agree on a unit; bring them to one and say --unit"
        )
    if said:
        return Unit(name, False, (f"unit {name}, by the column's name",), ())
    note = "unit s, by default, as neither --unit nor the column's name says it"
    return Unit("s", True, (note,), ())


def condition_column(table: Table, condition: str) -> tuple[int, str]:
    """Split ``column=pattern`` into the column's index and the pattern."""
    column, _, pattern = condition.partition("=")
    return table.index(column.strip(), "--where column"), pattern.strip()


def rows_where(table: Table, options: DelayFileOptions, file: str) -> npt.NDArray[np.bool_] | None:
    """Rows (n,) that meet all ``where`` conditions; None where there is no condition."""
    if not options.where:
        return None
    keep: npt.NDArray[np.bool_] | None = None
    for condition in options.where:
        index, pattern = condition_column(table, condition)
        cells = table.columns([index])[0]
        met = matches(cells, pattern, fnmatchcase)
        if not met.any():
            seen = sorted(set(list(cells.words.values())[:10000]))[:8]
            raise UserError(
                f"{file}: no row meets --where {condition!r}"
                + (f"; {cells.label} holds {', '.join(seen)}" if seen else "")
            )
        keep = met if keep is None else keep & met
    return keep


def matches(
    cells: Cells, pattern: str, same: Callable[[str, str], bool] | None = None
) -> npt.NDArray[np.bool_]:
    """Cells (n,) that equal a marker: as numbers if it is one, else as text; ``blank`` means "".

    ``same(text, pattern)`` replaces the comparison of text, which ignores case otherwise.
    """
    number = as_number(pattern)
    found = np.zeros(cells.numbers.shape, dtype=np.bool_)
    if number is not None:
        found |= cells.numbers == number
    wanted = "" if pattern.lower() == "blank" else pattern
    for row, word in cells.words.items():
        if same(word, wanted) if same else word.lower() == wanted.lower():
            found[row] = True
    return found
