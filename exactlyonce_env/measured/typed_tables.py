"""Files that carry types: JSON lines, Parquet and xlsx workbooks."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from exactlyonce_env.errors import UserError
from exactlyonce_env.measured.options import DelayFileOptions
from exactlyonce_env.measured.tables import (
    Cells,
    RowsTable,
    Table,
    as_text,
    has_header,
    split_cells,
)


def json_lines(path: Path, text: str) -> RowsTable:
    """Read one JSON object or one bare number a line; nested objects give dotted names.

    A key that a line lacks is a blank cell.
    """
    names: dict[str, None] = {}
    records: list[dict[str, object]] = []
    places: list[str] = []
    bare = False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise UserError(
                f"{path.name} is malformed: line {number} is no JSON ({error})"
            ) from None
        if isinstance(value, Mapping):
            record = _flatten(value)
        elif isinstance(value, list):
            raise UserError(
                f"{path.name}: line {number} holds a list; each line must be one object or "
                "one number"
            )
        else:
            record, bare = {"": value}, True
        names.update(dict.fromkeys(record))
        records.append(record)
        places.append(f"line {number}")
    if not records:
        raise UserError(f"{path.name} is empty: it holds no line of data")
    if bare and len(names) > 1:
        raise UserError(f"{path.name} mixes bare numbers and objects; give every line one shape")
    rows = [[record.get(name) for name in names] for record in records]
    return RowsTable("jsonl", None if bare else tuple(names), rows, places)


def _flatten(record: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in record.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{name}."))
        else:
            flat[name] = value
    return flat


class ParquetTable(Table):
    """A Parquet file; only the columns asked for are read."""

    kind = "parquet"

    def __init__(self, path: Path, content: bytes) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq
        from pyarrow import types

        try:
            self._file = pq.ParquetFile(io.BytesIO(content))
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path.name} is no readable Parquet file: {error}") from None
        if self._file.metadata.num_rows == 0:
            raise UserError(f"{path.name} is empty: it holds no row")
        schema = self._file.schema_arrow
        self.names = tuple(schema.names)
        self.numeric = tuple(
            types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
            for kind in schema.types
        )

    def columns(self, indices: Sequence[int]) -> list[Cells]:
        """See `Table.columns`."""
        import pyarrow as pa

        names = self.names or ()
        table = self._file.read(columns=[names[i] for i in indices])
        cells = []
        for index in indices:
            column = table.column(names[index])
            if not self.numeric[index]:
                cells.append(split_cells(self.label(index), column.to_pylist()))
                continue
            numbers = column.cast(pa.float64(), safe=False).to_numpy()
            blank = column.is_null().to_numpy()
            odd = np.flatnonzero(~np.isfinite(numbers))
            words = {int(row): "" if blank[row] else as_text(float(numbers[row])) for row in odd}
            cells.append(
                Cells(self.label(index), np.where(np.isfinite(numbers), numbers, np.nan), words)
            )
        return cells

    def place(self, row: int) -> str:
        """See `Table.place`."""
        return f"row {row + 1}"


def workbook(path: Path, content: bytes, options: DelayFileOptions) -> RowsTable:
    """Read one sheet of an xlsx workbook."""
    import openpyxl

    try:
        book = openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=True)
    except Exception as error:  # openpyxl lets zip, XML and key errors through
        raise UserError(f"{path.name} is no readable xlsx workbook: {error}") from None
    sheets = [sheet.title for sheet in book.worksheets]
    if options.sheet is None and len(sheets) > 1:
        raise UserError(
            f"{path.name} has {len(sheets)} sheets; say --sheet and one of {', '.join(sheets)}"
        )
    if options.sheet is not None and options.sheet not in sheets:
        raise UserError(
            f"{path.name} has no sheet {options.sheet!r}; choose from {', '.join(sheets)}"
        )
    sheet = book[options.sheet or sheets[0]]
    places, rows = [], []
    for number, row in enumerate(sheet.iter_rows(values_only=True), 1):
        if any(cell is not None for cell in row):
            places.append(f"row {number}")
            rows.append(row)
    book.close()
    if not rows:
        raise UserError(f"{path.name} is empty: sheet {sheet.title!r} holds no row")
    width = max(map(len, rows))
    padded = [[*row, *[None] * (width - len(row))] for row in rows]
    header = has_header(padded, options.header, path.name)
    names = tuple(as_text(cell) for cell in padded[0]) if header else None
    if header and len(padded) == 1:
        raise UserError(f"{path.name} is empty: it holds a header and no row of data")
    found = "the first row is a header" if header else "no header; columns count from 1"
    skip = 1 if header else 0
    notes = (f"sheet {sheet.title!r}", found)
    return RowsTable("xlsx", names, padded[skip:], places[skip:], notes)
