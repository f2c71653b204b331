"""The running average of a model's weights: what is evaluated and shipped.

A policy that takes the best action is more fickle than its weights: where two actions are worth
almost the same, one update decides which wins.  The average forgets such updates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from stable_baselines3.common.base_class import BaseAlgorithm

__all__ = ["Average"]

WARM_UP = 10


class Average:
    """An exponential average over rollouts; with ``decay`` 0 it is always the last weights.

    The first rollouts count less than ``decay`` says, by min(decay, (1 + k) / (10 + k)) after k of
    them, so that the initial weights are soon forgotten.
    """

    def __init__(self, model: BaseAlgorithm, decay: float) -> None:
        self._decay = decay
        self.count = 0
        self.weights: dict[str, torch.Tensor] = _copied(model)

    def update(self, model: BaseAlgorithm) -> None:
        """Take in the weights as they are after one more rollout."""
        keep = min(self._decay, (1 + self.count) / (WARM_UP + self.count))
        self.count += 1
        for name, value in model.policy.state_dict().items():
            if keep > 0.0 and value.is_floating_point():
                self.weights[name].lerp_(value, 1.0 - keep)
            else:
                self.weights[name].copy_(value)

    @contextmanager
    def applied(self, model: BaseAlgorithm) -> Iterator[None]:
        """Let the model have the average for a while."""
        own = _copied(model)
        model.policy.load_state_dict(self.weights)
        try:
            yield
        finally:
            model.policy.load_state_dict(own)

    def state(self) -> dict[str, Any]:
        """What `restore` takes."""
        return {"count": self.count, "weights": self.weights}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        self.count = int(state["count"])
        self.weights = {name: value.clone() for name, value in state["weights"].items()}


def _copied(model: BaseAlgorithm) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.policy.state_dict().items()}
