"""MCP with the SDK's own client: over a pipe, over loopback, in memory."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exactlyonce_env.sandbox.hosting import Host, Hosted, make_variant
from exactlyonce_env.sandbox.log import EpisodeLog, read_episodes
from exactlyonce_env.sandbox.service import Service
from exactlyonce_env.sandbox.session import Session
from exactlyonce_env.sandbox.tasks import make_task
from policies.wrappers import wrap

pytest.importorskip("mcp")
httpx = pytest.importorskip("httpx")

from mcp import Client, StdioServerParameters  # noqa: E402
from mcp.client.streamable_http import streamable_http_client  # noqa: E402
from mcp.shared.exceptions import MCPError  # noqa: E402

from exactlyonce_env.sandbox.mcp_server import (  # noqa: E402
    CONTRACTS_KEY,
    McpDoor,
    make_server,
)

FINISH = ("finish", {"status": "completed", "summary": "done"})
COMMAND = ["-m", "exactlyonce_env", "serve", "mcp", "--task", "invoice_batch"]


def happy_calls(task: str, instance: int = 0) -> list[tuple[str, dict[str, Any]]]:
    return [(step.tool, dict(step.arguments)) for step in make_task(task, instance).steps]


async def play(client: Any, task: str, instance: int = 0) -> list[Any]:
    """The results of a task's happy path and its finish."""
    return [await client.call_tool(*call) for call in (*happy_calls(task, instance), FINISH)]


def in_memory(conversation: Any, *, mode: str = "auto", **variant: Any) -> Hosted:
    """Let a client talk to one episode in this process; the episode."""
    host = Host(single=True, wrap=wrap)
    hosted = host.open(make_variant({"task": "invoice_batch", **variant}))

    async def main() -> None:
        async with Client(make_server(host, lambda context: hosted), mode=mode) as client:
            await conversation(client)

    asyncio.run(main())
    return hosted


def text_of(result: Any) -> str:
    (content,) = result.content
    return str(content.text)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_instructions_tools_and_hints_are_the_episodes(mode: str) -> None:
    session = Session("invoice_batch")

    async def conversation(client: Any) -> None:
        assert client.instructions == session.instructions
        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed] == [tool.name for tool in session.tools]
        for tool, offered in zip(listed, session.tools, strict=True):
            assert tool.description == offered.description
            assert tool.input_schema == offered.input_schema
            hints = tool.annotations.model_dump(by_alias=True, exclude_none=True)
            assert hints.pop("openWorldHint") is False
            contracts = offered.annotations.get("contracts")
            assert {**hints, **({"contracts": contracts} if contracts else {})} == (
                offered.annotations
            )
            assert (tool.meta or {}).get(CONTRACTS_KEY) == contracts

    in_memory(conversation, mode=mode)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_results_are_text_and_objects_and_errors_are_tool_errors(mode: str) -> None:
    async def conversation(client: Any) -> None:
        failed, charged, *_ = await play(client, "invoice_batch")
        assert failed.is_error
        assert text_of(failed) == "Timeout: no response within 30 s."
        assert not charged.is_error
        assert charged.structured_content == json.loads(text_of(charged))
        late = await client.call_tool("wait", {"seconds": 1})
        assert late.is_error
        assert "ended" in text_of(late)

    hosted = in_memory(conversation, mode=mode, fault="timeout_post")
    assert hosted.record is not None
    assert hosted.record["exactly_once"]


def test_wrong_calls_are_the_services_errors() -> None:
    async def conversation(client: Any) -> None:
        for name, arguments in (("nope", {}), ("wait", {"seconds": "x"}), ("wait", None)):
            result = await client.call_tool(name, arguments)
            assert result.is_error
            assert text_of(result).startswith("HTTP 40")

    assert len(in_memory(conversation).session.calls) == 3


def test_nothing_but_tools_is_served() -> None:
    async def conversation(client: Any) -> None:
        for ask in (client.list_prompts, client.list_resources):
            with pytest.raises(MCPError):
                await ask()

    in_memory(conversation)


def test_a_wrapper_runs_behind_the_door() -> None:
    async def conversation(client: Any) -> None:
        result = await client.call_tool(*happy_calls("invoice_batch")[0])
        assert not result.is_error

    hosted = in_memory(conversation, wrapper="verify-retry", fault="timeout_pre")
    assert len(hosted.session.calls) > 1
    record = hosted.close()
    assert record is not None
    assert record["wrapper"] == "verify-retry"


# --- processes ------------------------------------------------------------------------------------


def test_stdio_from_start_to_the_clients_leaving(tmp_path: Path, repo_root: Path) -> None:
    """One client finishes and goes; another goes in the middle; a third's server is stopped."""
    options = ["--fault", "timeout_post", "--write", "1", "--out", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(repo_root)}
    started = [
        subprocess.Popen(
            [sys.executable, *COMMAND, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
        )
        for _ in range(2)
    ]

    async def main() -> None:
        parameters = StdioServerParameters(
            command=sys.executable, args=[*COMMAND, *options], env=env
        )
        async with Client(parameters) as client:
            assert client.instructions == Session("invoice_batch").instructions
            assert len((await client.list_tools()).tools) == len(Session("invoice_batch").tools)
            results = await play(client, "invoice_batch")
            assert [result.is_error for result in results] == [False, True, False, False]
            (row,) = read_episodes(tmp_path).rows
            assert row["ended_by"] == "finish"
            assert (row["write"], row["fault"]) == ("charge_1", "timeout_post")
            assert row["exactly_once"]

    asyncio.run(main())
    for server, end in zip(started, ("client", "server"), strict=True):
        assert server.stdin is not None
        assert server.stdout is not None
        for message in handshake():
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        server.stdin.flush()
        answers = [json.loads(server.stdout.readline()) for _ in range(2)]
        assert "Charge" in answers[0]["result"]["instructions"]
        assert "charge_id" in answers[1]["result"]["content"][0]["text"]
        if end == "server":
            server.send_signal(signal.SIGTERM)
            assert server.wait(timeout=10) == 128 + signal.SIGTERM
        server.stdout.close()  # a client that is killed leaves two broken pipes
        server.stdin.close()
        server.wait(timeout=10)
    rows = read_episodes(tmp_path).rows
    assert [row["ended_by"] for row in rows] == ["finish", "client", "server"]
    assert [row["ending"] for row in rows[1:]] == ["exhausted"] * 2
    assert [len(row["calls"]) for row in rows[1:]] == [1, 1]


def handshake() -> list[dict[str, Any]]:
    """Messages of a client that opens the connection and makes one call."""
    name, arguments = happy_calls("invoice_batch")[0]
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    return [
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": name, "arguments": arguments}},
    ]


@pytest.fixture
def base(tmp_path: Path) -> Iterator[str]:
    """URL of the service with MCP, on a socket of its own thread."""
    from exactlyonce_env.sandbox.serving import bind, make_server, serve, url_of

    host = Host(EpisodeLog(tmp_path), wrap=wrap)
    door = McpDoor(host)
    server = make_server(Service(host, {"task": "invoice_batch"}, door), host)
    listener = bind("127.0.0.1", 0)
    thread = threading.Thread(target=lambda: asyncio.run(serve(server, host, listener, door.open)))
    thread.start()
    yield url_of(listener)
    server.should_exit = True
    thread.join(timeout=20)
    assert not thread.is_alive()


def test_over_http_every_episode_has_its_own_url(base: str, tmp_path: Path) -> None:
    tasks = ["invoice_batch", "cross_post", "feature_flags"]

    async def one(task: str, instance: int, mode: str) -> None:
        async with httpx.AsyncClient() as plain:
            fields = {"task": task, "instance": instance}
            opened = (await plain.post(f"{base}/new", json=fields)).json()
        assert opened["url"].endswith("/mcp")
        async with Client(streamable_http_client(opened["url"]), mode=mode) as client:
            assert client.instructions == make_task(task, instance).text()
            results = await play(client, task, instance)
            assert not any(result.is_error for result in results)

    async def main() -> None:
        await asyncio.gather(
            *(one(task, k, mode) for k, task in enumerate(tasks) for mode in ("auto", "legacy"))
        )

    asyncio.run(main())
    rows = read_episodes(tmp_path).rows
    assert len(rows) == 6
    assert all(row["exactly_once"] and row["unrequested"] == 0 for row in rows)


def test_http_without_an_episode_or_with_another_host_is_refused(base: str, tmp_path: Path) -> None:
    opened = httpx.post(f"{base}/new").json()
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    accept = {"accept": "application/json, text/event-stream"}
    assert httpx.post(f"{base}/e/none/mcp", json=message, headers=accept).status_code == 404
    assert httpx.post(f"{base}/e/{opened['id']}/x", json=message).status_code == 404
    elsewhere = {**accept, "host": "example.org"}
    assert httpx.post(opened["url"], json=message, headers=elsewhere).status_code == 421
    assert httpx.post(opened["url"], json=message, headers=accept).status_code == 200
    assert httpx.delete(opened["url"]).json() == {"ended": True}
    assert [row["ended_by"] for row in read_episodes(tmp_path).rows] == ["client"]
