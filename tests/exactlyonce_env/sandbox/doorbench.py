"""Speed of the sandbox's doors, each in a process of its own on loopback or a pipe.

    python tests/exactlyonce_env/sandbox/doorbench.py [http] [stdio]

``http`` counts answered calls per second of `exactlyonce serve http`: clients with one persistent
connection each send whole episodes of 39 calls and a finish, one call at a time, and episodes are
written to a log.  ``stdio`` counts those of `exactlyonce serve mcp` with the SDK's own client, in
turns with an echo server that is nothing but the SDK.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
CLIENTS, HTTP_S = 4, 4.0
ROUNDS, MCP_CALLS = 5, 400

CALLS = [
    ("billing_charge", {"customer": "cust-1", "amount": 5, "description": "a"}),
    ("billing_list_charges", {"customer": "cust-1"}),
    ("wait", {"seconds": 5}),
    ("mail_send", {"to": "a@example.org", "subject": "s", "body": "b"}),
    ("mail_list_sent", {"to": "a@example.org"}),
]
"""Writes, reads and waits in turn."""

BARE = """
import anyio, mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server

async def list_tools(context, params):
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    return types.ListToolsResult(tools=[types.Tool(name="echo", input_schema=schema)])

async def call_tool(context, params):
    text = params.arguments["text"]
    return types.CallToolResult(content=[types.TextContent(text=text)])

async def main():
    server = Server("echo", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())

anyio.run(main)
"""

OURS = """
import asyncio
from exactlyonce_env.sandbox.hosting import Host, Hosted
from exactlyonce_env.sandbox.mcp_server import serve_stdio
from exactlyonce_env.sandbox.session import Session

class Endless(Hosted):
    def call(self, name, arguments=None):
        if len(self.session.calls) >= 38:
            self.session = self.caller = Session("invoice_batch", fault="timeout_late")
        return super().call(name, arguments)

asyncio.run(serve_stdio(Host(single=True), Endless("bench", Session("invoice_batch"))))
"""
"""`exactlyonce serve mcp`, with a new episode in place of one that is about to end."""


class Connection:
    """One persistent HTTP connection, as lean as a client can be."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")

    def post(self, path: str, body: bytes) -> bytes:
        """Send a request and read the whole answer."""
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        self._socket.sendall(head.encode() + body)
        length = 0
        while (line := self._file.readline()) != b"\r\n":
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return self._file.read(length)


def environment() -> dict[str, str]:
    """The environment of a server, so that it finds this source tree."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def start_http(*options: str) -> tuple[subprocess.Popen[str], int]:
    """Start `exactlyonce serve http` on a free port; the process and the port."""
    command = [sys.executable, "-m", "exactlyonce_env", "serve", "http", "--port", "0", *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
    assert server.stdout is not None
    return server, int(server.stdout.readline().rsplit(":", 1)[1])


def play_http(port: int, until_s: float) -> tuple[int, float]:
    """Play episodes until a moment; calls answered, and the worst answer's time [s]."""
    connection = Connection(port)
    bodies = [json.dumps({"tool": name, "arguments": given}).encode() for name, given in CALLS]
    finish = {"tool": "finish", "arguments": {"status": "completed", "summary": "done"}}
    last = json.dumps(finish).encode()
    new = json.dumps({"task": "invoice_batch", "fault": "timeout_late"}).encode()
    count, worst_s = 0, 0.0
    while time.monotonic() < until_s:
        path = f"/episodes/{json.loads(connection.post('/episodes', new))['id']}/calls"
        for k in range(39):
            began_s = time.monotonic()
            connection.post(path, bodies[k % len(bodies)] if k < 38 else last)
            worst_s = max(worst_s, time.monotonic() - began_s)
            count += 1
    return count, worst_s


def bench_http(clients: int = CLIENTS, seconds: float = HTTP_S) -> dict[str, float]:
    """Calls per second over HTTP, episodes opened, graded and written to a log included."""
    with tempfile.TemporaryDirectory() as folder:
        server, port = start_http("--out", folder)
        try:
            play_http(port, time.monotonic() + 0.5)
            began_s = time.monotonic()
            with ThreadPoolExecutor(clients) as pool:
                done = list(pool.map(play_http, [port] * clients, [began_s + seconds] * clients))
            took_s = time.monotonic() - began_s
        finally:
            server.terminate()
            server.wait()
    return {
        "clients": clients,
        "calls_per_s": sum(count for count, _ in done) / took_s,
        "worst_ms": max(worst for _, worst in done) * 1e3,
    }


async def play_stdio(code: str, calls: list[tuple[str, dict[str, Any]]]) -> float:
    """Calls per second of a stdio server that runs the code, by the SDK's client, one at a time."""
    from mcp import Client, StdioServerParameters

    parameters = StdioServerParameters(
        command=sys.executable, args=["-c", code], env=environment(), cwd=ROOT
    )
    async with Client(parameters) as client:
        await client.list_tools()
        for name, given in calls * 4:
            await client.call_tool(name, given)
        began_s = time.monotonic()
        for k in range(MCP_CALLS):
            name, given = calls[k % len(calls)]
            await client.call_tool(name, given)
        return MCP_CALLS / (time.monotonic() - began_s)


def bench_stdio(rounds: int = ROUNDS) -> dict[str, float]:
    """Calls per second over stdio beside the bare server: the medians of some rounds, in turns."""
    ours, bare = [], []
    for _ in range(rounds):
        bare.append(asyncio.run(play_stdio(BARE, [("echo", {"text": "x" * 60})])))
        ours.append(asyncio.run(play_stdio(OURS, CALLS)))
    ours_s, bare_s = sorted(ours)[rounds // 2], sorted(bare)[rounds // 2]
    return {"calls_per_s": ours_s, "bare_calls_per_s": bare_s, "ratio": ours_s / bare_s}


if __name__ == "__main__":
    for which in sys.argv[1:] or ("http", "stdio"):
        print(which, json.dumps({"http": bench_http, "stdio": bench_stdio}[which]()))
