"""What the services hold: records that were there before, and those that effects leave.

Everything is computed from the operations' effects, so the services and the ledger cannot disagree.
Privileged: `Records` sees all; an agent sees what the reading tools return.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from exactlyonce_env.sandbox.operations import Effect, Operation
from exactlyonce_env.sandbox.tools import BATCH, KEY, PATHS, Path

__all__ = ["Held", "Records", "canonical"]

PREFIXES = {
    "post": "post",
    "charge": "ch",
    "ticket": "T",
    "comment": "c",
    "mail": "mail",
    "row": "row",
    "run": "run",
    "refund": "re",
    "status": "st",
    "setting": "set",
}


@dataclass(frozen=True, slots=True)
class Held:
    """One record of a service.

    ``effect`` and ``operation`` are None for what was there before the episode.
    """

    id: str
    kind: str
    fields: Mapping[str, Any]
    at_s: float  # [s] when it came to be; before the episode: negative
    operation: Operation | None = None
    effect: Effect | None = None


def canonical(value: Any) -> str:
    """One text for equal JSON values."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


class Records:
    """The records of all services in one episode.

    Parameters
    ----------
    seeded
        What was there before, by kind: mappings with an ``id``.
    label
        Names the episode's instance; ids are derived from it.
    """

    def __init__(self, seeded: Mapping[str, list[Mapping[str, Any]]], label: str) -> None:
        self._label = label
        self._seeded = {
            kind: [
                Held(str(fields["id"]), kind, fields, -1e6 + k) for k, fields in enumerate(entries)
            ]
            for kind, entries in seeded.items()
        }
        self.operations: dict[tuple[Any, ...], Operation] = {}
        """Every write so far, by its intent: the path's name, then the intent fields' values."""
        self.removed: dict[str, float] = {}
        """Ids of records that were deleted or rolled back, and when [s]."""

    def of_path(self, path: Path) -> list[Operation]:
        """The operations of a path in the order of their first sends."""
        return [op for intent, op in self.operations.items() if intent[0] == path.name]

    def id_of(self, operation: Operation, effect: Effect, kind: str) -> str:
        """Id of the record that an effect leaves; it tells nothing of other effects."""
        name = canonical([self._label, operation.intent, *effect[1:]])
        return f"{PREFIXES[kind]}-{zlib.crc32(name.encode()) % 900000 + 100000}"

    def held(
        self, kind: str, now_s: float, lag_of: Mapping[str, float] | None = None, lag_s: float = 0.0
    ) -> list[Held]:
        """Records of a kind that a read at ``now_s`` [s] shows, oldest first.

        ``lag_of`` gives the visibility lag by path [s]; ``lag_s`` comes on top. Removed records are
        gone at once.
        """
        found = list(self._seeded.get(kind, ()))
        for path in PATHS.values():
            if path.kind != kind:
                continue
            horizon_s = now_s - lag_s - (lag_of or {}).get(path.name, 0.0)
            for operation in self.of_path(path):
                found += self._left(operation, path, now_s, horizon_s)
        if self.removed:
            found = [record for record in found if self.removed.get(record.id, math.inf) > now_s]
        found.sort(key=lambda record: record.at_s)
        return found

    def _left(
        self, operation: Operation, path: Path, now_s: float, horizon_s: float
    ) -> Iterator[Held]:
        for effect in operation.effects(now_s, horizon_s):
            fields = dict(operation.arguments[effect.sending])
            fields.pop(KEY, None)
            if path.name == BATCH:
                fields = {"table": fields["table"], "row": json.loads(operation.items[effect.item])}
            yield Held(
                self.id_of(operation, effect, path.kind),
                path.kind,
                fields,
                effect.at_s,
                operation,
                effect,
            )

    def find(self, kind: str, id_: str, now_s: float) -> Held | None:
        """The record of that id which exists at ``now_s`` [s], visible or not."""
        return next((record for record in self.held(kind, now_s) if record.id == id_), None)

    def seeded_ids(self, kind: str) -> set[str]:
        """Ids of the records that were there before."""
        return {record.id for record in self._seeded.get(kind, ())}
