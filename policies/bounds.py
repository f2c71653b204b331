"""Bounds as members of the line-up: they earn rewards but decide nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from policies.base import Bound
from policies.clairvoyant import best_episodes

if TYPE_CHECKING:
    from exactlyonce_env.plan import Plan


class Clairvoyant(Bound):
    """`clairvoyant`: the best action sequence of each world, found by search."""

    @property
    def spec(self) -> str:
        """``clairvoyant``."""
        return "clairvoyant"

    def best_episodes(
        self, plan: Plan, seed: int, ids: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[Any]]:
        """Best reward (n,) float64 and its `OUTCOME` record (n,) in each of the worlds ``ids``."""
        return best_episodes(plan, seed, ids)


def clairvoyant(name: str, argument: None) -> Clairvoyant:
    """The registry's factory."""
    return Clairvoyant()
