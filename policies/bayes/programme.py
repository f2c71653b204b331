"""The dynamic programme of one view: what each action is worth there.

Between two sendings the client's problem is one of optimal stopping: choose the times of the reads,
and at each of them, as long as they show nothing new, read on, re-issue, ask the operator, claim
completion or give up.  The state is the last read that showed nothing new, so the programme runs
over (steps left, attempts left, what is known of the operator, last read).  What a further sending
leads to is looked up.

Times count from the view's clock.  Values are not normalised: they carry the weight of the
hypotheses that are still possible.  ``now`` is the best of what can be done at once in a state, as
from then; ``later`` the best of reading later, as from the view's clock; ``target`` the state that
this leads to.  All three are (3, N_OPERATOR, N_LEVELS, n_states): a slot for the steps left now,
one and two steps fewer.
"""

from __future__ import annotations

import math

import numpy as np

from exactlyonce_env import rules
from exactlyonce_env.actions import MAX_WAIT_S, WAITS_S
from exactlyonce_env.compiled import Array, Record, compiled
from exactlyonce_env.vocabulary import OperatorStatus, Readback, ReadError
from policies.bayes.beliefs import believe, is_live, unresolved_attempts
from policies.bayes.reading_times import plan_reads
from policies.bayes.records import (
    ANSWERS,
    DELAYED,
    KEYED,
    MAX_LEVEL,
    N_LEVELS,
    N_OPERATOR,
    NEVER_ANSWERS,
    NODE,
    PLAIN,
    Q_ESCALATE,
    Q_FINISH,
    Q_FIRST_WAIT,
    Q_KEYED,
    Q_READ,
    Q_RETRY,
    Q_UNCERTAIN,
    TIMEOUT,
    Answer,
    Game,
    Lookup,
    Room,
)
from policies.bayes.sums import (
    M_HTTP500_PRE,
    M_OUTAGE,
    M_TIMEOUT_PRE,
    TINY,
    may_expire,
    mode_shares,
    response_share,
    sum_up,
    try_keyed,
)

NO_READBACK = int(Readback.NONE)
AUTHORITATIVE = int(Readback.AUTHORITATIVE)
ANSWERED = int(OperatorStatus.ANSWERED)
SILENT = int(OperatorStatus.SILENT)
IN_OUTAGE = int(ReadError.OUTAGE)
EPS_S = 1e-9
CLOSE = 0.05
"""Belief after a quiet report and after a quiet read count as the same within this share."""

LIMIT = 1500
"""Hypotheses of one hidden law, at most, where several attempts are unresolved."""

TRIALS = 4000
"""Keyed sendings, about, that are tried out for one view."""

ABSENT_MODES = (M_TIMEOUT_PRE, M_HTTP500_PRE)
N_ACTIONS = Q_FIRST_WAIT + len(WAITS_S)


def solve(
    game: Game,
    room: Room,
    view: Record,
    n_reads: int,
    lookup: Lookup,
    wanted: tuple[int, int, int] | None,
    free: bool,
    lowest: int = 0,
) -> Answer:
    """What the view is worth, and each action from it.

    ``n_reads`` is about the number of moments at which a read is considered.  ``wanted`` are the
    state of the operator, the attempts left (at most MAX_LEVEL) and the steps left for which the
    actions are valued; None: only the view is valued, for all of them.  ``free`` and ``lowest``:
    see `programme`.
    """
    ready_s, open_attempts = survey(game, view)
    if ready_s > 0.0:
        return _after_outage(game, room, view, n_reads, lookup, wanted, free, lowest, ready_s)
    # In compiled parts: in one, the compiler would optimise all that they call once more.
    reads = plan_reads(game, view, n_reads, wanted is not None)
    n = _believe(game, room, view, reads, open_attempts)
    states, sent, partial, known, lacking, settled = sum_up(game, room, view, len(reads), n)
    if game.contexts[game.members[0]].contract.accepts_key:
        every = max(n * len(reads) // (TRIALS if open_attempts < 2 else TRIALS // 4), 1)
        try_keyed(game, room, view, reads, n, every, sent, states)
    node = prepare(game, view, reads, known, settled, states, lookup.children.ages_s)
    return programme(
        game.contexts[game.members[0]],
        view,
        node,
        states,
        sent,
        partial,
        lacking,
        lookup.fresh,
        lookup.opened,
        lookup.children.values,
        wanted if wanted is not None else (-1, -1, -1),
        free,
        lowest,
    )


def _believe(game: Game, room: Room, view: Record, reads: Array, open_attempts: int) -> int:
    """`believe`, as finely as there is room for."""
    capacity = len(room.hypotheses)
    limit = LIMIT if open_attempts > 1 else capacity
    coarse, sharp = 1, 0
    while True:
        n = believe(game, room, view, reads, coarse, limit, sharp)
        if n >= 0:
            return n
        if coarse < len(reads):
            coarse += max(coarse // 2, 1)
        elif limit < capacity:
            limit = min(4 * limit, capacity)
        else:
            sharp += 1


def _after_outage(
    game: Game,
    room: Room,
    view: Record,
    n_reads: int,
    lookup: Lookup,
    wanted: tuple[int, int, int] | None,
    free: bool,
    lowest: int,
    ready_s: float,
) -> Answer:
    """`solve` within a known outage: end the episode, or wait for the outage to end."""
    later = view.copy()
    later.clock_s = view.clock_s + ready_s
    if wanted is not None:
        wanted = (wanted[0], wanted[1], max(wanted[2] - 1, 0))
    answer = solve(game, room, later, n_reads, lookup, wanted, free, lowest)
    idle = answer.idle
    second = float(game.contexts[game.members[0]].contract.costs.time_per_hour) / 3600.0
    values = answer.values.copy()
    if free:
        values[:, :, 0] += 1.0
        values[:, :, 1] = np.maximum(answer.values[:, :, 1] - second * ready_s, max(idle))
    else:
        values[:, :, 1:] = np.maximum(answer.values[:, :, :-1] - second * ready_s, max(idle))
    best = max(answer.actions.max(), answer.best_wait)
    actions = np.full(N_ACTIONS, -math.inf)
    actions[Q_FINISH], actions[Q_UNCERTAIN] = idle
    wait_s = min(ready_s, MAX_WAIT_S)
    for w, seconds in enumerate(WAITS_S):
        spent_s = max(seconds, ready_s)
        actions[Q_FIRST_WAIT + w] = best - second * spent_s
    return Answer(answer.weight, values, actions, wait_s, best - second * ready_s, idle)


@compiled
def survey(game: Game, view: Record) -> tuple[float, int]:
    """Seconds until a known outage ends, and how many attempts are unresolved."""
    context = game.contexts[game.members[0]]
    until_s = 0.0
    if view.retry_at_s > view.clock_s:
        if view.read_error == IN_OUTAGE:
            until_s = view.retry_at_s
        elif view.n_attempts > 0:
            last = view.attempts[view.n_attempts - 1]
            own_s = last.answered_s + context.law.retry_after_s
            busy = abs(view.retry_at_s - own_s) <= 1e-6 and (
                abs(view.retry_at_s - (last.sent_s + context.law.outage_s)) > 1e-6
            )
            if last.response == rules.R_UNAVAILABLE and not busy:
                until_s = view.retry_at_s
    return max(until_s - view.clock_s, 0.0), unresolved_attempts(view)


@compiled
def operator_states(contract: Record, view: Record) -> Array:
    """Which of MAY_ANSWER, ANSWERS, NEVER_ANSWERS can hold from this view on, (3,) bool."""
    active = np.zeros(N_OPERATOR, np.bool_)
    rate = contract.operator_answer_rate
    if view.operator_status == ANSWERED or rate >= 1.0:
        active[ANSWERS] = True
    elif view.operator_status == SILENT or rate <= 0.0:
        active[NEVER_ANSWERS] = True
    else:
        active[:] = True
    return active


@compiled
def prepare(
    game: Game,
    view: Record,
    reads: Array,
    known: Array,
    settled: bool,
    states: Array,
    ages_s: Array,
) -> Record:
    """Complete the states (n_reads + 1,) and return what they have in common, (1,) NODE."""
    context = game.contexts[game.members[0]]
    contract = context.contract
    nodes = np.zeros(1, NODE)
    node = nodes[0]
    node.second = contract.costs.time_per_hour / 3600.0
    node.step_price = game.step_price
    node.settled = settled
    node.n_items = contract.n_items
    node.expires = may_expire(game)
    node.outage_s = context.law.outage_s
    node.first = view.n_attempts == 0
    node.endless = contract.max_attempts - view.n_attempts > MAX_LEVEL
    shares = mode_shares(game, view.n_attempts == 0)
    node.outage = shares[M_OUTAGE]
    for response in range(2):
        p = response_share(shares, rules.R_TIMEOUT + response)
        if p > 0.0:
            node.absent[response] = shares[ABSENT_MODES[response]] / p
    for mode in range(len(shares)):
        if mode != M_OUTAGE and rules.is_rejection(rules.response_of(mode)):
            node.rejected += shares[mode]
    for effects in range(known.shape[1]):
        node.known_best += max(known[0, effects], known[1, effects])
        node.known_unclaimed += known[1, effects]
    lag_s = context.law.lag_s if contract.readback == rules.EVENTUAL else 0.0
    sent_s = 0.0
    for j in range(view.n_attempts):
        if is_live(view.attempts[j]):
            sent_s = view.attempts[j].sent_s
    rows = len(ages_s)
    node.n_states = len(reads) + 1
    for i in range(len(states)):
        state = states[i]
        reported = i >= node.n_states  # such a state is reached by a report, not by a read
        r = i - node.n_states if reported else i
        if r > 0:
            state.after_s = reads[r - 1] - view.clock_s
            state.after_s += 0.0 if reported else contract.latency_s
        at_s = view.clock_s + state.after_s
        answer_s = at_s + contract.operator_delay_s
        state.report_state = max(np.searchsorted(reads, answer_s, side="right"), r)
        state.quiet_state = state.report_state
        state.read_state = min(np.searchsorted(reads, at_s + lag_s, side="right"), len(reads))
        if len(states) > node.n_states:
            state.quiet_state += node.n_states
        unread = i == 0 and view.reads_since_attempt == 0 and view.operator_at_s < sent_s
        if rows > 1 and not unread:
            age_s = max(at_s - sent_s, 1e-3)
            g = min(max(np.searchsorted(ages_s, age_s, side="right") - 1, 1), rows - 1)
            state.row = g
            if g + 1 < rows:
                x = math.log(age_s / ages_s[g]) / math.log(ages_s[g + 1] / ages_s[g])
                state.row_share = min(max(x, 0.0), 1.0)
    return nodes


@compiled
def _value_at(
    node: Record,
    states: Array,
    now: Array,
    later: Array,
    target: Array,
    slot: int,
    o: int,
    level: int,
    i: int,
    clock_s: float,
) -> float:
    """Value, from the view's clock, of state ``i`` at ``clock_s``, maybe later than its read."""
    value = now[slot, o, level, i] - node.second * states[i].weight * clock_s
    leads_to = target[slot, o, level, i]
    if leads_to > 0 and states[leads_to].after_s >= clock_s:
        value = max(value, later[slot, o, level, i])
    return value


@compiled
def _all_known(node: Record, lacking: Array, fresh: Array, o: int, level: int, k: int) -> float:
    """Value of having been told of every attempt what becomes of it, with ``k`` steps left."""
    total = node.known_best if k > 0 else node.known_unclaimed
    for missing in range(1, len(lacking)):
        if lacking[missing] > 0.0:
            total += lacking[missing] * fresh[missing, o, level, k]
    return total


@compiled
def _read(
    contract: Record,
    node: Record,
    states: Array,
    partial: Array,
    fresh: Array,
    now: Array,
    later: Array,
    slot: int,
    o: int,
    level: int,
    k: int,
    i: int,
    target: int,
) -> float:
    """Value, from the view's clock, of making read ``target - 1`` next in state ``i``.

    ``slot`` and ``k`` are those after the read.
    """
    here, there = states[i], states[target]
    claimed = here.news_claimed - there.news_claimed
    unclaimed = here.news_unclaimed - there.news_unclaimed
    value = max(claimed, unclaimed) if k > 0 else unclaimed
    value -= contract.costs.read * here.weight
    value -= node.second * (here.weight - there.weight) * there.after_s
    for m in range(1, contract.n_items):
        news = partial[0, m, i] - partial[0, m, target]
        if news > 0.0:
            value += news * fresh[contract.n_items - m, o, level, k]
    quiet = now[slot, o, level, target] - node.second * there.weight * there.after_s
    return value + max(quiet, later[slot, o, level, target])


@compiled
def _send(
    contract: Record,
    node: Record,
    states: Array,
    outcome: Record,
    fresh: Array,
    opened: Array,
    children: Array,
    now: Array,
    later: Array,
    target: Array,
    slot: int,
    fewer: int,
    o: int,
    level: int,
    k: int,
    less: int,
    i: int,
    how: int,
) -> float:
    """Value, as from then, of sending in state ``i``.

    ``slot`` and ``k`` are those after it, ``fewer`` and ``less`` those of one step less.
    """
    state = states[i]
    left = level if level == MAX_LEVEL and node.endless else level - 1
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
        again = fresh[node.n_items, o, left]
        value += state.weight * node.rejected * (again[k] - node.second * contract.latency_s)
        value += state.weight * node.outage * (again[max(less, 0)] - node.second * node.outage_s)
    else:
        for outage in range(2):
            p = node.outage if outage else node.rejected
            if p > 0.0:
                after_s = state.after_s + (node.outage_s if outage else contract.latency_s)
                steps = slot if k == 0 or not outage else fewer
                then = lost + _value_at(
                    node, states, now, later, target, steps, o, left, i, after_s
                )
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
            low = children[g, how, response, o, left, k]
            high = children[min(g + 1, len(children) - 1), how, response, o, left, k]
            value += p * (low + state.row_share * (high - low) - node.second * seconds)
            continue
        if k == 0:
            value += outcome.open_unclaimed[response] - node.second * p * seconds
            continue
        # Two ways of knowing more than one does: what the earlier attempts do, or what this one.
        value_then = outcome.alone_weight[response] * opened[how, response, o, left, k]
        value_then += outcome.beside[response] - node.second * p * seconds
        if how == PLAIN and not node.first:
            absent = node.absent[response]
            after_s = state.after_s + seconds
            other = _value_at(node, states, now, later, target, slot, o, left, i, after_s)
            other = absent * (other + lost)
            other += (1.0 - absent) * (outcome.once_best - node.second * state.weight * seconds)
            value_then = min(value_then, other * p / state.weight)
        value += value_then
    return value


@compiled
def _ask(
    contract: Record,
    node: Record,
    states: Array,
    partial: Array,
    lacking: Array,
    fresh: Array,
    now: Array,
    later: Array,
    target: Array,
    slot: int,
    o: int,
    level: int,
    k: int,
    i: int,
    t: int,
) -> float:
    """Value, as from then, of asking the operator in state ``i``.

    At once, or at the time of read ``t - 1`` where ``t`` is not ``i``, without having made it.
    """
    state = states[i]
    weight = state.weight
    asked_s = state.after_s if t == i else states[t].after_s - contract.latency_s
    clock_s = asked_s + contract.operator_delay_s
    likely = 1.0 if o == ANSWERS else contract.operator_answer_rate
    if contract.operator_sees_in_flight:
        answered = _all_known(node, lacking, fresh, ANSWERS, level, k)
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
            news = partial[0, m, i] - partial[1, m, j]
            if news > 0.0:
                answered += news * fresh[contract.n_items - m, ANSWERS, level, k]
        q = states[t].quiet_state
        if states[q].weight > TINY:
            answered += (quiet / states[q].weight) * _value_at(
                node, states, now, later, target, slot, ANSWERS, level, q, clock_s
            )
    value = likely * answered
    if likely < 1.0:
        value += (1.0 - likely) * _value_at(
            node, states, now, later, target, slot, NEVER_ANSWERS, level, i, clock_s
        )
    return value + node.second * weight * asked_s - contract.costs.escalation * weight


@compiled
def _later_blind(
    contract: Record,
    node: Record,
    states: Array,
    sent: Array,
    partial: Array,
    lacking: Array,
    fresh: Array,
    opened: Array,
    children: Array,
    now: Array,
    later: Array,
    target: Array,
    slot: int,
    o: int,
    level: int,
    k: int,
    i: int,
    t: int,
) -> float:
    """Value, from the view's clock, of waiting in state ``i`` until read ``t - 1`` and then acting.

    Without having read: asking the operator, or a keyed sending whose record will last long enough.
    ``slot`` and ``k`` are those after the action.
    """
    at_s = states[t].after_s - contract.latency_s
    if at_s <= states[i].after_s or at_s - states[i].after_s > MAX_WAIT_S:
        return -math.inf
    value = -math.inf
    if o != NEVER_ANSWERS and not node.settled:
        value = _ask(
            contract,
            node,
            states,
            partial,
            lacking,
            fresh,
            now,
            later,
            target,
            slot,
            o,
            level,
            k,
            i,
            t,
        )
        value -= node.second * states[i].weight * at_s
    if i == 0 and level > 0 and node.expires:
        sending = _send(
            contract,
            node,
            states,
            sent[DELAYED, t],
            fresh,
            opened,
            children,
            now,
            later,
            target,
            slot,
            slot,
            o,
            level,
            k,
            k if node.free else k - 1,
            0,
            KEYED,
        )
        value = max(value, sending - node.second * states[0].weight * at_s)
    return value


@compiled
def _fill_now(
    contract: Record,
    node: Record,
    states: Array,
    sent: Array,
    partial: Array,
    lacking: Array,
    fresh: Array,
    opened: Array,
    children: Array,
    now: Array,
    later: Array,
    target: Array,
    need: Array,
    slots: tuple[int, int, int],
    steps: tuple[int, int],
    o: int,
    level: int,
    i: int,
) -> float:
    """Find the best that can be done at once in state ``i``; returns by how much it changed.

    ``slots`` are those of now and of one and two steps fewer, ``steps`` what is left then.
    """
    slot, one, two = slots
    state = states[i]
    best = max(state.claimed, state.unclaimed)
    needed = 1
    if level > 0:
        # What a key leads to is not summed up behind reports.
        for how in range(2 if contract.accepts_key and i < node.n_states else 1):
            value = _send(
                contract,
                node,
                states,
                sent[how, i],
                fresh,
                opened,
                children,
                now,
                later,
                target,
                one,
                two,
                o,
                level,
                steps[0],
                steps[1],
                i,
                how,
            )
            if value > best:
                best = value
                needed = 1 + _send_need(
                    node, states, sent[how, i], opened, children, o, level, i, how
                )
    if o != NEVER_ANSWERS and not node.settled and i < node.n_states:
        value = _ask(
            contract,
            node,
            states,
            partial,
            lacking,
            fresh,
            now,
            later,
            target,
            one,
            o,
            level,
            steps[0],
            i,
            i,
        )
        if value > best:
            best = value
            needed = 1 + max(1, need[1, ANSWERS, level, states[i].quiet_state])
    change = abs(best - now[one, o, level, i])
    now[slot, o, level, i] = best
    need[0, o, level, i] = needed
    return change


@compiled
def _send_need(
    node: Record,
    states: Array,
    outcome: Record,
    opened: Array,
    children: Array,
    o: int,
    level: int,
    i: int,
    how: int,
) -> int:
    """Steps that may follow a sending if there is no limit to them."""
    left = level if level == MAX_LEVEL and node.endless else level - 1
    needed = 1
    for response in range(2):
        if outcome.open_weight[response] > 0.0:
            follows = opened[how, response, o, left, 0]
            if len(children) > 0:
                g = states[i].row
                follows = max(
                    children[g, how, response, o, left, 0],
                    children[min(g + 1, len(children) - 1), how, response, o, left, 0],
                )
            needed = max(needed, int(follows))
    return needed + (1 if node.rejected + node.outage > 0.0 else 0)


@compiled
def _waits_needed(seconds: float) -> int:
    """Number of discrete waits that about ``seconds`` take, the longest first."""
    count = 0
    for w in range(len(WAITS_S) - 1, -1, -1):
        fits = int((seconds + EPS_S) // WAITS_S[w])
        count += fits
        seconds -= fits * WAITS_S[w]
    return count


@compiled
def _price(node: Record, weight: float, wait_s: float) -> float:
    """What a read after ``wait_s`` is charged as the calls that it takes."""
    if node.step_price <= 0.0:
        return 0.0
    return node.step_price * weight * (1 + _waits_needed(wait_s))


@compiled
def _fill_later(
    contract: Record,
    node: Record,
    states: Array,
    sent: Array,
    partial: Array,
    lacking: Array,
    fresh: Array,
    opened: Array,
    children: Array,
    now: Array,
    later: Array,
    target: Array,
    need: Array,
    slots: tuple[int, int, int],
    steps: tuple[int, int],
    o: int,
    level: int,
    i: int,
) -> float:
    """Find the best that can be done later in state ``i``; returns by how much it changed."""
    slot, one, two = slots
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
            best = _all_known(node, lacking, fresh, o, level, steps[0])
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
            left = steps[1] if waits else steps[0]
            if left < 0:
                continue
            value = _read(
                contract,
                node,
                states,
                partial,
                fresh,
                now,
                later,
                two if waits else one,
                o,
                level,
                left,
                i,
                t,
            )
            value -= _price(node, state.weight, wait_s)
            if value > best:
                best = value
                leads_to = t
                needed = (2 if waits else 1) + need[1, o, level, t]
    if steps[1] >= 0 and i < n_states and (blind or (i == 0 and node.expires)):
        for t in range(i + 1, n_states):
            value = _later_blind(
                contract,
                node,
                states,
                sent,
                partial,
                lacking,
                fresh,
                opened,
                children,
                now,
                later,
                target,
                two,
                o,
                level,
                steps[1],
                i,
                t,
            )
            if value > best:
                best = value
                leads_to = t
                needed = 2 + 6
    change = abs(best - later[one, o, level, i]) if best > -math.inf else 0.0
    later[slot, o, level, i] = best
    target[slot, o, level, i] = leads_to
    at_once = now[slot, o, level, i] - node.second * state.weight * state.after_s
    need[1, o, level, i] = need[0, o, level, i] if at_once >= best else needed
    return change


@compiled
def programme(
    context: Record,
    view: Record,
    nodes: Array,
    states: Array,
    sent: Array,
    partial: Array,
    lacking: Array,
    fresh: Array,
    opened: Array,
    children: Array,
    wanted: tuple[int, int, int],
    free: bool,
    lowest: int,
) -> Answer:
    """The dynamic programme; see `solve`.

    ``free``: without a limit to the steps; the last axis of all tables then holds the number of
    steps that may be needed, and the value.  ``lowest`` is the least number of attempts left that
    is looked at.
    """
    contract = context.contract
    node = nodes[0]
    node.free = free
    n_steps = fresh.shape[3] - 1
    active = operator_states(contract, view)
    shape = (1 if free else 3, N_OPERATOR, N_LEVELS, len(states))
    now, later, target = np.zeros(shape), np.full(shape, -math.inf), np.zeros(shape, np.int64)
    need = np.ones((2, N_OPERATOR, N_LEVELS, len(states)), np.int64)
    values = np.zeros((N_OPERATOR, N_LEVELS, n_steps + 1))
    total = max(states[0].weight, TINY)
    for i in range(len(states)):
        now[0, :, :, i] = (
            max(states[i].claimed, states[i].unclaimed) if free else (states[i].unclaimed)
        )
    values[:, :, 0] = states[0].unclaimed / total
    slots = (0, 0, 0)
    if free:
        steps = (1, 1)
        # Later states first, and those reached by reads before those reached by reports.
        for r in range(node.n_states - 1, -1, -1):
            for part in range(len(states) // node.n_states):
                i = r + part * node.n_states
                for o in range(N_OPERATOR - 1, -1, -1):
                    if not active[o] or states[i].weight <= TINY:
                        now[0, o, :, i] = 0.0
                        continue
                    for level in range(lowest, N_LEVELS):
                        _fill_later(
                            contract,
                            node,
                            states,
                            sent,
                            partial,
                            lacking,
                            fresh,
                            opened,
                            children,
                            now,
                            later,
                            target,
                            need,
                            slots,
                            steps,
                            o,
                            level,
                            i,
                        )
                        for _ in range(4):  # a refused sending leads back to the same state
                            change = _fill_now(
                                contract,
                                node,
                                states,
                                sent,
                                partial,
                                lacking,
                                fresh,
                                opened,
                                children,
                                now,
                                later,
                                target,
                                need,
                                slots,
                                steps,
                                o,
                                level,
                                i,
                            )
                            if change <= 1e-9 * total:
                                break
                        at_once = now[0, o, level, i]
                        at_once -= node.second * states[i].weight * states[i].after_s
                        if at_once >= later[0, o, level, i]:
                            need[1, o, level, i] = need[0, o, level, i]
        for o in range(N_OPERATOR):
            for level in range(lowest, N_LEVELS):
                values[o, level, 0] = need[1, o, level, 0]
                values[o, level, 1] = max(now[0, o, level, 0], later[0, o, level, 0]) / total
    steady = 0
    top = n_steps if wanted[2] < 0 else min(n_steps, wanted[2])
    for k in range(1, 0 if free else top + 1):
        if steady < 2:
            slots = (k % 3, (k - 1) % 3, max(k - 2, 0) % 3)
            steps = (k - 1, k - 2)
            change = 0.0
            for o in range(N_OPERATOR):
                for level in range(lowest, N_LEVELS):
                    for i in range(len(states) - 1, -1, -1):
                        if not active[o] or states[i].weight <= TINY:
                            now[slots[0], o, level, i] = 0.0
                            later[slots[0], o, level, i] = -math.inf
                            continue
                        moved = _fill_now(
                            contract,
                            node,
                            states,
                            sent,
                            partial,
                            lacking,
                            fresh,
                            opened,
                            children,
                            now,
                            later,
                            target,
                            need,
                            slots,
                            steps,
                            o,
                            level,
                            i,
                        )
                        change = max(change, moved)
                        moved = _fill_later(
                            contract,
                            node,
                            states,
                            sent,
                            partial,
                            lacking,
                            fresh,
                            opened,
                            children,
                            now,
                            later,
                            target,
                            need,
                            slots,
                            steps,
                            o,
                            level,
                            i,
                        )
                        change = max(change, moved)
            steady = steady + 1 if change < 1e-9 * total else 0
        for o in range(N_OPERATOR):
            for level in range(lowest, N_LEVELS):
                best = max(now[slots[0], o, level, 0], later[slots[0], o, level, 0])
                values[o, level, k] = best / total
    o, level, k = wanted
    if k > 0 and not free:
        k = min(k, n_steps)
        slots = (k % 3, (k - 1) % 3, max(k - 2, 0) % 3) if steady < 2 else slots
    return _value_actions(
        contract,
        node,
        states,
        sent,
        partial,
        lacking,
        fresh,
        opened,
        children,
        now,
        later,
        target,
        slots,
        (1, 1) if free else (k - 1, k - 2),
        o,
        level,
        k,
        values,
    )


@compiled
def _value_actions(
    contract: Record,
    node: Record,
    states: Array,
    sent: Array,
    partial: Array,
    lacking: Array,
    fresh: Array,
    opened: Array,
    children: Array,
    now: Array,
    later: Array,
    target: Array,
    slots: tuple[int, int, int],
    steps: tuple[int, int],
    o: int,
    level: int,
    k: int,
    values: Array,
) -> Answer:
    """The worth of each action of the view, with ``k`` steps left; not valued where k < 1."""
    _, one, two = slots
    weight = states[0].weight
    total = max(weight, TINY)
    idle = (states[0].claimed / total, states[0].unclaimed / total)
    actions = np.full(N_ACTIONS, -math.inf)
    best_wait, best_wait_s = -math.inf, 0.0
    if k < 1:
        return Answer(weight, values, actions, best_wait_s, best_wait, idle)
    blind = contract.readback == NO_READBACK
    actions[Q_FINISH] = states[0].claimed
    actions[Q_UNCERTAIN] = states[0].unclaimed
    for how in range((2 if contract.accepts_key else 1) if level > 0 else 0):
        actions[Q_KEYED if how == KEYED else Q_RETRY] = _send(
            contract,
            node,
            states,
            sent[how, 0],
            fresh,
            opened,
            children,
            now,
            later,
            target,
            one,
            two,
            o,
            level,
            steps[0],
            steps[1],
            0,
            how,
        )
    if o != NEVER_ANSWERS:
        actions[Q_ESCALATE] = _ask(
            contract,
            node,
            states,
            partial,
            lacking,
            fresh,
            now,
            later,
            target,
            one,
            o,
            level,
            steps[0],
            0,
            0,
        )
    else:  # nobody answers: the time is spent and the question costs
        actions[Q_ESCALATE] = now[one, o, level, 0] - weight * (
            contract.costs.escalation + node.second * contract.operator_delay_s
        )
    if contract.readback == AUTHORITATIVE:
        actions[Q_READ] = _all_known(node, lacking, fresh, o, level, steps[0])
        actions[Q_READ] -= weight * (contract.costs.read + node.second * states[1].after_s)
    elif not blind:
        actions[Q_READ] = _read(
            contract, node, states, partial, fresh, now, later, one, o, level, steps[0], 0, 1
        )
        actions[Q_READ] -= _price(node, weight, 0.0)
        if states[1].weight >= weight:
            actions[Q_READ] -= 1e-9 * total  # it cannot show anything, even where it costs nothing
    for t in range(1, node.n_states):
        wait_s = states[t].after_s - contract.latency_s
        if wait_s <= EPS_S or wait_s > MAX_WAIT_S or k < 2:
            continue
        value = now[one, o, level, 0] - node.second * weight * wait_s
        if blind or node.expires:
            acting = _later_blind(
                contract,
                node,
                states,
                sent,
                partial,
                lacking,
                fresh,
                opened,
                children,
                now,
                later,
                target,
                two,
                o,
                level,
                steps[1],
                0,
                t,
            )
            value = max(value, acting)
        if contract.readback == AUTHORITATIVE:
            known = _all_known(node, lacking, fresh, o, level, steps[1])
            known -= weight * (contract.costs.read + node.second * states[t].after_s)
            value = max(value, known)
        elif not blind:
            reading = _read(
                contract, node, states, partial, fresh, now, later, two, o, level, steps[1], 0, t
            )
            value = max(value, reading - _price(node, weight, wait_s))
        if value > best_wait:
            best_wait, best_wait_s = value, wait_s
        leads_to = target[one, o, level, 0]
        if leads_to > t:  # or wait on from there
            rest_s = states[leads_to].after_s - states[t].after_s
            whole_s = states[leads_to].after_s - contract.latency_s
            more = _waits_needed(wait_s) + _waits_needed(rest_s) - _waits_needed(whole_s)
            value = max(value, later[one, o, level, 0] - node.step_price * total * more)
        for w in range(len(WAITS_S)):
            if abs(wait_s - WAITS_S[w]) < 1e-5:
                actions[Q_FIRST_WAIT + w] = value
    actions /= total
    return Answer(weight, values, actions, best_wait_s, best_wait / total, idle)
