"""The fault of an episode: which write it meets, and what a drifted schema calls a field.

What the fault then does to the request is decided by `exactlyonce_env.sandbox.operations`.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from exactlyonce_env.errors import UserError
from exactlyonce_env.sandbox.contracts import FAULTS
from exactlyonce_env.sandbox.tools import BATCH, TOOLS, Path
from exactlyonce_env.vocabulary import Mode

if TYPE_CHECKING:
    from exactlyonce_env.sandbox.tasks import FocalWrite, Task

__all__ = ["Injector"]

RENAMED = {
    "text": "content",
    "description": "memo",
    "charge_id": "charge",
    "title": "subject",
    "body": "content",
    "status": "state",
    "row": "record",
    "rows": "records",
    "values": "record",
    "version": "release",
}
"""What a drifted schema calls a field."""


class Injector:
    """The fault of an episode and the write that it is attached to.

    Parameters
    ----------
    task, focal
        The task and its focal write.
    fault
        One of `FAULTS`.

    Attributes
    ----------
    seed
        Of the fault's draws.
    armed
        Whether the fault is still to come.
    triggered
        Whether the focal write was attempted.

    Raises
    ------
    UserError
        For ``partial_batch`` at a write that is no batch.
    """

    def __init__(self, task: Task, focal: FocalWrite, fault: str) -> None:
        if fault == "partial_batch" and focal.path != BATCH:
            raise UserError(f"partial_batch fits a batch; {task.name}'s {focal.name} is none")
        self.focal, self.fault = focal, fault
        self.seed = zlib.crc32(f"{task.name}/{task.instance}/{focal.name}/{fault}".encode())
        self.armed = fault != "ok"
        self.triggered = False
        self._matches_left = focal.nth
        self._drifted: set[str] = set()

    def meets(self, path: Path, arguments: Mapping[str, Any]) -> bool:
        """Whether this call is the n-th one that matches the focal write; told once a call."""
        focal = self.focal
        if path.name != focal.path or self._matches_left <= 0:
            return False
        if any(arguments.get(field) != value for field, value in focal.where.items()):
            return False
        self._matches_left -= 1
        if self._matches_left == 0:
            self.triggered = True
            return True
        return False

    def fire(self, tool: str) -> tuple[Mode, str]:
        """Take the fault out; its mode, and what the service says where it refuses for good."""
        self.armed = False
        mode = Mode(FAULTS.index(self.fault))
        if mode != Mode.SCHEMA_DRIFT:
            return mode, ""
        self._drifted.add(tool)
        field = _drifting_field(tool)
        return mode, f"HTTP 422: field {field!r} is now called {RENAMED[field]!r}"

    def in_old_words(self, tool: str, given: dict[str, Any]) -> dict[str, Any]:
        """After a schema drift the new name of the field means the same as the old one."""
        if tool in self._drifted:
            old = _drifting_field(tool)
            if RENAMED[old] in given and old not in given:
                given[old] = given.pop(RENAMED[old])
        return given


def _drifting_field(tool: str) -> str:
    return next(field for field in TOOLS[tool].properties if field in RENAMED)
