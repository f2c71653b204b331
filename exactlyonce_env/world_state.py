"""What really happened so far: arrivals, key records, suppression, visibility.  Privileged.

Requests in transit meet the key records on arrival, so arrivals are decided in the order of time as
the clock passes them.  Of two arrivals at the same instant the attempt with the lower number is
first.
"""

from __future__ import annotations

import math

from exactlyonce_env import rules
from exactlyonce_env.compiled import Record, compiled
from exactlyonce_env.permission import NO_KEY
from exactlyonce_env.vocabulary import Authority, InFlightSameKey

CONFLICT_409 = int(InFlightSameKey.CONFLICT)
PENDING = int(Authority.PENDING)
COMMITTED = int(Authority.COMMITTED)
NOT_EXECUTED = int(Authority.NOT_EXECUTED)


@compiled
def covered_items(context: Record, seen: Record, truth: Record, j: int, at_s: float) -> int:
    """Items for which a live key record answers attempt ``j``, or its copy, arriving at ``at_s``.

    A record covers, item by item, what the arrival that created it executes; an arrival without
    effects leaves none.
    """
    contract = context.contract
    key = seen.attempts[j].key
    covered = 0
    if key == NO_KEY or not contract.accepts_key:
        return covered
    for i in range(seen.n_attempts):
        if seen.attempts[i].key != key:
            continue
        other = truth.attempts[i]
        if rules.record_alive(other.arrival_s, contract.key_retention_s, at_s):
            covered |= other.effect
        copied_s = other.execution_s + context.law.copy_delay_s
        if rules.record_alive(copied_s, contract.key_retention_s, at_s):
            covered |= other.copy_effect
    return covered


@compiled
def pending_same_key(contract: Record, seen: Record, truth: Record, j: int, at_s: float) -> float:
    """When the same-key request that ``j`` meets at ``at_s`` will be done; infinity: none."""
    key = seen.attempts[j].key
    done_s = math.inf
    if key == NO_KEY or not contract.accepts_key:
        return done_s
    for i in range(seen.n_attempts):
        other = truth.attempts[i]
        if i == j or other.effect == 0 or seen.attempts[i].key != key:
            continue
        if other.execution_s > at_s and rules.record_alive(
            other.arrival_s, contract.key_retention_s, at_s
        ):
            done_s = min(done_s, other.execution_s)
    return done_s


@compiled
def executed_items(context: Record, seen: Record, truth: Record, j: int, at_s: float) -> int:
    """What attempt ``j``, or its copy, executes when it arrives at ``at_s``."""
    contract = context.contract
    if contract.in_flight_same_key == CONFLICT_409 and (
        pending_same_key(contract, seen, truth, j, at_s) < math.inf
    ):
        return 0  # refused: another one is still in progress
    return truth.attempts[j].wanted & ~covered_items(context, seen, truth, j, at_s)


@compiled
def resolve(context: Record, seen: Record, truth: Record, j: int, redelivered: bool) -> None:
    """Decide on arrival what attempt ``j`` executes; a redelivered copy follows its execution."""
    happened = truth.attempts[j]
    happened.in_transit = False
    happened.effect = executed_items(context, seen, truth, j, happened.arrival_s)
    happened.copy_due = redelivered and happened.effect != 0


@compiled
def advance(context: Record, seen: Record, truth: Record, until_s: float) -> None:
    """Move the clock to ``until_s``, deciding every arrival on the way in the order of time."""
    arrive_until(context, seen, truth, until_s)
    seen.clock_s = until_s


@compiled
def arrive_until(context: Record, seen: Record, truth: Record, until_s: float) -> None:
    """Decide the requests and copies that arrive at or before ``until_s``, earliest first."""
    while True:
        first = -1
        first_s = math.inf
        for j in range(seen.n_attempts):
            happened = truth.attempts[j]
            if happened.in_transit:
                arrival_s = happened.arrival_s
            elif happened.copy_due:
                arrival_s = happened.execution_s + context.law.copy_delay_s
            else:
                continue
            if arrival_s <= until_s and arrival_s < first_s:
                first = j
                first_s = arrival_s
        if first < 0:
            return
        happened = truth.attempts[first]
        if happened.in_transit:
            resolve(context, seen, truth, first, False)
        else:
            happened.copy_due = False
            happened.copy_effect = executed_items(context, seen, truth, first, first_s)


@compiled
def visible_items(law: Record, seen: Record, truth: Record, horizon_s: float) -> int:
    """Items whose effect is committed at or before ``horizon_s``."""
    shown = 0
    for j in range(seen.n_attempts):
        happened = truth.attempts[j]
        if rules.visible(happened.execution_s, horizon_s):
            shown |= happened.effect
        if rules.visible(happened.execution_s + law.copy_delay_s, horizon_s):
            shown |= happened.copy_effect
    return shown


@compiled
def authority_of(truth: Record, j: int, at_s: float) -> int:
    """What an authoritative source says of attempt ``j`` at ``at_s``, now or in the past."""
    happened = truth.attempts[j]
    if happened.wanted != 0 and happened.arrival_s > at_s:
        return PENDING  # on its way; whether a key suppresses it is decided on arrival
    if happened.effect == 0:
        return NOT_EXECUTED
    return COMMITTED if rules.visible(happened.execution_s, at_s) else PENDING
