"""What the client has seen, as a Python object: words, permission and text over one `VIEW` record.

A view holds the visible history and the contract, nothing else.  No function here takes a truth, so
nothing hidden can show in a view, its fields or its text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from exactlyonce_env import permission
from exactlyonce_env.compiled import Record
from exactlyonce_env.contradiction import ContradictionError, check_view
from exactlyonce_env.errors import UserError
from exactlyonce_env.evidence import report_source
from exactlyonce_env.view_building import (
    Attempt,
    AttemptLike,
    Report,
    ReportLike,
    contract_record,
    item_list,
    made,
    seen_record,
    word,
)
from exactlyonce_env.view_fields import view_fields
from exactlyonce_env.view_text import items_text, seconds_text, view_text
from exactlyonce_env.vocabulary import (
    Action,
    Authority,
    Ending,
    Key,
    OperatorStatus,
    ReadError,
    Response,
)

if TYPE_CHECKING:
    from exactlyonce_env.config import Contract, Costs

__all__ = [
    "Attempt",
    "ContradictionError",
    "Permission",
    "Report",
    "View",
    "view_fields",
    "view_text",
]

KEY_WORDS = ("none", "pinned", "other", "retry", "keyed_retry")


@dataclass(frozen=True, slots=True)
class Permission:
    """Whether a re-issue is permitted; true or false itself.

    Attributes
    ----------
    permitted
        The verdict.
    rule
        What decided: ``idempotent``, ``protected replay``, ``known absent``, ``first send``, or for
        a refusal ``no rule`` (a false retry permission if made all the same) and ``not possible``
        (the client gets an error, or the episode is over, and nothing is sent).
    reason
        One sentence for people.
    """

    permitted: bool
    rule: str
    reason: str

    def __bool__(self) -> bool:
        return self.permitted


@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class View:
    """All that the client has seen, with the contract it was promised.

    Made from records by `View.of`, or by hand:

    >>> view = View({"readback": "strong"}, [Attempt(0.0, 30.0, "timeout")], reports=[Report(31.0)])
    >>> bool(view.permits("none"))
    False
    >>> bool(View({"readback": "strong"}, [Attempt(0.0, 1.0, "rate_limited")]).permits("none"))
    True

    Equal views are equal byte for byte, and have the same hash, fields and text.

    Parameters
    ----------
    contract
        A mapping of contract fields (those of a preset's ``contract``), a `Contract`, or a
        `CONTRACT` record.
    attempts
        What was sent, in order: `Attempt` objects or mappings of their fields.
    reports
        Informative answers of reads and of the operator, in order of time: `Report` objects or
        mappings. What they prove absent is derived from them by the rules of the world.
    clock_s
        Time now [s]; by default the end of the last thing that happened.
    retry_at_s
        When the last Retry-After is over [s]; 0: there was none.
    operator
        ``not_asked``, ``answered`` or ``silent``; by default as the reports tell.
    operator_at_s
        When the last escalation ended [s]; needed for a silent operator only.
    read_error
        Of the latest read: ``none``, ``no_readback`` or ``outage``.
    ending
        ``running``, ``claimed``, ``uncertain`` or ``exhausted``.
    counts
        Any of ``reads``, ``waits``, ``escalations``, ``client_errors``; by default the fewest that
        explain the rest.
    costs
        A mapping of cost fields or a `Costs`, where the contract is no record.
    start
        ``fault`` or ``send``, where the contract is no record.

    Raises
    ------
    UserError
        For an unknown word or field.
    ContradictionError
        For items outside the operation, more attempts than a view can hold, and a contradiction in
        the history up to any report but the last.  Every other one is found by `check` and
        `permits`.
    """

    seen: Record
    """A private, read-only `VIEW` record."""
    contract: Record
    """A private, read-only `CONTRACT` record."""

    def __init__(
        self,
        contract: Record | Contract | Mapping[str, Any],
        attempts: Sequence[AttemptLike] = (),
        *,
        reports: Sequence[ReportLike] = (),
        clock_s: float | None = None,
        retry_at_s: float = 0.0,
        operator: str | None = None,
        operator_at_s: float | None = None,
        read_error: str = "none",
        ending: str = "running",
        counts: Mapping[str, int] | None = None,
        costs: Costs | Mapping[str, Any] | None = None,
        start: str = "fault",
    ) -> None:
        terms = contract_record(contract, costs, start)
        seen = seen_record(
            terms,
            attempts,
            reports,
            clock_s=clock_s,
            retry_at_s=retry_at_s,
            operator=operator,
            operator_at_s=operator_at_s,
            read_error=read_error,
            ending=ending,
            counts=counts,
        )
        self._hold(seen, terms)
        self._check_earlier(attempts, reports)

    @classmethod
    def of(cls, seen: Record, contract: Record) -> View:
        """The view of a `VIEW` record under its `CONTRACT` record; both are copied.

        The position of the contract in its preset is dropped: it is no part of what the client
        knows.
        """
        view = cls.__new__(cls)
        view._hold(seen, contract)
        return view

    def _hold(self, seen: Record, contract: Record) -> None:
        for name, record in (("seen", seen), ("contract", contract)):
            kept = np.array([record])
            if name == "seen":
                kept["context"] = 0
            kept.setflags(write=False)
            object.__setattr__(self, name, kept[0])

    def _check_earlier(
        self, attempts: Sequence[AttemptLike], reports: Sequence[ReportLike]
    ) -> None:
        """Check the history up to each report but the last; the record keeps only that one."""
        told = [made(Attempt, attempt) for attempt in attempts]
        answers = [made(Report, report) for report in reports]
        for k in range(1, len(answers)):
            until_s = answers[k].at_s
            if not answers[k - 1].at_s <= until_s:
                raise ContradictionError(f"the report of {until_s:g} s comes after a later one")
            # An authority belongs to the last report that could tell it.
            before = [
                replace(attempt, authority="unknown", known_absent_items=None)
                for attempt in told
                if attempt.answered_s <= until_s
            ]
            check_view(seen_record(self.contract, before, answers[:k]), self.contract)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, View):
            return NotImplemented
        return self.tobytes() == other.tobytes()

    def __hash__(self) -> int:
        return hash(self.tobytes())

    def __repr__(self) -> str:
        responses = ", ".join(attempt.response for attempt in self.attempts) or "nothing sent"
        return f"<View at {self.clock_s:g} s: {responses}>"

    def tobytes(self) -> bytes:
        """The whole view as bytes: equal exactly where the visible history and the contract are."""
        return self.seen.tobytes() + self.contract.tobytes()

    @property
    def clock_s(self) -> float:
        """Time now [s] since t = 0."""
        return float(self.seen.clock_s)

    @property
    def ending(self) -> str:
        """``running``, ``claimed``, ``uncertain`` or ``exhausted``."""
        return word(Ending, self.seen.ending)

    @property
    def operator(self) -> str:
        """``not_asked``, ``answered`` or ``silent``."""
        return word(OperatorStatus, self.seen.operator_status)

    @property
    def read_error(self) -> str:
        """Why the latest read taught nothing: ``none``, ``no_readback`` or ``outage``."""
        return word(ReadError, self.seen.read_error)

    @property
    def retry_after_left_s(self) -> float:
        """Time left of the last Retry-After [s]."""
        return max(float(self.seen.retry_at_s) - self.clock_s, 0.0)

    @property
    def steps_left(self) -> int:
        """Calls left of the budget."""
        return int(self.contract.max_steps - self.seen.n_steps)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """What was sent, in order."""
        return tuple(
            Attempt(
                sent_s=float(sent.sent_s),
                answered_s=float(sent.answered_s),
                response=word(Response, sent.response),
                key=word(Key, sent.key),
                items=item_list(sent.payload),
                known_absent_items=item_list(sent.clear),
                authority=word(Authority, sent.authority),
            )
            for sent in self.seen.attempts[: self.seen.n_attempts]
        )

    @property
    def last_report(self) -> Report | None:
        """The last informative answer of a read or of the operator."""
        if self.seen.read_at_s < 0.0:
            return None
        source = report_source(self.seen, self.contract)
        return Report(float(self.seen.read_at_s), item_list(self.seen.shown), source)

    @property
    def fields(self) -> dict[str, Any]:
        """The view in JSON's types; see `view_fields`."""
        return view_fields(self.seen, self.contract)

    @property
    def text(self) -> str:
        """The view in plain English; see `view_text`."""
        return view_text(self.seen, self.contract)

    def check(self) -> View:
        """Return the view itself, if some world agrees with it.

        Raises
        ------
        ContradictionError
            If no world is compatible with the contract and the visible history.
        """
        check_view(self.seen, self.contract)
        return self

    def permits(self, key: str | Key | Action = "none") -> Permission:
        """Whether sending the operation again is permitted, by section 5 of the design.

        Parameters
        ----------
        key
            What the re-issue would carry: ``none``, ``pinned``, ``other``, or the action ``retry``
            or ``keyed_retry`` (which sends the contract's candidate key).

        Raises
        ------
        ContradictionError
            If no world is compatible with the contract and the visible history: such a view permits
            nothing.
        UserError
            For another word.
        """
        sent = self._key(key)
        self.check()
        impossible = self._impossible(sent)
        if impossible:
            return Permission(False, "not possible", impossible)
        if self.seen.n_attempts == 0:
            return Permission(True, "first send", "nothing was sent before")
        if not permission.permitted(self.seen, self.contract, sent):
            return Permission(False, "no rule", self._blocker(sent))
        if self.contract.idempotent:
            return Permission(True, "idempotent", "executing the write again changes nothing")
        if permission.protected(self.seen, self.contract, sent):
            reason = "every earlier attempt carried this key or had no effect; its record lives"
            return Permission(True, "protected replay", reason)
        return Permission(
            True,
            "known absent",
            "no earlier attempt had or can have an effect on the items re-sent",
        )

    def _key(self, key: str | Key | Action) -> int:
        if isinstance(key, Action) and key in (Action.RETRY, Action.KEYED_RETRY):
            key = key.name.lower()
        elif isinstance(key, Key):
            return int(key)
        if key == "keyed_retry":
            return int(permission.candidate_key(self.contract))
        if key == "retry":
            return int(Key.NONE)
        if not isinstance(key, str) or key not in KEY_WORDS:
            raise UserError(f"permits: unknown key {key!r}; choose from {', '.join(KEY_WORDS)}")
        return int(Key[key.upper()])

    def _impossible(self, key: int) -> str | None:
        if self.seen.ending:
            return "the episode is over"
        if key != Key.NONE and not self.contract.accepts_key:
            return "the write takes no key: the client gets an error and nothing is sent"
        if self.seen.n_attempts >= self.contract.max_attempts:
            return f"all {self.contract.max_attempts} attempts are used up"
        return None

    def _blocker(self, key: int) -> str:
        """Why no rule permits the re-issue: the first attempt in its way."""
        payload = permission.next_payload(self.seen, self.contract, key)
        for j, attempt in enumerate(self.attempts):
            open_items = self.seen.attempts[j].payload & ~self.seen.attempts[j].clear
            if key == Key.NONE:
                open_items &= payload
            if not open_items:
                continue
            response = attempt.response.replace("_", " ")
            which = f"attempt {j} ({response} at {seconds_text(attempt.answered_s)})"
            if key != Key.NONE and attempt.key == word(Key, key):
                expiry_s = attempt.sent_s + float(self.contract.key_retention_s)
                if self.clock_s < expiry_s:
                    continue
                return f"the key record of {which} may have expired at {seconds_text(expiry_s)}"
            lacks = "" if key == Key.NONE else " did not carry this key and"
            which_items = "" if self.contract.n_items == 1 else f" on {items_text(open_items)}"
            had = "may have had, or may still have, its effect"
            if attempt.response == "success" or attempt.authority == "committed":
                had = "has had its effect"
            return f"{which}{lacks} {had}{which_items}"
        raise AssertionError("a re-issue without a rule has an attempt in its way")
