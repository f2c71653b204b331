"""Whether some fate of the attempts explains what the reports showed.

A report shows what was committed up to a *horizon*.  By then an acknowledged attempt has executed
all that it sent, one answered with HTTP 500 the first items of it or none, one that timed out all
or none, a refused one nothing.  The sets that an attempt may have executed are nested, so the
largest that the report allows is tried for each; together they must make up exactly what was shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from exactlyonce_env import rules
from exactlyonce_env.compiled import Record
from exactlyonce_env.vocabulary import (
    Authority,
    InFlightSameKey,
    Key,
    OperatorStatus,
    Readback,
    Response,
)

READ, OPERATOR = "read", "operator"


def sees_in_flight(contract: Record, source: str) -> bool:
    """Whether a report of this source tells of requests in flight."""
    if source == OPERATOR:
        return bool(contract.operator_sees_in_flight)
    return bool(contract.readback == Readback.AUTHORITATIVE)


def known_horizon_s(contract: Record, at_s: float, source: str) -> float:
    """Up to when [s] a report surely shows every effect, as far as the client knows."""
    if source == OPERATOR:
        return float(at_s)
    if contract.readback == Readback.EVENTUAL and contract.lag_s < 0.0:
        return -math.inf
    return float(rules.read_horizon_s(contract.readback, contract.lag_s, at_s))


def report_sources(seen: Record, contract: Record) -> tuple[str, ...]:
    """Who may have given the last report: both, where a read may follow the operator at once.

    Only an eventual read can then differ from the operator's report.
    """
    answered = seen.operator_status == OperatorStatus.ANSWERED
    if not (answered and seen.read_at_s == seen.operator_at_s):
        return (READ,)
    last_s = seen.attempts[seen.n_attempts - 1].answered_s if seen.n_attempts else 0.0
    read_since = seen.n_reads > 0 and seen.clock_s >= seen.read_at_s + contract.latency_s
    if last_s < seen.read_at_s and seen.reads_since_attempt == 0:
        read_since = False
    if read_since and contract.readback == Readback.EVENTUAL:
        return (OPERATOR, READ)
    return (OPERATOR,)


def report_source(seen: Record, contract: Record) -> str:
    """``read``, ``operator``, or ``operator or read`` where the view does not tell."""
    return " or ".join(report_sources(seen, contract))


def unexplained(seen: Record, contract: Record) -> str | None:
    """Why no fate of the attempts explains the reports, or None where one does."""
    case = _Case(seen, contract)
    for j in range(case.n):
        fault = case.authority_fault(j) or case.absence_fault(j)
        if fault:
            return f"attempt {j} {fault}"
    first_fault = None
    for windows in case.windows():
        for horizon_s in case.horizons(windows):
            fault = case.report_fault(windows, horizon_s, int(seen.shown), float(seen.read_at_s))
            fault = fault or case.regress_fault(windows, horizon_s)
            if fault is None:
                return None
            first_fault = first_fault or fault
    return first_fault or case.conflict_fault()


@dataclass(frozen=True)
class _Window:
    """When an attempt must have executed: after ``after_s``, not later than ``by_s`` [s]."""

    after_s: float
    by_s: float

    def and_also(self, other: _Window) -> _Window:
        return _Window(max(self.after_s, other.after_s), min(self.by_s, other.by_s))


class _Case:
    """One view under examination."""

    def __init__(self, seen: Record, contract: Record) -> None:
        self.seen = seen
        self.contract = contract
        self.n = int(seen.n_attempts)
        self.attempts = [seen.attempts[j] for j in range(self.n)]
        self.sources = report_sources(seen, contract)
        self.answered = seen.operator_status == OperatorStatus.ANSWERED
        self.told_after_s, self.told_by_s = self._authority_times()

    # --- what an attempt can have done ------------------------------------------------------------

    def deadline_s(self, j: int) -> float:
        """When attempt ``j`` has executed at the latest, if it ever does [s]."""
        attempt = self.attempts[j]
        if attempt.response == Response.TIMEOUT:
            return float(attempt.sent_s + self.contract.in_flight_bound_s)
        return float(attempt.answered_s)

    def may_execute(self, j: int) -> bool:
        """Whether attempt ``j`` can have had an effect of its own."""
        attempt = self.attempts[j]
        return not rules.is_rejection(attempt.response) and (
            attempt.authority != Authority.NOT_EXECUTED
        )

    def same_key(self, i: int, j: int) -> bool:
        """Whether attempts ``i`` and ``j`` carried one key that the contract enforces."""
        key = self.attempts[j].key
        return bool(self.contract.accepts_key and key != Key.NONE and self.attempts[i].key == key)

    def _authority_times(self) -> tuple[float, float]:
        """Between which moments [s] the authority of the attempts was last told."""
        by_operator = bool(self.answered and self.contract.operator_sees_in_flight)
        operator_s = float(self.seen.operator_at_s) if by_operator else -math.inf
        if self.contract.readback != Readback.AUTHORITATIVE:
            return operator_s, operator_s
        read_s = float(self.seen.read_at_s)
        return (read_s if READ in self.sources else operator_s), read_s

    # --- what was said of single attempts ---------------------------------------------------------

    def authority_fault(self, j: int) -> str | None:
        """What is wrong with the authority told of attempt ``j``."""
        attempt = self.attempts[j]
        told = attempt.authority
        if told == Authority.UNKNOWN:
            return None
        name = Authority(int(told)).name.lower().replace("_", " ")
        if not self.told_by_s >= attempt.answered_s:
            return f"is called {name}, but nobody who sees requests in flight has reported since"
        if told == Authority.NOT_EXECUTED:
            if attempt.response == Response.SUCCESS and not self._can_be_replay(j):
                return "was acknowledged, yet is called not executed and replays no earlier one"
            return None
        if rules.is_rejection(attempt.response):
            return f"was refused, yet it is called {name}"
        if told == Authority.COMMITTED:
            i = self._also_committed(j)
            return None if i is None else f"and attempt {i} are both called committed under one key"
        if attempt.response != Response.TIMEOUT:
            return "was answered, so its processing has ended, yet it is called pending"
        if max(self.told_after_s, attempt.answered_s) >= self.deadline_s(j):
            return f"is called pending after the documented bound, {self.deadline_s(j):g} s"
        return None

    def _can_be_replay(self, j: int) -> bool:
        """Whether earlier attempts with its key can have executed everything that ``j`` sent."""
        covered = 0
        for i in range(j):
            if self.same_key(i, j) and self.may_execute(i):
                earlier, sent_s = self.attempts[i], self.attempts[j].sent_s
                late = earlier.response == Response.TIMEOUT
                arrival_s = min(sent_s, self.deadline_s(i)) if late else earlier.sent_s
                if rules.record_alive(arrival_s, self.contract.key_retention_s, sent_s):
                    covered |= earlier.payload & ~earlier.clear
        return not self.attempts[j].payload & ~covered

    def _also_committed(self, j: int) -> int | None:
        """An earlier attempt that cannot have had the effect of a key that ``j`` had too.

        Two attempts with one key both execute only if the later of them arrives after the record of
        the earlier has expired.  A batch may be resumed, so nothing is concluded there.
        """
        if self.contract.n_items > 1:
            return None
        for i in range(j):
            if not self.same_key(i, j) or self.attempts[i].authority != Authority.COMMITTED:
                continue
            first_s = [float(self.attempts[k].sent_s) for k in (i, j)]
            last_s = [self._last_arrival_s(k) for k in (i, j)]
            gap_s = max(last_s[1] - first_s[0], last_s[0] - first_s[1])
            if gap_s < self.contract.key_retention_s:
                return i
        return None

    def _last_arrival_s(self, j: int) -> float:
        """When the request of a committed attempt has reached the service at the latest [s]."""
        if self.attempts[j].response != Response.TIMEOUT:
            return float(self.attempts[j].sent_s)
        return min(self.deadline_s(j), self.told_by_s)

    def absence_fault(self, j: int) -> str | None:
        """What is wrong with the items known absent in attempt ``j``."""
        attempt = self.attempts[j]
        if not attempt.clear or rules.is_rejection(attempt.response):
            return None
        if attempt.authority == Authority.NOT_EXECUTED:
            return None
        if attempt.response == Response.SUCCESS:
            return "was acknowledged, yet items of it are known absent"
        known_s = float(self.seen.operator_at_s) if self.answered else -math.inf
        if READ in self.sources and self.seen.read_at_s >= 0.0:
            known_s = max(known_s, known_horizon_s(self.contract, self.seen.read_at_s, READ))
        after_s = rules.terminal_after_s(
            attempt.response, attempt.sent_s, attempt.answered_s, self.contract.in_flight_bound_s
        )
        if known_s >= after_s or attempt.authority == Authority.COMMITTED:
            return None
        return "has items that are known absent, though no report proves it"

    # --- what same-key requests met ---------------------------------------------------------------

    def windows(self) -> Iterator[dict[int, _Window]]:
        """Every way in which earlier requests can have been in process when later ones met them."""
        options = [self._met(j) for j in range(self.n)]
        for chosen in product(*(o for o in options if o is not None)):
            windows: dict[int, _Window] = {}
            for i, window in chosen:
                windows[i] = windows[i].and_also(window) if i in windows else window
            if all(window.after_s < window.by_s for window in windows.values()):
                yield windows

    def _met(self, j: int) -> Sequence[tuple[int, _Window]] | None:
        """Which requests attempt ``j`` can have met in process; None if it met none."""
        attempt = self.attempts[j]
        if attempt.response == Response.CONFLICT:
            after_s, by_s = float(attempt.sent_s), math.inf
        elif self.answered_late(j):
            by_s = float(attempt.answered_s)
            after_s = math.nextafter(by_s, -math.inf)
        else:
            return None
        return [
            (i, _Window(after_s, min(by_s, self.deadline_s(i))))
            for i in range(j)
            if self.same_key(i, j)
            and self.attempts[i].response == Response.TIMEOUT
            and self.may_execute(i)
            and not self.attempts[i].clear
            and rules.record_alive(
                self.attempts[i].sent_s, self.contract.key_retention_s, attempt.sent_s
            )
        ]

    def answered_late(self, j: int) -> bool:
        """Whether attempt ``j`` got its success from another one that it waited for."""
        attempt = self.attempts[j]
        usual_s = attempt.sent_s + self.contract.latency_s
        return bool(
            attempt.response == Response.SUCCESS
            and attempt.answered_s > usual_s
            and not math.isclose(attempt.answered_s, usual_s, rel_tol=1e-9, abs_tol=1e-6)
            and self.contract.in_flight_same_key == InFlightSameKey.COALESCE
        )

    def conflict_fault(self) -> str:
        """Which attempt met a request that cannot have been in process."""
        for j in range(self.n):
            met = self._met(j)
            if met is not None and not any(w.after_s < w.by_s for _, w in met):
                return (
                    f"attempt {j} met no earlier request with its key that can have been in process"
                )
        return "no request can have been in process when the later ones with its key met it"

    # --- what the reports showed ------------------------------------------------------------------

    def horizons(self, windows: dict[int, _Window]) -> Sequence[float]:
        """Up to when [s] the last report may have shown everything."""
        at_s = float(self.seen.read_at_s)
        if at_s < 0.0:
            return (-math.inf,)
        found: list[float] = []
        for source in self.sources:
            known_s = known_horizon_s(self.contract, at_s, source)
            if known_s > -math.inf:
                found.append(known_s)
                continue
            # An undocumented lag: what shows changes only where something can have been executed.
            moments = {-math.inf, at_s}
            moments.update(float(a.sent_s) for a in self.attempts)
            moments.update(float(a.answered_s) for a in self.attempts)
            moments.update(math.nextafter(w.after_s, math.inf) for w in windows.values())
            moments.update(w.by_s for w in windows.values())
            found.extend(sorted(moment for moment in moments if moment <= at_s))
        return found

    def report_fault(
        self, windows: dict[int, _Window], horizon_s: float, shown: int, at_s: float
    ) -> str | None:
        """Why a report of ``at_s``, which shows all up to ``horizon_s``, cannot be ``shown``."""
        explained = 0
        missing = f"the report of {at_s:g} s lacks its effect"
        for j, attempt in enumerate(self.attempts):
            if attempt.answered_s > at_s:
                continue
            if attempt.sent_s >= at_s:
                # Without latency the report may have come before or after it: it need not show.
                explained |= attempt.payload & shown if self.may_execute(j) else 0
                continue
            if attempt.response == Response.TIMEOUT:
                done, open_ = self._timeout_options(j, windows.get(j), horizon_s, shown)
                if not (done or open_):
                    return f"attempt {j} must have executed by {horizon_s:g} s, but {missing}"
                explained |= attempt.payload if done else 0
            elif attempt.answered_s > horizon_s or rules.is_rejection(attempt.response):
                continue
            elif attempt.response == Response.SUCCESS:
                if attempt.payload & ~shown:
                    return f"attempt {j} was acknowledged, but {missing}"
                explained |= attempt.payload if self.may_execute(j) else 0
            else:
                first = self._first_items(j, shown) if self.may_execute(j) else 0
                if not first and self._must_show(j, horizon_s):
                    return f"attempt {j} is called committed, but {missing}"
                explained |= first
        if shown & ~explained:
            by = f"by {horizon_s:g} s" if math.isfinite(horizon_s) else "yet"
            return f"the report of {at_s:g} s shows an effect that no attempt can have had {by}"
        return None

    def _timeout_options(
        self, j: int, window: _Window | None, horizon_s: float, shown: int
    ) -> tuple[bool, bool]:
        """Whether ``j``, which timed out, can be executed, and not executed, by the horizon."""
        attempt = self.attempts[j]
        pending_s = -math.inf
        if attempt.authority == Authority.PENDING:
            pending_s = max(self.told_after_s, float(attempt.answered_s))
        after_s = max(pending_s, -math.inf if window is None else window.after_s)
        done = (
            self.may_execute(j)
            and not attempt.clear
            and not attempt.payload & ~shown
            and attempt.sent_s <= horizon_s
            and after_s < horizon_s
        )
        # A keyed request in transit may still find its key answered for when it arrives.
        surely = attempt.authority == Authority.PENDING and not self.same_key(j, j)
        forced = window is not None or surely
        by_s = self.deadline_s(j) if window is None else window.by_s
        later = not (forced and by_s <= horizon_s) and not self._must_show(j, horizon_s)
        return bool(done), bool(later)

    def _must_show(self, j: int, horizon_s: float) -> bool:
        """Whether attempt ``j`` is known to have executed something by the horizon."""
        return bool(
            self.attempts[j].authority == Authority.COMMITTED and self.told_by_s <= horizon_s
        )

    def _first_items(self, j: int, shown: int) -> int:
        """The longest row of first items of attempt ``j`` that all show and may be its doing."""
        attempt = self.attempts[j]
        allowed = attempt.payload & shown & ~attempt.clear
        count = rules.count_items(attempt.payload)
        while rules.first_items(attempt.payload, count) & ~allowed:
            count -= 1
        return int(rules.first_items(attempt.payload, count))

    def regress_fault(self, windows: dict[int, _Window], horizon_s: float) -> str | None:
        """Why an effect that showed before may not have vanished from the last report.

        Only an older view than the operator's, through an eventual read, can show less than before.
        """
        seen = self.seen
        if not seen.ever_shown & ~seen.shown:
            return None
        operator_s = float(seen.operator_at_s)
        if READ in self.sources and self.answered and horizon_s < operator_s:
            return self.report_fault(windows, operator_s, int(seen.ever_shown), operator_s)
        return f"the report of {seen.read_at_s:g} s no longer shows an effect that was shown before"
