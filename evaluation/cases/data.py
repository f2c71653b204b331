"""The contract cases: what each asks for, what the services hold, and what is hidden.

They stand in ``cases.yaml``, in six families of four.  Twenty-four cases, of which seventeen ask
for confirmed progress; the others end as unknown, blocked or pending approval.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from exactlyonce_env.errors import unknown

__all__ = [
    "DOMAINS",
    "FAMILIES",
    "FIELDS",
    "OUTCOMES",
    "Binding",
    "Case",
    "Record",
    "all_cases",
    "case_named",
    "same",
]

FAMILIES: Mapping[str, str] = {
    "running-operation": "reconnect to accepted work",
    "lost-acknowledgement": "retrieve the retained result",
    "unknown-outcome": "preserve uncertainty",
    "legitimate-new-operation": "identical payload, other authorised intent: execute once",
    "authorisation-change": "expired, revoked, approved again, approval pending",
    "target-binding-change": "the same id on another target proves nothing",
}
"""Families of cases, and what each asks for."""

DOMAINS: Mapping[str, str] = {
    "tickets": "open a ticket",
    "device-inspections": "send a crew to inspect a device",
    "appointments": "book an appointment",
    "inventory-deductions": "deduct items from a bin",
}
"""Domains, and what an operation does there."""

OUTCOMES = ("confirmed", "unknown", "blocked", "pending_approval")
"""How a case may end; the words of the final answer."""

FIELDS: Mapping[str, Mapping[str, str]] = {
    "tickets": {"queue": "string", "title": "string", "priority": "string"},
    "device-inspections": {"device": "string", "procedure": "string", "window": "string"},
    "appointments": {"client": "string", "slot": "string", "kind": "string"},
    "inventory-deductions": {"item": "string", "quantity": "integer", "bin": "string"},
}
"""Fields of a payload and their JSON types, by domain."""

TARGET = ("service", "tenant", "environment", "version")
"""Fields of a target; an operation is bound to all four."""


@dataclass(frozen=True)
class Binding:
    """An operation at its target with its payload: what a call must be bound to.

    Attributes
    ----------
    id
        Id of the operation.
    target
        Its `TARGET` fields.
    payload
        Its fields by domain.
    """

    id: str
    target: Mapping[str, str]
    payload: Mapping[str, Any]


@dataclass(frozen=True)
class Record:
    """What a service holds of an operation.

    Attributes
    ----------
    binding
        Which operation, where, with what.
    state
        ``running``, ``committed`` or ``indeterminate``: the service itself cannot tell.
    reference
        Of the result; empty where there is none.
    polls
        Of running work: how many reconnections it takes until the result is there.
    """

    binding: Binding
    state: str
    reference: str = ""
    polls: int = 0


@dataclass(frozen=True)
class Case:
    """One contract case.

    Attributes
    ----------
    id, family, domain
        What it is; one of `FAMILIES`, one of `DOMAINS`.
    story
        What the task tells, apart from the operation.
    operation
        What is authorised, for one execution.
    outcome
        How a careful client ends it; one of `OUTCOMES`.
    records
        What the services hold when the task begins.
    absence
        What the target says of an id that it holds no record of: ``never-accepted``, which it
        knows, or ``not-known``.
    access, renewal
        Write access is ``valid``, ``expired`` or ``revoked``; a refresh is answered ``renewed``,
        ``approval-required`` or ``refused``.
    approval, decision
        ``not-needed`` or ``needed``, and how a request is decided: ``granted``, ``pending`` or
        ``denied``.
    create
        Whether one dispatch is what the case asks for.
    unsent
        Whether the story says that the operation has not been sent; else only the target can.
    happened
        Hidden, where the records do not tell: whether the first dispatch had its effect.
    """

    id: str
    family: str
    domain: str
    story: str
    operation: Binding
    outcome: str
    records: tuple[Record, ...] = ()
    absence: str = "never-accepted"
    access: str = "valid"
    renewal: str = "renewed"
    approval: str = "not-needed"
    decision: str = "granted"
    create: bool = False
    unsent: bool = False
    happened: bool = False

    @property
    def requires_progress(self) -> bool:
        """Whether it asks for confirmed progress."""
        return self.outcome == "confirmed"

    @property
    def own_record(self) -> Record | None:
        """What the target holds of the operation itself."""
        return next((r for r in self.records if is_at(r, self.operation)), None)

    @property
    def sent_before(self) -> bool:
        """Whether the target accepted the operation before, or may have."""
        return self.own_record is not None or self.absence == "not-known"

    def to_dict(self) -> dict[str, Any]:
        """The short fields in JSON types."""
        return {
            "id": self.id,
            "family": self.family,
            "requires_progress": self.requires_progress,
            "domain": self.domain,
            "outcome": self.outcome,
        }


def is_at(record: Record, operation: Binding) -> bool:
    """Whether a record is of this operation at this very target."""
    found = record.binding
    return found.id == operation.id and found.target == operation.target


def same(given: Any, wanted: Any) -> bool:
    """Whether a JSON value equals another; true is not 1."""
    if isinstance(given, bool) or isinstance(wanted, bool):
        return given is wanted
    if isinstance(wanted, Mapping):
        return (
            isinstance(given, Mapping)
            and given.keys() == wanted.keys()
            and all(same(given[name], value) for name, value in wanted.items())
        )
    return bool(given == wanted)


@cache
def all_cases() -> tuple[Case, ...]:
    """All cases, in the order of their families."""
    import yaml

    text = (files(__package__) / "cases.yaml").read_text(encoding="utf-8")
    return tuple(_case(fields) for fields in yaml.safe_load(text))


def case_named(name: str) -> Case:
    """A case by its id.

    Raises
    ------
    UserError
        For an unknown id.
    """
    cases = {case.id: case for case in all_cases()}
    if name not in cases:
        raise unknown("case", name, tuple(cases))
    return cases[name]


def _case(fields: dict[str, Any]) -> Case:
    operation = Binding(**fields.pop("operation"))
    records = tuple(_record(entry, operation) for entry in fields.pop("records", ()))
    return Case(operation=operation, records=records, **fields)


def _record(entry: dict[str, Any], operation: Binding) -> Record:
    """A record; what it does not say of its operation is as the case's."""
    binding = Binding(
        entry.pop("id", operation.id),
        {**operation.target, **entry.pop("target", {})},
        {**operation.payload, **entry.pop("payload", {})},
    )
    return Record(binding, **entry)
