"""A table of cells, whatever file it came from.

A reader finds the columns and their names; the cells of a column are split into numbers and the
rest, so that whatever is not a number keeps its text and its place for an error message.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from exactlyonce_env.delay_laws import FloatArray
from exactlyonce_env.errors import UserError

SAMPLE_ROWS = 2000
"""Rows that are looked at to tell numeric columns from others."""

NOT_NAMES = {"", "-", "nan", "na", "n/a", "null", "none", "inf", "true", "false", "timeout"}
"""Cells (lower case) that mark a missing value rather than name a column."""

NO_VALUE = NOT_NAMES - {"true", "false"}
"""Cells (lower case) that say nothing about whether their column holds numbers."""


@dataclass(frozen=True)
class Cells:
    """One column: ``numbers`` (n,) float64 with nan where the cell is no finite number.

    ``words`` maps the rows of those cells to their text; "" is a blank or a null.
    """

    label: str
    numbers: FloatArray
    words: dict[int, str]


class Table(ABC):
    """Rows and columns of one file.

    ``names`` are the column names, or None without a header; ``numeric`` says which columns hold
    numbers in most of their first `SAMPLE_ROWS` cells that hold a value; ``notes`` tells what was
    found out about the file.
    """

    kind: str
    names: tuple[str, ...] | None
    numeric: tuple[bool, ...]
    notes: tuple[str, ...] = ()

    @abstractmethod
    def columns(self, indices: Sequence[int]) -> list[Cells]:
        """The cells of the columns with these indices, from 0."""

    @abstractmethod
    def place(self, row: int) -> str:
        """Where data row ``row`` stands in the file, as a reader would look for it: ``line 17``."""

    def label(self, index: int) -> str:
        """A column's name and number, for messages."""
        name = self.names[index] if self.names else ""
        return f"column {name!r}" if name else f"column {index + 1}"

    def index(self, column: str, role: str) -> int:
        """Index of a column given by name or by number from 1."""
        if self.names and column in self.names:
            if self.names.count(column) > 1:
                raise UserError(f"{role} {column!r} names several columns; give its number from 1")
            return self.names.index(column)
        try:
            number = int(column)
        except ValueError:
            number = 0
        if not 1 <= number <= len(self.numeric):
            raise UserError(f"{role} {column!r} is not in the file; choose from {self.listing()}")
        return number - 1

    def listing(self, indices: Iterable[int] | None = None, at_most: int = 12) -> str:
        """Columns as a user may name them, shortened if there are many."""
        chosen = list(range(len(self.numeric)) if indices is None else indices)
        shown = [f"{i + 1}" + (f" ({self.names[i]})" if self.names else "") for i in chosen]
        if len(shown) > at_most:
            shown = [*shown[: at_most - 2], "...", shown[-1]]
        return ", ".join(shown)


class RowsTable(Table):
    """A table held as Python rows (workbooks and JSON lines)."""

    def __init__(
        self,
        kind: str,
        names: tuple[str, ...] | None,
        rows: Sequence[Sequence[object]],
        places: Sequence[str],
        notes: tuple[str, ...] = (),
    ) -> None:
        self.kind = kind
        self.names = names
        self.notes = notes
        self._rows = rows
        self._places = places
        width = len(rows[0]) if rows else len(names or ())
        self.numeric = tuple(mostly_numbers(row[i] for row in rows) for i in range(width))

    def columns(self, indices: Sequence[int]) -> list[Cells]:
        """See `Table.columns`."""
        return [split_cells(self.label(i), [row[i] for row in self._rows]) for i in indices]

    def place(self, row: int) -> str:
        """See `Table.place`."""
        return self._places[row]


def split_cells(label: str, cells: Sequence[object]) -> Cells:
    """Split raw cells (text or typed values) into numbers and words."""
    plain = _plain_numbers(cells)
    if plain is not None:
        return Cells(label, plain, {})
    words: dict[int, str] = {}
    numbers: list[float] = []
    known: dict[str, str] = {}  # most words come again and again
    for row, cell in enumerate(cells):
        if isinstance(cell, str) and cell in known:
            words[row] = known[cell]
            numbers.append(math.nan)
            continue
        number = as_number(cell)
        if number is None:
            words[row] = as_text(cell)
            number = math.nan
            if isinstance(cell, str):
                known[cell] = words[row]
        numbers.append(number)
    return Cells(label, np.array(numbers, dtype=np.float64), words)


def _plain_numbers(cells: Sequence[object]) -> FloatArray | None:
    """A column of text that holds finite numbers only, in one go; None for any other."""
    if not all(type(cell) is str and "_" not in cell for cell in cells):
        return None
    try:
        numbers = np.array(list(map(float, cells)), dtype=np.float64)  # type: ignore[arg-type]
    except ValueError:
        return None
    return numbers if np.isfinite(numbers).all() else None


def as_number(cell: object) -> float | None:
    """The finite number that a cell holds, or None."""
    if isinstance(cell, bool) or not isinstance(cell, str | int | float):
        return None
    if isinstance(cell, str) and "_" in cell:  # Python would read 1_000
        return None
    try:
        number = float(cell)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def as_text(cell: object) -> str:
    """A cell as text: blank for null, ``true`` / ``false`` for booleans."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return str(cell).strip()


def mostly_numbers(cells: Iterable[object]) -> bool:
    """Whether most of the first cells that hold a value at all are numbers."""
    filled = [
        as_number(cell)
        for cell in islice(cells, SAMPLE_ROWS)
        if as_text(cell).lower() not in NO_VALUE
    ]
    return 2 * sum(number is not None for number in filled) > len(filled)


def has_header(rows: Sequence[Sequence[object]], said: bool | None, file: str) -> bool:
    """Whether the first of ``rows`` names the columns; a `UserError` where it cannot be told.

    A line with a number in it is data.  A line of distinct words above numbers is a header, unless
    one of the words comes again below it in the same column, or marks a missing value.
    """
    if said is not None:
        return said
    first = [as_text(cell) for cell in rows[0]]
    if any(as_number(cell) is not None for cell in rows[0]):
        return False
    body = rows[1:SAMPLE_ROWS]
    if not any(mostly_numbers(row[i] for row in body) for i in range(len(first))):
        return False
    names = [name.lower() for name in first]
    # The first name may be blank: pandas writes its index so.
    strange = any(name in NOT_NAMES for name in names[1:]) or (
        names[0] in NOT_NAMES and (names[0] != "" or len(names) == 1)
    )
    repeated = any(name and name == as_text(row[i]) for i, name in enumerate(first) for row in body)
    if strange or repeated or len(set(names)) < len(names):
        shown = ",".join(first)[:60]
        raise UserError(
            f"{file}: cannot tell whether the first line ({shown!r}) is a header; "
            "say --header or --no-header"
        )
    return True
