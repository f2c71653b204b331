"""One write of an incident: its operation, the clients' views of it, and what was sent.

All but the views is privileged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy.typing as npt

from exactlyonce_env import rules
from exactlyonce_env.plan import Plan
from exactlyonce_env.presets import load_plan
from exactlyonce_env.sandbox.incidents import AttemptFate, Incident
from exactlyonce_env.sandbox.operations import Effect, Operation
from exactlyonce_env.vocabulary import MODE_NAMES, Mode, Response

__all__ = ["GROUPS", "Moment", "Sending", "Work", "happenings", "plan_of"]

GROUPS: dict[Response, tuple[Mode, ...]] = {
    Response.SUCCESS: (Mode.OK, Mode.REDELIVERY),
    Response.TIMEOUT: (Mode.TIMEOUT_PRE, Mode.TIMEOUT_POST, Mode.TIMEOUT_LATE),
    Response.SERVER_ERROR: (Mode.HTTP500_PRE, Mode.HTTP500_POST),
    Response.RATE_LIMITED: (Mode.RATE_LIMITED,),
    Response.UNAVAILABLE: (Mode.UNAVAILABLE, Mode.OUTAGE),
    Response.SCHEMA: (Mode.SCHEMA_DRIFT,),
    Response.CONFLICT: (Mode.SCHEMA_DRIFT,),
}
"""The fates that a response leaves open; a time-out's late one has the incident's delay."""


def plan_of(incident: Incident, write: str, response: Response) -> Plan:
    """The worlds that an honest client holds possible: the fates behind ``response``, equally.

    Raises
    ------
    UserError
        Where the contract excludes one of them.
    """
    stated = incident.stated(write)
    modes = list(GROUPS[response])
    if response == Response.SERVER_ERROR and stated.get("n_items", 1) > 1:
        modes.append(Mode.PARTIAL_BATCH)
    faults = {
        "original": {MODE_NAMES[mode]: 1.0 for mode in modes},
        "late_fixed_s": incident.late_s(write),
    }
    return load_plan(
        {
            "name": f"{incident.name}-{write}",
            "start": "fault",
            "contract": stated,
            "costs": incident.costs.model_dump(),
            "faults": faults,
        }
    )


class Moment(NamedTuple):
    """One line of the timeline: what a client did and saw, or what really happened."""

    time_s: float
    client: str | None
    seen: str | None
    happened: str | None
    rank: int = 1
    """Of two at the same time the one with the lower rank comes first."""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {name: getattr(self, name) for name in ("time_s", "client", "seen", "happened")}


@dataclass(frozen=True)
class Sending:
    """One sending of a write."""

    at_s: float  # [s]
    client: str
    fate: AttemptFate
    refused: bool  # by an object that is there already


@dataclass
class Work:
    """One write, the clients' views of it, and what was sent."""

    name: str
    operation: Operation
    stated: npt.NDArray[Any]
    """(1,) `CONTRACT` record: what the service says."""
    views: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    sendings: list[Sending] = field(default_factory=list)
    undone: set[Effect] = field(default_factory=set)
    false_permissions: int = 0

    def ledger(self, by_s: float = math.inf) -> list[Effect]:
        """Every execution by ``by_s`` [s], the further copies included, in order of time."""
        found = self.operation.effects(by_s)
        for effect in list(found):
            copies_s = self.sendings[effect.sending].fate.copies_s
            if effect.copy:
                first_s = effect.at_s - copies_s[0]
                found += [effect._replace(at_s=first_s + s) for s in copies_s[1:]]
        return sorted(effect for effect in found if rules.visible(effect.at_s, by_s))


def happenings(work: Work) -> Iterator[Moment]:
    """What became of each sending."""
    effects = work.ledger()
    acted = {effect.sending for effect in effects}
    at: dict[tuple[float, int, bool], list[int]] = {}
    for effect in effects:
        at.setdefault((effect.at_s, effect.sending, effect.copy), []).append(effect.item)
    for (at_s, sending, copy), items in at.items():
        which = f"{'a copy of ' if copy else ''}attempt {sending}"
        many = f" ({len(items)} items)" if work.stated["n_items"][0] > 1 else ""
        yield Moment(at_s, None, None, f"{work.name} is executed{many} by {which}", 0)
    for number, sent in enumerate(work.sendings):
        if number not in acted:
            text = f"attempt {number} of {work.name} {_why_nothing(sent)}"
            yield Moment(sent.at_s, None, None, text, 2)


def _why_nothing(sent: Sending) -> str:
    kind = sent.fate.kind
    if kind == Mode.TIMEOUT_PRE:
        return "is lost on its way"
    if kind == Mode.HTTP500_PRE:
        return "fails before it is executed"
    if not rules.commits(kind):
        return "is refused"
    if sent.refused:
        return "finds an earlier one's effect and changes nothing"
    return "is answered for by an earlier one with its key and changes nothing"
