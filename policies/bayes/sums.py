"""Sums over the hypotheses: how likely each state is, and what claiming or re-sending earns."""

from __future__ import annotations

import math

import numpy as np

from exactlyonce_env import kernel, rules
from exactlyonce_env.compiled import Array, Record, compiled
from exactlyonce_env.permission import NO_KEY, candidate_key, next_payload
from exactlyonce_env.quantiles import delay_survival
from exactlyonce_env.records import N_MODES
from exactlyonce_env.settlement import excess, tally
from exactlyonce_env.vocabulary import Mode
from exactlyonce_env.world_state import advance, arrive_until
from policies.bayes.beliefs import is_live, worth
from policies.bayes.records import KEYED, PLAIN, SENT, STATE, TIMEOUT, Game, Room

M_OK = int(Mode.OK)
M_OUTAGE = int(Mode.OUTAGE)
M_TIMEOUT_PRE = int(Mode.TIMEOUT_PRE)
M_HTTP500_PRE = int(Mode.HTTP500_PRE)
M_REDELIVERY = int(Mode.REDELIVERY)

TINY = 1e-300


@compiled
def mode_shares(game: Game, first: bool) -> Array:
    """Probability of each mode (N_MODES,) of the original, or of a further attempt."""
    shares = np.zeros(N_MODES)
    for m in range(len(game.members)):
        law = game.contexts[game.members[m]].law
        below = 0.0
        for mode in range(N_MODES):
            upto = law.first_cdf[mode] if first else law.retry_cdf[mode]
            shares[mode] += game.shares[m] * (upto - below)
            below = upto
    return shares


@compiled
def response_share(shares: Array, response: int) -> float:
    """Probability that a sending without a key gets ``response``."""
    total = 0.0
    for mode in range(N_MODES):
        if rules.response_of(mode) == response:
            total += shares[mode]
    return total


@compiled
def sum_up(
    game: Game, room: Room, view: Record, n_reads: int, n: int
) -> tuple[Array, Array, Array, Array, Array, bool]:
    """Sum the ``n`` hypotheses of the room up, for all but keyed re-issues.

    Returns the states (n_reads + 1,) STATE; what a sending leads to, (3, n_reads + 1) SENT;
    the weight of those whose news is so many items, (2, n_items + 1, n_reads + 1) by a read and by
    the operator; the settlements by which attempts have effects, (2, 256) claimed and not, of those
    that get everything done; and the weight of the others by the number of items that they lack,
    (n_items + 1,).  The last says whether nothing is left to learn of what was executed.
    """
    contract = game.contexts[game.members[0]].contract
    costs = contract.costs
    full = rules.full_payload(contract.n_items)
    # Behind a lag the operator's quiet reports lead to states of their own.
    parts = 2 if contract.readback == rules.EVENTUAL else 1
    states = np.zeros(parts * (n_reads + 1), STATE)
    sent = np.zeros((3, parts * (n_reads + 1)), SENT)
    partial = np.zeros((2, contract.n_items + 1, n_reads + 1))
    known = np.zeros((2, 256))
    lacking = np.zeros(contract.n_items + 1)
    shares = mode_shares(game, view.n_attempts == 0)
    p_ok, p_twice = shares[M_OK], shares[M_REDELIVERY]
    p_open = np.array(
        [response_share(shares, rules.R_TIMEOUT), response_share(shares, rules.R_SERVER_ERROR)]
    )
    p_absent = np.array([shares[M_TIMEOUT_PRE], shares[M_HTTP500_PRE]])
    payload = next_payload(view, contract, NO_KEY)
    n_sent = rules.count_items(payload)
    settled = True
    for h in range(n):
        found = room.hypotheses[h]
        settled &= found.effects == room.hypotheses[0].effects
        settled &= found.executed == room.hypotheses[0].executed
        settled &= found.executed == view.shown or found.executed == full
        w = found.weight
        s = found.shown_by
        r = found.reported_by
        for part in range(parts):
            state = states[s if part == 0 else n_reads + 1 + r]
            state.weight += w
            state.claimed += w * found.claimed
            state.unclaimed += w * found.unclaimed
        states[r].report_weight += w
        if found.news == full:
            states[s].news_claimed += w * found.claimed
            states[s].news_unclaimed += w * found.unclaimed
            states[r].report_claimed += w * found.claimed
            states[r].report_unclaimed += w * found.unclaimed
        else:
            partial[0, rules.count_items(found.news), s] += w
            partial[1, rules.count_items(found.news), r] += w
        if found.executed == full:
            known[0, found.effects] += w * found.claimed
            known[1, found.effects] += w * found.unclaimed
        else:
            lacking[contract.n_items - rules.count_items(found.executed)] += w
        # A plain sending neither meets a key record nor leaves one: it adds its own executions.
        executed = found.executed | payload
        once, omitted = excess(contract, executed, found.executions + n_sent)
        twice, _ = excess(contract, executed, found.executions + 2 * n_sent)
        claimed_once = worth(costs, once, omitted, True, room.terms)
        unclaimed_once = worth(costs, once, omitted, False, room.terms)
        for part in range(parts):
            plain = sent[PLAIN, s if part == 0 else n_reads + 1 + r]
            plain.claimed += w * (
                p_ok * claimed_once + p_twice * worth(costs, twice, omitted, True, room.terms)
            )
            plain.unclaimed += w * (
                p_ok * worth(costs, once, omitted, False, room.terms)
                + p_twice * worth(costs, twice, omitted, False, room.terms)
            )
            plain.once_claimed += w * claimed_once
            plain.once_unclaimed += w * unclaimed_once
            plain.delay_s += w * (p_ok + p_twice) * contract.latency_s
            for response in range(2):
                plain.open_weight[response] += w * p_open[response]
                p_done = p_open[response] - p_absent[response]
                plain.open_unclaimed[response] += w * (
                    p_absent[response] * found.unclaimed + p_done * unclaimed_once
                )
                if found.executed != full:
                    plain.alone_weight[response] += w * p_open[response]
                else:
                    plain.beside[response] += w * (
                        p_absent[response] * found.claimed + p_done * claimed_once
                    )
    for i in range(len(states) - 2, -1, -1):
        if i == n_reads:
            continue  # the last of the first part
        state, later = states[i], states[i + 1]
        state.weight += later.weight
        state.claimed += later.claimed
        state.unclaimed += later.unclaimed
        state.news_claimed += later.news_claimed
        state.news_unclaimed += later.news_unclaimed
        state.report_weight += later.report_weight
        state.report_claimed += later.report_claimed
        state.report_unclaimed += later.report_unclaimed
        plain, then = sent[PLAIN, i], sent[PLAIN, i + 1]
        plain.claimed += then.claimed
        plain.unclaimed += then.unclaimed
        plain.delay_s += then.delay_s
        plain.once_claimed += then.once_claimed
        plain.once_unclaimed += then.once_unclaimed
        for response in range(2):
            plain.open_weight[response] += then.open_weight[response]
            plain.alone_weight[response] += then.alone_weight[response]
            plain.beside[response] += then.beside[response]
            plain.open_unclaimed[response] += then.open_unclaimed[response]
        for m in range(contract.n_items + 1 if i < n_reads else 0):
            partial[0, m, i] += partial[0, m, i + 1]
            partial[1, m, i] += partial[1, m, i + 1]
    for i in range(len(states)):
        sent[PLAIN, i].once_best = max(sent[PLAIN, i].once_claimed, sent[PLAIN, i].once_unclaimed)
    return states, sent, partial, known, lacking, settled


@compiled
def _stage(view: Record, seen: Record) -> int:
    """Make ``seen`` the view with its live attempts only, numbered as in a hypothesis."""
    n = 0
    for j in range(view.n_attempts):
        if is_live(view.attempts[j]):
            seen.attempts[n] = view.attempts[j]
            n += 1
    seen.n_attempts = n
    seen.clock_s = view.clock_s
    seen.read_at_s = view.read_at_s
    seen.shown = view.shown
    seen.pinned_payload = view.pinned_payload
    seen.other_payload = view.other_payload
    return n


@compiled
def may_expire(game: Game) -> bool:
    """Whether a key's record may well run out while the request that it answers is in flight."""
    contract = game.contexts[game.members[0]].contract
    law = game.contexts[game.members[0]].law
    if not contract.accepts_key:
        return False
    if law.late_fixed_s > contract.key_retention_s:
        return True
    return delay_survival(game.table, law.tail_offset, contract.key_retention_s) > 0.01


@compiled
def try_keyed(
    game: Game,
    room: Room,
    view: Record,
    reads: Array,
    n: int,
    every: int,
    sent: Array,
    states: Array,
) -> None:
    """Fill in what a keyed sending leads to: each ``every``-th state tried, the others between.

    Where a key's record may run out, do so too for sending at the same times without having read.
    """
    contract = game.contexts[game.members[0]].contract
    for row in range(2 if may_expire(game) else 1):
        before = 0
        for i in range(len(reads) + 1):
            if i > 1 and i % every != 0 and i != len(reads):
                continue
            at_s = view.clock_s
            if i > 0:
                at_s = reads[i - 1] + (contract.latency_s if row == 0 else 0.0)
            from_state = i if row == 0 else 0
            _try_keyed_at(game, room, view, n, from_state, at_s, sent[KEYED + row, i])
            from_s = view.clock_s if before == 0 else reads[before - 1]
            for k in range(before + 1, i):
                share = (reads[k - 1] - from_s) / (reads[i - 1] - from_s)
                low, high = 1.0 - share, share
                if row == 0:
                    low *= states[k].weight / max(states[before].weight, TINY)
                    high *= states[k].weight / max(states[i].weight, TINY)
                _mix(
                    sent[KEYED + row, k],
                    low,
                    sent[KEYED + row, before],
                    high,
                    sent[KEYED + row, i],
                )
            before = i


@compiled
def _try_keyed_at(
    game: Game, room: Room, view: Record, n: int, from_state: int, at_s: float, keyed: Record
) -> None:
    """Send with the candidate key at ``at_s`` [s] in every hypothesis of a state, and sum up."""
    contract = game.contexts[game.members[0]].contract
    costs = contract.costs
    full = rules.full_payload(contract.n_items)
    shares = mode_shares(game, view.n_attempts == 0)
    p_open = np.array(
        [response_share(shares, rules.R_TIMEOUT), response_share(shares, rules.R_SERVER_ERROR)]
    )
    p_absent = np.array([shares[M_TIMEOUT_PRE], shares[M_HTTP500_PRE]])
    key = candidate_key(contract)
    for h in range(n):
        found = room.hypotheses[h]
        if found.shown_by < from_state:
            continue
        w = found.weight
        for response in range(2):
            keyed.open_weight[response] += w * p_open[response]
        for twice in range(2):
            p = shares[M_REDELIVERY] if twice else shares[M_OK]
            # Without a redelivered copy also for the sendings whose response leaves it open.
            if p <= 0.0 and twice:
                continue
            room.truth[1] = found.truth
            seen, truth = room.seen[1], room.truth[1]
            j = _stage(view, seen)
            context = game.contexts[game.members[found.member]]
            advance(context, seen, truth, at_s)
            kernel.send(
                game.contexts,
                seen,
                truth,
                key,
                M_REDELIVERY if twice else M_OK,
                contract.latency_s,
                context.law.copy_delay_s if twice else math.inf,
                np.int64(contract.n_items),
                True,
            )
            answer = seen.attempts[j]
            arrive_until(context, seen, truth, math.inf)
            executed, executions = tally(seen, truth)
            duplicates, omissions = excess(contract, executed, executions)
            claimed = worth(costs, duplicates, omissions, True, room.terms)
            unclaimed = worth(costs, duplicates, omissions, False, room.terms)
            if answer.response == rules.R_SUCCESS:
                keyed.claimed += w * p * claimed
                keyed.unclaimed += w * p * unclaimed
                keyed.delay_s += w * p * (answer.answered_s - at_s)
            elif answer.response == rules.R_CONFLICT:
                keyed.refused_claimed += w * p * claimed
                keyed.refused_unclaimed += w * p * unclaimed
                keyed.delay_s += w * p * (answer.answered_s - at_s)
            else:  # coalesced with one that takes longer than the client waits
                keyed.open_weight[TIMEOUT] += w * p
                keyed.beside[TIMEOUT] += w * p * claimed
                keyed.open_unclaimed[TIMEOUT] += w * p * unclaimed
            if twice:
                continue
            for response in range(2):
                p_done = p_open[response] - p_absent[response]
                keyed.open_unclaimed[response] += w * (
                    p_absent[response] * found.unclaimed + p_done * unclaimed
                )
                if found.executed != full:
                    keyed.alone_weight[response] += w * p_open[response]
                else:
                    keyed.beside[response] += w * (
                        p_absent[response] * found.claimed + p_done * claimed
                    )


@compiled
def _mix(into: Record, low: float, one: Record, high: float, two: Record) -> None:
    """Interpolate between what a re-issue leads to in two states."""
    into.claimed = low * one.claimed + high * two.claimed
    into.unclaimed = low * one.unclaimed + high * two.unclaimed
    into.refused_claimed = low * one.refused_claimed + high * two.refused_claimed
    into.refused_unclaimed = low * one.refused_unclaimed + high * two.refused_unclaimed
    into.delay_s = low * one.delay_s + high * two.delay_s
    for response in range(2):
        into.open_weight[response] = (
            low * one.open_weight[response] + high * two.open_weight[response]
        )
        into.alone_weight[response] = (
            low * one.alone_weight[response] + high * two.alone_weight[response]
        )
        into.open_unclaimed[response] = (
            low * one.open_unclaimed[response] + high * two.open_unclaimed[response]
        )
        into.beside[response] = low * one.beside[response] + high * two.beside[response]
