"""Several operations an episode: a sandbox task, in which waiting can be filled with other work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded

from exactlyonce_env.actions import ACTION_NAMES, KINDS, N_ACTIONS, SECONDS, mask_views
from exactlyonce_env.errors import UserError
from exactlyonce_env.observation import BOUND, N_FEATURES, observe_views
from exactlyonce_env.records import N_TERMS
from exactlyonce_env.sandbox.carrying_out import first_arguments, perform
from exactlyonce_env.sandbox.contracts import FAULTS
from exactlyonce_env.sandbox.grading import Grade, grade
from exactlyonce_env.sandbox.operations import Operation
from exactlyonce_env.sandbox.session import MAX_CALLS, Session
from exactlyonce_env.sandbox.tasks import TASKS, make_task
from exactlyonce_env.sandbox.tools import BATCH
from exactlyonce_env.settlement import write_settlement
from exactlyonce_env.vocabulary import Action, Ending

__all__ = ["DEFER", "EXTRA_FEATURES", "WorkflowEnv"]

DEFER = N_ACTIONS
"""Number of the action that leaves an operation for later."""

EXTRA_FEATURES = (
    ("steps_done", "share of the task's writes that were sent"),
    ("open", "number of writes whose outcome is open, / 10"),
    ("calls_left", "share of the task's calls that is left"),
    ("can_defer", "flag: something else can be done first"),
)
"""What the observation holds beyond the features of the write in focus: name and meaning."""

MAX_INSTANCE = 2**20
Observation = npt.NDArray[np.float32]


class WorkflowEnv(gymnasium.Env[Observation, np.int64]):
    """A task of several writes; the one in focus failed.  What now, and what meanwhile?

    ## Description

    The environment does the writes of a sandbox task one after the other until one of them ends in
    an error.  Then the agent decides about it with the actions of the single-operation world, or
    leaves it for later and goes on with the next write.  When every write is acknowledged, finished
    or given up, the task is finished and settled.

    ## Action Space

    ``Discrete(12)``: the eleven discrete actions of `RecoveryEnv` about the write in focus, where
    `finish` takes it as done and `finish_uncertain` gives it up as uncertain, and 11 `defer`: the
    next write of the task is done first, and then the next open one gets the focus.  Where there is
    nothing else to do `defer` uses up a step of the environment and nothing else; the mask says so.

    ## Observation Space

    ``Box(-1, 2, (n + 4,), float32)``: the n features of the view of the write in focus, as in
    `RecoveryEnv`, then `steps_done`, `open`, `calls_left` and `can_defer` (`EXTRA_FEATURES`).

    ## Rewards

    Each step pays for the time that passes and for what it was (`read`, `reissue`, `escalation`),
    with the default costs of the contracts.  The last one adds the settlement of the whole task:
    `success` if all of it happened exactly once, minus `duplicate`, `omission` for each, and
    `unresolved` or `overclaim`.

    ## Starting State

    ``reset(seed=S)`` draws the task, its instance, the focal write and the fault; the options
    ``task``, ``instance``, ``write`` and ``fault`` fix them.  An episode in which no write fails
    does not occur unless the options ask for fault ``ok``: then it ends with the first step.

    ## Episode End

    When the task is finished, or its 40 calls are used up (unresolved).  Never truncated.

    ## Arguments

    | parameter | default | meaning |
    | --- | --- | --- |
    | `tasks` | all twelve | names of the tasks that are drawn |
    | `faults` | all twelve | faults that are drawn |
    | `contract` | `"native"` | or `"keys-everywhere"` |
    | `first_send` | `"keyed"` | a key on the first send where one is taken; or `"plain"` |
    | `render_mode` | `None` | `"ansi"`: the calls so far |

    ## Version History

    * v0: first release.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - the base class declares it so
        "render_modes": ["ansi"],
        "render_fps": 2,
    }

    def __init__(
        self,
        *,
        tasks: Sequence[str] = tuple(TASKS),
        faults: Sequence[str] = FAULTS[1:],
        contract: str = "native",
        first_send: str = "keyed",
        render_mode: str | None = None,
    ) -> None:
        for name, given, choices in (("tasks", tasks, tuple(TASKS)), ("faults", faults, FAULTS)):
            unknown = [entry for entry in given if entry not in choices]
            if unknown or not given:
                raise UserError(f"{name} must be some of {', '.join(choices)}, not {list(given)!r}")
        if render_mode not in (None, "ansi"):
            raise UserError(f"render_mode must be None or 'ansi', not {render_mode!r}")
        self.tasks, self.faults = tuple(tasks), tuple(faults)
        self.contract, self.first_send, self.render_mode = contract, first_send, render_mode
        Session(self.tasks[0], contract=contract)  # refuses an unknown contract now
        n = N_FEATURES + len(EXTRA_FEATURES)
        self.observation_space = gymnasium.spaces.Box(-1.0, BOUND, (n,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(N_ACTIONS + 1)
        self._session: Session | None = None
        self._focus: list[tuple[str, Operation, dict[str, Any]]] = []
        self._next = 0
        self._uncertain: list[str] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Open a task: see *Starting State* above.

        Raises
        ------
        UserError
            For an unknown option or name.
        """
        super().reset(seed=seed)
        chosen = dict(options or {})
        unknown = set(chosen) - {"task", "instance", "write", "fault"}
        if unknown:
            raise UserError(
                f"unknown option {min(unknown)!r}; choose from task, instance, write, fault"
            )
        rng = self.np_random
        task = chosen.get("task", self.tasks[int(rng.integers(len(self.tasks)))])
        instance = chosen.get("instance", int(rng.integers(MAX_INSTANCE)))
        made = make_task(task, instance)
        write = chosen.get("write", made.focal[int(rng.integers(len(made.focal)))])
        fits = [
            fault
            for fault in self.faults
            if fault != "partial_batch" or made.write(write).path == BATCH
        ]
        fault = chosen.get("fault", fits[int(rng.integers(len(fits)))] if fits else "ok")
        self._session = Session(
            task, instance=instance, write=write, fault=fault, contract=self.contract
        )
        self._focus, self._next, self._uncertain = [], 0, []
        self._go_on()
        return self._observe(), self._info(None)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Decide about the write in focus.

        Raises
        ------
        ResetNeeded
            Before the first reset and after the end of an episode.
        UserError
            For an action outside the action space.
        """
        if self._session is None or self._session.ended:
            raise ResetNeeded("no episode is running: call reset() first")
        session = self.session
        if not self.action_space.contains(np.int64(action)):
            raise UserError(f"action must lie in 0..{N_ACTIONS}, not {action!r}")
        before_s, calls = session.now_s, len(session.calls)
        if action == DEFER:
            self._defer()
        elif self._focus:
            self._act(Action(int(KINDS[action])), float(SECONDS[action]))
        self._go_on()
        self._finish_if_done()
        costs = session.plan.contracts[0]["costs"]
        reward = -float(costs["time_per_hour"]) * (session.now_s - before_s) / 3600.0
        for call in session.calls[calls:]:
            if call.tool == "escalate_to_human":
                reward -= float(costs["escalation"])
        if action != DEFER:
            kind = int(KINDS[action])
            reward -= float(costs["read"]) * (kind == Action.READ)
            reward -= float(costs["reissue"]) * (kind in (Action.RETRY, Action.KEYED_RETRY))
        found = grade(session) if self.session.ended else None
        if found is not None:
            reward += self._settlement(session.plan.contracts[0], found)
        return self._observe(), reward, found is not None, False, self._info(found)

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which actions (12,) are not refused, True = allowed; as sb3-contrib takes it."""
        return self._mask().view(np.bool_)

    def render(self) -> str | None:
        """The calls so far, one a line, in mode ``ansi``."""
        if self.render_mode is None or self._session is None:
            return None
        return "\n".join(
            f"{call.ended_s:>8.0f} s  {call.tool}: {call.reply.text}"
            for call in self._session.calls
        )

    # -- the task ---------------------------------------------------------------------------------

    @property
    def session(self) -> Session:
        """The episode.  Privileged: it holds the truth."""
        if self._session is None:
            raise ResetNeeded("no episode is running: call reset() first")
        return self._session

    def _do_next(self) -> None:
        """Do the next write of the task; it gets into the focus where it fails."""
        session = self.session
        step = session.task.steps[self._next]
        self._next += 1
        arguments = first_arguments(session, step, self.first_send)
        if session.call(step.tool, arguments).error:
            operation = session.operation(step.tool, arguments)
            if operation is None:
                self._uncertain.append(step.name)
            else:
                self._focus.append((step.name, operation, arguments))

    def _go_on(self) -> None:
        """Do the writes of the task for as long as none is open."""
        session = self.session
        while not self._focus and self._next < len(session.task.steps) and not session.ended:
            self._do_next()

    def _defer(self) -> None:
        session = self.session
        if self._next < len(session.task.steps):
            self._do_next()
        if len(self._focus) > 1:
            self._focus.append(self._focus.pop(0))

    def _act(self, action: Action, seconds: float) -> None:
        name, operation, arguments = self._focus[0]
        if action == Action.FINISH_UNCERTAIN:
            self._uncertain.append(name)
        if action in (Action.FINISH, Action.FINISH_UNCERTAIN):
            done = True
        else:
            session = self.session
            done = perform(session, session, operation, arguments, action, seconds)
        if done:
            self._focus.pop(0)

    def _finish_if_done(self) -> None:
        if self._focus or self.session.ended:
            return
        self.session.call(
            "finish",
            {
                "status": "uncertain" if self._uncertain else "completed",
                "summary": "end of the task",
                "uncertain_operations": self._uncertain,
            },
        )

    @staticmethod
    def _settlement(contract: Any, found: Grade) -> float:
        """What the task is worth; the environment undoes nothing and harms nothing else."""
        terms = np.zeros(N_TERMS)
        write_settlement(
            contract.costs, found.duplicates, found.omissions, not found.unresolved, terms
        )
        return float(terms.sum())

    # -- what the agent sees ----------------------------------------------------------------------

    @property
    def _can_defer(self) -> bool:
        return self._next < len(self.session.task.steps) or len(self._focus) > 1

    def _observe(self) -> Observation:
        session = self.session
        found = np.zeros(N_FEATURES + len(EXTRA_FEATURES), np.float32)
        if self._focus:
            _, operation, _ = self._focus[0]
            operation.settle_clock(session.now_s)
            out = np.zeros((1, N_FEATURES), np.float32)
            observe_views(operation.seen, session.plan.contracts, session.plan.static, out)
            found[:N_FEATURES] = out[0]
        found[N_FEATURES:] = (
            self._next / len(session.task.steps),
            len(self._focus) / 10.0,
            1.0 - len(session.calls) / MAX_CALLS,
            float(self._can_defer),
        )
        return found

    def _mask(self) -> npt.NDArray[np.int8]:
        mask = np.zeros(N_ACTIONS + 1, np.int8)
        if not self._focus:
            mask[ACTION_NAMES.index("finish")] = 1
            return mask
        own = np.zeros((1, N_ACTIONS), np.int8)
        mask_views(self._focus[0][1].seen, self.session.plan.contracts, own)
        mask[:N_ACTIONS] = own[0]
        mask[DEFER] = self._can_defer
        return mask

    def _info(self, found: Grade | None) -> dict[str, Any]:
        return {
            "action_mask": self._mask(),
            "cost": float(found.duplicates) if found else 0.0,
            "cost_duplicates": float(found.duplicates) if found else 0.0,
            "is_success": bool(found and found.exactly_once),
            "task": self.session.task.name,
            "claimed": bool(self.session.ending == Ending.CLAIMED),
        }
