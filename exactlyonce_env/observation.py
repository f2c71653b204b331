"""The observation: a fixed vector of float32, made of the view and the visible contract alone.

`FEATURES` is the table from which the documentation is generated.  The dynamic features come first;
the static ones depend on the contract only and are written once per context.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from exactlyonce_env import rules
from exactlyonce_env.arithmetic import log1p_coarse
from exactlyonce_env.compiled import Array, Record, compiled, inlined
from exactlyonce_env.permission import NO_KEY, OTHER, candidate_key, permitted
from exactlyonce_env.records import COSTS, DOCUMENTED_QUANTILES, MAX_ATTEMPTS, N_QUANTILES
from exactlyonce_env.vocabulary import (
    CandidateKey,
    InFlightSameKey,
    OperatorStatus,
    OriginalKey,
    Readback,
    ReadError,
    Response,
    Start,
)

WEEK_S = 604800.0
TIME_SCALE = 1.0 / math.log1p(WEEK_S)
COST_SCALE = 1.0 / math.log1p(10000.0)
READ_SCALE = 1.0 / (6.0 * math.log(2.0))
ITEM_SCALE = 1.0 / (5.0 * math.log(2.0))
BOUND = 2.0
"""No feature leaves [-BOUND, BOUND]; almost all stay within [-1, 1]."""


@dataclass(frozen=True)
class Feature:
    """One entry of the observation vector."""

    name: str
    unit: str
    low: float
    high: float
    meaning: str


TIME_UNIT = "log(1 + s) / log(1 + 604800 s)"
COST_UNIT = "log(1 + 1000 c) / log(10001)"

_RESPONSES = [response for response in Response if response != Response.NONE]

DYNAMIC_FEATURES: tuple[Feature, ...] = (
    Feature("elapsed", TIME_UNIT, 0, BOUND, "time since the original was sent (t = 0)"),
    Feature("since_answer", TIME_UNIT, 0, BOUND, "time since the last attempt's response"),
    Feature("retry_after", TIME_UNIT, 0, BOUND, "time left of the last Retry-After"),
    Feature("read_age", TIME_UNIT, -1, BOUND, "time since the moment of the last report; -1: none"),
    Feature("operator_age", TIME_UNIT, -1, BOUND, "time since the last escalation ended; -1: none"),
    Feature("reads_since_attempt", "log2(1 + n) / 6", 0, BOUND, "reads since the last attempt"),
    *(
        Feature(
            f"since_sent_{j}",
            TIME_UNIT,
            -1,
            BOUND,
            f"time since attempt {j} was sent; -1: not sent",
        )
        for j in range(MAX_ATTEMPTS)
    ),
    *(
        Feature(
            f"response_{j}",
            "code / 8",
            -1,
            1,
            f"response of attempt {j}: 1/8 success ... 7/8 conflict, negative with a key; 0: none",
        )
        for j in range(MAX_ATTEMPTS)
    ),
    *(
        Feature(
            f"last_is_{r.name.lower()}", "flag", 0, 1, f"the last response was {r.name.lower()}"
        )
        for r in _RESPONSES
    ),
    Feature("steps_left", "share", 0, 1, "share of the call budget that is left"),
    Feature("attempts_left", "share", 0, 1, "share of the attempts that may still be sent"),
    Feature(
        "last_key", "code", 0, 1, "key of the last attempt: 0 none, 0.5 another, 1 the pinned one"
    ),
    Feature("read_shown", "share", 0, 1, "share of the items in the last report"),
    Feature("read_complete", "flag", 0, 1, "the last report showed every item"),
    Feature("read_failed", "flag", 0, 1, "the latest read taught nothing"),
    Feature("operator", "code", -1, 1, "-1 silent, 0 not asked, 1 answered"),
    Feature("retry_permitted", "flag", 0, 1, "a plain re-issue is permitted now"),
    Feature("keyed_retry_permitted", "flag", 0, 1, "a keyed re-issue is permitted now"),
    Feature(
        "items_known_absent", "share", 0, 1, "share of the items known absent in every attempt"
    ),
)

STATIC_FEATURES: tuple[Feature, ...] = (
    *(
        Feature(f"readback_{kind.name.lower()}", "flag", 0, 1, f"read-back: {kind.name.lower()}")
        for kind in Readback
    ),
    Feature("lag", TIME_UNIT, -1, BOUND, "documented visibility lag; -1: not documented"),
    Feature("accepts_key", "flag", 0, 1, "the write takes an idempotency key"),
    Feature("key_retention", TIME_UNIT, 0, BOUND, "life of a key record; for ever: 2"),
    Feature("in_flight_conflict", "flag", 0, 1, "a same-key request in flight gets 409"),
    Feature("idempotent", "flag", 0, 1, "executing again changes nothing"),
    Feature("irreversible", "flag", 0, 1, "nothing can undo the write"),
    Feature("n_items", "log2(n) / 5", 0, 1, "items of the batch"),
    Feature("in_flight_bound", TIME_UNIT, -1, BOUND, "documented bound on processing; -1: unknown"),
    Feature("client_timeout", TIME_UNIT, 0, BOUND, "client time-out"),
    Feature("latency", TIME_UNIT, 0, BOUND, "time of an ordinary call"),
    Feature("original_key_sent", "flag", 0, 1, "attempt 0 carried the pinned key"),
    Feature("candidate_key_same", "flag", 0, 1, "KEYED_RETRY uses the pinned key"),
    Feature("operator_delay", TIME_UNIT, 0, BOUND, "time of an escalation"),
    Feature("operator_answer_rate", "probability", 0, 1, "probability that the operator answers"),
    Feature("operator_sees_in_flight", "flag", 0, 1, "the operator sees requests in flight"),
    Feature("start_send", "flag", 0, 1, "the original is the client's to send"),
    Feature("dispatch_claims", "flag", 0, 1, "an acknowledged re-issue ends the episode"),
    *(
        Feature(
            f"late_q{round(100 * q)}",
            TIME_UNIT,
            -1,
            BOUND,
            f"documented {q:g} quantile of late delays; -1: unknown",
        )
        for q in DOCUMENTED_QUANTILES
    ),
    Feature("late_share", "probability", -1, 1, "documented P(late given a timeout); -1: unknown"),
    Feature(
        "absent_share", "probability", -1, 1, "documented P(absent given a timeout); -1: unknown"
    ),
    Feature(
        "commit_share", "probability", -1, 1, "documented P(committed given HTTP 500); -1: unknown"
    ),
    Feature(
        "retry_fault_rate", "probability", -1, 1, "documented P(fault of a re-issue); -1: unknown"
    ),
    *(
        Feature(f"cost_{name}", COST_UNIT, 0, BOUND, f"cost field `{name}`")
        for name in COSTS.names or ()
    ),
)

FEATURES: tuple[Feature, ...] = DYNAMIC_FEATURES + STATIC_FEATURES
N_DYNAMIC = len(DYNAMIC_FEATURES)
N_STATIC = len(STATIC_FEATURES)
N_FEATURES = len(FEATURES)

_READS_AT = 5
_SENT_AT = 6
_RESPONSE_AT = _SENT_AT + MAX_ATTEMPTS
_LAST_AT = _RESPONSE_AT + MAX_ATTEMPTS
_REST_AT = _LAST_AT + len(_RESPONSES)
_LANES = 8  # single precision numbers in a vector register
_N_SCALED = -(-_RESPONSE_AT // _LANES) * _LANES

SILENT = int(OperatorStatus.SILENT)
ANSWERED = int(OperatorStatus.ANSWERED)
NO_ERROR = int(ReadError.NONE)
N_READBACKS = len(Readback)
CONFLICT_409 = int(InFlightSameKey.CONFLICT)
KEY_SENT = int(OriginalKey.SENT)
SAME = int(CandidateKey.SAME)
SEND = int(Start.SEND)


# Single precision for `_time_in_single`: a Python float would turn its arithmetic into double.
S_MINUS_1, S_0, S_1, S_2 = np.float32(-1.0), np.float32(0.0), np.float32(1.0), np.float32(2.0)
S_BOUND = np.float32(BOUND)
S_THIRD, S_FIFTH, S_SEVENTH, S_NINTH = (np.float32(1 / n) for n in (3, 5, 7, 9))
LN_2 = np.float32(math.log(2.0))
S_TIME_SCALE, S_READ_SCALE = np.float32(TIME_SCALE), np.float32(READ_SCALE / TIME_SCALE)
MANTISSA_BITS, MANTISSA_MASK = np.int32(23), np.int32((1 << 23) - 1)
SQRT_HALF_BITS = np.float32(math.sqrt(0.5)).view(np.int32)


@inlined
def _scaled_time(seconds: float) -> float:
    """Time feature of a duration [s], capped at `BOUND`."""
    return min(log1p_coarse(seconds) * TIME_SCALE, BOUND) if seconds > 0.0 else 0.0


@inlined
def _known_time(seconds: float) -> float:
    """Time feature of a documented duration, -1 where it is unknown (negative or infinite)."""
    return _scaled_time(seconds) if 0.0 <= seconds < math.inf else -1.0


@inlined
def _time_in_single(seconds: np.float32) -> np.float32:
    """Time feature of a duration [s] in single precision, to about 1e-7; -1 stays -1.

    1 + s = m 2^k with m in [sqrt 1/2, sqrt 2), and log m by the series of the inverse hyperbolic
    tangent.  Single precision and no branch, so that eight durations fit into one instruction.
    """
    bits = np.int32(np.float32(S_1 + max(seconds, S_0)).view(np.int32) - SQRT_HALF_BITS)
    exponent = np.float32(np.int32(bits >> MANTISSA_BITS))
    mantissa = np.int32((bits & MANTISSA_MASK) + SQRT_HALF_BITS).view(np.float32)
    s = (mantissa - S_1) / (mantissa + S_1)
    z = s * s
    series = S_1 + z * (S_THIRD + z * (S_FIFTH + z * (S_SEVENTH + z * S_NINTH)))
    scaled = min((exponent * LN_2 + S_2 * s * series) * S_TIME_SCALE, S_BOUND)
    return scaled if seconds >= S_0 else S_MINUS_1


@compiled
def scale_times(out: Array) -> None:
    """Turn the durations [s] that `write_dynamic` leaves in ``out`` (N_FEATURES,) into features."""
    # A bound that is no constant: the compiler would unroll the loop instead of vectorising it.
    for k in range(_N_SCALED if len(out) >= _N_SCALED else 0):
        scaled = _time_in_single(out[k])
        out[k] = scaled if k < _RESPONSE_AT else out[k]
    out[_READS_AT] = min(out[_READS_AT] * S_READ_SCALE, S_BOUND)


@compiled
def write_dynamic(seen: Record, contract: Record, out: Array) -> None:
    """Write the dynamic features of a view into ``out`` (N_FEATURES,) float32, times in seconds.

    These come first and are left to `scale_times`: a vector load right behind the single stores
    waits for each of them, so that a loop over many worlds had better scale a block of rows later.
    """
    now_s = seen.clock_s
    n = seen.n_attempts
    full = rules.full_payload(contract.n_items)
    for k in range(_SENT_AT, _RESPONSE_AT):
        out[k] = -1.0
    for k in range(_RESPONSE_AT, _REST_AT):
        out[k] = 0.0
    absent = full
    last_key = 0.0
    since_answer_s = 0.0
    for j in range(n):
        attempt = seen.attempts[j]
        out[_SENT_AT + j] = now_s - attempt.sent_s
        code = 0.125 * attempt.response
        out[_RESPONSE_AT + j] = code if attempt.key == NO_KEY else -code
        absent &= ~attempt.payload | attempt.clear
    if n > 0:
        last = seen.attempts[n - 1]
        since_answer_s = now_s - last.answered_s
        out[_LAST_AT + last.response - 1] = 1.0
        if last.key != NO_KEY:
            last_key = 0.5 if last.key == OTHER else 1.0
    out[0] = now_s
    out[1] = since_answer_s
    out[2] = max(seen.retry_at_s - now_s, 0.0)
    out[3] = now_s - seen.read_at_s if seen.read_at_s >= 0.0 else -1.0
    out[4] = now_s - seen.operator_at_s if seen.operator_at_s >= 0.0 else -1.0
    out[_READS_AT] = seen.reads_since_attempt
    k = _REST_AT
    out[k] = 1.0 - seen.n_steps / contract.max_steps
    out[k + 1] = 1.0 - n / contract.max_attempts
    out[k + 2] = last_key
    out[k + 3] = rules.count_items(seen.shown) / contract.n_items if seen.shown != 0 else 0.0
    out[k + 4] = 1.0 if seen.shown == full else 0.0
    out[k + 5] = 0.0 if seen.read_error == NO_ERROR else 1.0
    status = seen.operator_status
    out[k + 6] = 1.0 if status == ANSWERED else (-1.0 if status == SILENT else 0.0)
    out[k + 7] = 1.0 if permitted(seen, contract, NO_KEY) else 0.0
    keyed = contract.accepts_key and permitted(seen, contract, candidate_key(contract))
    out[k + 8] = 1.0 if keyed else 0.0
    out[k + 9] = 1.0 if absent == full else rules.count_items(absent) / contract.n_items


@compiled
def write_static(contract: Record, out: Array) -> None:
    """Write the static features of a contract into ``out`` (at least N_STATIC,) float32."""
    for kind in range(N_READBACKS):
        out[kind] = 1.0 if contract.readback == kind else 0.0
    k = N_READBACKS
    out[k] = _known_time(contract.lag_s)
    out[k + 1] = contract.accepts_key
    out[k + 2] = (
        BOUND if contract.key_retention_s == math.inf else _scaled_time(contract.key_retention_s)
    )
    out[k + 3] = 1.0 if contract.in_flight_same_key == CONFLICT_409 else 0.0
    out[k + 4] = contract.idempotent
    out[k + 5] = contract.irreversible
    out[k + 6] = log1p_coarse(contract.n_items - 1.0) * ITEM_SCALE
    out[k + 7] = _known_time(contract.in_flight_bound_s)
    out[k + 8] = _scaled_time(contract.client_timeout_s)
    out[k + 9] = _scaled_time(contract.latency_s)
    out[k + 10] = 1.0 if contract.original_key == KEY_SENT else 0.0
    out[k + 11] = 1.0 if contract.candidate_key == SAME else 0.0
    out[k + 12] = _scaled_time(contract.operator_delay_s)
    out[k + 13] = contract.operator_answer_rate
    out[k + 14] = contract.operator_sees_in_flight
    out[k + 15] = 1.0 if contract.start == SEND else 0.0
    out[k + 16] = contract.dispatch_claims
    k += 17
    for q in range(N_QUANTILES):
        out[k + q] = _known_time(contract.documented_delay_s[q])
    k += N_QUANTILES
    out[k] = contract.documented_late_share
    out[k + 1] = contract.documented_absent_share
    out[k + 2] = contract.documented_commit_share
    out[k + 3] = contract.documented_retry_fault_rate
    costs = contract.costs
    out[k + 4] = _scaled_cost(costs.success)
    out[k + 5] = _scaled_cost(costs.duplicate)
    out[k + 6] = _scaled_cost(costs.omission)
    out[k + 7] = _scaled_cost(costs.unresolved)
    out[k + 8] = _scaled_cost(costs.overclaim)
    out[k + 9] = _scaled_cost(costs.time_per_hour)
    out[k + 10] = _scaled_cost(costs.read)
    out[k + 11] = _scaled_cost(costs.reissue)
    out[k + 12] = _scaled_cost(costs.escalation)


@compiled
def _scaled_cost(cost: float) -> float:
    """Cost feature, capped at `BOUND`."""
    return min(log1p_coarse(1000.0 * cost) * COST_SCALE, BOUND)


@compiled
def write_unscaled(seen: Record, contexts: Array, static: Array, out: Array) -> None:
    """Write the observation of a view into ``out`` (N_FEATURES,) float32, but for `scale_times`."""
    context = seen.context
    write_dynamic(seen, contexts[context].contract, out)
    for k in range(static.shape[1]):
        out[N_DYNAMIC + k] = static[context, k]


@compiled
def write_observation(seen: Record, contexts: Array, static: Array, out: Array) -> None:
    """Write the whole observation of a view into ``out`` (N_FEATURES,) float32."""
    write_unscaled(seen, contexts, static, out)
    scale_times(out)


@compiled
def observe_views(views: Array, contracts: Array, static: Array, out: Array) -> None:
    """Write the observation of each of ``views`` (n,) VIEW into ``out`` (n, N_FEATURES) float32.

    View i works under ``contracts[views[i].context]``; ``contracts`` (C,) are CONTRACT records and
    ``static`` (C, N_STATIC) float32 their rows of `write_static`.
    """
    for i in range(len(views)):
        context = views[i].context
        write_dynamic(views[i], contracts[context], out[i])
        for k in range(static.shape[1]):
            out[i, N_DYNAMIC + k] = static[context, k]
    for i in range(len(views)):
        scale_times(out[i])


def observation_bounds() -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper bounds of the observation, each (N_FEATURES,) float32."""
    low = np.array([feature.low for feature in FEATURES], dtype=np.float32)
    high = np.array([feature.high for feature in FEATURES], dtype=np.float32)
    return low, high
