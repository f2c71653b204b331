"""Features on one scale: most of the observation's entries vary little, and some not at all.

Time is log-scaled over a week, so the difference between 6,900 and 7,200 s is 0.003 of a feature: a
network that starts from raw features has to grow its weights a hundredfold before it can see it.
The scale is fixed before training and becomes part of the first layer when a checkpoint is made.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from exactlyonce_env.actions import ACTION_NAMES, KINDS
from exactlyonce_env.plan import Plan
from exactlyonce_env.vocabulary import Action
from training.vec_env import RecoveryVecEnv

__all__ = ["Standardised", "feature_scale", "fold"]

Floats: TypeAlias = npt.NDArray[np.float32]

EXPLORED_ENVS = 256
EXPLORED_STEPS = 60
MAX_SCALE = 10.0
"""A feature that hardly varies is not blown up further than this."""

_ENDS = (Action.FINISH, Action.FINISH_UNCERTAIN)


class Standardised(BaseFeaturesExtractor):
    """``(x - mean) * scale``, with both fixed and kept in the model's state."""

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, observation_space: Any, mean: Floats, scale: Floats) -> None:
        super().__init__(observation_space, features_dim=len(mean))
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("scale", torch.tensor(scale))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Features of observations, both (n, N_FEATURES)."""
        return (observations - self.mean) * self.scale


def feature_scale(plan: Plan, prior: dict[str, float], seed: int) -> tuple[Floats, Floats]:
    """Mean and inverse spread (N_FEATURES,) of the features in exploratory episodes.

    Actions are drawn by the softmax of ``prior``, but for the two that end an episode: the spread
    has to cover patient clients too.  The same arguments give the same bytes.
    """
    env = RecoveryVecEnv(plan, EXPLORED_ENVS)
    env.seed(seed)
    rng = np.random.default_rng(seed)
    weights = np.exp([prior.get(name, 0.0) for name in ACTION_NAMES])
    weights[np.isin(KINDS, _ENDS)] = 0.0
    seen: list[Any] = [env.reset()]
    for _ in range(EXPLORED_STEPS):
        bounds = np.cumsum(env.action_masks() * weights, axis=1)
        drawn = rng.random((EXPLORED_ENVS, 1)) * bounds[:, -1:]
        seen.append(env.step((bounds > drawn).argmax(axis=1))[0])
    rows = np.concatenate(seen).astype(np.float64)
    mean, spread = rows.mean(axis=0), rows.std(axis=0)
    varies = spread > 1e-6
    scale = np.where(varies, np.minimum(1.0 / np.where(varies, spread, 1.0), MAX_SCALE), 1.0)
    return mean.astype(np.float32), scale.astype(np.float32)


def fold(weight: Floats, bias: Floats, mean: Floats, scale: Floats) -> tuple[Floats, Floats]:
    """A first layer that takes raw features, equal to one that takes standardised ones."""
    folded = weight.astype(np.float64) * scale
    shifted = bias - folded @ mean.astype(np.float64)
    return folded.astype(np.float32), shifted.astype(np.float32)
