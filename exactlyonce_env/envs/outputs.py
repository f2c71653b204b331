"""The buffers of one step of a vector environment, and the infos made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from exactlyonce_env.actions import N_ACTIONS
from exactlyonce_env.observation import N_FEATURES
from exactlyonce_env.records import N_TERMS
from exactlyonce_env.vocabulary import TERM_NAMES

_MASKED_TERMS = tuple((name, f"_{name}") for name in TERM_NAMES)


class Outputs:
    """Arrays for ``n`` worlds, each (n, ...): 339 bytes a world, 72 more with itemised rewards."""

    __slots__ = (
        "costs",
        "everyone",
        "exact",
        "masks",
        "observations",
        "rewards",
        "terminations",
        "terms",
        "truncations",
    )

    def __init__(self, n: int, itemised: bool) -> None:
        self.observations: npt.NDArray[np.float32] = np.empty((n, N_FEATURES), np.float32)
        self.masks: npt.NDArray[np.int8] = np.empty((n, N_ACTIONS), np.int8)
        self.rewards: npt.NDArray[np.float64] = np.empty(n)
        self.terminations: npt.NDArray[np.bool_] = np.empty(n, np.bool_)
        self.truncations: npt.NDArray[np.bool_] = np.zeros(n, np.bool_)
        self.costs: npt.NDArray[np.float64] = np.empty(n)
        self.exact: npt.NDArray[np.bool_] = np.empty(n, np.bool_)
        self.terms: npt.NDArray[np.float64] = np.empty((n if itemised else 0, N_TERMS))
        self.everyone: npt.NDArray[np.bool_] = np.ones(n, np.bool_)

    def clear(self, rows: Any) -> None:
        """What a reset tells of the worlds in ``rows``: nothing was earned, paid or reached."""
        self.costs[rows] = 0.0
        self.exact[rows] = False
        if len(self.terms):
            self.terms[rows] = 0.0

    def infos(self) -> dict[str, Any]:
        """The infos of a call that told something of every world.

        All masks are one array, and so are ``cost`` and the part of it that is duplicates.
        """
        return _infos(self.masks, self.costs, self.exact, self.terms, self.everyone)

    def infos_of(self, chosen: npt.NDArray[np.bool_]) -> dict[str, Any]:
        """The infos of a call that told of the worlds ``chosen`` (n,) bool alone, else zeros."""
        return _infos(
            _only(self.masks, chosen),
            _only(self.costs, chosen),
            _only(self.exact, chosen),
            _only(self.terms, chosen) if len(self.terms) else self.terms,
            chosen.copy(),
        )


def _only(array: npt.NDArray[Any], chosen: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    kept = np.zeros_like(array)
    kept[chosen] = array[chosen]
    return kept


def _infos(
    masks: npt.NDArray[Any],
    costs: npt.NDArray[Any],
    exact: npt.NDArray[Any],
    terms: npt.NDArray[Any],
    told: npt.NDArray[np.bool_],
) -> dict[str, Any]:
    infos: dict[str, Any] = {
        "action_mask": masks,
        "_action_mask": told,
        "cost": costs,
        "_cost": told,
        "cost_duplicates": costs,
        "_cost_duplicates": told,
        "is_success": exact,
        "_is_success": told,
    }
    if len(terms):
        parts: dict[str, npt.NDArray[Any]] = {}
        for (name, mask), column in zip(_MASKED_TERMS, terms.T, strict=True):
            parts[name] = column
            parts[mask] = told
        infos["reward_terms"] = parts
        infos["_reward_terms"] = told
    return infos
