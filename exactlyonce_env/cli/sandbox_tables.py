"""Tables of `exactlyonce grade` and `play`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from exactlyonce_env.sandbox.log import MEASURES, Episodes

__all__ = ["episodes_table", "episodes_words", "grade_table", "timeline_table"]


def episodes_table(found: Episodes) -> Table:
    """A row per episode."""
    table = Table(title="Episodes", title_justify="left")
    for name in ("task", "write", "fault", "contract", "wrapper", "ended", "behaviour"):
        table.add_column(name)
    for name in ("exactly once", "dup.", "omitted", "overclaim", "steps", "time [s]"):
        table.add_column(name, justify="right")
    for row in found.rows:
        unmet = "" if row["triggered"] or row["fault"] == "ok" else " (not met)"
        cells = (
            f"{row['task']}/{row['instance']}",
            row["write"],
            row["fault"] + unmet,
            row["contract"],
            row["wrapper"],
            row["ending"],
            row["behaviour"],
            _words(row["exactly_once"]),
            str(row["duplicates"]),
            str(row["omissions"]),
            _words(row["overclaim"]),
            str(row["steps"]),
            f"{row['elapsed_s']:.0f}",
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table


def episodes_words(found: Episodes) -> str:
    """How many there are, and whatever is left out."""
    met = [row for row in found.rows if row["triggered"]]
    once = sum(row["exactly_once"] for row in met)
    words = (
        f"{len(found.rows)} episodes; the focal write was attempted in {len(met)}, "
        f"{once} of which ended exactly once"
    )
    if found.torn:
        words += "; the file ends in part of a line, which is no episode"
    return words


def timeline_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What was seen beside what happened."""
    table = Table(title="What really happened", title_justify="left")
    table.add_column("time [s]", justify="right", no_wrap=True)
    table.add_column("what you saw")
    table.add_column("what happened")
    for row in rows:
        table.add_row(f"{row['time_s']:g}", Text(row["seen"]), Text(row["happened"]))
    return table


def grade_table(record: Mapping[str, Any]) -> Table:
    """The measures of one episode."""
    table = Table(title="Grade", title_justify="left", show_header=False)
    table.add_row("ending", Text(record["ending"]))
    table.add_row("behaviour", Text(record["behaviour"]))
    for name in MEASURES:
        table.add_row(name, _words(record[name]))
    return table


def _words(value: bool | float) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else f"{value:g}"
