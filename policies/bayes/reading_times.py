"""When a read may pay: the moments among which the programme chooses."""

from __future__ import annotations

import math

import numpy as np

from exactlyonce_env import rules
from exactlyonce_env.actions import MAX_WAIT_S, WAITS_S
from exactlyonce_env.compiled import Array, Record, compiled
from exactlyonce_env.quantiles import BEYOND_S, delay_survival
from exactlyonce_env.vocabulary import Readback
from policies.bayes.beliefs import is_live
from policies.bayes.records import Game

SLACK_S = 1e-6
"""A read is planned so much after the moment at which something may land, against rounding [s]."""

NO_READBACK = int(Readback.NONE)
LONGEST_S = 4.0 * MAX_WAIT_S


@compiled
def worth_waiting_s(contract: Record) -> float:
    """Time [s] after which waiting has cost more than there is to win or lose."""
    costs = contract.costs
    at_stake = costs.success + costs.overclaim + costs.unresolved
    at_stake += contract.n_items * (costs.duplicate + costs.omission)
    rate = costs.time_per_hour / 3600.0
    if rate * LONGEST_S <= at_stake:
        return LONGEST_S
    return max(at_stake / rate, 60.0)


@compiled
def _landing_s(table: Array, offset: int, share: float, from_s: float) -> float:
    """Delay [s] after which only ``share`` of what lasts ``from_s`` is still in flight."""
    target = share * delay_survival(table, offset, from_s)
    low = max(from_s, 1e-3)
    high = BEYOND_S
    if delay_survival(table, offset, low) <= target:
        return low
    for _ in range(64):
        middle = math.sqrt(low * high)
        if delay_survival(table, offset, middle) <= target:
            high = middle
        else:
            low = middle
        if high - low < 1e-9 * high:
            break
    return high


@compiled
def plan_reads(game: Game, view: Record, n_wanted: int, with_waits: bool) -> Array:
    """About ``n_wanted`` moments [s], ascending from the clock, at which a read may be made.

    Half of them lie where equal shares of the writes in flight land, the others are spread evenly
    on a logarithmic scale.  All fixed moments are among them: certain delays, the end of a key's
    retention, the operator's answer and, ``with_waits``, the ends of the discrete waits.
    """
    contract = game.contexts[game.members[0]].contract
    from_s = view.clock_s
    last_s = from_s + worth_waiting_s(contract)
    n_members = len(game.members)
    few = min(n_members, 8)
    keyed = contract.accepts_key and contract.key_retention_s < MAX_WAIT_S
    room = n_wanted + 64 + view.n_attempts * n_members * 8
    times = np.empty(room + 4 * view.n_attempts * few * n_wanted)
    n = 0
    times[n] = from_s
    n += 1
    if with_waits:
        for seconds in WAITS_S:
            times[n] = view.clock_s + seconds
            n += 1
    n_late = 0
    for j in range(view.n_attempts):
        if is_live(view.attempts[j]) and rules.is_unknown(view.attempts[j].response):
            n_late += 1
    per_law = max(n_wanted // (2 * max(n_late, 1) * few), 4)
    farthest_s = from_s
    for j in range(view.n_attempts):
        attempt = view.attempts[j]
        if not is_live(attempt) or not rules.is_unknown(attempt.response):
            continue
        for m in range(n_members):
            law = game.contexts[game.members[m]].law
            lag_s = law.lag_s if contract.readback == rules.EVENTUAL else 0.0
            sent_s = attempt.sent_s
            cdf = law.first_cdf if j == 0 else law.retry_cdf
            times[n] = sent_s + contract.latency_s + lag_s + SLACK_S
            n += 1
            if attempt.response != rules.R_TIMEOUT:
                continue
            if cdf[rules.M_TIMEOUT_LATE] > cdf[rules.M_TIMEOUT_LATE - 1]:
                times[n] = sent_s + law.late_fixed_s + lag_s + SLACK_S
                n += 1
                if keyed:
                    times[n] = sent_s + law.late_fixed_s - contract.key_retention_s + SLACK_S
                    times[n + 1] = times[n] - contract.latency_s
                    n += 2
            if m >= few or not cdf[rules.M_TIMEOUT_LATE_TAIL] > cdf[rules.M_TIMEOUT_LATE]:
                continue
            elapsed_s = max(from_s - lag_s - sent_s, 0.0)
            for q in range(per_law):
                share = (per_law - 1 - q) / per_law
                if q == per_law - 1:
                    share = 0.02 / per_law
                delay_s = _landing_s(game.table, law.tail_offset, share, elapsed_s)
                at_s = sent_s + delay_s + lag_s + SLACK_S
                if contract.readback == NO_READBACK:  # so that the operator's answer comes then
                    times[n] = at_s - contract.operator_delay_s
                    n += 1
                if keyed:  # early enough that a record made then meets what lands here
                    times[n] = sent_s + delay_s - contract.key_retention_s + SLACK_S
                    times[n + 1] = times[n] - contract.latency_s
                    n += 2
                if at_s <= last_s:
                    times[n] = at_s
                    n += 1
                    farthest_s = max(farthest_s, at_s)
        if keyed:
            times[n] = attempt.sent_s + contract.key_retention_s + SLACK_S
            n += 1
    if keyed:
        times[n] = from_s + contract.key_retention_s + SLACK_S
        n += 1
    times[n] = from_s + contract.operator_delay_s
    n += 1
    spread = n_wanted // 2
    end_s = last_s if farthest_s <= from_s else min(last_s, from_s + 2.0 * (farthest_s - from_s))
    step = (math.log(end_s - from_s) - math.log(max(contract.latency_s, 0.5))) / spread
    for k in range(spread):
        times[n] = from_s + math.exp(math.log(max(contract.latency_s, 0.5)) + step * (k + 1))
        n += 1
    ordered = np.sort(times[:n])
    kept = 0
    for k in range(n):
        if ordered[k] < from_s or ordered[k] > last_s:
            continue
        if kept == 0 or ordered[k] > ordered[kept - 1] + 0.5 * SLACK_S:
            ordered[kept] = ordered[k]
            kept += 1
    return ordered[:kept].copy()
