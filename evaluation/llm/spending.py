"""What the calls of a model were for: every one that was paid, those outside all rows too."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from evaluation.llm.store import Store

__all__ = ["USES", "spending"]

USES = ("episodes", "twins", "unfinished", "trials")
"""Finished episodes; their twins without a fault; episodes that have not come to an end; trials of
whether the endpoint keeps to JSON schemas."""

FIELDS = ("n_calls", "tokens_in", "tokens_out", "usd", "provider_errors")


def spending(
    store: Store, spec: str, trial: str = "", twins: Collection[str] = ()
) -> dict[str, dict[str, Any]]:
    """Calls, tokens, dollars and provider's errors of a model, by use, and of ``all``.

    Parameters
    ----------
    store
        Where the calls are.
    spec
        Whose; places begin with it.
    trial
        What the places of trials begin with; empty: there are none.
    twins
        Places of the twins.
    """
    found: dict[str, dict[str, Any]] = {use: dict.fromkeys(FIELDS, 0) for use in (*USES, "all")}
    for place, spent, finished in store.spent_by_place():
        if trial and (place == trial or place.startswith(f"{trial}/")):
            use = "trials"
        elif not place.startswith(f"{spec}/"):
            continue
        elif not finished:
            use = "unfinished"
        else:
            use = "twins" if place in twins else "episodes"
        values = (spent.n_calls, spent.tokens_in, spent.tokens_out, spent.usd, spent.trouble)
        for name, value in zip(FIELDS, values, strict=True):
            found[use][name] += value
            found["all"][name] += value
    return found
