"""The history in which nothing ever shows: how long the optimum holds out, and what it does when.

The original is sent, its response leaves the outcome open, and no read or report shows an effect.
Every client that persists walks along this path; what happens off it ends the waiting.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from exactlyonce_env import kernel
from exactlyonce_env.errors import UserError
from exactlyonce_env.records import N_TERMS, TRUTH, VIEW
from exactlyonce_env.vocabulary import GROUPS, Action, Ending, Mode, Readback, Start
from policies.bayes.policy import best_action
from policies.bayes.solution import Solution, solution_of

if TYPE_CHECKING:
    from exactlyonce_env.plan import Plan

SENDS = (Action.RETRY, Action.KEYED_RETRY)
LAST = (*SENDS, Action.FINISH, Action.FINISH_UNCERTAIN)
"""What ends the holding out: re-issuing, or no longer wanting to know."""


class HoldOut(NamedTuple):
    """Where the path ends on which nothing shows: ``action`` is None where the budget ends it."""

    action: Action | None
    elapsed_s: float  # [s] since the original was sent


def hold_out(plan: Plan, context: int) -> HoldOut:
    """How long the optimum holds out under one context of the plan, and what it then does.

    Raises
    ------
    UserError
        Where no response to the original leaves its outcome open.
    """
    path = _QuietWorld(plan, context)
    while path.running:
        action, seconds = path.best()
        if action in LAST:
            return HoldOut(action, path.elapsed_s)
        path.take(action, seconds)
    return HoldOut(None, path.elapsed_s)


def quiet_view(plan: Plan, context: int, elapsed_s: float) -> npt.NDArray[Any]:
    """The view (1,) of a client whose read has just shown nothing, ``elapsed_s`` after the sending.

    Where there is no read-back, time has merely passed. A moment earlier than any read can end gets
    the view of the earliest one.

    Raises
    ------
    UserError
        Where no response to the original leaves its outcome open, or the calls are used up by then.
    """
    path = _QuietWorld(plan, context)
    contract = plan.contracts[context]
    reads = contract["readback"] != Readback.NONE
    wait_s = elapsed_s - path.elapsed_s - (float(contract["latency_s"]) if reads else 0.0)
    if wait_s > 0.0:
        path.take(Action.WAIT, wait_s)
    if reads:
        path.take(Action.READ, 0.0)
    if not path.running:
        raise UserError(
            f"context {plan.situations[context].name!r} has contract.max_steps "
            f"{int(contract['max_steps'])}: too few calls to wait and read"
        )
    return path.seen


def open_mode(plan: Plan, context: int) -> Mode:
    """The mode of an original that has no effect behind a response that leaves this open.

    A timeout where there may be one, else an HTTP 500.

    Raises
    ------
    UserError
        Where neither has a chance.
    """
    shares = np.diff(plan.contexts[context]["law"]["first_cdf"], prepend=0.0)
    for group, mode in (("timeout", Mode.TIMEOUT_PRE), ("server_error", Mode.HTTP500_PRE)):
        if shares[list(GROUPS[group])].sum() > 0.0:
            return mode
    raise UserError(
        f"context {plan.situations[context].name!r} has neither timeouts nor HTTP 500: nothing is "
        "left open, so there is nothing to hold out for"
    )


class _QuietWorld:
    """A made-up world of one context in which whatever is sent is lost."""

    def __init__(self, plan: Plan, context: int) -> None:
        self.plan = plan
        self.solution: Solution = solution_of(plan)
        self.seen, self.truth = np.zeros(1, VIEW), np.zeros(1, TRUTH)
        self.mode = int(open_mode(plan, context))
        kernel.begin_fated(
            plan.contexts, context, self.seen[0], self.truth[0], self.mode, *_NO_EFFECT
        )
        self.truth["operator_answers"] = plan.contracts[context]["operator_answer_rate"] > 0.0
        if plan.contracts[context]["start"] == Start.SEND:
            action, _ = self.best()
            self.take(action if action in SENDS else Action.RETRY, 0.0)

    @property
    def running(self) -> bool:
        """Whether the episode goes on."""
        return bool(self.seen[0].ending == Ending.RUNNING)

    @property
    def elapsed_s(self) -> float:
        """Time since the original was sent [s]."""
        return float(self.seen[0].clock_s - self.seen[0].attempts[0].sent_s)

    def best(self) -> tuple[Action, float]:
        """What the optimum does now."""
        kind, seconds = best_action(self.solution.answer(self.seen[0]))
        return Action(kind), seconds

    def take(self, action: Action, seconds: float) -> None:
        """Take an action, and see nothing."""
        kernel.act_fated(
            self.plan.contexts,
            self.seen[0],
            self.truth[0],
            int(action),
            seconds,
            self.mode,
            *_NO_EFFECT,
            np.zeros(N_TERMS),
        )


_NO_EFFECT = (0.0, math.inf, np.int64(0), True)
"""Delay, delay of a copy, items committed, queued: of an attempt that executes nothing."""
