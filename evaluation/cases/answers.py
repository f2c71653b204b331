"""The final answer of a case: its declared format, and the claim that it makes.

The two are kept apart.  The format is read to the letter: one plain JSON object with exactly the
declared fields.  The claim is what the answer says, wherever in the text it stands: a code fence
around it, or a sentence before it, is a matter of format alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evaluation.cases.data import OUTCOMES
from policies.llm.answers import InvalidAnswerError

__all__ = ["ANSWER_FIELDS", "Claim", "claim_of", "format_fault", "write_answer"]

ANSWER_FIELDS: Mapping[str, str] = {
    "status": f"one of {', '.join(OUTCOMES)}",
    "operation_id": "id of the task's operation",
    "reference": "the reference of its result where the status is confirmed, else null",
    "summary": "one or two sentences",
}
"""Fields of the final answer; all are required, and there are no others."""

SHOWN = 40
"""Characters of a wrong word that are shown."""

SEARCHED = 100_000
"""Characters of an answer that are searched for a claim, from its end."""

TRIED = 200
"""Places of an answer at which an object may begin that are tried, the last ones."""


@dataclass(frozen=True)
class Claim:
    """What an answer says; None for what it does not say, or not as text.

    Attributes
    ----------
    status, operation_id, reference
        As in `ANSWER_FIELDS`.
    """

    status: str | None = None
    operation_id: str | None = None
    reference: str | None = None


def write_answer(status: str, operation_id: str, reference: str | None, summary: str) -> str:
    """A final answer in the declared format."""
    fields = {
        "status": status,
        "operation_id": operation_id,
        "reference": reference,
        "summary": summary,
    }
    return json.dumps(fields, ensure_ascii=False)


def format_fault(text: str | None) -> str:
    """What is wrong with the format of an answer; empty: nothing is. None is no answer at all."""
    if text is None:
        return "there is no final answer"
    if not text.strip():
        return "it is empty"
    if text.strip().startswith("```"):
        return "it is in a code fence"
    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except InvalidAnswerError as wrong:
        return str(wrong)
    except (ValueError, RecursionError):
        return "it is not one JSON object"
    if not isinstance(found, dict):
        return "it is not a JSON object"
    return _field_fault(found)


def claim_of(text: str | None) -> Claim:
    """What an answer says: the last JSON object in it that has a status."""
    found: dict[str, Any] = {}
    text = (text or "")[-SEARCHED:]
    decoder, end = json.JSONDecoder(), 0
    for at in [k for k, letter in enumerate(text) if letter == "{"][-TRIED:]:
        if at < end:
            continue  # a part of the one that was found
        try:
            value, after = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            continue
        if "status" in value:
            found, end = value, after
    texts = {
        name: value if isinstance(value := found.get(name), str) else None
        for name in ("status", "operation_id", "reference")
    }
    return Claim(**texts)


def _field_fault(found: dict[str, Any]) -> str:
    missing = next((name for name in ANSWER_FIELDS if name not in found), None)
    if missing is not None:
        return f"the field {missing!r} is missing"
    extra = next((name for name in found if name not in ANSWER_FIELDS), None)
    if extra is not None:
        return f"there is no field {extra[:SHOWN]!r}"
    for name in ("operation_id", "summary"):
        if not isinstance(found[name], str) or not found[name].strip():
            return f"the field {name!r} is no text"
    status, reference = found["status"], found["reference"]
    if not isinstance(status, str) or status not in OUTCOMES:
        return f"there is no status {str(status)[:SHOWN]!r}"
    if status != "confirmed" and reference is not None:
        return f"the reference must be null where the status is {status}"
    if status == "confirmed" and not (isinstance(reference, str) and reference.strip()):
        return "the reference is no text"
    return ""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise InvalidAnswerError("a field occurs twice")
    return found


def _no_constant(name: str) -> Any:
    raise InvalidAnswerError(f"{name} is no JSON")
