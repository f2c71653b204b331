"""An HTTP client that reads no more of an answer than a limit, errors' bodies included."""

from __future__ import annotations

from typing import Any

from openai import DefaultAsyncHttpxClient

from policies.llm.endpoint import AnswerTooLongError

__all__ = ["BoundedClient"]

ENCODED = ("content-encoding", "content-length", "transfer-encoding")
"""Headers that say how the body travelled; they hold no longer once it has been read."""


class BoundedClient(DefaultAsyncHttpxClient):
    """The SDK's own client but for the limit.

    Parameters
    ----------
    limit_bytes
        Longest body, unpacked [bytes].
    options
        As for the SDK's client.
    """

    def __init__(self, limit_bytes: int, **options: Any) -> None:
        super().__init__(**options)
        self._limit_bytes = limit_bytes

    async def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
        """The whole answer; a stream is left to whoever reads it.

        Raises
        ------
        AnswerTooLongError
            Where it goes on beyond the limit.
        """
        response = await super().send(request, stream=True, **options)
        if stream:
            return response
        body = bytearray()
        try:
            async for part in response.aiter_bytes():
                body += part
                if len(body) > self._limit_bytes:
                    raise AnswerTooLongError(
                        f"the answer is longer than {self._limit_bytes:,} bytes"
                    )
        finally:
            await response.aclose()
        headers = [(k, v) for k, v in response.headers.multi_items() if k.lower() not in ENCODED]
        # The SDK may be built on either of two libraries of the same interface.
        return type(response)(
            response.status_code,
            headers=headers,
            content=bytes(body),
            request=response.request,
            extensions=response.extensions,
            history=response.history,
        )
