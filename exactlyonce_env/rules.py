"""The rules of the world, each one small scalar function.

Every front end calls these: the compiled kernel, the single and the vector environment, the rollout
and whatever else executes writes on the same semantics.  They take plain numbers and know no
records.
"""

from __future__ import annotations

import math

from exactlyonce_env.compiled import inlined
from exactlyonce_env.vocabulary import Mode, Readback, Response

M_OK = int(Mode.OK)
M_TIMEOUT_PRE = int(Mode.TIMEOUT_PRE)
M_TIMEOUT_LATE = int(Mode.TIMEOUT_LATE)
M_TIMEOUT_LATE_TAIL = int(Mode.TIMEOUT_LATE_TAIL)
M_HTTP500_POST = int(Mode.HTTP500_POST)
M_PARTIAL_BATCH = int(Mode.PARTIAL_BATCH)
M_REDELIVERY = int(Mode.REDELIVERY)
M_RATE_LIMITED = int(Mode.RATE_LIMITED)
M_UNAVAILABLE = int(Mode.UNAVAILABLE)
M_OUTAGE = int(Mode.OUTAGE)

R_SUCCESS = int(Response.SUCCESS)
R_TIMEOUT = int(Response.TIMEOUT)
R_SERVER_ERROR = int(Response.SERVER_ERROR)
R_RATE_LIMITED = int(Response.RATE_LIMITED)
R_UNAVAILABLE = int(Response.UNAVAILABLE)
R_SCHEMA = int(Response.SCHEMA)
R_CONFLICT = int(Response.CONFLICT)

STRONG = int(Readback.STRONG)
EVENTUAL = int(Readback.EVENTUAL)
AUTHORITATIVE = int(Readback.AUTHORITATIVE)


@inlined
def commits(mode: int) -> bool:
    """Whether an attempt of this mode executes at all, unless a key suppresses it."""
    return (
        mode <= M_TIMEOUT_LATE_TAIL and mode != M_TIMEOUT_PRE
    ) or M_HTTP500_POST <= mode <= M_REDELIVERY


@inlined
def is_late(mode: int) -> bool:
    """Whether an attempt of this mode executes after the client has given up on it."""
    return mode == M_TIMEOUT_LATE or mode == M_TIMEOUT_LATE_TAIL


@inlined
def commit_time_s(sent_s: float, commit_delay_s: float) -> float:
    """When an attempt executes: a delay runs from the sending and ignores what the client does."""
    return sent_s + commit_delay_s


@inlined
def response_of(mode: int) -> int:
    """The response a client sees of a mode where no key and no outage interferes."""
    if mode == M_OK or mode == M_REDELIVERY:
        return R_SUCCESS
    if mode <= M_TIMEOUT_LATE_TAIL:
        return R_TIMEOUT
    if mode <= M_PARTIAL_BATCH:
        return R_SERVER_ERROR
    if mode == M_RATE_LIMITED:
        return R_RATE_LIMITED
    if mode == M_UNAVAILABLE or mode == M_OUTAGE:
        return R_UNAVAILABLE
    return R_SCHEMA


@inlined
def response_delay_s(response: int, latency_s: float, client_timeout_s: float) -> float:
    """How long the client waits for a response, the same for all hidden outcomes behind it."""
    return client_timeout_s if response == R_TIMEOUT else latency_s


@inlined
def is_rejection(response: int) -> bool:
    """Whether a response says that this attempt was refused and had no effect."""
    return response >= R_RATE_LIMITED


@inlined
def is_unknown(response: int) -> bool:
    """Whether a response leaves the outcome open."""
    return response == R_TIMEOUT or response == R_SERVER_ERROR


@inlined
def read_horizon_s(readback: int, lag_s: float, now_s: float) -> float:
    """Effects committed at or before this time show in a read issued at ``now_s``."""
    return now_s - lag_s if readback == EVENTUAL else now_s


@inlined
def visible(commit_s: float, horizon_s: float) -> bool:
    """Whether an effect shows; a commit at the very instant counts."""
    return commit_s <= horizon_s


@inlined
def record_alive(record_arrival_s: float, key_retention_s: float, now_s: float) -> bool:
    """Whether the key record created by the arrival at ``record_arrival_s`` still protects."""
    return record_arrival_s <= now_s < record_arrival_s + key_retention_s


@inlined
def coalesced_answer_s(
    sent_s: float, latency_s: float, client_timeout_s: float, execution_s: float
) -> float:
    """When a coalesced call gets the first call's result; infinity: the client times out before."""
    answer_s = max(sent_s + latency_s, execution_s)
    return answer_s if answer_s <= sent_s + client_timeout_s else math.inf


@inlined
def terminal_after_s(
    response: int, sent_s: float, answered_s: float, in_flight_bound_s: float
) -> float:
    """Time after which the attempt can no longer commit, as far as the client may know."""
    if response == R_TIMEOUT:
        return sent_s + in_flight_bound_s
    if response == R_SUCCESS:
        return math.inf  # it has an effect; asking for the absence of one is pointless
    return answered_s


@inlined
def full_payload(n_items: int) -> int:
    """Mask of all items of the operation."""
    return (1 << n_items) - 1


@inlined
def retry_payload(reported: bool, shown: int, full: int) -> int:
    """Items that a plain retry sends: those the last report did not show, or else all of them."""
    missing = full & ~shown
    return missing if reported and missing != 0 else full


@inlined
def first_items(payload: int, count: int) -> int:
    """The first ``count`` items of a payload."""
    kept = 0
    bit = 1
    while count > 0 and bit <= payload:
        if payload & bit:
            kept |= bit
            count -= 1
        bit <<= 1
    return kept


@inlined
def count_items(mask: int) -> int:
    """Number of items in a mask."""
    count = 0
    while mask:
        mask &= mask - 1
        count += 1
    return count
