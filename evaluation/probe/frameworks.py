"""Conformance rows: what a client's retry rule does to the service in four schedules.

Each client may send twice.  It knows nothing but whether its call returned or timed out; what took
effect is read from the ledger of the kernel after settlement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from exactlyonce_env.episode import Walk
from exactlyonce_env.errors import unknown
from exactlyonce_env.plan import Plan
from exactlyonce_env.presets import load_plan
from exactlyonce_env.vocabulary import Action, Response

__all__ = [
    "CLIENTS",
    "SCHEDULES",
    "BudgetExhaustedError",
    "Sender",
    "conformance_rows",
    "run_client",
]

ATTEMPTS = 2

SCHEDULES: dict[str, dict[str, Any]] = {
    "terminal failure": {"faults": {"original": {"timeout_pre": 1}}},
    "commit, response lost": {"faults": {"original": {"timeout_post": 1}}},
    "late commit": {"faults": {"original": {"timeout_late": 1}}},
    "stale visibility": {
        "faults": {"original": {"timeout_post": 1}},
        "contract": {"readback": "eventual", "lag_s": 1_000_000},
    },
}
"""What becomes of the first attempt, as fields of a preset; a second attempt meets no fault."""


class BudgetExhaustedError(RuntimeError):
    """A client sent more often than it may."""


class Sender:
    """What a client is given: a call that returns or times out.

    Parameters
    ----------
    plan
        The schedule, compiled.
    """

    def __init__(self, plan: Plan) -> None:
        self._walk = Walk(plan, 0, 0)

    def __call__(self, key: bool = False) -> str:
        """Send the write, with its idempotency key or without one.

        Raises
        ------
        TimeoutError
            Where no response came.
        BudgetExhaustedError
            For a third attempt; nothing is sent.
        """
        walk = self._walk
        if walk.seen.n_attempts >= ATTEMPTS:
            raise BudgetExhaustedError(f"only {ATTEMPTS} attempts are allowed")
        action = Action.KEYED_RETRY if key else Action.RETRY
        walk.act(action, 0.0, action.name.lower())
        if int(walk.seen.attempts[walk.seen.n_attempts - 1].response) != Response.SUCCESS:
            raise TimeoutError("no response")
        return "done"

    def row(self) -> dict[str, Any]:
        """``attempts``, ``effects`` in the settled ledger, and ``completed``.

        Completed only if a retry ran and its response returned.
        """
        n = int(self._walk.seen.n_attempts)
        answered = n > 1 and int(self._walk.seen.attempts[n - 1].response) == Response.SUCCESS
        return {"attempts": n, "effects": len(self._walk.told().ledger), "completed": answered}


Client = Callable[[Sender], object]


def no_retry(send: Sender) -> None:
    """Sends once and leaves it at that."""
    _tried(send, False)


def exception_retry(send: Sender) -> None:
    """Sends again when the call raises."""
    if not _tried(send, False):
        _tried(send, False)


def stable_key(send: Sender) -> None:
    """Sends again when the call raises, both times with the same key."""
    if not _tried(send, True):
        _tried(send, True)


def _tried(send: Sender, key: bool) -> bool:
    try:
        send(key)
    except TimeoutError:
        return False
    return True


CLIENTS: dict[str, Client] = {
    "no-retry": no_retry,
    "exception-retry": exception_retry,
    "stable-key": stable_key,
}
"""The clients by name; a framework under test is a function that is handed a `Sender`."""


def plan_of(schedule: str) -> Plan:
    """A schedule, compiled.

    Raises
    ------
    UserError
        For an unknown one.
    """
    if schedule not in SCHEDULES:
        raise unknown("schedule", schedule, tuple(SCHEDULES))
    fields = SCHEDULES[schedule]
    contract = {"readback": "strong", "accepts_key": True, "max_attempts": ATTEMPTS}
    return load_plan(
        {
            "name": "conformance",
            "start": "send",
            "contract": contract | fields.get("contract", {}),
            "faults": {"queued_share": 0, **fields["faults"]},
        }
    )


def run_client(client: Client, schedule: str) -> dict[str, Any]:
    """What a client does in one schedule: `Sender.row`.

    An exception that the client lets pass ends it there.
    """
    sender = Sender(plan_of(schedule))
    with suppress(TimeoutError, BudgetExhaustedError):
        client(sender)
    return sender.row()


def conformance_rows(clients: Mapping[str, Client] | None = None) -> list[dict[str, Any]]:
    """A row for each client and schedule."""
    return [
        {"client": name, "schedule": schedule, **run_client(client, schedule)}
        for name, client in (CLIENTS if clients is None else clients).items()
        for schedule in SCHEDULES
    ]
