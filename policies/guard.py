"""The careful client: keys where taken, verification where possible, else the operator."""

from __future__ import annotations

from exactlyonce_env import rules
from exactlyonce_env.compiled import Record, compiled
from exactlyonce_env.permission import (
    NO_KEY,
    candidate_key,
    known_absent,
    next_payload,
    permitted,
    protected,
)
from policies.moves import (
    FINISH,
    FINISH_UNCERTAIN,
    KEYED_RETRY,
    NO_READBACK,
    RETRY,
    Move,
    ask,
    complete,
    known_lag_s,
    look,
    looked,
    next_look_s,
    pending,
    reissue,
    shows_from_s,
)


@compiled
def first_send(contract: Record) -> Move:
    """The original, with a key wherever one is taken."""
    return (KEYED_RETRY if contract.accepts_key else RETRY), 0.0


@compiled
def attaches_key(seen: Record, contract: Record) -> bool:
    """Whether the next attempt carries the key.

    A key repeats the payload of its first use, so it is left off where that payload holds items
    that are there already and the key would not protect them.
    """
    if not contract.accepts_key:
        return False
    key = candidate_key(contract)
    if protected(seen, contract, key):
        return True
    return next_payload(seen, contract, key) & seen.shown == 0


@compiled
def guard(seen: Record, contract: Record, parameter: float) -> Move:
    """Re-issue at once what is permitted; verify the rest, again after the lag; else ask.

    Permission is section 5 of the design: a protected replay, an idempotent write, a known absence.
    """
    if seen.n_attempts == 0:
        return first_send(contract)
    if complete(seen, contract):
        return FINISH, 0.0
    keyed = attaches_key(seen, contract)
    sendable = seen.n_attempts < contract.max_attempts
    if sendable and permitted(seen, contract, candidate_key(contract) if keyed else NO_KEY):
        return reissue(seen, contract, keyed)
    if contract.readback == NO_READBACK:
        if not sendable and known_absent(seen, rules.full_payload(contract.n_items)):
            return FINISH_UNCERTAIN, 0.0
        return ask(seen, contract, keyed)
    if not looked(seen):
        return look(seen, 0.0)
    if pending(seen):
        return look(seen, next_look_s(seen))
    if contract.readback == rules.EVENTUAL and contract.lag_s < 0.0:
        return ask(seen, contract, keyed)  # nobody says how long to wait for the effect to show
    answered_s = seen.attempts[seen.n_attempts - 1].answered_s
    verified_s = shows_from_s(answered_s, known_lag_s(contract))
    if seen.read_at_s < verified_s:
        return look(seen, verified_s)
    return reissue(seen, contract, keyed)
