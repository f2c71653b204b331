"""Episodes of the sandbox on disk: a line each as they end, so that an interrupted run goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from evaluation.sandbox import Cell, Episode
from exactlyonce_env.errors import UserError
from exactlyonce_env.files import write_atomically
from exactlyonce_env.sandbox.grading import Grade

__all__ = ["append_episodes", "load_episodes", "write_table"]

FILE = "episodes.jsonl"
_CELL = tuple(field.name for field in fields(Cell))
_GRADE = tuple(field.name for field in fields(Grade))


def append_episodes(folder: Path, episodes: Sequence[Episode]) -> None:
    """Add episodes to the run; a line is there whole or not at all."""
    text = "".join(json.dumps(_flat(episode)) + "\n" for episode in episodes)
    with (folder / FILE).open("ab", buffering=0) as file:
        file.write(text.encode())
        os.fsync(file.fileno())


def load_episodes(folder: Path) -> dict[Cell, Episode]:
    """The episodes of a run so far; none where there is no run.

    A last line that was cut off by a kill is taken away from the file.

    Raises
    ------
    UserError
        For a file that holds something else.
    """
    path = folder / FILE
    if not path.exists():
        return {}
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        write_atomically(path, lambda temporary: temporary.write_bytes(whole))
    found = {}
    for number, line in enumerate(whole.decode(errors="replace").splitlines(), 1):
        try:
            entry = json.loads(line)
            cell = Cell(**{name: entry[name] for name in _CELL if name in entry})
            grade = Grade(**{name: entry[name] for name in _GRADE})
            found[cell] = Episode(cell, grade, str(entry["behaviour"]))
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f"{path.name}, line {number}, is no episode of the sandbox; choose another folder"
            ) from None
    return found


def write_table(folder: Path, episodes: Iterable[Episode]) -> None:
    """The episodes as ``episodes.parquet``, one row each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist([_flat(episode) for episode in episodes])
    write_atomically(folder / "episodes.parquet", lambda path: pq.write_table(table, path))


def _flat(episode: Episode) -> dict[str, object]:
    return asdict(episode.cell) | episode.grade.to_dict() | {"behaviour": episode.behaviour}
