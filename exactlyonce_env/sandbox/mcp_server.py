"""Episodes over MCP: the task text is the server's instructions, its tools are the episode's.

Only ``tools/list`` and ``tools/call`` are forwarded.  Over stdio a process is one episode; over
streamable HTTP each episode has its own URL, and the protocol keeps no session.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

import mcp_types as types
from mcp.server import Server, ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings

from exactlyonce_env.sandbox.hosting import Host, Hosted
from exactlyonce_env.sandbox.session import Reply

__all__ = ["CONTRACTS_KEY", "McpDoor", "make_server", "mcp_tools", "serve_stdio"]

CONTRACTS_KEY = "exactlyonce-env/contracts"
"""Where a tool's ``_meta`` holds what MCP's own hints cannot say, for wrappers outside."""

Find = Callable[[ServerRequestContext[Any, Any]], Hosted]


def mcp_tools(hosted: Hosted) -> list[types.Tool]:
    """The tools of an episode as MCP lists them."""
    found = []
    for tool in hosted.session.tools:
        contracts = tool.annotations.get("contracts")
        found.append(
            types.Tool(
                name=tool.name,
                description=tool.description,
                input_schema=tool.input_schema,
                annotations=types.ToolAnnotations(
                    read_only_hint=tool.annotations["readOnlyHint"],
                    idempotent_hint=tool.annotations["idempotentHint"],
                    destructive_hint=tool.annotations["destructiveHint"],
                    open_world_hint=False,
                ),
                _meta={CONTRACTS_KEY: contracts} if contracts else None,
            )
        )
    return found


def result_of(reply: Reply) -> types.CallToolResult:
    """A reply as MCP gives it: an error of the service is a tool error with its text."""
    return types.CallToolResult(
        content=[types.TextContent(text=reply.text)],
        structured_content=None if reply.error else _object(reply.text),
        is_error=reply.error,
    )


def _object(text: str) -> Any:
    """The JSON object that a text is; None where a wrapper has put words around it."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def make_server(host: Host, find: Find) -> Server[Any]:
    """A server whose episodes are found from the request.

    Parameters
    ----------
    host
        Carries the calls out.
    find
        The episode that a request belongs to.
    """

    async def list_tools(
        context: ServerRequestContext[Any, Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=mcp_tools(find(context)))

    async def call_tool(
        context: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        return result_of(await host.call(find(context), params.name, params.arguments))

    async def instruct(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Say what the task is to whoever opens the connection."""
        result = await call_next(ctx)
        if ctx.method in ("initialize", "server/discover") and isinstance(result, dict):
            result["instructions"] = find(ctx).session.instructions
        return result

    server: Server[Any] = Server(
        "exactlyonce-sandbox",
        version=version("exactlyonce-env"),
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        # The session checks the arguments itself and tells what is wrong with them in its reply.
        get_tool_input_schema=lambda name: None,
    )
    server.middleware.append(instruct)
    return server


class McpDoor:
    """Streamable HTTP for the episodes of a host.

    Parameters
    ----------
    host
        Holds the episodes.
    local
        Whether requests must name this machine as their host: browsers can be made to send others.
    """

    def __init__(self, host: Host, *, local: bool = True) -> None:
        self._host = host
        names = ["127.0.0.1:*", "localhost:*", "[::1]:*"]
        security = TransportSecuritySettings(
            enable_dns_rebinding_protection=local,
            allowed_hosts=names if local else [],
            allowed_origins=[f"http://{name}" for name in names] if local else [],
        )
        self._manager = StreamableHTTPSessionManager(
            make_server(host, self._find),
            stateless=True,
            json_response=True,
            security_settings=security,
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """What must be open while the episodes are served."""
        async with self._manager.run():
            yield

    async def serve(
        self, hosted: Hosted, scope: Mapping[str, Any], receive: Any, send: Any
    ) -> None:
        """Answer one HTTP request that belongs to the episode."""
        hosted.touch()
        await self._manager.handle_request({**scope, "exactlyonce": hosted}, receive, send)

    @staticmethod
    def _find(context: ServerRequestContext[Any, Any]) -> Hosted:
        assert context.request is not None
        hosted: Hosted = context.request.scope["exactlyonce"]
        return hosted


async def serve_stdio(host: Host, hosted: Hosted) -> None:
    """Serve one episode on stdin and stdout until the client goes away.

    SIGTERM, SIGINT and SIGHUP end the process once the episode is written; reading stdin cannot be
    interrupted otherwise.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, partial(_leave, host, hosted, number))
    server = make_server(host, lambda context: hosted)
    try:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
    except* (BrokenPipeError, ConnectionError):
        pass  # the client has gone in the middle of an answer
    finally:
        host.end_now(hosted, "client")


def _leave(host: Host, hosted: Hosted, number: int) -> None:
    host.end_now(hosted, "server")
    if host.log is not None:
        host.log.close()
    os._exit(128 + number)
