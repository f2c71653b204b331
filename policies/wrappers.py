"""Recovery wrappers: what stands between an agent and its tools, and handles what goes wrong.

A wrapper takes the agent's tool calls and makes calls of its own around them.  It decides as the
policy of its name does, through the same `policies.recovery.Recovery`, from the view of the one
write whose outcome is open and from the tools' contracts; only the two oracles see hidden state.

Its calls are calls of the episode: they take virtual time, use up the budget of calls and stand in
``session.calls`` like those that the agent makes itself.  It never asks the operator nor ends the
task; where its policy would, the agent is told so and decides.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from exactlyonce_env.errors import UserError, did_you_mean
from exactlyonce_env.permission import PINNED, known_absent
from exactlyonce_env.rules import full_payload
from exactlyonce_env.sandbox.operations import Operation
from exactlyonce_env.sandbox.records import canonical
from exactlyonce_env.sandbox.session import Reply, Session, ToolInfo
from exactlyonce_env.sandbox.tools import BATCH, KEY, PATHS, TOOLS
from exactlyonce_env.vocabulary import Action
from policies.base import ActionBatch, Policy, ViewBatch
from policies.recovery import Decider, Recovery, key_of
from policies.spec import parse_policy

__all__ = ["WRAPPERS", "Wrapped", "wrap"]

Intent = tuple[Any, ...]

NOTE_SHOWN = "the call ended in an error, but the write is known to have taken effect"
NOTE_AGAIN = "an earlier call ended in an error; the write was sent again and acknowledged"
NOTE_DONE = "this write is done already and was not sent again"
NOTE_UNKNOWN = (
    "The outcome of this write is unknown and cannot be verified. Do not send it again; ask the "
    "operator with escalate_to_human, or report it as uncertain."
)
NOTE_BLOCKED = "This repeat was not sent."
NOTE_ABSENT = "This write took no effect, and it was not sent again."


@dataclass(frozen=True, slots=True)
class Kind:
    """What a wrapper does.

    Attributes
    ----------
    summary
        In a line.
    policy
        Spec of the policy that decides; empty: nobody does.
    blocks
        Whether the agent's repeat of a write goes through the policy instead of to the service.
    annotates
        Whether replies say what the wrapper knows.
    attaches_key
        Whether a write carries a key wherever one is taken.
    pins_key
        Whether the agent's own keys give way to the first one of the intent.
    ablation
        Makes the policy another one.
    """

    summary: str
    policy: str = ""
    blocks: bool = False
    annotates: bool = False
    attaches_key: bool = False
    pins_key: bool = False
    ablation: Callable[[Decider], Decider] | None = None


class _Ablated(Policy):
    """The guard under other contracts than those that hold."""

    def __init__(self, policy: Decider, change: Callable[[Any, Any], None]) -> None:
        assert isinstance(policy, Policy)
        self._policy, self._change = policy, change

    def act(self, batch: ViewBatch) -> ActionBatch:
        """One decision for each view of the batch."""
        contracts = batch.own_contracts
        self._change(batch.views, contracts)
        views = batch.views.copy()
        views["context"] = np.arange(len(views))
        return self._policy.act(ViewBatch(views, contracts))


def _without_key(views: Any, contracts: Any) -> None:
    """No key is taken, except where the client itself sent one."""
    contracts["accepts_key"][views["attempts"]["key"][:, 0] != PINNED] = 0


def _without_lag(views: Any, contracts: Any) -> None:
    """What is written shows at once."""
    contracts["lag_s"] = 0.0


_VERIFYING = Kind("", blocks=True, annotates=True)
_GUARD = replace(
    _VERIFYING,
    summary="the guard's decisions, keys and notes; repeats are checked",
    policy="guard",
    attaches_key=True,
)

WRAPPERS: dict[str, Kind] = {
    "none": Kind("calls go through as they are"),
    "sdk-retry": Kind("time-outs, 5xx and 429 are retried three times, as SDKs do", "sdk-retry"),
    "rules": Kind("429 and 503 are retried, nothing else", "rules"),
    "verify-retry": replace(
        _VERIFYING,
        summary="a failed write is looked up at once and sent again if it is absent",
        policy="verify-retry",
    ),
    "wait": replace(
        _VERIFYING,
        summary="as verify-retry, with the look put off by so many seconds",
        policy="wait",
    ),
    "guard": _GUARD,
    "guard-no-key": replace(
        _GUARD,
        summary="the guard that attaches no key of its own",
        attaches_key=False,
        ablation=lambda policy: _Ablated(policy, _without_key),
    ),
    "guard-no-consistency": replace(
        _GUARD,
        summary="the guard that does not wait for the documented lag",
        ablation=lambda policy: _Ablated(policy, _without_lag),
    ),
    "guard-no-block": replace(
        _GUARD, summary="the guard that lets the agent's repeats through", blocks=False
    ),
    "guard-no-annotate": replace(
        _GUARD, summary="the guard that says nothing of what it knows", annotates=False
    ),
    "pin-key": Kind(
        "one key for an intent, whatever key the agent sends", attaches_key=True, pins_key=True
    ),
    "state-oracle": replace(
        _GUARD, summary="the guard that sees the current state", policy="state-oracle"
    ),
    "outcome-oracle": replace(
        _GUARD, summary="the guard that sees requests in flight", policy="outcome-oracle"
    ),
}
"""Every wrapper by name; ``wait`` takes its Δ [s] after a colon."""


class Wrapped:
    """A session behind a wrapper: the same front as the session itself.

    Attributes
    ----------
    session
        The episode.
    spec
        Name of the wrapper.
    """

    def __init__(self, session: Session, spec: str, kind: Kind, policy: Decider | None) -> None:
        self.session = session
        self.spec = spec
        self._kind = kind
        self._sender = _Sender(session)
        self._recovery = None if policy is None else Recovery(session, self._sender, policy)
        self._first: dict[Intent, dict[str, Any]] = {}
        self._replies: dict[Intent, Reply] = {}
        self._undone: set[Intent] = set()
        self._failed_rows: dict[Intent, set[str]] = {}

    @property
    def tools(self) -> list[ToolInfo]:
        """The tools on offer."""
        return self.session.tools

    @property
    def instructions(self) -> str:
        """What the agent is told."""
        return self.session.instructions

    @property
    def ended(self) -> bool:
        """Whether the episode is over."""
        return self.session.ended

    def say(self, text: str) -> str | None:
        """A turn without a tool call, as `Session.say` takes it."""
        return self.session.say(text)

    def call(self, name: str, arguments: Any = None) -> Reply:
        """Call a tool; the reply is that of the service, or what the wrapper makes of it."""
        passive = self.ended or self.spec == "none"
        write = None if passive else self.session.write_of(name, arguments)
        if write is None:
            reply = self.session.call(name, arguments)
            if not reply.error:
                self._note_undo(name, arguments)
            return reply
        intent, given = write
        if intent in self._undone:  # the agent took it back: what it sends now is a new write
            self._undone.discard(intent)
            return self._send(name, given, intent)
        operation = self.session.operation(name, given)
        if operation is not None and self._has_new_rows(operation, given):
            return self._send(name, given, intent)  # more than was sent before: another write
        if operation is None or not self._kind.blocks:
            return self._send(name, self._keyed(intent, given, operation), intent)
        return self._resolve(operation, intent, repeat=True)

    def _send(self, name: str, arguments: dict[str, Any], intent: Intent) -> Reply:
        """Send the agent's write and handle its failure."""
        reply = self._sender.call(name, arguments)
        if self._sender.intent is None:
            return reply  # refused before it was sent
        operation = self.session.operation(name, arguments)
        assert operation is not None
        first = self._first.setdefault(intent, arguments)
        if operation.items:
            first["rows"] = [json.loads(item) for item in operation.items]
            self._note_rows(intent, arguments, reply)
        self._replies[intent] = reply
        if not reply.error or self._recovery is None or self.ended:
            return reply
        return self._resolve(operation, intent, repeat=False)

    def _resolve(self, operation: Operation, intent: Intent, *, repeat: bool) -> Reply:
        """Let the policy handle a write that was sent before; what the agent gets to see."""
        recovery, sender = self._recovery, self._sender
        assert recovery is not None
        sent = len(operation.arguments)
        while not self.ended:
            action, seconds = recovery.decide(operation)
            unsent = repeat and len(operation.arguments) == sent
            if action == Action.FINISH:
                return self._finished(intent, unsent)
            if action in (Action.FINISH_UNCERTAIN, Action.ESCALATE):
                break
            if action in (Action.RETRY, Action.KEYED_RETRY):
                acknowledged = recovery.perform(operation, self._first[intent], action, seconds)
                self._replies[intent] = sender.reply
                if acknowledged:
                    return self._noted(sender.reply, NOTE_AGAIN)
            else:
                recovery.perform(operation, self._first[intent], action, seconds)
        return self._failed(operation, intent, repeat and len(operation.arguments) == sent)

    def _finished(self, intent: Intent, repeat: bool) -> Reply:
        """The answer to a write that has its effect, as far as a client may know."""
        earlier = self._replies[intent]
        if earlier.error:
            earlier = Reply(canonical({"ok": True}), False, 200)
            self._replies[intent] = earlier
        return self._noted(earlier, NOTE_DONE if repeat else NOTE_SHOWN)

    def _failed(self, operation: Operation, intent: Intent, repeat: bool) -> Reply:
        """The answer to a write that the policy leaves to the agent: the service's own error."""
        reply = replace(self._replies[intent], ended=self.ended)
        if not self._kind.annotates or not reply.error:
            return reply
        full = full_payload(int(operation.contract["n_items"]))
        known = NOTE_ABSENT if known_absent(operation.seen[0], full) else NOTE_UNKNOWN
        words = (reply.text, NOTE_BLOCKED if repeat else "", known)
        return replace(reply, text=" ".join(filter(None, words)))

    def _noted(self, reply: Reply, note: str) -> Reply:
        text = reply.text
        if self._kind.annotates:
            text = canonical({**json.loads(text), "note": note})
        return replace(reply, text=text, ended=self.ended)

    def _keyed(
        self, intent: Intent, given: dict[str, Any], operation: Operation | None
    ) -> dict[str, Any]:
        """The arguments with the key that the wrapper wants."""
        kind = self._kind
        own = given.get(KEY)
        if not kind.attaches_key or not self.session.contracts[intent[0]].get("accepts_key"):
            return given
        if own is not None and (operation is None or not kind.pins_key):
            return given
        pinned = None if operation is None else operation.first_key
        return {**given, KEY: pinned or key_of(intent)}

    def _has_new_rows(self, operation: Operation, given: Mapping[str, Any]) -> bool:
        """Whether a batch carries rows that were never sent, or that the service says failed."""
        if operation.intent[0] != BATCH:
            return False
        sent = set(operation.items) - self._failed_rows.get(operation.intent, set())
        return any(canonical(row) not in sent for row in given["rows"])

    def _note_rows(self, intent: Intent, arguments: Mapping[str, Any], reply: Reply) -> None:
        """Keep in mind which rows an acknowledged batch lists as failed."""
        if not reply.error:
            rows = [canonical(row) for row in arguments["rows"]]
            failed = {rows[entry["index"]] for entry in json.loads(reply.text).get("failed", ())}
            before = self._failed_rows.get(intent, set())
            self._failed_rows[intent] = (before - set(rows)) | failed

    def _note_undo(self, name: str, arguments: Any) -> None:
        """After the agent undid something, the writes that the tool can undo may be meant anew."""
        if name in TOOLS and TOOLS[name].kind == "undo":
            self._undone |= {intent for intent in self._first if PATHS[intent[0]].undo == name}


class _Sender:
    """Calls tools and remembers the last reply."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.reply = Reply("", True, 0)
        self.intent: Intent | None = None
        """Of the last call, if it was a write that was sent."""

    def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> Reply:
        """Call a tool."""
        n = len(self._session.calls)
        self.reply = self._session.call(name, arguments)
        taken = self._session.calls[n:]
        self.intent = taken[0].intent if taken else None
        return self.reply


def wrap(session: Session, spec: str) -> Wrapped:
    """The session behind a wrapper.

    Parameters
    ----------
    session
        A new episode.
    spec
        A name from `WRAPPERS`; ``wait`` with its Δ in seconds, as in ``wait:300``.

    Raises
    ------
    UserError
        For an unknown name, or an argument that is missing, malformed or not taken.
    """
    name, colon, argument = (part.strip() for part in str(spec).partition(":"))
    kind = WRAPPERS.get(name)
    if kind is None:
        hint = did_you_mean(name.lower().replace("_", "-"), WRAPPERS)
        usages = ", ".join("wait:SECONDS" if one == "wait" else one for one in WRAPPERS)
        raise UserError(f"unknown wrapper {name!r}{hint}; choose from {usages}")
    if colon and name != "wait":
        raise UserError(f"wrapper {name!r} takes no argument; write {name}, not {name}:{argument}")
    if not kind.policy:
        return Wrapped(session, name, kind, None)
    try:
        policy: Any = parse_policy(f"{kind.policy}{colon}{argument}")
    except UserError as error:
        raise UserError(str(error).replace("policy", "wrapper", 1)) from None
    full = policy.spec if name == "wait" else name
    return Wrapped(session, full, kind, kind.ablation(policy) if kind.ablation else policy)
