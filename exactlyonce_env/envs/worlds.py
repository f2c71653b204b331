"""The running worlds of a vector environment and the compiled code that moves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from exactlyonce_env.actions import N_ACTIONS
from exactlyonce_env.envs.lean import entry
from exactlyonce_env.envs.outputs import Outputs
from exactlyonce_env.envs.plans import arrays_of
from exactlyonce_env.envs.spaces import NO_SECONDS
from exactlyonce_env.envs.vector_kernel import (
    mask_range,
    observe_range,
    open_range,
    step_range,
)
from exactlyonce_env.envs.workers import run_shared
from exactlyonce_env.errors import UserError
from exactlyonce_env.plan import MAX_SEED, Plan, checked_seed
from exactlyonce_env.records import TRUTH, VIEW

SPLIT_AT = 1024
"""Batches from this size on are shared by two threads: a hand-over must cost less than it saves."""

LEAST_RANGE = 256  # worlds in the smallest part of a shared batch
N_SCRATCH = 16  # doubles between the scratch rows of two threads: different cache lines

Bools = npt.NDArray[np.bool_]
Seeds = Sequence[int | None] | npt.NDArray[np.uint64]


class Worlds:
    """``n`` worlds of a plan, each a `VIEW` beside a `TRUTH`: 640 bytes.

    A world's seed stands in its truth, and the world that `open` begins is the one after the id
    that stands there.
    """

    def __init__(self, plan: Plan, n: int) -> None:
        self.plan = plan
        self.n = n
        self.seen: npt.NDArray[Any] = np.zeros(n, VIEW)
        self.truth: npt.NDArray[Any] = np.zeros(n, TRUTH)
        self._bind()

    def seat(self, chosen: Bools, seeds: Seeds | None, world: int | None) -> None:
        """Give the chosen worlds their seeds (None: they keep theirs) and the id to open next."""
        if seeds is not None:
            told = chosen & np.array([seed is not None for seed in seeds])
            values = np.array([0 if seed is None else seed for seed in seeds], dtype=np.uint64)
            self.truth["seed"][told] = values[told]
            self.truth["world"][told] = -1
        if world is not None:
            self.truth["world"][chosen] = world - 1

    def open(self, chosen: Bools, out: Outputs) -> None:
        """Open the next world of the chosen; write their observations and masks."""
        self._compile()
        told = (out.observations, out.masks)
        self._open(*self._arrays, self.seen, self.truth, chosen, *told, 0, self.n)

    def observe(self, out: Outputs) -> None:
        """Write the observation and the mask of every world."""
        contexts, _, _, static = self._arrays
        observe_range(contexts, static, self.seen, out.observations, out.masks)

    def step(
        self, choices: npt.NDArray[np.int64], seconds: npt.NDArray[np.float64], out: Outputs
    ) -> None:
        """Take one decision in every running world and open the next where one had ended."""
        self._compile()
        arguments = (
            *self._arrays,
            self.seen,
            self.truth,
            choices,
            seconds,
            out.observations,
            out.masks,
            out.rewards,
            out.terminations,
            out.costs,
            out.exact,
            out.terms,
        )
        step, scratch = self._step, self._scratch

        def run(share: int, low: int, high: int) -> None:
            step(*arguments, scratch[share], low, high)

        if self.n < SPLIT_AT:
            run(0, 0, self.n)
        else:
            run_shared(run, self.n, LEAST_RANGE)

    def masks(self) -> npt.NDArray[np.int8]:
        """The mask of every world, (n, 11) int8."""
        masks = np.empty((self.n, N_ACTIONS), np.int8)
        mask_range(self._arrays[0], self.seen, masks)
        return masks

    def _bind(self) -> None:
        self._arrays = arrays_of(self.plan)
        self._scratch = tuple(np.zeros((2, N_SCRATCH)))
        self._open: Any = None
        self._step: Any = None

    def _compile(self) -> None:
        """Make the compiled code ready, on the first reset: it may take some seconds once."""
        if self._open is not None:
            return
        out = Outputs(1, itemised=True)
        worlds = (*self._arrays, self.seen, self.truth)
        told = (out.observations, out.masks)
        numbers = (out.rewards, out.terminations, out.costs, out.exact, out.terms)
        actions = np.zeros(1, np.int64)
        rest = (*told, *numbers, self._scratch[0], 0, 0)
        self._step = entry(step_range, *worlds, actions, NO_SECONDS, *rest)
        self._open = entry(open_range, *worlds, out.everyone, *told, 0, 0)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("plan", "n", "seen", "truth")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._bind()


def seeds_of(seed: Any, n: int) -> Seeds | None:
    """One seed for each of ``n`` worlds, from what `reset` takes, or a `UserError`."""
    if seed is None:
        return None
    if isinstance(seed, Sequence | np.ndarray) and not isinstance(seed, str):
        if len(seed) != n:
            raise UserError(f"a list of seeds needs {n} of them, one a world, not {len(seed)}")
        return [None if one is None else checked_seed(one) for one in seed]
    first = checked_seed(seed)
    if first > MAX_SEED - (n - 1):
        raise UserError(f"seed {first} is too large: the last of {n} worlds would pass 2^64 - 1")
    return np.uint64(first) + np.arange(n, dtype=np.uint64)


def chosen_of(mask: Any, n: int) -> Bools:
    """The worlds that a reset is about, (n,) bool: all without a mask."""
    if mask is None:
        return np.ones(n, np.bool_)
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        raise TypeError(f"reset_mask must be a boolean array of shape ({n},), not {mask!r}")
    if mask.shape != (n,) or not mask.any():
        told = f"shape {mask.shape} with {np.count_nonzero(mask)} True"
        raise UserError(f"reset_mask must have shape ({n},) and a True in it, not {told}")
    return mask.copy()
