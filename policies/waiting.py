"""Calibrated persistence by hand: verification that is put off until a bound Δ has passed."""

from __future__ import annotations

from exactlyonce_env.compiled import Record, compiled
from policies.moves import Move, known_lag_s, shows_from_s, verify


@compiled
def bound_s(seen: Record, contract: Record, delta_s: float) -> float:
    """When a read shows every commit up to ``delta_s`` after the last attempt was sent.

    Δ below the time of the response means the response; the documented lag comes on top.
    """
    if seen.n_attempts == 0:
        return 0.0
    last = seen.attempts[seen.n_attempts - 1]
    commit_s = max(last.answered_s, last.sent_s + delta_s)
    return shows_from_s(commit_s, known_lag_s(contract))


@compiled
def wait(seen: Record, contract: Record, delta_s: float) -> Move:
    """Read once, Δ + lag after the last attempt was sent; re-issue if the effect is absent then."""
    due_s = bound_s(seen, contract, delta_s)
    return verify(seen, contract, due_s, due_s)


@compiled
def poll(seen: Record, contract: Record, delta_s: float) -> Move:
    """Read at once and after gaps of 15, 30, 60, ... s until Δ + lag; re-issue if still absent."""
    return verify(seen, contract, 0.0, bound_s(seen, contract, delta_s))
