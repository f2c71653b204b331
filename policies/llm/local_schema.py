"""JSON schemas as regular expressions over the text of a JSON value, for constrained answers.

Objects are written with all their properties in the schema's order, separated as `json.dumps`
does.  Whatever the expressions cannot say is refused rather than ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["UnsupportedSchemaError", "choices_of", "pattern_of"]

CHARACTER = r'(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))'
"""One character of a JSON string."""

INTEGER = r"-?(?:0|[1-9][0-9]{0,14})"
NUMBER = rf"{INTEGER}(?:\.[0-9]{{1,9}})?"

MAX_DEPTH = 16

IGNORED = frozenset(
    {
        *("title", "description", "default", "examples", "$schema", "format", "strict"),
        *("additionalProperties", "required", "type"),
    }
)
"""Keywords that say nothing about how a value is written here."""

KNOWN: Mapping[str, frozenset[str]] = {
    "string": frozenset({"pattern", "minLength", "maxLength"}),
    "integer": frozenset(),
    "number": frozenset(),
    "boolean": frozenset(),
    "null": frozenset(),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "object": frozenset({"properties"}),
}
"""Types, and the keywords of each that are kept to."""


class UnsupportedSchemaError(ValueError):
    """A schema that cannot be kept to; the message says why."""


def choices_of(schema: Mapping[str, Any]) -> list[str]:
    """The values a schema names one by one, as JSON; none where it does not."""
    if "enum" in schema:
        values = schema["enum"]
        if not (isinstance(values, list) and values):
            raise UnsupportedSchemaError("an enum needs values")
        return [json.dumps(value) for value in values]
    if "const" in schema:
        return [json.dumps(schema["const"])]
    return ["true", "false"] if schema.get("type") == "boolean" else []


def pattern_of(schema: Any, depth: int = 0) -> str:
    """A regular expression for the JSON texts that a schema allows.

    Raises
    ------
    UnsupportedSchemaError
        Naming what cannot be kept to.
    """
    if not isinstance(schema, Mapping):
        raise UnsupportedSchemaError("a schema must be an object")
    if depth > MAX_DEPTH:
        raise UnsupportedSchemaError("it is nested too deeply")
    choices = choices_of(schema)
    if choices:
        return _either(re.escape(choice) for choice in choices)
    for name in ("anyOf", "oneOf"):
        if name in schema:
            _only(schema, frozenset({name}))
            return _either(pattern_of(one, depth + 1) for one in schema[name])
    kind = schema.get("type")
    if isinstance(kind, list):
        return _either(pattern_of({**schema, "type": one}, depth + 1) for one in kind)
    if not isinstance(kind, str) or kind not in KNOWN:
        raise UnsupportedSchemaError(f"a value needs a type, one of {', '.join(KNOWN)}")
    _only(schema, KNOWN[kind])
    if kind == "string":
        return _string(schema)
    if kind == "array":
        return _array(schema, depth)
    if kind == "object":
        return _object(schema, depth)
    return {"integer": INTEGER, "number": NUMBER, "null": "null"}[kind]


def _only(schema: Mapping[str, Any], known: frozenset[str]) -> None:
    extra = next((name for name in schema if name not in known | IGNORED), None)
    if extra is not None:
        raise UnsupportedSchemaError(f"the keyword {extra!r} is not supported here")


def _either(patterns: Any) -> str:
    return f"(?:{'|'.join(patterns)})"


def _string(schema: Mapping[str, Any]) -> str:
    if "pattern" not in schema:
        return f'"{CHARACTER}{_times(schema, "minLength", "maxLength")}"'
    pattern = str(schema["pattern"])
    if '"' in pattern or "minLength" in schema or "maxLength" in schema:
        raise UnsupportedSchemaError(f"the pattern {pattern!r} is not supported here")
    try:
        re.compile(pattern)
    except re.error:
        raise UnsupportedSchemaError(f"the pattern {pattern!r} is none") from None
    # Without an anchor anything may stand before and after what is searched for.
    before = "" if pattern.startswith("^") else f"{CHARACTER}*"
    after = "" if pattern.endswith("$") else f"{CHARACTER}*"
    inner = pattern.removeprefix("^").removesuffix("$")
    return f'"{before}(?:{inner}){after}"'


def _array(schema: Mapping[str, Any], depth: int) -> str:
    item = pattern_of(schema.get("items"), depth + 1)
    least, most = int(schema.get("minItems", 0)), schema.get("maxItems")
    if most == 0:
        return r"\[\]"
    more = f"{{{max(least - 1, 0)},{'' if most is None else int(most) - 1}}}"
    some = rf"\[{item}(?:, {item}){more}\]"
    return some if least else rf"(?:\[\]|{some})"


def _object(schema: Mapping[str, Any], depth: int) -> str:
    fields = [
        re.escape(json.dumps(name)) + ": " + pattern_of(sub, depth + 1)
        for name, sub in schema.get("properties", {}).items()
    ]
    return r"\{" + ", ".join(fields) + r"\}"


def _times(schema: Mapping[str, Any], least: str, most: str) -> str:
    if least not in schema and most not in schema:
        return "*"
    return f"{{{int(schema.get(least, 0))},{int(schema[most]) if most in schema else ''}}}"
