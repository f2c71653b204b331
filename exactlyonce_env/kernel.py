"""The dynamics of one operation under ambiguous outcomes, as scalar functions over records.

``begin`` opens a world, ``act`` takes one decision, and the truth settles inside ``act`` when the
episode ends.  All front ends call these two.  Both draw the fate of what they send; ``begin_fated``
and ``act_fated`` are handed it instead, for those who reason over all fates.  The caller owns every
buffer; nothing is allocated in a step.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from exactlyonce_env import rules
from exactlyonce_env.compiled import Array, Record, compiled
from exactlyonce_env.drawing import draw_context, draw_fate, draw_operator
from exactlyonce_env.permission import (
    NO_KEY,
    OTHER,
    PINNED,
    candidate_key,
    next_payload,
    permitted_items,
)
from exactlyonce_env.records import N_TERMS
from exactlyonce_env.settlement import settle, settlement_terms
from exactlyonce_env.vocabulary import (
    Action,
    Authority,
    Ending,
    InFlightSameKey,
    OperatorStatus,
    OriginalKey,
    ReadError,
    Start,
    Term,
)
from exactlyonce_env.world_state import (
    advance,
    authority_of,
    pending_same_key,
    resolve,
    visible_items,
)

READ = int(Action.READ)
WAIT = int(Action.WAIT)
RETRY = int(Action.RETRY)
KEYED_RETRY = int(Action.KEYED_RETRY)
ESCALATE = int(Action.ESCALATE)
FINISH = int(Action.FINISH)
FINISH_UNCERTAIN = int(Action.FINISH_UNCERTAIN)

RUNNING = int(Ending.RUNNING)
CLAIMED = int(Ending.CLAIMED)
UNCERTAIN = int(Ending.UNCERTAIN)
EXHAUSTED = int(Ending.EXHAUSTED)

T_TIME = int(Term.TIME)
T_READ = int(Term.READ)
T_REISSUE = int(Term.REISSUE)
T_ESCALATION = int(Term.ESCALATION)

START_FAULT = int(Start.FAULT)
KEY_SENT = int(OriginalKey.SENT)
CONFLICT_409 = int(InFlightSameKey.CONFLICT)
NOT_EXECUTED = int(Authority.NOT_EXECUTED)
COMMITTED = int(Authority.COMMITTED)
NO_ERROR = int(ReadError.NONE)
NO_READBACK = int(ReadError.NO_READBACK)
IN_OUTAGE = int(ReadError.OUTAGE)
ANSWERED = int(OperatorStatus.ANSWERED)
SILENT = int(OperatorStatus.SILENT)


@compiled
def begin(
    contexts: Array,
    context_cdf: Array,
    table: Array,
    seed: np.uint64,
    world: int,
    seen: Record,
    truth: Record,
) -> None:
    """Open world ``world`` of ``seed`` in the records ``seen`` (VIEW) and ``truth`` (TRUTH)."""
    index = draw_context(context_cdf, seed, world)
    context = contexts[index]
    contract = context.contract
    mode, delay_s, copy_delay_s, n_commit, queued = rules.M_OK, 0.0, 0.0, np.int64(0), False
    if contract.start == START_FAULT:
        mode, delay_s, copy_delay_s, n_commit, queued = draw_fate(
            contract, context.law, table, seed, world, 0
        )
    begin_fated(contexts, index, seen, truth, mode, delay_s, copy_delay_s, n_commit, queued)
    truth.seed = seed
    truth.world = world
    truth.operator_answers = draw_operator(contract.operator_answer_rate, seed, world)


@compiled
def begin_fated(
    contexts: Array,
    index: int,
    seen: Record,
    truth: Record,
    mode: int,
    delay_s: float,
    copy_delay_s: float,
    n_commit: Any,
    queued: bool,
) -> None:
    """Open a world of context ``index`` whose original, if already sent, has the given fate.

    The caller sets ``truth.operator_answers``.
    """
    contract = contexts[index].contract
    clear(seen, truth)
    seen.context = contexts[index].law.shown_as
    truth.context = index
    if contract.start == START_FAULT:
        key = PINNED if contract.original_key == KEY_SENT else NO_KEY
        send(contexts, seen, truth, key, mode, delay_s, copy_delay_s, n_commit, queued)
        seen.decided_from_s = seen.clock_s


@compiled
def clear(seen: Record, truth: Record) -> None:
    """Empty both records, so that equal histories leave equal bytes."""
    for j in range(seen.n_attempts):
        shown = seen.attempts[j]
        shown.sent_s = 0.0
        shown.answered_s = 0.0
        shown.payload = 0
        shown.clear = 0
        shown.response = 0
        shown.key = 0
        shown.authority = 0
    seen.clock_s = 0.0
    seen.decided_from_s = 0.0
    seen.read_at_s = -1.0
    seen.retry_at_s = 0.0
    seen.operator_at_s = -1.0
    seen.n_attempts = 0
    seen.n_steps = 0
    seen.n_reads = 0
    seen.reads_since_attempt = 0
    seen.n_waits = 0
    seen.n_reissues = 0
    seen.n_escalations = 0
    seen.n_client_errors = 0
    seen.shown = 0
    seen.ever_shown = 0
    seen.pinned_payload = 0
    seen.other_payload = 0
    seen.read_error = NO_ERROR
    seen.operator_status = 0
    seen.ending = RUNNING
    truth.outage_until_s = 0.0
    truth.false_permissions = 0


@compiled
def act(
    contexts: Array,
    table: Array,
    seen: Record,
    truth: Record,
    action: int,
    seconds: float,
    terms: Array,
) -> float:
    """Take one decision; write its reward terms into ``terms`` (9,) and return their sum.

    ``seconds`` counts for WAIT only.  An action that the contract refuses (a key where none is
    taken, attempts beyond the limit) costs one step and nothing else.
    """
    context = contexts[truth.context]
    mode, delay_s, copy_delay_s, n_commit, queued = rules.M_OK, 0.0, 0.0, np.int64(0), False
    if sends(context.contract, seen, action):
        mode, delay_s, copy_delay_s, n_commit, queued = draw_fate(
            context.contract, context.law, table, truth.seed, truth.world, seen.n_attempts + 0
        )  # widened to int64: what it is passed to is compiled for one width
    return act_fated(
        contexts,
        seen,
        truth,
        action,
        seconds,
        mode,
        delay_s,
        copy_delay_s,
        n_commit,
        queued,
        terms,
    )


@compiled
def sends(contract: Record, seen: Record, action: int) -> bool:
    """Whether ``action`` sends an attempt, rather than meeting a client error or doing else."""
    if action != RETRY and action != KEYED_RETRY:
        return False
    refused = action == KEYED_RETRY and not contract.accepts_key
    return seen.n_attempts < contract.max_attempts and not refused


@compiled
def act_fated(
    contexts: Array,
    seen: Record,
    truth: Record,
    action: int,
    seconds: float,
    mode: int,
    delay_s: float,
    copy_delay_s: float,
    n_commit: Any,
    queued: bool,
    terms: Array,
) -> float:
    """`act` with the fate of the attempt that the action sends, if it sends one.

    The fate is what `exactlyonce_env.drawing.draw_fate` returns.
    """
    context = contexts[truth.context]
    contract = context.contract
    costs = contract.costs
    for k in range(N_TERMS):
        terms[k] = 0.0
    before_s = seen.clock_s
    if action == READ:
        read(contexts, seen, truth)
        terms[T_READ] = -costs.read
    elif action == WAIT:
        seen.n_waits += 1
        advance(context, seen, truth, seen.clock_s + seconds)
    elif action == RETRY or action == KEYED_RETRY:
        key = candidate_key(contract) if action == KEYED_RETRY else NO_KEY
        if not sends(contract, seen, action):
            seen.n_client_errors += 1
        elif dispatch(
            contexts,
            seen,
            truth,
            key,
            next_payload(seen, contract, key),
            mode,
            delay_s,
            copy_delay_s,
            n_commit,
            queued,
        ):
            terms[T_REISSUE] = -costs.reissue
    elif action == ESCALATE:
        escalate(contexts, seen, truth)
        terms[T_ESCALATION] = -costs.escalation
    elif action == FINISH:
        seen.ending = CLAIMED
    else:
        seen.ending = UNCERTAIN
    terms[T_TIME] = -costs.time_per_hour * (seen.clock_s - before_s) / 3600.0
    seen.n_steps += 1
    if seen.ending == RUNNING and seen.n_steps >= contract.max_steps:
        seen.ending = EXHAUSTED
    if seen.ending != RUNNING:
        settle(context, seen, truth)
        settlement_terms(contract, seen, truth, terms)
    total = 0.0
    for k in range(N_TERMS):
        total += terms[k]
    return total


@compiled
def dispatch(
    contexts: Array,
    seen: Record,
    truth: Record,
    key: int,
    payload: int,
    mode: int,
    delay_s: float,
    copy_delay_s: float,
    n_commit: Any,
    queued: bool,
) -> bool:
    """Send the next attempt and count it; returns whether it was a re-issue."""
    contract = contexts[truth.context].contract
    first = seen.n_attempts == 0
    if not first:
        seen.n_reissues += 1
        if not permitted_items(seen, contract, key, payload):
            truth.false_permissions += 1
    send_items(contexts, seen, truth, key, payload, mode, delay_s, copy_delay_s, n_commit, queued)
    acknowledged = seen.attempts[seen.n_attempts - 1].response == rules.R_SUCCESS
    if contract.dispatch_claims and acknowledged and not first:
        seen.ending = CLAIMED
    return not first


@compiled
def send(
    contexts: Array,
    seen: Record,
    truth: Record,
    key: int,
    mode: int,
    delay_s: float,
    copy_delay_s: float,
    n_commit: Any,
    queued: bool,
) -> None:
    """Send what a retry with ``key`` repeats."""
    payload = next_payload(seen, contexts[truth.context].contract, key)
    send_items(contexts, seen, truth, key, payload, mode, delay_s, copy_delay_s, n_commit, queued)


@compiled
def send_items(
    contexts: Array,
    seen: Record,
    truth: Record,
    key: int,
    payload: int,
    mode: int,
    delay_s: float,
    copy_delay_s: float,
    n_commit: Any,
    queued: bool,
) -> None:
    """Send ``payload`` at the clock and wait for the response or the client's time-out."""
    context = contexts[truth.context]
    contract = context.contract
    law = context.law
    j = seen.n_attempts + 0  # widened to int64: what it is passed to is compiled for one width
    sent_s = seen.clock_s
    if key == PINNED:
        seen.pinned_payload = payload
    elif key == OTHER:
        seen.other_payload = payload
    seen.n_attempts = j + 1
    seen.reads_since_attempt = 0
    shown = seen.attempts[j]
    shown.sent_s = sent_s
    shown.payload = payload
    shown.key = key

    in_outage = sent_s < truth.outage_until_s
    if in_outage:
        mode = rules.M_OUTAGE
    elif mode == rules.M_OUTAGE:
        truth.outage_until_s = sent_s + law.outage_s
    happened = truth.attempts[j]
    happened.mode = mode
    happened.effect = 0
    happened.copy_effect = 0
    happened.copy_due = False
    happened.wanted = rules.first_items(payload, n_commit) if rules.commits(mode) else 0
    happened.execution_s = rules.commit_time_s(sent_s, delay_s)
    happened.arrival_s = sent_s
    happened.in_transit = False
    response = rules.response_of(mode)
    answered_s = sent_s + rules.response_delay_s(
        response, contract.latency_s, contract.client_timeout_s
    )
    if happened.wanted != 0:
        if rules.is_late(mode) and not queued:
            happened.arrival_s = happened.execution_s
            happened.in_transit = True
        else:
            pending_s = pending_same_key(contract, seen, truth, j, sent_s)
            if pending_s < math.inf and response == rules.R_SUCCESS:
                if contract.in_flight_same_key == CONFLICT_409:
                    response = rules.R_CONFLICT
                else:
                    answered_s = rules.coalesced_answer_s(
                        sent_s, contract.latency_s, contract.client_timeout_s, pending_s
                    )
                    if answered_s == math.inf:
                        response = rules.R_TIMEOUT
                        answered_s = sent_s + contract.client_timeout_s
            resolve(context, seen, truth, j, copy_delay_s < math.inf)
    shown.response = response
    shown.answered_s = answered_s
    shown.clear = payload if rules.is_rejection(response) else 0
    if response == rules.R_RATE_LIMITED or response == rules.R_UNAVAILABLE:
        if mode == rules.M_OUTAGE:
            seen.retry_at_s = truth.outage_until_s
        else:
            seen.retry_at_s = answered_s + law.retry_after_s
    advance(context, seen, truth, answered_s)


@compiled
def read(contexts: Array, seen: Record, truth: Record) -> None:
    """Ask the service what it has: the answer shows the moment at which the read was issued."""
    context = contexts[truth.context]
    contract = context.contract
    law = context.law
    issued_s = seen.clock_s
    seen.n_reads += 1
    seen.reads_since_attempt += 1
    if issued_s < truth.outage_until_s:
        seen.read_error = IN_OUTAGE
        seen.retry_at_s = truth.outage_until_s
    elif contract.readback < rules.STRONG:
        seen.read_error = NO_READBACK
    else:
        seen.read_error = NO_ERROR
        true_horizon_s = rules.read_horizon_s(contract.readback, law.lag_s, issued_s)
        known_horizon_s = rules.read_horizon_s(contract.readback, contract.lag_s, issued_s)
        if contract.readback == rules.EVENTUAL and contract.lag_s < 0.0:
            known_horizon_s = -math.inf  # an undocumented lag: absence proves nothing
        _report(
            contexts,
            seen,
            truth,
            issued_s,
            true_horizon_s,
            known_horizon_s,
            contract.readback == rules.AUTHORITATIVE,
        )
    advance(context, seen, truth, issued_s + contract.latency_s)


@compiled
def escalate(contexts: Array, seen: Record, truth: Record) -> None:
    """Ask the operator and wait for the report of the ledger as it then stands."""
    context = contexts[truth.context]
    contract = context.contract
    seen.n_escalations += 1
    answer_s = seen.clock_s + contract.operator_delay_s
    advance(context, seen, truth, answer_s)
    seen.operator_at_s = answer_s
    if not truth.operator_answers:
        seen.operator_status = SILENT
        return
    seen.operator_status = ANSWERED
    _report(
        contexts, seen, truth, answer_s, answer_s, answer_s, contract.operator_sees_in_flight != 0
    )


@compiled
def _report(
    contexts: Array,
    seen: Record,
    truth: Record,
    at_s: float,
    true_horizon_s: float,
    known_horizon_s: float,
    sees_in_flight: bool,
) -> None:
    """Show the client the effects up to ``true_horizon_s`` and draw the conclusions it may draw."""
    context = contexts[truth.context]
    contract = context.contract
    shown = visible_items(context.law, seen, truth, true_horizon_s)
    seen.read_at_s = at_s
    seen.shown = shown
    seen.ever_shown |= shown
    for j in range(seen.n_attempts):
        attempt = seen.attempts[j]
        terminal = known_horizon_s >= rules.terminal_after_s(
            attempt.response, attempt.sent_s, attempt.answered_s, contract.in_flight_bound_s
        )
        if sees_in_flight:
            attempt.authority = authority_of(truth, j, at_s)
            if attempt.authority == NOT_EXECUTED:
                attempt.clear |= attempt.payload
            elif attempt.authority == COMMITTED:
                terminal = True
        if terminal:
            attempt.clear |= attempt.payload & ~shown
