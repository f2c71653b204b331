"""How near a trained policy comes to the optimum: the whole preset, its slices, its patience.

The measure is the share of the gap that is closed, (policy - wait) / (optimum - wait) in mean
reward, all three on the same worlds.  ``wait`` is the best fixed waiting bound on those very
worlds, which favours it a little; the optimum is `bayes-optimal` played there.  A slice is measured
in the same way as a preset: against the one bound that is best over all of its worlds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evaluation.bounds import BestWait, deltas_s
from evaluation.intervals import Estimate, mean_interval, paired_mean_interval
from evaluation.statistics.checks import or_why
from evaluation.statistics.seeds import performance_profile, seed_measures
from exactlyonce_env.actions import KINDS, SECONDS
from exactlyonce_env.batch import act_batch, begin_batch
from exactlyonce_env.delays import Component, Empirical, Law, LogNormal, Mixture, Weibull
from exactlyonce_env.errors import UserError
from exactlyonce_env.plan import checked_seed
from exactlyonce_env.presets import load_plan
from exactlyonce_env.records import DOCUMENTED_QUANTILES, N_TERMS, TRUTH, VIEW
from exactlyonce_env.vocabulary import Action, Ending, Mode, Readback
from policies.base import Policy, ViewBatch
from policies.bayes.explanation import belief
from policies.bayes.policy import DISCRETE, BayesOptimal, distinct_views
from policies.bayes.solution import Solution
from policies.rollout import run_policy
from policies.spec import parse_policy

if TYPE_CHECKING:
    from exactlyonce_env.plan import Plan

CONTEXTUAL = "contextual"
"""The preset whose policy must serve contexts that it was not trained in."""

NARROW = 0.005
"""Where the optimum is worth less than this above the best wait, the difference to it says more."""

SAME_VALUE = 1e-3
"""Actions this near to the best one agree with it [reward]."""

SHORTEST_S = 1.0
"""Times of a re-issue below this count as this [s]."""

N_DECILES = 10

FAULT_GROUPS: Mapping[str, tuple[Mode, ...]] = {
    "timeout": (
        Mode.TIMEOUT_PRE,
        Mode.TIMEOUT_POST,
        Mode.TIMEOUT_LATE,
        Mode.TIMEOUT_LATE_TAIL,
    ),
    "server error": (Mode.HTTP500_PRE, Mode.HTTP500_POST, Mode.PARTIAL_BATCH),
    "acknowledged": (Mode.OK, Mode.REDELIVERY),
    "explicit": (Mode.RATE_LIMITED, Mode.UNAVAILABLE, Mode.OUTAGE, Mode.SCHEMA_DRIFT),
}
"""Fates of the original by what the client is told at first."""

assert sorted(mode for group in FAULT_GROUPS.values() for mode in group) == list(Mode)

_SAMPLE_S = (35, 48, 61, 75, 90, 110, 130, 160, 190, 230, 280, 340, 420, 530, 680, 900, 1250, 1900)

TRANSFER_LAWS: Mapping[str, Law] = {
    "weibull, shape 0.5": Weibull(c=0.5, scale=300.0 / math.log(2.0) ** 2.0),
    "mixture of two": Mixture(
        components=(
            Component(weight=0.7, law=LogNormal(s=0.5, scale=60.0)),
            Component(weight=0.3, law=LogNormal(s=0.8, scale=1800.0)),
        )
    ),
    "sample of 18": Empirical(
        times_s=tuple(float(at_s) for at_s in _SAMPLE_S),
        cdf=tuple((k + 1) / len(_SAMPLE_S) for k in range(len(_SAMPLE_S))),
        n=len(_SAMPLE_S),
        source="made up",
    ),
}
"""Delay laws that `contextual` does not draw: one at a family's edge, two of other families."""

Floats = NDArray[np.float64]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Gap:
    """A policy between the best wait and the optimum, on the same worlds.

    ``gap_closed`` is None where the optimum earned no more than the best wait.
    """

    policy: Estimate
    best_wait: BestWait
    best_poll: BestWait
    bayes: Estimate
    gap_closed: Estimate | None
    difference: Estimate  # policy - optimum

    @property
    def narrow(self) -> bool:
        """Whether the optimum is worth less than `NARROW` above the best wait."""
        return self.bayes.value - self.best_wait.reward.value < NARROW

    def to_dict(self) -> dict[str, Any]:
        """In JSON's types."""
        closed = self.gap_closed
        return {
            "policy_value": self.policy.value,
            "policy_ci": self.policy.ci,
            "best_wait": self.best_wait.to_dict(),
            "best_poll": self.best_poll.to_dict(),
            "bayes_value": self.bayes.value,
            "bayes_ci": self.bayes.ci,
            "gap_closed": None if closed is None else closed.value,
            "gap_closed_ci": None if closed is None else closed.ci,
            "difference": self.difference.value,
            "difference_ci": self.difference.ci,
            "narrow": self.narrow,
            "worlds": self.policy.n,
        }


@dataclass(frozen=True, eq=False)
class Slice:
    """Some of the worlds: those with a property of one dimension."""

    dimension: str
    name: str
    members: NDArray[np.bool_]  # (n,)


@dataclass(frozen=True, eq=False)
class References:
    """What trained policies of a preset are held against: ``n`` worlds, played by all references.

    Attributes
    ----------
    optimum
        `bayes-optimal` of the plan.
    rewards
        (n,) float64 of the optimum.
    waits, polls
        By delta [s], (n,) float64 of ``wait:delta`` and ``poll:delta``.
    predicted
        What the dynamic programme expects of the optimum in worlds of these contexts.
    contexts, modes
        (n,) index of the context, and `Mode` of the original.
    first_reissue_s
        (n,) clock of the optimum's first re-issue [s]; NaN where there is none.
    """

    plan: Plan
    seed: int
    optimum: BayesOptimal
    rewards: Floats
    waits: Mapping[float, Floats]
    polls: Mapping[float, Floats]
    predicted: float
    contexts: NDArray[np.int32]
    modes: NDArray[np.int8]
    first_reissue_s: Floats

    def __len__(self) -> int:
        return len(self.rewards)

    def gap(self, rewards: Floats, members: NDArray[np.bool_] | None = None) -> Gap:
        """Where rewards (n,) of a policy on these worlds stand, or those of some members (n,)."""
        chosen = np.ones(len(self), dtype=np.bool_) if members is None else members
        wait, poll = _best(self.waits, chosen), _best(self.polls, chosen)
        own, best = rewards[chosen], self.rewards[chosen]
        return Gap(
            policy=mean_interval(own),
            best_wait=wait,
            best_poll=poll,
            bayes=mean_interval(best),
            gap_closed=gap_closed(own, self.waits[wait.delta_s][chosen], best),
            difference=paired_mean_interval(own, best),
        )


def gap_closed(policy: Floats, wait: Floats, optimum: Floats) -> Estimate | None:
    """(policy - wait) / (optimum - wait) of the mean rewards, each (n,) on the same worlds.

    The interval is that of the ratio of two paired means, linearised at the ratio. None where the
    optimum earned no more than the wait.
    """
    gap = float(optimum.mean()) - float(wait.mean())
    if gap <= 0.0:
        return None
    ratio = (float(policy.mean()) - float(wait.mean())) / gap
    spread = (policy - wait) - ratio * (optimum - wait)
    found = mean_interval(spread / gap)
    return Estimate(
        ratio, ratio + found.low - found.value, ratio + found.high - found.value, found.n
    )


def references(
    plan: Plan, *, worlds: int, seed: int = 0, progress: Progress | None = None
) -> References:
    """Play the optimum and a grid of waits in the worlds 0..``worlds`` - 1 of a seed.

    Only contracts that these worlds meet are solved.
    """
    say = progress or _silent
    ids = np.arange(worlds)
    optimum = BayesOptimal(plan)
    say("bayes-optimal")
    best = run_policy(plan, optimum, seed, ids)
    shown_as = plan.contexts["law"]["shown_as"][best.contexts]
    met, counts = np.unique(shown_as, return_counts=True)
    values = np.array([optimum.solution.value(int(contract)) for contract in met])
    grid = deltas_s(plan)
    found: dict[str, dict[float, Floats]] = {"wait": {}, "poll": {}}
    for family, rewards in found.items():
        for delta in grid:
            say(f"{family}:{delta:g}")
            policy = parse_policy(f"{family}:{delta!r}")
            rewards[delta] = run_policy(plan, policy, seed, ids).rewards
    return References(
        plan=plan,
        seed=seed,
        optimum=optimum,
        rewards=best.rewards,
        waits=found["wait"],
        polls=found["poll"],
        predicted=float(values @ counts) / worlds,
        contexts=best.contexts,
        modes=best.modes,
        first_reissue_s=first_reissues_s(plan, optimum, seed, ids),
    )


def slices(found: References) -> list[Slice]:
    """Every world once in each dimension: contract class, fault group and cost quartile.

    Contract class: how the service answers reads, and whether it takes keys.  Cost quartile: the
    ratio of the costs of a duplicate and of an hour, by its quartiles over the plan's contexts.
    """
    contracts = found.plan.contracts
    labels = np.array([_contract_class(contract) for contract in contracts])[found.contexts]
    parts = [Slice("contract", str(name), labels == name) for name in np.unique(labels)]
    for group, modes in FAULT_GROUPS.items():
        parts.append(Slice("fault", group, np.isin(found.modes, modes)))
    costs = contracts["costs"]
    hour = costs["time_per_hour"]
    ratios = np.divide(
        costs["duplicate"], hour, out=np.full(len(contracts), np.inf), where=hour > 0.0
    )
    edges = np.quantile(ratios, [0.25, 0.5, 0.75], method="inverted_cdf")
    quartiles = np.searchsorted(edges, ratios, side="left")[found.contexts]
    for k in range(4):
        parts.append(Slice("duplicate/time", f"quartile {k + 1}", quartiles == k))
    return [part for part in parts if part.members.any()]


def _contract_class(contract: Any) -> str:
    key = "key" if contract["accepts_key"] else "no key"
    return f"{Readback(int(contract['readback'])).name.lower()}, {key}"


def _best(rewards: Mapping[float, Floats], chosen: NDArray[np.bool_]) -> BestWait:
    """The delta of highest mean reward on the chosen worlds; of equals the shortest."""
    means = {delta: float(values[chosen].mean()) for delta, values in rewards.items()}
    delta_s = max(means, key=lambda delta: (means[delta], -delta))
    return BestWait(delta_s, mean_interval(rewards[delta_s][chosen]))


def first_reissues_s(plan: Plan, policy: Policy, seed: int, ids: NDArray[np.int64]) -> Floats:
    """Clock of the first re-issue in each of the worlds ``ids`` (n,) [s]; NaN where there is none.

    The sending of the original, where a policy does that, is no re-issue.
    """
    first_s = np.full(len(ids), np.nan)
    for running, views, kinds, _ in played(plan, policy, seed, ids):
        again = np.isin(kinds, (Action.RETRY, Action.KEYED_RETRY)) & (views["n_attempts"] > 0)
        again &= np.isnan(first_s[running])
        first_s[running[again]] = views["clock_s"][again]
    return first_s


def persistence_errors(first_s: Floats, optimal_s: Floats) -> Floats:
    """|log2(first re-issue / optimal one)| (n,), NaN where not both re-issue."""
    shortest = np.maximum(first_s, SHORTEST_S), np.maximum(optimal_s, SHORTEST_S)
    return np.asarray(np.abs(np.log2(shortest[0] / shortest[1])))


def persistence(errors: Floats, modes: NDArray[np.int8] | None = None) -> list[dict[str, Any]]:
    """Median of `persistence_errors` (n,), over all worlds and with ``modes`` by fault group.

    ``n`` counts the worlds where both re-issue; the median is None where there are none.
    """
    groups = {"all": np.ones(len(errors), dtype=np.bool_)}
    if modes is not None:
        groups |= {name: np.isin(modes, group) for name, group in FAULT_GROUPS.items()}
    found = []
    for name, members in groups.items():
        both = errors[members & ~np.isnan(errors)]
        median = float(np.median(both)) if len(both) else None
        found.append({"group": name, "median_log2": median, "n": len(both)})
    return found


PROFILE_AT = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0)
"""Shares of the gap at which the performance profile is told."""


def across_seeds(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Closed gaps over presets and training seeds: the measures of `evaluation.statistics.seeds`.

    Parameters
    ----------
    rows
        ``preset``, ``seed`` and ``gap_closed`` of each policy; presets without a gap are left out.

    Returns
    -------
    ``tasks``: the presets, ``runs``: the seeds that all of them have; ``iqm``, ``mean``, ``median``
    and ``optimality_gap`` of the closed gaps with their limits; ``profile``: the share of policies
    that closed more than each threshold.  Or ``why`` there is none.
    """

    def found() -> dict[str, Any]:
        gaps: dict[str, dict[int, float]] = {}
        for row in rows:
            if row["gap_closed"] is not None:
                gaps.setdefault(row["preset"], {})[row["seed"]] = row["gap_closed"]
        if not gaps:
            raise UserError("no preset leaves a gap to close")
        runs = sorted(set.intersection(*(set(by_seed) for by_seed in gaps.values())))
        scores = [[by_seed[seed] for by_seed in gaps.values()] for seed in runs]
        if len(runs) < 2:
            raise UserError("one training seed says nothing of the spread over seeds")
        measures = {name: asdict(one) for name, one in seed_measures(scores).items()}
        profile = asdict(performance_profile(scores, PROFILE_AT))
        return {"tasks": list(gaps), "runs": runs, **measures, "profile": profile}

    return or_why(found)


def agreement(
    solution: Solution, policy: Policy, seed: int, ids: NDArray[np.int64]
) -> list[dict[str, Any]]:
    """How often a policy does what is within `SAME_VALUE` of the best, by what it may believe.

    Counted are the views that the policy itself meets in the worlds ``ids`` (n,).  Decile k holds
    those where the operation is absent with a probability of k/10 to (k + 1)/10, given the view.
    A view that no history of the preset fits counts in none of them, nor does a wait of other
    length than the discrete ones and the best one, whose value is not known.

    Returns
    -------
    Ten mappings with ``decile``, ``share`` (None where ``n`` is 0) and ``n``, views.
    """
    steps = [(v, k, s) for _, v, k, s in played(solution.plan, policy, seed, ids)]
    views, kinds, seconds = (np.concatenate(part) for part in zip(*steps, strict=True))
    distinct, places = distinct_views(views)
    first = np.unique(places, return_index=True)[1]  # the same view always gets the same action
    counts = np.bincount(places, minlength=len(distinct))
    agreeing, met = np.zeros(N_DECILES, dtype=np.int64), np.zeros(N_DECILES, dtype=np.int64)
    for k, view in enumerate(distinct):
        posterior = belief(solution, view)
        lost = _regret(solution, view, int(kinds[first[k]]), float(seconds[first[k]]))
        if posterior is None or lost is None:
            continue
        decile = min(int(posterior.absent * N_DECILES), N_DECILES - 1)
        met[decile] += counts[k]
        agreeing[decile] += counts[k] * (lost <= SAME_VALUE)
    return [
        {"decile": k, "share": float(agreeing[k] / met[k]) if met[k] else None, "n": int(met[k])}
        for k in range(N_DECILES)
    ]


def _regret(solution: Solution, view: Any, kind: int, seconds: float) -> float | None:
    """What an action loses against the best one of its view; None where it was not valued."""
    answer = solution.answer(view)
    values = answer.actions[DISCRETE]
    best = max(float(values.max()), float(answer.best_wait))
    if kind == Action.WAIT and seconds == answer.best_wait_s:
        return best - float(answer.best_wait)
    chosen = np.flatnonzero((kind == KINDS) & (seconds == SECONDS))
    if not len(chosen):
        return None
    return best - float(values[chosen[0]])


def transfer_plan(law: Law) -> Plan:
    """The held-out contexts of `CONTEXTUAL` with one delay law in all of them."""
    return load_plan(CONTEXTUAL, config={"split": "test"}, delays=law)


def told(plan: Plan) -> dict[str, Any]:
    """What the views of a plan with one delay law say of it.

    ``quantiles_s``: documented quantiles of the delays [s]; ``bounded``: share of the contexts that
    document a longest time in flight.
    """
    contract = plan.contracts[0]
    bounds = plan.contracts["in_flight_bound_s"]
    return {
        "quantiles_s": {
            f"{level:g}": float(at_s)
            for level, at_s in zip(
                DOCUMENTED_QUANTILES, contract["documented_delay_s"], strict=True
            )
        },
        "bounded": float(np.isfinite(bounds).mean()),
    }


Step = tuple[NDArray[np.int64], NDArray[Any], NDArray[np.int8], Floats]


def played(plan: Plan, policy: Policy, seed: int, ids: NDArray[np.int64]) -> Iterator[Step]:
    """Play worlds ``ids`` (n,), a round of decisions at a time.

    Yields which worlds still run (m,), their views (m,), and the kinds (m,) and seconds (m,) of the
    actions chosen [s].
    """
    wanted = np.ascontiguousarray(ids, dtype=np.int64)
    n = len(wanted)
    seen, truths = np.zeros(n, dtype=VIEW), np.zeros(n, dtype=TRUTH)
    rewards, terms = np.zeros(n), np.zeros(N_TERMS)
    key = np.uint64(checked_seed(seed))
    begin_batch(plan.contexts, plan.context_cdf, plan.table, key, wanted, seen, truths)
    contracts = np.ascontiguousarray(plan.contracts)
    running = np.arange(n)
    while len(running):
        views = seen[running]
        actions = policy.act(ViewBatch(views, contracts))
        yield running, views, actions.kinds, actions.seconds
        act_batch(
            plan.contexts,
            plan.table,
            seen,
            truths,
            running,
            actions.kinds,
            actions.seconds,
            terms,
            rewards,
        )
        running = running[seen["ending"][running] == Ending.RUNNING]


def _silent(text: str) -> None:
    """Nobody watches."""
