"""Reading an answer of the probe strictly: it is valid as it stands, or it is invalid for good.

Nothing is repaired and nothing is asked anew.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from evaluation.probe.designs import Variant
from evaluation.probe.prompts import KEY_ACTION, codes_of
from policies.llm.answers import InvalidAnswerError

__all__ = ["Decision", "InvalidAnswerError", "parse_decision"]

SHOWN = 40
"""Characters of a wrong word that are shown."""


@dataclass(frozen=True)
class Decision:
    """What was decided.

    Attributes
    ----------
    action
        The canonical action.
    idempotency_key
        The key that the decision itself supplies; None where it supplies none.
    rationale
        What was said about it; untrusted.
    """

    action: str
    idempotency_key: str | None = None
    rationale: str = ""


def parse_decision(text: str | None, variant: Variant) -> Decision:
    """The decision behind a text.

    Parameters
    ----------
    text
        What was answered; None: nothing.
    variant
        Says which words are actions, and whether a key belongs to the answer.

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
    fields = ["action", "rationale"]
    if variant.key == "supplied":
        fields.append("idempotency_key")
    for name in fields:
        if name not in found:
            raise InvalidAnswerError(f"the field {name!r} is missing")
    extra = next((name for name in found if name not in fields), None)
    if extra is not None:
        raise InvalidAnswerError(f"there is no field {extra[:SHOWN]!r}")
    if not isinstance(found["rationale"], str):
        raise InvalidAnswerError("the rationale is no text")
    action = _action(found["action"], variant)
    key = _key(found["idempotency_key"], action) if variant.key == "supplied" else None
    return Decision(action, key, found["rationale"])


def _action(word: Any, variant: Variant) -> str:
    if not isinstance(word, str):
        raise InvalidAnswerError("the action is no text")
    codes = codes_of(variant)
    if word not in codes:
        raise InvalidAnswerError(f"there is no action {word[:SHOWN]!r}")
    return codes[word]


def _key(key: Any, action: str) -> str | None:
    if action != KEY_ACTION:
        if key is not None:
            raise InvalidAnswerError(f"{action} takes no idempotency_key, it must be null")
        return None
    if not isinstance(key, str) or not key:
        raise InvalidAnswerError(f"{KEY_ACTION} needs an idempotency_key, a nonempty text")
    return key


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise InvalidAnswerError("a field occurs twice")
    return found


def _no_constant(name: str) -> Any:
    raise InvalidAnswerError(f"{name} is no JSON")
