"""The moves that scripted policies share, each derived from the view alone.

A move is a pair (action, seconds).  No policy keeps a memory: how often it retried, when it last
looked and how long to back off follow from the counters and times in the view, so equal views get
equal moves.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from exactlyonce_env import rules
from exactlyonce_env.actions import MAX_WAIT_S
from exactlyonce_env.compiled import Record, compiled
from exactlyonce_env.permission import PINNED
from exactlyonce_env.vocabulary import Action, Authority, OperatorStatus, Readback, ReadError

READ = int(Action.READ)
WAIT = int(Action.WAIT)
RETRY = int(Action.RETRY)
KEYED_RETRY = int(Action.KEYED_RETRY)
ESCALATE = int(Action.ESCALATE)
FINISH = int(Action.FINISH)
FINISH_UNCERTAIN = int(Action.FINISH_UNCERTAIN)

NO_READBACK = int(Readback.NONE)
NO_ERROR = int(ReadError.NONE)
PENDING = int(Authority.PENDING)
NOT_EXECUTED = int(Authority.NOT_EXECUTED)
SILENT = int(OperatorStatus.SILENT)

Move: TypeAlias = tuple[int, float]
"""(number of an `Action`, seconds to wait)."""

FIRST_GAP_S = 15.0
"""First gap between two looks and unit of the back-off from a conflict [s]; later ones double."""


@compiled
def wait_until(seen: Record, due_s: float) -> Move:
    """Wait so that the clock reaches ``due_s`` in one step, or as far as one wait goes."""
    seconds = due_s - seen.clock_s
    if seen.clock_s + seconds < due_s:  # rounding must not leave a sliver for a second wait
        seconds = np.nextafter(seconds, math.inf)
    return WAIT, min(seconds, MAX_WAIT_S)


@compiled
def shows_from_s(commit_s: float, lag_s: float) -> float:
    """Earliest time at which a read with this lag shows a commit at ``commit_s``.

    Rounding is allowed for: the read's horizon, computed back from this time, reaches the commit.
    """
    due_s = commit_s + lag_s
    if due_s - lag_s < commit_s:
        due_s = np.nextafter(due_s, math.inf)
    return due_s


@compiled
def known_lag_s(contract: Record) -> float:
    """The documented visibility lag; one that is not documented counts as 0."""
    return max(contract.lag_s, 0.0) if contract.readback == rules.EVENTUAL else 0.0


@compiled
def complete(seen: Record, contract: Record) -> bool:
    """Whether the client knows that every item has its effect: acknowledged or shown."""
    last = seen.attempts[seen.n_attempts - 1]
    return last.response == rules.R_SUCCESS or seen.ever_shown == rules.full_payload(
        contract.n_items
    )


@compiled
def pending(seen: Record) -> bool:
    """Whether the last authoritative report says of some attempt that it is still in progress."""
    count = 0
    for j in range(seen.n_attempts):
        count += seen.attempts[j].authority == PENDING
    return count > 0


@compiled
def reissue(seen: Record, contract: Record, keyed: bool) -> Move:
    """Send the next attempt once Retry-After and the back-off from a conflict allow it.

    Without attempts left the episode ends uncertain.
    """
    if seen.n_attempts >= contract.max_attempts:
        return FINISH_UNCERTAIN, 0.0
    last = seen.attempts[seen.n_attempts - 1]
    due_s = seen.retry_at_s
    if last.response == rules.R_CONFLICT:
        due_s = max(due_s, last.answered_s + math.ldexp(FIRST_GAP_S, int(seen.n_reissues)))
    if seen.clock_s < due_s:
        return wait_until(seen, due_s)
    return (KEYED_RETRY if keyed else RETRY), 0.0


@compiled
def repeat(seen: Record, contract: Record) -> Move:
    """Re-issue the request as it was first sent: keyed if the original carried the pinned key."""
    return reissue(seen, contract, seen.attempts[0].key == PINNED)


@compiled
def looked(seen: Record) -> bool:
    """Whether the latest read came after the last attempt and taught something."""
    return seen.reads_since_attempt > 0 and seen.read_error == NO_ERROR


@compiled
def look(seen: Record, due_s: float) -> Move:
    """Read at ``due_s``, or at once where it has passed; never before Retry-After is over."""
    due_s = max(due_s, seen.retry_at_s)
    if seen.clock_s < due_s:
        return wait_until(seen, due_s)
    return READ, 0.0


@compiled
def next_look_s(seen: Record) -> float:
    """When to look again: gaps that double with every read since the last attempt."""
    return seen.read_at_s + math.ldexp(FIRST_GAP_S, int(seen.reads_since_attempt) - 1)


@compiled
def asked(seen: Record) -> bool:
    """Whether the operator reacted after the last attempt was sent.

    An answer at the very moment of the sending came before it, unless neither took any time.
    """
    sent_s = seen.attempts[seen.n_attempts - 1].sent_s
    if seen.operator_at_s != sent_s:
        return seen.operator_at_s > sent_s
    return seen.clock_s == sent_s and seen.n_escalations >= seen.n_attempts


@compiled
def ask(seen: Record, contract: Record, keyed: bool) -> Move:
    """Ask the operator and act on the answer: re-issue what it does not show, ``keyed`` or plain.

    Silence, or a request that the operator sees still in flight, ends the episode uncertain.
    """
    if seen.operator_status == SILENT:
        return FINISH_UNCERTAIN, 0.0
    if not asked(seen):
        return ESCALATE, 0.0
    if pending(seen):
        return FINISH_UNCERTAIN, 0.0
    return reissue(seen, contract, keyed)


@compiled
def verify(seen: Record, contract: Record, first_s: float, last_s: float) -> Move:
    """Read from ``first_s`` to ``last_s`` with growing gaps; re-issue only what stays absent.

    Explicit rejections are known to be absent and need no reading, except after the last attempt.
    Where there is no read-back the operator is asked.  An attempt that an authoritative read
    reports as pending is not absent: it is looked at again.
    """
    if seen.n_attempts == 0:
        return RETRY, 0.0
    if complete(seen, contract):
        return FINISH, 0.0
    last = seen.attempts[seen.n_attempts - 1]
    readable = contract.readback != NO_READBACK
    if rules.is_rejection(last.response):
        if seen.n_attempts < contract.max_attempts or not readable:
            return repeat(seen, contract)
        first_s = last_s = last.answered_s
    if not readable:
        return ask(seen, contract, seen.attempts[0].key == PINNED)
    if not looked(seen):
        return look(seen, first_s)
    if seen.read_at_s < last_s and last.authority != NOT_EXECUTED:
        return look(seen, max(first_s, min(next_look_s(seen), last_s)))
    if pending(seen):
        return look(seen, next_look_s(seen))
    return repeat(seen, contract)
