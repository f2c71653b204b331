"""What can be earned at all: the exact optimum beside the bounds and the best fixed waits.

All of it on the same worlds, so that every difference is one of policies and not of luck.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evaluation.intervals import Estimate, mean_interval
from evaluation.runner import CLAIRVOYANT, Evaluation, Progress, evaluate
from evaluation.sweep import DEFAULT_DELTAS_S, FAMILIES, default_deltas_s
from exactlyonce_env.actions import MAX_WAIT_S
from policies.bayes import bayes_value
from policies.spec import parse_policy

if TYPE_CHECKING:
    from exactlyonce_env.plan import Plan

OPTIMUM = "bayes-optimal"
ORACLE = "outcome-oracle"

FINE_DELTAS_S = tuple(round(15.0 * 2.0 ** (k / 2.0), 1) for k in range(26))
"""Waiting bounds from 15 s to a day, two an octave, beside the sweep's own."""

MAX_FIXED = 8
"""Certain delays of a preset, at most, that are waiting bounds of their own."""

FEWEST_WORLDS = 30
"""With fewer worlds of a contract its best wait would be the luckiest one."""

ROUNDING = 1e-9
"""Rewards this near to each other are equal."""

WARNED_SE = 3.0
"""A difference between prediction and simulation of more standard errors is worth a warning."""


@dataclass(frozen=True)
class BestWait:
    """The waiting bound of highest mean reward in a family, on the worlds that chose it."""

    delta_s: float
    reward: Estimate

    def to_dict(self) -> dict[str, Any]:
        """In JSON's types."""
        return {"delta_s": self.delta_s, **_estimate(self.reward)}


@dataclass(frozen=True)
class ContractBound:
    """The bound of one contract: of all contexts that a client cannot tell apart.

    `simulated` is None where no world of it was run, `best_wait` with fewer than `FEWEST_WORLDS`.
    """

    numbers: tuple[int, ...]  # of the contexts in the preset
    names: tuple[str, ...]
    weight: float  # probability
    worlds: int
    bayes_value: float
    simulated: Estimate | None
    best_wait: BestWait | None

    def to_dict(self) -> dict[str, Any]:
        """In JSON's types."""
        return {
            "numbers": list(self.numbers),
            "names": list(self.names),
            "weight": self.weight,
            "worlds": self.worlds,
            "bayes_value": self.bayes_value,
            "bayes_simulated": None if self.simulated is None else _estimate(self.simulated),
            "best_wait": None if self.best_wait is None else self.best_wait.to_dict(),
        }


@dataclass(frozen=True)
class Bounds:
    """Every bound of a preset; rewards are means per episode.

    Attributes
    ----------
    bayes_value, bayes_error_bound
        What the dynamic programme predicts, and how far the true optimum may lie from it.
    bayes_simulated
        What playing it earned.
    standard_errors
        How many standard errors the simulated value lies above the predicted one; infinite where
        they differ although all episodes earned the same.
    contexts
        One entry a contract; empty where the preset has one only.
    """

    bayes_value: float
    bayes_error_bound: float
    bayes_simulated: Estimate
    standard_errors: float
    clairvoyant: Estimate
    outcome_oracle: Estimate
    best_wait: BestWait
    best_poll: BestWait
    contexts: tuple[ContractBound, ...]
    evaluation: Evaluation

    @property
    def agrees(self) -> bool:
        """Whether simulation and prediction differ by no more than `WARNED_SE`."""
        return abs(self.standard_errors) <= WARNED_SE

    def to_dict(self) -> dict[str, Any]:
        """In JSON's types, without the episodes."""
        return {
            "preset": self.evaluation.plan.preset.name,
            "seed": self.evaluation.seed,
            "worlds": self.evaluation.worlds[1] - self.evaluation.worlds[0],
            "bayes_value": self.bayes_value,
            "bayes_error_bound": self.bayes_error_bound,
            "bayes_simulated": {
                **_estimate(self.bayes_simulated),
                "difference": self.bayes_simulated.value - self.bayes_value,
                "standard_errors": self.standard_errors,
                "agrees": self.agrees,
            },
            "clairvoyant": _estimate(self.clairvoyant),
            "outcome_oracle": _estimate(self.outcome_oracle),
            "best_wait": self.best_wait.to_dict(),
            "best_poll": self.best_poll.to_dict(),
            "contexts": [context.to_dict() for context in self.contexts],
        }


def bounds(
    plan: Plan,
    *,
    worlds: int,
    seed: int = 0,
    out: str | Path | None = None,
    command: Sequence[str] = (),
    progress: Progress | None = None,
) -> Bounds:
    """Solve a preset exactly, and run the optimum, the bounds and a grid of waits on its worlds.

    Parameters are those of `evaluation.runner.evaluate`.

    Raises
    ------
    UserError
        As `evaluation.runner.evaluate`.
    """
    grid = {f: {parse_policy(f"{f}:{d!r}").spec: d for d in deltas_s(plan)} for f in FAMILIES}
    specs = [spec for family in grid.values() for spec in family]
    evaluation = evaluate(
        plan,
        [OPTIMUM, ORACLE, CLAIRVOYANT, *specs],
        worlds=worlds,
        seed=seed,
        out=out,
        command=command,
        progress=progress,
    )
    found = bayes_value(plan)
    rewards = {spec: columns["reward"] for spec, columns in evaluation.episodes.items()}
    simulated = mean_interval(rewards[OPTIMUM])
    best = {family: _best(rewards, grid[family]) for family in FAMILIES}
    return Bounds(
        bayes_value=found.value,
        bayes_error_bound=found.error_bound,
        bayes_simulated=simulated,
        standard_errors=standard_errors(rewards[OPTIMUM], found.value),
        clairvoyant=mean_interval(rewards[CLAIRVOYANT]),
        outcome_oracle=mean_interval(rewards[ORACLE]),
        best_wait=best["wait"],
        best_poll=best["poll"],
        contexts=tuple(_by_contract(evaluation, rewards, found.contexts, grid["wait"])),
        evaluation=evaluation,
    )


def deltas_s(plan: Plan) -> list[float]:
    """The grid of waiting bounds [s]: fine, with every certain delay of a preset that has few.

    Measured delays keep the sweep's grid, which ends where the data end.
    """
    usual = default_deltas_s(plan)
    if usual != list(DEFAULT_DELTAS_S):
        return usual
    certain: set[float] = set()
    for situation in plan.situations:
        shares = situation.faults.shares("original", situation.contract.n_items)
        certain |= {latest_s for _, latest_s in situation.faults.late_laws(shares)}
    certain = {at_s for at_s in certain if at_s <= MAX_WAIT_S}
    return sorted({*usual, *FINE_DELTAS_S, *(certain if len(certain) <= MAX_FIXED else ())})


def standard_errors(rewards: NDArray[np.float64], predicted: float) -> float:
    """How many standard errors the mean of rewards (n,) lies above a prediction.

    Where all rewards are equal there is no spread, and a difference that rounding does not explain
    counts as infinite; of a single reward nothing is known (NaN).
    """
    difference = float(rewards.mean()) - predicted
    if len(rewards) < 2:
        return math.nan
    error = float(rewards.std(ddof=1)) / math.sqrt(len(rewards))
    if error <= ROUNDING:
        return 0.0 if abs(difference) <= ROUNDING else math.copysign(math.inf, difference)
    return difference / error


def _best(rewards: Mapping[str, NDArray[np.float64]], grid: Mapping[str, float]) -> BestWait:
    """The best of a family; of equals the shortest."""
    spec = max(grid, key=lambda spec: (rewards[spec].mean(), -grid[spec]))
    return BestWait(grid[spec], mean_interval(rewards[spec]))


def _by_contract(
    evaluation: Evaluation,
    rewards: Mapping[str, NDArray[np.float64]],
    values: NDArray[np.float64],
    waits: Mapping[str, float],
) -> Iterator[ContractBound]:
    """One bound a contract, where there are several."""
    plan = evaluation.plan
    shown_as = plan.contexts["law"]["shown_as"]
    contracts = np.unique(shown_as)
    if len(contracts) == 1:
        return
    chances = np.diff(plan.context_cdf, prepend=0.0)
    of_worlds = shown_as[evaluation.episodes[OPTIMUM]["context"]]
    for contract in contracts:
        members = np.flatnonzero(shown_as == contract)
        there = np.flatnonzero(of_worlds == contract)
        best = None
        if len(there) >= FEWEST_WORLDS:
            best = _best({spec: rewards[spec][there] for spec in waits}, waits)
        yield ContractBound(
            numbers=tuple(members.tolist()),
            names=tuple(plan.situations[int(k)].name or f"context {k}" for k in members),
            weight=float(chances[members].sum()),
            worlds=len(there),
            bayes_value=float(values[contract]),
            simulated=mean_interval(rewards[OPTIMUM][there]) if len(there) else None,
            best_wait=best,
        )


def _estimate(estimate: Estimate) -> dict[str, Any]:
    return {"value": estimate.value, "ci": estimate.ci}
