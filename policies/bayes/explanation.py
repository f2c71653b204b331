"""Why the optimum does what it does: what a client may believe, and what each action is worth.

`explain` replays one world with any policy and holds every decision against the optimum of the view
that it was taken in.  Beliefs and values come from views alone; only the end of the replay, the
ledger, is privileged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from exactlyonce_env import kernel
from exactlyonce_env.episode import Replay, replay
from exactlyonce_env.errors import UserError
from exactlyonce_env.plan import checked_seed, checked_world
from exactlyonce_env.records import N_TERMS, TRUTH, VIEW
from exactlyonce_env.view_text import number_text, seconds_text
from exactlyonce_env.vocabulary import Action, Ending, Readback, Term
from policies.base import Bound, PlannedPolicy, PrivilegedPolicy, TruthBatch, ViewBatch
from policies.bayes.beliefs import believe, is_live
from policies.bayes.policy import best_action
from policies.bayes.reading_times import plan_reads
from policies.bayes.records import (
    Q_ESCALATE,
    Q_FINISH,
    Q_KEYED,
    Q_READ,
    Q_RETRY,
    Q_UNCERTAIN,
    Answer,
    Game,
    Room,
)
from policies.bayes.solution import Solution, solution_of

if TYPE_CHECKING:
    from exactlyonce_env.plan import Plan
    from policies.base import AnyPolicy

PLACES: dict[Action, int] = {
    Action.READ: Q_READ,
    Action.RETRY: Q_RETRY,
    Action.KEYED_RETRY: Q_KEYED,
    Action.ESCALATE: Q_ESCALATE,
    Action.FINISH: Q_FINISH,
    Action.FINISH_UNCERTAIN: Q_UNCERTAIN,
}
"""Where `Answer.actions` has the value of each action that is no wait."""

PHRASES: dict[Action, str] = {
    Action.READ: "reading now",
    Action.RETRY: "a plain re-issue",
    Action.KEYED_RETRY: "a keyed re-issue",
    Action.ESCALATE: "asking the operator",
    Action.FINISH: "claiming completion",
    Action.FINISH_UNCERTAIN: "ending as uncertain",
}
FIRST_SENDS: dict[Action, str] = {
    Action.RETRY: "sending without a key",
    Action.KEYED_RETRY: "sending with the key",
}

N_CUTS = 24
"""Moments to come, about, at which the delay of a late write is cut in a belief."""

LOOKING = (Action.WAIT, Action.READ)

SAME_VALUE = 5e-6
"""Values this near to each other are said to be equal [reward]."""

SAME_S = 1e-6
"""Waits this near to each other are one [s]."""


class Posterior(NamedTuple):
    """Probability of each outcome state of the operation, by the ledger of this moment.

    Absent: nothing is executed and nothing will be.  Committed: every item is, once.  Late: nothing
    is yet, but something will be.  Partial: some items are, not all.  Duplicated: an item is
    executed twice, or is certain to be.
    """

    absent: float
    committed: float
    late: float
    partial: float
    duplicated: float


class Choice(NamedTuple):
    """An action with its value."""

    action: Action
    seconds: float  # [s] of a wait; else 0
    value: float

    @property
    def word(self) -> str:
        """As `exactlyonce_env.episode.parse_action` reads it, to the last bit of a wait."""
        return word_of(self.action, self.seconds)


@dataclass(frozen=True)
class Insight:
    """What the optimum sees in one view.

    Attributes
    ----------
    values
        Value of each action by name, None where it is refused or was not valued: expected sum of
        the rewards from here on, the best of play following. Of all waits the best one.
    best, second
        The optimum's choice, and the best of the other actions; None where there is no other. To
        wait and then do the same counts for no other action.
    until_s
        Clock at which the best wait ends [s]; None where no wait is possible.
    why
        One sentence.
    """

    values: Mapping[str, float | None]
    best: Choice
    second: Choice | None
    until_s: float | None
    why: str


@dataclass(frozen=True)
class Moment:
    """One step of an explained replay: what was known then, and the decision that followed.

    Attributes
    ----------
    posterior
        None where no hidden history fits the view. That comes with play far from the best only: a
        view keeps its last report, and an earlier one before a re-issue is taken to have come right
        before it.
    insight
        None where the episode is over.
    action, value
        What the policy did and what that was worth; the value is None for a question to the
        operator within a known outage, which is not valued.
    regret
        What was lost by it, on average over all that the view leaves open; never below 0.
    """

    posterior: Posterior | None
    insight: Insight | None
    action: str | None
    value: float | None
    regret: float | None


@dataclass(frozen=True)
class Explanation:
    """A replay with its moments, one for each of its steps."""

    policy: str
    privileged: bool
    told: Replay
    moments: tuple[Moment, ...]

    @property
    def regret(self) -> float:
        """Sum of the regrets."""
        return sum((m.regret for m in self.moments if m.regret is not None), 0.0)

    def to_dict(self) -> dict[str, Any]:
        """The whole in JSON's types: the replay's dictionary, with more in each of its steps."""
        told = self.told.to_dict()
        for step, moment in zip(told["steps"], self.moments, strict=True):
            found = moment.insight
            step["posterior"] = None if moment.posterior is None else moment.posterior._asdict()
            step["values"] = None if found is None else dict(found.values)
            step["optimum"] = None if found is None else _optimum_dict(found)
            step["next_action"] = moment.action
            step["next_value"] = moment.value
            step["regret"] = moment.regret
        return {
            "policy": self.policy,
            "privileged": self.privileged,
            "regret": self.regret,
            **told,
        }


def _optimum_dict(found: Insight) -> dict[str, Any]:
    best, second = found.best, found.second
    return {
        "action": best.word,
        "value": best.value,
        "until_s": found.until_s if best.action == Action.WAIT else None,
        "second": None if second is None else second.word,
        "margin": None if second is None else best.value - second.value,
        "why": found.why,
    }


def word_of(action: int, seconds: float) -> str:
    """The word of an action, from which its seconds can be read back without loss."""
    kind = Action(action)
    return f"wait:{float(seconds)!r}" if kind == Action.WAIT else kind.name.lower()


def posterior_of(
    hypotheses: npt.NDArray[Any], contexts: npt.NDArray[Any], n_live: int, clock_s: float
) -> Posterior | None:
    """Sort weighted hidden histories by outcome state.

    Parameters
    ----------
    hypotheses
        (n,) HYPOTHESIS records, whose truths are those of ``clock_s``.
    contexts
        (C,) CONTEXT records that their truths name.
    n_live
        Number of attempts in each truth.
    clock_s
        Now [s].

    Returns
    -------
    The posterior, or None where nothing has any weight.
    """
    weights = hypotheses["weight"]
    total = float(weights.sum())
    if not total > 0.0:
        return None
    truths = hypotheses["truth"]
    attempts = truths["attempts"][:, :n_live]
    laws, contracts = contexts["law"][truths["context"]], contexts["contract"][truths["context"]]
    copied_s = attempts["execution_s"] + laws["copy_delay_s"][:, None]
    effects = np.where(attempts["execution_s"] <= clock_s, attempts["effect"], 0)
    effects |= np.where(copied_s <= clock_s, attempts["copy_effect"], 0)
    done = np.bitwise_count(np.bitwise_or.reduce(effects, axis=1, initial=0))
    in_the_end = np.bitwise_count(hypotheses["executed"])
    twice = (hypotheses["executions"] > in_the_end) & (contracts["idempotent"] == 0)
    nothing = done == 0
    states = (
        ~twice & nothing & (in_the_end == 0),
        ~twice & (done == contracts["n_items"]),
        ~twice & nothing & (in_the_end > 0),
        ~twice & ~nothing & (done < contracts["n_items"]),
        twice,
    )
    return Posterior(*(float(weights[state].sum()) / total for state in states))


def belief(solution: Solution, view: Any) -> Posterior | None:
    """What a client may believe of the operation in a `VIEW`; None where nothing fits the view."""
    game, room = solution.games[int(view["context"])], solution.room
    contexts = solution.plan.contexts
    clock_s = float(view["clock_s"])
    members = contexts[game.members]
    eventual = members["contract"]["readback"] == Readback.EVENTUAL
    # A read that looks at this very moment comes first: there delays are always cut.
    now_s = np.unique(clock_s + np.where(eventual, members["law"]["lag_s"], 0.0))
    later_s = plan_reads(game, view, N_CUTS, False)
    reads = np.concatenate([now_s, later_s[later_s > now_s[-1]]])
    live = sum(bool(is_live(attempt)) for attempt in view["attempts"][: view["n_attempts"]])
    n = _believed(game, room, view, reads)
    return posterior_of(room.hypotheses[:n], contexts, live, clock_s)


def _believed(game: Game, room: Room, view: Any, reads: npt.NDArray[np.float64]) -> int:
    """Number of the hypotheses that fit the view, cut as finely as there is room for."""
    capacity = len(room.hypotheses)
    coarse, sharp = 1, 0
    while True:
        n = int(believe(game, room, view, reads, coarse, capacity, sharp))
        if n >= 0:
            return n
        if coarse < len(reads):
            coarse *= 2
        else:
            sharp += 1


def insight(solution: Solution, view: Any, posterior: Posterior | None) -> Insight:
    """What the optimum does in the `VIEW` of a running episode, and why."""
    answer = solution.answer(view)
    kind, seconds = best_action(answer)
    choices = _choices(answer)
    best = next(c for c in choices if c.action == kind)._replace(seconds=seconds)
    # To wait and then do the same is no alternative.
    skipped = {Action.WAIT, best.action}
    second = _best_but(choices, {best.action} if best.action == Action.WAIT else skipped)
    values: dict[str, float | None] = {action.name.lower(): None for action in Action}
    values.update({choice.action.name.lower(): choice.value for choice in choices})
    until_s = None
    if values["wait"] is not None:
        until_s = float(view["clock_s"]) + answer.best_wait_s
    other = _best_but(choices, {*skipped, Action.READ}) if best.action in LOOKING else None
    why = _why(best, second, other, until_s, posterior, int(view["n_attempts"]) == 0)
    return Insight(values, best, second, until_s, why)


def _best_but(choices: list[Choice], skipped: set[Action]) -> Choice | None:
    left = (choice for choice in choices if choice.action not in skipped)
    return max(left, key=lambda choice: choice.value, default=None)


def _choices(answer: Answer) -> list[Choice]:
    """Every action that has a value; of the waits the best."""
    found = [Choice(a, 0.0, float(answer.actions[place])) for a, place in PLACES.items()]
    found.append(Choice(Action.WAIT, float(answer.best_wait_s), float(answer.best_wait)))
    return [choice for choice in found if math.isfinite(choice.value)]


def _why(
    best: Choice,
    second: Choice | None,
    other: Choice | None,
    until_s: float | None,
    posterior: Posterior | None,
    first: bool,
) -> str:
    """One sentence; ``other`` is the best that is no more looking, where the best is that."""
    parts = [f"{_phrase(best, until_s, first)} is worth {number_text(best.value)}"]
    for choice in dict.fromkeys((second, other)):
        if choice is None:
            continue
        margin = best.value - choice.value
        more = f"{margin:.2g} more than" if margin >= SAME_VALUE else "as much as"
        parts.append(f"{more} {_phrase(choice, until_s, first)}")
    if len(parts) == 1:
        parts.append("and nothing else is possible")
    sentence = ", ".join(parts)
    if posterior is not None and not first:
        sentence += f"; the operation is absent with probability {number_text(posterior.absent, 3)}"
    return sentence[0].upper() + sentence[1:] + "."


def _phrase(choice: Choice, until_s: float | None, first: bool) -> str:
    if choice.action == Action.WAIT:
        assert until_s is not None
        return f"waiting until {seconds_text(until_s)}"
    if first and choice.action in FIRST_SENDS:
        return FIRST_SENDS[choice.action]
    return PHRASES[choice.action]


def explain(plan: Plan, policy: AnyPolicy, seed: int, world: int) -> Explanation:
    """Replay one world with a policy and hold each decision against the optimum of its view.

    Raises
    ------
    UserError
        For a policy that is a bound and decides nothing, and for a seed or id out of range.
    """
    if isinstance(policy, Bound):
        raise UserError(
            f"policy {policy.spec!r} is a bound and decides nothing; name a policy such as "
            "bayes-optimal, wait:300 or guard"
        )
    seed, world = checked_seed(seed), checked_world(world)
    acting = policy.for_plan(plan) if isinstance(policy, PlannedPolicy) else policy
    solution = solution_of(plan)
    contracts = np.ascontiguousarray(plan.contracts)
    seen, truth, terms = np.zeros(1, VIEW), np.zeros(1, TRUTH), np.zeros(N_TERMS)
    kernel.begin(
        plan.contexts, plan.context_cdf, plan.table, np.uint64(seed), world, seen[0], truth[0]
    )
    words: list[str] = []
    moments: list[Moment] = []
    while seen[0].ending == Ending.RUNNING:
        before = seen.copy()
        batch = ViewBatch(before.copy(), contracts)
        if isinstance(acting, PrivilegedPolicy):
            actions = acting.act(batch, TruthBatch(truth.copy(), plan.contexts))
        else:
            actions = acting.act(batch)
        kind, seconds = int(actions.kinds[0]), float(actions.seconds[0])
        words.append(word_of(kind, seconds))
        kernel.act(plan.contexts, plan.table, seen[0], truth[0], kind, seconds, terms)
        posterior = belief(solution, before[0])
        found = insight(solution, before[0], posterior)
        value = _value_of(solution, found, before[0], kind, seconds, seen[0], terms)
        regret = None if value is None else max(found.best.value - value, 0.0)
        moments.append(Moment(posterior, found, words[-1], value, regret))
    moments.append(Moment(belief(solution, seen[0]), None, None, None, None))
    return Explanation(
        policy.spec, policy.privileged, replay(plan, seed, world, words), tuple(moments)
    )


def _value_of(
    solution: Solution,
    found: Insight,
    before: Any,
    kind: int,
    seconds: float,
    after: Any,
    terms: npt.NDArray[np.float64],
) -> float | None:
    """What an action was worth when it was taken; None where that is not valued.

    ``after`` and the reward ``terms`` (9,) are those of the action. They are looked at only where
    any world would have shown the same.
    """
    valued = found.values[Action(kind).name.lower()]
    if kind == Action.WAIT:
        best_s = (found.until_s or 0.0) - float(before["clock_s"])
        valued = valued if abs(seconds - best_s) < SAME_S else None
    if valued is not None:
        return valued
    if kind == Action.ESCALATE:
        return None
    # A wait, a client error, or a call into a known outage: it teaches nothing.
    spent = float(terms[: Term.SUCCESS].sum())
    if after["ending"] != Ending.RUNNING:
        return spent + float(solution.answer(before).idle[1])
    return spent + max(choice.value for choice in _choices(solution.answer(after)))
