"""What the page asks for, read from the store of a run.

Lists come from a light index of short fields, which is filled as it is asked for and grows with a
run that goes on.  The calls of an episode are read only when the episode is opened.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluation.cases.grading import OBSERVATIONS
from evaluation.llm.store import FILE, open_store
from evaluation.viewer.index import Index, Query
from evaluation.viewer.moments import moments_of
from evaluation.viewer.short import NAME, clipped, measures_of, short_of
from evaluation.viewer.talk import talk_of
from exactlyonce_env.errors import UserError
from exactlyonce_env.records import MEASURES
from exactlyonce_env.sandbox.log import MEASURES as SANDBOX_MEASURES

__all__ = ["Transcripts"]

FACTS = (
    "preset",
    "seed",
    "world",
    "context",
    "task",
    "instance",
    "write",
    "fault",
    "contract",
    "docs",
    "instruction",
    "operator",
    "wrapper",
    "repeat",
    "ending",
    "ended_by",
    "behaviour",
)
"""Fields that say which episode it is and how it ended, in the order in which they are shown."""

CASE_FACTS = ("case", "family", "domain", "requires_progress", "repeat")
PROBE_FACTS = ("design", "action", "idempotency_key", "repeat")
"""The same of contract cases and of the probe, which have no world of their own."""

MEASURES_OF = {
    "policy": MEASURES,
    "agent": SANDBOX_MEASURES,
    "case": ("duplicates", "strays", "confirmed"),
    "probe": MEASURES,
}
"""Measures that are shown of each kind of episode."""

NOT_FOUND = "no episode of that name has ended in this run"


class Transcripts:
    """The transcripts of a run; several threads may ask.

    Parameters
    ----------
    folder
        The run folder.

    Raises
    ------
    UserError
        Where there is no such folder, or there are no transcripts in it.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            what = "is a file" if folder.exists() else "does not exist"
            raise UserError(f"the run folder {str(folder)!r} {what}")
        self.folder = folder
        self._lock = threading.Lock()
        self._store = open_store(folder, readonly=True)
        self._index = Index(self._store, folder / FILE)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._index.close()
            self._store.close()

    def __enter__(self) -> Transcripts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self) -> dict[str, Any]:
        """Which run it is: the folder's name, and what its manifest says of it."""
        try:
            manifest = json.loads((self.folder / "manifest.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            manifest = {}
        known = manifest if isinstance(manifest, dict) else {}
        command = known.get("command")
        return {
            "name": self.folder.resolve().name,
            "preset": known.get("preset"),
            "seed": known.get("seed"),
            "status": known.get("status"),
            "command": " ".join(map(str, command)) if isinstance(command, list) else None,
        }

    def state(self) -> dict[str, int]:
        """How far the list is: ``version`` changes with each episode that ends."""
        with self._lock:
            return self._index.catch_up()

    def episodes(self, query: Query) -> dict[str, Any]:
        """A page of the list, with what the filters leave of each value.

        Returns
        -------
        dict
            ``rows``, ``facets``, ``totals`` of all rows that the filters leave, ``state`` and
            ``run``.
        """
        with self._lock:
            state = self._index.catch_up()
            return {"run": self.run(), "state": state, **self._index.page(query)}

    def episode(self, place: str, query: Query) -> dict[str, Any]:
        """An episode: its header, the conversation and the timeline.

        Parameters
        ----------
        place
            Its name in the store.
        query
            The list that it is looked at from, which says what comes before and after it.

        Raises
        ------
        KeyError
            Where no such episode has ended.
        """
        with self._lock:
            document = self._store.document(place)
            if document is None:
                raise KeyError(NOT_FOUND)
            calls, trouble = self._store.calls(place), self._store.trouble(place)
            self._index.catch_up()
            where = self._index.around(place, query)
        talk = talk_of(document, calls, trouble)
        return {
            "run": self.run(),
            "place": place,
            "around": where,
            "header": _header(place, document, calls),
            "talk": clipped(talk),
            "timeline": clipped(moments_of(document, talk)),
        }

    def call(self, place: str, number: int) -> dict[str, Any]:
        """A call as it went over the wire, request and response.

        Raises
        ------
        KeyError
            Where there is no such call.
        """
        with self._lock:
            calls = self._store.calls(place)
        if not 0 <= number < len(calls):
            raise KeyError("no such call")
        return calls[number]


def _header(
    place: str, document: Mapping[str, Any], calls: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What stands above an episode."""
    found = measures_of(document)
    names = MEASURES_OF[document["kind"]]
    return {
        **short_of(place, document),
        "facts": clipped(_facts(document), NAME),
        "reward": document.get("reward"),
        "measures": None if found is None else {name: found[name] for name in names},
        "checks": _checks(document, found),
        "seconds": sum(call["seconds"] for call in calls),
        "reported": clipped(document.get("reported") or None),
    }


def _facts(document: Mapping[str, Any]) -> dict[str, Any]:
    kind = document["kind"]
    names = {"case": CASE_FACTS, "probe": PROBE_FACTS}.get(kind, FACTS)
    found = {name: document[name] for name in names if document.get(name) not in (None, "")}
    levels = {} if kind != "probe" else document["cell"]
    return found | {name: level for name, level in levels.items() if level is not None}


def _checks(
    document: Mapping[str, Any], found: Mapping[str, Any] | None
) -> list[dict[str, Any]] | None:
    """The observations of a case, each with what was wrong."""
    if document["kind"] != "case" or found is None:
        return None
    return [
        {"name": name, "holds": found[name], "faults": found["faults"][name]}
        for name in OBSERVATIONS
    ]
