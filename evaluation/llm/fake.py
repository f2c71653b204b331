"""A fake endpoint: it speaks the real protocol over a real socket, and does just what it is told.

For tests, for measuring everything around a model, and for trying a set-up before any money is
spent.  Answers come from a script, trouble from a declared plan; the same requests in the same
order get the same answers.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

from exactlyonce_env.errors import unknown

__all__ = ["KINDS", "SCRIPTS", "Answer", "FakeEndpoint", "FakeProcess", "Faults", "Request"]

KINDS = (
    "slow",
    "http_429",
    "http_500",
    "http_503",
    "http_400",
    "http_401",
    "reset",
    "malformed",
    "truncated",
    "bad_arguments",
    "fence",
)
"""Trouble: a slow answer, statuses, a connection cut off, a body that is no JSON or that ends
early, tool arguments that are no JSON, and a code fence whatever the schema asks for."""

PREFIX = "/v1"
MAX_BODY = 64 << 20


@dataclass(frozen=True)
class Request:
    """A request as it came.

    Attributes
    ----------
    path
        Without ``/v1``: ``/chat/completions`` or ``/responses``.
    body
        The JSON object.
    headers
        By lower-case name.
    number
        How many requests came before.
    """

    path: str
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    number: int

    @property
    def history(self) -> Sequence[Mapping[str, Any]]:
        """The messages so far."""
        found: Sequence[Mapping[str, Any]] = self.body.get("messages") or self.body.get("input", [])
        return found


@dataclass(frozen=True)
class Answer:
    """What the model says.

    Attributes
    ----------
    text
        Its text; None: none.
    tool_calls
        Names and arguments (as text).
    logprobs
        Log-probabilities of the first token, for requests that ask for them.
    delay_s
        How long it takes [s].
    """

    text: str | None = None
    tool_calls: Sequence[tuple[str, str]] = ()
    logprobs: Mapping[str, float] = field(default_factory=dict)
    delay_s: float = 0.0


Script = Callable[[Request], Answer]


@dataclass(frozen=True)
class Faults:
    """When trouble comes.

    Attributes
    ----------
    plan
        Kinds of the first requests in order; empty texts stand for none.
    rate, kinds, seed
        After them each request meets one of ``kinds`` with probability ``rate``.
    slow_s
        How long a slow answer takes [s].
    """

    plan: Sequence[str] = ()
    rate: float = 0.0
    kinds: Sequence[str] = ("http_429", "http_500", "reset", "malformed", "truncated")
    seed: int = 0
    slow_s: float = 5.0

    def __post_init__(self) -> None:
        for kind in (*self.plan, *self.kinds):
            if kind and kind not in KINDS:
                raise unknown("trouble", kind, KINDS)

    def kind_of(self, number: int) -> str:
        """The trouble that a request meets; empty: none."""
        if number < len(self.plan):
            return self.plan[number]
        if not self.rate:
            return ""
        draw = random.Random(self.seed * 1_000_003 + number)
        return draw.choice(list(self.kinds)) if draw.random() < self.rate else ""


class _Server:
    """The endpoint in a running loop."""

    def __init__(self, script: Script, faults: Faults) -> None:
        self.script, self.faults = script, faults
        self.counts: Counter[str] = Counter()
        self.open = self.most_open = self.number = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, ValueError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; whether the connection stays open."""
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ", 2)
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines if line)
        }
        length = int(headers.get("content-length", "0"))
        if length > MAX_BODY:
            return False
        data = await reader.readexactly(length)
        path = target.removeprefix(PREFIX)
        if method == "GET":
            writer.write(_response(200, self._about(path)))
            return True
        self.counts[path] += 1
        number, self.number = self.number, self.number + 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            return await self._post(path, data, headers, number, writer)
        finally:
            self.open -= 1

    async def _post(
        self,
        path: str,
        data: bytes,
        headers: Mapping[str, str],
        number: int,
        writer: asyncio.StreamWriter,
    ) -> bool:
        kind = self.faults.kind_of(number)
        if kind:
            self.counts[kind] += 1
        if kind == "reset":
            writer.transport.abort()
            return False
        if kind.startswith("http_"):
            writer.write(_refusal(int(kind[5:])))
            return True
        try:
            body = json.loads(data)
        except ValueError:
            writer.write(_refusal(400))
            return True
        answer = self.script(Request(path, body, headers, number))
        delay_s = answer.delay_s + (self.faults.slow_s if kind == "slow" else 0.0)
        if delay_s:
            await asyncio.sleep(delay_s)
        if kind == "fence":
            answer = Answer(f"```json\n{answer.text}\n```")
        elif kind == "bad_arguments":
            answer = Answer(None, [(name, a[: len(a) // 2]) for name, a in answer.tool_calls])
        found = _told(path, body, answer, number)
        whole = _response(200, found)
        if kind == "malformed":
            whole = _response(200, b'{"choices": [{"message": ')
        elif kind == "truncated":
            whole = whole[: len(whole) - 20]
        writer.write(whole)
        await writer.drain()
        return kind != "truncated"

    def _about(self, path: str) -> Any:
        if path == "/_counts":
            return {"counts": dict(self.counts), "most_open": self.most_open}
        return {"object": "list", "data": [{"id": "fake", "object": "model"}]}


def _told(path: str, body: Mapping[str, Any], answer: Answer, number: int) -> dict[str, Any]:
    """The answer in the protocol of the path."""
    read = len(json.dumps(body)) // 4
    written = max(len(answer.text or "") // 4 + 20 * len(answer.tool_calls), 1)
    model = body.get("model", "fake")
    if path == "/responses":
        output: list[dict[str, Any]] = []
        if answer.text is not None:
            part = {"type": "output_text", "text": answer.text, "annotations": []}
            output.append(
                {"type": "message", "role": "assistant", "id": f"msg_{number}", "content": [part]}
            )
        for k, (name, arguments) in enumerate(answer.tool_calls):
            output.append(
                {
                    "type": "function_call",
                    "id": f"fc_{number}_{k}",
                    "call_id": f"call_{number}_{k}",
                    "name": name,
                    "arguments": arguments,
                }
            )
        usage = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
        return {
            "id": f"resp_{number}",
            "object": "response",
            "model": model,
            "status": "completed",
            "output": output,
            "usage": usage,
        }
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.tool_calls:
        message["tool_calls"] = [
            {
                "id": f"call_{number}_{k}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for k, (name, arguments) in enumerate(answer.tool_calls)
        ]
    choice: dict[str, Any] = {
        "index": 0,
        "message": message,
        "finish_reason": "tool_calls" if answer.tool_calls else "stop",
    }
    if body.get("logprobs") and answer.logprobs:
        top = [
            {"token": token, "logprob": logprob}
            for token, logprob in sorted(answer.logprobs.items(), key=lambda item: -item[1])
        ]
        choice["logprobs"] = {"content": [top[0] | {"top_logprobs": top}]}
        message["content"] = top[0]["token"]
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        },
    }


MESSAGES = {
    400: "This model's maximum context length is 1 token (context_length_exceeded)",
    401: "Incorrect API key provided",
    429: "Rate limit reached",
    500: "The server had an error",
    503: "The engine is overloaded",
}


def _refusal(status: int) -> bytes:
    more = "Retry-After: 0.01\r\n" if status == 429 else ""
    return _response(status, {"error": {"message": MESSAGES[status], "type": "fake"}}, more)


def _response(status: int, content: Any, headers: str = "") -> bytes:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    head = (
        f"HTTP/1.1 {status} Fake\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n{headers}\r\n"
    )
    return head.encode() + data


class FakeEndpoint:
    """The endpoint in a thread of this process, for as long as the ``with`` block runs.

    Parameters
    ----------
    script
        What the model says, or the name of one of `SCRIPTS`.
    faults
        When trouble comes.
    port
        0: a free one.
    """

    def __init__(
        self, script: Script | str, faults: Faults | None = None, *, port: int = 0
    ) -> None:
        found = script if callable(script) else _script(script)
        self._server = _Server(found, faults or Faults())
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.base_url = ""

    @property
    def counts(self) -> Mapping[str, int]:
        """Requests by path, and trouble by kind."""
        return self._server.counts

    @property
    def most_open(self) -> int:
        """Most requests that were open at the same time."""
        return self._server.most_open

    def __enter__(self) -> FakeEndpoint:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(
            self._server.serve, "127.0.0.1", self._port, limit=1 << 20, backlog=1024
        )
        port = server.sockets[0].getsockname()[1]
        self.base_url = f"http://127.0.0.1:{port}{PREFIX}"
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()


class FakeProcess:
    """The endpoint in a process of its own, so that it takes no time of this one's.

    Parameters
    ----------
    script
        Name of one of `SCRIPTS`.
    faults
        When trouble comes.
    """

    def __init__(self, script: str, faults: Faults | None = None) -> None:
        _script(script)
        context = get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve_process, args=(script, faults, theirs), daemon=True
        )
        self.base_url = ""

    def __enter__(self) -> FakeProcess:
        self._process.start()
        self.base_url = self._ours.recv()
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.send(None)
        self._process.join()


def _serve_process(script: str, faults: Faults | None, pipe: Any) -> None:
    with FakeEndpoint(script, faults) as fake:
        pipe.send(fake.base_url)
        pipe.recv()


# --- scripts --------------------------------------------------------------------------------------


def patient(request: Request) -> Answer:
    """A policy: reads, waits five minutes, reads again, and then re-issues.

    States a belief where one is asked for, and keeps a schema that it is given.
    """
    history = request.history
    asked = str(history[-1]["content"])
    system = str(history[0]["content"])
    if "hello" in asked:
        return Answer('{"colour": "blue"}' if "response_format" in request.body else "Hello.")
    text = next(str(m["content"]) for m in history if m.get("role") == "user")
    action = _patient_action(text)
    if request.body.get("logprobs"):
        letters = dict(
            line.split(". ", 1)[::-1]
            for line in text.split("Options:\n", 1)[-1].splitlines()
            if line[1:3] == ". "
        )
        return Answer(logprobs={letters[action]: -0.1, "Z": -3.0})
    found: dict[str, Any] = {"action": action, "rationale": "the evidence so far"}
    if '"belief"' in system:
        found["belief"] = {"absent": 0.4, "committed": 0.2, "in_flight": 0.4}
    said = json.dumps(found)
    if "tools" in request.body:
        return Answer(None, [("choose", said)])
    return Answer(said)


def _patient_action(text: str) -> str:
    if "attempt 1:" in text or "success at" in text:
        return "finish"
    if "no report so far" in text:
        return "read"
    if ": the effect" in text.partition("last report")[2].partition("\n")[0]:
        return "finish"
    if "waits 0" in text:
        return "wait:300"
    return "read" if "reads 1 " in text else "retry"


def idle(request: Request) -> Answer:
    """An agent that ends every task at once, uncertain."""
    arguments = json.dumps({"status": "uncertain", "summary": "nothing was done"})
    return Answer(None, [("finish", arguments)])


SCRIPTS: Mapping[str, Script] = {"patient": patient, "idle": idle}
"""Scripts by name."""


def _script(name: str) -> Script:
    if name not in SCRIPTS:
        raise unknown("script", name, tuple(SCRIPTS))
    return SCRIPTS[name]
