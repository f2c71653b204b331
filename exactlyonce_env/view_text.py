"""A view in plain English, for language models and for ``render_mode="ansi"``.

The text is a function of the view and its contract: identical views read identically.  What stays
the same during an episode comes first, so that a prompt's prefix can be cached.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from exactlyonce_env import rules
from exactlyonce_env.compiled import Record
from exactlyonce_env.evidence import OPERATOR, READ, known_horizon_s, report_source
from exactlyonce_env.permission import candidate_key
from exactlyonce_env.records import DOCUMENTED_QUANTILES, UNKNOWN
from exactlyonce_env.view_building import item_list
from exactlyonce_env.vocabulary import (
    Authority,
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

RESPONSES: dict[int, str] = {
    Response.SUCCESS: "success",
    Response.TIMEOUT: "no response, the client timed out",
    Response.SERVER_ERROR: "HTTP 500",
    Response.RATE_LIMITED: "HTTP 429, refused",
    Response.UNAVAILABLE: "HTTP 503, refused",
    Response.SCHEMA: "HTTP 422 naming a changed field, refused",
    Response.CONFLICT: "HTTP 409, refused: a request with this key is in progress",
}
KEYS: dict[int, str] = {
    Key.NONE: "without a key",
    Key.PINNED: "with the pinned key",
    Key.OTHER: "with another key",
}
AUTHORITIES: dict[int, str] = {
    Authority.PENDING: "was reported pending",
    Authority.COMMITTED: "was reported committed",
    Authority.NOT_EXECUTED: "was reported not executed, for good",
}
READBACKS: dict[int, str] = {
    Readback.NONE: "none; a read is answered with an error",
    Readback.STRONG: "strong; a read shows every effect committed by the moment it is issued",
    Readback.AUTHORITATIVE: "authoritative; a read shows every effect committed by the moment it "
    "is issued, and says of each attempt if it is pending, committed, or not executed for good",
}
ENDINGS: dict[int, str] = {
    Ending.CLAIMED: "The episode is over: completion was claimed.",
    Ending.UNCERTAIN: "The episode is over: the operation was named uncertain.",
    Ending.EXHAUSTED: "The episode is over: the budget of calls is used up.",
}


def view_text(seen: Record, contract: Record) -> str:
    """The view of a `VIEW` record under its `CONTRACT` record, in plain English."""
    seen, contract = plain(seen), plain(contract)
    seen.attempts = [plain(sent) for sent in seen.attempts[: seen.n_attempts]]
    sections = (
        ("Operation", _operation(contract)),
        ("Service", _service(contract)),
        ("Documented", _documented(contract)),
        ("Costs, in units of one success", _costs(contract)),
        ("History", _history(seen, contract)),
        ("Known", _known(seen, contract)),
        ("Now", _now(seen, contract)),
    )
    lines: list[str] = []
    for title, entries in sections:
        lines += [f"{title}:", *(f"- {entry}" for entry in entries)]
    return "\n".join(lines) + "\n"


def plain(record: Record) -> Record:
    """The fields of a record as Python values, which are read ten times faster.

    The record itself stays at hand as ``record``, for compiled functions. An array of records is
    left as it is.
    """
    names = record.dtype.names
    return SimpleNamespace(
        record=record,
        **{
            name: _plain_field(record, name, value)
            for name, value in zip(names, record.item(), strict=True)
        },
    )


def _plain_field(record: Record, name: str, value: Any) -> Any:
    if isinstance(value, tuple):
        return plain(record[name])
    if isinstance(value, np.ndarray):
        return value if value.dtype.names else value.tolist()
    return value


def seconds_text(seconds: float) -> str:
    """A duration to the millisecond, without trailing zeros: ``90 s``."""
    return f"{number_text(seconds, 3)} s"


def number_text(number: float, digits: int = 4) -> str:
    """A number with at most ``digits`` decimals, without trailing zeros."""
    text = f"{float(number):.{digits}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def items_text(mask: int) -> str:
    """The items of a mask: ``item 0``, ``items 1, 2``."""
    items = item_list(mask)
    return ("item " if len(items) == 1 else "items ") + ", ".join(map(str, items))


def _operation(contract: Record) -> Iterator[str]:
    n = int(contract.n_items)
    if n == 1:
        yield "one write that must take effect exactly once"
    else:
        yield f"one batch of {n} items, numbered 0 to {n - 1}; each must take effect exactly once"
    if contract.idempotent:
        yield "idempotent: executing it again changes nothing"
    if contract.irreversible:
        yield "irreversible: nothing can undo it"
    if contract.start == Start.SEND:
        yield "the first send is yours to make; t = 0 is your first decision"
    else:
        key = Key.PINNED if contract.original_key == OriginalKey.SENT else Key.NONE
        yield f"the original was sent at t = 0 {KEYS[key]}"


def _service(contract: Record) -> Iterator[str]:
    if contract.readback == Readback.EVENTUAL:
        age = "older effects only, and how old they must be is not documented"
        if contract.lag_s != UNKNOWN:
            age = (
                f"the effects committed at least {seconds_text(contract.lag_s)} before it is issued"
            )
        yield f"read-back: eventual; a read shows {age}"
    else:
        yield f"read-back: {READBACKS[int(contract.readback)]}"
    if contract.accepts_key:
        yield from _keys(contract)
    else:
        yield "idempotency keys: not accepted"
    if math.isinf(contract.in_flight_bound_s):
        yield "time in flight: not bounded by the documentation"
    else:
        bound = seconds_text(contract.in_flight_bound_s)
        yield f"time in flight: a request has executed {bound} after it was sent, or never will"
    yield (
        f"a call takes {seconds_text(contract.latency_s)}; the client gives up on a response after "
        f"{seconds_text(contract.client_timeout_s)}"
    )
    yield _operator(contract)
    if contract.dispatch_claims:
        yield "a send that is acknowledged ends the episode and claims completion"


def _keys(contract: Record) -> Iterator[str]:
    life = "for ever"
    if not math.isinf(contract.key_retention_s):
        life = f"for {seconds_text(contract.key_retention_s)} after the request first arrived"
    meets = "waits for its result"
    if contract.in_flight_same_key == InFlightSameKey.CONFLICT:
        meets = "is refused with HTTP 409"
    yield (
        f"idempotency keys: accepted; the record of a key lives {life}; a request with the key of "
        f"one that is still in progress {meets}"
    )
    same = candidate_key(contract.record) == Key.PINNED
    candidate = (
        "the operation's pinned key" if same else "another key than the operation's pinned one"
    )
    yield f"a keyed retry sends {candidate}"


def _operator(contract: Record) -> str:
    rate = float(contract.operator_answer_rate)
    answers = "never answers"
    if rate >= 1.0:
        answers = "always answers"
    elif rate > 0.0:
        answers = f"answers with probability {number_text(rate)}"
    sees = "seen" if contract.operator_sees_in_flight else "not seen"
    return (
        f"operator: takes {seconds_text(contract.operator_delay_s)}, {answers}, and reports the "
        f"ledger of that moment, requests in flight {sees}"
    )


def _documented(contract: Record) -> Iterator[str]:
    delays = contract.documented_delay_s
    if any(delay != UNKNOWN for delay in delays):
        times = ("an unknown time" if d == UNKNOWN else seconds_text(d) for d in delays)
        parts = (
            f"{number_text(100 * q)} % within {time}"
            for q, time in zip(DOCUMENTED_QUANTILES, times, strict=True)
        )
        yield f"delay of a late write, from sending: {', '.join(parts)}"
    else:
        yield "delay of a late write: unknown"
    late, absent = float(contract.documented_late_share), float(contract.documented_absent_share)
    if UNKNOWN in (late, absent):
        yield "behind a timeout of the original: unknown"
    else:
        committed = max(1.0 - late - absent, 0.0)
        yield (
            f"behind a timeout of the original: never executed {_share(absent)}, executed before "
            f"the timeout {_share(committed)}, executed late {_share(late)}"
        )
    commit = float(contract.documented_commit_share)
    tells = "unknown" if commit == UNKNOWN else f"something executed {_share(commit)}"
    yield f"behind an HTTP 500 to the original: {tells}"
    faults = float(contract.documented_retry_fault_rate)
    yield f"a further attempt meets a fault: {'unknown' if faults == UNKNOWN else _share(faults)}"


def _costs(contract: Record) -> Iterator[str]:
    costs = contract.costs
    yield f"exactly one effect of each item in the end: +{number_text(costs.success)}"
    yield (
        f"each duplicate effect {number_text(costs.duplicate)}, each item without an effect "
        f"{number_text(costs.omission)}"
    )
    yield (
        f"ending without a claim of completion {number_text(costs.unresolved)}, a wrong claim "
        f"{number_text(costs.overclaim)}"
    )
    yield (
        f"each hour {number_text(costs.time_per_hour)}, each read {number_text(costs.read)}, "
        f"each re-issue {number_text(costs.reissue)}, "
        f"each question to the operator {number_text(costs.escalation)}"
    )


def _share(share: float) -> str:
    return f"{number_text(100 * share, 2)} %"


def _history(seen: Record, contract: Record) -> Iterator[str]:
    batch = contract.n_items > 1
    for j, sent in enumerate(seen.attempts[: seen.n_attempts]):
        what = f" for {items_text(sent.payload)}" if batch else ""
        yield (
            f"attempt {j}: sent at {seconds_text(sent.sent_s)} {KEYS[int(sent.key)]}{what}; "
            f"{RESPONSES[int(sent.response)]} at {seconds_text(sent.answered_s)}"
        )
    if not seen.n_attempts:
        yield "nothing was sent"
    yield (
        f"reads {seen.n_reads} ({seen.reads_since_attempt} since the last attempt), "
        f"waits {seen.n_waits}, re-issues {seen.n_reissues}, "
        f"questions to the operator {seen.n_escalations}, client errors {seen.n_client_errors}"
    )


def _known(seen: Record, contract: Record) -> Iterator[str]:
    yield _report(seen, contract)
    if seen.ever_shown & ~seen.shown:
        yield f"an earlier report showed {items_text(seen.ever_shown & ~seen.shown)} as well"
    if seen.read_error == ReadError.NO_READBACK:
        yield "the latest read failed: there is no read-back"
    elif seen.read_error == ReadError.OUTAGE:
        yield "the latest read failed with HTTP 503: the service is in an outage"
    if seen.operator_status == OperatorStatus.ANSWERED:
        yield f"the operator answered at {seconds_text(seen.operator_at_s)}"
    elif seen.operator_status == OperatorStatus.SILENT:
        yield f"the operator had not answered by {seconds_text(seen.operator_at_s)}, and will not"
    for j, sent in enumerate(seen.attempts[: seen.n_attempts]):
        yield f"attempt {j}: {_standing(sent, contract)}"


def _report(seen: Record, contract: Record) -> str:
    if seen.read_at_s < 0.0:
        return "no report so far of what was committed"
    source = report_source(seen.record, contract.record)
    by = "by the operator, or by a read at the same moment"
    if source == OPERATOR:
        by = "by the operator"
    elif source == READ:
        up_to_s = known_horizon_s(contract.record, seen.read_at_s, READ)
        by = "by a read"
        if up_to_s < 0.0:
            by += " that need not show anything yet"
        elif up_to_s < seen.read_at_s:
            by += f" that shows what was committed by {seconds_text(up_to_s)}"
    full = rules.full_payload(int(contract.n_items))
    shows = "no effect"
    if seen.shown == full:
        shows = "the effect" if contract.n_items == 1 else "the effects of all items"
    elif seen.shown:
        missing = items_text(full & ~seen.shown)
        shows = f"the effects of {items_text(seen.shown)}, not of {missing}"
    age = seconds_text(seen.clock_s - seen.read_at_s)
    return f"last report, of {seconds_text(seen.read_at_s)} ({age} ago), {by}: {shows}"


def _standing(sent: Record, contract: Record) -> str:
    told = int(sent.authority)
    prefix = f"{AUTHORITIES[told]}; " if told else ""
    if sent.clear == sent.payload:
        return f"{prefix}had no effect and never will"
    if sent.clear:
        rest = items_text(sent.payload & ~sent.clear)
        return f"{prefix}no effect, now or later, on {items_text(sent.clear)}; open for {rest}"
    if sent.response == Response.SUCCESS:
        return f"{prefix}acknowledged"
    if told == Authority.COMMITTED:
        return f"{prefix}it had its effect"
    return f"{prefix}its outcome is open"


def _now(seen: Record, contract: Record) -> Iterator[str]:
    yield f"clock: {seconds_text(seen.clock_s)}"
    for j, sent in enumerate(seen.attempts[: seen.n_attempts]):
        yield f"attempt {j} was sent {seconds_text(seen.clock_s - sent.sent_s)} ago"
    left_s = float(seen.retry_at_s - seen.clock_s)
    if left_s > 0.0:
        yield f"Retry-After: {seconds_text(left_s)} left"
    yield (
        f"budget: {contract.max_steps - seen.n_steps} of {contract.max_steps} calls left, "
        f"{contract.max_attempts - seen.n_attempts} of {contract.max_attempts} attempts left"
    )
    if seen.ending:
        yield ENDINGS[int(seen.ending)]
