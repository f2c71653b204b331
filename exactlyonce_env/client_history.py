"""The history of a real client, told as it happens: what a policy needs to decide outside a world.

A `ClientHistory` keeps the `VIEW` record that the simulated world would have kept, so that any
policy can stand behind a real call.  Nothing here needs Gymnasium.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from exactlyonce_env import rules
from exactlyonce_env.compiled import Record
from exactlyonce_env.errors import UserError, unknown
from exactlyonce_env.evidence import OPERATOR, READ, known_horizon_s, sees_in_flight
from exactlyonce_env.permission import NO_KEY, OTHER, PINNED, candidate_key, next_payload
from exactlyonce_env.records import VIEW
from exactlyonce_env.view import View
from exactlyonce_env.view_building import contract_record
from exactlyonce_env.vocabulary import (
    Authority,
    Ending,
    OperatorStatus,
    OriginalKey,
    Readback,
    ReadError,
    Response,
    Start,
)

if TYPE_CHECKING:
    from exactlyonce_env.config import Contract, Costs

__all__ = ["ClientHistory"]

_RESPONSES = [response.name.lower() for response in Response if response != Response.NONE]
_AUTHORITIES = [authority.name.lower() for authority in Authority]


class ClientHistory:
    """What one client sees of one operation, recorded call by call.

    >>> from exactlyonce_env.presets import load_plan
    >>> now_s = [0.0]
    >>> history = ClientHistory(load_plan("late-tail").contracts[0], clock=lambda: now_s[0])
    >>> now_s[0] = 30.0  # the write was sent at 0 s and timed out
    >>> history.sent("timeout")
    >>> history.view
    <View at 30 s: timeout>

    Make it at the very moment at which the operation is first sent (``start="send"``: at which the
    client begins to decide), and tell it of every call right after the answer.

    Calls take the time that the contract says, as in a simulated world; whatever passes beyond
    that is recorded as waiting. So views never contradict the contract, and their clock is never
    behind the real one by more than ``slack_s``. It runs ahead while a call was faster than
    its contract says: state ``latency_s`` and ``operator_delay_s`` as you measure them.

    Parameters
    ----------
    contract
        What the service promises: a `CONTRACT` record such as ``load_plan(...).contracts[0]``,
        which also says what is documented about late writes, or a mapping of contract fields.
    costs
        Costs, where the contract is no record.
    start
        ``fault`` or ``send``, where the contract is no record.
    clock
        A clock in seconds that never goes back.
    slack_s
        Time beyond the contract's that is let pass unrecorded [s]; by default ``latency_s``.

    Raises
    ------
    UserError
        For whatever `View` refuses in a contract.
    """

    def __init__(
        self,
        contract: Record | Contract | Mapping[str, Any],
        *,
        costs: Costs | Mapping[str, Any] | None = None,
        start: str = "fault",
        clock: Callable[[], float] = time.monotonic,
        slack_s: float | None = None,
    ) -> None:
        self._contract = contract_record(contract, costs, start)
        self._seen: Record = np.zeros(1, dtype=VIEW)[0]
        self._seen.read_at_s = self._seen.operator_at_s = -1.0
        self._slack_s = float(self._contract.latency_s) if slack_s is None else slack_s
        self._clock = clock
        self._began_s = clock()

    @property
    def view(self) -> View:
        """All that the client has seen by now."""
        self._catch_up()
        return View.of(self._seen, self._contract)

    def sent(self, response: str, *, keyed: bool = False, retry_after_s: float = 0.0) -> None:
        """An attempt was sent, and this is what came of it.

        Parameters
        ----------
        response
            ``success``, ``timeout``, ``server_error``, ``rate_limited``, ``unavailable``,
            ``schema`` or ``conflict``.
        keyed
            Whether it carried the key of KEYED_RETRY. Of an original sent before the first decision
            the contract's ``original_key`` says it.
        retry_after_s
            What a 429 or 503 asked to wait [s].

        Raises
        ------
        UserError
            For an unknown response, a key that the contract does not take, and more attempts than
            it allows.
        """
        self._refuse_after_end()
        seen, contract = self._seen, self._contract
        j = int(seen.n_attempts)
        if j >= contract.max_attempts:
            raise UserError(f"all {contract.max_attempts} attempts of the contract are used up")
        code = Response[_known("response", response, _RESPONSES).upper()]
        original = j == 0 and contract.start == Start.FAULT
        key = int(candidate_key(contract)) if keyed else NO_KEY
        if original:
            key = PINNED if contract.original_key == OriginalKey.SENT else NO_KEY
        if key != NO_KEY and not contract.accepts_key:
            raise UserError("keyed=True, but the contract says that the write takes no key")
        payload = int(next_payload(seen, contract, key))
        if key == PINNED:
            seen.pinned_payload = payload
        elif key == OTHER:
            seen.other_payload = payload
        attempt = seen.attempts[j]
        attempt.sent_s = seen.clock_s
        attempt.answered_s = seen.clock_s + rules.response_delay_s(
            int(code), float(contract.latency_s), float(contract.client_timeout_s)
        )
        attempt.payload, attempt.key, attempt.response = payload, key, code
        attempt.clear = payload if rules.is_rejection(int(code)) else 0
        seen.n_attempts = j + 1
        seen.n_reissues = j
        seen.reads_since_attempt = 0
        if code in (Response.RATE_LIMITED, Response.UNAVAILABLE):
            seen.retry_at_s = attempt.answered_s + retry_after_s
        if original:
            seen.decided_from_s = attempt.answered_s
        self._took(float(attempt.answered_s - attempt.sent_s), steps=0 if original else 1)

    def read(self, *items_shown: int, authority: Sequence[str] = ()) -> None:
        """A read was answered; ``items_shown`` are the items whose effect it showed (0, 1, ...).

        ``authority`` is what an authoritative read says of each attempt: ``pending``, ``committed``
        or ``not_executed``.

        Raises
        ------
        UserError
            For an item outside the operation, or an authority that does not fit the contract.
        """
        self._refuse_after_end()
        self._report(float(self._seen.clock_s), READ, items_shown, authority)
        self._seen.n_reads += 1
        self._seen.reads_since_attempt += 1
        self._seen.read_error = ReadError.NONE
        self._took(float(self._contract.latency_s), steps=1)

    def read_failed(self, *, outage: bool = False, retry_after_s: float = 0.0) -> None:
        """A read taught nothing.

        With ``outage`` it was answered with 503, to be tried again in ``retry_after_s`` [s]. A
        contract with a read-back knows of no other failing read, and of none before an attempt
        met a 503; then the time counts as waiting.

        Raises
        ------
        UserError
            If the budget of calls is used up.
        """
        self._refuse_after_end()
        seen, contract = self._seen, self._contract
        responses = seen.attempts["response"][: seen.n_attempts]
        if outage and Response.UNAVAILABLE in responses:
            seen.read_error = ReadError.OUTAGE
            seen.retry_at_s = seen.clock_s + contract.latency_s + retry_after_s
        elif contract.readback == Readback.NONE:
            seen.read_error = ReadError.NO_READBACK
        else:
            self.waited()
            return
        seen.n_reads += 1
        seen.reads_since_attempt += 1
        self._took(float(contract.latency_s), steps=1)

    def waited(self) -> None:
        """The client has waited until now."""
        self._refuse_after_end()
        self._seen.n_waits += 1
        self._seen.clock_s = max(float(self._seen.clock_s), self._elapsed_s())
        self._took(0.0, steps=1)

    def operator(self, *items_shown: int, authority: Sequence[str] = ()) -> None:
        """The operator has answered; the parameters and errors are those of `read`."""
        self._refuse_after_end()
        answered_s = float(self._seen.clock_s + self._contract.operator_delay_s)
        self._report(answered_s, OPERATOR, items_shown, authority)
        self._asked(OperatorStatus.ANSWERED)
        self._took(float(self._contract.operator_delay_s), steps=1)

    def operator_silent(self) -> None:
        """The operator was asked, and no answer came."""
        self._refuse_after_end()
        self._asked(OperatorStatus.SILENT)
        self._took(float(self._contract.operator_delay_s), steps=1)

    def _asked(self, status: OperatorStatus) -> None:
        self._seen.n_escalations += 1
        self._seen.operator_status = status
        self._seen.operator_at_s = self._seen.clock_s + self._contract.operator_delay_s

    def _report(
        self, at_s: float, source: str, items_shown: Sequence[int], authority: Sequence[str]
    ) -> None:
        """Take in a report and what it proves absent, as the kernel does."""
        seen, contract = self._seen, self._contract
        told = sees_in_flight(contract, source)
        if len(authority) != (seen.n_attempts if told else 0):
            wanted = f"one word for each of {seen.n_attempts} attempts" if told else "none"
            raise UserError(
                f"authority has {len(authority)} words; this {source} gives {wanted}: the contract "
                "says what it sees"
            )
        words = [Authority[_known("authority", word, _AUTHORITIES).upper()] for word in authority]
        shown = self._mask(items_shown)
        seen.read_at_s = at_s
        seen.shown = shown
        seen.ever_shown |= shown
        horizon_s = known_horizon_s(contract, at_s, source)
        for j in range(seen.n_attempts):
            attempt = seen.attempts[j]
            terminal = horizon_s >= rules.terminal_after_s(
                int(attempt.response),
                float(attempt.sent_s),
                float(attempt.answered_s),
                float(contract.in_flight_bound_s),
            )
            if told:
                attempt.authority = words[j]
                terminal = terminal or words[j] == Authority.COMMITTED
                if words[j] == Authority.NOT_EXECUTED:
                    attempt.clear |= attempt.payload
            if terminal:
                attempt.clear |= attempt.payload & ~shown

    def _mask(self, items: Sequence[int]) -> int:
        mask = 0
        for item in items:
            if not 0 <= item < self._contract.n_items:
                raise UserError(
                    f"there is no item {item}; they are 0..{self._contract.n_items - 1}"
                )
            mask |= 1 << item
        return mask

    def _took(self, seconds: float, steps: int) -> None:
        self._seen.clock_s += seconds
        self._count(steps)
        self._catch_up()

    def _catch_up(self) -> None:
        """Record as waiting what has passed beyond the clock of the history."""
        if self._contract.start == Start.FAULT and self._seen.n_attempts == 0:
            return  # the original is on its way
        elapsed_s = self._elapsed_s()
        running = self._seen.ending == Ending.RUNNING
        if running and elapsed_s > self._seen.clock_s + self._slack_s:
            self._seen.clock_s = elapsed_s
            self._seen.n_waits += 1
            self._count(1)

    def _count(self, steps: int) -> None:
        self._seen.n_steps += steps
        if self._seen.n_steps >= self._contract.max_steps:
            self._seen.ending = Ending.EXHAUSTED

    def _refuse_after_end(self) -> None:
        if self._seen.ending != Ending.RUNNING:
            raise UserError(
                f"the budget of {self._contract.max_steps} calls is used up (contract.max_steps); "
                "the client has to end here"
            )

    def _elapsed_s(self) -> float:
        return self._clock() - self._began_s


def _known(what: str, word: str, choices: Sequence[str]) -> str:
    if word not in choices:
        raise unknown(what, word, choices)
    return word
