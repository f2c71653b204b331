"""Replaying one world under given actions: the views are the client's, the rest is privileged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from exactlyonce_env import kernel
from exactlyonce_env.actions import MAX_WAIT_S
from exactlyonce_env.compiled import Record
from exactlyonce_env.errors import UserError, did_you_mean
from exactlyonce_env.ledger import Effect, Fortune, fortunes, ledger, measures, settled
from exactlyonce_env.plan import Plan, checked_seed, checked_world
from exactlyonce_env.records import N_TERMS, TRUTH, VIEW
from exactlyonce_env.view import View
from exactlyonce_env.vocabulary import TERM_NAMES, Action, Ending

ACTION_WORDS: tuple[str, ...] = (
    "read",
    "wait:SECONDS",
    "retry",
    "keyed_retry",
    "escalate",
    "finish",
    "finish_uncertain",
)
"""The words of the actions; SECONDS is any number from 0 to a week."""


@dataclass(frozen=True, slots=True)
class Step:
    """One action and what came of it; the first step of a replay stands before any action.

    Attributes
    ----------
    action
        The word, or None before the first action.
    clock_s
        Clock after it [s].
    view
        What the client had seen by then.
    reward_terms
        The nine parts of the reward of this step, by name; all 0 before the first action.
    permitted
        For a re-issue, whether section 5 of the design permitted it; None for everything else.
    """

    action: str | None
    clock_s: float
    view: View
    reward_terms: dict[str, float]
    permitted: bool | None

    @property
    def reward(self) -> float:
        """Sum of the terms, in their order."""
        return sum(self.reward_terms.values(), 0.0)


@dataclass(frozen=True, slots=True)
class Replay:
    """One world under given actions.  All but the steps is privileged.

    Where the actions end before the episode does, ``ended`` is false, the ledger and the outcome
    are those of a client that walks away now (requests in flight complete, the operation is
    unresolved), and the reward has no settlement value yet.

    Attributes
    ----------
    preset, seed, world, context
        Where the world comes from: the preset's name, the key, the id, and the name of its context.
    steps
        The view before the first action, then one step for each action.
    ended, ending
        Whether the episode is over, and how: ``claimed``, ``uncertain``, ``exhausted`` or None.
    attempts
        What became of every attempt that was sent.
    ledger
        Every effect in order of time, those after the last action included.
    outcome
        The sixteen measures by name.
    """

    preset: str
    seed: int
    world: int
    context: str | None
    steps: tuple[Step, ...]
    ended: bool
    ending: str | None
    attempts: tuple[Fortune, ...]
    ledger: tuple[Effect, ...]
    outcome: dict[str, bool | int | float]

    @property
    def reward(self) -> float:
        """Sum of the rewards of all steps."""
        return sum((step.reward for step in self.steps), 0.0)

    def to_dict(self) -> dict[str, Any]:
        """The replay in JSON's types."""
        return {
            "preset": self.preset,
            "seed": self.seed,
            "world": self.world,
            "context": self.context,
            "ended": self.ended,
            "ending": self.ending,
            "steps": [
                {
                    "action": step.action,
                    "clock_s": step.clock_s,
                    "view": {"text": step.view.text, "fields": step.view.fields},
                    "reward_terms": step.reward_terms,
                    "permitted": step.permitted,
                }
                for step in self.steps
            ],
            "attempts": [asdict(attempt) for attempt in self.attempts],
            "ledger": [asdict(effect) for effect in self.ledger],
            "outcome": self.outcome,
            "reward": self.reward,
        }


def parse_action(word: str) -> tuple[Action, float]:
    """The kind of action and the seconds of a wait (0 for all others) behind an action word.

    Raises
    ------
    UserError
        For an unknown word and for seconds that are no number from 0 to `MAX_WAIT_S`.
    """
    if not isinstance(word, str):
        raise UserError(f"action {word!r} is not a word; choose from {', '.join(ACTION_WORDS)}")
    name, colon, seconds = word.strip().partition(":")
    if name == "wait":
        return Action.WAIT, _seconds(word, seconds)
    if colon or name not in ACTION_WORDS:
        hint = did_you_mean(name, ACTION_WORDS)
        raise UserError(f"unknown action {word!r}{hint}; choose from {', '.join(ACTION_WORDS)}")
    return Action[name.upper()], 0.0


def _seconds(word: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.0 <= seconds <= MAX_WAIT_S:
        raise UserError(
            f"action {word!r}: wait takes seconds from 0 to {MAX_WAIT_S:g}, as in wait:60"
        )
    return seconds


def split_actions(actions: str | Sequence[str]) -> list[str]:
    """Action words from a comma-separated text or from a sequence; an empty text has none."""
    if not isinstance(actions, str):
        return list(actions)
    return [word.strip() for word in actions.split(",")] if actions.strip() else []


def replay(plan: Plan, seed: int, world: int, actions: str | Sequence[str]) -> Replay:
    """Take ``actions`` in one world and tell everything.

    Parameters
    ----------
    plan
        A compiled preset.
    seed, world
        Key and id of the world.
    actions
        Action words, comma-separated or as a sequence: ``read``, ``wait:SECONDS``, ``retry``,
        ``keyed_retry``, ``escalate``, ``finish``, ``finish_uncertain``.

    Raises
    ------
    UserError
        For an unknown action, an action after the end of the episode, and a seed or id out of
        range.

    Examples
    --------
    >>> from exactlyonce_env.presets import load_plan
    >>> told = replay(load_plan("late-fixed"), 0, 4, "read,finish_uncertain")
    >>> told.ending, told.outcome["unresolved"]
    ('uncertain', True)
    """
    words = split_actions(actions)
    parsed = [parse_action(word) for word in words]
    walk = Walk(plan, seed, world)
    for k, (kind, seconds) in enumerate(parsed):
        if walk.ended:
            raise UserError(_after_the_end(words, k, walk.seen))
        walk.act(kind, seconds, words[k])
    return walk.told()


class Walk:
    """One episode, an action at a time.  All but the views is privileged.

    Parameters
    ----------
    plan
        A compiled preset.
    seed, world
        Key and id of the world.

    Raises
    ------
    UserError
        For a seed or id out of range.
    """

    def __init__(self, plan: Plan, seed: int, world: int) -> None:
        self.plan, self.seed, self.world = plan, checked_seed(seed), checked_world(world)
        self._seen, self._truth = np.zeros(1, dtype=VIEW), np.zeros(1, dtype=TRUTH)
        self._terms = np.zeros(N_TERMS)
        kernel.begin(
            plan.contexts,
            plan.context_cdf,
            plan.table,
            np.uint64(self.seed),
            self.world,
            self.seen,
            self.truth,
        )
        self._context = plan.contexts[self.truth.context]
        self.steps = [_step(None, self.seen, self._context, self._terms, None)]

    @property
    def seen(self) -> Record:
        """The `VIEW` record as it stands; it changes with every action."""
        return self._seen[0]

    @property
    def truth(self) -> Record:
        """The `TRUTH` record as it stands.  Privileged."""
        return self._truth[0]

    @property
    def view(self) -> View:
        """What the client has seen."""
        return self.steps[-1].view

    @property
    def ended(self) -> bool:
        """Whether the episode is over."""
        return bool(self.seen.ending)

    def act(self, kind: Action, seconds: float, word: str) -> Step:
        """Take an action in a running episode; ``word`` is what it is called in the replay."""
        reissues, false_ones = int(self.seen.n_reissues), int(self.truth.false_permissions)
        plan = self.plan
        kernel.act(
            plan.contexts, plan.table, self.seen, self.truth, int(kind), seconds, self._terms
        )
        permitted = None
        if self.seen.n_reissues > reissues:
            permitted = bool(self.truth.false_permissions == false_ones)
        self.steps.append(_step(word, self.seen, self._context, self._terms, permitted))
        return self.steps[-1]

    def told(self) -> Replay:
        """The whole story so far."""
        ending = Ending(int(self.seen.ending))
        final = settled(self._context, self.seen, self.truth)
        return Replay(
            preset=self.plan.preset.name,
            seed=self.seed,
            world=self.world,
            context=self.plan.situations[int(self.truth.context)].name,
            steps=tuple(self.steps),
            ended=ending != Ending.RUNNING,
            ending=None if ending == Ending.RUNNING else ending.name.lower(),
            attempts=fortunes(self._context, self.seen, final),
            ledger=ledger(self._context, self.seen, final),
            outcome=measures(self._context.contract, self.seen, final),
        )


def _step(
    action: str | None,
    seen: Record,
    context: Record,
    terms: np.ndarray[Any, np.dtype[np.float64]],
    permitted: bool | None,
) -> Step:
    # Adding 0.0 turns the -0.0 of a cost that did not arise into 0.0.
    named = dict(zip(TERM_NAMES, (float(term) + 0.0 for term in terms), strict=True))
    return Step(action, float(seen.clock_s), View.of(seen, context.contract), named, permitted)


def _after_the_end(words: Sequence[str], k: int, seen: Record) -> str:
    how = {
        Ending.CLAIMED: "claimed completion",
        Ending.UNCERTAIN: "ended it as uncertain",
        Ending.EXHAUSTED: "used up the budget of calls",
    }[Ending(int(seen.ending))]
    return (
        f"action {k + 1} ({words[k]}) comes after the end of the episode: action {k} "
        f"({words[k - 1]}) {how}; leave it and what follows out"
    )
