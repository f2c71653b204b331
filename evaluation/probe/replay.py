"""One recorded decision in the hidden worlds behind its transcript, by the kernel's own rules.

Three worlds of the preset ``first-decision`` look the same when the decision is taken: the request
was lost, it executes late, or it was executed and the read-back does not show it yet.  They count
the same.  Permission, effects and settlement are the world's; nothing of them is computed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from evaluation.probe.designs import Cell, Variant
from evaluation.probe.prompts import KEY_ACTION, case_of
from exactlyonce_env.episode import Replay, Walk
from exactlyonce_env.plan import Plan
from exactlyonce_env.presets import load_plan
from exactlyonce_env.vocabulary import MODE_NAMES, Action

__all__ = [
    "OUTCOMES",
    "WORLDS",
    "Expansion",
    "expand",
    "plan_of",
    "same_key_of",
    "walk_of",
]

PRESET = "first-decision"

WORLDS: tuple[str, ...] = ("timeout_pre", "timeout_late", "timeout_post")
"""Fault modes of the original in the hidden worlds: terminal, late, committed but not visible."""

OUTCOMES: dict[str, str] = {
    "false_retry_permissions": "false_retry_permissions",
    "duplicates": "duplicates",
    "omissions": "omissions",
    "unresolved": "unresolved",
    "ledger_correct": "exactly_once",
    "resolved_exact": "resolved_exact",
}
"""Columns of the expansion, and the measure of an episode behind each."""

MOVES: dict[str, tuple[Action, float]] = {
    "retry": (Action.RETRY, 0.0),
    KEY_ACTION: (Action.KEYED_RETRY, 0.0),
    "stop": (Action.FINISH, 0.0),
    "wait": (Action.WAIT, 60.0),
    "unresolved": (Action.FINISH_UNCERTAIN, 0.0),
}
"""Actions as the kernel takes them; seconds [s] of a wait, which uses up the one call there is."""

NO_KEY = "no key"
"""The context in which the write takes no key; the others are the preset's own."""

SEED = 0
SEARCHED = 1000
"""Worlds among which one for each context and mode is found."""


@dataclass(frozen=True)
class Expansion:
    """A decision in all hidden worlds.

    Attributes
    ----------
    outcomes
        Sums over the worlds by column of `OUTCOMES`.
    reissue
        Whether the decision sends the write again.
    permitted
        Whether section 5 of the design permits that; None where nothing is sent.
    told
        The episodes, in the order of `WORLDS`.  Privileged.
    """

    outcomes: dict[str, int]
    reissue: bool
    permitted: bool | None
    told: tuple[Replay, ...]


def plan_of(context: str) -> Plan:
    """The preset; where the write takes no key, the preset with that one field changed."""
    if context != NO_KEY:
        return load_plan(PRESET)
    variant = {"name": NO_KEY, "contract": {"accepts_key": False}}
    return load_plan(PRESET, config={"variants": [variant]})


def context_of(variant: Variant, action: str = "", same_key: bool | None = None) -> str:
    """Name of the context behind a prompt.

    A key that the decision supplies is the candidate; before it is known, and where the decision
    sends none, the candidate is the original's key.
    """
    if variant.key == "none":
        return NO_KEY
    if variant.original == "omitted":
        return "key omitted"
    changed = variant.key == "changed" or (
        variant.key == "supplied" and action == KEY_ACTION and not same_key
    )
    return "key changed" if changed else "key valid"


def same_key_of(cell: Cell, key: str | None) -> bool | None:
    """Whether a supplied key is the one that the original carried; None: none was supplied."""
    if key is None:
        return None
    return cell.variant.original == "sent" and key == case_of(cell).key


@lru_cache(maxsize=8)
def _worlds(context: str) -> dict[str, int]:
    """One world id for each hidden outcome of a context."""
    plan = plan_of(context)
    found: dict[str, int] = {}
    for record in plan.worlds(SEED, range(SEARCHED)):
        if plan.situations[int(record.context)].name == context:
            found.setdefault(MODE_NAMES[int(record.fates[0].mode)], int(record.world))
    return {mode: found[mode] for mode in WORLDS}


def walk_of(variant: Variant, mode: str = WORLDS[0]) -> Walk:
    """The episode behind a prompt just before the decision; its view is the same in all worlds."""
    context = context_of(variant)
    return Walk(plan_of(context), SEED, _worlds(context)[mode])


def expand(variant: Variant, action: str, same_key: bool | None = None) -> Expansion:
    """Replay a decision.

    Parameters
    ----------
    variant
        What was asked.
    action
        The canonical action.
    same_key
        Whether the key that the decision supplies is the original's.
    """
    return _expanded(context_of(variant, action, same_key), action)


@lru_cache(maxsize=32)
def _expanded(context: str, action: str) -> Expansion:
    plan, worlds = plan_of(context), _worlds(context)
    told: list[Replay] = []
    for mode in WORLDS:
        walk = Walk(plan, SEED, worlds[mode])
        kind, seconds = MOVES[action]
        walk.act(kind, seconds, action)
        told.append(walk.told())
    permitted = {one.steps[-1].permitted for one in told}
    if len(permitted) != 1 or len({one.steps[0].view for one in told}) != 1:
        raise AssertionError("the hidden worlds do not share one transcript")
    verdict = permitted.pop()
    outcomes = {
        name: sum(int(one.outcome[measure]) for one in told) for name, measure in OUTCOMES.items()
    }
    return Expansion(outcomes, verdict is not None, verdict, tuple(told))


def measures_of(expansion: Expansion) -> dict[str, Any]:
    """The measures of all worlds in one: flags where they hold in every one, sums of the rest.

    ``unresolved`` and ``overclaim`` hold where they do in any world.
    """
    found: dict[str, Any] = {}
    for name, first in expansion.told[0].outcome.items():
        values = [one.outcome[name] for one in expansion.told]
        if not isinstance(first, bool):
            found[name] = sum(values)
        elif name in ("unresolved", "overclaim"):
            found[name] = any(values)
        else:
            found[name] = all(values)
    return found
