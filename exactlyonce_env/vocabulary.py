"""The closed sets of the world, each numbered once: numbers for the kernel, names for people."""

from __future__ import annotations

from enum import IntEnum


class Mode(IntEnum):
    """Fate of one attempt: `OK` and the twelve faults."""

    OK = 0
    TIMEOUT_PRE = 1
    TIMEOUT_POST = 2
    TIMEOUT_LATE = 3
    TIMEOUT_LATE_TAIL = 4
    HTTP500_PRE = 5
    HTTP500_POST = 6
    PARTIAL_BATCH = 7
    REDELIVERY = 8
    RATE_LIMITED = 9
    UNAVAILABLE = 10
    OUTAGE = 11
    SCHEMA_DRIFT = 12


class Response(IntEnum):
    """What the client saw of one attempt."""

    NONE = 0
    SUCCESS = 1
    TIMEOUT = 2
    SERVER_ERROR = 3  # HTTP 500
    RATE_LIMITED = 4  # HTTP 429
    UNAVAILABLE = 5  # HTTP 503
    SCHEMA = 6  # HTTP 422 that names the changed field
    CONFLICT = 7  # HTTP 409: the same key is in progress


class Readback(IntEnum):
    """How the service answers a read."""

    NONE = 0
    STRONG = 1
    EVENTUAL = 2
    AUTHORITATIVE = 3


class InFlightSameKey(IntEnum):
    """What a same-key request meets while the first one is being processed."""

    COALESCE = 0
    CONFLICT = 1


class OriginalKey(IntEnum):
    """Whether attempt 0 carried the operation's key (episodes that start after the fault)."""

    OMITTED = 0
    SENT = 1


class CandidateKey(IntEnum):
    """Whether KEYED_RETRY uses the operation's pinned key or another one."""

    SAME = 0
    DIFFERENT = 1


class Start(IntEnum):
    """Whether the first decision comes after the original's response, or before sending it."""

    FAULT = 0
    SEND = 1


class Key(IntEnum):
    """Which idempotency key an attempt carried."""

    NONE = 0
    PINNED = 1
    OTHER = 2


class Authority(IntEnum):
    """What an authoritative read, or an operator who sees all, said of an attempt."""

    UNKNOWN = 0
    PENDING = 1
    COMMITTED = 2
    NOT_EXECUTED = 3


class ReadError(IntEnum):
    """Why the latest read taught nothing."""

    NONE = 0
    NO_READBACK = 1
    OUTAGE = 2


class OperatorStatus(IntEnum):
    """The operator's last reaction."""

    NOT_ASKED = 0
    ANSWERED = 1
    SILENT = 2


class Action(IntEnum):
    """What the client can do; WAIT takes seconds beside it."""

    READ = 0
    WAIT = 1
    RETRY = 2
    KEYED_RETRY = 3
    ESCALATE = 4
    FINISH = 5
    FINISH_UNCERTAIN = 6


class Ending(IntEnum):
    """How an episode ended."""

    RUNNING = 0
    CLAIMED = 1  # finished, completion claimed
    UNCERTAIN = 2  # finished without that claim
    EXHAUSTED = 3  # call budget used up


class Term(IntEnum):
    """Parts of the reward, in the order of every ``reward_terms`` array."""

    TIME = 0
    READ = 1
    REISSUE = 2
    ESCALATION = 3
    SUCCESS = 4
    DUPLICATE = 5
    OMISSION = 6
    UNRESOLVED = 7
    OVERCLAIM = 8


TERM_NAMES: tuple[str, ...] = tuple(term.name.lower() for term in Term)
MODE_NAMES: tuple[str, ...] = tuple(mode.name.lower() for mode in Mode)

GROUPS: dict[str, tuple[Mode, ...]] = {
    "acknowledged": (Mode.OK, Mode.REDELIVERY),
    "timeout": (
        Mode.TIMEOUT_PRE,
        Mode.TIMEOUT_POST,
        Mode.TIMEOUT_LATE,
        Mode.TIMEOUT_LATE_TAIL,
    ),
    "server_error": (Mode.HTTP500_PRE, Mode.HTTP500_POST, Mode.PARTIAL_BATCH),
    "explicit": (Mode.RATE_LIMITED, Mode.UNAVAILABLE, Mode.OUTAGE, Mode.SCHEMA_DRIFT),
}
"""Modes whose client-visible response is the same, by group (`explicit` modes are told apart)."""
