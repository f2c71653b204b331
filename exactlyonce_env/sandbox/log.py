"""The file of ended episodes: one JSON line each, whole or not at all.  Privileged.

``DIR/episodes.jsonl`` holds what happened and how it was graded, and ``DIR/manifest.json`` what
wrote it.  Several processes may append to one folder at the same time.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import platform
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exactlyonce_env.errors import UserError
from exactlyonce_env.files import write_atomically
from exactlyonce_env.sandbox.behaviour import behaviour_of
from exactlyonce_env.sandbox.grading import Grade, grade
from exactlyonce_env.versions import version_of

if TYPE_CHECKING:
    from exactlyonce_env.sandbox.session import Session

__all__ = [
    "EPISODES",
    "FORMAT",
    "MEASURES",
    "EpisodeLog",
    "Episodes",
    "episode_record",
    "read_episodes",
]

FORMAT = "exactlyonce-episodes/1"
EPISODES = "episodes.jsonl"
MANIFEST = "manifest.json"

MEASURES = tuple(field.name for field in fields(Grade))
"""Names of the measures in a line."""

VARIANT = (
    "task",
    "instance",
    "write",
    "fault",
    "contract",
    "docs",
    "instruction",
    "operator",
    "options",
    "wrapper",
)
"""Names of the fields that say which world it was, and what stood between it and the agent."""

TAIL = 1 << 20
"""Bytes that are looked through at a time for the end of the last whole line."""


def episode_record(
    session: Session, *, wrapper: str = "none", ended_by: str = "", **more: Any
) -> dict[str, Any]:
    """The line of an ended episode, in JSON types.

    Parameters
    ----------
    session
        The episode; grading it lets every request under way arrive.
    wrapper
        What stood around the tools.
    ended_by
        ``finish``, ``budget``, ``nudges``, ``client`` (it went away) or ``server`` (it was
        stopped).
    more
        Further fields, such as the episode's id.
    """
    measures = grade(session).to_dict()
    calls = [
        {
            "tool": call.tool,
            "arguments": call.arguments,
            "began_s": call.began_s,
            "ended_s": call.ended_s,
            "error": call.reply.error,
            "status": call.reply.status,
            "text": call.reply.text,
            "focal": call.focal,
        }
        for call in session.calls
    ]
    return {
        "format": FORMAT,
        **more,
        "task": session.task.name,
        "instance": session.instance,
        "write": session.focal.name,
        "fault": session.fault,
        "contract": session.contract,
        "docs": session.docs,
        "instruction": "no-cue" if session.instructions == session.task.instruction else "default",
        "operator": session.operator,
        "options": session.options.model_dump(exclude_defaults=True),
        "wrapper": wrapper,
        "ending": session.ending.name.lower(),
        "ended_by": ended_by,
        "behaviour": behaviour_of(session),
        **measures,
        "reported": dict(session.finished),
        "calls": calls,
    }


class EpisodeLog:
    """Appends lines to the file of a folder.

    Each line is written in one piece and is on the disk when `append` returns, so a process that
    is killed loses no finished episode. What a crash of the machine left of a line is removed
    before the next one is written.

    Parameters
    ----------
    folder
        Made where there is none.
    command
        What was typed, for the manifest.

    Raises
    ------
    UserError
        Where the folder cannot be written or holds something else.
    """

    def __init__(self, folder: Path, command: Sequence[str] = ()) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _write_manifest(folder, command)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(folder / EPISODES, flags, 0o644)
            _sync_folder(folder)
        except OSError as error:
            raise UserError(f"{str(folder)!r} cannot be written: {error.strerror}") from None

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line and wait until it is on the disk.

        Raises
        ------
        OSError
            Where the disk is full; the file is then as it was before.
        """
        line = _line(record)
        with self._lock:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                end = _whole_lines(self._file)
                if os.write(self._file, line) != len(line):
                    os.ftruncate(self._file, end)
                    raise OSError(28, "No space left on device")
                os.fsync(self._file)
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Wait for a line that is being written, and close the file."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1


@dataclass(frozen=True)
class Episodes:
    """What a file of episodes holds.

    Attributes
    ----------
    rows
        The lines, in the order in which the episodes ended.
    torn
        Whether the file ends in part of a line, which is no episode.
    """

    rows: list[dict[str, Any]]
    torn: bool


def read_episodes(folder: Path) -> Episodes:
    """Read the episodes of a folder.

    Raises
    ------
    UserError
        Where there is no such file, or a line of it is no episode; part of a line is one only at
        the end of the file.
    """
    path = folder / EPISODES
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        what = "no such folder" if not folder.exists() else f"there is no {EPISODES} in it"
        raise UserError(f"{str(folder)!r}: {what}; `exactlyonce serve … --out` makes one") from None
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    lines = data.split(b"\n")
    rest = lines.pop()
    rows = [_episode(path, number, line) for number, line in enumerate(lines, 1)]
    return Episodes(rows, bool(rest))


def _episode(path: Path, number: int, line: bytes) -> dict[str, Any]:
    place = f"{str(path)!r}, line {number}"
    try:
        row = json.loads(line)
    except ValueError:
        raise UserError(f"{place}: not JSON; the line is damaged") from None
    if not isinstance(row, dict) or row.get("format") != FORMAT:
        raise UserError(f"{place}: no episode of the format {FORMAT}")
    missing = next((name for name in (*VARIANT, *MEASURES, "ending") if name not in row), None)
    if missing is not None:
        raise UserError(f"{place}: the field {missing!r} is missing")
    return row


def _line(record: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(record, allow_nan=False, separators=(",", ":"))
    except ValueError:  # an argument that JSON has no number for
        text = json.dumps(_finite(record), allow_nan=False, separators=(",", ":"))
    return text.encode("ascii") + b"\n"


def _finite(value: Any) -> Any:
    """The value with text in place of infinities and NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, list | tuple) else value


def _whole_lines(file: int) -> int:
    """Cut off what does not end in a newline; the length of what is left, in bytes."""
    size = end = os.fstat(file).st_size
    if size == 0 or os.pread(file, 1, size - 1) == b"\n":
        return size
    while end > 0:
        start = max(end - TAIL, 0)
        found = os.pread(file, end - start, start).rfind(b"\n")
        end = start
        if found >= 0:
            end = start + found + 1
            break
    os.ftruncate(file, end)
    return end


def _write_manifest(folder: Path, command: Sequence[str]) -> None:
    """Say beside the file what wrote it; a manifest that is there already stays."""
    path = folder / MANIFEST
    if path.exists():
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            found = None
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise UserError(f"{str(folder)!r} holds the results of something else")
        return
    document = {
        "format": FORMAT,
        "package_version": version_of("exactlyonce-env"),
        "versions": {
            "python": platform.python_version(),
            **{name: version_of(name) for name in ("numpy", "numba", "mcp", "uvicorn")},
        },
        "command": list(command),
        "started_utc": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "variant": list(VARIANT),
        "measures": list(MEASURES),
    }
    text = json.dumps(document, indent=2) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _sync_folder(folder: Path) -> None:
    """Make the names in the folder last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
