"""Records from words: a history told by hand becomes a `VIEW`, a contract a `CONTRACT` record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from exactlyonce_env import rules
from exactlyonce_env.compiled import Record
from exactlyonce_env.contradiction import ContradictionError, busy_s
from exactlyonce_env.errors import UserError
from exactlyonce_env.evidence import known_horizon_s, sees_in_flight
from exactlyonce_env.records import CONTRACT, MAX_ATTEMPTS, VIEW
from exactlyonce_env.vocabulary import (
    Authority,
    Ending,
    Key,
    OperatorStatus,
    ReadError,
    Response,
    Start,
)

if TYPE_CHECKING:
    from exactlyonce_env.config import Contract, Costs

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One sending of the operation, as the client saw it.

    Attributes
    ----------
    sent_s, answered_s
        When it was sent and when the response or the time-out came [s].
    response
        ``success``, ``timeout``, ``server_error``, ``rate_limited``, ``unavailable``, ``schema`` or
        ``conflict``.
    key
        ``none``, ``pinned`` or ``other``.
    items
        Numbers of the items sent; None: the whole operation.
    known_absent_items
        Items on which this attempt is known to have no effect, now or later; None: derive them from
        the response and the reports.
    authority
        What an authoritative source said of it last: ``unknown`` (nothing), ``pending``,
        ``committed`` or ``not_executed``.
    """

    sent_s: float
    answered_s: float
    response: str
    key: str = "none"
    items: tuple[int, ...] | None = None
    known_absent_items: tuple[int, ...] | None = None
    authority: str = "unknown"


@dataclass(frozen=True, slots=True)
class Report:
    """An informative answer of a read or of the operator.

    Attributes
    ----------
    at_s
        The moment at which a read was issued or the operator answered [s].
    items_shown
        Numbers of the items whose effect it showed.
    source
        ``read`` or ``operator``.
    """

    at_s: float
    items_shown: tuple[int, ...] = ()
    source: str = "read"


AttemptLike = Attempt | Mapping[str, Any]
ReportLike = Report | Mapping[str, Any]


def word(kind: type[IntEnum], code: int) -> str:
    """The word for a number of one of the vocabulary's sets."""
    return kind(int(code)).name.lower()


def item_list(mask: int) -> tuple[int, ...]:
    """The item numbers of a mask, ascending."""
    bits = int(mask)
    return tuple(j for j in range(bits.bit_length()) if bits >> j & 1)


def contract_record(
    contract: Record | Contract | Mapping[str, Any],
    costs: Costs | Mapping[str, Any] | None = None,
    start: str = "fault",
) -> Record:
    """A `CONTRACT` record from a record, a `Contract` or a mapping of its fields.

    Raises
    ------
    UserError
        For an unknown or impossible field, and for ``costs`` beside a record, which has its own.
    """
    if isinstance(contract, np.void):
        if contract.dtype.names != CONTRACT.names:
            raise UserError("View: the contract record must have the dtype CONTRACT")
        if costs is not None:
            raise UserError("View: a CONTRACT record has its own costs; leave costs out")
        return contract
    from exactlyonce_env.config import make_preset
    from exactlyonce_env.plan import compile_preset

    def plain(model: Any) -> dict[str, Any]:
        return dict(model) if isinstance(model, Mapping) else model.model_dump()

    fields: dict[str, Any] = {"name": "by hand", "start": start, "contract": plain(contract)}
    if costs is not None:
        fields["costs"] = plain(costs)
    # A view by hand says nothing about the law of faults, so nothing about it is documented.
    fields["faults"] = {"original": {"ok": 1}}
    record: Record = compile_preset(make_preset(fields, "View")).contracts[0]
    return record


def seen_record(
    contract: Record,
    attempts: Sequence[AttemptLike],
    reports: Sequence[ReportLike],
    *,
    clock_s: float | None = None,
    retry_at_s: float = 0.0,
    operator: str | None = None,
    operator_at_s: float | None = None,
    read_error: str = "none",
    ending: str = "running",
    counts: Mapping[str, int] | None = None,
) -> Record:
    """A `VIEW` record of a history told by hand; the parameters are those of `View`."""
    if len(attempts) > MAX_ATTEMPTS:
        raise ContradictionError(
            f"{len(attempts)} attempts; the contract allows {contract.max_attempts}"
        )
    seen = np.zeros(1, dtype=VIEW)[0]
    told = [made(Attempt, attempt) for attempt in attempts]
    answers = [made(Report, report) for report in reports]
    for j, attempt in enumerate(told):
        _write_attempt(seen, contract, j, attempt)
    seen.n_attempts = len(told)
    seen.n_reissues = max(len(told) - 1, 0)
    by_operator = [report for report in answers if _source(report) == "operator"]
    if operator is None:
        operator = "answered" if by_operator else "not_asked"
    seen.operator_status = _code(OperatorStatus, "operator", operator)
    seen.operator_at_s = -1.0 if operator_at_s is None else operator_at_s
    if by_operator and operator_at_s is None:
        seen.operator_at_s = by_operator[-1].at_s
    seen.read_error = _code(ReadError, "read_error", read_error)
    seen.ending = _code(Ending, "ending", ending)
    seen.retry_at_s = retry_at_s
    seen.read_at_s = -1.0
    seers = [report for report in answers if sees_in_flight(contract, report.source)]
    for report in answers:
        last_seer = bool(seers) and report is seers[-1]
        _conclude(seen, contract, report, told, last_seer)
    given = dict(counts or {})
    _write_calls(seen, len(answers) - len(by_operator), len(by_operator), given)
    _write_clock(seen, contract, answers, clock_s, given)
    return seen


def made(kind: type[T], value: T | Mapping[str, Any]) -> T:
    """An `Attempt` or `Report`, from one or from a mapping of its fields."""
    if isinstance(value, kind):
        return value
    what = kind.__name__
    if not isinstance(value, Mapping):
        raise UserError(f"View: {value!r} must be of type {what} or a mapping of its fields")
    try:
        return kind(**value)
    except TypeError as error:
        raise UserError(f"View: {what} {dict(value)!r}: {error}") from None


def _code(kind: type[IntEnum], what: str, value: str) -> int:
    names = [member.name.lower() for member in kind]
    if value not in names:
        raise UserError(f"View: unknown {what} {value!r}; choose from {', '.join(names)}")
    return int(kind[value.upper()])


def _source(report: Report) -> str:
    if report.source not in ("read", "operator"):
        raise UserError(f"View: unknown source {report.source!r}; choose from read, operator")
    return report.source


def _mask(contract: Record, items: Sequence[int], what: str) -> int:
    mask = 0
    for item in items:
        if not 0 <= item < contract.n_items:
            raise ContradictionError(
                f"{what}: there is no item {item}; they are 0..{contract.n_items - 1}"
            )
        mask |= 1 << item
    return mask


def _write_attempt(seen: Record, contract: Record, j: int, attempt: Attempt) -> None:
    shown = seen.attempts[j]
    what = f"attempt {j}"
    shown.sent_s = attempt.sent_s
    shown.answered_s = attempt.answered_s
    shown.response = _code(Response, f"response of {what}", attempt.response)
    shown.key = _code(Key, f"key of {what}", attempt.key)
    shown.authority = _code(Authority, f"authority of {what}", attempt.authority)
    full = rules.full_payload(int(contract.n_items))
    shown.payload = full if attempt.items is None else _mask(contract, attempt.items, what)
    if attempt.known_absent_items is not None:
        shown.clear = _mask(contract, attempt.known_absent_items, f"known absent of {what}")
    elif rules.is_rejection(shown.response) or shown.authority == Authority.NOT_EXECUTED:
        shown.clear = shown.payload
    if shown.key == Key.PINNED and seen.pinned_payload == 0:
        seen.pinned_payload = shown.payload
    if shown.key == Key.OTHER and seen.other_payload == 0:
        seen.other_payload = shown.payload


def _conclude(
    seen: Record, contract: Record, report: Report, told: Sequence[Attempt], last_seer: bool
) -> None:
    """Take in one report and what it proves absent of the attempts sent before it.

    The authority told of an attempt is that of the last report that sees requests in flight.
    """
    shown = _mask(contract, report.items_shown, f"report at {report.at_s:g} s")
    seen.read_at_s = report.at_s
    seen.shown = shown
    seen.ever_shown |= shown
    horizon_s = known_horizon_s(contract, report.at_s, report.source)
    for j, attempt in enumerate(told):
        sent = seen.attempts[j]
        if attempt.known_absent_items is not None or sent.sent_s >= report.at_s:
            continue
        after_s = rules.terminal_after_s(
            sent.response, sent.sent_s, sent.answered_s, contract.in_flight_bound_s
        )
        committed = last_seer and sent.authority == Authority.COMMITTED
        if horizon_s >= after_s or committed:
            sent.clear |= sent.payload & ~shown


def _checked_counts(counts: Mapping[str, int]) -> None:
    known = ("reads", "waits", "escalations", "client_errors")
    for name, count in counts.items():
        if name not in known:
            raise UserError(f"View: unknown count {name!r}; choose from {', '.join(known)}")
        if type(count) is not int or not 0 <= count < 2**31:
            raise UserError(f"View: the count of {name} must be an integer >= 0, not {count!r}")


def _write_calls(seen: Record, n_reads: int, n_answers: int, counts: Mapping[str, int]) -> None:
    """The calls given, and for the others the fewest that explain the history."""
    _checked_counts(counts)
    failed = seen.read_error != ReadError.NONE
    seen.n_reads = counts.get("reads", n_reads + failed)
    asked = seen.operator_status != OperatorStatus.NOT_ASKED
    seen.n_escalations = counts.get("escalations", max(n_answers, int(asked)))
    seen.n_client_errors = counts.get("client_errors", 0)
    last_s = seen.attempts[seen.n_attempts - 1].answered_s if seen.n_attempts else 0.0
    seen.reads_since_attempt = seen.n_reads if seen.read_at_s >= last_s else 0


def _write_clock(
    seen: Record,
    contract: Record,
    reports: Sequence[Report],
    clock_s: float | None,
    counts: Mapping[str, int],
) -> None:
    """The clock given, or the end of the last thing that happened, and what follows from it."""
    ends = [float(sent.answered_s) for sent in seen.attempts[: seen.n_attempts]]
    ends += [
        report.at_s + (contract.latency_s if report.source == "read" else 0.0) for report in reports
    ]
    ends += [float(seen.operator_at_s), busy_s(seen, contract)]
    seen.clock_s = max([0.0, *ends]) if clock_s is None else clock_s
    from_fault = contract.start == Start.FAULT
    if from_fault and seen.n_attempts:
        seen.decided_from_s = seen.attempts[0].answered_s
    idle_s = seen.clock_s - busy_s(seen, contract)
    idle = math.isfinite(idle_s) and idle_s > 1e-6 * max(1.0, seen.clock_s)
    seen.n_waits = counts.get("waits", int(idle))
    sends = max(int(seen.n_attempts) - from_fault, 0)
    finish = seen.ending in (Ending.CLAIMED, Ending.UNCERTAIN)
    seen.n_steps = (
        sends
        + seen.n_reads
        + seen.n_waits
        + seen.n_escalations
        + seen.n_client_errors
        + int(finish)
    )
