"""`bayes-optimal` as a policy: the best action of each view, by the programme of that view."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from exactlyonce_env.actions import ACTION_NAMES, N_ACTIONS, N_WAITS
from exactlyonce_env.records import VIEW
from exactlyonce_env.vocabulary import Action
from policies.base import ActionBatch, PlannedPolicy, Policy, ViewBatch
from policies.bayes.records import (
    Q_ESCALATE,
    Q_FINISH,
    Q_FIRST_WAIT,
    Q_KEYED,
    Q_READ,
    Q_RETRY,
    Q_UNCERTAIN,
    Answer,
)
from policies.bayes.solution import Solution, solution_of

if TYPE_CHECKING:
    from exactlyonce_env.plan import Plan

AT_ONCE: tuple[tuple[int, Action], ...] = (
    (Q_FINISH, Action.FINISH),
    (Q_READ, Action.READ),
    (Q_KEYED, Action.KEYED_RETRY),
    (Q_RETRY, Action.RETRY),
    (Q_ESCALATE, Action.ESCALATE),
    (Q_UNCERTAIN, Action.FINISH_UNCERTAIN),
)
"""All actions but waits, in the order of preference among equals."""

DISCRETE = np.array(
    [
        Q_READ,
        *range(Q_FIRST_WAIT, Q_FIRST_WAIT + N_WAITS),
        Q_RETRY,
        Q_KEYED,
        Q_ESCALATE,
        Q_FINISH,
        Q_UNCERTAIN,
    ]
)
"""Place of each discrete action (11,) in `Answer.actions`."""

assert len(DISCRETE) == N_ACTIONS == len(ACTION_NAMES)


class BayesOptimal(Policy):
    """The best policy that sees only views, for the preset's own distribution of worlds.

    It knows the laws by which the worlds of ``plan`` are drawn, never the world that it is in.
    """

    def __init__(self, plan: Plan) -> None:
        self.solution: Solution = solution_of(plan)
        self._chosen: dict[bytes, tuple[int, float]] = {}

    @property
    def spec(self) -> str:
        """``bayes-optimal``."""
        return "bayes-optimal"

    def act(self, batch: ViewBatch) -> ActionBatch:
        """One decision for each view of the batch."""
        actions = ActionBatch.empty(len(batch))
        distinct, places = distinct_views(batch.views)
        for k, view in enumerate(distinct):
            key = view.tobytes()
            if key not in self._chosen:
                self._chosen[key] = best_action(self.solution.answer(view))
            chosen = places == k
            actions.kinds[chosen], actions.seconds[chosen] = self._chosen[key]
        return actions


class BayesOptimalOf(PlannedPolicy):
    """`bayes-optimal`, before it is known of which preset."""

    @property
    def spec(self) -> str:
        """``bayes-optimal``."""
        return "bayes-optimal"

    def for_plan(self, plan: Plan) -> BayesOptimal:
        """The policy for the worlds of ``plan``."""
        return BayesOptimal(plan)


def bayes_optimal(name: str, argument: None) -> BayesOptimalOf:
    """The registry's factory."""
    return BayesOptimalOf()


def best_action(answer: Answer) -> tuple[int, float]:
    """The best action (kind, seconds) of a view."""
    best, seconds = int(Action.WAIT), answer.best_wait_s
    value = answer.best_wait
    for place, action in reversed(AT_ONCE):
        if answer.actions[place] >= value - 1e-12:
            best, seconds, value = int(action), 0.0, float(answer.actions[place])
    return best, seconds


def q_values(plan: Plan, views: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """What each discrete action, and the best of play after it, is worth in each view.

    Parameters
    ----------
    plan
        Where the views come from.
    views
        (n,) `VIEW` records.

    Returns
    -------
    (n, 11) float64, expected sum of the rewards from the view on; -inf where the action is refused.
    """
    solution = solution_of(plan)
    distinct, places = distinct_views(views)
    values = np.empty((len(distinct), N_ACTIONS))
    for k, view in enumerate(distinct):
        values[k] = solution.answer(view).actions[DISCRETE]
    return np.where(np.isnan(values), -math.inf, values)[places]


def distinct_views(views: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """The different ones (m,) of views (n,), and which of them each view is (n,)."""
    rows = np.ascontiguousarray(views).view((np.void, views.dtype.itemsize)).ravel()
    distinct, places = np.unique(rows, return_inverse=True)
    return distinct.view(VIEW), places
