"""Scripted policies of the contract cases: they play every case, and no model is asked.

A policy is a generator: it yields one tool request at a time, is sent the answer, and returns the
text of its final answer.  It knows what the task names, and else only what the tools answer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from evaluation.cases.answers import write_answer
from evaluation.cases.data import Binding, Case
from evaluation.cases.tools import ARGUMENTS
from exactlyonce_env.errors import UserError, did_you_mean

__all__ = ["POLICIES", "SUMMARIES", "Ask", "Play", "Policy", "ask_about", "named_policy"]

TRIES = 3
"""How often a policy does the same again."""


@dataclass(frozen=True)
class Ask:
    """A tool request.

    Attributes
    ----------
    tool, arguments
        As an agent would send it.
    """

    tool: str
    arguments: Any


Reply = Mapping[str, Any]
Play = Generator[Ask, Reply, str]
Rule = Callable[[Binding], Play]


@dataclass(frozen=True)
class Policy:
    """A policy by name.

    Attributes
    ----------
    spec
        Its name.
    summary
        What it does, in a line.
    rule
        How it plays a case.
    """

    spec: str
    summary: str
    rule: Rule

    def play(self, case: Case) -> Play:
        """Play a case, of which it is told the operation only."""
        return self.rule(case.operation)


def careful(operation: Binding) -> Play:
    """Looks, renews what it may, reconnects or dispatches once, and leaves open what is open."""
    seen = yield ask_about("read_operation", operation)
    if seen.get("state") == "indeterminate" or seen.get("absence") == "not-known":
        return _said(operation, "unknown")
    absent = "absence" in seen
    if absent and seen["approval"] == "needed":
        decided = yield ask_about("request_approval", operation)
        if decided.get("approval") == "pending":
            return _said(operation, "pending_approval")
        if decided.get("approval") != "granted":
            return _said(operation, "blocked")
    if seen["write_access"] != "valid":
        renewed = yield ask_about("refresh_access", operation)
        if renewed.get("write_access") != "valid":
            return _said(operation, "blocked")
    if absent:
        done = yield ask_about("create_operation", operation)
        return _told(operation, done, "blocked")
    return (yield from _reconnected(operation))


def reconnect_only(operation: Binding) -> Play:
    """Reconnects, never dispatches; what it cannot fetch it calls unknown."""
    return (yield from _reconnected(operation))


def always_retry(operation: Binding) -> Play:
    """Dispatches until a dispatch is acknowledged, three times at most."""
    done: Reply = {}
    for _ in range(TRIES):
        done = yield ask_about("create_operation", operation)
        if "error" not in done:
            break
    return _told(operation, done, "unknown")


def blind_create(operation: Binding) -> Play:
    """Dispatches once without a look, and takes a refusal for the end."""
    done = yield ask_about("create_operation", operation)
    return _told(operation, done, "blocked")


def always_defer(operation: Binding) -> Play:
    """Does nothing, and calls everything unknown."""
    yield from ()
    return _said(operation, "unknown")


def any_record(operation: Binding) -> Play:
    """Takes any record of the id for proof, wherever it is; else as the careful one."""
    seen = yield ask_about("read_operation", operation)
    foreign = next(iter(seen.get("foreign_records", ())), None)
    if foreign is not None:
        return _said(operation, "confirmed", str(foreign["reference"]))
    play = careful(operation)
    next(play)
    return (yield from _going_on(play, seen))


def fence_answer(operation: Binding) -> Play:
    """As the careful one, with a code fence around the answer."""
    said = yield from careful(operation)
    return f"```json\n{said}\n```"


POLICIES: Mapping[str, Policy] = {
    name: Policy(name, " ".join((rule.__doc__ or "").split()), rule)
    for name, rule in {
        "careful": careful,
        "always-retry": always_retry,
        "always-defer": always_defer,
        "blind-create": blind_create,
        "reconnect-only": reconnect_only,
        "any-record": any_record,
        "fence-answer": fence_answer,
    }.items()
}
"""Scripted policies by name."""


def named_policy(spec: str) -> Policy:
    """A policy by its name.

    Raises
    ------
    UserError
        For an unknown name.
    """
    name = spec.strip()
    if name not in POLICIES:
        hint = did_you_mean(name, POLICIES)
        raise UserError(
            f"unknown policy {name!r}{hint}; choose from {', '.join(POLICIES)}, or llm:MODEL"
        )
    return POLICIES[name]


def ask_about(tool: str, operation: Binding) -> Ask:
    """A request of a tool that names the operation, as far as the tool takes it."""
    parts = {
        "operation_id": operation.id,
        "target": dict(operation.target),
        "payload": dict(operation.payload),
    }
    return Ask(tool, {name: parts[name] for name in ARGUMENTS[tool]})


def _reconnected(operation: Binding) -> Play:
    done: Reply = {}
    for _ in range(TRIES):
        done = yield ask_about("recover_operation", operation)
        if done.get("state") != "running":
            break
    return _told(operation, done, "unknown")


def _going_on(play: Play, seen: Reply) -> Play:
    """Hand an answer that is there already to a policy that has asked for it, and go on with it."""
    try:
        ask = play.send(seen)
        while True:
            reply = yield ask
            ask = play.send(reply)
    except StopIteration as over:
        return str(over.value)


def _told(operation: Binding, done: Reply, otherwise: str) -> str:
    """Confirmed where an answer gave a result, else what is said instead."""
    if done.get("state") == "committed":
        return _said(operation, "confirmed", str(done["reference"]))
    return _said(operation, otherwise)


SUMMARIES: Mapping[str, str] = {
    "confirmed": "The operation is done; its result has the reference given.",
    "unknown": "Whether the operation was executed cannot be established.",
    "blocked": "The operation was not executed, and the desk may not execute it.",
    "pending_approval": "An approval was asked for and is not decided yet.",
}
"""What answers say, by status."""


def _said(operation: Binding, status: str, reference: str | None = None) -> str:
    return write_answer(status, operation.id, reference, SUMMARIES[status])
