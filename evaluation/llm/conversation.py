"""A conversation with tools, in the chat-completions and in the responses protocol."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from exactlyonce_env.sandbox.session import ToolInfo
from policies.llm.asking import Settings
from policies.llm.endpoint import CHAT, RESPONSES

__all__ = ["PROTOCOLS", "Conversation", "ToolCall", "Turn", "open_conversation"]


@dataclass(frozen=True)
class ToolCall:
    """A call that a model asks for.

    Attributes
    ----------
    id
        By which its result is told.
    name
        The tool.
    arguments
        Its arguments; where the model wrote no JSON, the text as it stands.
    """

    id: str
    name: str
    arguments: Any


@dataclass(frozen=True)
class Turn:
    """What a model said.

    Attributes
    ----------
    text
        Its words.
    calls
        The calls that it asks for.
    malformed
        What stands in the place of calls and is none.
    """

    text: str
    calls: tuple[ToolCall, ...]
    malformed: int = 0

    @property
    def wrong(self) -> int:
        """Calls that are none, and calls whose arguments are no JSON object."""
        return self.malformed + sum(not isinstance(call.arguments, dict) for call in self.calls)


class Conversation(ABC):
    """The messages so far, and how they are sent.

    Parameters
    ----------
    system, task
        The fixed text, and the first message of the user.
    tools
        The tools on offer.
    """

    path: str

    def __init__(self, system: str, task: str, tools: Sequence[ToolInfo]) -> None:
        self.tools = tuple(tools)
        self.history: list[dict[str, Any]] = [
            {"role": "system", "content": system},
            {"role": "user", "content": task},
        ]

    @abstractmethod
    def body(self, model: str, settings: Settings) -> dict[str, Any]:
        """The next request."""

    @abstractmethod
    def take(self, response: dict[str, Any]) -> Turn:
        """Add the model's turn to the history, and say what it holds."""

    @abstractmethod
    def add_result(self, call: ToolCall, text: str) -> None:
        """Add the result of a call."""

    def add_user(self, text: str) -> None:
        """Add a message of the user: a nudge, or a request to reflect."""
        self.history.append({"role": "user", "content": text})


class ChatConversation(Conversation):
    """By ``/chat/completions``."""

    path = CHAT

    def body(self, model: str, settings: Settings) -> dict[str, Any]:
        """The next request."""
        functions = [
            {"name": t.name, "description": t.description, "parameters": t.input_schema}
            for t in self.tools
        ]
        return {
            "model": model,
            "tools": [{"type": "function", "function": function} for function in functions],
            "messages": list(self.history),
            **settings.limits(),
        }

    def take(self, response: dict[str, Any]) -> Turn:
        """Add the model's turn to the history, and say what it holds."""
        choices = response.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else {}
        message = first.get("message") if isinstance(first, dict) else None
        message = message if isinstance(message, dict) else {}
        text = message.get("content")
        text = text if isinstance(text, str) else ""
        asked = message.get("tool_calls") or []
        entries = asked if isinstance(asked, list) else [asked]
        calls = []
        for k, entry in enumerate(entries):
            function = entry.get("function") if isinstance(entry, dict) else None
            if isinstance(function, dict):
                id_ = _id(entry.get("id"), f"call_{len(self.history)}_{k}")
                calls.append(_call(id_, function.get("name"), function.get("arguments")))
        said: dict[str, Any] = {"role": "assistant", "content": text or None}
        if calls:
            said["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": _as_text(call.arguments)},
                }
                for call in calls
            ]
        elif not text:
            said["content"] = ""
        self.history.append(said)
        return Turn(text, tuple(calls), len(entries) - len(calls))

    def add_result(self, call: ToolCall, text: str) -> None:
        """Add the result of a call."""
        self.history.append({"role": "tool", "tool_call_id": call.id, "content": text})


class ResponsesConversation(Conversation):
    """By ``/responses``, with the whole history in every request."""

    path = RESPONSES

    def body(self, model: str, settings: Settings) -> dict[str, Any]:
        """The next request."""
        limits = settings.limits()
        tokens = limits.pop("max_tokens", None) or limits.pop("max_completion_tokens", None)
        return {
            "model": model,
            "tools": [
                {
                    "type": "function",
                    "name": t.name,
                    "description": t.description,
                    "parameters": t.input_schema,
                    "strict": False,
                }
                for t in self.tools
            ],
            "input": list(self.history),
            "store": False,
            "max_output_tokens": tokens,
            **limits,
        }

    def take(self, response: dict[str, Any]) -> Turn:
        """Add the model's turn to the history, and say what it holds."""
        output = response.get("output")
        texts, calls, malformed = [], [], 0
        for k, item in enumerate(output if isinstance(output, list) else []):
            if not isinstance(item, dict):
                malformed += 1
                continue
            if item.get("type") == "function_call":
                id_ = _id(item.get("call_id"), f"call_{len(self.history)}_{k}")
                call = _call(id_, item.get("name"), item.get("arguments"))
                calls.append(call)
                item = item | {
                    "call_id": id_,
                    "name": call.name,
                    "arguments": _as_text(call.arguments),
                }
            elif item.get("type") == "message":
                parts = item.get("content")
                texts += [
                    str(part.get("text", ""))
                    for part in (parts if isinstance(parts, list) else [])
                    if isinstance(part, dict) and part.get("type") == "output_text"
                ]
            self.history.append(item)
        return Turn("\n".join(texts), tuple(calls), malformed)

    def add_result(self, call: ToolCall, text: str) -> None:
        """Add the result of a call."""
        self.history.append({"type": "function_call_output", "call_id": call.id, "output": text})


PROTOCOLS: dict[str, type[Conversation]] = {
    "chat": ChatConversation,
    "responses": ResponsesConversation,
}
"""Protocols by name."""


def open_conversation(
    protocol: str, system: str, task: str, tools: Sequence[ToolInfo]
) -> Conversation:
    """A new conversation in one of `PROTOCOLS`."""
    return PROTOCOLS[protocol](system, task, tools)


MAX_NAME = 200
"""Characters of a call's name or number that are taken; no tool has so long a name."""


def _id(told: Any, otherwise: str) -> str:
    """The number by which a call's result is told, or another one where it is none."""
    return told if isinstance(told, str) and 0 < len(told) <= MAX_NAME else otherwise


def _call(id_: str, name: Any, arguments: Any) -> ToolCall:
    if isinstance(arguments, str):
        # What is no JSON goes on as it stands: the service says so.
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments) if arguments.strip() else {}
    return ToolCall(id_, name[:MAX_NAME] if isinstance(name, str) else "", arguments)


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)
