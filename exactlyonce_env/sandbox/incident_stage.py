"""The world of an incident: its writes as operations that several clients act on.

What a write, a key, a read-back or an operator does is decided by `Operation`, that is by the
kernel.  Clients share the truth of a write and have a view each: of what another one sent a client
knows that it was sent, and no answer.  All but the views is privileged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from exactlyonce_env import rules
from exactlyonce_env.errors import UserError
from exactlyonce_env.permission import next_payload, permitted_items
from exactlyonce_env.records import CONTEXT, MAX_ATTEMPTS, VIEW
from exactlyonce_env.sandbox.incident_work import Moment, Sending, Work, happenings, plan_of
from exactlyonce_env.sandbox.incidents import AttemptFate, Incident
from exactlyonce_env.sandbox.operations import Effect, Fate, Operation
from exactlyonce_env.view_text import AUTHORITIES, RESPONSES
from exactlyonce_env.vocabulary import (
    InFlightSameKey,
    OperatorStatus,
    Readback,
    ReadError,
    Response,
)

__all__ = ["Stage"]


class Stage:
    """One run of an incident.

    Parameters
    ----------
    incident
        What is to be replayed.

    Attributes
    ----------
    now_s
        Each client's clock [s].
    works
        The writes that were touched so far, by name.
    moments
        The timeline so far, in the order of the calls.
    """

    def __init__(self, incident: Incident) -> None:
        self.incident = incident
        self.now_s = {name: worker.at_s for name, worker in incident.clients.items()}
        self.works: dict[str, Work] = {}
        self.moments: list[Moment] = []
        self._due = sorted(incident.events, key=lambda event: event.at_s)

    def note(self, client: str, text: str, at_s: float | None = None) -> None:
        """Enter what a client did or saw, now or at ``at_s`` [s]."""
        self.moments.append(
            Moment(self.now_s[client] if at_s is None else at_s, client, text, None)
        )

    def touch(self, client: str, name: str) -> Work:
        """The write, with the client's view of it in place and the clock at the client's."""
        now_s = self.now_s[client]
        if name not in self.works:
            self.works[name] = self._open(name, now_s)
        work = self.works[name]
        if client not in work.views:
            work.views[client] = _newcomers_view(work, now_s)
        work.operation.seen = work.views[client]
        work.operation.settle_clock(now_s)
        return work

    def _open(self, name: str, now_s: float) -> Work:
        response = self.incident.writes[name].fate(0).response
        plan = plan_of(self.incident, name, response)
        operation = Operation(plan, 0, (name,), now_s)
        stated = np.array(operation.contexts["contract"])
        operation.contexts = self._true_context(name, operation.contexts)
        if self.incident.operator != "answers":
            operation.truth["operator_answers"] = False
        return Work(name, operation, stated)

    def _true_context(self, name: str, stated: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The context with the service's departures from what it says."""
        write = self.incident.writes[name]
        really = write.really
        context = np.array(stated, dtype=CONTEXT)
        if really.accepts_key is not None:
            context["contract"]["accepts_key"] = really.accepts_key
        if really.key_retention_s is not None:
            context["contract"]["key_retention_s"] = really.key_retention_s
        if really.in_flight_same_key is not None:
            context["contract"]["in_flight_same_key"] = InFlightSameKey[
                really.in_flight_same_key.upper()
            ]
        if really.lag_s is not None:
            context["law"]["lag_s"] = really.lag_s
        for fate in write.fates:
            if fate.copies_s:
                context["law"]["copy_delay_s"] = fate.copies_s[0]
        return context

    def send(
        self, client: str, name: str, key: str | None, items: Sequence[int] | None, note: str = ""
    ) -> Response:
        """Send a write, all its missing items where none are named, and take in the answer."""
        work = self.touch(client, name)
        operation, view, number = work.operation, work.views[client], len(work.sendings)
        if len(work.views) > 1 and number >= MAX_ATTEMPTS:
            raise UserError(
                f"incident {self.incident.name}: several clients send {name} at most "
                f"{MAX_ATTEMPTS} times together"
            )
        contract, at_s = work.stated[0], self.now_s[client]
        key_number = operation.key_number(key)
        mask = int(next_payload(view[0], contract, key_number))
        if items is not None:
            mask = sum(1 << item for item in set(items))
        if number and not permitted_items(view[0], contract, key_number, mask):
            work.false_permissions += 1
        fate = self.incident.writes[name].fate(number)
        self.note(client, f"sends {name}{_how(key, items)}{note}", at_s)
        response = operation.send(
            at_s, key, mask, _kernel_fate(fate, mask, float(contract["latency_s"])), {}
        )
        refused = self._there_already(work) and response == Response.SUCCESS
        shown = Response.CONFLICT if refused else fate.response if fate.shown_as else response
        if shown != response:
            _show(view, shown)
        if shown == Response.TIMEOUT != response:
            operation.clock_s = at_s + float(contract["client_timeout_s"])
            operation.settle_clock(operation.clock_s)
        work.sendings.append(Sending(at_s, client, fate, refused))
        for other, theirs in work.views.items():
            if other != client:
                _mirror(view, theirs, contract)
        self.now_s[client] = operation.clock_s
        text = "already exists, refused" if refused else fate.says or RESPONSES[shown]
        self.note(client, text)
        return shown

    def _there_already(self, work: Work) -> bool:
        """Whether the latest sending of a conditional write found its effect there."""
        place = int(work.operation.seen["n_attempts"][0]) - 1
        happened = work.operation.truth["attempts"][0, place]
        found = happened["wanted"] != 0 and happened["effect"] == 0
        return bool(self.incident.writes[work.name].conditional and found)

    def read(self, client: str, name: str, via: str | None = None, note: str = "") -> None:
        """Read the write back."""
        work = self.touch(client, name)
        operation, view = work.operation, work.views[client]
        true_contexts, true_attempts = operation.contexts, operation.truth["attempts"].copy()
        if via is not None:
            path = self.incident.reads[via]
            own = np.array(true_contexts, dtype=CONTEXT)
            own["contract"]["readback"] = Readback[path.readback.upper()]
            own["contract"]["lag_s"] = own["law"]["lag_s"] = path.lag_s
            operation.contexts = own
        hidden = self._hide_undone(work)
        at_s = self.now_s[client]
        operation.read(at_s)
        operation.contexts = true_contexts
        if hidden:
            operation.truth["attempts"]["effect"] = true_attempts["effect"]
            operation.truth["attempts"]["copy_effect"] = true_attempts["copy_effect"]
        self.now_s[client] = operation.clock_s
        where = f" via {via}" if via else ""
        self.note(client, f"reads {name}{where}{note}: {_report_text(view[0], work)}")

    def _hide_undone(self, work: Work) -> bool:
        """Take what was undone out of what a read can find; whether there was any."""
        if work.undone and len(work.sendings) > MAX_ATTEMPTS:
            raise UserError(
                f"incident {self.incident.name}: {work.name} was sent more than {MAX_ATTEMPTS} "
                "times and undone; a read after that cannot be replayed"
            )
        attempts = work.operation.truth["attempts"]
        for effect in work.undone:
            attempts["copy_effect" if effect.copy else "effect"][0, effect.sending] &= ~(
                1 << effect.item
            )
        return bool(work.undone)

    def wait(self, client: str, until_s: float, name: str | None = None, note: str = "") -> None:
        """Let a client wait on purpose; it counts for the write, if one is named."""
        self.note(client, f"waits until {until_s:g} s{note}")
        if name is not None:
            work = self.touch(client, name)
            work.operation.wait(until_s)
        self.now_s[client] = max(until_s, self.now_s[client])

    def ask(self, client: str, name: str, note: str = "") -> None:
        """Ask the operator about a write."""
        work = self.touch(client, name)
        self.note(client, f"asks the operator about {name}{note}")
        work.operation.ask(self.now_s[client])
        self.now_s[client] = work.operation.clock_s
        view = work.views[client][0]
        if view["operator_status"] == OperatorStatus.ANSWERED:
            text = f"the operator reports {_report_text(view, work)}"
        elif self.incident.operator == "vague":
            text = "the operator's answer settles nothing"
        else:
            text = "the operator does not answer"
        self.note(client, text)

    def end(self, client: str, name: str, text: str) -> None:
        """Let a client end a write: its last step."""
        work = self.touch(client, name)
        work.views[client]["n_steps"] += 1
        self.note(client, text)

    def undo(self, by: str, name: str, keep: int, at_s: float) -> None:
        """Undo what stands at ``at_s`` [s], but for the earliest ``keep`` of each item."""
        work = self.works.get(name)
        if work is None:
            return
        standing: dict[int, list[Effect]] = {}
        for effect in work.ledger(at_s):
            if effect not in work.undone:
                standing.setdefault(effect.item, []).append(effect)
        gone = [effect for effects in standing.values() for effect in effects[keep:]]
        work.undone.update(gone)
        if gone:
            text = f"{by} undoes {len(gone)} execution{'s' * (len(gone) > 1)} of {name}"
            self.moments.append(Moment(at_s, None, None, text))

    def happen_until(self, now_s: float) -> None:
        """Let the events up to ``now_s`` [s] happen."""
        while self._due and self._due[0].at_s <= now_s:
            event = self._due.pop(0)
            names = list(self.works) if event.write is None else [event.write]
            for name in names:
                self.undo(event.by, name, event.keep, event.at_s)

    def settle(self) -> None:
        """Let every request under way arrive and every event happen."""
        for work in self.works.values():
            work.operation.settle()
        self.happen_until(math.inf)

    def timeline(self) -> list[Moment]:
        """What was seen and what happened in the settled world, in order of time."""
        found = [*self.moments]
        for work in self.works.values():
            found += happenings(work)
        return sorted(found, key=lambda moment: (moment.time_s, moment.rank))


def _kernel_fate(fate: AttemptFate, mask: int, latency_s: float) -> Fate:
    kind = fate.kind
    if not rules.commits(kind):
        return Fate(int(kind), math.inf, math.inf, 0, False)
    delay_s = latency_s if fate.delay_s is None else fate.delay_s
    copy_s = fate.copies_s[0] if fate.copies_s else math.inf
    n_commit = mask.bit_count() if fate.items is None else fate.items
    return Fate(int(kind), delay_s, copy_s, n_commit, fate.queued)


def _newcomers_view(work: Work, now_s: float) -> npt.NDArray[Any]:
    """The view of a client that takes a write up which others may have sent already."""
    view = np.zeros(1, dtype=VIEW)
    view["read_at_s"] = view["operator_at_s"] = -1.0
    view["context"] = work.operation.contexts["law"]["shown_as"]
    view["clock_s"] = view["decided_from_s"] = now_s - work.operation.origin_s
    others = next(iter(work.views.values()), None)
    for j in range(0 if others is None else int(others["n_attempts"][0])):
        _mirror(others, view, work.stated[0], j)
    return view


def _mirror(own: Any, other: npt.NDArray[Any], contract: Any, place: int | None = None) -> None:
    """Enter what one client sent into another one's view, as a request without an answer."""
    j = int(own["n_attempts"][0]) - 1 if place is None else place
    theirs, sent = other["attempts"][0], own["attempts"][0, j]
    for name in ("sent_s", "payload", "key"):
        theirs[name][j] = sent[name]
    theirs["response"][j] = Response.TIMEOUT
    theirs["answered_s"][j] = sent["sent_s"] + contract["client_timeout_s"]
    other["n_attempts"] = j + 1
    other["reads_since_attempt"] = 0
    other["pinned_payload"] = own["pinned_payload"]
    other["other_payload"] = own["other_payload"]


def _show(view: npt.NDArray[Any], shown: Response) -> None:
    """Let the latest attempt have another response, and the client conclude from it."""
    attempt = view["attempts"][0, int(view["n_attempts"][0]) - 1]
    attempt["response"] = shown
    attempt["clear"] = attempt["payload"] if rules.is_rejection(shown) else 0


def _how(key: str | None, items: Sequence[int] | None) -> str:
    text = "" if items is None else f" (items {', '.join(map(str, items))})"
    return text + ("" if key is None else f" with key {key}")


def _report_text(view: Any, work: Work) -> str:
    if view["read_error"] == ReadError.NO_READBACK:
        return "there is no way to read it"
    if view["read_error"] == ReadError.OUTAGE:
        return RESPONSES[Response.UNAVAILABLE]
    shown, n_items = int(view["shown"]), int(work.stated["n_items"][0])
    if shown == 0:
        text = "nothing there"
    elif n_items == 1:
        text = "it is there"
    else:
        text = f"{shown.bit_count()} of {n_items} items are there"
    said = [
        f"attempt {j} {AUTHORITIES[int(view['attempts'][j]['authority'])]}"
        for j in range(int(view["n_attempts"]))
        if view["attempts"][j]["authority"]
    ]
    return "; ".join([text, *said])
