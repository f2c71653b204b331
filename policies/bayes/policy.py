"""`bayes-optimal` as a policy: the best action of each view, by the programme of that view."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from exactlyonce_env.actions import (
    ACTION_NAMES,
    KINDS,
    N_ACTIONS,
    N_WAITS,
    SECONDS,
    mask_views,
)
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
from policies.bayes.solution import STEP_PRICE, Solution, solution_of, teaching_solution
from policies.threads import in_threads

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
        kinds, seconds = np.empty(len(distinct), np.int8), np.empty(len(distinct))
        for k, view in enumerate(distinct):
            key = view.tobytes()
            if key not in self._chosen:
                self._chosen[key] = best_action(self.solution.answer(view))
            kinds[k], seconds[k] = self._chosen[key]
        actions.kinds[:], actions.seconds[:] = kinds[places], seconds[places]
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


def q_values(
    plan: Plan, views: npt.NDArray[Any], step_price: float = STEP_PRICE
) -> npt.NDArray[np.float64]:
    """What each discrete action, and the best of play after it, is worth in each view.

    Meant for teaching: on a coarser grid than `BayesOptimal` decides by, and with a limit to the
    steps that counts once it is near.

    Parameters
    ----------
    plan
        Where the views come from.
    views
        (n,) `VIEW` records.
    step_price
        What a read and each discrete wait cost beside their costs [reward].

    Returns
    -------
    (n, 11) float64, expected sum of the rewards from the view on; -inf where the action is refused.
    """
    solution = teaching_solution(plan, step_price)
    distinct, places = distinct_views(views)
    values = np.empty((len(distinct), N_ACTIONS))
    masks = np.zeros((len(distinct), N_ACTIONS), dtype=np.int8)
    mask_views(distinct, np.ascontiguousarray(plan.contracts), masks)
    spent = np.array([_cost_of_nothing(contract) for contract in plan.contracts])

    def label(part: slice) -> None:
        for k in range(part.start, part.stop):
            values[k] = solution.answer(distinct[k], hurried=True).actions[DISCRETE]

    in_threads(len(distinct), label)
    # What is allowed and teaches nothing, such as a read in an outage, costs what it costs.
    wasted = values.max(axis=1, keepdims=True) - spent[distinct["context"]]
    values = np.where(np.isfinite(values), values, wasted)
    return np.where(masks != 0, values, -math.inf)[places]


def _cost_of_nothing(contract: Any) -> npt.NDArray[np.float64]:
    """What each discrete action (11,) costs where it changes nothing."""
    costs = contract["costs"]
    cost = {
        Action.READ: (costs["read"], contract["latency_s"]),
        Action.RETRY: (costs["reissue"], contract["latency_s"]),
        Action.KEYED_RETRY: (costs["reissue"], contract["latency_s"]),
        Action.ESCALATE: (costs["escalation"], contract["operator_delay_s"]),
    }
    second = costs["time_per_hour"] / 3600.0
    spent = np.array([cost.get(Action(kind), (0.0, 0.0)) for kind in KINDS])
    return np.asarray(spent[:, 0] + second * (spent[:, 1] + SECONDS), dtype=np.float64)


def distinct_views(views: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """The different ones (m,) of views (n,), and which of them each view is (n,)."""
    rows = np.ascontiguousarray(views).view((np.void, views.dtype.itemsize)).ravel()
    distinct, places = np.unique(rows, return_inverse=True)
    return distinct.view(VIEW), places
