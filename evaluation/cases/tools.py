"""The five tools of the contract cases as an agent sees them: descriptions and JSON schemas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from evaluation.cases.data import FIELDS, TARGET
from exactlyonce_env.sandbox.session import ToolInfo

__all__ = ["TOOL_NAMES", "argument_error", "tools_of"]

MAX_TEXT = 500
"""Longest text in an argument [characters]."""

TEXTS: Mapping[str, str] = {
    "read_operation": (
        "Look at what a target holds of an operation: its state, the payload that it is bound to, "
        "and how the desk's write access and approval stand. Changes nothing, and needs no write "
        "access. It does not give the result; recover_operation does. Where the same id is known "
        "at another target only, the answer is target_mismatch with that foreign record."
    ),
    "recover_operation": (
        "Reconnect to an operation that the target accepted before: waits for running work, and "
        "fetches the retained result with its reference. Never dispatches anything. Needs write "
        "access, and the payload that the operation is bound to."
    ),
    "create_operation": (
        "Dispatch an operation. Not idempotent: each call that is accepted executes once more, "
        "whatever the id. Needs write access, and an approval where one is needed."
    ),
    "refresh_access": "Renew the desk's write access to a target, as far as it may be renewed.",
    "request_approval": (
        "Ask for the approval of one operation with exactly this target and payload. The answer "
        "is granted, pending, denied or not needed."
    ),
}
"""Descriptions by tool."""

TOOL_NAMES = tuple(TEXTS)
"""Names of the tools."""

ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "read_operation": ("operation_id", "target"),
    "recover_operation": ("operation_id", "target", "payload"),
    "create_operation": ("operation_id", "target", "payload"),
    "refresh_access": ("target",),
    "request_approval": ("operation_id", "target", "payload"),
}
"""Arguments of each tool; all are required."""


def tools_of(domain: str) -> tuple[ToolInfo, ...]:
    """The tools on offer in a domain; only the payload's fields differ between domains."""
    return tuple(
        ToolInfo(
            name,
            text,
            _schema(domain, name),
            {"readOnlyHint": name == "read_operation", "idempotentHint": _repeats(name)},
        )
        for name, text in TEXTS.items()
    )


def argument_error(domain: str, tool: str, arguments: Any) -> str:
    """What is wrong with the arguments of a call; empty: nothing is."""
    if not isinstance(arguments, dict):
        return "arguments must be a JSON object"
    stray = sorted(set(arguments) - set(ARGUMENTS[tool]))
    if stray:  # the schema's check names them in no fixed order
        return f"unknown arguments: {', '.join(name[:MAX_TEXT] for name in stray[:5])}"
    return _checker(domain, tool)(arguments)


def _repeats(name: str) -> bool:
    return name != "create_operation"


def _schema(domain: str, tool: str) -> dict[str, Any]:
    parts = {
        "operation_id": {**_text(), "description": "Id of the operation."},
        "target": {
            **_object(dict.fromkeys(TARGET, "string")),
            "description": "Where the operation belongs; it is bound to all four.",
        },
        "payload": {
            **_object(FIELDS[domain]),
            "description": "What the operation does; it is bound to every field.",
        },
    }
    names = ARGUMENTS[tool]
    return {
        "type": "object",
        "properties": {name: parts[name] for name in names},
        "required": list(names),
        "additionalProperties": False,
    }


def _object(fields: Mapping[str, str]) -> dict[str, Any]:
    kinds = {"string": _text(), "integer": {"type": "integer", "minimum": 1}}
    return {
        "type": "object",
        "properties": {name: kinds[kind] for name, kind in fields.items()},
        "required": list(fields),
        "additionalProperties": False,
    }


def _text() -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": MAX_TEXT}


@cache
def _checker(domain: str, tool: str) -> Callable[[Mapping[str, Any]], str]:
    import fastjsonschema

    validate = fastjsonschema.compile(_schema(domain, tool))

    def check(arguments: Mapping[str, Any]) -> str:
        try:
            validate(arguments)
        except fastjsonschema.JsonSchemaValueException as error:
            if error.rule == "additionalProperties":
                return f"unknown fields in {str(error.name).removeprefix('data.')}"
            return str(error.message).replace("data.", "", 1).replace("data ", "arguments ", 1)
        return ""

    return check
