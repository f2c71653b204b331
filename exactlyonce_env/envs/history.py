"""A wrapper that stacks the last observations, for policies without a memory of their own."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from exactlyonce_env.envs.spaces import count_of
from exactlyonce_env.errors import UserError

Stack = npt.NDArray[np.float32]


class HistoryStack(gymnasium.Wrapper[Stack, Any, Stack, Any], RecordConstructorArgs):
    """The last ``length`` observations in one vector, oldest first, zeros before the first.

    No algorithm of Stable-Baselines3 both remembers and masks; with a stack an ordinary masked one
    sees how the evidence came about.  Masks are passed on.

    Parameters
    ----------
    env
        An environment with a one-dimensional observation of n numbers.
    length
        Number of observations; the stack has the shape (length * n,).
    """

    def __init__(self, env: gymnasium.Env[Stack, Any], length: int = 4) -> None:
        RecordConstructorArgs.__init__(self, length=length)
        gymnasium.Wrapper.__init__(self, env)
        count_of("length", length)
        space = env.observation_space
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise UserError(f"a history needs a one-dimensional Box of observations, not {space}")
        self._history = np.zeros((length, *space.shape), space.dtype)
        self.observation_space = spaces.Box(
            np.tile(np.minimum(space.low, 0), length),
            np.tile(np.maximum(space.high, 0), length),
            dtype=space.dtype.type,
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Stack, dict[str, Any]]:
        """Reset the environment and begin a new history."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._history[:] = 0
        return self._stacked(observation), info

    def step(self, action: Any) -> tuple[Stack, Any, bool, bool, dict[str, Any]]:
        """Step the environment and add to the history."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._stacked(observation), reward, terminated, truncated, info

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """The masks of the environment."""
        masks: npt.NDArray[np.bool_] = self.env.get_wrapper_attr("action_masks")()
        return masks

    def _stacked(self, observation: Stack) -> Stack:
        self._history[:-1] = self._history[1:]
        self._history[-1] = observation
        return self._history.flatten()
