"""Any endpoint as a server of the OpenAI protocol on this machine.

    POST /v1/chat/completions, /v1/responses    as far as the endpoint answers them
    GET  /v1/models                             the one model

Streams are not offered.  Needs the packages ``starlette`` and ``uvicorn``.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from exactlyonce_env.errors import UserError
from exactlyonce_env.sandbox.serving import bind, url_of
from policies.llm.endpoint import CHAT, RESPONSES, Endpoint, ProviderError

if TYPE_CHECKING:
    import socket

    import uvicorn
    from starlette.applications import Starlette

__all__ = ["make_app", "serve_model", "serving_model"]

INSTALL = "pip install 'exactlyonce-env[local-llm]'"
PREFIX = "/v1"
PORT = 8765
MAX_BODY = 16 << 20
"""Longest request in bytes."""

GRACE_S = 5
"""How long a stop waits for answers under way [s]."""

STATUS = {"timeout": 504, "connection": 502, "malformed": 502, "bad_request": 400}
"""HTTP statuses of a provider's trouble, where its kind does not name one."""


def status_of(error: ProviderError) -> int:
    """The HTTP status that tells of a provider's trouble."""
    number = error.kind.removeprefix("http_")
    if number != error.kind and number.isdecimal() and 400 <= int(number) <= 599:
        return int(number)
    return STATUS.get(error.kind, 503 if error.retry else 500)


def make_app(endpoint: Endpoint, name: str = "local") -> Starlette:
    """The ASGI application.

    Parameters
    ----------
    endpoint
        Who answers.
    name
        What the model is called at ``/v1/models``; requests may call it anything.

    Raises
    ------
    UserError
        Where starlette is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.requests import Request
        from starlette.responses import JSONResponse
        from starlette.routing import Route
    except ModuleNotFoundError:
        raise UserError(f"serving a model needs starlette: {INSTALL}") from None

    def refusal(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
        kind = "invalid_request_error" if status < 500 else "server_error"
        error = {"message": message, "type": kind, "param": None, "code": None}
        return JSONResponse({"error": error}, status, headers)

    async def answer(request: Request) -> JSONResponse:
        data = bytearray()
        async for part in request.stream():
            data += part
            if len(data) > MAX_BODY:
                return refusal(413, f"the body is longer than {MAX_BODY} bytes")
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            return refusal(400, "the body is no JSON")
        if not isinstance(body, dict):
            return refusal(400, "the body is no JSON object")
        try:
            return JSONResponse(await endpoint.post(request.url.path.removeprefix(PREFIX), body))
        except ProviderError as error:
            wait_s = error.retry_after_s
            headers = {"Retry-After": f"{wait_s:g}"} if wait_s else None
            return refusal(status_of(error), error.message, headers)

    async def models(_: Request) -> JSONResponse:
        model = {"id": name, "object": "model", "created": 0, "owned_by": "exactlyonce-env"}
        return JSONResponse({"object": "list", "data": [model]})

    async def unknown(request: Request, _: Exception) -> JSONResponse:
        return refusal(404, f"there is nothing at {request.url.path}")

    async def unfit(request: Request, _: Exception) -> JSONResponse:
        return refusal(405, f"{request.url.path} takes no {request.method}")

    async def broken(_: Request, error: Exception) -> JSONResponse:
        return refusal(500, f"{type(error).__name__}: {error}")

    return Starlette(
        routes=[
            *(Route(PREFIX + path, answer, methods=["POST"]) for path in (CHAT, RESPONSES)),
            Route(f"{PREFIX}/models", models, methods=["GET"]),
        ],
        exception_handlers={404: unknown, 405: unfit, 500: broken},
    )


def serve_model(
    endpoint: Endpoint, host: str = "127.0.0.1", port: int = PORT, name: str = "local"
) -> None:
    """Serve an endpoint until SIGTERM or SIGINT.

    Parameters
    ----------
    endpoint, name
        As in `make_app`.
    host, port
        Where; port 0: a free one.

    Raises
    ------
    UserError
        Where the address cannot be had, or a package is not installed.
    """
    listener, server = prepare(endpoint, host, port, name)
    asyncio.run(server.serve(sockets=[listener]))


@contextmanager
def serving_model(
    endpoint: Endpoint, host: str = "127.0.0.1", port: int = 0, name: str = "local"
) -> Iterator[str]:
    """Serve an endpoint from a thread while the block runs; gives its base URL.

    Parameters and exceptions as for `serve_model`.
    """
    listener, server = prepare(endpoint, host, port, name)
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True
    )
    thread.start()
    try:
        # The socket listens already: a request that comes before the server runs waits.
        yield url_of(listener) + PREFIX
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def prepare(
    endpoint: Endpoint, host: str, port: int, name: str
) -> tuple[socket.socket, uvicorn.Server]:
    """A listening socket and the server for it, for callers that announce the address first.

    Raises
    ------
    UserError
        As `serve_model`.
    """
    app = make_app(endpoint, name)
    try:
        import uvicorn
    except ModuleNotFoundError:
        raise UserError(f"serving a model needs uvicorn: {INSTALL}") from None
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=GRACE_S,
    )
    return bind(host, port), uvicorn.Server(config)
