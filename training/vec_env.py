"""The native vector environment as Stable-Baselines3 takes it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv

from exactlyonce_env.envs.vector import RecoveryVectorEnv
from exactlyonce_env.errors import UserError
from exactlyonce_env.plan import Plan

__all__ = ["TRAINING_WORLDS", "RecoveryVecEnv", "spread_seeds"]

TRAINING_WORLDS = 2**40
"""First world id of training, whatever the seed; evaluation counts its ids from 0."""

Indices = None | int | Iterable[int]
StepReturn = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.bool_], Any]

_STATE = ("seen", "truth", "returns", "lengths")


def spread_seeds(seed: int, n: int) -> list[int]:
    """``n`` seeds, one an environment; runs with different seeds share none of them.

    With S, S + 1, ... the worlds of two runs with neighbouring seeds would be almost the same.
    """
    return [int(s) for s in np.random.SeedSequence(seed).generate_state(n, np.uint64)]


class RecoveryVecEnv(VecEnv):
    """``num_envs`` worlds of one plan in one compiled loop, as a `VecEnv`.

    Observations, flags and final observations are those of `RecoveryVectorEnv` in its SAME_STEP
    mode, bit for bit; rewards are rounded to float32 as in Stable-Baselines3's own.  The info of an
    environment is empty unless its episode has just ended; then it holds ``episode`` as a
    `Monitor` writes it, ``terminal_observation``, ``TimeLimit.truncated`` (always False: the call
    budget is part of the problem), ``is_success`` and ``cost``.

    Parameters
    ----------
    plan
        The worlds, for instance from `exactlyonce_env.load_plan`.
    num_envs
        Number of environments N; environment i plays worlds of a seed of its own, see `seed`.
    first_world
        World id that each environment starts at; the default keeps clear of evaluation's worlds.

    Attributes
    ----------
    busy_s
        Seconds spent in here since the environment was made: the environment's share of training.
    """

    def __init__(
        self, plan: Plan, num_envs: int = 64, *, first_world: int = TRAINING_WORLDS
    ) -> None:
        self.native = _Worlds(
            plan=plan,
            num_envs=num_envs,
            autoreset_mode=AutoresetMode.SAME_STEP,
            reward_terms=False,
        )
        self.first_world = first_world
        self.busy_s = 0.0
        self._began = time.time()
        self._actions: Any = None
        self._masks = np.ones((num_envs, 0), np.bool_)
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, np.int64)
        super().__init__(
            num_envs, self.native.single_observation_space, self.native.single_action_space
        )

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Let the next reset open world ``first_world`` of the seeds `spread_seeds` makes of it."""
        if seed is None:
            seed = int(np.random.randint(2**32, dtype=np.uint32))  # noqa: NPY002 - as SB3 seeds
        self._seeds = list(spread_seeds(seed, self.num_envs))
        return self._seeds

    def reset(self) -> npt.NDArray[np.float32]:
        """Open the next world of every environment.

        The seeds of `seed` and the option ``world`` of `set_options`, one for all, are used once.

        Raises
        ------
        UserError
            For options that differ between the environments, or other options.
        """
        began = time.perf_counter()
        options = dict(self._options[0])
        if any(other != options for other in self._options):
            raise UserError("reset options must be the same for all environments")
        seeded = any(seed is not None for seed in self._seeds)
        if (seeded or not self.native.begun) and "world" not in options:
            options["world"] = self.first_world
        observations, infos = self.native.reset(
            seed=self._seeds if seeded else None, options=options
        )
        self._reset_seeds()
        self._reset_options()
        self._masks = infos["action_mask"].view(np.bool_)
        self._returns[:] = 0.0
        self._lengths[:] = 0
        self.reset_infos = [{} for _ in range(self.num_envs)]
        self.busy_s += time.perf_counter() - began
        return observations

    def step_async(self, actions: npt.NDArray[Any]) -> None:
        """Note the actions (N,) that `step_wait` will take."""
        self._actions = actions

    def step_wait(self) -> StepReturn:
        """Take one decision in every world; ended ones are at their next world already."""
        began = time.perf_counter()
        observations, rewards, ended, _, told = self.native.step(self._actions)
        self._masks = told["action_mask"].view(np.bool_)
        self._returns += rewards
        self._lengths += 1
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if "final_obs" in told:
            self._tell(np.flatnonzero(ended), told, infos)
        self.busy_s += time.perf_counter() - began
        return observations, rewards.astype(np.float32), ended, infos

    def _tell(
        self, rows: npt.NDArray[np.int64], told: Mapping[str, Any], infos: list[dict[str, Any]]
    ) -> None:
        """Fill in the infos of the episodes that ended in ``rows``."""
        age_s = round(time.time() - self._began, 6)
        final, truth = told["final_obs"], told["final_info"]
        columns = (self._returns, self._lengths, truth["is_success"], truth["cost"])
        values = (column[rows].tolist() for column in columns)
        for i, r, length, exact, cost in zip(rows.tolist(), *values, strict=True):
            infos[i] = {
                "episode": {"r": r, "l": length, "t": age_s},
                "terminal_observation": final[i],
                "TimeLimit.truncated": False,
                "is_success": exact,
                "cost": cost,
            }
        self._returns[rows] = 0.0
        self._lengths[rows] = 0

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which actions are allowed now, (N, 11) bool."""
        return self._masks

    def state(self) -> dict[str, npt.NDArray[np.uint8]]:
        """All that the next steps depend on, as plain bytes: for `restore`."""
        arrays = (*self.native.records_of_all(), self._returns, self._lengths)
        return {
            name: np.frombuffer(array.tobytes(), np.uint8)
            for name, array in zip(_STATE, arrays, strict=True)
        }

    def restore(self, state: Mapping[str, npt.NDArray[np.uint8]]) -> npt.NDArray[np.float32]:
        """Go on where `state` was taken; returns the observations of that moment, (N, 77).

        Raises
        ------
        UserError
            For the state of another number of environments, or none at all.
        """
        own = (*self.native.records_of_all(), self._returns, self._lengths)
        for name, array in zip(_STATE, own, strict=True):
            found = state.get(name)
            if found is None or found.dtype != np.uint8 or found.size != array.nbytes:
                raise UserError(
                    f"the saved state of the worlds does not fit {self.num_envs} environments"
                )
            array[:] = np.frombuffer(found.tobytes(), array.dtype)
        observations, self._masks = self.native.resume()
        return observations

    def close(self) -> None:
        """Nothing is held that would have to be closed."""
        self.native.close()

    def has_attr(self, attr_name: str) -> bool:
        """Whether every world has the attribute."""
        return attr_name == "action_masks" or hasattr(self.native.envs[0], attr_name)

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """The attribute of the chosen worlds."""
        if attr_name == "render_mode":
            return [None for _ in self._get_indices(indices)]
        return [getattr(self.native.envs[i], attr_name) for i in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of the chosen worlds; what they share cannot be set.

        Raises
        ------
        UserError
            For an attribute that all worlds share.
        """
        if indices is None:
            self.native.set_attr(attr_name, [value] * self.num_envs)
            return
        for i in self._get_indices(indices):
            setattr(self.native.envs[i], attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> Any:
        """Call a method of the chosen worlds; ``action_masks`` gives N masks at once."""
        if method_name == "action_masks" and indices is None:
            return list(self._masks)
        chosen = (self.native.envs[i] for i in self._get_indices(indices))
        return [getattr(env, method_name)(*method_args, **method_kwargs) for env in chosen]

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Indices = None) -> list[bool]:
        """Nothing is wrapped, but ended episodes are told as a `Monitor` tells them."""
        return [wrapper_class is Monitor for _ in self._get_indices(indices)]


class _Worlds(RecoveryVectorEnv):
    """The native environment, with a way to its records as a whole."""

    @property
    def begun(self) -> bool:
        """Whether worlds have been opened."""
        return self._begun

    def records_of_all(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """The `VIEW` and `TRUTH` records (N,) of all worlds, to be read and overwritten."""
        return self._worlds.seen, self._worlds.truth

    def resume(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """Take the records as they stand for running worlds; their observations and masks."""
        self._begun = True
        out = self._outputs()
        self._worlds.observe(out)
        return out.observations, out.masks.view(np.bool_)
