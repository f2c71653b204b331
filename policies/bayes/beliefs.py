"""What an honest client may believe: every hidden history that fits a view, with its probability.

A hypothesis gives each unresolved attempt one fate of the preset's own distribution and runs it
through the kernel's rules; those that contradict a response or a report are dropped.  The delay of
a late write is cut into bins at the moments that a plan of reads can tell apart, so that their
probabilities are exact at every read.
"""

from __future__ import annotations

import math

import numpy as np

from exactlyonce_env import kernel, rules
from exactlyonce_env.compiled import Array, Record, compiled
from exactlyonce_env.permission import NO_KEY
from exactlyonce_env.quantiles import delay_survival
from exactlyonce_env.records import N_MODES, N_TERMS
from exactlyonce_env.settlement import excess, tally, write_settlement
from exactlyonce_env.vocabulary import Authority, Mode, OperatorStatus, Readback
from exactlyonce_env.world_state import advance, arrive_until, authority_of, visible_items
from policies.bayes.records import MAX_LIVE, Game, Room

M_OK = int(Mode.OK)
M_TIMEOUT_POST = int(Mode.TIMEOUT_POST)
M_LATE_TAIL = int(Mode.TIMEOUT_LATE_TAIL)
M_LATE = int(Mode.TIMEOUT_LATE)
M_PARTIAL = int(Mode.PARTIAL_BATCH)
M_REDELIVERY = int(Mode.REDELIVERY)
EVENTUAL = int(Readback.EVENTUAL)
NO_READBACK = int(Readback.NONE)
ANSWERED = int(OperatorStatus.ANSWERED)
UNKNOWN_AUTHORITY = int(Authority.UNKNOWN)


@compiled
def worth(costs: Record, duplicates: int, omissions: int, claimed: bool, terms: Array) -> float:
    """Value of a settlement with so many duplicates and omissions."""
    for k in range(N_TERMS):
        terms[k] = 0.0
    write_settlement(costs, duplicates, omissions, claimed, terms)
    total = 0.0
    for k in range(N_TERMS):
        total += terms[k]
    return total


@compiled
def is_live(attempt: Record) -> bool:
    """Whether an attempt may have had, or still have, an effect."""
    return attempt.payload & ~attempt.clear != 0


@compiled
def unresolved_attempts(seen: Record) -> int:
    """Number of attempts whose response left the outcome open and that nothing has settled."""
    count = 0
    for j in range(seen.n_attempts):
        if is_live(seen.attempts[j]) and rules.is_unknown(seen.attempts[j].response):
            count += 1
    return count


@compiled
def known_horizon_s(contract: Record, law: Record, seen: Record) -> float:
    """Commits up to this time would show in what the client has been told; -inf: told nothing."""
    horizon_s = -math.inf
    if seen.read_at_s >= 0.0:
        if seen.operator_status == ANSWERED and seen.operator_at_s == seen.read_at_s:
            horizon_s = seen.read_at_s
        else:
            horizon_s = rules.read_horizon_s(contract.readback, law.lag_s, seen.read_at_s)
    if seen.operator_status == ANSWERED:
        horizon_s = max(horizon_s, seen.operator_at_s)
    return horizon_s


@compiled
def _add(cases: Array, n: int, probability: float, delay_s: float, mode: int) -> int:
    """Append a fate and return how many there are."""
    if probability <= 0.0 or n >= len(cases):
        return n
    case = cases[n]
    case.probability = probability
    case.delay_s = delay_s
    case.copy_delay_s = math.inf
    case.n_commit = 0
    case.mode = mode
    case.queued = 1
    return n + 1


@compiled
def _add_late(
    cases: Array,
    n: int,
    probability: float,
    delay_s: float,
    mode: int,
    n_items: int,
    queued_share: float,
) -> int:
    """Append a late fate; with 0 < queued_share < 1 once queued and once in transit."""
    for queued in range(2):
        share = queued_share if queued else 1.0 - queued_share
        before = n
        n = _add(cases, n, probability * share, delay_s, mode)
        if n > before:
            cases[before].queued = queued
            cases[before].n_commit = n_items
    return n


@compiled
def list_fates(
    contract: Record,
    law: Record,
    table: Array,
    attempt: Record,
    first: bool,
    quiet_s: float,
    known_s: float,
    reads: Array,
    coarse: int,
    cases: Array,
) -> int:
    """Write the fates that fit an attempt's response into ``cases`` and return their number.

    ``reads`` (n,) are the times of the planned reads [s]; the delay law is cut where the first, the
    ``coarse``-th, the 2 ``coarse``-th ... of them looks, and where earlier reports looked, at
    ``quiet_s`` and ``known_s``.
    """
    n = 0
    cdf = law.first_cdf if first else law.retry_cdf
    keyed = attempt.key != NO_KEY
    queued_share = law.queued_share if keyed else 1.0
    below = 0.0
    for mode in range(N_MODES):
        probability = cdf[mode] - below
        below = cdf[mode]
        if probability <= 0.0:
            continue
        answers = rules.response_of(mode) == attempt.response
        # A replay answers, times out or is refused as the request before it decides.
        waits = keyed and rules.response_of(mode) == rules.R_SUCCESS
        if not answers and not (
            waits and (attempt.response == rules.R_TIMEOUT or attempt.response == rules.R_CONFLICT)
        ):
            continue
        if mode == M_LATE:
            n = _add_late(
                cases, n, probability, law.late_fixed_s, mode, contract.n_items, queued_share
            )
        elif mode == M_LATE_TAIL:
            n = _cut_tail(
                contract,
                law,
                table,
                attempt,
                quiet_s,
                known_s,
                reads,
                coarse,
                probability,
                cases,
                n,
            )
        elif mode == M_PARTIAL:
            for k in range(1, contract.n_items):
                before = n
                n = _add(cases, n, probability / (contract.n_items - 1), contract.latency_s, mode)
                if n > before:
                    cases[before].n_commit = k
        else:
            before = n
            n = _add(cases, n, probability, contract.latency_s, mode)
            if n > before:
                cases[before].n_commit = contract.n_items
                if mode == M_REDELIVERY:
                    cases[before].copy_delay_s = law.copy_delay_s
    return n


@compiled
def _cut_tail(
    contract: Record,
    law: Record,
    table: Array,
    attempt: Record,
    quiet_s: float,
    known_s: float,
    reads: Array,
    coarse: int,
    probability: float,
    cases: Array,
    n: int,
) -> int:
    """Append a late write in bins of its delay and return the number of fates."""
    keyed = attempt.key != NO_KEY
    queued_share = law.queued_share if keyed else 1.0
    offset = law.tail_offset
    edge_s = 0.0
    survives = 1.0
    i = -2
    while True:
        if i < 0:
            next_s = (quiet_s if i == -2 else known_s) - attempt.sent_s
        elif i < len(reads):
            horizon_s = rules.read_horizon_s(contract.readback, law.lag_s, reads[i])
            next_s = horizon_s - attempt.sent_s
        else:
            next_s = math.inf
        if next_s > edge_s:
            left = delay_survival(table, offset, next_s) if next_s < math.inf else 0.0
            if survives > left:
                delay_s = 0.5 * (edge_s + next_s) if next_s < math.inf else 2.0 * edge_s + 3600.0
                n = _add_late(
                    cases,
                    n,
                    probability * (survives - left),
                    delay_s,
                    M_LATE_TAIL,
                    contract.n_items,
                    queued_share,
                )
                survives = left
            edge_s = next_s
        if next_s == math.inf or survives <= 0.0:
            return n
        i = i + 1 if i < 0 else i + coarse


@compiled
def _resend(
    contexts: Array, seen: Record, truth: Record, attempt: Record, case: Record, full: int
) -> None:
    """Send an attempt of the view again, in the hypothesis, with the fate ``case``."""
    context = contexts[truth.context]
    advance(context, seen, truth, attempt.sent_s)
    # A plain send takes what the last report did not show: say so, that the payload is the same.
    seen.read_at_s = -1.0 if attempt.payload == full else 0.0
    seen.shown = full & ~attempt.payload
    kernel.send(
        contexts,
        seen,
        truth,
        attempt.key,
        case.mode,
        case.delay_s,
        case.copy_delay_s,
        case.n_commit,
        case.queued != 0,
    )


@compiled
def _same_answer(contract: Record, attempt: Record, got: Record) -> bool:
    """Whether a hypothesis answers an attempt as the view says.

    An answer that waited for an earlier request came when that one was done.  As bins of delays do
    not name that moment, any wait will do.
    """
    if got.response != attempt.response:
        return False
    at_once_s = attempt.sent_s + contract.latency_s + 1e-6
    if attempt.response == rules.R_SUCCESS and attempt.answered_s > at_once_s:
        return got.answered_s > at_once_s
    return abs(got.answered_s - attempt.answered_s) < 1e-6


@compiled
def quiet_horizon_s(view: Record, contract: Record, law: Record, last: Record) -> float:
    """Commits up to this time would have shown before the last sending; -inf: none was looked for.

    A view keeps the last report only.  Of those before the last sending it tells how many there
    were, not when; the one that led to the sending is taken to have come right before it, as in the
    best play it does.
    """
    before = view.n_reads - view.reads_since_attempt
    if before <= 0 or contract.readback == NO_READBACK or view.read_at_s < last.sent_s:
        return -math.inf
    return rules.read_horizon_s(contract.readback, law.lag_s, last.sent_s - contract.latency_s)


@compiled
def _quiet_before(
    view: Record, contract: Record, law: Record, last: Record, seen: Record, truth: Record
) -> bool:
    """Whether a report just before the last sending would have shown what it is known to have."""
    if last.key != NO_KEY and contract.n_items > 1:
        return True
    horizon_s = quiet_horizon_s(view, contract, law, last)
    if horizon_s == -math.inf:
        return True
    full = rules.full_payload(contract.n_items)
    return visible_items(law, seen, truth, horizon_s) == full & ~last.payload


@compiled
def _fits(
    view: Record, contract: Record, law: Record, live: Array, seen: Record, truth: Record
) -> bool:
    """Whether a hypothesis, now, agrees with the reports of the view."""
    if view.read_at_s >= 0.0:
        by_operator = view.operator_status == ANSWERED and view.operator_at_s == view.read_at_s
        horizon_s = view.read_at_s
        if not by_operator:
            horizon_s = rules.read_horizon_s(contract.readback, law.lag_s, view.read_at_s)
        if visible_items(law, seen, truth, horizon_s) != view.shown:
            return False
    if view.operator_status == ANSWERED:
        reported = visible_items(law, seen, truth, view.operator_at_s)
        if reported & ~view.ever_shown != 0:
            return False
    if seen.n_attempts > 1:
        last = view.attempts[live[seen.n_attempts - 1]]
        if not _quiet_before(view, contract, law, last, seen, truth):
            return False
    for k in range(seen.n_attempts):
        attempt = view.attempts[live[k]]
        told = attempt.authority != UNKNOWN_AUTHORITY and attempt.answered_s <= view.read_at_s
        if told and authority_of(truth, k, view.read_at_s) != attempt.authority:
            return False
    return True


@compiled
def _first_read(
    context: Record, seen: Record, truth: Record, shown: int, reads: Array, lagging: bool
) -> int:
    """Number of the first of ``reads`` (n,) [s] that shows other items than ``shown``; n: none."""
    low = 0
    high = len(reads)
    while low < high:
        middle = (low + high) // 2
        horizon_s = reads[middle]
        if lagging:
            horizon_s = rules.read_horizon_s(
                context.contract.readback, context.law.lag_s, horizon_s
            )
        if visible_items(context.law, seen, truth, horizon_s) != shown:
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def _keep_likeliest(cases: Array, n: int) -> None:
    """Put the likeliest of ``n`` fates first."""
    best = 0
    for c in range(1, n):
        if cases[c].probability > cases[best].probability:
            best = c
    if best > 0:
        cases[0] = cases[best]


@compiled
def believe(
    game: Game, room: Room, view: Record, reads: Array, coarse: int, limit: int, sharp: int
) -> int:
    """Write every hypothesis that fits ``view`` into ``room.hypotheses``; return their number.

    ``reads`` (n,) are the times [s] of the reads that the client might make from now on.  Weights
    are probabilities of the responses and reports of all attempts that are still live.  Returns
    -1 where one hidden law would need more than ``limit`` hypotheses, or all of them more room than
    there is.  The ``sharp`` oldest attempts get their likeliest fate only.
    """
    live = np.zeros(MAX_LIVE, np.int64)
    n_live = 0
    for j in range(view.n_attempts):
        if is_live(view.attempts[j]):
            live[n_live] = j
            n_live += 1
    counts = np.zeros(MAX_LIVE, np.int64)
    chosen = np.zeros(MAX_LIVE, np.int64)
    n = 0
    for member in range(len(game.members)):
        index = game.members[member]
        context = game.contexts[index]
        contract = context.contract
        law = context.law
        full = rules.full_payload(contract.n_items)
        known_s = known_horizon_s(contract, law, view)
        quiet_s = -math.inf
        if n_live > 1:
            quiet_s = quiet_horizon_s(view, contract, law, view.attempts[live[n_live - 1]])
        possible = True
        product = 1
        for k in range(n_live):
            counts[k] = list_fates(
                contract,
                law,
                game.table,
                view.attempts[live[k]],
                live[k] == 0,
                quiet_s,
                known_s,
                reads,
                coarse,
                room.cases[k],
            )
            possible &= counts[k] > 0
            if k < sharp and counts[k] > 1:
                _keep_likeliest(room.cases[k], counts[k])
                counts[k] = 1
            product *= counts[k]
        if product > limit:
            return -1
        if not possible:
            continue
        base = room.seen[0]
        kernel.clear(base, room.truth[0])
        base.n_attempts = 0
        room.truth[0].context = index
        room.truth[0].seed = 0
        room.truth[0].world = 0
        room.truth[0].operator_answers = True
        # Depth first over the fates of the live attempts, each sent from the state before it.
        depth = 0
        chosen[0] = 0
        while depth >= 0:
            if depth < n_live:
                c = chosen[depth]
                if c >= counts[depth]:
                    depth -= 1
                    continue
                chosen[depth] = c + 1
                room.seen[depth + 1] = room.seen[depth]
                room.truth[depth + 1] = room.truth[depth]
                seen = room.seen[depth + 1]
                attempt = view.attempts[live[depth]]
                _resend(
                    game.contexts, seen, room.truth[depth + 1], attempt, room.cases[depth, c], full
                )
                if _same_answer(contract, attempt, seen.attempts[depth]):
                    depth += 1
                    if depth < n_live:
                        chosen[depth] = 0
                continue
            seen = room.seen[depth]
            truth = room.truth[depth]
            advance(context, seen, truth, max(view.clock_s, seen.clock_s))
            if _fits(view, contract, law, live, seen, truth):
                if n >= len(room.hypotheses):
                    return -1
                found = room.hypotheses[n]
                found.truth = truth
                weight = game.shares[member]
                for k in range(n_live):
                    weight *= room.cases[k, chosen[k] - 1].probability
                found.weight = weight
                found.member = member
                _foresee(context, room, seen, truth, view.shown, reads, found)
                n += 1
            depth -= 1
    return n


@compiled
def _foresee(
    context: Record,
    room: Room,
    seen: Record,
    truth: Record,
    shown: int,
    reads: Array,
    found: Record,
) -> None:
    """Write what follows from a hypothesis if nothing more is sent."""
    contract = context.contract
    arrive_until(context, seen, truth, math.inf)
    found.executed, found.executions = tally(seen, truth)
    duplicates, omissions = excess(contract, found.executed, found.executions)
    found.claimed = worth(contract.costs, duplicates, omissions, True, room.terms)
    found.unclaimed = worth(contract.costs, duplicates, omissions, False, room.terms)
    effects = 0
    for k in range(seen.n_attempts):
        if truth.attempts[k].effect != 0:
            effects |= 1 << k
    found.effects = effects
    found.shown_by = _first_read(context, seen, truth, shown, reads, True)
    found.reported_by = found.shown_by
    if contract.readback == EVENTUAL:
        found.reported_by = _first_read(context, seen, truth, shown, reads, False)
    found.news = shown
    if found.reported_by < len(reads):
        horizon_s = reads[found.reported_by]
        found.news = visible_items(context.law, seen, truth, horizon_s)
