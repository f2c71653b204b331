"""Running an ASGI application on a socket until it is told to stop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import FrameType
from typing import TYPE_CHECKING, Any

from exactlyonce_env.errors import UserError
from exactlyonce_env.sandbox.hosting import Host

if TYPE_CHECKING:
    import uvicorn

__all__ = ["INSTALL", "bind", "make_server", "serve", "url_of"]

INSTALL = "pip install 'exactlyonce-env[mcp]'"

GRACE_S = 5
"""How long a stop waits for answers under way [s]."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises
    ------
    UserError
        Where the address is unknown or taken.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # Only where the protocol is named does asyncio send small answers without delay.
        listener = socket.socket(family, kind, socket.IPPROTO_TCP)
    except (OSError, OverflowError) as error:
        raise UserError(f"cannot listen on {host}:{port}: {_reason(error)}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(512)
    except OSError as error:
        listener.close()
        raise UserError(f"cannot listen on {host}:{port}: {_reason(error)}") from None
    return listener


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def url_of(listener: socket.socket) -> str:
    """How a client on this machine reaches the socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(app: Any, host: Host) -> uvicorn.Server:
    """A server that ends the host's episodes before it goes.

    Raises
    ------
    UserError
        Where uvicorn is not installed.
    """
    try:
        import uvicorn
    except ModuleNotFoundError:
        raise UserError(f"serving needs uvicorn: {INSTALL}") from None

    class Server(uvicorn.Server):
        """Ends the episodes before the process goes."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            """Wake up what waits for its time."""
            host.stop()
            super().handle_exit(sig, frame)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """Write what is unfinished once no answer is under way."""
            await super().shutdown(sockets)
            await host.close()

    config = uvicorn.Config(
        app,
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,
        ws="none",
        timeout_graceful_shutdown=GRACE_S,
    )
    return Server(config)


async def serve(
    server: uvicorn.Server,
    host: Host,
    listener: socket.socket,
    around: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then write the unfinished episodes.

    Parameters
    ----------
    server
        From `make_server`.
    host
        Holds the episodes.
    listener
        From `bind`.
    around
        Makes what must be open while they are served.
    """
    async with AsyncExitStack() as stack:
        if around is not None:
            await stack.enter_async_context(around())
        watch = asyncio.create_task(host.watch())
        stack.callback(watch.cancel)
        await server.serve(sockets=[listener])
