"""From a file of measured delays to times in seconds, each completed or censored."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from exactlyonce_env.delay_laws import FloatArray
from exactlyonce_env.errors import UserError
from exactlyonce_env.measured import columns
from exactlyonce_env.measured.options import UNITS, DelayFileOptions
from exactlyonce_env.measured.resolving import BoolArray, Resolver
from exactlyonce_env.measured.saved import FORMAT
from exactlyonce_env.measured.suspicions import alike_lines, alike_neighbours, suspicions
from exactlyonce_env.measured.tables import Cells, Table
from exactlyonce_env.measured.text_tables import TextTable, decode
from exactlyonce_env.measured.typed_tables import ParquetTable, json_lines, workbook

FORMATS = "CSV, TSV, whitespace matrix, JMeter JTL (CSV), JSON lines, Parquet, xlsx"

MINIMUM_ROWS = 3


NOTHING_SAID = DelayFileOptions()


@dataclass(frozen=True)
class MeasuredDelays:
    """Delays as they were measured, in seconds.

    Attributes
    ----------
    times_s
        (n,) float64 > 0: the delay, or how long the row was watched without completing.
    completed
        (n,) bool: False = right-censored at ``times_s``.
    entry_s
        (n,) float64 with 0 <= entry < time: the row is known only because its delay exceeded this
        (left truncation); None without delayed entry.
    source, sha256, kind
        Name, hash and format of the file.
    column, unit
        What was read as the delay, and in which unit it stood in the file.
    notes, warnings
        What was found out about the file, and what looks wrong with it.
    """

    times_s: FloatArray
    completed: BoolArray
    entry_s: FloatArray | None = None
    source: str = ""
    sha256: str = ""
    kind: str = ""
    column: str = ""
    unit: str = "s"
    options: DelayFileOptions = NOTHING_SAID
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.times_s.size)

    @property
    def censored(self) -> int:
        """Number of rows that were still open when last seen."""
        return int(self.n - np.count_nonzero(self.completed))


def read_delays(
    path: str | os.PathLike[str], options: DelayFileOptions | None = None
) -> MeasuredDelays:
    """Read a file of measured delays.

    Parameters
    ----------
    path
        CSV, TSV, whitespace matrix, JMeter results, JSON lines, Parquet or xlsx; told by content.
    options
        What the file cannot say itself.

    Raises
    ------
    UserError
        If the file is missing, empty or malformed; if the delay column could be more than one; if
        it holds negative, zero, blank or non-numeric values that no option explains; if every row
        is censored; or if fewer than `MINIMUM_ROWS` rows remain.
    """
    options = options or NOTHING_SAID
    file = Path(path)
    content = _content(file)
    table = _table(file, content, options)
    roles = columns.assign(table, options, file.name)
    keep = columns.rows_where(table, options, file.name)
    special = [i for i in (roles.event, roles.entry, roles.limit) if i is not None]
    cells = table.columns([*roles.delay, *special])
    by_index = dict(zip(special, cells[len(roles.delay) :], strict=True))
    delay = _stack(cells[: len(roles.delay)], table)
    block = Resolver(file.name, table, delay, len(roles.delay), options)
    found = columns.unit(table, roles, options)
    unit, warnings = found.name, list(found.warnings)
    times, completed, entry = block.resolve(
        keep,
        None if roles.event is None else by_index[roles.event],
        None if roles.entry is None else by_index[roles.entry],
        None if roles.limit is None else by_index[roles.limit],
    )
    if times.size < MINIMUM_ROWS:
        raise UserError(
            f"{file.name}: {times.size} usable rows in {delay.label}; at least {MINIMUM_ROWS} are "
            "needed"
        )
    if not completed.any():
        raise UserError(
            f"{file.name}: all {times.size} rows are censored; not one delay was seen to end, so "
            "nothing can be estimated (check --censored-at and --event-column)"
        )
    measured_s = times / UNITS[unit]
    if len(roles.delay) > 1:
        warnings += alike_lines(delay.numbers.reshape(len(roles.delay), -1))
    else:
        warnings += alike_neighbours(measured_s)
    if table.kind == "jtl" and roles.event is not None and not completed.all():
        warnings += columns.jmeter_failures(table, by_index[roles.event])
    notes = (*table.notes, *roles.notes, *found.notes, *block.notes)
    suspect = suspicions(measured_s, completed, unit, found.assumed)
    return MeasuredDelays(
        times_s=measured_s,
        completed=completed,
        entry_s=None if entry is None else entry / UNITS[unit],
        source=file.name,
        sha256=hashlib.sha256(content).hexdigest(),
        kind=table.kind,
        column=delay.label,
        unit=unit,
        options=options,
        notes=notes,
        warnings=(*warnings, *suspect),
    )


def _content(file: Path) -> bytes:
    if not file.exists():
        raise UserError(f"file {str(file)!r} does not exist")
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {str(file)!r}: {error.strerror}") from None
    if not content.strip():
        raise UserError(f"{file.name} is empty")
    return content


def _table(file: Path, content: bytes, options: DelayFileOptions) -> Table:
    if content[:4] == b"PAR1":
        return ParquetTable(file, content)
    if content[:4] == b"PK\x03\x04":
        return workbook(file, content, options)
    text = decode(file, content)
    start = text.lstrip()[:1]
    suffix = file.suffix.lower()
    if start == "<":
        raise UserError(
            f"{file.name} is XML; save JMeter results as CSV "
            "(jmeter.save.saveservice.output_format=csv)"
        )
    if FORMAT in text[:64]:
        raise UserError(
            f"{file.name} is a saved delay already, not a file of measurements; give it to --delays"
        )
    if start == "{" or suffix in (".jsonl", ".ndjson"):
        return json_lines(file, text)
    if suffix in (".parquet", ".xlsx", ".xls", ".json"):
        raise UserError(f"{file.name} does not hold what its name says; choose from {FORMATS}")
    return TextTable(file, text, options)


def _stack(cells: Sequence[Cells], table: Table) -> Cells:
    """The columns of a matrix below one another, as one column."""
    if len(cells) == 1:
        return cells[0]
    rows = cells[0].numbers.size
    words = {k * rows + row: text for k, c in enumerate(cells) for row, text in c.words.items()}
    numbers = np.concatenate([c.numbers for c in cells])
    return Cells(f"all {len(cells)} numeric columns", numbers, words)
