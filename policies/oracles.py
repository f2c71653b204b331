"""References that see hidden state, as functions ``(seen, contract, truth, law, parameter)``.

Privileged.  They are the guard with better eyes: no verification costs them anything, except the
read that makes a retry send only the missing part of a batch.
"""

from __future__ import annotations

import math

from exactlyonce_env import rules
from exactlyonce_env.compiled import Record, compiled
from exactlyonce_env.permission import NO_KEY, candidate_key, next_payload, protected
from policies.guard import attaches_key, first_send
from policies.moves import (
    ESCALATE,
    FINISH,
    FINISH_UNCERTAIN,
    NO_READBACK,
    SILENT,
    Move,
    look,
    reissue,
    shows_from_s,
    wait_until,
)


@compiled
def effects(seen: Record, truth: Record, law: Record, horizon_s: float) -> tuple[int, float]:
    """(items with an effect by ``horizon_s``, time [s] at which the last of them got its first).

    With an infinite horizon requests in flight count; one in transit counts with all that it wants,
    for what a key may suppress on its arrival has its effect elsewhere.
    """
    present = 0
    last_s = -math.inf
    bit = 1
    reach = 0
    for j in range(seen.n_attempts):
        reach |= seen.attempts[j].payload
    while bit <= reach:
        first_s = math.inf
        for j in range(seen.n_attempts):
            happened = truth.attempts[j]
            items = happened.wanted if happened.in_transit else happened.effect
            if items & bit:
                first_s = min(first_s, happened.execution_s)
            if happened.copy_effect & bit:
                first_s = min(first_s, happened.execution_s + law.copy_delay_s)
        if first_s <= horizon_s and first_s < math.inf:
            present |= bit
            last_s = max(last_s, first_s)
        bit <<= 1
    return present, last_s


@compiled
def supply(seen: Record, contract: Record, law: Record, present: int, last_s: float) -> Move:
    """Re-issue the items that are not ``present``, after making the client see those that are.

    ``last_s`` [s] is when the last of the present items got its effect.
    """
    if seen.n_attempts >= contract.max_attempts:
        return FINISH_UNCERTAIN, 0.0
    keyed = attaches_key(seen, contract)
    key = candidate_key(contract) if keyed else NO_KEY
    repeats = next_payload(seen, contract, key) & present != 0
    if not repeats or contract.idempotent or protected(seen, contract, key):
        return reissue(seen, contract, keyed)
    if contract.readback == NO_READBACK:
        # Partial effects are never in flight, so one report shows them all.
        return (FINISH_UNCERTAIN if seen.operator_status == SILENT else ESCALATE), 0.0
    lag_s = law.lag_s if contract.readback == rules.EVENTUAL else 0.0
    return look(seen, shows_from_s(last_s, lag_s))


@compiled
def state_oracle(
    seen: Record, contract: Record, truth: Record, law: Record, parameter: float
) -> Move:
    """The guard reading the true current state; requests in flight stay hidden from it."""
    if seen.n_attempts == 0:
        return first_send(contract)
    present, last_s = effects(seen, truth, law, seen.clock_s)
    last = seen.attempts[seen.n_attempts - 1]
    if last.response == rules.R_SUCCESS or present == rules.full_payload(contract.n_items):
        return FINISH, 0.0
    return supply(seen, contract, law, present, last_s)


@compiled
def outcome_oracle(
    seen: Record, contract: Record, truth: Record, law: Record, parameter: float
) -> Move:
    """Sees requests in flight: never re-issues what will commit, and waits exactly until it has."""
    if seen.n_attempts == 0:
        return first_send(contract)
    if seen.attempts[seen.n_attempts - 1].response == rules.R_SUCCESS:
        return FINISH, 0.0
    coming, last_s = effects(seen, truth, law, math.inf)
    if coming == rules.full_payload(contract.n_items):
        return (FINISH, 0.0) if seen.clock_s >= last_s else wait_until(seen, last_s)
    return supply(seen, contract, law, coming, last_s)
