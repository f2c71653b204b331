"""What comes back from a tool call."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from exactlyonce_env.sandbox.records import canonical

__all__ = ["Reply", "come_back", "failed", "ok", "unavailable"]


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a call.

    Attributes
    ----------
    text
        JSON where the call succeeded, else the error's text.
    error
        Whether it is an error.
    status
        As HTTP has it; 0 where no response came.
    retry_after_s
        What the service asked to wait [s].
    ended
        Whether the episode is over.
    """

    text: str
    error: bool
    status: int
    retry_after_s: float = 0.0
    ended: bool = False


def ok(data: Any) -> Reply:
    """A call that succeeded, with its data as JSON."""
    return Reply(canonical(data), False, 200)


def failed(status: int, text: str) -> Reply:
    """An error with its HTTP status."""
    return Reply(f"HTTP {status}: {text}", True, status)


def come_back(status: int, words: str, seconds: float) -> Reply:
    """An error that asks to wait [s]."""
    text = f"HTTP {status}: {words}. Retry-After: {math.ceil(seconds)} s"
    return Reply(text, True, status, seconds)


def unavailable(seconds: float) -> Reply:
    """A service that is down for so long [s]."""
    return come_back(503, "service unavailable", seconds)
