"""A language model as a policy: the text of a view in, an action out."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from exactlyonce_env.errors import UserError
from exactlyonce_env.vocabulary import Action
from policies.base import ActionBatch, Policy, ViewBatch
from policies.llm.answers import Answer, InvalidAnswerError
from policies.llm.asking import Question, Settings, enforces_schema, probe_body
from policies.llm.endpoint import (
    CHAT,
    Endpoint,
    OpenAIEndpoint,
    Patience,
    ProviderError,
    patiently,
)
from policies.llm.prompts import DEFAULT, NUDGES, Variant, split_spec

__all__ = ["LOCAL", "LLMPolicy", "checked_model", "llm"]

LOCAL = "local"
"""The model that runs inside this process."""

LOCAL_DEFAULT = Variant(scoring="likelihood")
"""The local model is small: it is asked for the likeliest action."""


def default_variant(model: str) -> Variant:
    """How a model is asked unless told otherwise."""
    return LOCAL_DEFAULT if model == LOCAL else DEFAULT


class LLMPolicy(Policy):
    """Asks a model for every decision.

    A run of `evaluate` asks it through a store, so that nothing is asked twice; `act` asks at once
    and keeps nothing.

    Parameters
    ----------
    model
        The endpoint's name of it, or ``local``.
    variant
        The prompt's factors.
    settings
        How it is asked.
    endpoint
        Who answers; None: by ``model`` and ``settings``.
    """

    def __init__(
        self,
        model: str,
        variant: Variant | None = None,
        settings: Settings | None = None,
        endpoint: Endpoint | None = None,
    ) -> None:
        self.model, self.settings = model, settings or Settings()
        self._default = default_variant(model)
        self.variant = self._default if variant is None else variant
        self._endpoint = endpoint
        self._answers: str | None = None
        self.invalid = 0
        """Invalid answers that `act` has met."""

    @property
    def spec(self) -> str:
        """Canonical name: ``llm:MODEL`` and the words of the variant that depart from its own."""
        words = list(self.variant.words)
        if self.model == LOCAL:
            scored = self.variant.scoring
            words = [word for word in words if word != "likelihood"]
            words += [] if scored == self._default.scoring else [scored]
        return "+".join([f"llm:{self.model}", *words])

    def changed(self, settings: Settings | None = None, **factors: Any) -> LLMPolicy:
        """The same model asked otherwise."""
        return LLMPolicy(
            self.model,
            replace(self.variant, **factors),
            settings or self.settings,
            self._endpoint,
        )

    def through(self, endpoint: Endpoint, answers: str) -> LLMPolicy:
        """The same model by way of ``endpoint``, where it is known how it is asked."""
        other = LLMPolicy(self.model, self.variant, self.settings, endpoint)
        other._answers = answers
        return other

    def connect(self) -> Endpoint:
        """Who answers.

        Raises
        ------
        UserError
            Where a part that it needs is not installed, or no key is set.
        """
        if self._endpoint is None:
            if self.model == LOCAL:
                # Loaded by name: it needs the extra local-llm.
                self._endpoint = import_module("policies.llm.local").local_endpoint()
            else:
                self._endpoint = OpenAIEndpoint(
                    self.settings.base_url,
                    timeout_s=self.settings.timeout_s,
                    sockets=self.settings.sockets,
                )
        return self._endpoint

    def act(self, batch: ViewBatch) -> ActionBatch:
        """Ask about each view; a third invalid answer about one counts as ``finish_uncertain``.

        Raises
        ------
        UserError
            Where the provider gives no answer.
        """
        contracts = batch.own_contracts
        found = ActionBatch.empty(len(batch))
        answers = asyncio.run(self._ask_all(batch.views, contracts))
        for k, (action, seconds) in enumerate(answers):
            found.kinds[k], found.seconds[k] = action, seconds
        return found

    async def _ask_all(self, views: Any, contracts: Any) -> list[tuple[int, float]]:
        endpoint = self.connect()
        try:
            how = await self.way_of_answering(endpoint)
            asked = (self._ask(endpoint, how, v, c) for v, c in zip(views, contracts, strict=True))
            return list(await asyncio.gather(*asked))
        except ProviderError as error:
            raise UserError(f"model {self.model!r} gives no answer: {error}") from None
        finally:
            if isinstance(endpoint, OpenAIEndpoint):
                await endpoint.close()

    async def _ask(
        self, endpoint: Endpoint, how: str, seen: np.record, contract: np.record
    ) -> tuple[int, float]:
        complaints: list[tuple[str, str]] = []
        while len(complaints) <= NUDGES:
            question = Question(seen, contract, self.variant, how, tuple(complaints))
            body = question.body(self.model, self.settings)
            response = await patiently(endpoint, CHAT, body, Patience())
            try:
                answer: Answer = question.read(response)
            except InvalidAnswerError as wrong:
                self.invalid += 1
                complaints.append((question.text(response), str(wrong)))
                continue
            return int(answer.action), answer.seconds
        return int(Action.FINISH_UNCERTAIN), 0.0

    async def way_of_answering(self, endpoint: Endpoint, ask: Any = None) -> str:
        """How this endpoint is asked: `Question.answers`.

        With ``auto`` one request tries whether JSON schemas are really enforced.  ``ask`` sends a
        body in place of the endpoint.

        Raises
        ------
        ProviderError
            Where no answer to the trial comes.
        """
        if self.variant.scoring == "likelihood":
            return "options" if self.model == LOCAL else "letters"
        if self._answers is None and self.settings.answers != "auto":
            return self.settings.answers
        if self._answers is None:
            body = probe_body(self.model, self.settings)
            try:
                if ask is None:
                    response = await patiently(endpoint, CHAT, body, Patience())
                else:
                    response = await ask(body)
                self._answers = "schema" if enforces_schema(response) else "text"
            except ProviderError as error:
                if error.retry or error.fatal:
                    raise
                self._answers = "text"  # the endpoint refuses the field
        return self._answers


MAX_NAME = 200
"""Characters of a model's name, at most."""


def checked_model(model: str) -> str:
    """The name of a model as it was given.

    Raises
    ------
    UserError
        For an empty name, or one that no provider has.
    """
    if not model.strip():
        raise UserError("the name of the model is empty; name one, for instance local or gpt-x")
    if len(model) > MAX_NAME or not model.isprintable():
        shown = model[:40]
        raise UserError(f"{shown!r} is no name of a model: up to {MAX_NAME} printable characters")
    return model


def llm(name: str, argument: str | None) -> LLMPolicy:
    """The policy ``llm:MODEL`` or ``llm:MODEL+aware+…``, for `policies.spec`.

    Raises
    ------
    UserError
        Without a model's name.
    """
    if argument is None or argument.startswith("+"):
        raise UserError(
            f"{name} needs the name of a model, for instance {name}:local or {name}:gpt-x"
        )
    checked_model(argument)
    model, variant = split_spec(argument, default_variant(argument.partition("+")[0]))
    return LLMPolicy(model, variant)
