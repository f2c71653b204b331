"""The layout of a run folder: names of files, what is there, and who may write.

    RUN/manifest.json
    RUN/episodes/policy=<name, percent-encoded>/part-<first>-<last>.parquet

`first` and `last` are the world ids of the part, both included.
"""

from __future__ import annotations

import os
import re
import sys
import weakref
from pathlib import Path
from urllib.parse import quote

from evaluation.world_ranges import WorldRange
from exactlyonce_env.errors import UserError

MAX_NAME_BYTES = 200  # encoded policy name; file systems allow 255 with the prefix

_PART_NAME = re.compile(r"^part-(\d+)-(\d+)\.parquet$")


def manifest_path(folder: Path) -> Path:
    """Return where the manifest of a run is."""
    return folder / "manifest.json"


def policy_folder(folder: Path, policy: str) -> Path:
    """Return where the parts of a policy are; every name has a folder of its own.

    Raises UserError when the name is empty or too long for a file system.
    """
    name = quote(policy, safe="")
    if not policy or len(name) > MAX_NAME_BYTES:
        raise UserError(
            f"policy name {policy[:40]!r} takes {len(name)} bytes as a folder name, "
            f"want 1 to {MAX_NAME_BYTES}"
        )
    return folder / "episodes" / f"policy={name}"


def part_path(folder: Path, policy: str, part: WorldRange) -> Path:
    """Return the file of a part; `part` is half-open, the name has both ends included."""
    name = f"part-{part[0]:09d}-{part[1] - 1:09d}.parquet"
    return policy_folder(folder, policy) / name


def list_parts(folder: Path, policy: str) -> list[WorldRange]:
    """List the policy's part files as sorted half-open ranges; half-written ones are passed."""
    where = policy_folder(folder, policy)
    if not where.is_dir():
        return []
    matches = (_PART_NAME.match(entry.name) for entry in where.iterdir())
    return sorted((int(match[1]), int(match[2]) + 1) for match in matches if match)


def require_run_or_empty(folder: Path) -> None:
    """Refuse a path that is neither a run, nor an empty folder, nor free.

    Raises UserError naming what stands in the way.
    """
    if not folder.exists() or manifest_path(folder).exists():
        return
    if not folder.is_dir():
        raise UserError(f"{folder} is a file, want a folder for the run")
    strangers = [entry.name for entry in folder.iterdir() if not _is_temporary(entry)]
    if strangers:
        raise UserError(
            f"{folder} is no run folder: it has {min(strangers)!r} but no manifest.json, "
            "choose an empty or a new folder"
        )


def remove_temporary(folder: Path) -> None:
    """Remove files that an interrupted writer left half-written."""
    for path in (*folder.glob(".*.tmp"), *folder.glob("episodes/*/.*.tmp")):
        path.unlink(missing_ok=True)


class FolderLock:
    """Keeps other writers out of a run folder, until `release` or the end of the process.

    The lock is on the folder itself, so a killed process leaves nothing to clean up. Windows has no
    such lock: two writers in one folder are not noticed there.

    Raises UserError when another writer has it.
    """

    def __init__(self, folder: Path) -> None:
        if sys.platform == "win32":
            self.release = lambda: None
            return
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            raise UserError(f"{folder} is being written by another command") from error
        self.release = weakref.finalize(self, os.close, handle)


def _is_temporary(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith(".tmp")
