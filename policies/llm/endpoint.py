"""Asking a model that speaks the OpenAI protocol, and what to do when the provider is in trouble.

A request is a path and a body as plain JSON, an answer is plain JSON: the same for a hosted model,
a server on this machine and the local model inside this process.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from exactlyonce_env.errors import UserError, check_range
from policies.llm.address import checked_address

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

__all__ = [
    "CHAT",
    "RESPONSES",
    "Endpoint",
    "OpenAIEndpoint",
    "Patience",
    "ProviderError",
    "patiently",
]

CHAT = "/chat/completions"
RESPONSES = "/responses"

KEY_VARIABLE = "OPENAI_API_KEY"
URL_VARIABLE = "OPENAI_BASE_URL"

AGAIN = frozenset({408, 409, 425, 429})
"""Statuses below 500 after which the same request may succeed."""

FATAL = frozenset({401, 402, 403, 404, 407})
"""Statuses that every request of a run would meet."""

SECRET_LENGTH = 12
"""Keys shorter than this are placeholders of servers without keys."""

SHOWN = 300
"""Characters of a provider's message that are kept."""

DEFAULT_URL = "https://api.openai.com/v1"

MAX_ANSWER_BYTES = 16 << 20
"""Longest body of an answer [bytes]."""

MAX_RETRIES = 1000


class ProviderError(Exception):
    """No answer came: trouble of the provider or of the way there, never of the model's choice.

    Parameters
    ----------
    kind
        ``timeout``, ``connection``, ``too_long``, ``malformed``, or ``http_429`` and the like.
    message
        What the provider said.
    retry
        Whether the same request may succeed later.
    retry_after_s
        How long the provider asked to wait [s].
    fatal
        Whether every other request would meet the same: a wrong key, an unknown model.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        retry: bool,
        retry_after_s: float = 0.0,
        fatal: bool = False,
    ) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message, self.retry = kind, message, retry
        self.retry_after_s, self.fatal = retry_after_s, fatal


class AnswerTooLongError(Exception):
    """An answer that goes on beyond `MAX_ANSWER_BYTES`."""


class Endpoint(Protocol):
    """Whatever answers requests of the OpenAI protocol."""

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request.

        Raises
        ------
        ProviderError
            Where none comes.
        """
        ...


class OpenAIEndpoint:
    """An endpoint reached by the ``openai`` SDK, with its own retries switched off.

    Parameters
    ----------
    base_url
        Such as ``http://127.0.0.1:8000/v1``; None: ``OPENAI_BASE_URL``, else OpenAI's own.
    timeout_s
        How long an answer may take, from the first byte sent to the last one read [s].
    sockets
        Requests in flight at the same time, at most.

    The key is read from ``OPENAI_API_KEY``, which a server of one's own need not have.

    Raises
    ------
    UserError
        Where the SDK is absent, no key is set for a hosted model, or the address is none.
    """

    def __init__(
        self, base_url: str | None = None, *, timeout_s: float = 120.0, sockets: int = 64
    ) -> None:
        self.url = base_url or os.environ.get(URL_VARIABLE) or None
        if self.url is not None:
            named = base_url and base_url != os.environ.get(URL_VARIABLE)
            checked_address(self.url, "--base-url" if named else URL_VARIABLE)
        # Files and secrets end in a newline; what is left must be sendable as a header.
        self._key = os.environ.get(KEY_VARIABLE, "").strip()
        if not (self._key.isascii() and (self._key.isprintable() or not self._key)):
            raise UserError(f"{KEY_VARIABLE} holds a character that no key has")
        if self.url is None and not self._key:
            raise UserError(
                f"{KEY_VARIABLE} is not set; set it, or name your own endpoint with --base-url"
            )
        self._timeout_s, self._sockets = timeout_s, sockets
        self._client: AsyncOpenAI | None = None
        self._gate: asyncio.Semaphore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        _sdk()

    @property
    def address(self) -> str:
        """Where requests go."""
        return (self.url or DEFAULT_URL).rstrip("/")

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be written anywhere."""
        # A word such as "none" for a server of one's own is no secret.
        return (self._key,) if len(self._key) >= SECRET_LENGTH else ()

    def _connect(self) -> tuple[AsyncOpenAI, asyncio.Semaphore]:
        """The client of the running loop."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._gate is None or self._loop is not loop:
            from policies.llm.bounded import BoundedClient

            self._client = _sdk().AsyncOpenAI(
                api_key=self._key or "none",
                base_url=self.url,
                timeout=self._timeout_s,
                max_retries=0,
                http_client=BoundedClient(MAX_ANSWER_BYTES, timeout=self._timeout_s),
            )
            self._gate, self._loop = asyncio.Semaphore(self._sockets), loop
        return self._client, self._gate

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request.

        Raises
        ------
        ProviderError
            Where none comes.
        """
        client, gate = self._connect()
        openai = _sdk()
        try:
            # The SDK's own timeout is one of each read: an answer that trickles in escapes it.
            async with gate, asyncio.timeout(self._timeout_s):
                answer = _read(await client.post(path, cast_to=object, body=body))
        except (TimeoutError, openai.APITimeoutError):
            told = f"no whole answer in {self._timeout_s:g} s"
            raise ProviderError("timeout", told, True) from None
        except openai.APIStatusError as error:
            raise self._of_status(error) from None
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            raise ProviderError(
                "connection", self._clean(str(cause) or repr(cause)), True
            ) from None
        except AnswerTooLongError as error:
            raise ProviderError("too_long", str(error), True) from None
        except (ValueError, RecursionError) as error:  # the body is no JSON
            raise ProviderError("malformed", self._clean(str(error)), True) from None
        except openai.OpenAIError as error:
            raise ProviderError("malformed", self._clean(str(error)), True) from None
        if not isinstance(answer, dict):
            raise ProviderError("malformed", "the answer is no JSON object", True)
        part = answer.get("output" if path == RESPONSES else "choices")
        if not (isinstance(part, list) and part):
            # Some providers tell of their trouble with status 200.
            told = self._clean(str(answer.get("error") or "the answer holds no choice"))
            raise ProviderError("malformed", told, True)
        return cast("dict[str, Any]", _sendable(answer))

    async def close(self) -> None:
        """Close the sockets of the running loop."""
        if self._client is not None and self._loop is asyncio.get_running_loop():
            await self._client.close()
            self._client = None

    def _of_status(self, error: APIStatusError) -> ProviderError:
        status = int(error.status_code)
        return ProviderError(
            f"http_{status}",
            self._clean(str(error)),
            status in AGAIN or status >= 500,
            retry_after_s(error.response.headers),
            status in FATAL,
        )

    def _clean(self, text: str) -> str:
        """A message without the key, which some providers repeat."""
        for secret in self.secrets:
            text = text.replace(secret, "[key]")
        return text[:SHOWN]


def _read(answer: object) -> object:
    """An answer as JSON; the SDK leaves it as text where the server calls it something else."""
    return json.loads(answer) if isinstance(answer, str) else answer


def _sendable(answer: object) -> object:
    """An answer without lone surrogates, which no request could repeat."""
    text = json.dumps(answer, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.loads(text.encode("utf-8", "replace"))
    return answer


def retry_after_s(headers: Mapping[str, str]) -> float:
    """What a Retry-After header asks to wait [s]; 0 where there is none that can be read."""
    text = headers.get("retry-after", "")
    try:
        return max(float(text), 0.0)
    except ValueError:
        pass
    try:
        return max(email.utils.parsedate_to_datetime(text).timestamp() - time.time(), 0.0)
    except (ValueError, TypeError, OverflowError):
        return 0.0


@dataclass(frozen=True)
class Patience:
    """How long a provider's trouble is borne.

    Attributes
    ----------
    retries
        Further tries of one request.
    first_s, longest_s
        Pause before the first of them, doubled each time, and its limit [s]. A Retry-After is
        obeyed up to ``obeyed_s``.

    Raises
    ------
    UserError
        For more than 1000 retries.
    """

    retries: int = 6
    first_s: float = 0.5
    longest_s: float = 30.0
    obeyed_s: float = 120.0

    def __post_init__(self) -> None:
        check_range("--retries", self.retries, 0, MAX_RETRIES)

    def pause_s(self, tries: int, asked_s: float) -> float:
        """Pause after so many failed tries [s], spread by up to a quarter to part the crowd."""
        own_s = min(self.first_s * 2.0 ** (tries - 1), self.longest_s)
        spread = 1.0 + 0.25 * random.random()
        return max(own_s * spread, min(asked_s, self.obeyed_s))


async def patiently(
    endpoint: Endpoint,
    path: str,
    body: dict[str, Any],
    patience: Patience,
    noted: Callable[[ProviderError], None] | None = None,
) -> dict[str, Any]:
    """Ask until an answer comes, or trouble that will not pass.

    ``noted`` is called with every failure.

    Raises
    ------
    ProviderError
        The last failure.
    """
    tries = 0
    while True:
        try:
            return await endpoint.post(path, body)
        except ProviderError as error:
            if noted is not None:
                noted(error)
            tries += 1
            if not error.retry or tries > patience.retries:
                raise
            await asyncio.sleep(patience.pause_s(tries, error.retry_after_s))


def _sdk() -> Any:
    """The ``openai`` module.

    Raises
    ------
    UserError
        Where it is not installed.
    """
    try:
        import openai
    except ImportError:
        raise UserError(
            "language models need the extra llm: pip install 'exactlyonce-env[llm]'"
        ) from None
    return openai
