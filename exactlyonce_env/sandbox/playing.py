"""A person plays the agent, and sees afterwards what really happened.  Privileged."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from exactlyonce_env.errors import UserError
from exactlyonce_env.sandbox.operations import Effect, Operation
from exactlyonce_env.sandbox.session import Call, Session, ToolInfo
from exactlyonce_env.sandbox.tools import PATHS

__all__ = ["parse_call", "timeline", "usage"]


def usage(tool: ToolInfo) -> str:
    """A tool's arguments in one line; those in brackets may be left out."""
    schema = tool.input_schema
    words = [tool.name]
    for name, field in schema["properties"].items():
        kind = "|".join(field.get("enum", ())) or field.get("type", "any").upper()
        words.append(f"{name}={kind}" if name in schema["required"] else f"[{name}={kind}]")
    return " ".join(words)


def parse_call(line: str, tools: Mapping[str, ToolInfo]) -> tuple[str, dict[str, Any]]:
    """A tool's name and arguments from ``tool {json}`` or ``tool key=value …``.

    Raises
    ------
    UserError
        For anything else, and an unknown tool.
    """
    name, _, rest = line.strip().partition(" ")
    rest = rest.strip()
    if name not in tools:
        raise UserError(f"there is no tool {name!r}; `tools` lists them")
    if not rest:
        return name, {}
    if rest.startswith("{"):
        try:
            return name, dict(json.loads(rest))
        except ValueError as error:
            raise UserError(f"the arguments are not JSON: {error}") from None
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise UserError(f"{error} in {rest!r}") from None
    properties = tools[name].input_schema["properties"]
    arguments = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise UserError(f"{word!r} is not KEY=VALUE; quote values that have spaces")
        arguments[key] = _value(value, properties.get(key, {}).get("type", "string"))
    return name, arguments


def _value(text: str, kind: str) -> Any:
    """The value that a word stands for; one of the wrong type is left for the service to refuse."""
    if kind == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def timeline(session: Session) -> list[dict[str, Any]]:
    """What the client saw beside what happened, in order of time.

    Call it once the episode has been graded: every request under way has arrived then.

    Returns
    -------
    list of dict
        ``time_s`` [s], ``seen`` and ``happened``; one of the two may be empty.
    """
    rows = [*_seen(session), *_happened(session)]
    rows.sort(key=lambda row: (row["time_s"], row["order"]))
    return [{k: row[k] for k in ("time_s", "seen", "happened")} for row in rows]


def _seen(session: Session) -> Iterator[dict[str, Any]]:
    sending: dict[tuple[Any, ...], int] = {}
    for call in session.calls:
        happened = ""
        if call.intent is not None:
            number = sending.get(call.intent, 0)
            sending[call.intent] = number + 1
            happened = _fate(session.records.operations[call.intent], number, call, session.fault)
        said = json.dumps(call.arguments, ensure_ascii=False)
        yield _row(call.began_s, 2 * call.number, f"#{call.number} {call.tool} {said}", happened)
        yield _row(call.ended_s, 2 * call.number + 1, f"#{call.number} answered: {call.reply.text}")


def _fate(operation: Operation, number: int, call: Call, fault: str) -> str:
    """What became of the sending that a call was."""
    words = []
    if call.focal:
        words.append(f"the fault {fault} meets it" if fault != "ok" else "the focal write")
    if not any(effect.sending == number for effect in operation.effects(float("inf"))):
        words.append("it never has an effect")
    return "; ".join(words)


def _happened(session: Session) -> Iterator[dict[str, Any]]:
    numbers: dict[tuple[Any, ...], list[int]] = {}
    for call in session.calls:
        if call.intent is not None:
            numbers.setdefault(call.intent, []).append(call.number)
    for intent, operation in session.records.operations.items():
        path = PATHS[intent[0]]
        done: set[int] = set()
        for effect in operation.effects(float("inf")):
            name = session.records.id_of(operation, effect, path.kind)
            words = f"{path.kind} {name} by call #{numbers[intent][effect.sending]}"
            if operation.items:
                words = f"row {effect.item + 1} of {len(operation.items)}: {words}"
            yield _row(effect.at_s, -1, "", words + _remark(operation, effect, done))
            done.add(effect.item)
    for name, at_s in session.records.removed.items():
        yield _row(at_s, -1, "", f"{name} is removed")


def _remark(operation: Operation, effect: Effect, done: set[int]) -> str:
    """What is particular about an effect; ``done`` are the items that have had one."""
    words = ", by a redelivered copy" if effect.copy else ""
    if effect.item in done:
        words += ", again: no change" if operation.contract["idempotent"] else ", a DUPLICATE"
    return words


def _row(time_s: float, order: int, seen: str, happened: str = "") -> dict[str, Any]:
    return {"time_s": time_s, "order": order, "seen": seen, "happened": happened}
