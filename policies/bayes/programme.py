"""The dynamic programme of one view: what each action is worth there.

Between two sendings the client's problem is one of optimal stopping: choose the times of the reads,
and at each of them, as long as they show nothing new, read on, re-issue, ask the operator, claim
completion or give up.  The state is the last read that showed nothing new, so the programme runs
over (steps left, attempts left, what is known of the operator, last read).  What a further sending
leads to is looked up.

Times count from the view's clock.  Values are not normalised: they carry the weight of the
hypotheses that are still possible.  The tables have a slot for the steps left now, one for one step
fewer and one for two; without a limit to the steps they have one slot.
"""

from __future__ import annotations

import math

import numpy as np

from exactlyonce_env.actions import MAX_WAIT_S, WAITS_S
from exactlyonce_env.compiled import Array, Record, compiled
from exactlyonce_env.vocabulary import Readback
from policies.bayes.moves import (
    EPS_S,
    after_waiting,
    all_known,
    ask,
    later_blind,
    price,
    read,
    send,
    steps_after_sending,
    waits_needed,
)
from policies.bayes.records import (
    ANSWERS,
    KEYED,
    N_LEVELS,
    N_OPERATOR,
    NEVER_ANSWERS,
    Q_ESCALATE,
    Q_FINISH,
    Q_FIRST_WAIT,
    Q_KEYED,
    Q_READ,
    Q_RETRY,
    Q_UNCERTAIN,
    Answer,
    Left,
    Scene,
    Tables,
)
from policies.bayes.scene import operator_states
from policies.bayes.sums import TINY

NO_READBACK = int(Readback.NONE)
AUTHORITATIVE = int(Readback.AUTHORITATIVE)
CLOSE = 0.05
"""Belief after a quiet report and after a quiet read count as the same within this share."""

STEADY = 1e-9
"""Share of the weight by which values may still change where they count as final."""

N_ACTIONS = Q_FIRST_WAIT + len(WAITS_S)


@compiled
def programme(
    scene: Scene, view: Record, wanted: tuple[int, int, int], free: bool, lowest: int
) -> Answer:
    """Fill the tables, and value the view and its actions; see `policies.bayes.solving.solve`.

    ``free``: without a limit to the steps; the last axis of all that is looked up then holds the
    number of steps that may be needed, and the value.  ``lowest`` is the least number of attempts
    left that is looked at.
    """
    states = scene.states
    scene.node.free = free
    n_steps = scene.lookup.fresh.shape[3] - 1
    active = operator_states(scene.contract, view)
    shape = (1 if free else 3, N_OPERATOR, N_LEVELS, len(states))
    tables = Tables(
        np.zeros(shape),
        np.full(shape, -math.inf),
        np.zeros(shape, np.int64),
        np.ones((2, N_OPERATOR, N_LEVELS, len(states)), np.int64),
    )
    values = np.zeros((N_OPERATOR, N_LEVELS, n_steps + 1))
    total = max(states[0].weight, TINY)
    for i in range(len(states)):
        idle = max(states[i].claimed, states[i].unclaimed) if free else states[i].unclaimed
        tables.now[0, :, :, i] = idle
    values[:, :, 0] = states[0].unclaimed / total
    operator, level, k = wanted
    if free:
        _fill_endless(scene, tables, active, lowest, values)
        left = Left(operator, level, 0, 1, 0, 1)
    else:
        k = min(k, n_steps)
        slots = _fill_counted(scene, tables, active, lowest, values, k)
        left = Left(operator, level, slots[0], k - 1, slots[1], k - 2)
    return _value_actions(scene, tables, left, k, values)


@compiled
def _fill_endless(scene: Scene, tables: Tables, active: Array, lowest: int, values: Array) -> None:
    """The tables without a limit to the steps, and the view's ``values``."""
    node, states = scene.node, scene.states
    now, later, need = tables.now, tables.later, tables.need
    total = max(states[0].weight, TINY)
    # Later states first, and those reached by reads before those reached by reports.
    for r in range(node.n_states - 1, -1, -1):
        for part in range(len(states) // node.n_states):
            i = r + part * node.n_states
            for o in range(N_OPERATOR - 1, -1, -1):
                if not active[o] or states[i].weight <= TINY:
                    now[0, o, :, i] = 0.0
                    continue
                for level in range(lowest, N_LEVELS):
                    left = Left(o, level, 0, 1, 0, 1)
                    _fill_later(scene, tables, left, 0, i)
                    for _ in range(4):  # a refused sending leads back to the same state
                        if _fill_now(scene, tables, left, 0, i) <= STEADY * total:
                            break
                    at_once = now[0, o, level, i]
                    at_once -= node.second * states[i].weight * states[i].after_s
                    if at_once >= later[0, o, level, i]:
                        need[1, o, level, i] = need[0, o, level, i]
    for o in range(N_OPERATOR):
        for level in range(lowest, N_LEVELS):
            values[o, level, 0] = need[1, o, level, 0]
            values[o, level, 1] = max(now[0, o, level, 0], later[0, o, level, 0]) / total


@compiled
def _fill_counted(
    scene: Scene, tables: Tables, active: Array, lowest: int, values: Array, wanted: int
) -> tuple[int, int]:
    """The tables for each number of steps left, and the view's ``values`` (..., n_steps + 1).

    Up to ``wanted`` steps; all of them where that is negative.  Returns the slots of one and two
    steps fewer than were wanted.
    """
    states, now, later = scene.states, tables.now, tables.later
    total = max(states[0].weight, TINY)
    n_steps = values.shape[2] - 1
    slot, one, two = 0, 0, 0
    steady = 0
    for k in range(1, (n_steps if wanted < 0 else wanted) + 1):
        if steady < 2:
            slot, one, two = k % 3, (k - 1) % 3, max(k - 2, 0) % 3
            change = 0.0
            for o in range(N_OPERATOR):
                for level in range(lowest, N_LEVELS):
                    left = Left(o, level, one, k - 1, two, k - 2)
                    for i in range(len(states) - 1, -1, -1):
                        if not active[o] or states[i].weight <= TINY:
                            now[slot, o, level, i] = 0.0
                            later[slot, o, level, i] = -math.inf
                            continue
                        change = max(change, _fill_now(scene, tables, left, slot, i))
                        change = max(change, _fill_later(scene, tables, left, slot, i))
            steady = steady + 1 if change < STEADY * total else 0
        for o in range(N_OPERATOR):
            for level in range(lowest, N_LEVELS):
                values[o, level, k] = max(now[slot, o, level, 0], later[slot, o, level, 0]) / total
    return one, two


@compiled
def _fill_now(scene: Scene, tables: Tables, left: Left, slot: int, i: int) -> float:
    """Find the best that can be done at once in state ``i``; returns by how much it changed."""
    node, sent, need = scene.node, scene.sent, tables.need
    o, level = left.operator, left.level
    state = scene.states[i]
    best = max(state.claimed, state.unclaimed)
    needed = 1
    if level > 0:
        # What a key leads to is not summed up behind reports.
        for how in range(2 if scene.contract.accepts_key and i < node.n_states else 1):
            value = send(scene, tables, left, sent[how, i], i, how)
            if value > best:
                best = value
                needed = 1 + steps_after_sending(scene, left, sent[how, i], i, how)
    if o != NEVER_ANSWERS and not node.settled and i < node.n_states:
        value = ask(scene, tables, left, i, i)
        if value > best:
            best = value
            needed = 1 + max(1, need[1, ANSWERS, level, state.quiet_state])
    change = abs(best - tables.now[left.slot, o, level, i])
    tables.now[slot, o, level, i] = best
    need[0, o, level, i] = needed
    return change


@compiled
def _fill_later(scene: Scene, tables: Tables, left: Left, slot: int, i: int) -> float:
    """Find the best that can be done later in state ``i``; returns by how much it changed."""
    contract, node, states = scene.contract, scene.node, scene.states
    later, target, need = tables.later, tables.target, tables.need
    o, level, one = left.operator, left.level, left.slot
    waited = after_waiting(node, left)
    state = states[i]
    n_states = node.n_states
    blind = contract.readback == NO_READBACK
    best = -math.inf
    leads_to = 0
    needed = 1
    if i >= n_states:  # go on reading where reads will have shown as much
        q = state.read_state
        if abs(states[q].weight - state.weight) <= CLOSE * state.weight:
            best = later[one, o, level, q] * state.weight / states[q].weight
            leads_to = target[one, o, level, q]
            needed = need[1, o, level, q]
    elif contract.readback == AUTHORITATIVE:
        if i == 0 and n_states > 1 and not node.settled:
            best = all_known(scene, o, level, left.steps)
            best -= state.weight * (contract.costs.read + node.second * states[1].after_s)
            leads_to = 1
            needed = 4
    elif not blind and not node.settled:
        for t in range(i + 1, n_states):
            wait_s = states[t].after_s - contract.latency_s - state.after_s
            if wait_s < -EPS_S:
                continue
            if wait_s > MAX_WAIT_S:
                break
            if states[t].weight >= state.weight and not node.expires:
                continue  # a read that cannot show anything
            waits = wait_s > EPS_S
            after = waited if waits else left
            if after.steps < 0:
                continue
            value = read(scene, tables, after, i, t) - price(node, state.weight, wait_s)
            if value > best:
                best = value
                leads_to = t
                needed = (2 if waits else 1) + need[1, o, level, t]
    if waited.steps >= 0 and i < n_states and (blind or (i == 0 and node.expires)):
        for t in range(i + 1, n_states):
            value = later_blind(scene, tables, waited, i, t)
            if value > best:
                best = value
                leads_to = t
                needed = 2 + 6
    change = abs(best - later[one, o, level, i]) if best > -math.inf else 0.0
    later[slot, o, level, i] = best
    target[slot, o, level, i] = leads_to
    at_once = tables.now[slot, o, level, i] - node.second * state.weight * state.after_s
    need[1, o, level, i] = need[0, o, level, i] if at_once >= best else needed
    return change


@compiled
def _value_actions(scene: Scene, tables: Tables, left: Left, k: int, values: Array) -> Answer:
    """The worth of each action of the view, with ``k`` steps left; not valued where k < 1."""
    contract, node, states = scene.contract, scene.node, scene.states
    o, level = left.operator, left.level
    weight = states[0].weight
    total = max(weight, TINY)
    idle = (states[0].claimed / total, states[0].unclaimed / total)
    actions = np.full(N_ACTIONS, -math.inf)
    best_wait, best_wait_s = -math.inf, 0.0
    if k < 1:
        return Answer(weight, values, actions, best_wait_s, best_wait, idle)
    waited = after_waiting(node, left)
    now = tables.now[left.slot, o, level, 0]
    blind = contract.readback == NO_READBACK
    actions[Q_FINISH] = states[0].claimed
    actions[Q_UNCERTAIN] = states[0].unclaimed
    for how in range((2 if contract.accepts_key else 1) if level > 0 else 0):
        worth = send(scene, tables, left, scene.sent[how, 0], 0, how)
        actions[Q_KEYED if how == KEYED else Q_RETRY] = worth
    if o != NEVER_ANSWERS:
        actions[Q_ESCALATE] = ask(scene, tables, left, 0, 0)
    else:  # nobody answers: the time is spent and the question costs
        spent = contract.costs.escalation + node.second * contract.operator_delay_s
        actions[Q_ESCALATE] = now - weight * spent
    if contract.readback == AUTHORITATIVE:
        actions[Q_READ] = all_known(scene, o, level, left.steps)
        actions[Q_READ] -= weight * (contract.costs.read + node.second * states[1].after_s)
    elif not blind:
        actions[Q_READ] = read(scene, tables, left, 0, 1)
        actions[Q_READ] -= price(node, weight, 0.0)
        if states[1].weight >= weight:
            actions[Q_READ] -= 1e-9 * total  # it cannot show anything, even where it costs nothing
    for t in range(1, node.n_states):
        wait_s = states[t].after_s - contract.latency_s
        if wait_s <= EPS_S or wait_s > MAX_WAIT_S or k < 2:
            continue
        value = now - node.second * weight * wait_s
        if blind or node.expires:
            value = max(value, later_blind(scene, tables, waited, 0, t))
        if contract.readback == AUTHORITATIVE:
            known = all_known(scene, o, level, waited.steps)
            known -= weight * (contract.costs.read + node.second * states[t].after_s)
            value = max(value, known)
        elif not blind:
            reading = read(scene, tables, waited, 0, t)
            value = max(value, reading - price(node, weight, wait_s))
        if value > best_wait:
            best_wait, best_wait_s = value, wait_s
        leads_to = tables.target[left.slot, o, level, 0]
        if leads_to > t:  # or wait on from there
            rest_s = states[leads_to].after_s - states[t].after_s
            whole_s = states[leads_to].after_s - contract.latency_s
            more = waits_needed(wait_s) + waits_needed(rest_s) - waits_needed(whole_s)
            further = tables.later[left.slot, o, level, 0] - node.step_price * total * more
            value = max(value, further)
        for w in range(len(WAITS_S)):
            if abs(wait_s - WAITS_S[w]) < 1e-5:
                actions[Q_FIRST_WAIT + w] = value
    actions /= total
    return Answer(weight, values, actions, best_wait_s, best_wait / total, idle)
