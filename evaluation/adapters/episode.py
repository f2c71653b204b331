"""An episode of the sandbox as trainers want it: a world by name or seed, and a reward at the end.

No framework is needed here.  What an agent may see are `Episode.tools` (without their
annotations), `Episode.instructions` and replies; the rest is for the trainer.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from evaluation.sandbox import plan_worlds
from exactlyonce_env.config import Costs
from exactlyonce_env.errors import UserError, unknown
from exactlyonce_env.sandbox.contracts import FAULTS
from exactlyonce_env.sandbox.hosting import Hosted, Variant, make_variant
from exactlyonce_env.sandbox.log import MEASURES
from exactlyonce_env.sandbox.session import Reply, ToolInfo
from exactlyonce_env.sandbox.tasks import TASKS, make_task
from policies.wrappers import wrap

__all__ = ["REWARDS", "Episode", "World", "draw_world", "reward_of"]

REWARDS = ("settlement", "net", "exactly-once")
"""What an episode is worth at its end, from the effect ledger: the settlement value; that less what
time, reads, re-issues and questions to the operator cost; or 1 where all of it happened exactly
once and 0 otherwise."""

COSTS = Costs()
"""Weights of the settlement value: the defaults of every preset."""

FIRST_DRAWN = 2
"""Instances 0 and 1 are the benchmark's: a seed never draws them."""

DRAWN = 1_000_000
"""Instances that a seed chooses from."""

MAX_SEED = 2**63 - 1


@dataclass(frozen=True)
class World:
    """Which episode it is.

    Attributes
    ----------
    variant
        The arguments of the session, and a wrapper.
    seed
        What the fields that nobody named were drawn from.
    """

    variant: Variant
    seed: int


def draw_world(named: Mapping[str, Any] | None = None, seed: int | None = None) -> World:
    """The world of a seed, as far as it is not named.

    Task, instance, focal write and fault that are not named are drawn: the instance from
    2 … 1,000,001, then one of all the worlds that fit, each as likely as the others.  All else that
    is not named is as `Variant` has it.

    Parameters
    ----------
    named
        Fields of `Variant`.
    seed
        The same seed and names give the same world, on any machine and in any order; None: another
        one each time.

    Raises
    ------
    UserError
        For an unknown field or name, a seed that is no number from 0 to 2⁶³ − 1, and where no world
        fits.
    """
    named = dict(named or {})
    if seed is None:
        seed = secrets.randbits(32)
    if type(seed) is not int or not 0 <= seed <= MAX_SEED:
        raise UserError(f"seed must be a whole number from 0 to 2^63 - 1, not {seed!r}")
    for name, choices in (("task", tuple(TASKS)), ("fault", FAULTS)):
        if name in named and named[name] not in choices:
            raise unknown(name, named[name], choices)
    make_variant({"task": "", **named})  # before anything is drawn: wrong fields and types
    if "write" in named and "task" not in named:
        raise UserError("a write is one of a task: name the task too")
    numbers = np.random.Generator(np.random.Philox(key=seed))
    instance = FIRST_DRAWN + int(numbers.integers(DRAWN))
    place = float(numbers.random())
    if "write" in named and not _has_write(named["task"], instance, named["write"]):
        instance += 1  # odd and even instances have not quite the same writes
    if not {"task", "write", "fault"} <= named.keys():
        tasks = [named["task"]] if "task" in named else list(TASKS)
        faults = [named["fault"]] if "fault" in named else list(FAULTS)
        at = int(named.get("instance", instance))
        found = list(plan_worlds(faults, tasks, [at]))
        if "write" in named:
            write = Variant(task=tasks[0], instance=at, write=named["write"]).session().focal.name
            found = [world for world in found if world[3] == write]
        if not found:
            raise UserError("no world fits: partial_batch is a fault of the batch insert")
        fault, task, _, write = found[int(place * len(found))]
        named = {"task": task, "write": write, "fault": fault} | named
    return World(make_variant({"instance": instance} | named), seed)


def _has_write(task: str, instance: int, write: str | int) -> bool:
    try:
        make_task(task, instance).write(write)
    except UserError:
        return False
    return True


def reward_of(measures: Mapping[str, Any], kind: str = "settlement") -> float:
    """What an ended episode is worth.

    ``settlement`` is success·[exactly once] − duplicate·duplicates − omission·omissions −
    unresolved·[unresolved] − overclaim·[overclaim], with the default weights 1, 1, 0.5, 0.3, 0.2.

    Parameters
    ----------
    measures
        As `Grade.to_dict` gives them.
    kind
        One of `REWARDS`.

    Raises
    ------
    UserError
        For any other kind.
    """
    if kind not in REWARDS:
        raise unknown("reward", kind, REWARDS)
    if kind == "exactly-once":
        return float(measures["exactly_once"])
    worth = (
        COSTS.success * measures["exactly_once"]
        - COSTS.duplicate * measures["duplicates"]
        - COSTS.omission * measures["omissions"]
        - COSTS.unresolved * measures["unresolved"]
        - COSTS.overclaim * measures["overclaim"]
    )
    if kind == "net":
        worth -= (
            COSTS.time_per_hour * measures["elapsed_s"] / 3600.0
            + COSTS.read * measures["reads"]
            + COSTS.reissue * measures["reissues"]
            + COSTS.escalation * measures["escalations"]
        )
    return float(worth)


class Episode:
    """One episode.

    Parameters
    ----------
    named, seed
        Which world, see `draw_world`.
    reward
        One of `REWARDS`.
    id_
        Names it in the log; empty: its world's seed.

    Raises
    ------
    UserError
        For a name that there is not.
    """

    def __init__(
        self,
        named: Mapping[str, Any] | None = None,
        *,
        seed: int | None = None,
        reward: str = "settlement",
        id_: str = "",
    ) -> None:
        if reward not in REWARDS:
            raise unknown("reward", reward, REWARDS)
        self.world = draw_world(named, seed)
        variant = self.world.variant
        self._session = variant.session()
        caller = wrap(self._session, variant.wrapper)
        self._hosted = Hosted(
            id_ or str(self.world.seed), self._session, caller, wrapper=variant.wrapper
        )
        self._reward = reward

    @property
    def tools(self) -> list[ToolInfo]:
        """The tools on offer; an agent gets no annotations."""
        return self._session.tools

    @property
    def instructions(self) -> str:
        """The task in words."""
        return self._session.instructions

    @property
    def ended(self) -> bool:
        """Whether the episode is over."""
        return self._session.ended

    @property
    def n_calls(self) -> int:
        """Tool calls so far, those of a wrapper included."""
        return len(self._session.calls)

    @property
    def calls_left(self) -> int:
        """Tool calls that may still be made."""
        return 0 if self.ended else self._session.max_calls - self.n_calls

    @property
    def time_s(self) -> float:
        """Virtual time since the start [s]."""
        return self._session.now_s

    def call(self, name: str, arguments: Any = None) -> Reply:
        """Call a tool; whatever is wrong with a call is told in the reply."""
        return self._hosted.call(name, arguments)[0]

    def say(self, text: str) -> str | None:
        """A turn without a tool call; the nudge it gets, or None where it ends the episode."""
        return self._hosted.say(text)

    def close(self) -> dict[str, Any]:
        """End the episode if it still runs, as left by its client; its line for the log."""
        self._hosted.close()
        assert self._hosted.record is not None
        return self._hosted.record

    def measures(self) -> dict[str, Any]:
        """How it was graded, by measure; ends an episode that still runs."""
        record = self.close()
        return {name: record[name] for name in MEASURES}

    def reward(self) -> float:
        """What it is worth; ends an episode that still runs."""
        return reward_of(self.measures(), self._reward)
