"""The native vector environment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from exactlyonce_env.actions import KINDS, MAX_WAIT_S, N_ACTIONS
from exactlyonce_env.envs.facade import SHARED, SubEnv
from exactlyonce_env.envs.outputs import Outputs
from exactlyonce_env.envs.plans import chosen_plan, plan_of
from exactlyonce_env.envs.rendering import NO_MODE, rendered
from exactlyonce_env.envs.spaces import (
    ACTION_MODES,
    N_KINDS,
    RENDER_MODES,
    action_space,
    batch_of_actions,
    checked_options,
    count_of,
    observation_space,
    one_of,
)
from exactlyonce_env.envs.trace import Trace
from exactlyonce_env.envs.truth import truth_info
from exactlyonce_env.envs.vector_kernel import first_outside
from exactlyonce_env.envs.worlds import Bools, Worlds, chosen_of, seeds_of
from exactlyonce_env.errors import UserError
from exactlyonce_env.plan import Plan, checked_world

if TYPE_CHECKING:
    from exactlyonce_env.config import Variant
    from exactlyonce_env.presets import DelaysLike, PresetLike

SAME_STEP = AutoresetMode.SAME_STEP
DISABLED = AutoresetMode.DISABLED

Floats = npt.NDArray[np.float64]
Observations = npt.NDArray[np.float32]


class RecoveryVectorEnv(VectorEnv[Any, Any, npt.NDArray[Any]]):
    """Many `RecoveryEnv` at once, in one compiled loop.

    Observations, rewards, flags and infos equal those of a `gymnasium.vector.SyncVectorEnv` of
    single environments bit for bit, in all three autoreset modes.

    Made with ``gymnasium.make_vec("ExactlyOnce/LateTail-v0", num_envs=1024)``.  All keywords of
    `RecoveryEnv` are taken, and these:

    | parameter | default | meaning |
    | --- | --- | --- |
    | `num_envs` | `1` | number of worlds N |
    | `autoreset_mode` | next step | an `AutoresetMode`, or its value such as `"SameStep"` |
    | `copy` | `True` | False: every call writes into the arrays of the call before |

    **Seeds.** ``reset(seed=S)`` gives environment i the seed S + i, a list gives each its own, and
    None lets each go on where it is.  Each environment plays the worlds 0, 1, 2, ... of its own
    seed; ``options={"world": k}`` opens world k of each.

    **Autoreset.** In NEXT_STEP the step after an end ignores its action and resets, with reward 0.
    In SAME_STEP the returned observation is the next world's already, and ``infos["final_obs"]``
    and ``infos["final_info"]`` hold what the episode ended with.  In DISABLED an ended environment
    must be reset with ``reset(options={"reset_mask": mask})`` before the next step; the mask works
    in every mode.

    **Infos.** The keys of `RecoveryEnv` as arrays over the environments: ``action_mask`` (N, 11)
    int8, ``cost`` (N,), ``reward_terms`` {name: (N,)} and so on, each key with its mask ``_key``
    (N,) bool.  Within one call the masks are one array, and ``cost_duplicates`` is ``cost`` itself;
    between calls nothing is shared, unless ``copy=False``.  ``action_masks()`` is (N, 11) bool.

    **Speed and memory.** From 1,024 worlds on, two threads share a step.  A world takes 640 bytes,
    what a call returns of it 339, and its ``reward_terms`` 72 more.  ``reveal=True`` and
    ``render_mode="rgb_array"`` look at each world in Python and are slow.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - the base class declares it so
        "render_modes": list(RENDER_MODES),
        "render_fps": 2,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        preset: PresetLike = "contextual",
        *,
        num_envs: int = 1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        delays: DelaysLike | None = None,
        costs: Mapping[str, float] | None = None,
        contract: Mapping[str, Any] | None = None,
        faults: Mapping[str, Any] | None = None,
        variants: Iterable[Mapping[str, Any] | Variant] | None = None,
        plan: Plan | None = None,
        action_mode: str = "discrete",
        reward_terms: bool = True,
        reveal: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.num_envs = count_of("num_envs", num_envs)
        self.autoreset_mode = _autoreset(autoreset_mode)
        self.metadata = {**type(self).metadata, "autoreset_mode": self.autoreset_mode}
        self.copy = bool(copy)
        self.action_mode = one_of("action_mode", action_mode, ACTION_MODES)
        self.render_mode = one_of("render_mode", render_mode, (None, *RENDER_MODES))
        self.reveal = bool(reveal)
        keywords = {
            "config": config,
            "delays": delays,
            "costs": costs,
            "contract": contract,
            "faults": faults,
            "variants": variants,
        }
        self.plan = chosen_plan(self.make_plan, plan, preset, keywords)
        self.single_observation_space = observation_space()
        self.single_action_space = action_space(action_mode)
        self._itemises = bool(reward_terms)
        self._worlds = Worlds(self.plan, num_envs)
        self._ended = np.zeros(num_envs if self.autoreset_mode is DISABLED else 0, np.bool_)
        self._begun = False
        self._reused: Outputs | None = None
        self._traces = [Trace() for _ in range(num_envs)] if render_mode == "rgb_array" else []

    def make_plan(self, preset: PresetLike, **keywords: Any) -> Plan:
        """The plan of the worlds, from the keywords `config` to `variants`; override it at will."""
        return plan_of(preset, **keywords)

    @cached_property
    def observation_space(self) -> gymnasium.Space[Any]:  # type: ignore[override]
        """The batched space; made when first asked for, since it outweighs the worlds."""
        return batch_space(self.single_observation_space, self.num_envs)

    @cached_property
    def action_space(self) -> gymnasium.Space[Any]:  # type: ignore[override]
        """The batched space; made when first asked for."""
        return batch_space(self.single_action_space, self.num_envs)

    @cached_property
    def envs(self) -> tuple[SubEnv, ...]:
        """The worlds one by one; they can be looked at, not stepped."""
        return tuple(SubEnv(self, i) for i in range(self.num_envs))

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Observations, dict[str, Any]]:
        """Open the next world of every environment, or of those in ``options["reset_mask"]``.

        Raises
        ------
        UserError
            For seeds or a world id out of range, a mask of another shape or without a True, or an
            option other than ``world`` and ``reset_mask``.
        TypeError
            For a mask that is no boolean array.
        ResetNeeded
            For a mask before the first reset.
        """
        given = checked_options(options, ("world", "reset_mask"))
        mask, world = given.get("reset_mask"), given.get("world")
        chosen = chosen_of(mask, self.num_envs)
        seeds = seeds_of(seed, self.num_envs)
        if world is not None:
            checked_world(world)
        if mask is not None:
            self._require_worlds()
        if isinstance(seed, int | np.integer):
            super().reset(seed=int(seed))
        if not self._begun:
            drawn = self.np_random.integers(2**64, size=self.num_envs, dtype=np.uint64)
            self._worlds.seat(chosen, drawn, None)
        self._worlds.seat(chosen, seeds, world)
        out = self._outputs()
        if mask is not None:
            self._worlds.observe(out)
        self._open(chosen, out)
        out.clear(chosen)
        self._begun = True
        infos = out.infos() if mask is None else out.infos_of(chosen)
        return out.observations, self._with_truth(infos, chosen)

    def step(self, actions: Any) -> tuple[Observations, Floats, Bools, Bools, dict[str, Any]]:
        """Take one decision in every world.

        Raises
        ------
        ResetNeeded
            Before the first reset; in DISABLED mode also where an ended episode was not reset.
        UserError
            For actions outside the action space; no world has moved then.
        """
        self._require_worlds()
        choices, seconds = self._checked(actions)
        out = self._outputs()
        due = self._worlds.seen["ending"] != 0 if self._traces else None
        self._worlds.step(choices, seconds, out)
        if due is not None:
            self._trace(choices, due)
        infos: dict[str, Any] = {}
        if self.autoreset_mode is SAME_STEP and out.terminations.any():
            infos = self._reset_ended(out)
        elif self.autoreset_mode is DISABLED:
            self._ended = out.terminations.copy()
        infos.update(out.infos())
        infos = self._with_truth(infos, out.everyone)
        return out.observations, out.rewards, out.terminations, out.truncations, infos

    def action_masks(self) -> Bools:
        """Which discrete actions are not refused, (N, 11) bool: True = allowed."""
        self._require_worlds()
        return self._worlds.masks().view(np.bool_)

    def render(self) -> tuple[Any, ...] | None:
        """A frame of every world, as `RecoveryEnv.render` makes them."""
        if self.render_mode is None:
            gymnasium.logger.warn(NO_MODE)
            return None
        return tuple(self.frame(i) for i in range(self.num_envs))

    def frame(self, index: int) -> Any:
        """A frame of world ``index``, in the render mode."""
        seen, _, truth = self.records(index)
        trace = self._traces[index] if self._traces else None
        return rendered(self.render_mode, self.plan, seen, truth, trace)

    def records(self, index: int) -> tuple[Any, Any, Any]:
        """The `VIEW`, `CONTRACT` and, privileged, `TRUTH` records of world ``index``."""
        self._require_worlds()
        seen = self._worlds.seen[index]
        return seen, self.plan.contracts[seen.context], self._worlds.truth[index]

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The method or attribute ``name`` of every world, called if it can be."""
        if name == "action_masks":
            return tuple(self.action_masks())
        found = (getattr(env, name) for env in self.envs)
        return tuple(value(*args, **kwargs) if callable(value) else value for value in found)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """The attribute ``name`` of every world."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every world: one value each, or one for all.

        Raises
        ------
        UserError
            For another number of values, or an attribute that the worlds share.
        """
        if name in SHARED:
            raise UserError(f"{name} is one for all worlds; make another vector environment")
        if not isinstance(values, list | tuple):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise UserError(f"{name} needs {self.num_envs} values, one a world, not {len(values)}")
        for env, value in zip(self.envs, values, strict=True):
            setattr(env, name, value)

    def _require_worlds(self) -> None:
        if not self._begun:
            raise ResetNeeded("no world was opened yet: call reset() first")

    def _checked(self, actions: Any) -> tuple[npt.NDArray[np.int64], Floats]:
        """Actions and seconds in range, and no world waiting for its reset, or an error."""
        choices, seconds = batch_of_actions(self.action_mode, actions, self.num_envs)
        count = N_ACTIONS if self.action_mode == "discrete" else N_KINDS
        wrong = first_outside(choices, count - 1.0)
        if wrong >= 0:
            raise UserError(
                f"actions must lie in 0..{count - 1}; world {wrong} was given {choices[wrong]}"
            )
        wrong = first_outside(seconds, MAX_WAIT_S) if len(seconds) else -1
        if wrong >= 0:
            raise UserError(
                f"seconds must lie in 0..{MAX_WAIT_S:g}; world {wrong} was given {seconds[wrong]}"
            )
        if len(self._ended) and self._ended.any():
            ended = np.flatnonzero(self._ended)
            raise ResetNeeded(
                f"{len(ended)} episodes are over, that of world {ended[0]} first: call "
                'reset(options={"reset_mask": mask})'
            )
        return choices, seconds

    def _outputs(self) -> Outputs:
        if self.copy:
            return Outputs(self.num_envs, self._itemises)
        if self._reused is None:
            self._reused = Outputs(self.num_envs, self._itemises)
        return self._reused

    def _open(self, chosen: Bools, out: Outputs) -> None:
        """Open the next world of the chosen environments."""
        self._worlds.open(chosen, out)
        if len(self._ended):
            self._ended &= ~chosen
        for i in np.flatnonzero(chosen).tolist() if self._traces else ():
            self._traces[i].begin(self._worlds.seen[i])

    def _reset_ended(self, out: Outputs) -> dict[str, Any]:
        """SAME_STEP: keep what the ended episodes ended with, and open their next worlds."""
        ended = out.terminations.copy()
        rows = np.flatnonzero(ended)
        final = np.full(self.num_envs, None, dtype=object)
        for i, observation in zip(rows.tolist(), out.observations[rows], strict=True):
            final[i] = observation
        infos = {
            "final_obs": final,
            "_final_obs": ended,
            "final_info": self._with_truth(out.infos_of(ended), ended),
            "_final_info": ended.copy(),
        }
        self._open(ended, out)
        out.clear(rows)
        return infos

    def _with_truth(self, infos: dict[str, Any], chosen: Bools) -> dict[str, Any]:
        """The infos with the hidden truth of the chosen worlds, if it is to be revealed."""
        for i in np.flatnonzero(chosen).tolist() if self.reveal else ():
            told = truth_info(self.plan, self._worlds.seen[i], self._worlds.truth[i])
            infos = self._add_info(infos, {"truth": told}, i)
        return infos

    def _trace(self, choices: npt.NDArray[np.int64], due: Bools) -> None:
        """Note every decision; worlds that were due for a reset have just had it."""
        kinds = KINDS[choices] if self.action_mode == "discrete" else choices
        for i, trace in enumerate(self._traces):
            if due[i]:
                trace.begin(self._worlds.seen[i])
            else:
                trace.add(int(kinds[i]), self._worlds.seen[i])


def _autoreset(mode: Any) -> AutoresetMode:
    """The mode that an `AutoresetMode`, its value or its name means."""
    for known in AutoresetMode:
        if mode in (known, known.value, known.name, known.name.lower()):
            return known
    choices = ", ".join(known.value for known in AutoresetMode)
    raise UserError(f"autoreset_mode must be one of {choices}, not {mode!r}")
