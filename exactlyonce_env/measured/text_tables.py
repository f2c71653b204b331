"""Delimited text: comma, semicolon, tab, pipe or blanks between cells, with or without a header."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from exactlyonce_env.errors import UserError
from exactlyonce_env.measured.options import DELIMITERS, DelayFileOptions
from exactlyonce_env.measured.tables import (
    SAMPLE_ROWS,
    Cells,
    Table,
    has_header,
    mostly_numbers,
    split_cells,
)

JMETER_NAMES = {"timeStamp", "elapsed"}
"""Columns that every JMeter results file with a header has."""

SNIFF_LINES = 200


class TextTable(Table):
    """A delimited text file; only the columns asked for are kept."""

    def __init__(self, path: Path, text: str, options: DelayFileOptions) -> None:
        self._file = path.name
        self._lines = text.splitlines()
        while self._lines and not self._lines[-1].strip():
            self._lines.pop()
        self._start = _first_line(self._lines)
        if self._start == len(self._lines):
            raise UserError(f"{self._file} is empty: it holds no line of data")
        self._delimiter = options.delimiter_character or _delimiter(
            self._file, self._lines[self._start :], path.suffix.lower()
        )
        self._places: list[int] = []
        sample = [row for _, row in islice(self._split(), SAMPLE_ROWS)]
        self._width = _width(sample)
        self._check_width(self._start + 1, sample[0])
        sample = [row[: self._width] for row in sample if len(row) >= self._width]
        if self._width == 1:
            self._delimiter = ""
        header = has_header(sample, options.header, self._file)
        self.names = tuple(name.strip() for name in sample[0]) if header else None
        body = sample[1:] if header else sample
        if not body:
            raise UserError(f"{self._file} is empty: it holds a header and no line of data")
        self.numeric = tuple(mostly_numbers(row[i] for row in body) for i in range(self._width))
        self.kind = "jtl" if set(self.names or ()) >= JMETER_NAMES else "text"
        self.notes = self._findings()

    def _findings(self) -> tuple[str, ...]:
        found = ["the first line is a header" if self.names else "no header; columns count from 1"]
        if self._width > 1:
            name = next((n for n, d in DELIMITERS.items() if d == self._delimiter), None)
            found.append(f"{self._width} columns, delimiter {name or self._delimiter!r}")
        if self._start:
            found.append(f"skipped {self._start} leading comment or blank lines")
        return tuple(found)

    def _split(self) -> Iterator[tuple[int, list[str]]]:
        """Rows as (number of their last line, cells).

        A blank line is a blank cell in a file of one column and nothing in any other.
        """
        lines = self._lines[self._start :]
        if self._delimiter == " ":
            for number, line in enumerate(lines, self._start + 1):
                if line.strip():
                    yield number, line.split()
            return
        if not self._delimiter:
            for number, line in enumerate(lines, self._start + 1):
                yield number, [line.strip().strip('"')]
            return
        reader = csv.reader((line + "\n" for line in lines), delimiter=self._delimiter)
        try:
            for row in reader:
                if row:
                    yield self._start + reader.line_num, row
        except csv.Error as error:
            at = self._start + reader.line_num
            raise UserError(f"{self._file} is malformed at line {at}: {error}") from None

    def columns(self, indices: Sequence[int]) -> list[Cells]:
        """See `Table.columns`."""
        kept: list[list[str]] = [[] for _ in indices]
        keep = [(cells.append, index) for cells, index in zip(kept, indices, strict=True)]
        places: list[int] = []
        rows = self._split()
        if self.names:
            next(rows)
        for number, row in rows:
            if len(row) != self._width:
                self._check_width(number, row)
            places.append(number)
            for append, index in keep:
                append(row[index])
        self._places = places
        return [split_cells(self.label(i), cells) for i, cells in zip(indices, kept, strict=True)]

    def _check_width(self, line: int, row: list[str]) -> None:
        """Accept cells too many that are blank (a trailing delimiter), refuse any other misfit."""
        if len(row) < self._width or any(cell.strip() for cell in row[self._width :]):
            raise UserError(
                f"{self._file} is malformed: line {line} has {len(row)} cells where the others "
                f"have {self._width}"
            )

    def place(self, row: int) -> str:
        """See `Table.place`."""
        return f"line {self._places[row]}"


def decode(path: Path, content: bytes) -> str:
    """Decode a text file, which must be UTF-8 (with or without a byte-order mark) or UTF-16."""
    utf16 = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    try:
        text = content.decode("utf-16" if utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path.name} is not UTF-8 text (byte {error.start}); choose from CSV, TSV, JMeter "
            "JTL, JSON lines, Parquet and xlsx, or convert it"
        ) from None
    if "\0" in text:
        raise UserError(f"{path.name} is not a text file: it holds zero bytes")
    return text


def _first_line(lines: list[str]) -> int:
    for number, line in enumerate(lines):
        if line.strip() and not line.lstrip().startswith("#"):
            return number
    return len(lines)


def _width(rows: list[list[str]]) -> int:
    """Number of columns: the usual one, without a last column that is blank in every row."""
    width = Counter(map(len, rows)).most_common(1)[0][0]
    shorter = min(width, len(rows[0]))
    if all(len(row) <= shorter or not any(c.strip() for c in row[shorter:]) for row in rows):
        width = shorter
    whole = [row for row in rows if len(row) >= width]
    while width > 1 and not any(row[width - 1].strip() for row in whole):
        width -= 1
    return width


def _delimiter(file: str, lines: list[str], suffix: str) -> str:
    """The delimiter of the first lines, " " for blanks, "" for a single column."""
    sample = [line for line in islice(lines, SNIFF_LINES) if line.strip()]
    shares = {d: _agreement(sample, d) for d in (",", ";", "\t", "|")}
    sure = [d for d, share in shares.items() if share == 1.0]
    if "\t" in sure:
        return "\t"
    if len(sure) > 1:
        names = [name for name, d in DELIMITERS.items() if d in sure]
        raise UserError(
            f"{file} splits evenly by {' and by '.join(names)}; say which with --delimiter"
        )
    if sure:
        return sure[0]
    # A malformed line must not turn a table into a single column of odd words.
    usual = {".csv": ",", ".tsv": "\t", ".jtl": ","}.get(suffix)
    if usual and shares[usual] >= 0.5:
        return usual
    if _agreement(sample, " ") == 1.0:
        return " "
    likely = max(shares, key=lambda d: shares[d])
    if shares[likely] >= 0.5:
        return likely
    return " " if _agreement(sample, " ") >= 0.5 else ""


def _agreement(lines: list[str], delimiter: str) -> float:
    """Share of lines with the usual number of cells; 0 if that is one cell.

    One blank cell too many (a trailing delimiter) counts as agreement.
    """
    rows = [
        line.split() if delimiter == " " else next(csv.reader([line], delimiter=delimiter), [])
        for line in lines
    ]
    widths = Counter(len(row) - (len(row) > 1 and not row[-1].strip()) for row in rows)
    full = Counter(map(len, rows)).most_common(1)[0]
    trimmed = widths.most_common(1)[0]
    width, count = max(full, trimmed, key=lambda pair: pair[1])
    return count / len(rows) if width > 1 else 0.0
