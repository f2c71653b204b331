"""The single environment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from operator import index
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded
from numpy import empty

from exactlyonce_env.actions import N_ACTIONS
from exactlyonce_env.compiled import Record
from exactlyonce_env.envs.cell import CELL, mask_cell, open_cell, step_cell
from exactlyonce_env.envs.lean import entry
from exactlyonce_env.envs.page import filled
from exactlyonce_env.envs.plans import arrays_of, chosen_plan, plan_of
from exactlyonce_env.envs.rendering import NO_MODE, rendered
from exactlyonce_env.envs.spaces import (
    ACTION_MODES,
    CHOICES,
    RENDER_MODES,
    action_space,
    checked_options,
    observation_space,
    one_of,
    parametric_choice,
    refused,
)
from exactlyonce_env.envs.trace import Trace
from exactlyonce_env.envs.truth import truth_info
from exactlyonce_env.observation import N_FEATURES
from exactlyonce_env.plan import MAX_WORLD, Plan, checked_seed, checked_world
from exactlyonce_env.vocabulary import TERM_NAMES

if TYPE_CHECKING:
    from exactlyonce_env.config import Variant
    from exactlyonce_env.presets import DelaysLike, PresetLike
    from exactlyonce_env.view import View

Observation = npt.NDArray[np.float32]
_OBSERVATION, _F4 = (N_FEATURES,), np.dtype(np.float32)
_MASK, _I1 = (N_ACTIONS,), np.dtype(np.int8)
NO_TERMS: dict[str, float] = dict.fromkeys(TERM_NAMES, 0.0)
_BOUND = frozenset(("_contexts", "_cdf", "_table", "_static", "_terms", "_open", "_step", "_allow"))
"""What an environment binds anew after it was copied: views of its cell, and compiled code."""


class RecoveryEnv(gymnasium.Env[Observation, Any]):
    """A write timed out.  Did it happen?  Make sure that it happens exactly once.

    ## Description

    A client sent a write, or is about to, and the answer is ambiguous: behind one and the same
    timeout the write may be absent, committed, or still in flight and due to commit later.  The
    client may read back, wait, send the write again with or without an idempotency key, ask an
    operator, or finish.  Sending it again too early makes a duplicate; never sending it again may
    leave the write undone; waiting, reading and asking cost time and money.  What the service
    promises (read-back, lag, keys, bounds) and what everything costs is visible and differs from
    world to world; what became of each request is hidden.

    ## Action Space

    With ``action_mode="discrete"`` (the default) the action space is ``Discrete(11)``:

    {action_table}

    With ``action_mode="parametric"`` it is
    ``Dict(kind=Discrete(7), seconds=Box(0, 604800, (), float64))``: kinds 0 read, 1 wait, 2 retry,
    3 keyed_retry, 4 escalate, 5 finish, 6 finish_uncertain.  ``seconds`` says how long a wait is;
    beside another kind it has no meaning.

    An action that the contract refuses (a read where there is no read-back, a key where none is
    taken, an attempt beyond the limit) is a documented outcome: an error answers it and it uses up
    a step.  `action_masks` and ``info["action_mask"]`` tell beforehand, 1 = not refused.  In both
    modes they are about the discrete actions.

    ## Observation Space

    ``Box(-1, 2, ({n_features},), float32)``, a function of what the client has seen and of the
    visible contract alone: worlds with the same visible history give the same bytes.

    {observation_table}

    ## Rewards

    Each step pays for its time (`time_per_hour`, times hours) and for what it was: `read`,
    `reissue`, `escalation`.  The last step adds the settlement, once every request in flight has
    completed: `success` if each item took effect exactly once, minus `duplicate` for each further
    effect, `omission` for each item without one, `unresolved` if completion was not claimed, and
    `overclaim` if it was claimed and is not true.  ``info["reward_terms"]`` itemises the reward;
    the nine terms, added up in their order, are the reward to the last bit.  The weights are part
    of the world: see the costs among the features.

    ## Starting State

    World k of a seed is the same everywhere: the fate of every attempt is a pure function of
    ``(preset, seed, world id)``.  ``reset(seed=S)`` opens world 0 of seed S, each further
    ``reset()`` the next world of that seed, and ``reset(options={"world": k})`` exactly world k,
    from which the count goes on.  So ``reset(seed=S, options={"world": k})`` is the world that the
    command line calls ``--seed S --world k``.  Without a seed the first reset draws one.  Seeds are
    integers in 0..2^64-1.

    With ``start="fault"`` the original was sent at t = 0 and the first observation follows its
    response; with ``start="send"`` nothing was sent yet.

    ## Episode End

    The episode terminates when the client finishes (`finish`, `finish_uncertain`), when the call
    budget `max_steps` is used up (unresolved), or, in presets with `dispatch_claims`, when a
    re-issue is acknowledged.  It is never truncated: the budget is part of the problem, so there
    is nothing to bootstrap from at the end.

    ## Info

    The same keys at every reset and step, with new objects each time:

    | key | meaning |
    | --- | --- |
    | `action_mask` | (11,) int8, 1 for each discrete action that is not refused |
    | `cost` | duplicate effects, at the end; 0.0 until then; for constrained RL |
    | `cost_duplicates` | the part of `cost` that is duplicates: all of it |
    | `is_success` | at the end: each item took effect exactly once; False until then |
    | `reward_terms` | the nine parts of the reward by name, unless ``reward_terms=False`` |
    | `truth` | with ``reveal=True`` only: see `exactlyonce_env.envs.truth.truth_info` |

    ## Arguments

    | parameter | default | meaning |
    | --- | --- | --- |
    | `preset` | `"contextual"` | a preset's name, a mapping of its fields, or a `Preset` |
    | `config` | `None` | edits of the preset: a mapping, or the path of a file |
    | `delays` | `None` | law of the late writes: a file, or such as `"lomax:c=0.8,scale=120"` |
    | `costs` | `None` | cost weights that hold in every context |
    | `contract` | `None` | contract fields that hold in every context |
    | `faults` | `None` | fault fields that hold in every context |
    | `variants` | `None` | a contract mix instead of the preset's: a list of weighted overrides |
    | `plan` | `None` | a compiled `Plan` instead of all the above |
    | `action_mode` | `"discrete"` | or `"parametric"` |
    | `reward_terms` | `True` | puts the parts of the reward into ``info["reward_terms"]`` |
    | `reveal` | `False` | puts the hidden truth into ``info["truth"]`` |
    | `render_mode` | `None` | `"ansi"`: the view in plain English; `"rgb_array"`: a timeline |

    ```python
    import gymnasium
    import exactlyonce_env

    env = gymnasium.make("ExactlyOnce/LateTail-v0", costs={"duplicate": 3.0})
    observation, info = env.reset(seed=7)
    observation, reward, terminated, truncated, info = env.step(0)
    ```

    A subclass may draw its worlds in its own way by overriding `make_plan`.  Environments can be
    pickled and deep-copied in the middle of an episode; both go on alike.

    ## Version History

    * v0: first release.
    """

    __doc__ = filled(__doc__)

    metadata: dict[str, Any] = {  # noqa: RUF012 - the base class declares it so
        "render_modes": list(RENDER_MODES),
        "render_fps": 2,
    }

    def __init__(
        self,
        preset: PresetLike = "contextual",
        *,
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
        self.action_mode = one_of("action_mode", action_mode, ACTION_MODES)
        self.render_mode = one_of("render_mode", render_mode, (None, *RENDER_MODES))
        self.reveal = bool(reveal)
        self._itemises = bool(reward_terms)
        keywords = {
            "config": config,
            "delays": delays,
            "costs": costs,
            "contract": contract,
            "faults": faults,
            "variants": variants,
        }
        self.plan = chosen_plan(self.make_plan, plan, preset, keywords)
        self.observation_space = observation_space()
        self.action_space = action_space(action_mode)
        self._cell = np.zeros(1, CELL)
        self._key: np.uint64 | None = None
        self._next_world = 0
        self._over = True
        self._trace = Trace() if render_mode == "rgb_array" else None
        self._watched = self.reveal or self._trace is not None
        self._parametric = action_mode == "parametric"
        self._bind()

    def make_plan(self, preset: PresetLike, **keywords: Any) -> Plan:
        """The plan of this environment's worlds, from the keywords `config` to `variants`.

        Override it to draw worlds in a way of your own.
        """
        return plan_of(preset, **keywords)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Open the next world: see *Starting State* above.

        Raises
        ------
        UserError
            For a seed or a world id out of range, or an option other than ``world``.
        """
        if seed is not None or options or self._key is None:
            self._seat(seed, checked_options(options, ("world",)).get("world"))
        world = self._next_world
        if world > MAX_WORLD:
            checked_world(world)
        observation, mask = empty(_OBSERVATION, _F4), empty(_MASK, _I1)
        self._open(
            self._contexts,
            self._cdf,
            self._table,
            self._static,
            self._cell,
            observation,
            mask,
            self._key,
            world,
        )
        self._next_world = world + 1
        self._over = False
        info: dict[str, Any] = {
            "action_mask": mask,
            "cost": 0.0,
            "cost_duplicates": 0.0,
            "is_success": False,
        }
        if self._itemises:
            info["reward_terms"] = NO_TERMS.copy()
        if self._watched:
            self._watch(None, info)
        return observation, info

    def _seat(self, seed: int | None, world: int | None) -> None:
        """Choose the seed and the world that the coming reset opens."""
        seed = None if seed is None else checked_seed(seed)
        if world is not None:
            checked_world(world)
        super().reset(seed=seed)
        if seed is not None:
            self._key, self._next_world = np.uint64(seed), 0
        elif self._key is None:
            self._key = self.np_random.integers(2**64, dtype=np.uint64)
        if world is not None:
            self._next_world = int(world)
        if self._step is None:
            self._compile()

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take one decision.

        Raises
        ------
        ResetNeeded
            Before the first reset and after the end of an episode.
        UserError
            For an action outside the action space.
        """
        if self._over:
            raise ResetNeeded("no episode is running: call reset() first")
        # Much is spelt out here, since calling a helper or testing one more flag takes longer
        # than the compiled step itself.
        if self._parametric:
            kind, seconds, price, priced = parametric_choice(action)
        else:
            try:
                kind, seconds, price, priced = CHOICES[index(action)]
            except (TypeError, KeyError):
                raise refused(action) from None
        observation, mask = empty(_OBSERVATION, _F4), empty(_MASK, _I1)
        reward, ended, time_term, price_term, cost, exact = self._step(
            self._contexts,
            self._table,
            self._static,
            self._cell,
            observation,
            mask,
            kind,
            seconds,
            price,
        )
        self._over = ended
        info: dict[str, Any] = {
            "action_mask": mask,
            "cost": cost,
            "cost_duplicates": cost,
            "is_success": exact,
        }
        if self._itemises:
            terms = info["reward_terms"] = NO_TERMS.copy()
            if ended:
                (
                    terms["time"],
                    terms["read"],
                    terms["reissue"],
                    terms["escalation"],
                    terms["success"],
                    terms["duplicate"],
                    terms["omission"],
                    terms["unresolved"],
                    terms["overclaim"],
                ) = self._terms.tolist()
            else:  # no other term can differ from zero yet
                terms["time"] = time_term
                terms[priced] = price_term
        if self._watched:
            self._watch(kind, info)
        return observation, reward, ended, False, info

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which discrete actions are not refused now, (11,) bool: True = allowed."""
        self._require_world()
        mask = empty(_MASK, np.dtype(np.bool_))
        self._allow(self._contexts, self._cell, mask.view(_I1))
        return mask

    def render(self) -> Any:
        """The view in plain English (``ansi``), or the episode as a timeline (``rgb_array``).

        Returns
        -------
        str or ndarray or None
            A picture is (height, width, 3) uint8.
        """
        if self.render_mode is None:
            gymnasium.logger.warn(NO_MODE)
            return None
        seen, truth = self._seen(), self._cell["truth"][0]
        return rendered(self.render_mode, self.plan, seen, truth, self._trace)

    @property
    def view(self) -> View:
        """What the client has seen so far, as policies receive it."""
        from exactlyonce_env.view import View

        seen = self._seen()
        return View.of(seen, self.plan.contracts[seen.context])

    @property
    def world_seed(self) -> int:
        """The seed of the present world."""
        self._require_world()
        return int(self._cell["truth"]["seed"][0])

    @property
    def world_id(self) -> int:
        """The id of the present world: ``reset(seed=world_seed, options={"world": world_id})``."""
        self._require_world()
        return int(self._cell["truth"]["world"][0])

    def _require_world(self) -> None:
        if self._key is None:
            raise ResetNeeded("no world was opened yet: call reset() first")

    def _seen(self) -> Record:
        self._require_world()
        return self._cell["seen"][0]

    def _watch(self, kind: int | None, info: dict[str, Any]) -> None:
        """Note a decision, None for a reset, and reveal the truth, where either is asked for."""
        seen, truth = self._cell["seen"][0], self._cell["truth"][0]
        if self._trace is not None:
            if kind is None:
                self._trace.begin(seen)
            else:
                self._trace.add(kind, seen)
        if self.reveal:
            info["truth"] = truth_info(self.plan, seen, truth)

    def _bind(self) -> None:
        """Take hold of the plan's arrays and of the cell's; copies have to do so anew."""
        self._contexts, self._cdf, self._table, self._static = arrays_of(self.plan)
        self._terms = self._cell["terms"][0]
        self._open: Any = None
        self._step: Any = None
        self._allow: Any = None

    def _compile(self) -> None:
        """Make the compiled code ready, on the first reset: it may take some seconds once."""
        contexts, cdf, table, static = arrays_of(self.plan)
        told = (self._cell, empty(_OBSERVATION, _F4), empty(_MASK, _I1))
        self._open = entry(open_cell, contexts, cdf, table, static, *told, np.uint64(0), 0)
        self._step = entry(step_cell, contexts, table, static, *told, 0, 0.0, 0)
        self._allow = entry(mask_cell, contexts, told[0], told[2])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _BOUND}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._bind()
        if self._key is not None:
            self._compile()
