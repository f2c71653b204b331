"""The one way by which runs ask models: from the store, or patiently from the provider.

Budgets are kept before a request is sent: what is in flight counts with the most it can cost.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from evaluation.llm.store import Store
from exactlyonce_env.errors import UserError, check_range
from policies.llm.asking import tokens_of
from policies.llm.endpoint import Endpoint, Patience, ProviderError, patiently

__all__ = ["BudgetError", "Calls", "HaltedError", "Limits", "NoAnswerError", "Prices"]

CHARACTERS_PER_TOKEN = 3.0
"""A cautious guess, by which a request is counted until its usage is known."""

MAX_PRICE = 1e6
"""Dearest million of tokens [US dollars]."""

MAX_USD = 1e9
MAX_RUN_TOKENS = 10**15


class BudgetError(Exception):
    """The run's budget allows no further request; the message names the budget."""


class HaltedError(Exception):
    """The run was interrupted: no further request goes out."""


class NoAnswerError(Exception):
    """A request that will get no answer: the episode is missing, and the message says why.

    ``final`` where the same request would fail again, so that a run that goes on leaves it.
    """

    def __init__(self, message: str, final: bool) -> None:
        super().__init__(message)
        self.final = final


@dataclass(frozen=True)
class Prices:
    """What a million tokens cost [US dollars]."""

    read: float = 0.0
    written: float = 0.0

    def __post_init__(self) -> None:
        for price in (self.read, self.written):
            check_range("--price", price, 0.0, MAX_PRICE)

    def usd(self, tokens: tuple[float, float]) -> float:
        """What a call costs [US dollars]."""
        return (tokens[0] * self.read + tokens[1] * self.written) / 1e6


@dataclass(frozen=True)
class Limits:
    """What a run may spend, earlier commands in the same folder included; None: any amount."""

    usd: float | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        if self.usd is not None:
            check_range("--max-usd", self.usd, 0.0, MAX_USD)
        if self.tokens is not None:
            check_range("--max-tokens", self.tokens, 0, MAX_RUN_TOKENS)


class Calls:
    """Asks a model for the episodes of a run.

    Parameters
    ----------
    endpoint
        Who answers.
    store
        Where every call is kept.
    patience
        How long trouble is borne.
    prices, limits
        What tokens cost, and what may be spent.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        store: Store,
        *,
        patience: Patience | None = None,
        prices: Prices | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.endpoint, self.store = endpoint, store
        address = getattr(endpoint, "address", None)
        if address is not None:
            store.came_from(address)
        self.patience = patience or Patience()
        self.prices, self.limits = prices or Prices(), limits or Limits()
        spent = store.spent()
        self._tokens: float = spent.tokens_in + spent.tokens_out
        self._usd = spent.usd
        self._reserved_tokens, self._reserved_usd = 0.0, 0.0
        self._in_flight = 0
        self._freed = asyncio.Event()
        self._halted = False
        self.stopped = ""
        """Name of the budget that is used up."""
        self.asked = 0
        """Requests that were answered by the provider, not by the store."""
        self.trouble: Counter[str] = Counter()
        """Failures of the provider by kind."""

    async def ask(self, place: str, step: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request of an episode.

        Raises
        ------
        NoAnswerError
            Where none will come.
        BudgetError
            Where the budget allows no further request.
        HaltedError
            Once the run is to end.
        UserError
            Where every request of the run would fail: a wrong key, an unknown model.
        """
        known = self.store.find(place, step, path, body)
        if known is not None:
            return known.response
        if self._halted:
            raise HaltedError
        tokens = self._guess(body)
        await self._reserve(tokens)
        began_s = time.monotonic()
        try:
            response = await patiently(
                self.endpoint, path, body, self.patience, lambda e: self._note(place, step, e)
            )
            used = tokens_of(response)
            usd = self.prices.usd(used)
            self.store.add(place, step, path, body, response, used, usd, time.monotonic() - began_s)
            self.asked += 1
            # A provider that tells no usage is counted with the most that was reserved.
            self._tokens += sum(used) if any(used) else tokens[0] + tokens[1]
            self._usd += usd if any(used) else self.prices.usd(tokens)
        except ProviderError as error:
            if error.fatal:
                raise UserError(f"the endpoint refuses: {error}") from None
            raise NoAnswerError(str(error), final=not error.retry) from None
        finally:
            self._release(tokens)
        return response

    def _note(self, place: str, step: int, error: ProviderError) -> None:
        self.trouble[error.kind] += 1
        self.store.note(place, step, error.kind, error.message)
        if self._halted:  # do not try again
            raise HaltedError

    def halt(self) -> None:
        """Let no further request out; answers in flight are still kept."""
        self._halted = True
        self._freed.set()

    def _guess(self, body: dict[str, Any]) -> tuple[float, float]:
        """The most that a request may use, read and written."""
        if self.limits.usd is None and self.limits.tokens is None:
            return 0.0, 0.0
        read = len(json.dumps(body)) / CHARACTERS_PER_TOKEN
        for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
            if name in body:
                return read, float(body[name])
        return read, 0.0

    async def _reserve(self, tokens: tuple[float, float]) -> None:
        while True:
            name = self._exceeded(tokens)
            if not name:
                break
            if self.stopped or not self._in_flight:
                self.stopped = self.stopped or name
                self._freed.set()
                raise BudgetError(self.stopped)
            self._freed.clear()
            await self._freed.wait()
            if self._halted:
                raise HaltedError
        if self.stopped:
            raise BudgetError(self.stopped)
        self._in_flight += 1
        self._reserved_tokens += sum(tokens)
        self._reserved_usd += self.prices.usd(tokens)

    def _exceeded(self, tokens: tuple[float, float]) -> str:
        """Name of the budget that a further request might exceed."""
        most_usd, most_tokens = self.limits.usd, self.limits.tokens
        usd = self._usd + self._reserved_usd + self.prices.usd(tokens)
        if most_usd is not None and usd > most_usd:
            return "max_usd"
        used = self._tokens + self._reserved_tokens + sum(tokens)
        return "max_tokens" if most_tokens is not None and used > most_tokens else ""

    def _release(self, tokens: tuple[float, float]) -> None:
        self._in_flight -= 1
        self._reserved_tokens -= sum(tokens)
        self._reserved_usd -= self.prices.usd(tokens)
        self._freed.set()
