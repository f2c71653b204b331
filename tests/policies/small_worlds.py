"""Small presets with finitely many fates, in which every policy can be tried.

Times are multiples of 1/8 s. Each name says what the case is there for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from exactlyonce_env.plan import Plan
from exactlyonce_env.presets import load_plan

from .brute_force import Solution, solve

THREE = {"family": "empirical", "times_s": [60, 150, 600], "cdf": [0.4, 0.7, 1.0]}
"""Three instants at which a late write may land."""
TWO = {"family": "empirical", "times_s": [60, 240], "cdf": [0.6, 1.0]}
LONG = {"family": "empirical", "times_s": [60, 3600], "cdf": [0.8, 1.0]}
OPEN = {"family": "empirical", "times_s": [60, 240], "cdf": [0.4, 0.8]}
"""One in five has not landed when the measurement ends."""
FIXED_MIX = {
    "family": "mixture",
    "components": [
        {"weight": 0.3, "law": {"family": "fixed", "value_s": 45}},
        {"weight": 0.5, "law": TWO},
        {"weight": 0.2, "law": {"family": "fixed", "value_s": 900}},
    ],
}

TIMEOUTS = {"timeout_pre": 1, "timeout_post": 1, "timeout_late_tail": 1}
LATE = {"timeout_pre": 1, "timeout_late_tail": 2}
ERRORS = {"http500_pre": 2, "http500_post": 1}
KEYED = {"accepts_key": True, "original_key": "sent"}


@dataclass(frozen=True)
class Case:
    """A preset by what it changes, and whether at most two of its attempts are ever unresolved."""

    contract: Mapping[str, Any] = field(default_factory=dict)
    costs: Mapping[str, Any] = field(default_factory=dict)
    original: Mapping[str, float] | str = field(default_factory=lambda: TIMEOUTS)
    retry: Mapping[str, float] | None = None
    rate: float = 0.4
    tail: Mapping[str, Any] = field(default_factory=lambda: THREE)
    faults: Mapping[str, Any] = field(default_factory=dict)
    start: str = "fault"
    more: Mapping[str, Any] = field(default_factory=dict)
    two_unresolved: bool = True


CASES: dict[str, Case] = {
    "strong": Case(),
    "strong-three-steps": Case(contract={"max_steps": 3}),
    "strong-four-steps": Case(contract={"max_steps": 4}, costs={"time_per_hour": 0.5}),
    "strong-cheap-duplicates": Case(costs={"duplicate": 0.05, "overclaim": 0.01, "omission": 1}),
    "strong-dear-duplicates": Case(costs={"duplicate": 20, "time_per_hour": 6}),
    "strong-dear-time": Case(costs={"time_per_hour": 40}),
    "strong-free-time": Case(costs={"time_per_hour": 0}),
    "strong-dear-reads": Case(costs={"read": 0.15}),
    "strong-open-tail": Case(original=LATE, tail=OPEN),
    "strong-two-late-modes": Case(
        original={"timeout_pre": 1, "timeout_late": 1, "timeout_late_tail": 1}, tail=FIXED_MIX
    ),
    "strong-server-error": Case(original=ERRORS, retry=ERRORS),
    "dear-overclaim": Case(
        costs={"overclaim": 2, "unresolved": 0.1}, retry={"timeout_pre": 1, "redelivery": 1}
    ),
    "lag": Case(contract={"readback": "eventual", "lag_s": 45}),
    "lag-retry-timeouts": Case(
        contract={"readback": "eventual", "lag_s": 45}, retry=TIMEOUTS, tail=TWO
    ),
    "lags": Case(
        contract={"readback": "eventual"}, more={"lags_s": {"low": 30, "high": 120, "step": 30}}
    ),
    "hidden-lag": Case(
        contract={"readback": "eventual", "lag_documented": False},
        more={"lags_s": {"low": 0, "high": 240, "step": 120}},
    ),
    "hidden-lag-weighted": Case(
        contract={"readback": "eventual", "lag_documented": False},
        costs={"time_per_hour": 0.5, "duplicate": 3},
        tail=TWO,
        more={
            "variants": [
                {"weight": 3, "contract": {"lag_s": 15}},
                {"weight": 1, "contract": {"lag_s": 300}},
            ]
        },
    ),
    "hidden-lag-retry-timeouts": Case(
        contract={"readback": "eventual", "lag_documented": False},
        tail={"family": "fixed", "value_s": 90},
        retry={"timeout_pre": 1, "timeout_post": 1},
        more={"lags_s": {"low": 0, "high": 120, "step": 120}},
    ),
    "hidden-law": Case(
        original=LATE,
        more={
            "variants": [
                {"weight": 2, "faults": {"late_tail": TWO}},
                {"weight": 1, "faults": {"original": {"timeout_late": 1, "timeout_pre": 3}}},
            ]
        },
    ),
    "costs-differ": Case(
        more={
            "variants": [
                {"costs": {"duplicate": 5}},
                {"weight": 2, "costs": {"time_per_hour": 20}},
                {"costs": {"unresolved": 0, "overclaim": 3}},
            ]
        }
    ),
    "authoritative": Case(contract={"readback": "authoritative"}, retry=TIMEOUTS, tail=TWO),
    "authoritative-in-transit": Case(
        contract={"readback": "authoritative"}, original=LATE, faults={"queued_share": 0}
    ),
    "authoritative-conflict": Case(
        contract={"readback": "authoritative", "in_flight_same_key": "conflict", **KEYED},
        retry=TIMEOUTS,
        tail=TWO,
    ),
    "blind": Case(
        contract={"readback": "none", "operator_delay_s": 300},
        costs={"time_per_hour": 0.5, "escalation": 0.05, "duplicate": 2, "omission": 2},
    ),
    "blind-operator-half": Case(
        contract={"readback": "none", "operator_answer_rate": 0.5},
        costs={"time_per_hour": 0.2, "unresolved": 0.6, "omission": 2, "duplicate": 2},
    ),
    "blind-operator-never": Case(contract={"readback": "none", "operator_answer_rate": 0}),
    "operator-half": Case(
        contract={"readback": "eventual", "lag_s": 3000, "operator_answer_rate": 0.5},
        costs={"time_per_hour": 0.2, "escalation": 0.02, "duplicate": 3, "omission": 3},
    ),
    "operator-sees-in-flight": Case(
        contract={
            "readback": "none",
            "operator_sees_in_flight": True,
            "operator_delay_s": 40,
        },
        costs={"escalation": 0.01, "duplicate": 3, "omission": 3},
        original=LATE,
        retry={"timeout_pre": 1},
    ),
    "bound": Case(contract={"in_flight_bound_s": 600}, costs={"duplicate": 5}, original=LATE),
    "bound-lag": Case(
        contract={"in_flight_bound_s": 240, "readback": "eventual", "lag_s": 30},
        costs={"duplicate": 5},
        retry={"timeout_pre": 1, "timeout_late_tail": 1},
        tail=TWO,
    ),
    "retry-timeouts": Case(retry=TIMEOUTS, tail=TWO),
    "retry-timeouts-cheap": Case(
        retry=TIMEOUTS, tail=TWO, costs={"duplicate": 0.2, "omission": 2, "time_per_hour": 6}
    ),
    "retry-server-error": Case(retry={**ERRORS, "timeout_late_tail": 1}, tail=TWO),
    "retry-explicit": Case(
        retry={"rate_limited": 1, "unavailable": 1, "schema_drift": 1},
        contract={"max_attempts": 3},
        rate=0.6,
    ),
    "retry-redelivered": Case(retry={"redelivery": 1}, tail=TWO),
    "outage": Case(
        original={"outage": 1, "timeout_pre": 1, "timeout_late_tail": 1},
        retry={"outage": 1, "timeout_pre": 1},
        tail=TWO,
    ),
    "outage-or-busy": Case(
        original={"outage": 1, "unavailable": 1},
        retry={"outage": 1, "timeout_pre": 1},
        faults={"retry_after_s": 119, "outage_s": 120},
    ),
    "send": Case(
        start="send",
        original="fit",
        tail=TWO,
        faults={"original_ok_share": 0.3},
    ),
    "send-keyed": Case(
        start="send",
        contract={"accepts_key": True},
        original="fit",
        retry={"timeout_pre": 1},
        tail=TWO,
        faults={"original_ok_share": 0.3},
    ),
    "send-blind-key": Case(
        start="send",
        contract={"accepts_key": True, "readback": "none"},
        original="fit",
        retry={"redelivery": 1, "timeout_post": 1},
        tail=TWO,
        faults={"original_ok_share": 0.2},
    ),
    "key": Case(contract=KEYED),
    "key-blind": Case(contract={"readback": "none", **KEYED}, retry=TIMEOUTS, tail=TWO),
    "key-conflict": Case(
        contract={"in_flight_same_key": "conflict", "readback": "none", **KEYED},
        original=LATE,
        retry={"timeout_pre": 1},
        faults={"queued_share": 1},
        tail=TWO,
    ),
    "key-different": Case(contract={"candidate_key": "different", **KEYED}, original=LATE),
    "key-omitted": Case(contract={"accepts_key": True}, original=LATE, retry={"timeout_post": 1}),
    "key-in-transit-expires": Case(
        contract={"key_retention_s": 100, "max_steps": 5, **KEYED},
        original=LATE,
        faults={"queued_share": 0},
    ),
    "key-in-transit-expires-blind": Case(
        contract={"key_retention_s": 100, "readback": "none", **KEYED},
        costs={"omission": 3, "time_per_hour": 0.5, "escalation": 1},
        original={"timeout_pre": 1, "timeout_late_tail": 4},
        faults={"queued_share": 0},
        tail=TWO,
    ),
    "key-queued-expires": Case(
        contract={"key_retention_s": 200, "max_steps": 5, **KEYED},
        original=LATE,
        faults={"queued_share": 0.5},
        retry={"timeout_pre": 1, "timeout_late_tail": 1},
        tail=TWO,
    ),
    "idempotent": Case(
        contract={"idempotent": True, "readback": "eventual", "lag_s": 30}, retry=TIMEOUTS, tail=TWO
    ),
    "batch": Case(
        contract={"n_items": 2},
        original={"partial_batch": 1, "http500_pre": 1, "http500_post": 1},
        retry={"partial_batch": 1},
        tail=TWO,
    ),
    "batch-of-three": Case(
        contract={"n_items": 3},
        original={"partial_batch": 2, "timeout_pre": 1, "timeout_late_tail": 1},
        retry={"partial_batch": 1, "timeout_pre": 1},
        tail=TWO,
    ),
    "batch-stale": Case(
        contract={"n_items": 3, "readback": "eventual", "lag_s": 60},
        original={"partial_batch": 2, "http500_pre": 1},
        retry={"partial_batch": 1, "timeout_pre": 1},
        costs={"omission": 1.5},
    ),
    "batch-keyed": Case(
        contract={"n_items": 2, **KEYED},
        original={"partial_batch": 1, "http500_pre": 1, "timeout_late_tail": 1},
        retry={"partial_batch": 1, "timeout_pre": 1},
        tail=TWO,
    ),
    "one-decision": Case(
        contract={"max_steps": 1, "dispatch_claims": True, "accepts_key": True, "max_attempts": 3},
        original={"timeout_pre": 1, "timeout_post": 1, "timeout_late": 1},
        costs={"overclaim": 1},
        more={
            "variants": [
                {"contract": {"original_key": "omitted"}},
                {"contract": {"original_key": "sent"}},
                {"contract": {"original_key": "sent", "candidate_key": "different"}},
            ]
        },
    ),
    "dispatch-claims": Case(contract={"dispatch_claims": True}, retry={"timeout_pre": 1}),
    "instant-service": Case(
        contract={"latency_s": 0, "client_timeout_s": 1}, costs={"read": 0}, original=LATE
    ),
    "retry-timeouts-to-the-end": Case(
        contract={"max_steps": 9},
        costs={"time_per_hour": 0.5, "unresolved": 0.1, "overclaim": 1.5},
        retry={"timeout_pre": 1, "timeout_late_tail": 2},
        rate=0.7,
        tail=TWO,
    ),
    "two-in-flight": Case(
        contract={"max_steps": 7},
        costs={
            "duplicate": 3,
            "overclaim": 3,
            "unresolved": 0.5,
            "omission": 3,
            "time_per_hour": 1,
        },
        original={"timeout_pre": 4, "timeout_late_tail": 1},
        retry={"timeout_pre": 1, "timeout_late_tail": 1},
        rate=0.5,
        tail=LONG,
    ),
    "two-in-flight-lag": Case(
        contract={"max_steps": 7, "readback": "eventual", "lag_s": 30},
        costs={"duplicate": 0.1, "overclaim": 3, "unresolved": 1, "time_per_hour": 0.5},
        original={"timeout_pre": 4, "timeout_late_tail": 1},
        retry={"timeout_pre": 1, "timeout_late_tail": 1},
        rate=0.5,
        tail=LONG,
    ),
    "three-in-flight": Case(
        contract={"max_attempts": 3, "max_steps": 7},
        costs={"duplicate": 0.1, "overclaim": 0.3, "unresolved": 0.1, "omission": 1},
        original={"timeout_pre": 1, "timeout_late_tail": 1},
        retry={"timeout_pre": 3, "timeout_late_tail": 1},
        rate=0.9,
        tail={"family": "empirical", "times_s": [60, 600], "cdf": [0.8, 1.0]},
        two_unresolved=False,
    ),
    "three-attempts": Case(
        contract={"max_attempts": 3, "max_steps": 8},
        retry={"timeout_pre": 1, "timeout_late_tail": 1},
        tail={"family": "fixed", "value_s": 90},
        two_unresolved=False,
    ),
    "three-attempts-batch": Case(
        contract={"n_items": 2, "max_attempts": 3},
        original={"partial_batch": 1, "timeout_late_tail": 1},
        retry={"partial_batch": 1, "timeout_pre": 1},
        tail={"family": "fixed", "value_s": 90},
        two_unresolved=False,
    ),
}


@cache
def small_plan(name: str) -> Plan:
    """The plan of a case."""
    case = CASES[name]
    retry = {} if case.retry is None else {"retry": case.retry, "retry_fault_rate": case.rate}
    return load_plan(
        {
            "name": name,
            "start": case.start,
            "contract": {"max_steps": 6, "max_attempts": 2, **case.contract},
            "costs": {"time_per_hour": 2, **case.costs},
            "faults": {
                "original": case.original,
                "late_tail": case.tail,
                "queued_share": 0.5,
                **retry,
                **case.faults,
            },
            **case.more,
        }
    )


@cache
def solved(name: str) -> Solution:
    """The optimum of a case."""
    return solve(small_plan(name))
