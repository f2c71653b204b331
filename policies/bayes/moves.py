"""What one move is worth in a state of a view, given what the states that it leads to are worth.

Values carry the weight of the hypotheses that are still possible; see `policies.bayes.programme`.
"""

from __future__ import annotations

import math

from exactlyonce_env.actions import MAX_WAIT_S, WAITS_S
from exactlyonce_env.compiled import Record, compiled
from policies.bayes.records import (
    ANSWERS,
    DELAYED,
    KEYED,
    MAX_LEVEL,
    NEVER_ANSWERS,
    PLAIN,
    TIMEOUT,
    Left,
    Scene,
    Tables,
)
from policies.bayes.sums import TINY

EPS_S = 1e-9
"""Seconds that are rounding."""


@compiled
def level_after_sending(node: Record, level: int) -> int:
    """Attempts left after one more, as the programme counts them."""
    return level if level == MAX_LEVEL and node.endless else level - 1


@compiled
def after_waiting(node: Record, left: Left) -> Left:
    """What is left of ``left`` once a wait has taken a step."""
    steps = left.next_steps
    return Left(
        left.operator,
        left.level,
        left.next_slot,
        steps,
        left.next_slot,
        steps if node.free else steps - 1,
    )


@compiled
def _value_at(
    scene: Scene, tables: Tables, slot: int, operator: int, level: int, i: int, clock_s: float
) -> float:
    """Value, from the view's clock, of state ``i`` at ``clock_s``, maybe later than its read."""
    states = scene.states
    value = tables.now[slot, operator, level, i] - scene.node.second * states[i].weight * clock_s
    leads_to = tables.target[slot, operator, level, i]
    if leads_to > 0 and states[leads_to].after_s >= clock_s:
        value = max(value, tables.later[slot, operator, level, i])
    return value


@compiled
def all_known(scene: Scene, operator: int, level: int, steps: int) -> float:
    """Value of having been told of every attempt what becomes of it, with ``steps`` left."""
    node, lacking, fresh = scene.node, scene.lacking, scene.lookup.fresh
    total = node.known_best if steps > 0 else node.known_unclaimed
    for missing in range(1, len(lacking)):
        if lacking[missing] > 0.0:
            total += lacking[missing] * fresh[missing, operator, level, steps]
    return total


@compiled
def read(scene: Scene, tables: Tables, left: Left, i: int, target: int) -> float:
    """Value, from the view's clock, of making read ``target - 1`` next in state ``i``."""
    contract, node = scene.contract, scene.node
    o, level, k = left.operator, left.level, left.steps
    here, there = scene.states[i], scene.states[target]
    claimed = here.news_claimed - there.news_claimed
    unclaimed = here.news_unclaimed - there.news_unclaimed
    value = max(claimed, unclaimed) if k > 0 else unclaimed
    value -= contract.costs.read * here.weight
    value -= node.second * (here.weight - there.weight) * there.after_s
    for m in range(1, contract.n_items):
        news = scene.partial[0, m, i] - scene.partial[0, m, target]
        if news > 0.0:
            value += news * scene.lookup.fresh[contract.n_items - m, o, level, k]
    quiet = tables.now[left.slot, o, level, target] - node.second * there.weight * there.after_s
    return value + max(quiet, tables.later[left.slot, o, level, target])


@compiled
def send(scene: Scene, tables: Tables, left: Left, outcome: Record, i: int, how: int) -> float:
    """Value, as from then, of sending in state ``i``; ``outcome``: what that leads to, SENT."""
    contract, node = scene.contract, scene.node
    fresh, opened, children = scene.lookup.fresh, scene.lookup.opened, scene.lookup.children.values
    o, k = left.operator, left.steps
    state = scene.states[i]
    level = level_after_sending(node, left.level)
    value = -node.second * outcome.delay_s
    if not node.first:
        value -= contract.costs.reissue * state.weight
    if contract.dispatch_claims and not node.first:
        value += outcome.claimed
    elif k > 0:
        value += max(outcome.claimed, outcome.unclaimed)
    else:
        value += outcome.unclaimed
    if k > 0:
        value += max(outcome.refused_claimed, outcome.refused_unclaimed)
    else:
        value += outcome.refused_unclaimed
    lost = node.second * state.weight * state.after_s
    if node.first:  # whatever comes next is a re-issue with its own distribution of fates
        again = fresh[node.n_items, o, level]
        value += state.weight * node.rejected * (again[k] - node.second * contract.latency_s)
        after_outage = again[max(left.next_steps, 0)] - node.second * node.outage_s
        value += state.weight * node.outage * after_outage
    else:
        for outage in range(2):
            p = node.outage if outage else node.rejected
            if p > 0.0:
                after_s = state.after_s + (node.outage_s if outage else contract.latency_s)
                slot = left.slot if k == 0 or not outage else left.next_slot
                then = lost + _value_at(scene, tables, slot, o, level, i, after_s)
                if outage and k > 0:  # or end it before the outage does
                    idle = max(state.claimed, state.unclaimed)
                    then = max(then, idle - node.second * state.weight * contract.latency_s)
                value += p * then
    for response in range(2):
        p = outcome.open_weight[response]
        if p <= 0.0:
            continue
        seconds = contract.client_timeout_s if response == TIMEOUT else contract.latency_s
        if len(children) > 0:
            g = state.row
            low = children[g, how, response, o, level, k]
            high = children[min(g + 1, len(children) - 1), how, response, o, level, k]
            value += p * (low + state.row_share * (high - low) - node.second * seconds)
            continue
        if k == 0:
            value += outcome.open_unclaimed[response] - node.second * p * seconds
            continue
        # Two ways of knowing more than one does: what the earlier attempts do, or what this one.
        value_then = outcome.alone_weight[response] * opened[how, response, o, level, k]
        value_then += outcome.beside[response] - node.second * p * seconds
        if how == PLAIN and not node.first:
            absent = node.absent[response]
            after_s = state.after_s + seconds
            other = _value_at(scene, tables, left.slot, o, level, i, after_s)
            other = absent * (other + lost)
            other += (1.0 - absent) * (outcome.once_best - node.second * state.weight * seconds)
            value_then = min(value_then, other * p / state.weight)
        value += value_then
    return value


@compiled
def steps_after_sending(scene: Scene, left: Left, outcome: Record, i: int, how: int) -> int:
    """Steps that may follow a sending if there is no limit to them."""
    node, opened, children = scene.node, scene.lookup.opened, scene.lookup.children.values
    o, level = left.operator, level_after_sending(scene.node, left.level)
    needed = 1
    for response in range(2):
        if outcome.open_weight[response] > 0.0:
            follows = opened[how, response, o, level, 0]
            if len(children) > 0:
                g = scene.states[i].row
                follows = max(
                    children[g, how, response, o, level, 0],
                    children[min(g + 1, len(children) - 1), how, response, o, level, 0],
                )
            needed = max(needed, int(follows))
    return needed + (1 if node.rejected + node.outage > 0.0 else 0)


@compiled
def ask(scene: Scene, tables: Tables, left: Left, i: int, t: int) -> float:
    """Value, as from then, of asking the operator in state ``i``.

    At once, or at the time of read ``t - 1`` where ``t`` is not ``i``, without having made it.
    """
    contract, node, states = scene.contract, scene.node, scene.states
    slot, level, k = left.slot, left.level, left.steps
    state = states[i]
    weight = state.weight
    asked_s = state.after_s if t == i else states[t].after_s - contract.latency_s
    clock_s = asked_s + contract.operator_delay_s
    likely = 1.0 if left.operator == ANSWERS else contract.operator_answer_rate
    if contract.operator_sees_in_flight:
        answered = all_known(scene, ANSWERS, level, k)
        answered *= weight / max(states[0].weight, TINY)
        answered -= node.second * weight * clock_s
    else:
        j = states[t].report_state
        quiet = states[j].report_weight
        claimed = state.news_claimed - states[j].report_claimed
        unclaimed = state.news_unclaimed - states[j].report_unclaimed
        answered = max(claimed, unclaimed) if k > 0 else unclaimed
        answered -= node.second * (weight - quiet) * clock_s
        for m in range(1, contract.n_items):
            news = scene.partial[0, m, i] - scene.partial[1, m, j]
            if news > 0.0:
                answered += news * scene.lookup.fresh[contract.n_items - m, ANSWERS, level, k]
        q = states[t].quiet_state
        if states[q].weight > TINY:
            answered += (quiet / states[q].weight) * _value_at(
                scene, tables, slot, ANSWERS, level, q, clock_s
            )
    value = likely * answered
    if likely < 1.0:
        unanswered = _value_at(scene, tables, slot, NEVER_ANSWERS, level, i, clock_s)
        value += (1.0 - likely) * unanswered
    return value + node.second * weight * asked_s - contract.costs.escalation * weight


@compiled
def later_blind(scene: Scene, tables: Tables, left: Left, i: int, t: int) -> float:
    """Value, from the view's clock, of waiting in state ``i`` until read ``t - 1`` and then acting.

    Without having read: asking the operator, or a keyed sending whose record will last long enough.
    ``left`` is what is left after the action.
    """
    node, states = scene.node, scene.states
    at_s = states[t].after_s - scene.contract.latency_s
    if at_s <= states[i].after_s or at_s - states[i].after_s > MAX_WAIT_S:
        return -math.inf
    value = -math.inf
    if left.operator != NEVER_ANSWERS and not node.settled:
        value = ask(scene, tables, left, i, t)
        value -= node.second * states[i].weight * at_s
    if i == 0 and left.level > 0 and node.expires:
        sending = send(scene, tables, left, scene.sent[DELAYED, t], 0, KEYED)
        value = max(value, sending - node.second * states[0].weight * at_s)
    return value


@compiled
def waits_needed(seconds: float) -> int:
    """Number of discrete waits that about ``seconds`` take, the longest first."""
    count = 0
    for w in range(len(WAITS_S) - 1, -1, -1):
        fits = int((seconds + EPS_S) // WAITS_S[w])
        count += fits
        seconds -= fits * WAITS_S[w]
    return count


@compiled
def price(node: Record, weight: float, wait_s: float) -> float:
    """What a read after ``wait_s`` is charged as the calls that it takes."""
    if node.step_price <= 0.0:
        return 0.0
    return node.step_price * weight * (1 + waits_needed(wait_s))
