"""The simple clients, each one scalar function of view, contract and parameter."""

from __future__ import annotations

import math

from exactlyonce_env import rules
from exactlyonce_env.compiled import Record, compiled
from exactlyonce_env.permission import PINNED
from policies.moves import (
    FINISH,
    FINISH_UNCERTAIN,
    KEYED_RETRY,
    RETRY,
    Move,
    ask,
    complete,
    reissue,
    repeat,
    verify,
    wait_until,
)

SDK_REISSUES = 3
SDK_FIRST_PAUSE_S = 1.0


@compiled
def never_retry(seen: Record, contract: Record, parameter: float) -> Move:
    """Finish at once, uncertain after an error."""
    if seen.n_attempts == 0:
        return RETRY, 0.0
    if seen.attempts[seen.n_attempts - 1].response == rules.R_SUCCESS:
        return FINISH, 0.0
    return FINISH_UNCERTAIN, 0.0


@compiled
def blind_retry(seen: Record, contract: Record, parameter: float) -> Move:
    """Re-issue on any error until acknowledged."""
    if seen.n_attempts == 0:
        return RETRY, 0.0
    if seen.attempts[seen.n_attempts - 1].response == rules.R_SUCCESS:
        return FINISH, 0.0
    return repeat(seen, contract)


@compiled
def sdk_retry(seen: Record, contract: Record, parameter: float) -> Move:
    """Re-issue after a time-out, 5xx or 429, three times, after pauses of 1, 2 and 4 s."""
    if seen.n_attempts == 0:
        return RETRY, 0.0
    last = seen.attempts[seen.n_attempts - 1]
    if last.response == rules.R_SUCCESS:
        return FINISH, 0.0
    retryable = rules.is_unknown(last.response) or is_throttled(last.response)
    if not retryable or seen.n_reissues >= SDK_REISSUES:
        return FINISH_UNCERTAIN, 0.0
    due_s = last.answered_s + math.ldexp(SDK_FIRST_PAUSE_S, int(seen.n_reissues))
    if seen.n_attempts < contract.max_attempts and seen.clock_s < due_s:
        return wait_until(seen, max(due_s, seen.retry_at_s))
    return repeat(seen, contract)


@compiled
def only_rules(seen: Record, contract: Record, parameter: float) -> Move:
    """Re-issue only after 429 and 503, which say that nothing happened."""
    if seen.n_attempts == 0:
        return RETRY, 0.0
    response = seen.attempts[seen.n_attempts - 1].response
    if response == rules.R_SUCCESS:
        return FINISH, 0.0
    if is_throttled(response):
        return repeat(seen, contract)
    return FINISH_UNCERTAIN, 0.0


@compiled
def is_throttled(response: int) -> bool:
    """Whether the response is a 429 or 503."""
    return response == rules.R_RATE_LIMITED or response == rules.R_UNAVAILABLE


@compiled
def verify_retry(seen: Record, contract: Record, parameter: float) -> Move:
    """Read at once; re-issue only if the effect is absent."""
    return verify(seen, contract, 0.0, 0.0)


@compiled
def same_key(seen: Record, contract: Record, parameter: float) -> Move:
    """Send and re-issue with the key until acknowledged; plain where no key is taken."""
    keyed = contract.accepts_key != 0
    if seen.n_attempts == 0:
        return (KEYED_RETRY if keyed else RETRY), 0.0
    if seen.attempts[seen.n_attempts - 1].response == rules.R_SUCCESS:
        return FINISH, 0.0
    return reissue(seen, contract, keyed)


@compiled
def escalate(seen: Record, contract: Record, parameter: float) -> Move:
    """Ask the operator at once about an unknown outcome, then act on the answer."""
    if seen.n_attempts == 0:
        return RETRY, 0.0
    if complete(seen, contract):
        return FINISH, 0.0
    if rules.is_rejection(seen.attempts[seen.n_attempts - 1].response):
        return repeat(seen, contract)
    return ask(seen, contract, seen.attempts[0].key == PINNED)
