"""The progress bar of long commands: on stderr, and only where somebody can watch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from exactlyonce_env.cli.output import progress_console

__all__ = ["Advance", "progress_bar"]

Advance = Callable[[str, int], None]
"""Takes what is going on, in words that are shown as they stand, and by how much it has gone on."""


@contextmanager
def progress_bar(total: int, unit: str = "episodes", begin: str = "starting") -> Iterator[Advance]:
    """A bar over ``total`` units, with a description that changes."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:<18}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=progress_console(), transient=True) as bar:
        task = bar.add_task(begin, total=total)

        def advance(words: str, by: int) -> None:
            bar.update(task, description=words, advance=by)

        yield advance
