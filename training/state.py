"""The state of a run between two rollouts, in one file that cannot run code when it is read.

Everything is tensors, numbers, text and lists of them, and is read with ``weights_only=True``.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm

from exactlyonce_env.errors import UserError
from exactlyonce_env.files import write_atomically
from training.vec_env import RecoveryVecEnv

__all__ = ["load_state", "restore_model", "save_state"]

FORMAT = "exactlyonce-training/1"


def save_state(
    path: Path, model: BaseAlgorithm, average: Mapping[str, Any], notes: Mapping[str, Any]
) -> None:
    """Write all that the next rollout depends on, the average, and ``notes`` (JSON types)."""
    policy: Any = model.policy
    state = {
        "format": FORMAT,
        "notes": dict(notes),
        "average": dict(average),
        "policy": policy.state_dict(),
        "optimizer": policy.optimizer.state_dict(),
        "counters": {name: getattr(model, name) for name in _counters(model)},
        "worlds": _tensors(_env(model).state()),
        "episode_starts": torch.from_numpy(np.asarray(model._last_episode_starts, dtype=np.uint8)),
        "random": _random_state(),
        "memory": _memory(model),
    }
    write_atomically(path, lambda temporary: torch.save(state, temporary))


def load_state(path: Path) -> dict[str, Any]:
    """Read what `save_state` wrote; nothing in the file can run.

    Raises
    ------
    UserError
        If it is damaged or something else.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (EOFError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
        raise UserError(
            f"{str(path)!r} is damaged: {str(error).splitlines()[0]}; remove it to start anew"
        ) from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise UserError(f"{str(path)!r} is no saved training run; remove it to start anew")
    return state


def restore_model(model: BaseAlgorithm, state: Mapping[str, Any]) -> None:
    """Bring a freshly made model to where `save_state` was called; the random streams come last."""
    policy: Any = model.policy
    policy.load_state_dict(state["policy"])
    policy.optimizer.load_state_dict(state["optimizer"])
    for name in _counters(model):
        setattr(model, name, state["counters"][name])
    if hasattr(model, "learning_starts"):  # the replay buffer is empty again
        model.learning_starts += model.num_timesteps
    worlds = {name: tensor.numpy() for name, tensor in state["worlds"].items()}
    model._last_obs = _env(model).restore(worlds)
    model._last_episode_starts = state["episode_starts"].numpy().astype(np.bool_)
    _restore_memory(model, state["memory"])
    _set_random_state(state["random"])


def _env(model: BaseAlgorithm) -> RecoveryVecEnv:
    env = model.get_env()
    assert isinstance(env, RecoveryVecEnv)
    return env


def _counters(model: BaseAlgorithm) -> list[str]:
    names = ["num_timesteps", "_n_updates", "_episode_num", "_current_progress_remaining"]
    return names + [name for name in ("exploration_rate", "_n_calls") if hasattr(model, name)]


def _memory(model: BaseAlgorithm) -> list[torch.Tensor]:
    """What a recurrent network remembers of each world; empty for others."""
    states: Any = getattr(model, "_last_lstm_states", None)
    return [] if states is None else [part for pair in (states.pi, states.vf) for part in pair]


def _restore_memory(model: BaseAlgorithm, parts: list[torch.Tensor]) -> None:
    if not parts:
        return
    from sb3_contrib.common.recurrent.type_aliases import RNNStates

    recurrent: Any = model
    recurrent._last_lstm_states = RNNStates((parts[0], parts[1]), (parts[2], parts[3]))


def _tensors(arrays: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}


def _random_state() -> dict[str, Any]:
    old: Any = np.random.get_state()  # noqa: NPY002 - Stable-Baselines3 draws from it
    name, keys, position, has_gauss, gauss = old
    version, words, gauss_next = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "numpy": [name, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, gauss],
        "python": [version, list(words), gauss_next],
    }


def _set_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    name, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state(  # noqa: NPY002 - Stable-Baselines3 draws from it
        (name, keys.numpy().astype(np.uint32), position, has_gauss, gauss)
    )
    version, words, gauss_next = state["python"]
    random.setstate((version, tuple(words), gauss_next))
