"""Models inside the test process: endpoints that answer by a script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

Script = Callable[[str, dict[str, Any]], dict[str, Any]]


class Toy:
    """Answers by a script; counts what it was asked."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.bodies: list[dict[str, Any]] = []

    @property
    def asked(self) -> int:
        return len(self.bodies)

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.bodies.append(json.loads(json.dumps(body)))
        await asyncio.sleep(0)
        return self.script(path, body)


def chat(text: str | None, calls: list[tuple[str, str]] | None = None) -> dict[str, Any]:
    """A chat completion with a text or with tool calls: names and arguments as texts."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls is not None:
        message["tool_calls"] = [
            {
                "id": f"c{k}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for k, (name, arguments) in enumerate(calls)
        ]
    usage = {"prompt_tokens": 100, "completion_tokens": 10}
    return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}


def responses(text: str | None, calls: list[tuple[str, str]] | None = None) -> dict[str, Any]:
    """The same in the responses protocol."""
    output: list[dict[str, Any]] = []
    if text is not None:
        part = {"type": "output_text", "text": text, "annotations": []}
        output.append({"type": "message", "role": "assistant", "content": [part]})
    for k, (name, arguments) in enumerate(calls or []):
        output.append(
            {"type": "function_call", "call_id": f"c{k}", "name": name, "arguments": arguments}
        )
    return {"output": output, "usage": {"input_tokens": 100, "output_tokens": 10}}


def answer(action: str, **more: object) -> str:
    """An answer of a policy."""
    return json.dumps({"action": action, "rationale": "because", **more})


def patient(text: str) -> str:
    """What a policy does that reads, waits five minutes, reads again and then re-issues."""
    if "attempt 1:" in text:
        return "finish"
    if "no report so far" in text:
        return "read"
    if ": the effect" in text.partition("last report")[2].partition("\n")[0]:
        return "finish"
    if "waits 0" in text:
        return "wait:300"
    return "read" if "reads 1 " in text else "retry"


def patient_script(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """`patient`, which keeps no schema."""
    asked = body["messages"][-1]["content"]
    return chat("Hello." if "hello" in asked else answer(patient(asked)))
