"""`clairvoyant`: the best reachable reward in this very world, an upper bound for every client.

A world is deterministic once it is drawn, so the bound is the maximum over action sequences.
Waiting matters only until something changes, so the search waits to the next events and to nothing
else; it reads or asks only where the report would change what a re-issue sends.  Branch and bound
does the rest: a branch is left as soon as even a success at no further cost could not beat the best
found.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from exactlyonce_env import rules
from exactlyonce_env.compiled import Array, Record, compiled
from exactlyonce_env.kernel import (
    ESCALATE,
    FINISH,
    FINISH_UNCERTAIN,
    KEYED_RETRY,
    READ,
    RETRY,
    RUNNING,
    WAIT,
    act,
    begin,
)
from exactlyonce_env.plan import Plan
from exactlyonce_env.records import MAX_ATTEMPTS, N_TERMS, OUTCOME, TRUTH, VIEW
from exactlyonce_env.settlement import count_effects, write_outcome
from exactlyonce_env.vocabulary import Action
from exactlyonce_env.world_state import visible_items

MAX_DEPTH = 48
"""Longest action sequence searched; longer ones never pay, as attempts bound what can change."""

_EVENTS_EACH = (
    5  # arrival, execution, its visibility, its copy's visibility, expiry of its key record
)
_FIRST_EVENT = 6
_N_CANDIDATES = _FIRST_EVENT + MAX_ATTEMPTS * _EVENTS_EACH + 1


@compiled
def _event_s(contract: Record, law: Record, seen: Record, truth: Record, k: int) -> float:
    """Time of event ``k`` [s]; not after the clock where there is none worth waiting for."""
    if k == MAX_ATTEMPTS * _EVENTS_EACH:
        return truth.outage_until_s
    j = k // _EVENTS_EACH
    kind = k % _EVENTS_EACH
    if j >= seen.n_attempts:
        return -1.0
    happened = truth.attempts[j]
    keyed = seen.attempts[j].key != 0 and contract.accepts_key
    if kind == 0:
        return happened.arrival_s if happened.in_transit else -1.0
    if kind == 4:
        return happened.arrival_s + contract.key_retention_s if keyed else -1.0
    if contract.n_items == 1 and not keyed:
        return -1.0
    mask = happened.copy_effect if kind == 3 else happened.effect
    if mask == 0:
        return -1.0
    at_s = happened.execution_s
    if kind == 3:
        at_s += law.copy_delay_s
    if kind >= 2 and contract.readback == rules.EVENTUAL:
        at_s += law.lag_s
    return at_s


@compiled
def _report_helps(contract: Record, law: Record, seen: Record, truth: Record, action: int) -> bool:
    """Whether a read or an operator's report would change the items that a plain retry sends."""
    if contract.n_items == 1 or seen.n_attempts == 0:
        return False
    if action == READ:
        if contract.readback < rules.STRONG or seen.clock_s < truth.outage_until_s:
            return False
        horizon_s = rules.read_horizon_s(contract.readback, law.lag_s, seen.clock_s)
    else:
        if not truth.operator_answers:
            return False
        horizon_s = seen.clock_s + contract.operator_delay_s
    return seen.read_at_s < 0.0 or visible_items(law, seen, truth, horizon_s) != seen.shown


@compiled
def _candidate(
    contract: Record, law: Record, seen: Record, truth: Record, c: int
) -> tuple[bool, int, float]:
    """(worth trying, action, seconds) of candidate ``c`` in this state."""
    if c == 0:
        return True, FINISH, 0.0
    if c == 1:
        return True, FINISH_UNCERTAIN, 0.0
    if c == 2:
        return seen.n_attempts < contract.max_attempts, RETRY, 0.0
    if c == 3:
        sendable = seen.n_attempts < contract.max_attempts and contract.accepts_key != 0
        return sendable, KEYED_RETRY, 0.0
    if c == 4:
        return _report_helps(contract, law, seen, truth, READ), READ, 0.0
    if c == 5:
        return _report_helps(contract, law, seen, truth, ESCALATE), ESCALATE, 0.0
    at_s = _event_s(contract, law, seen, truth, c - _FIRST_EVENT)
    return seen.clock_s < at_s < np.inf, WAIT, at_s - seen.clock_s


@compiled
def _best_future(contract: Record, seen: Record, truth: Record) -> float:
    """No continuation of this state earns more than this."""
    costs = contract.costs
    duplicates, _ = count_effects(contract, seen, truth)
    if duplicates == 0:
        return costs.success
    return -costs.duplicate * duplicates - min(costs.overclaim, costs.unresolved)


@compiled
def search(
    contexts: Array,
    context_cdf: Array,
    table: Array,
    seed: np.uint64,
    ids: Array,
    seen: Array,
    truth: Array,
    plan: Array,
    seconds: Array,
    rewards: Array,
    outcomes: Array,
) -> None:
    """Best reward of each of the worlds ``ids`` (n,) and the outcome of earning it.

    ``seen`` and ``truth`` (MAX_DEPTH + 1,) are the stack; ``plan`` and ``seconds`` (MAX_DEPTH,) are
    left with the best actions of the last world.
    """
    tried = np.zeros(MAX_DEPTH + 1, np.int64)
    earned = np.zeros(MAX_DEPTH + 1)
    path = np.zeros(MAX_DEPTH, np.int64)
    path_seconds = np.zeros(MAX_DEPTH)
    terms = np.zeros(N_TERMS)
    for i in range(len(ids)):
        begin(contexts, context_cdf, table, seed, ids[i], seen[0], truth[0])
        contract = contexts[truth[0].context].contract
        law = contexts[truth[0].context].law
        limit = min(MAX_DEPTH, contract.max_steps)
        rewards[i] = -np.inf
        depth = 0
        tried[0] = 0
        while depth >= 0:
            c = tried[depth]
            if c >= _N_CANDIDATES:
                depth -= 1
                continue
            tried[depth] = c + 1
            worth, action, wait_s = _candidate(contract, law, seen[depth], truth[depth], c)
            if not worth:
                continue
            seen[depth + 1] = seen[depth]
            truth[depth + 1] = truth[depth]
            after = seen[depth + 1]
            happened = truth[depth + 1]
            value = earned[depth] + act(contexts, table, after, happened, action, wait_s, terms)
            path[depth] = action
            path_seconds[depth] = wait_s
            if after.ending != RUNNING:
                if value > rewards[i]:
                    rewards[i] = value
                    write_outcome(contract, after, happened, outcomes[i])
                    for k in range(depth + 1):
                        plan[k] = path[k]
                        seconds[k] = path_seconds[k]
            elif depth + 1 < limit and (
                value + _best_future(contract, after, happened) > rewards[i]
            ):
                depth += 1
                tried[depth] = 0
                earned[depth] = value


def best_episodes(
    plan: Plan, seed: int, ids: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[Any]]:
    """Best reachable reward of each world and the outcome of earning it.

    Returns rewards (n,) float64 and `OUTCOME` records (n,), in the order of ``ids`` (n,).
    """
    rewards, outcomes, _, _ = _search(plan, seed, np.asarray(ids, dtype=np.int64))
    return rewards, outcomes


def best_sequence(plan: Plan, seed: int, world: int) -> tuple[float, list[tuple[Action, float]]]:
    """Best reachable reward of one world and the actions (kind, seconds) that earn it."""
    rewards, outcomes, kinds, seconds = _search(plan, seed, np.array([world]))
    steps = range(int(outcomes["steps"][0]))
    return float(rewards[0]), [(Action(int(kinds[k])), float(seconds[k])) for k in steps]


def _search(
    plan: Plan, seed: int, ids: npt.NDArray[np.int64]
) -> tuple[
    npt.NDArray[np.float64], npt.NDArray[Any], npt.NDArray[np.int64], npt.NDArray[np.float64]
]:
    """`search` with its buffers: rewards, outcomes, and the last world's actions and waits."""
    rewards, outcomes = np.zeros(len(ids)), np.zeros(len(ids), dtype=OUTCOME)
    kinds, seconds = np.zeros(MAX_DEPTH, dtype=np.int64), np.zeros(MAX_DEPTH)
    search(
        plan.contexts,
        plan.context_cdf,
        plan.table,
        np.uint64(seed),
        ids,
        np.zeros(MAX_DEPTH + 1, dtype=VIEW),
        np.zeros(MAX_DEPTH + 1, dtype=TRUTH),
        kinds,
        seconds,
        rewards,
        outcomes,
    )
    return rewards, outcomes, kinds, seconds
