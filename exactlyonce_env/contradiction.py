"""Views that no world can have produced.

`check_view` refuses them, so that a contradiction is never taken as permission.  Each check names
what is wrong; what remains is left to `exactlyonce_env.evidence`, which looks for a fate that
explains the reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from exactlyonce_env import rules
from exactlyonce_env.compiled import Record
from exactlyonce_env.errors import UserError
from exactlyonce_env.evidence import READ, report_sources, unexplained
from exactlyonce_env.permission import candidate_key
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


class ContradictionError(UserError):
    """No world is compatible with the contract and this visible history."""


def check_view(seen: Record, contract: Record) -> None:
    """Refuse a view that no world can have produced.

    Raises
    ------
    ContradictionError
        Naming what contradicts the contract or the rest of the history.
    """
    fault = find_contradiction(seen, contract)
    if fault is not None:
        raise ContradictionError(f"contradictory view: {fault}")


def find_contradiction(seen: Record, contract: Record) -> str | None:
    """The first contradiction of a `VIEW` under its `CONTRACT`, or None."""
    checks: tuple[Callable[[Record, Record], Iterator[str]], ...] = (
        _unreadable,
        _wrong_times,
        _wrong_requests,
        _wrong_responses,
        _wrong_reports,
        _wrong_counts,
    )
    for check in checks:
        for fault in check(seen, contract):
            return fault
    return unexplained(seen, contract)


def busy_s(seen: Record, contract: Record) -> float:
    """Time that the calls of a view took, waits left out [s]."""
    sent = seen.attempts[: seen.n_attempts]
    answers = sum(float(attempt.answered_s - attempt.sent_s) for attempt in sent)
    return float(
        answers + seen.n_reads * contract.latency_s + seen.n_escalations * contract.operator_delay_s
    )


def _close(a: float, b: float) -> bool:
    """Equal but for the rounding of sums of times."""
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-6)


def _unreadable(seen: Record, contract: Record) -> Iterator[str]:
    """Values that mean nothing: NaN, unknown codes, items outside the operation."""
    n = int(seen.n_attempts)
    if not 0 <= n <= contract.max_attempts:
        yield f"{n} attempts, but the contract allows {contract.max_attempts}"
        return
    for name, codes in (
        ("read_error", len(ReadError)),
        ("operator_status", len(OperatorStatus)),
        ("ending", len(Ending)),
    ):
        if not 0 <= seen[name] < codes:
            yield f"{name} has no meaning {seen[name]}"
    full = rules.full_payload(int(contract.n_items))
    for name in ("shown", "ever_shown", "pinned_payload", "other_payload"):
        if seen[name] & ~full:
            yield f"{name} has items outside the operation (0..{contract.n_items - 1})"
    for j, attempt in enumerate(seen.attempts[:n]):
        if not (math.isfinite(attempt.sent_s) and math.isfinite(attempt.answered_s)):
            yield f"attempt {j}: sent at {attempt.sent_s:g} s, answered at {attempt.answered_s:g} s"
        for name, least, codes in (
            ("response", 1, len(Response)),
            ("key", 0, len(Key)),
            ("authority", 0, len(Authority)),
        ):
            if not least <= attempt[name] < codes:
                yield f"attempt {j}: {name} has no meaning {attempt[name]}"
        if not attempt.payload:
            yield f"attempt {j} sends no item"
        if attempt.payload & ~full:
            yield f"attempt {j} sends items outside the operation (0..{contract.n_items - 1})"
        if attempt.clear & ~attempt.payload:
            yield f"attempt {j}: items known absent that it did not send"
    for name in ("clock_s", "decided_from_s", "read_at_s", "retry_at_s", "operator_at_s"):
        if not math.isfinite(seen[name]):
            yield f"{name} is {seen[name]:g}"


def _wrong_times(seen: Record, contract: Record) -> Iterator[str]:
    """Times out of order, or other than the contract's latency and time-out make them."""
    n = int(seen.n_attempts)
    now_s = float(seen.clock_s)
    if contract.start == Start.FAULT:
        if n == 0:
            yield "nothing was sent, but the episode starts after the original's response"
            return
        if seen.attempts[0].sent_s != 0.0:
            yield f"attempt 0 was sent at {seen.attempts[0].sent_s:g} s, but the original at 0 s"
    first_s = float(seen.attempts[0].answered_s) if contract.start == Start.FAULT else 0.0
    if not _close(seen.decided_from_s, first_s):
        yield f"the first decision was at {first_s:g} s, not at {seen.decided_from_s:g} s"
    free_s = 0.0
    for j, attempt in enumerate(seen.attempts[:n]):
        sent_s, answered_s = float(attempt.sent_s), float(attempt.answered_s)
        if sent_s < free_s:
            yield f"attempt {j} was sent at {sent_s:g} s; the client was free at {free_s:g} s only"
        if answered_s > now_s:
            yield f"attempt {j} was answered at {answered_s:g} s, but it is {now_s:g} s now"
        response = Response(int(attempt.response))
        usual_s = rules.response_delay_s(
            attempt.response, contract.latency_s, contract.client_timeout_s
        )
        if _close(answered_s, sent_s + usual_s):
            pass
        elif not (
            response == Response.SUCCESS
            and usual_s < answered_s - sent_s <= contract.client_timeout_s
            and _can_coalesce(contract, attempt)
        ):
            what = response.name.lower().replace("_", " ")
            took_s = answered_s - sent_s
            yield f"attempt {j}: {what} after {took_s:g} s; this contract makes it {usual_s:g} s"
        free_s = answered_s


def _can_coalesce(contract: Record, attempt: Record) -> bool:
    return bool(
        contract.accepts_key
        and attempt.key != Key.NONE
        and contract.in_flight_same_key == InFlightSameKey.COALESCE
    )


def _wrong_requests(seen: Record, contract: Record) -> Iterator[str]:
    """Keys and items that the client of this contract does not send."""
    full = rules.full_payload(int(contract.n_items))
    first_use = {int(Key.PINNED): 0, int(Key.OTHER): 0}
    for j, attempt in enumerate(seen.attempts[: seen.n_attempts]):
        key, payload = int(attempt.key), int(attempt.payload)
        if key != Key.NONE and not contract.accepts_key:
            yield f"attempt {j} carried a key, but the write takes none"
        if j == 0 and contract.start == Start.FAULT:
            original = Key.PINNED if contract.original_key == OriginalKey.SENT else Key.NONE
            if key != original:
                carried, said = Key(key).name.lower(), original.name.lower()
                yield f"attempt 0 carried key {carried}, but the contract says {said}"
        elif key not in (Key.NONE, candidate_key(contract)):
            yield f"attempt {j} carried key {Key(key).name.lower()}, which this client never sends"
        if key != Key.NONE:
            first_use[key] = first_use[key] or payload
            if first_use[key] != payload:
                yield f"attempt {j} sends other items than the first one with its key"
        if j == 0 and payload != full:
            yield "attempt 0 does not send the whole operation"
        repeats = key != Key.NONE and any(earlier.key == key for earlier in seen.attempts[:j])
        if repeats:
            continue
        if full & ~payload & ~seen.ever_shown:
            yield f"attempt {j} leaves out items that no report has shown"
        if 0.0 <= seen.read_at_s < attempt.sent_s:
            due = rules.retry_payload(True, int(seen.shown), full)
            if payload != due:
                yield f"attempt {j} does not send what the report before it left open"
    for key, name in ((Key.PINNED, "pinned_payload"), (Key.OTHER, "other_payload")):
        if seen[name] != first_use[int(key)]:
            yield f"{name} is not what the first attempt with the {key.name.lower()} key sent"


def _wrong_responses(seen: Record, contract: Record) -> Iterator[str]:
    """Responses that this service does not give."""
    responses = [int(attempt.response) for attempt in seen.attempts[: seen.n_attempts]]
    for j, attempt in enumerate(seen.attempts[: seen.n_attempts]):
        if attempt.response != Response.CONFLICT:
            continue
        if attempt.key == Key.NONE or not contract.accepts_key:
            yield f"attempt {j} met a conflict, which takes a key"
        elif contract.in_flight_same_key != InFlightSameKey.CONFLICT:
            yield f"attempt {j} met a conflict, but the service coalesces requests of one key"
    explicit = Response.RATE_LIMITED in responses or Response.UNAVAILABLE in responses
    if seen.retry_at_s > 0.0 and not explicit:
        yield f"a Retry-After until {seen.retry_at_s:g} s, but no answer was 429 or 503"
    if seen.retry_at_s < 0.0:
        yield f"a Retry-After until {seen.retry_at_s:g} s"
    if seen.read_error != ReadError.NONE and seen.n_reads == 0:
        yield "a failed read, but nothing was read"
    if seen.read_error == ReadError.NO_READBACK and contract.readback != Readback.NONE:
        yield "a read that found no read-back, but the contract has one"
    if seen.read_error == ReadError.OUTAGE and Response.UNAVAILABLE not in responses:
        yield "a read failed in an outage, but no attempt was answered with 503"
    if seen.read_error == ReadError.NONE and contract.readback == Readback.NONE and seen.n_reads:
        yield "a read succeeded, but the contract has no read-back"


def _wrong_reports(seen: Record, contract: Record) -> Iterator[str]:
    """Reports that nobody can have given, or not then."""
    now_s, at_s = float(seen.clock_s), float(seen.read_at_s)
    status = int(seen.operator_status)
    if status == OperatorStatus.SILENT and contract.operator_answer_rate >= 1.0:
        yield "the operator stayed silent, but the contract says that it always answers"
    if status == OperatorStatus.ANSWERED and contract.operator_answer_rate <= 0.0:
        yield "the operator answered, but the contract says that it never does"
    asked = status != OperatorStatus.NOT_ASKED
    if asked != (seen.operator_at_s >= 0.0) or asked != (seen.n_escalations > 0):
        yield "the operator's answer, its time and the number of escalations do not agree"
    elif asked:
        began_s = float(seen.operator_at_s - contract.operator_delay_s)
        if seen.operator_at_s > now_s:
            yield f"the operator reacted at {seen.operator_at_s:g} s, but it is {now_s:g} s now"
        if began_s < seen.decided_from_s and not _close(began_s, seen.decided_from_s):
            yield f"the operator reacted at {seen.operator_at_s:g} s, before anybody can have asked"
    if at_s < 0.0:
        if seen.shown or seen.ever_shown:
            yield "items were shown, but there was no report"
        if status == OperatorStatus.ANSWERED:
            yield "the operator answered, but there is no report"
        return
    if seen.shown & ~seen.ever_shown:
        yield "the last report shows items that were never shown"
    if at_s > now_s:
        yield f"a report of {at_s:g} s, but it is {now_s:g} s now"
    if at_s < seen.decided_from_s and not _close(at_s, seen.decided_from_s):
        yield f"a report of {at_s:g} s, before the first decision"
    if status == OperatorStatus.ANSWERED and at_s < seen.operator_at_s:
        yield "the last report is older than the operator's answer"
    if READ in report_sources(seen, contract) and not seen.n_reads:
        yield f"a report of {at_s:g} s, but nothing was read and no operator answered then"
    elif READ in report_sources(seen, contract):
        if contract.readback == Readback.NONE:
            yield f"a report of {at_s:g} s, but the contract has no read-back"
        if now_s < at_s + contract.latency_s and not _close(now_s, at_s + contract.latency_s):
            yield f"the report of {at_s:g} s cannot have come back by {now_s:g} s"
    for j, attempt in enumerate(seen.attempts[: seen.n_attempts]):
        if attempt.sent_s < at_s < attempt.answered_s:
            yield f"a report of {at_s:g} s, while the client waited for the response to attempt {j}"


def _wrong_counts(seen: Record, contract: Record) -> Iterator[str]:
    """Counters that do not add up."""
    counts = {
        name: int(seen[name])
        for name in (
            "n_reads",
            "n_waits",
            "n_escalations",
            "n_client_errors",
            "reads_since_attempt",
            "n_reissues",
            "n_steps",
        )
    }
    for name, count in counts.items():
        if count < 0:
            yield f"{name} is {count}"
    if counts["n_reissues"] != max(int(seen.n_attempts) - 1, 0):
        yield f"{counts['n_reissues']} re-issues, but {seen.n_attempts} attempts"
    if counts["reads_since_attempt"] > counts["n_reads"]:
        yield "more reads since the last attempt than reads"
    sends = int(seen.n_attempts) - (contract.start == Start.FAULT)
    calls = sends + sum(
        counts[name] for name in ("n_reads", "n_waits", "n_escalations", "n_client_errors")
    )
    ended = seen.ending in (Ending.CLAIMED, Ending.UNCERTAIN)
    if counts["n_steps"] not in (calls, calls + 1) or (counts["n_steps"] > calls and not ended):
        yield f"{counts['n_steps']} steps, but the calls add up to {calls}"
    if counts["n_steps"] > contract.max_steps:
        yield f"{counts['n_steps']} steps, but the budget is {contract.max_steps}"
    now_s, calls_s = float(seen.clock_s), busy_s(seen, contract)
    if not _close(now_s, calls_s) and (now_s < calls_s or counts["n_waits"] == 0):
        waits = f"with {counts['n_waits']} waits"
        yield f"it is {now_s:g} s now, but the calls took {calls_s:g} s {waits}"
    if counts["n_steps"] == contract.max_steps and seen.ending == Ending.RUNNING:
        yield f"the budget of {contract.max_steps} steps is used up, yet the episode goes on"
