"""The kernel against a second, plain implementation of the rules of the world.

`Reference` is written from the words of the design: a service with a queue of arrivals and a list
of key records, and a client that writes down what it sees.  Both run the same worlds and actions.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exactlyonce_env.config import Situation
from exactlyonce_env.presets import load_plan
from exactlyonce_env.vocabulary import MODE_NAMES, TERM_NAMES

from .worldbench import Effect, play

LATE = ("timeout_late", "timeout_late_tail")
NEVER = ("timeout_pre", "http500_pre", "rate_limited", "unavailable", "outage", "schema_drift")
RESPONSES = {
    "ok": "success",
    "redelivery": "success",
    "http500_pre": "server_error",
    "http500_post": "server_error",
    "partial_batch": "server_error",
    "rate_limited": "rate_limited",
    "unavailable": "unavailable",
    "outage": "unavailable",
    "schema_drift": "schema",
}
REJECTIONS = ("rate_limited", "unavailable", "schema", "conflict")


@dataclass
class Sent:
    """What the client knows of one attempt."""

    sent_s: float
    key: str | None
    items: frozenset[int]
    response: str = ""
    answered_s: float = 0.0
    absent: set[int] = field(default_factory=set)  # items known to be terminal and effect-free


@dataclass
class Record:
    """A key record of the service."""

    key: str
    since_s: float
    done_s: float
    items: set[int]


@dataclass
class Request:
    """What the service will do with one attempt."""

    key: str | None
    execution_s: float
    wanted: list[int]
    in_transit: bool
    items: set[int] = field(default_factory=set)  # what it executes, once decided


class Reference:
    """One world, played by the words."""

    def __init__(self, situation: Situation, start: str, world: np.record) -> None:
        self.contract, self.costs = situation.contract, situation.costs
        self.faults, self.fates = situation.faults, world["fates"]
        self.operator_answers = bool(world["operator_answers"])
        self.all_items = frozenset(range(self.contract.n_items))
        self.retention_s = self.contract.key_retention_s or math.inf
        self.now_s = self.first_decision_s = 0.0
        self.sent: list[Sent] = []
        self.requests: list[Request] = []
        self.coming: list[tuple[float, int, bool]] = []  # (time, attempt, is a copy)
        self.records: list[Record] = []
        self.effects: list[Effect] = []
        self.outage_until_s = 0.0
        self.payload_of: dict[str, frozenset[int]] = {}
        self.last_report: set[int] | None = None
        self.terms: list[dict[str, float]] = []
        self.ending = ""
        self.counts = dict.fromkeys(("reads", "waits", "reissues", "escalations", "false"), 0)
        if start == "fault":
            self._send("pinned" if self.contract.original_key == "sent" else None)
            self.first_decision_s = self.now_s

    # The service ------------------------------------------------------------------------------

    def _live(self, key: str | None, at_s: float) -> list[Record]:
        if key is None or not self.contract.accepts_key:
            return []
        return [
            r
            for r in self.records
            if r.key == key and r.since_s <= at_s < r.since_s + self.retention_s
        ]

    def _arrive(self, j: int, at_s: float, execution_s: float, is_copy: bool) -> float | None:
        """Decide one arrival; the answer is when a same-key request in progress is done, if any."""
        request = self.requests[j]
        request.in_transit = False
        live = self._live(request.key, at_s)
        running = [r.done_s for r in live if r.done_s > at_s]
        refused = bool(running) and self.contract.in_flight_same_key == "conflict"
        covered = set().union(*(r.items for r in live)) if live else set()
        items = set() if refused else set(request.wanted) - covered
        self.effects += [Effect(execution_s, j, item, is_copy) for item in sorted(items)]
        if not is_copy:
            request.items = items
        if items and request.key is not None and self.contract.accepts_key:
            self.records.append(Record(request.key, at_s, execution_s, items))
        return min(running) if running else None

    def _until(self, until_s: float) -> None:
        while self.coming and self.coming[0][0] <= until_s:
            at_s, j, is_copy = heapq.heappop(self.coming)
            self._arrive(j, at_s, at_s, is_copy)

    def _advance(self, until_s: float) -> None:
        self._until(until_s)
        self.now_s = until_s

    # The client -------------------------------------------------------------------------------

    def _next_items(self, key: str | None) -> frozenset[int]:
        if key in self.payload_of:
            return self.payload_of[key]
        missing = self.all_items - (self.last_report or set())
        return frozenset(missing) if self.last_report is not None and missing else self.all_items

    def _send(self, key: str | None) -> None:
        j, now_s, contract = len(self.sent), self.now_s, self.contract
        items = self._next_items(key)
        if key is not None:
            self.payload_of[key] = items
        fate = self.fates[j]
        mode = MODE_NAMES[fate["mode"]]
        if now_s < self.outage_until_s:
            mode = "outage"
        elif mode == "outage":
            self.outage_until_s = now_s + self.faults.outage_s
        attempt = Sent(now_s, key, items, RESPONSES.get(mode, "timeout"))
        wait_s = contract.client_timeout_s if attempt.response == "timeout" else contract.latency_s
        attempt.answered_s = now_s + wait_s
        wanted = [] if mode in NEVER else sorted(items)[: fate["n_commit"]]
        execution_s = now_s + float(fate["commit_delay_s"])
        in_transit = mode in LATE and not fate["queued"]
        self.sent.append(attempt)
        self.requests.append(Request(key, execution_s, wanted, in_transit))
        if in_transit:
            heapq.heappush(self.coming, (execution_s, j, False))
        elif wanted:
            done_s = self._arrive(j, now_s, execution_s, False)
            if mode == "redelivery" and self.requests[j].items:  # a copy follows an execution
                heapq.heappush(self.coming, (execution_s + self.faults.copy_delay_s, j, True))
            if done_s is not None and attempt.response == "success":
                self._meet(attempt, done_s)
        if attempt.response in REJECTIONS:
            attempt.absent = set(items)
        self._advance(attempt.answered_s)

    def _meet(self, attempt: Sent, done_s: float) -> None:
        if self.contract.in_flight_same_key == "conflict":
            attempt.response = "conflict"
            return
        attempt.answered_s = max(attempt.sent_s + self.contract.latency_s, done_s)
        deadline_s = attempt.sent_s + self.contract.client_timeout_s
        if attempt.answered_s > deadline_s:
            attempt.response, attempt.answered_s = "timeout", deadline_s

    def _report(self, horizon_s: float, known_s: float, at_s: float, per_attempt: bool) -> None:
        shown = {e.item for e in self.effects if e.time_s <= horizon_s}
        self.last_report = shown
        for attempt, request in zip(self.sent, self.requests, strict=True):
            over = known_s >= self._over_after(attempt)
            if per_attempt and not request.in_transit:
                if not request.items:
                    attempt.absent |= attempt.items
                elif request.execution_s <= at_s:
                    over = True
            if over:
                attempt.absent |= attempt.items - shown

    def _over_after(self, attempt: Sent) -> float:
        """When the client may take it that nothing more comes of an attempt."""
        if attempt.response == "timeout":
            return attempt.sent_s + (self.contract.in_flight_bound_s or math.inf)
        return math.inf if attempt.response == "success" else attempt.answered_s

    def permitted(self, key: str | None) -> bool:
        """Section 5."""
        if self.contract.idempotent:
            return True
        open_ = [a for a in self.sent if a.items - a.absent]
        if key is not None and all(
            a.key == key and self.now_s < a.sent_s + self.retention_s for a in open_
        ):
            return True
        items = self._next_items(key)
        return not any(a.items & items - a.absent for a in self.sent)

    def act(self, action: str) -> None:
        """Take one decision."""
        name, _, seconds = action.partition(":")
        terms = dict.fromkeys(TERM_NAMES, 0.0)
        before_s, contract, costs = self.now_s, self.contract, self.costs
        if name == "read":
            self.counts["reads"] += 1
            terms["read"] = -costs.read
            if self.now_s >= self.outage_until_s and contract.readback != "none":
                lag_s = contract.lag_s if contract.readback == "eventual" else 0.0
                horizon_s = self.now_s - lag_s
                hidden = contract.readback == "eventual" and not contract.lag_documented
                self._report(
                    horizon_s,
                    -math.inf if hidden else horizon_s,
                    self.now_s,
                    contract.readback == "authoritative",
                )
            self._advance(self.now_s + contract.latency_s)
        elif name == "wait":
            self.counts["waits"] += 1
            self._advance(self.now_s + float(seconds))
        elif name in ("retry", "keyed_retry"):
            self._reissue(name == "keyed_retry", terms)
        elif name == "escalate":
            self.counts["escalations"] += 1
            terms["escalation"] = -costs.escalation
            self._advance(self.now_s + contract.operator_delay_s)
            if self.operator_answers:
                now_s = self.now_s
                self._report(now_s, now_s, now_s, contract.operator_sees_in_flight)
        else:
            self.ending = name
        terms["time"] = -costs.time_per_hour * (self.now_s - before_s) / 3600.0
        self.terms.append(terms)
        if not self.ending and len(self.terms) == contract.max_steps:
            self.ending = "exhausted"
        if self.ending:
            self._settle(terms)

    def _reissue(self, keyed: bool, terms: dict[str, float]) -> None:
        contract = self.contract
        if len(self.sent) >= contract.max_attempts or (keyed and not contract.accepts_key):
            return
        key = {"same": "pinned", "different": "other"}[contract.candidate_key] if keyed else None
        if self.sent:
            self.counts["reissues"] += 1
            terms["reissue"] = -self.costs.reissue
            self.counts["false"] += not self.permitted(key)
        self._send(key)
        if contract.dispatch_claims and len(self.sent) > 1 and self.sent[-1].response == "success":
            self.ending = "finish"

    def _settle(self, terms: dict[str, float]) -> None:
        self._until(math.inf)
        costs, counts = self.costs, [0] * self.contract.n_items
        for effect in self.effects:
            counts[effect.item] += 1
        if self.contract.idempotent:
            counts = [min(count, 1) for count in counts]
        self.duplicates = sum(max(0, count - 1) for count in counts)
        self.omissions = counts.count(0)
        exactly_once = all(count == 1 for count in counts)
        terms["success"] = costs.success if exactly_once else 0.0
        terms["duplicate"] = -costs.duplicate * self.duplicates
        terms["omission"] = -costs.omission * self.omissions
        claimed = self.ending == "finish"
        terms["unresolved"] = 0.0 if claimed else -costs.unresolved
        terms["overclaim"] = -costs.overclaim if claimed and not exactly_once else 0.0


CONTRACTS = st.fixed_dictionaries(
    {
        "lag_documented": st.booleans(),
        "accepts_key": st.sampled_from([True, True, False]),
        "key_retention_s": st.sampled_from([None, 86400.0, 600.0, 100.0, 45.0]),
        "in_flight_same_key": st.sampled_from(["coalesce", "conflict"]),
        "idempotent": st.sampled_from([False, False, False, True]),
        "n_items": st.sampled_from([1, 1, 4]),
        "in_flight_bound_s": st.sampled_from([None, 100.0, 500.0]),
        "client_timeout_s": st.sampled_from([30.0, 70.0]),
        "candidate_key": st.sampled_from(["same", "same", "different"]),
        "latency_s": st.sampled_from([1.0, 0.0, 7.5]),
        "operator_delay_s": st.sampled_from([900.0, 20.0]),
        "operator_answer_rate": st.sampled_from([1.0, 0.5, 0.0]),
        "operator_sees_in_flight": st.booleans(),
        "max_steps": st.sampled_from([40, 40, 3]),
        "max_attempts": st.sampled_from([6, 8, 2]),
        "dispatch_claims": st.sampled_from([False, False, False, True]),
    }
)
READBACKS = st.sampled_from(
    [
        {"readback": "strong"},
        {"readback": "none"},
        {"readback": "authoritative"},
        {"readback": "eventual", "lag_s": 0.0},
        {"readback": "eventual", "lag_s": 60.0},
    ]
)
ACTIONS = st.lists(
    st.sampled_from(
        [
            "read",
            "wait:5",
            "wait:15",
            "wait:60",
            "wait:300",
            "retry",
            "keyed_retry",
            "keyed_retry",
            "retry",
            "escalate",
        ]
    ),
    max_size=12,
)


def compare(preset: dict[str, Any], actions: list[str], ids: range) -> None:
    """Play ``actions`` in the worlds ``ids`` of ``preset`` on both; nothing may differ."""
    plan = load_plan(preset)
    for k, world in zip(ids, plan.worlds(0, ids), strict=True):
        reference = Reference(plan.situations[0], preset["start"], world)
        taken = []
        for action in actions:
            reference.act(action)
            taken.append(action)
            if reference.ending:
                break
        episode = play(plan, taken, world=k)
        assert episode.clocks[-1] == reference.now_s
        assert float(episode.view["decided_from_s"]) == reference.first_decision_s
        assert episode.responses == [a.response for a in reference.sent]
        assert episode.answers == [a.answered_s for a in reference.sent]
        assert episode.payloads == [sum(1 << i for i in a.items) for a in reference.sent]
        assert episode.keys == [a.key or "none" for a in reference.sent]
        assert episode.shown == sum(1 << i for i in reference.last_report or ())
        assert (episode.view["read_at_s"] >= 0) == (reference.last_report is not None)
        counts = {name: episode.measure(name) for name in reference.counts if name != "false"}
        assert {**counts, "false": episode.false_permissions} == reference.counts
        wanted = [[terms[name] for name in TERM_NAMES] for terms in reference.terms]
        assert episode.terms.tolist() == wanted
        if reference.ending:
            assert episode.ledger == sorted(reference.effects)
            assert episode.measure("duplicates") == reference.duplicates
            assert episode.measure("omissions") == reference.omissions


@settings(max_examples=200)
@given(
    contract=CONTRACTS,
    readback=READBACKS,
    key_sent=st.booleans(),
    start=st.sampled_from(["fault", "send"]),
    queued_share=st.sampled_from([0.0, 0.5, 1.0]),
    retry_fault_rate=st.sampled_from([0.0, 0.5, 1.0]),
    actions=ACTIONS,
    last=st.sampled_from(["finish", "finish_uncertain"]),
    first_id=st.integers(0, 10**6),
)
def test_kernel_and_reference_agree(
    contract: dict[str, Any],
    readback: dict[str, Any],
    key_sent: bool,
    start: str,
    queued_share: float,
    retry_fault_rate: float,
    actions: list[str],
    last: str,
    first_id: int,
) -> None:
    key = "sent" if contract["accepts_key"] and key_sent else "omitted"
    preset = {
        "name": "bench",
        "start": start,
        "contract": {**contract, **readback, "original_key": key},
        "faults": {
            "queued_share": queued_share,
            "retry_fault_rate": retry_fault_rate,
            "late_tail": {"family": "uniform", "loc": 20, "scale": 80},
        },
    }
    compare(preset, [*actions, last], range(first_id, first_id + 8))


@pytest.mark.parametrize("retention_s", [45.0, 100.0])
@settings(max_examples=60)
@given(
    actions=st.lists(
        st.sampled_from(["wait:5", "wait:60", "keyed_retry", "retry", "read"]), max_size=8
    ),
    first_id=st.integers(0, 10**6),
)
def test_copies_that_outlive_their_record_agree_too(
    retention_s: float, actions: list[str], first_id: int
) -> None:
    preset = {
        "name": "bench",
        "start": "fault",
        "contract": {
            "accepts_key": True,
            "original_key": "sent",
            "key_retention_s": retention_s,
            "max_attempts": 8,
        },
        "faults": {
            "original": {"redelivery": 1, "timeout_late": 1},
            "retry": {"redelivery": 1, "timeout_late": 1, "timeout_post": 1},
            "retry_fault_rate": 0.7,
            "copy_delay_s": 77,
        },
    }
    compare(preset, [*actions, "finish"], range(first_id, first_id + 8))
