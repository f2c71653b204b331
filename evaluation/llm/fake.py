"""A fake endpoint: it speaks the real protocol over a real socket, and does just what it is told.

For tests, for measuring everything around a model, and for trying a set-up before any money is
spent.  Answers come from a script, trouble from a declared plan; the same requests in the same
order get the same answers.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from typing import Any

from exactlyonce_env.errors import UserError, unknown

__all__ = [
    "KINDS",
    "MADE",
    "SCRIPTS",
    "Answer",
    "FakeEndpoint",
    "FakeProcess",
    "Faults",
    "Request",
]

KINDS = (
    "slow",
    "http_429",
    "http_500",
    "http_503",
    "http_400",
    "http_401",
    "http_404",
    "reset",
    "refused",
    "malformed",
    "truncated",
    "trickle",
    "endless",
    "labelled_html",
    "bad_arguments",
    "fence",
    "prose",
)
"""Trouble: a slow answer, statuses, a connection cut off, one cut off with no new ones taken for a
while, a body that is no JSON or that ends early, one that comes a byte at a time, one that never
ends, JSON that is called HTML, tool arguments that are no JSON, and a code fence or a sentence
around the answer whatever the schema asks for."""

PREFIX = "/v1"
HOST = "127.0.0.1"
PATHS = ("/chat/completions", "/responses")
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
        Log-probabilities of the first token, for requests that ask for them. Where there are none,
        the endpoint is one that gives none.
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
    slow_s, refused_s
        How long a slow answer takes, and how long no connection is taken [s].
    """

    plan: Sequence[str] = ()
    rate: float = 0.0
    kinds: Sequence[str] = ("http_429", "http_500", "reset", "malformed", "truncated")
    seed: int = 0
    slow_s: float = 5.0
    refused_s: float = 0.2

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

    def __init__(self, script: Script, faults: Faults, ignores: Sequence[str]) -> None:
        self.script, self.faults, self.ignores = script, faults, frozenset(ignores)
        self.counts: Counter[str] = Counter()
        self.open = self.most_open = self.number = 0
        self.failure: Exception | None = None
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None

    async def listen(self, port: int) -> None:
        """Take connections; a port of 0 is any free one."""
        self._listener = await asyncio.start_server(
            self.serve, HOST, port, limit=1 << 20, backlog=1024
        )
        self.port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """End everything."""
        if self._listener is not None:
            self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _refuse_for_a_while(self) -> None:
        if self._listener is None:
            return
        self._listener.close()
        self._listener = None
        task = asyncio.create_task(self._listen_again())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen_again(self) -> None:
        await asyncio.sleep(self.faults.refused_s)
        await self.listen(self.port)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._one(reader, writer):
                pass
        except asyncio.CancelledError:
            pass  # the endpoint ends; the loop would report a cancelled handler
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        except Exception as error:
            self.failure = self.failure or error
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; whether the connection stays open."""
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, _, target = first.removesuffix(" HTTP/1.1").partition(" ")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines if line)
        }
        told = headers.get("content-length", "0")
        length = int(told) if told.isdecimal() else MAX_BODY + 1
        if length > MAX_BODY or "transfer-encoding" in headers:
            writer.write(_refusal(413))
            return False
        data = await reader.readexactly(length)
        path = target.removeprefix(PREFIX)
        if method == "GET":
            writer.write(self._about(path))
            return True
        if path not in PATHS:
            writer.write(_refusal(404))
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
        if kind in ("reset", "refused"):
            if kind == "refused":
                self._refuse_for_a_while()
            writer.transport.abort()
            return False
        if kind.startswith("http_"):
            writer.write(_refusal(int(kind[5:])))
            return True
        try:
            body = json.loads(data)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            writer.write(_refusal(400, "invalid_request_error"))
            return True
        if self.ignores:
            body = {name: value for name, value in body.items() if name not in self.ignores}
        try:
            answer = self.script(Request(path, body, headers, number))
        except Exception as error:  # told to whoever runs the endpoint, when it ends
            self.failure = self.failure or error
            writer.write(_refusal(400, "script_failed"))
            return True
        delay_s = answer.delay_s + (self.faults.slow_s if kind == "slow" else 0.0)
        if delay_s:
            await asyncio.sleep(delay_s)
        if kind in AROUND:
            said = answer.text or next((arguments for _, arguments in answer.tool_calls), "")
            answer = Answer(AROUND[kind].format(said))
        elif kind == "bad_arguments":
            cut = [(name, a[: len(a) // 2] or "{") for name, a in answer.tool_calls]
            answer = replace(answer, tool_calls=cut)
        found = _told(path, body, answer, number)
        whole = _response(200, found)
        if kind == "malformed":
            whole = _response(200, b'{"choices": [{"message": ')
        elif kind == "labelled_html":
            whole = whole.replace(b"application/json", b"text/html; charset=utf-8", 1)
        elif kind == "truncated":
            whole = whole[: len(whole) - 20]
        if kind in ("trickle", "endless"):
            await _write_slowly(writer, whole, kind)
        writer.write(whole)
        await writer.drain()
        return kind not in ("truncated", "trickle", "endless")

    def _about(self, path: str) -> bytes:
        if path == "/_counts":
            return _response(200, {"counts": dict(self.counts), "most_open": self.most_open})
        if path == "/models":
            model = {"id": "fake", "object": "model", "created": 0, "owned_by": "nobody"}
            return _response(200, {"object": "list", "data": [model]})
        return _refusal(404)


TRICKLE_S = 0.05
"""Pause between two bytes that trickle in [s]."""


async def _write_slowly(writer: asyncio.StreamWriter, whole: bytes, kind: str) -> None:
    """Bytes that never come to an end, for as long as somebody reads them."""
    head, _, body = whole.partition(b"\r\n\r\n")
    unbounded = head.partition(b"Content-Length")[0] + b"Connection: close\r\n\r\n"
    writer.write(unbounded)
    with suppress(OSError):
        if kind == "trickle":
            for k in range(len(body)):
                writer.write(body[k : k + 1])
                await writer.drain()
                await asyncio.sleep(TRICKLE_S)
        while kind == "endless":
            writer.write(b" " * (1 << 20))
            await writer.drain()


AROUND = {"fence": "```json\n{}\n```", "prose": "Sure! This is what I would do: {}"}
"""What is put around an answer that ignores its schema."""


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
                {
                    "type": "message",
                    "role": "assistant",
                    "status": "completed",
                    "id": f"msg_{number}",
                    "content": [part],
                }
            )
        for k, (name, arguments) in enumerate(answer.tool_calls):
            output.append(
                {
                    "type": "function_call",
                    "status": "completed",
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
            "created_at": 0,
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
            {"token": token, "logprob": logprob, "bytes": list(token.encode())}
            for token, logprob in sorted(answer.logprobs.items(), key=lambda item: -item[1])
        ]
        shown = top[: body.get("top_logprobs", 0)]
        choice["logprobs"] = {"content": [top[0] | {"top_logprobs": shown}]}
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


REFUSALS = {
    400: ("context_length_exceeded", "This model's maximum context length is 1 token"),
    401: ("invalid_api_key", "Incorrect API key provided"),
    404: ("not_found", "There is no such path or model"),
    413: ("too_large", "A request needs a Content-Length of at most 64 MiB"),
    429: ("rate_limit_exceeded", "Rate limit reached"),
    500: ("server_error", "The server had an error"),
    503: ("overloaded", "The engine is overloaded"),
}
"""Code and message of each status."""


def _refusal(status: int, code: str = "") -> bytes:
    usual, message = REFUSALS[status]
    error = {"message": message, "type": "fake", "param": None, "code": usual}
    if code:
        error |= {"message": f"The request is refused: {code}", "code": code}
    more = "Retry-After: 0.01\r\n" if status == 429 else ""
    return _response(status, {"error": error}, more)


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
    ignores
        Fields of requests that it knows nothing of, such as ``response_format``.

    Raises
    ------
    OSError
        On entry, where the port is taken.
    Exception
        On exit, whatever the script raised; its request was refused.
    """

    def __init__(
        self,
        script: Script | str,
        faults: Faults | None = None,
        *,
        port: int = 0,
        ignores: Sequence[str] = (),
    ) -> None:
        found = script if callable(script) else _script(script)
        self._server = _Server(found, faults or Faults(), ignores)
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._trouble: OSError | None = None
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
        if self._trouble is not None:
            self._thread.join()
            raise self._trouble
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if self._server.failure is not None and (error is None or isinstance(error, Exception)):
            raise self._server.failure

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        try:
            await self._server.listen(self._port)
        except OSError as error:
            self._trouble = error
            return
        finally:
            self.base_url = f"http://{HOST}:{self._server.port}{PREFIX}"
            self._ready.set()
        await self._stop.wait()
        await self._server.stop()


class FakeProcess:
    """The endpoint in a process of its own, so that it takes no time of this one's.

    Parameters
    ----------
    script
        Name of one of `SCRIPTS`, or of one of `MADE` with its argument.
    faults
        When trouble comes.
    ignores
        As for `FakeEndpoint`.

    Raises
    ------
    RuntimeError
        On entry, where the process does not come up.
    """

    def __init__(
        self, script: str, faults: Faults | None = None, *, ignores: Sequence[str] = ()
    ) -> None:
        _script(script)
        context = get_context("spawn")
        self._ours, self._theirs = context.Pipe()
        self._process = context.Process(
            target=_serve_process, args=(script, faults, self._theirs, tuple(ignores)), daemon=True
        )
        self.base_url = ""

    @property
    def counts(self) -> Mapping[str, int]:
        """Requests by path, and trouble by kind."""
        found: dict[str, int] = self._told()["counts"]
        return found

    @property
    def most_open(self) -> int:
        """Most requests that were open at the same time."""
        return int(self._told()["most_open"])

    def _told(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.base_url}/_counts", timeout=10.0) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def __enter__(self) -> FakeProcess:
        self._process.start()
        self._theirs.close()
        try:
            self.base_url = self._ours.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError("the process of the fake endpoint did not come up") from None
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._ours.send(None)
        self._process.join()


def _serve_process(
    script: str, faults: Faults | None, pipe: Any, ignores: Sequence[str] = ()
) -> None:
    # An interrupt at the keyboard is the parent's; where the parent is gone, so is the work.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with FakeEndpoint(script, faults, ignores=ignores) as fake:
        pipe.send(fake.base_url)
        with suppress(EOFError):
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


def fixed(text: str) -> Script:
    """A model that always says the same."""
    return lambda request: Answer(text)


def calling(text: str) -> Script:
    """An agent that makes the calls of a JSON list in order, then ends its task as done.

    Each is a tool's name and its arguments: ``[["get_invoice", {"id": "7"}], ...]``. Its turn is
    told by the results in the history.
    """
    try:
        calls = [(str(name), json.dumps(arguments)) for name, arguments in json.loads(text)]
    except (ValueError, TypeError):
        raise UserError(f'the calls {text!r} are not [["tool", {{...}}], ...]') from None
    calls.append(("finish", json.dumps({"status": "completed", "summary": "all calls made"})))

    def script(request: Request) -> Answer:
        done = sum(
            entry.get("role") == "tool" or entry.get("type") == "function_call_output"
            for entry in request.history
        )
        return Answer(None, [calls[min(done, len(calls) - 1)]])

    return script


SCRIPTS: Mapping[str, Script] = {"patient": patient, "idle": idle}
"""Scripts by name."""

MADE: Mapping[str, Callable[[str], Script]] = {"fixed": fixed, "calling": calling}
"""Scripts with an argument, by the word before the colon: ``fixed:TEXT``, ``calling:JSON``."""


def _script(name: str) -> Script:
    word, colon, argument = name.partition(":")
    if colon and word in MADE:
        return MADE[word](argument)
    if name not in SCRIPTS:
        raise unknown("script", name, (*SCRIPTS, *(f"{word}:…" for word in MADE)))
    return SCRIPTS[name]
