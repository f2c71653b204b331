"""Retry permission: may this re-issue be made, given all that the client has seen?

Section 5 of the design.  The compiled `permitted` assumes a view that its own kernel made;
`exactlyonce_env.view.View.permits` checks a foreign view for contradictions first.
"""

from __future__ import annotations

from exactlyonce_env.compiled import Record, compiled
from exactlyonce_env.rules import full_payload, record_alive, retry_payload
from exactlyonce_env.vocabulary import CandidateKey, Key

NO_KEY = int(Key.NONE)
PINNED = int(Key.PINNED)
OTHER = int(Key.OTHER)
SAME = int(CandidateKey.SAME)


@compiled
def candidate_key(contract: Record) -> int:
    """The key that KEYED_RETRY sends."""
    return PINNED if contract.candidate_key == SAME else OTHER


@compiled
def next_payload(seen: Record, contract: Record, key: int) -> int:
    """Items that the next attempt sends: a key repeats the payload of its first use."""
    if key == PINNED and seen.pinned_payload != 0:
        return seen.pinned_payload
    if key == OTHER and seen.other_payload != 0:
        return seen.other_payload
    return retry_payload(seen.read_at_s >= 0.0, seen.shown, full_payload(contract.n_items))


@compiled
def protected(seen: Record, contract: Record, key: int) -> bool:
    """Whether the key makes the next attempt a replay: rule 1."""
    if key == NO_KEY or not contract.accepts_key:
        return False
    for j in range(seen.n_attempts):
        attempt = seen.attempts[j]
        if attempt.payload & ~attempt.clear == 0:
            continue
        if attempt.key != key or not record_alive(
            attempt.sent_s, contract.key_retention_s, seen.clock_s
        ):
            return False
    return True


@compiled
def known_absent(seen: Record, payload: int) -> bool:
    """Whether every earlier attempt is known effect-free for ``payload`` for good: rule 3."""
    for j in range(seen.n_attempts):
        attempt = seen.attempts[j]
        if attempt.payload & payload & ~attempt.clear != 0:
            return False
    return True


@compiled
def permitted(seen: Record, contract: Record, key: int) -> bool:
    """Whether sending the next attempt with ``key`` is permitted from the visible history alone."""
    return permitted_items(seen, contract, key, next_payload(seen, contract, key))


@compiled
def permitted_items(seen: Record, contract: Record, key: int, payload: int) -> bool:
    """`permitted` for a client that chooses the items it sends again."""
    if contract.idempotent:  # rule 2
        return True
    return protected(seen, contract, key) or known_absent(seen, payload)
