"""Incidents as data: a service's contract, the fate of every attempt, and what the client did.

An incident is one small YAML, TOML or JSON file.  Times are in seconds.  The models below are the
format; each field says what it means, and a file with an unknown or impossible one is refused in a
line.  Rules that the kernel has (visibility, keys, commit times, permission) are the kernel's; what
it lacks is stated in the file and marked "beyond the kernel" below.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from exactlyonce_env import rules
from exactlyonce_env.config import Contract, Costs
from exactlyonce_env.errors import UserError, did_you_mean, invalid
from exactlyonce_env.presets import read_config
from exactlyonce_env.sandbox.incident_parts import (
    INTENT_KEY,
    AttemptFate,
    Departures,
    Event,
    Part,
    ReadPath,
    Step,
    Worker,
    Write,
)

__all__ = [
    "INTENT_KEY",
    "REPORTED",
    "RIGHT",
    "AttemptFate",
    "Event",
    "Incident",
    "ReadPath",
    "Step",
    "Worker",
    "Write",
    "incident_names",
    "incident_text",
    "load_incident",
    "make_incident",
]

REPORTED = "reported"
"""Name of the run in which the client does what was reported."""

RIGHT = "right"
"""Name of the run in which the client does what the file calls right."""

ONLY_WRITE = "write"
ONLY_CLIENT = "client"


class Incident(Part):
    """A world, the client as reported, and the recovery that would have been right."""

    name: str = Field(min_length=1)
    title: str = ""
    source: str = Field("", description="where it was reported")
    hidden: str = Field("", description="what the client could not see")
    mistake: str = Field("", description="what the client did")
    remedy: str = Field("", description="what would have been right")
    contract: dict[str, Any] = Field({}, description="what the service says; `Contract`'s fields")
    costs: Costs = Costs()
    operator: Literal["answers", "vague", "silent"] = Field(
        "answers", description="a vague answer settles nothing, like none"
    )
    reads: dict[str, ReadPath] = Field({}, description="further ways to read back, by name")
    writes: dict[str, Write] = Field({ONLY_WRITE: Write()})
    clients: dict[str, Worker] = Field({ONLY_CLIENT: Worker()})
    events: tuple[Event, ...] = ()
    reported: tuple[Step, ...] = Field(min_length=1)
    right: tuple[Step, ...] = ()

    @field_validator("writes", "clients")
    @classmethod
    def _not_empty(cls, named: Mapping[str, Any]) -> Mapping[str, Any]:
        if not named:
            raise ValueError("must name at least one, or be left out")
        return named

    @model_validator(mode="after")
    def _consistent(self) -> Incident:
        for name, write in self.writes.items():
            contract = self.contract_of(name)
            if write.conditional and contract.original_key != "sent":
                raise ValueError(
                    f"writes.{name}: conditional needs a contract with accepts_key: true and "
                    "original_key: sent; the object's name is the key"
                )
            for fate in write.fates:
                if fate.items is not None and fate.items > contract.n_items:
                    raise ValueError(
                        f"writes.{name}: a fate executes {fate.items} items of {contract.n_items}"
                    )
            if len({fate.copies_s[0] for fate in write.fates if fate.copies_s}) > 1:
                raise ValueError(
                    f"writes.{name}: the first copy must follow after the same time in every fate"
                )
            if self.operator != "answers" and contract.operator_answer_rate == 1.0:
                raise ValueError(
                    f"operator={self.operator} contradicts a promise; state "
                    "contract.operator_answer_rate below 1"
                )
        for where, steps in ((REPORTED, self.reported), (RIGHT, self.right)):
            for k, step in enumerate(steps):
                self._check_step(f"{where}.{k}", step)
        for k, event in enumerate(self.events):
            _known(f"events.{k}.write", event.write, self.writes)
        return self

    def _check_step(self, where: str, step: Step) -> None:
        _known(f"{where}.write", step.write, self.writes)
        _known(f"{where}.client", step.client, self.clients)
        _known(f"{where}.via", step.via, self.reads)
        names = [step.write] if step.write else list(self.writes)
        fewest = min(self.contract_of(name).n_items for name in names)
        if step.items is not None and not all(0 <= item < fewest for item in step.items):
            raise ValueError(f"{where}.items must lie in 0..{fewest - 1}")

    def stated(self, write: str) -> dict[str, Any]:
        """Contract fields of a write, as far as they are stated."""
        return {**self.contract, **self.writes[write].contract}

    def contract_of(self, write: str) -> Contract:
        """What the service says about a write.

        Raises
        ------
        ValueError
            Naming the first field that is unknown or out of range.
        """
        try:
            return Contract.model_validate(self.stated(write))
        except ValidationError as error:
            raise ValueError(
                str(invalid(f"contract of {write}", error, Contract.model_fields))
            ) from None

    def late_s(self, write: str) -> float:
        """What the honest optimum takes for the delay of a late write [s]."""
        own, contract = self.writes[write], self.contract_of(write)
        if own.late_s is not None:
            return own.late_s
        for fate in own.fates:
            if rules.is_late(fate.kind) and fate.delay_s is not None:
                return fate.delay_s
        bound_s = contract.in_flight_bound_s or math.inf
        return min(contract.client_timeout_s + 60.0, bound_s)

    def acting(self) -> Iterator[tuple[str, list[str]]]:
        """Each client in the order of its arrival, with the writes it takes up as reported."""
        first = next(iter(self.clients))
        taken: dict[str, list[str]] = {name: [] for name in self.clients}
        client, write = first, next(iter(self.writes))
        for step in self.reported:
            client, write = step.client or client, step.write or write
            if step.do in ("send", "read") and write not in taken[client]:
                taken[client].append(write)
        yield from sorted(taken.items(), key=lambda item: self.clients[item[0]].at_s)


def _known(where: str, name: str | None, names: Mapping[str, Any]) -> None:
    if name is not None and name not in names:
        known = ", ".join(names) or "none is named"
        raise ValueError(f"{where}: unknown {name!r}; choose from {known}")


def make_incident(fields: Mapping[str, Any], where: str) -> Incident:
    """Validate a mapping as an incident.

    Raises
    ------
    UserError
        Naming the field, the value and what would be right.
    """
    try:
        return Incident.model_validate(dict(fields))
    except ValidationError as error:
        raise invalid(where, error, _choices(error)) from None


def _choices(error: ValidationError) -> list[str]:
    """Field names of the model that the first complaint is about."""
    model: type[BaseModel] = Incident
    for part in error.errors(include_url=False)[0]["loc"][:-1]:
        model = _SECTIONS.get(str(part), model)
    return list(model.model_fields)


_SECTIONS: dict[str, type[BaseModel]] = {
    "costs": Costs,
    "reads": ReadPath,
    "writes": Write,
    "really": Departures,
    "fates": AttemptFate,
    "clients": Worker,
    "events": Event,
    REPORTED: Step,
    RIGHT: Step,
}

_FOLDER = files("exactlyonce_env") / "incident_data"


@lru_cache(maxsize=1)
def incident_names() -> tuple[str, ...]:
    """Names of the incidents that ship."""
    return tuple(
        sorted(
            entry.name.removesuffix(".yaml")
            for entry in _FOLDER.iterdir()
            if entry.name.endswith(".yaml")
        )
    )


def incident_text(name: str) -> str:
    """The file of an incident that ships.

    Raises
    ------
    UserError
        For an unknown name.
    """
    if name not in incident_names():
        hint = did_you_mean(name, incident_names())
        raise UserError(
            f"unknown incident {name!r}{hint}; choose from {', '.join(incident_names())}, "
            "or name a .yaml, .toml or .json file"
        )
    return (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def load_incident(source: str) -> Incident:
    """An incident by name, or from a YAML, TOML or JSON file.

    Raises
    ------
    UserError
        For an unknown name, an unreadable file, or one that states no possible incident.
    """
    path = Path(source)
    if path.suffix.lower() in (".yaml", ".yml", ".toml", ".json") or path.is_file():
        return make_incident(read_config(path), f"incident file {path.name!r}")
    incident_text(source)
    return make_incident(read_config(Path(str(_FOLDER / f"{source}.yaml"))), f"incident {source}")
