"""Carrying a kernel action out by tool calls: what a client of the sandbox does with a decision."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from exactlyonce_env.permission import next_payload
from exactlyonce_env.sandbox.session import Reply, Session
from exactlyonce_env.sandbox.tools import BATCH, KEY, PATHS, path_of
from exactlyonce_env.vocabulary import Action

if TYPE_CHECKING:
    from exactlyonce_env.sandbox.operations import Operation
    from exactlyonce_env.sandbox.tasks import Step

__all__ = ["FIRST_SENDS", "Caller", "again", "first_arguments", "key_of", "perform"]

FIRST_SENDS = ("keyed", "plain")
"""Whether the first send of a write carries a key where one is taken."""

MAX_WAIT_S = 86400.0
MAX_KEY = 200


class Caller(Protocol):
    """What tools are called through: a session, or a wrapper around one."""

    def call(self, name: str, arguments: Any = None) -> Reply:
        """Call a tool."""


def key_of(intent: tuple[Any, ...]) -> str:
    """The key that a client mints for an intent; no longer than services take."""
    text = ":".join(str(part) for part in intent)
    return text if len(text) <= MAX_KEY else hashlib.sha256(text.encode()).hexdigest()


def first_arguments(session: Session, step: Step, first_send: str) -> dict[str, Any]:
    """Arguments of a step's first send, with a key where one is taken and wanted."""
    arguments = dict(step.arguments)
    path = path_of(step.tool, arguments)
    if first_send == "keyed" and session.contracts[path.name].get("accepts_key"):
        arguments[KEY] = key_of(path.intent_of(arguments))
    return arguments


def perform(
    session: Session,
    caller: Caller,
    operation: Operation,
    arguments: Mapping[str, Any],
    action: Action,
    seconds: float,
) -> bool:
    """Carry an action on an open write out; whether it sent the write and was acknowledged.

    Parameters
    ----------
    session, caller
        The episode, and what its tools are called through.
    operation
        The write.
    arguments
        Those of its first send.
    action, seconds
        What to do, other than to end; how long to wait [s].
    """
    path = PATHS[operation.intent[0]]
    if action == Action.READ:
        reader, takes = path.looked_up
        caller.call(reader, {name: arguments[source] for name, source in takes.items()})
    elif action == Action.WAIT:
        while seconds > 0.0 and not session.ended:
            caller.call("wait", {"seconds": min(seconds, MAX_WAIT_S)})
            seconds -= MAX_WAIT_S
    elif action == Action.ESCALATE:
        question = f"What became of {path.tool} {dict(arguments)}?"
        caller.call("escalate_to_human", {"question": question})
    else:
        return not caller.call(path.tool, again(operation, arguments, action)).error
    return False


def again(operation: Operation, arguments: Mapping[str, Any], action: Action) -> dict[str, Any]:
    """Arguments of a re-issue: with the operation's key or without; of a batch what is missing."""
    found = {k: v for k, v in arguments.items() if k != KEY}
    if action == Action.KEYED_RETRY:
        pinned = operation.first_key or key_of(operation.intent)
        found[KEY] = arguments.get(KEY, pinned)
    if operation.intent[0] == BATCH:
        key = operation.key_number(found.get(KEY))
        items = int(next_payload(operation.seen[0], operation.contract, key))
        found["rows"] = [row for k, row in enumerate(arguments["rows"]) if items >> k & 1]
    return found
