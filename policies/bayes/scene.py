"""What holds in every state of one view: outages, the operator, what the next sending may meet."""

from __future__ import annotations

import math

import numpy as np

from exactlyonce_env import rules
from exactlyonce_env.compiled import Array, Record, compiled
from exactlyonce_env.vocabulary import OperatorStatus, ReadError
from policies.bayes.beliefs import is_live, unresolved_attempts
from policies.bayes.records import (
    ANSWERS,
    MAX_LEVEL,
    N_OPERATOR,
    NEVER_ANSWERS,
    NODE,
    Game,
)
from policies.bayes.sums import (
    M_HTTP500_PRE,
    M_OUTAGE,
    M_TIMEOUT_PRE,
    may_expire,
    mode_shares,
    response_share,
)

ANSWERED = int(OperatorStatus.ANSWERED)
SILENT = int(OperatorStatus.SILENT)
IN_OUTAGE = int(ReadError.OUTAGE)
ABSENT_MODES = (M_TIMEOUT_PRE, M_HTTP500_PRE)


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
