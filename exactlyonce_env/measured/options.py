"""What a user may say about a file of measured delays."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from exactlyonce_env.errors import UserError

UNITS = {"ms": 1000.0, "s": 1.0}
"""Units of a delay column, with how many of them make a second."""

DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|", "space": " "}
"""Delimiters by name; ``space`` stands for any run of blanks."""

ALL = "all"
"""The column name that takes every numeric column, as in a user x service matrix."""


@dataclass(frozen=True)
class DelayFileOptions:
    """How to read one file; everything left None is found in the file or asked for by an error.

    Attributes
    ----------
    column
        The delay column: a header's name, a number counted from 1, or ``all``.
    unit
        ``ms`` or ``s``; also that of ``censored_at``, the entry and the limit column.
    censored_at
        The client's time-out: values >= it never completed within it and are censored there.
    event_column
        1 or true = completed, 0 or false = still open at the time given (censored).
    entry_column
        Delayed entry: the row is known only because its delay exceeded this value (left
        truncation).
    limit_column
        A time-out that differs from row to row, in place of ``censored_at``.
    timeout_markers, drop_markers
        Values that stand for "timed out" and for "no request at all": a number, a word, or
        ``blank``.
    keep_zeros
        Zeros are real delays below the clock's resolution; they count as the least positive delay.
    header
        Whether the first line names the columns.
    delimiter
        One character, or a name in `DELIMITERS`.
    sheet
        Name of the sheet of a workbook.
    where
        ``column=pattern`` conditions that a row must all meet; shell wildcards are understood.
    """

    column: str | None = None
    unit: str | None = None
    censored_at: float | None = None
    event_column: str | None = None
    entry_column: str | None = None
    limit_column: str | None = None
    timeout_markers: tuple[str, ...] = ()
    drop_markers: tuple[str, ...] = ()
    keep_zeros: bool = False
    header: bool | None = None
    delimiter: str | None = None
    sheet: str | None = None
    where: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.unit is not None and self.unit not in UNITS:
            raise UserError(f"unknown unit {self.unit!r}; choose from {', '.join(UNITS)}")
        limit = self.censored_at
        if limit is not None and not (math.isfinite(limit) and limit > 0.0):
            raise UserError(f"--censored-at must be a number above 0, not {limit!r}")
        if limit is not None and self.limit_column is not None:
            raise UserError("give --censored-at or --limit-column, not both")
        both = set(self.timeout_markers) & set(self.drop_markers)
        if both:
            raise UserError(
                f"marker {min(both)!r} cannot mean both a time-out and no request; "
                "give it to --timeout-marker or --drop-marker"
            )
        if self.delimiter is not None and len(self.delimiter_character or "") != 1:
            raise UserError(
                f"--delimiter {self.delimiter!r} must be one character or one of "
                f"{', '.join(DELIMITERS)}"
            )
        for condition in self.where:
            if not condition.partition("=")[1]:
                raise UserError(f"--where {condition!r} must read column=pattern")

    @property
    def delimiter_character(self) -> str | None:
        """The delimiter itself, its name resolved."""
        return None if self.delimiter is None else DELIMITERS.get(self.delimiter, self.delimiter)

    def to_json(self) -> dict[str, Any]:
        """The options that were given, for a manifest."""
        given = {
            name: value for name, value in asdict(self).items() if value not in (None, (), False)
        }
        if self.header is False:
            given["header"] = False
        return {name: list(v) if isinstance(v, tuple) else v for name, v in given.items()}
