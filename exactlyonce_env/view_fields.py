"""A view as plain data: every field that the client knows, in JSON's types."""

from __future__ import annotations

import math
from typing import Any

from exactlyonce_env.compiled import Record
from exactlyonce_env.evidence import report_source
from exactlyonce_env.records import COSTS, DOCUMENTED_QUANTILES, UNKNOWN
from exactlyonce_env.view_building import item_list, word
from exactlyonce_env.vocabulary import (
    Authority,
    CandidateKey,
    Ending,
    InFlightSameKey,
    Key,
    OperatorStatus,
    OriginalKey,
    Readback,
    ReadError,
    Response,
    Start,
)

UNKNOWN_WORD = "unknown"
"""Stands for whatever the service does not document."""


def view_fields(seen: Record, contract: Record) -> dict[str, Any]:
    """The fields of a view, in JSON's types; times in seconds from t = 0, durations in seconds.

    ``attempts`` lists what was sent (`Attempt`), ``last_read`` the last informative report of a
    read or of the operator, None before the first.  Whatever is not documented is the word
    ``unknown``.
    """
    n = int(seen.n_attempts)
    now_s = float(seen.clock_s)
    ending = Ending(int(seen.ending))
    return {
        "clock_s": now_s,
        "elapsed_s": now_s,
        "deciding_s": now_s - float(seen.decided_from_s),
        "ending": None if ending == Ending.RUNNING else ending.name.lower(),
        "attempts": [_attempt(seen.attempts[j], j) for j in range(n)],
        "last_read": _last_read(seen, contract),
        "items_ever_shown": list(item_list(seen.ever_shown)),
        "read_error": _word_or_none(ReadError, seen.read_error),
        "reads_since_attempt": int(seen.reads_since_attempt),
        "operator": word(OperatorStatus, seen.operator_status),
        "operator_at_s": float(seen.operator_at_s) if seen.operator_at_s >= 0.0 else None,
        "retry_after_left_s": max(float(seen.retry_at_s) - now_s, 0.0),
        "steps_taken": int(seen.n_steps),
        "steps_left": int(contract.max_steps - seen.n_steps),
        "attempts_left": int(contract.max_attempts - n),
        "reads": int(seen.n_reads),
        "waits": int(seen.n_waits),
        "reissues": int(seen.n_reissues),
        "escalations": int(seen.n_escalations),
        "client_errors": int(seen.n_client_errors),
        "contract": contract_fields(contract),
        "documented": documented_fields(contract),
        "costs": {name: float(contract.costs[name]) for name in COSTS.names or ()},
    }


def contract_fields(contract: Record) -> dict[str, Any]:
    """The contract as documented: an undocumented lag or bound is ``unknown``.

    ``key_retention_s`` None: a key record lives for ever.
    """
    lag_s = float(contract.lag_s)
    retention_s = float(contract.key_retention_s)
    return {
        "start": word(Start, contract.start),
        "readback": word(Readback, contract.readback),
        "lag_s": UNKNOWN_WORD if lag_s == UNKNOWN else lag_s,
        "lag_documented": lag_s != UNKNOWN,
        "accepts_key": bool(contract.accepts_key),
        "key_retention_s": None if math.isinf(retention_s) else retention_s,
        "in_flight_same_key": word(InFlightSameKey, contract.in_flight_same_key),
        "idempotent": bool(contract.idempotent),
        "irreversible": bool(contract.irreversible),
        "n_items": int(contract.n_items),
        "in_flight_bound_s": _known(contract.in_flight_bound_s),
        "client_timeout_s": float(contract.client_timeout_s),
        "latency_s": float(contract.latency_s),
        "original_key": word(OriginalKey, contract.original_key),
        "candidate_key": word(CandidateKey, contract.candidate_key),
        "operator_delay_s": float(contract.operator_delay_s),
        "operator_answer_rate": float(contract.operator_answer_rate),
        "operator_sees_in_flight": bool(contract.operator_sees_in_flight),
        "max_steps": int(contract.max_steps),
        "max_attempts": int(contract.max_attempts),
        "dispatch_claims": bool(contract.dispatch_claims),
    }


def documented_fields(contract: Record) -> dict[str, Any]:
    """What the documentation tells of faults: quantiles of late delays [s], and shares."""
    quantiles = contract.documented_delay_s
    return {
        "late_delay_s": {
            f"{q:g}": _known(quantiles[k]) for k, q in enumerate(DOCUMENTED_QUANTILES)
        },
        "late_share": _known(contract.documented_late_share),
        "absent_share": _known(contract.documented_absent_share),
        "commit_share": _known(contract.documented_commit_share),
        "retry_fault_rate": _known(contract.documented_retry_fault_rate),
    }


def _attempt(sent: Record, number: int) -> dict[str, Any]:
    return {
        "number": number,
        "sent_s": float(sent.sent_s),
        "answered_s": float(sent.answered_s),
        "response": word(Response, sent.response),
        "key": word(Key, sent.key),
        "items": list(item_list(sent.payload)),
        "known_absent_items": list(item_list(sent.clear)),
        "authority": word(Authority, sent.authority),
    }


def _last_read(seen: Record, contract: Record) -> dict[str, Any] | None:
    if seen.read_at_s < 0.0:
        return None
    return {
        "at_s": float(seen.read_at_s),
        "age_s": float(seen.clock_s - seen.read_at_s),
        "source": report_source(seen, contract),
        "items_shown": list(item_list(seen.shown)),
    }


def _known(value: float) -> float | str:
    number = float(value)
    return UNKNOWN_WORD if number == UNKNOWN or math.isinf(number) else number


def _word_or_none(kind: type[ReadError], code: int) -> str | None:
    return word(kind, code) if code else None
