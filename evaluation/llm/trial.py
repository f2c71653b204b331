"""Finding out once a folder whether an endpoint keeps to JSON schemas."""

from __future__ import annotations

from typing import Any

from evaluation.llm.calling import Calls, NoAnswerError
from exactlyonce_env.errors import UserError
from policies.llm.endpoint import CHAT
from policies.llm.policy import LLMPolicy

__all__ = ["trial_place", "way_of"]

TRIAL = "probe"
"""First part of the places of trials."""


def trial_place(model: str, address: str = "") -> str:
    """Where the call is kept that tries out how an endpoint of a model answers.

    Without an address: what the places of all its endpoints begin with.
    """
    return f"{TRIAL}/{model}" + (f"/{address}" if address else "")


async def way_of(policy: LLMPolicy, calls: Calls) -> str:
    """How the endpoint is asked, as `policies.llm.policy.LLMPolicy.way_of_answering` says.

    Raises
    ------
    UserError
        Where the endpoint does not answer.
    """
    address = getattr(calls.endpoint, "address", "")
    name = f"answers of {policy.model} at {address}"
    tried = policy.settings.answers == "auto" and policy.variant.scoring == "sampled"
    known = calls.store.fact(name) if tried else None
    if known is not None:
        return known

    async def ask(body: dict[str, Any]) -> dict[str, Any]:
        return await calls.ask(trial_place(policy.model, address), 0, CHAT, body)

    try:
        how = await policy.way_of_answering(calls.endpoint, ask)
    except NoAnswerError as error:
        if not error.final:
            raise UserError(f"the endpoint gives no answer: {error}") from None
        how = "text"
    if tried:
        calls.store.set_fact(name, how)
    return how
