"""Reading a model's answer strictly: it is valid as it stands, or it is invalid.

Nothing is repaired.  A code fence, a word before the object, an unknown field or an action that is
not allowed makes the answer invalid, and the reason is told.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from exactlyonce_env.episode import parse_action
from exactlyonce_env.errors import UserError
from exactlyonce_env.vocabulary import Action
from policies.llm.prompts import SECONDS_PATTERN, STATES, WAIT_WORD, Variant

__all__ = ["Answer", "InvalidAnswerError", "parse_answer"]

SUM_TOLERANCE = 0.02
"""How far the probabilities of a belief may be from summing to 1, as three that were rounded to two
decimals can be by half; they are scaled then."""

ROUNDING = 1e-9
"""What adding three floating-point numbers may be off."""

ACTION_LENGTH = 40
"""Characters of a wrong word that are shown."""

_WAIT = re.compile(rf"wait:{SECONDS_PATTERN}")


class InvalidAnswerError(ValueError):
    """An answer that is not what was asked for; the message says what is wrong with it."""


@dataclass(frozen=True)
class Answer:
    """A valid answer.

    Attributes
    ----------
    word
        The action as it was written, such as ``wait:300``.
    action, seconds
        The same as the kernel takes it; seconds [s] count for a wait.
    rationale
        What the model said about it; untrusted.
    belief
        Probabilities of `STATES`, summing to 1; None where none was asked for.
    """

    word: str
    action: Action
    seconds: float
    rationale: str
    belief: dict[str, float] | None = None


def parse_answer(text: str | None, words: Sequence[str], variant: Variant) -> Answer:
    """The answer behind a text.

    Parameters
    ----------
    text
        What the model wrote; None: nothing.
    words
        The actions allowed, as `policies.llm.prompts.allowed` gives them.
    variant
        Says whether a belief belongs to the answer.

    Raises
    ------
    InvalidAnswerError
        Naming what is wrong.
    """
    if text is None or not text.strip():
        raise InvalidAnswerError("it is empty")
    if text.strip().startswith("```"):
        raise InvalidAnswerError("it is in a code fence")
    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except InvalidAnswerError:
        raise
    except (ValueError, RecursionError):
        raise InvalidAnswerError("it is not one JSON object") from None
    if not isinstance(found, dict):
        raise InvalidAnswerError("it is not a JSON object")
    fields = ["action", "rationale"] + (["belief"] if variant.belief else [])
    for name in fields:
        if name not in found:
            raise InvalidAnswerError(f"the field {name!r} is missing")
    extra = next((name for name in found if name not in fields), None)
    if extra is not None:
        raise InvalidAnswerError(f"there is no field {extra[:ACTION_LENGTH]!r}")
    rationale = found["rationale"]
    if not isinstance(rationale, str):
        raise InvalidAnswerError("the rationale is no text")
    word, action, seconds = action_of(found["action"], words)
    return Answer(
        word, action, seconds, rationale, _belief(found["belief"]) if variant.belief else None
    )


def action_of(word: Any, words: Sequence[str]) -> tuple[str, Action, float]:
    """An action's word with its kind and seconds [s].

    Raises
    ------
    InvalidAnswerError
        For anything that is no allowed action, to the letter.
    """
    if not isinstance(word, str):
        raise InvalidAnswerError("the action is no text")
    shown = repr(word[:ACTION_LENGTH])
    try:
        action, seconds = parse_action(word)
    except UserError:
        raise InvalidAnswerError(f"there is no action {shown}") from None
    if word != word.strip() or (action == Action.WAIT and not _WAIT.fullmatch(word)):
        raise InvalidAnswerError(f"there is no action {shown}")
    if (WAIT_WORD if action == Action.WAIT else word) not in words:
        raise InvalidAnswerError(f"the action {shown} is not allowed now")
    return word, action, seconds


def _belief(found: Any) -> dict[str, float]:
    if not isinstance(found, dict) or sorted(found) != sorted(STATES):
        raise InvalidAnswerError(f"the belief needs exactly {', '.join(STATES)}")
    values = [found[state] for state in STATES]
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidAnswerError("the belief holds something that is no number")
        if not 0.0 <= value <= 1.0:
            raise InvalidAnswerError("the belief holds something that is no probability")
    total = sum(values)
    if abs(total - 1.0) > SUM_TOLERANCE + ROUNDING:
        raise InvalidAnswerError(f"the belief sums to {total:g}, not to 1")
    return {state: value / total for state, value in zip(STATES, values, strict=True)}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise InvalidAnswerError("a field occurs twice")
    return found


def _no_constant(name: str) -> Any:
    raise InvalidAnswerError(f"{name} is no JSON")
