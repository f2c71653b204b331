"""The HTTP service: it owns worlds and ledgers, and agents act in them from outside.

An agent's side: ``POST /episodes`` with a variant's fields opens an episode and answers with its
URL; ``GET URL`` shows the instructions and tools, ``POST URL/calls`` calls a tool, ``POST
URL/turns`` is a turn without a call, ``DELETE URL`` leaves.  Whoever knows only the URL sees
neither the fault nor what really happened.

The experimenter's side, under a path that nobody can guess: ``GET /admin/TOKEN/episodes`` lists the
episodes, and ``GET /admin/TOKEN/episodes/ID`` shows the line of one that has ended.
"""

from __future__ import annotations

import json
import secrets
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from exactlyonce_env.errors import UserError
from exactlyonce_env.sandbox.hosting import Host, Hosted, make_variant

__all__ = ["Door", "Service"]

MAX_BODY = 1 << 20
"""Longest body of a request, in bytes."""

MAX_DEPTH = 60
"""How deep a body may nest."""

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Answer = tuple[int, Any]


class Door(Protocol):
    """Another protocol that episodes are served by, under ``/e/ID/mcp``."""

    async def serve(self, hosted: Hosted, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request that belongs to the episode."""


class RefusedError(Exception):
    """A request that is answered with an error: a status and one line."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Service:
    """The service as an ASGI application.

    Parameters
    ----------
    host
        Holds the episodes.
    defaults
        Fields of a variant that a request to open an episode need not give.
    mcp
        Serves the episodes by MCP as well.
    """

    def __init__(
        self, host: Host, defaults: Mapping[str, Any] | None = None, mcp: Door | None = None
    ) -> None:
        self.host, self.defaults, self.mcp = host, dict(defaults or {}), mcp
        self.token = secrets.token_urlsafe(18)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not served")
        parts = scope["path"].split("/")[1:]
        try:
            if self.mcp is not None and len(parts) == 3 and parts[0] == "e":
                hosted = self._hosted(parts[1])
                if parts[2] != "mcp":
                    raise RefusedError(404, "there is nothing here; the episode is under /mcp")
                if scope["method"] != "DELETE":
                    await self.mcp.serve(hosted, scope, receive, send)
                    return
                parts = ["episodes", hosted.id]
            status, answer = await self._answer(scope, parts, receive)
        except RefusedError as refused:
            status, answer = refused.status, {"error": str(refused)}
        except UserError as error:
            status, answer = 400, {"error": str(error)}
        except Exception:
            traceback.print_exc()
            status, answer = 500, {"error": "the service has a defect; see its log"}
        body = json.dumps(answer).encode("ascii")
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, parts: list[str], receive: Receive) -> Answer:
        method = scope["method"]
        n = len(parts)
        if n == 3 and parts[0] == "episodes" and parts[2] == "calls" and method == "POST":
            return await self._call(self._hosted(parts[1]), await _body(receive))
        if parts in (["episodes"], ["new"]) and method == "POST":
            return self._open(scope, parts[0], await _body(receive))
        if parts == ["health"] and method == "GET":
            return 200, {"ok": True, "running": len(self.host.running)}
        if n in (2, 3) and parts[0] == "episodes" and parts[1]:
            return await self._episode(self._hosted(parts[1]), method, parts[2:], receive)
        if n in (3, 4) and parts[0] == "admin" and parts[2] == "episodes" and method == "GET":
            if not secrets.compare_digest(parts[1].encode(), self.token.encode()):
                raise RefusedError(404, "there is nothing here")
            return self._admin(parts[3:])
        raise RefusedError(404, f"there is no {method} {scope['path']}")

    def _hosted(self, id_: str) -> Hosted:
        hosted = self.host.find(id_)
        if hosted is None:
            raise RefusedError(404, "there is no such episode")
        return hosted

    def _open(self, scope: Scope, where: str, fields: Mapping[str, Any]) -> Answer:
        hosted = self.host.open(make_variant({**self.defaults, **fields}))
        base = _base(scope)
        answer: dict[str, Any] = {
            "id": hosted.id,
            "url": f"{base}/episodes/{hosted.id}",
            "instructions": hosted.session.instructions,
        }
        if self.mcp is not None:
            answer["mcp_url"] = f"{base}/e/{hosted.id}/mcp"
            if where == "new":
                answer["url"] = answer["mcp_url"]
        return 201, answer

    async def _call(self, hosted: Hosted, body: Mapping[str, Any]) -> Answer:
        name = body.get("tool")
        if not isinstance(name, str) or not body.keys() <= {"tool", "arguments"}:
            raise RefusedError(400, 'a call is {"tool": NAME, "arguments": {…}}')
        reply = await self.host.call(hosted, name, body.get("arguments"))
        return 200, {
            "text": reply.text,
            "error": reply.error,
            "status": reply.status,
            "retry_after_s": reply.retry_after_s,
            "ended": reply.ended,
        }

    async def _episode(
        self, hosted: Hosted, method: str, rest: list[str], receive: Receive
    ) -> Answer:
        what = rest[0] if rest else ""
        if method == "GET" and what in ("", "tools", "instructions"):
            whole = {
                "instructions": hosted.session.instructions,
                "tools": tools_of(hosted),
                "ended": hosted.session.ended,
            }
            return 200, {what: whole[what]} if what else whole
        if method == "POST" and what == "turns":
            text = (await _body(receive)).get("text", "")
            if not isinstance(text, str):
                raise RefusedError(400, 'a turn is {"text": TEXT}')
            nudge = await self.host.say(hosted, text)
            return 200, {"text": nudge, "ended": hosted.session.ended}
        if method == "DELETE" and not what:
            await self.host.end(hosted)
            return 200, {"ended": True}
        raise RefusedError(405, f"{method} is not possible here")

    def _admin(self, rest: list[str]) -> Answer:
        if not rest:
            episodes = (*self.host.ended.values(), *self.host.running.values())
            return 200, {"episodes": [_line(hosted) for hosted in episodes]}
        hosted = self._hosted(rest[0])
        if hosted.record is None:
            raise RefusedError(409, "the episode still runs; DELETE its URL to end it")
        return 200, hosted.record


def tools_of(hosted: Hosted) -> list[dict[str, Any]]:
    """The tools of an episode in JSON types."""
    return [
        {
            "name": tool.name,
            "description": tool.description,
            "input_schema": tool.input_schema,
            "annotations": tool.annotations,
        }
        for tool in hosted.session.tools
    ]


def _line(hosted: Hosted) -> dict[str, Any]:
    session = hosted.session
    return {
        "id": hosted.id,
        "task": session.task.name,
        "instance": session.instance,
        "write": session.focal.name,
        "fault": session.fault,
        "wrapper": hosted.wrapper,
        "calls": len(session.calls),
        "ending": session.ending.name.lower(),
    }


def _base(scope: Scope) -> str:
    """How the client reached the service."""
    for name, value in scope["headers"]:
        if name == b"host":
            return f"http://{value.decode('latin-1')}"
    host, port = scope["server"]
    return f"http://{host}:{port}"


async def _body(receive: Receive) -> Mapping[str, Any]:
    """The body of a request, a JSON object; nothing stands for an empty one."""
    message = await receive()
    data = message.get("body", b"")
    while message.get("more_body"):
        message = await receive()
        data += message.get("body", b"")
        if len(data) > MAX_BODY:
            raise RefusedError(413, f"a body may have {MAX_BODY} bytes")
    if not data:
        return {}
    try:
        found = DECODER.decode(data.decode())
    except (ValueError, RecursionError):
        raise RefusedError(400, "the body is not JSON") from None
    if not isinstance(found, dict):
        raise RefusedError(400, "the body must be a JSON object")
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and _depth(found) > MAX_DEPTH:
        raise RefusedError(400, f"the body nests deeper than {MAX_DEPTH}")
    return found


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


DECODER = json.JSONDecoder(parse_constant=_no_number)
"""Reads strict JSON: infinities and NaN are none."""


def _depth(value: Any) -> int:
    """How deep a value nests."""
    depth, level = 0, [value]
    while level:
        depth += 1
        entries = [v.values() if isinstance(v, dict) else v for v in level]
        level = [v for entry in entries for v in entry if isinstance(v, dict | list)]
    return depth
