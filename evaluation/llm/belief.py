"""How well beliefs are calibrated: what a model states, against the exact posterior of its view.

The exact posterior is that of `bayes-optimal`: what the contract, the preset's laws and the visible
history leave open, no more.  It is a fairer mark than the hidden outcome, which nobody can know.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from exactlyonce_env.episode import Walk, parse_action
from exactlyonce_env.plan import Plan
from policies.base import Bound, PlannedPolicy, TruthBatch, ViewBatch
from policies.bayes.explanation import Posterior, belief, word_of
from policies.bayes.solution import Solution, solution_of
from policies.llm.prompts import STATES
from policies.recovery import decide_one

if TYPE_CHECKING:
    from policies.base import AnyPolicy

__all__ = [
    "BINS",
    "Exact",
    "actions_of",
    "belief_row",
    "calibration",
    "decision_curve",
    "exact_belief",
]

BINS = 10
"""Bins of a calibration curve, of equal width."""


class Exact:
    """Exact posteriors of the views of replayed worlds, each computed once."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan, self.seed = plan, seed
        self.solution: Solution = solution_of(plan)
        self._known: dict[bytes, dict[str, float] | None] = {}

    def along(self, world: int, actions: Sequence[str]) -> list[dict[str, float] | None]:
        """The posterior before each of the actions, and after the last; None where none fits."""
        walk = Walk(self.plan, self.seed, world)
        found = [self._of(walk)]
        for word in actions:
            walk.act(*parse_action(word), word)
            found.append(self._of(walk))
        return found

    def _of(self, walk: Walk) -> dict[str, float] | None:
        key = walk.view.seen.tobytes()
        if key not in self._known:
            self._known[key] = exact_belief(belief(self.solution, walk.view.seen))
        return self._known[key]


def exact_belief(posterior: Posterior | None) -> dict[str, float] | None:
    """A posterior over the three states that models are asked about.

    Committed holds duplicated, too; in flight holds partial: something more will take effect or the
    rest never will, but it is neither done nor without any effect.
    """
    if posterior is None:
        return None
    return {
        "absent": posterior.absent,
        "committed": posterior.committed + posterior.duplicated,
        "in_flight": posterior.late + posterior.partial,
    }


def brier(stated: Mapping[str, float], exact: Mapping[str, float]) -> float:
    """Sum over the states of the squared difference, 0 to 2.

    Source: G. W. Brier (1950), Mon. Weather Rev. 78:1-3, with the posterior for the outcome.
    """
    return math.fsum((stated[state] - exact[state]) ** 2 for state in STATES)


def _bin(probability: float, bins: int) -> int:
    """The bin of a probability; the last digits of a quotient move nothing over an edge."""
    return min(int(probability * bins + 1e-9), bins - 1)


def calibration(
    pairs: Iterable[tuple[float, float]], bins: int = BINS
) -> list[dict[str, float | int]]:
    """Mean stated and mean exact probability by bins of the stated one; empty bins are left out.

    Parameters
    ----------
    pairs
        Stated and exact probabilities.
    bins
        Number of bins of equal width; 1 belongs to the last.
    """
    sums = [[0.0, 0.0, 0] for _ in range(bins)]
    for stated, exact in pairs:
        place = sums[_bin(stated, bins)]
        place[0] += stated
        place[1] += exact
        place[2] += 1
    return [
        {
            "low": k / bins,
            "high": (k + 1) / bins,
            "n": int(n),
            "stated": stated / n,
            "exact": exact / n,
        }
        for k, (stated, exact, n) in enumerate(sums)
        if n
    ]


def belief_row(exact: Exact, documents: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The calibration of a model's stated beliefs; None where it stated none.

    Parameters
    ----------
    exact
        The posteriors of the run's plan and seed.
    documents
        Its policy episodes, missing ones included: what was stated before trouble counts.

    Returns
    -------
    ``n`` decisions, ``brier`` (mean), ``curve`` by state, and ``mean`` stated and exact probability
    by state.
    """
    told: list[tuple[dict[str, float], dict[str, float]]] = []
    for document in documents:
        stated = [a for a in document["answers"] if a.get("belief")]
        if not stated:
            continue
        posteriors = exact.along(document["world"], document["actions"])
        for answer in stated:
            known = posteriors[answer["decision"]]
            if known is not None:
                told.append((answer["belief"], known))
    if not told:
        return None
    n = len(told)
    return {
        "n": n,
        "brier": math.fsum(brier(s, e) for s, e in told) / n,
        "curve": {state: calibration((s[state], e[state]) for s, e in told) for state in STATES},
        "mean": {
            state: {
                "stated": math.fsum(s[state] for s, _ in told) / n,
                "exact": math.fsum(e[state] for _, e in told) / n,
            }
            for state in STATES
        },
    }


KINDS: Mapping[str, str] = {
    "read": "look",
    "wait": "look",
    "retry": "reissue",
    "keyed_retry": "reissue",
    "escalate": "escalate",
    "finish": "claim",
    "finish_uncertain": "give_up",
}
"""What a decision amounts to."""

MAX_WORLDS = 400
"""Worlds whose decisions are held against exact posteriors, for policies that state no belief."""


def decision_curve(
    exact: Exact, episodes: Iterable[tuple[int, Sequence[str]]], bins: int = BINS
) -> list[dict[str, Any]]:
    """What is decided by bins of the exact probability that the operation is absent.

    A calibrated policy re-issues where that probability is high and looks on where it is not: the
    same curve for models that state beliefs, for learned policies and for scripted ones.

    Parameters
    ----------
    exact
        The posteriors of the run's plan and seed.
    episodes
        Worlds and the actions taken there.
    bins
        Number of bins of equal width.

    Returns
    -------
    One row a bin that occurs: ``low``, ``high``, ``n`` decisions, and the shares of ``look``,
    ``reissue``, ``escalate``, ``claim`` and ``give_up``.
    """
    counts: list[Counter[str]] = [Counter() for _ in range(bins)]
    for world, actions in episodes:
        for known, word in zip(exact.along(world, actions), actions, strict=False):
            if known is not None:
                kind = KINDS[word.partition(":")[0]]
                counts[_bin(known["absent"], bins)][kind] += 1
    return [
        {"low": k / bins, "high": (k + 1) / bins, "n": n}
        | {kind: count[kind] / n for kind in dict.fromkeys(KINDS.values())}
        for k, count in enumerate(counts)
        if (n := count.total())
    ]


def actions_of(
    plan: Plan, policy: AnyPolicy, seed: int, worlds: Iterable[int]
) -> Iterator[tuple[int, list[str]]]:
    """What a policy does in each of some worlds; nothing for a bound, which decides nothing."""
    if isinstance(policy, Bound):
        return
    acting = policy.for_plan(plan) if isinstance(policy, PlannedPolicy) else policy
    contracts = np.ascontiguousarray(plan.contracts)
    for world in worlds:
        walk = Walk(plan, seed, world)
        words = []
        while not walk.ended:
            batch = ViewBatch(np.array([walk.seen]), contracts)
            truth = TruthBatch(np.array([walk.truth]), plan.contexts)
            action, seconds = decide_one(acting, batch, truth)
            words.append(word_of(action, seconds))
            walk.act(action, seconds, words[-1])
        yield world, words
