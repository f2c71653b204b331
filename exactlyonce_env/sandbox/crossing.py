"""Where the sandbox enters the kernel: each call of a tool is one compiled call.

All take arrays of one record and the operation's own clock, which starts at its first send.
"""

from __future__ import annotations

import math
from typing import Any

from exactlyonce_env import kernel, rules
from exactlyonce_env.compiled import Array, compiled
from exactlyonce_env.permission import NO_KEY
from exactlyonce_env.settlement import settle
from exactlyonce_env.world_state import advance


@compiled
def cross_send(
    contexts: Array,
    seen: Array,
    truth: Array,
    now_s: float,
    outage_until_s: float,
    key: int,
    items: int,
    mode: int,
    delay_s: float,
    copy_delay_s: float,
    n_commit: Any,
    queued: bool,
) -> tuple[int, float, float, bool]:
    """Send at ``now_s``; (response, clock, end of the outage, whether it was permitted).

    The first send of an operation is always permitted.
    """
    view, happened = seen[0], truth[0]
    _reach(contexts, seen, truth, now_s)
    happened.outage_until_s = outage_until_s
    before = happened.false_permissions
    again = kernel.dispatch(
        contexts,
        view,
        happened,
        key,
        items,
        mode,
        delay_s,
        copy_delay_s,
        n_commit,
        queued,
    )
    if again:
        view.n_steps += 1
    else:
        view.decided_from_s = view.clock_s
    response = view.attempts[view.n_attempts - 1].response + 0
    permitted = happened.false_permissions == before
    return response, view.clock_s + 0.0, happened.outage_until_s + 0.0, permitted


@compiled
def cross_read(
    contexts: Array, seen: Array, truth: Array, now_s: float, outage_until_s: float
) -> float:
    """Take in a read-back issued at ``now_s``; the clock after it."""
    _reach(contexts, seen, truth, now_s)
    truth[0].outage_until_s = outage_until_s
    kernel.read(contexts, seen[0], truth[0])
    seen[0].n_steps += 1
    return seen[0].clock_s + 0.0


@compiled
def cross_wait(contexts: Array, seen: Array, truth: Array, until_s: float) -> float:
    """Wait on purpose until ``until_s``; the clock after it."""
    _reach(contexts, seen, truth, until_s)
    seen[0].n_waits += 1
    seen[0].n_steps += 1
    return seen[0].clock_s + 0.0


@compiled
def cross_ask(contexts: Array, seen: Array, truth: Array, now_s: float) -> float:
    """Ask the operator at ``now_s``; the clock after his delay."""
    _reach(contexts, seen, truth, now_s)
    kernel.escalate(contexts, seen[0], truth[0])
    seen[0].n_steps += 1
    return seen[0].clock_s + 0.0


@compiled
def cross_settle(contexts: Array, seen: Array, truth: Array) -> None:
    """Let every request under way arrive."""
    settle(contexts[0], seen[0], truth[0])


@compiled
def executions(
    contexts: Array, seen: Array, truth: Array, now_s: float, horizon_s: float, out: Array
) -> int:
    """Write (attempt, copy, items, time) of each execution by ``horizon_s`` into ``out`` (16, 4).

    Returns how many there are.
    """
    _reach(contexts, seen, truth, now_s)
    count = 0
    for j in range(seen[0].n_attempts):
        happened = truth[0].attempts[j]
        for copy in range(2):
            items = happened.copy_effect if copy else happened.effect
            at_s = happened.execution_s
            if copy:
                at_s += contexts[0].law.copy_delay_s
            if items != 0 and rules.visible(at_s, horizon_s):
                out[count, 0] = j
                out[count, 1] = copy
                out[count, 2] = items
                out[count, 3] = at_s
                count += 1
    return count


@compiled
def spare_slot(seen: Array, truth: Array) -> int:
    """The attempt that matters least for what is to come.

    One refused, else a replay, else a plain one that has executed, else whatever is over; of keyed
    ones that have executed the latest, for the first one's record protects the longest.
    """
    found, least = 0, 9
    for j in range(seen[0].n_attempts):
        happened, shown = truth[0].attempts[j], seen[0].attempts[j]
        if happened.in_transit or happened.copy_due:
            continue
        idle = happened.effect == 0 and happened.copy_effect == 0
        if not idle and happened.execution_s > seen[0].clock_s:
            continue
        if idle and rules.is_rejection(shown.response):
            weight = 0
        elif idle and shown.response == rules.R_SUCCESS:
            weight = 1
        elif not idle and shown.key == NO_KEY:
            weight = 2
        else:
            weight = 3 if idle else 4
        if weight < least or weight == least == 4:
            found, least = j, weight
    return found


@compiled
def drop_slot(seen: Array, truth: Array, place: int) -> None:
    """Take an attempt out of the records."""
    n = seen[0].n_attempts
    for j in range(place, n - 1):
        seen[0].attempts[j] = seen[0].attempts[j + 1]
        truth[0].attempts[j] = truth[0].attempts[j + 1]
    last, happened = seen[0].attempts[n - 1], truth[0].attempts[n - 1]
    last.sent_s = 0.0
    last.answered_s = 0.0
    last.payload = 0
    last.clear = 0
    last.response = 0
    last.key = 0
    last.authority = 0
    happened.effect = 0
    happened.copy_effect = 0
    happened.wanted = 0
    happened.in_transit = False
    happened.copy_due = False
    happened.execution_s = math.inf
    seen[0].n_attempts = n - 1


@compiled
def cross_advance(contexts: Array, seen: Array, truth: Array, now_s: float) -> None:
    """Let the clock reach ``now_s``, if it is not there yet."""
    _reach(contexts, seen, truth, now_s)


@compiled
def _reach(contexts: Array, seen: Array, truth: Array, now_s: float) -> None:
    if now_s > seen[0].clock_s:
        advance(contexts[0], seen[0], truth[0], now_s)
