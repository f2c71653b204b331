"""One intended write of the sandbox on the kernel's own records.

An `Operation` holds the `VIEW` and the `TRUTH` that the single-operation world would hold, and
calls the same compiled functions: whatever a write, a read-back, a key or an operator does is
decided by the kernel alone.  The sandbox adds a clock that all operations share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from exactlyonce_env import rules
from exactlyonce_env.compiled import Record
from exactlyonce_env.drawing import draw_fate
from exactlyonce_env.permission import NO_KEY, PINNED
from exactlyonce_env.plan import Plan
from exactlyonce_env.records import CONTEXT, MAX_ATTEMPTS, MAX_ITEMS, OUTCOME, TRUTH, VIEW
from exactlyonce_env.sandbox.crossing import (
    cross_advance,
    cross_ask,
    cross_read,
    cross_send,
    cross_settle,
    cross_wait,
    drop_slot,
    executions,
    spare_slot,
)
from exactlyonce_env.sandbox.tools import KEY
from exactlyonce_env.settlement import write_outcome
from exactlyonce_env.view_building import item_list
from exactlyonce_env.vocabulary import Mode, Response

__all__ = ["Effect", "Fate", "Operation", "fault_fate", "ordinary_fate"]

MAX_KEYS = 100
"""Different keys that one operation tells apart."""

NEVER_S = -math.inf


class Fate(NamedTuple):
    """What becomes of one attempt, as `draw_fate` returns it.  Privileged."""

    mode: int
    delay_s: float  # [s] from sending to execution
    copy_delay_s: float  # [s] from execution to the copy's
    n_commit: int
    queued: bool


class Effect(NamedTuple):
    """One execution of one item.  Privileged."""

    at_s: float  # [s] on the session's clock
    sending: int  # which sending of the operation it came from
    item: int
    copy: bool  # whether a redelivered copy of the sending had it


class Operation:
    """All sendings of one intended write, and what became of them.

    Parameters
    ----------
    plan
        From `exactlyonce_env.sandbox.contracts.sandbox_plan`.
    context
        Index of the write path's context in it, with or without a key on the first send.
    intent
        What makes two calls the same write: the path and its intent fields.
    now_s
        The session's clock at the first send [s].
    """

    def __init__(self, plan: Plan, context: int, intent: tuple[Any, ...], now_s: float) -> None:
        self.plan = plan
        self.context = context
        self.intent = intent
        self.origin_s = now_s
        self.items: list[str] = []
        """Of a batch, what identifies each item."""
        self.arguments: list[Mapping[str, Any]] = []
        """What the client put into each sending."""
        self.last_response = Response.NONE
        self.clock_s = now_s
        """The session's clock when the operation's last call was over [s]."""
        self.outage_until_s = NEVER_S
        """End of an outage that the operation met, on the session's clock [s]."""
        self.permitted: list[bool] = []
        """Whether each sending was permitted from the visible history."""
        self._keys: dict[str, int] = {}
        self._slots: list[int] = []
        self._folded: list[Effect] = []
        self.contexts: npt.NDArray[Any] = plan.contexts[context : context + 1]
        """Its `CONTEXT` record alone, (1,).  Privileged."""
        self.seen: npt.NDArray[Any] = np.zeros(1, dtype=VIEW)
        """Its `VIEW` record, (1,)."""
        self.truth: npt.NDArray[Any] = np.zeros(1, dtype=TRUTH)
        """Its `TRUTH` record, (1,).  Privileged."""
        self.seen["read_at_s"] = self.seen["operator_at_s"] = -1.0
        self.seen["context"] = self.contexts["law"]["shown_as"][0]
        self.truth["operator_answers"] = self.contexts["contract"]["operator_answer_rate"][0] > 0.0
        self._own = np.empty((2 * MAX_ATTEMPTS, 4))

    @property
    def contract(self) -> Record:
        """The `CONTRACT` record that holds for the operation."""
        return self.contexts[0]["contract"]

    @property
    def is_open(self) -> bool:
        """Whether the latest sending was not acknowledged."""
        return self.last_response != Response.SUCCESS

    def batch_of(self, items: list[str]) -> int:
        """The bit mask of some items of the batch; new ones make the batch larger.

        Raises
        ------
        ValueError
            Where a batch would outgrow the record.
        """
        mask = 0
        for item in items:
            if item not in self.items:
                if len(self.items) >= MAX_ITEMS:
                    raise ValueError(f"a batch holds at most {MAX_ITEMS} different items")
                self.items.append(item)
            mask |= 1 << self.items.index(item)
        if len(self.items) > self.contexts["contract"]["n_items"][0] or not self.arguments:
            own = np.array(self.contexts, dtype=CONTEXT)
            own["contract"]["n_items"] = len(self.items)
            own.setflags(write=False)
            self.contexts = own
        return mask

    @property
    def first_key(self) -> str | None:
        """The key that the client used first: the pinned one."""
        keys = (arguments.get(KEY) for arguments in self.arguments)
        return next((key for key in keys if key is not None), None)

    def key_number(self, key: str | None) -> int:
        """The kernel's number of a key, also of one that was not used yet."""
        if key is None:
            return NO_KEY
        return self._keys.get(key, min(PINNED + len(self._keys), MAX_KEYS))

    def keeper(self, key: str, now_s: float) -> int | None:
        """The sending whose record of the client's key is alive at ``now_s`` [s], if any."""
        if all(arguments.get(KEY) != key for arguments in self.arguments):
            return None
        self.settle_clock(now_s)
        happened = self.truth[0]["attempts"]
        retention_s = float(self.contract["key_retention_s"])
        for j, sending in enumerate(self._slots):
            if (
                self.arguments[sending].get(KEY) == key
                and happened["effect"][j]
                and rules.record_alive(
                    float(happened["arrival_s"][j]), retention_s, now_s - self.origin_s
                )
            ):
                return sending
        return None

    def settle_clock(self, now_s: float) -> None:
        """Let the session's clock reach ``now_s`` [s]: other calls took their time."""
        cross_advance(self.contexts, self.seen, self.truth, now_s - self.origin_s)

    def send(
        self,
        now_s: float,
        key: str | None,
        items: int,
        fate: Fate,
        arguments: Mapping[str, Any],
        outage_until_s: float = NEVER_S,
    ) -> Response:
        """Send ``items`` (a bit mask) and wait for the response; `clock_s` is then its time."""
        if len(self._slots) == MAX_ATTEMPTS:
            self._make_room(now_s)
        number = self.key_number(key)
        if key is not None:
            self._keys[key] = number
        origin_s = self.origin_s
        response, own_s, until_s, permitted = cross_send(
            self.contexts,
            self.seen,
            self.truth,
            now_s - origin_s,
            max(outage_until_s - origin_s, 0.0),
            number,
            items,
            *fate,
        )
        self._slots.append(len(self.arguments))
        self.arguments.append(arguments)
        self.permitted.append(permitted)
        self.last_response = Response(response)
        self.clock_s = origin_s + own_s
        self.outage_until_s = origin_s + until_s if until_s > 0.0 else NEVER_S
        return self.last_response

    def read(self, now_s: float, outage_until_s: float = NEVER_S) -> None:
        """Take in a read-back issued at ``now_s`` [s]."""
        until_s = max(outage_until_s - self.origin_s, 0.0)
        own_s = cross_read(self.contexts, self.seen, self.truth, now_s - self.origin_s, until_s)
        self.clock_s = self.origin_s + own_s

    def wait(self, until_s: float) -> None:
        """The client waits on purpose until ``until_s`` [s]."""
        own_s = cross_wait(self.contexts, self.seen, self.truth, until_s - self.origin_s)
        self.clock_s = self.origin_s + own_s

    def ask(self, now_s: float) -> None:
        """The operator is asked at ``now_s`` [s] and reports at the end of his delay, or never."""
        own_s = cross_ask(self.contexts, self.seen, self.truth, now_s - self.origin_s)
        self.clock_s = self.origin_s + own_s

    def settle(self) -> None:
        """Let every request under way arrive."""
        cross_settle(self.contexts, self.seen, self.truth)

    def outcome(self) -> Record:
        """The `OUTCOME` record of the settled operation, as the kernel grades it."""
        outcome: Record = np.zeros(1, dtype=OUTCOME)[0]
        write_outcome(self.contexts[0]["contract"], self.seen[0], self.truth[0], outcome)
        return outcome

    def effects(self, now_s: float, horizon_s: float = math.inf) -> list[Effect]:
        """Executions by ``horizon_s`` [s] that are decided by ``now_s``, in order of time."""
        origin_s = self.origin_s
        own = self._own
        n = executions(
            self.contexts, self.seen, self.truth, now_s - origin_s, horizon_s - origin_s, own
        )
        found = [e for e in self._folded if rules.visible(e.at_s, horizon_s)]
        for j, copy, items, at_s in own[:n].tolist():
            sending = self._slots[int(j)]
            found += [
                Effect(origin_s + at_s, sending, item, bool(copy)) for item in item_list(int(items))
            ]
        found.sort()
        return found

    def _make_room(self, now_s: float) -> None:
        """Give up the slot of an attempt that can no longer matter, and keep what it did."""
        place = int(spare_slot(self.seen, self.truth))
        sending = self._slots[place]
        self._folded += [e for e in self.effects(now_s) if e.sending == sending]
        drop_slot(self.seen, self.truth, place)
        del self._slots[place]


_MODES = np.arange(len(Mode))


def ordinary_fate(items: int, latency_s: float) -> Fate:
    """The fate of an attempt with such items (a bit mask) that nothing happens to."""
    return Fate(int(Mode.OK), latency_s, math.inf, items.bit_count(), False)


def fault_fate(operation: Operation, mode: Mode, seed: int) -> Fate:
    """The fate of an attempt that meets ``mode`` in world 0 of ``seed``.

    A batch that fails in part commits the first half of its items.
    """
    context = np.array(operation.contexts, dtype=CONTEXT)
    context["law"]["first_cdf"] = mode <= _MODES
    n_items = int(context["contract"]["n_items"][0])
    kind, delay_s, copy_delay_s, n_commit, queued = draw_fate(
        context[0].contract, context[0].law, operation.plan.table, np.uint64(seed), 0, 0
    )
    if mode == Mode.PARTIAL_BATCH:
        n_commit = max(n_items // 2, 1)
    return Fate(int(kind), float(delay_s), float(copy_delay_s), int(n_commit), bool(queued))
