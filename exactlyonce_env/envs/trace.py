"""An episode, decision by decision: kept only where a picture of it may be asked for."""

from __future__ import annotations

from typing import Any, NamedTuple

from exactlyonce_env.vocabulary import Action, OperatorStatus


class Event(NamedTuple):
    """One decision and what the client saw come of it."""

    kind: int  # Action
    start_s: float  # [s] clock at the decision
    end_s: float  # [s] clock after it
    attempt: int  # number of the attempt that it sent; -1: none
    shown: int  # items in the report that it brought; -1: no report
    refused: bool  # a read that taught nothing, or a send that the client refused
    silent: bool  # the operator did not answer


class Trace:
    """The decisions of the episode in progress, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._before = (0.0, 0, 0)

    def begin(self, seen: Any) -> None:
        """Forget the last episode; ``seen`` is the `VIEW` record of the new one."""
        self.events.clear()
        self._remember(seen)

    def add(self, kind: int, seen: Any) -> None:
        """Add the decision ``kind`` that led to the `VIEW` record ``seen``."""
        start_s, attempts, errors = self._before
        read, asked = kind == Action.READ, kind == Action.ESCALATE
        silent = bool(asked and seen.operator_status == OperatorStatus.SILENT)
        unread = bool(read and seen.read_error != 0)
        reported = (read and not unread) or (asked and not silent)
        self.events.append(
            Event(
                kind,
                start_s,
                float(seen.clock_s),
                attempts if seen.n_attempts > attempts else -1,
                int(seen.shown) if reported else -1,
                unread or bool(seen.n_client_errors > errors),
                silent,
            )
        )
        self._remember(seen)

    def _remember(self, seen: Any) -> None:
        self._before = (float(seen.clock_s), int(seen.n_attempts), int(seen.n_client_errors))
