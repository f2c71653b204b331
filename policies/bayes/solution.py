"""The exact bound of a whole preset: its contracts solved when first needed, and kept."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from exactlyonce_env.plan import Plan
from exactlyonce_env.vocabulary import Mode
from policies.bayes import cache
from policies.bayes.contexts import MANY_STEPS, Effort, Solved, decide, solve_contract
from policies.bayes.records import MAX_LEVEL, Answer, Game, Room, make_room

MAX_STEPS = MANY_STEPS
"""Steps left, at most, that the programme tells apart where they may run out."""

FEW_STEPS = 12
"""With no more steps than these a contract is solved for each number of them at once."""

EFFORT = Effort(n_reads=96, n_coarse=24, n_rows=8, n_children=14)
COARSER = Effort(n_reads=48, n_coarse=14, n_rows=6, n_children=10, close=math.inf)
STEP_PRICE = 2e-4
"""What teaching charges a call."""

REFINED = 64
"""Contracts, about, that are solved twice to see how much the grid matters."""


@dataclass(frozen=True, eq=False)
class BayesValue:
    """What the best honest policy earns.

    Attributes
    ----------
    value
        Expected total reward of an episode.
    contexts
        (C,) float64, the same for the contract of each context of the plan: contexts that a client
        cannot tell apart have one value.
    error_bound
        The true optimum lies within this of `value`: what a grid half as fine changes, and what
        three and more unresolved attempts, which are estimated, could change at most.
    """

    value: float
    contexts: npt.NDArray[np.float64]
    error_bound: float


@dataclass(eq=False)
class Solution:
    """The solved contracts of a plan."""

    plan: Plan
    effort: Effort = EFFORT
    step_price: float = 0.0
    games: dict[int, Game] = field(default_factory=dict)
    _solved: dict[tuple[int, bool, bool], Solved] = field(default_factory=dict)
    _rooms: threading.local = field(default_factory=threading.local)

    def __post_init__(self) -> None:
        shown_as = self.plan.contexts["law"]["shown_as"]
        chances = np.diff(self.plan.context_cdf, prepend=0.0)
        order = np.argsort(shown_as, kind="stable")
        starts = np.flatnonzero(np.diff(shown_as[order], prepend=-1))
        for members in np.split(order, starts[1:]):
            total = chances[members].sum()
            shares = chances[members] / total if total > 0 else np.ones(len(members)) / len(members)
            self.games[int(shown_as[members[0]])] = Game(
                self.plan.contexts,
                self.plan.table,
                members.astype(np.int64),
                shares,
                self.step_price,
            )

    @property
    def room(self) -> Room:
        """Scratch space of the calling thread."""
        room: Room | None = getattr(self._rooms, "room", None)
        if room is None:
            room = self._rooms.room = make_room()
        return room

    def value(self, shown_as: int) -> float:
        """What an episode under a contract is worth; contexts are named as views name them."""
        limit = int(self.plan.contexts[shown_as]["contract"]["max_steps"])
        if limit > FEW_STEPS:
            found = self.contract(shown_as, free=True)
            if found.steps <= limit or limit > MAX_STEPS:
                return found.value
        return self.contract(shown_as, free=False).value

    def contract(self, shown_as: int, free: bool, last: bool = False) -> Solved:
        """A solved contract, without a limit to the steps or with it; see `solve_contract`."""
        found = self._solved.get((shown_as, free, last))
        if found is None:
            limit = int(self.plan.contexts[shown_as]["contract"]["max_steps"])
            n_steps = 1 if free else min(limit, MAX_STEPS)
            game = self.games[shown_as]
            key = cache.key_of(game, self.effort, n_steps, free, last)
            found = cache.load(key)
            if found is None:
                found = solve_contract(game, self.room, self.effort, n_steps, free, last)
                cache.save(key, found)
            self._solved[shown_as, free, last] = found
        return found

    def answer(self, view: Any, hurried: bool = False) -> Answer:
        """What a view, and each action from it, is worth.

        ``hurried``: the limit to the steps counts only once it is near.
        """
        shown_as = int(view["context"])
        game, room = self.games[shown_as], self.room
        contract = self.plan.contexts[shown_as]["contract"]
        limit, attempts = int(contract["max_steps"]), int(contract["max_attempts"])
        last = attempts > MAX_LEVEL + 2 and attempts - int(view["n_attempts"]) <= MAX_LEVEL
        if limit > FEW_STEPS:
            found = self.contract(shown_as, True, last)
            answer = decide(game, room, self.effort, view, found)
            needed = int(answer.values[..., 0].max())
            if hurried:
                needed = min(needed, FEW_STEPS)
            left = limit - int(view["n_steps"])
            if needed <= left or left > MAX_STEPS:
                return answer
        return decide(game, room, self.effort, view, self.contract(shown_as, False, last))


@lru_cache(maxsize=8)
def solution_of(plan: Plan) -> Solution:
    """The solution of a plan, shared by all who ask for it."""
    return Solution(plan)


@lru_cache(maxsize=8)
def coarser_solution(plan: Plan) -> Solution:
    """A coarser and faster solution of a plan."""
    return Solution(plan, COARSER)


@lru_cache(maxsize=8)
def teaching_solution(plan: Plan, step_price: float = STEP_PRICE) -> Solution:
    """The same, sparing of calls: a learner has waits of five lengths, and a limit to its steps."""
    return Solution(plan, COARSER, step_price)


def bayes_value(plan: Plan) -> BayesValue:
    """Expected reward of the best policy that sees only views, by dynamic programming."""
    solution = solution_of(plan)
    shown_as = plan.contexts["law"]["shown_as"]
    contracts = [int(c) for c in np.unique(shown_as)]
    by_contract = {c: solution.value(c) for c in contracts}
    contexts = np.array([by_contract[int(c)] for c in shown_as])
    chances = np.diff(plan.context_cdf, prepend=0.0)
    sample = contracts[:: max(len(contracts) // REFINED, 1)]
    coarse = coarser_solution(plan)
    change = float(np.mean([abs(by_contract[c] - coarse.value(c)) for c in sample]))
    beyond = np.array([beyond_two(plan.contexts[k]) for k in range(len(contexts))])
    return BayesValue(float(contexts @ chances), contexts, change + float(beyond @ chances))


def beyond_two(context: Any) -> float:
    """What the third and later unresolved attempts of an episode may change, at most.

    The chance that three attempts in a row leave their outcomes open, times all that is at stake.
    """
    contract, law = context["contract"], context["law"]
    if contract["max_attempts"] < 3:
        return 0.0
    chance = [
        float(cdf[Mode.PARTIAL_BATCH] - cdf[Mode.OK])
        for cdf in (law["first_cdf"], law["retry_cdf"])
    ]
    costs = contract["costs"]
    at_stake = float(costs["success"] + costs["overclaim"] + costs["duplicate"])
    return chance[0] * chance[1] ** 2 * at_stake
