"""The parts of an incident's file: fates, writes, clients, steps.

What the kernel lacks is marked "beyond the kernel" in the field's description.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from exactlyonce_env import rules
from exactlyonce_env.vocabulary import MODE_NAMES, Mode, Response

__all__ = [
    "INTENT_KEY",
    "AttemptFate",
    "Departures",
    "Event",
    "Part",
    "ReadPath",
    "Step",
    "Worker",
    "Write",
]

INTENT_KEY = "intent"
"""Name of the key that stands for the intent: the one that policies pin."""

MAX_SENDINGS = 1000
"""Most sendings that one step stands for, all layers together."""

Shown = Literal[
    "success", "timeout", "server_error", "rate_limited", "unavailable", "schema", "conflict"
]


class Part(BaseModel):
    """Frozen, closed to unknown fields, finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class AttemptFate(Part):
    """What becomes of one attempt, whoever sends it; a mode's name alone will do."""

    mode: str = "ok"
    delay_s: float | None = Field(
        None, ge=0, le=1e8, description="from sending to execution; null: the time of a call"
    )
    queued: bool = Field(False, description="a late request holds its key from arrival on")
    items: int | None = Field(None, ge=1, description="how many of the items sent are executed")
    copies_s: tuple[float, ...] = Field(
        (),
        description="redelivered copies, each so long after the execution. Beyond the kernel from "
        "the second on: they execute where the first one does, so a key stops all or none",
    )
    shown_as: Shown | None = Field(
        None,
        description="beyond the kernel: an error that tells another tale than the mode's own, such "
        "as a definite refusal of what was accepted",
    )
    says: str | None = Field(None, description="what the client reads, in the report's words")
    times: int = Field(1, ge=1, le=MAX_SENDINGS, description="so many attempts in a row")

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, fate: Any) -> Any:
        return {"mode": fate} if isinstance(fate, str) else fate

    @model_validator(mode="after")
    def _possible(self) -> AttemptFate:
        if self.mode not in MODE_NAMES:
            raise ValueError(
                f"unknown fault mode {self.mode!r}; choose from {', '.join(MODE_NAMES)}"
            )
        kind = self.kind
        if rules.is_late(kind) and self.delay_s is None:
            raise ValueError(f"a fate of mode {self.mode} needs delay_s, when it is executed")
        if not rules.commits(kind) and (self.delay_s is not None or self.copies_s or self.queued):
            raise ValueError(
                f"mode {self.mode} executes nothing: leave delay_s, copies_s and queued out"
            )
        if kind == Mode.PARTIAL_BATCH and self.items is None:
            raise ValueError("a fate of mode partial_batch needs items, how many are executed")
        if self.copies_s and rules.is_late(kind) and not self.queued:
            raise ValueError("copies_s of a late attempt need queued: true")
        if list(self.copies_s) != sorted(self.copies_s) or any(s < 0 for s in self.copies_s):
            raise ValueError("copies_s must be times >= 0 in growing order")
        if kind == Mode.REDELIVERY and not self.copies_s:
            raise ValueError("a fate of mode redelivery needs copies_s, when the copies follow")
        return self

    @property
    def kind(self) -> Mode:
        """The mode's number."""
        return Mode[self.mode.upper()]

    @property
    def response(self) -> Response:
        """What the client sees of it where no key interferes."""
        if self.shown_as is not None:
            return Response[self.shown_as.upper()]
        return Response(rules.response_of(self.kind))


class ReadPath(Part):
    """One of several ways to read back."""

    readback: Literal["strong", "eventual", "authoritative"] = "strong"
    lag_s: float = Field(0.0, ge=0, le=1e9)


class Departures(Part):
    """Where the service does not do what it says.  Hidden from the client."""

    accepts_key: bool | None = Field(None, description="false: keys are taken and ignored")
    key_retention_s: float | None = Field(None, gt=0, le=1e9)
    in_flight_same_key: Literal["coalesce", "conflict"] | None = None
    lag_s: float | None = Field(None, ge=0, le=1e9)


class Write(Part):
    """One intended write."""

    contract: dict[str, Any] = Field({}, description="fields that differ from the incident's")
    really: Departures = Departures()
    conditional: bool = Field(
        False,
        description="beyond the kernel: `create if absent`. A request that finds the effect there "
        "is refused (412, already exists), also where the effect is the client's own",
    )
    fates: tuple[AttemptFate, ...] = Field(
        (), description="of attempt 0, 1, ...; further attempts go well"
    )
    late_s: float | None = Field(
        None,
        gt=0,
        le=1e8,
        description="what the honest optimum takes for the delay of a late write; null: the delay "
        "of the first late fate, else 60 s after the client's time-out",
    )

    def fate(self, attempt: int) -> AttemptFate:
        """The fate of the attempt with this number."""
        for fate in self.fates:
            if attempt < fate.times:
                return fate
            attempt -= fate.times
        return AttemptFate()


class Worker(Part):
    """One client with a view of its own; what another one sent it knows of, but not its answer."""

    at_s: float = Field(0.0, ge=0, le=1e9, description="when it takes the job up")


class Event(Part):
    """Beyond the kernel: what the service or the operator does, in every run."""

    at_s: float = Field(ge=0, le=1e9)
    do: Literal["undo"] = "undo"
    by: str = "the service"
    write: str | None = None
    keep: int = Field(0, ge=0, description="effects that are left to stand, the earliest ones")


class Step(Part):
    """One thing that a client, or somebody for it, does."""

    do: Literal["send", "read", "wait", "ask", "undo", "finish", "finish_uncertain", "fail"] = (
        Field(description="`fail` declares the write not executed; `undo` is somebody's repair")
    )
    client: str | None = Field(None, description="null: the one of the step before")
    write: str | None = Field(
        None, description="null: the one of the step before; the endings: all of them"
    )
    at_s: float | None = Field(None, ge=0, le=1e9, description="null: as soon as it can")
    seconds: float | None = Field(None, ge=0, le=1e8, description="of a wait")
    key: str | None = Field(
        None, description=f"any name; the same name is the same key. {INTENT_KEY}: the intent's"
    )
    items: tuple[int, ...] | None = Field(None, description="of a batch; null: all of them")
    layers: dict[str, int] = Field(
        {}, description="retry layers and how often each tries; they multiply, until acknowledged"
    )
    every_s: float = Field(0.0, ge=0, le=1e7, description="pause between the layers' tries")
    via: str | None = Field(None, description="the read path; null: the contract's")
    by: str | None = Field(None, description="who undoes; null: the operator")
    keep: int = Field(1, ge=0, description="effects that an undo leaves, the earliest ones")
    note: str | None = Field(None, description="the client's reason, shown in the timeline")

    @model_validator(mode="after")
    def _fitting(self) -> Step:
        allowed = _FIELDS_OF.get(self.do, frozenset()) | _ALWAYS
        odd = sorted(self.model_fields_set - allowed)
        if odd:
            raise ValueError(f"a step that does {self.do} takes no {odd[0]}")
        if self.do == "wait" and (self.seconds is None) == (self.at_s is None):
            raise ValueError("a wait needs either seconds or at_s, until when")
        if any(tries < 1 for tries in self.layers.values()) or self.sendings > MAX_SENDINGS:
            raise ValueError(f"layers try at least once and at most {MAX_SENDINGS} times together")
        return self

    @property
    def sendings(self) -> int:
        """How often all layers together send at most."""
        return math.prod(self.layers.values())


_ALWAYS = frozenset({"do", "client", "write", "at_s", "note"})
_FIELDS_OF = {
    "send": frozenset({"key", "items", "layers", "every_s"}),
    "read": frozenset({"via"}),
    "wait": frozenset({"seconds"}),
    "undo": frozenset({"by", "keep"}),
}
