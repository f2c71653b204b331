"""What really happened, as plain data: effect ledger, measures, drawn world.  Privileged.

Nothing here may reach a policy.  Grading reads the ledger and nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from exactlyonce_env.compiled import Record
from exactlyonce_env.plan import Plan
from exactlyonce_env.records import MEASURES, OUTCOME, TRUTH
from exactlyonce_env.settlement import settle, write_outcome
from exactlyonce_env.view_building import item_list
from exactlyonce_env.vocabulary import MODE_NAMES, Mode

FLAGS = frozenset(name for name in MEASURES if OUTCOME[name] == np.dtype("i1"))
"""Measures that are yes or no."""
COUNTS = frozenset(name for name in MEASURES if OUTCOME[name] == np.dtype("i4"))
"""Measures that are whole numbers; the others are seconds."""


@dataclass(frozen=True, slots=True, order=True)
class Effect:
    """One entry of the ledger: ``item`` took effect at ``time_s`` [s] through ``attempt``."""

    time_s: float
    attempt: int
    item: int
    copy: bool
    """Whether a redelivered copy of the attempt had it."""


@dataclass(frozen=True, slots=True)
class Fortune:
    """What became of one attempt that was sent.

    Attributes
    ----------
    attempt, mode
        Its number and its fault mode; an attempt sent into an outage has mode ``outage``.
    arrival_s, execution_s
        When its request reached the service and when it executed [s]; None: never.
    items_executed, items_suppressed
        What it executed, and what it would have executed had its key not been answered for already.
    copy_s, copy_items
        When a redelivered copy executed [s], and what; None and nothing where there was no effect
        of one.
    """

    attempt: int
    mode: str
    arrival_s: float | None
    execution_s: float | None
    items_executed: tuple[int, ...]
    items_suppressed: tuple[int, ...]
    copy_s: float | None
    copy_items: tuple[int, ...]


def settled(context: Record, seen: Record, truth: Record) -> Record:
    """A copy of a `TRUTH` record in which every request and copy under way has arrived."""
    copied = np.array([truth], dtype=TRUTH)
    settle(context, seen, copied[0])
    result: Record = copied[0]
    return result


def ledger(context: Record, seen: Record, truth: Record) -> tuple[Effect, ...]:
    """The effects of a settled world in order of time.

    Executing an idempotent write again changes nothing, so each item is entered once there.

    Parameters
    ----------
    context
        The `CONTEXT` record that the world was drawn from.
    seen, truth
        Its `VIEW` and its settled `TRUTH` record.
    """
    effects: list[Effect] = []
    for j in range(int(seen.n_attempts)):
        happened = truth.attempts[j]
        at_s = float(happened.execution_s)
        copy_s = at_s + float(context.law.copy_delay_s)
        effects += [Effect(at_s, j, item, False) for item in item_list(happened.effect)]
        effects += [Effect(copy_s, j, item, True) for item in item_list(happened.copy_effect)]
    effects.sort()
    if context.contract.idempotent:
        first = {effect.item: effect for effect in reversed(effects)}
        effects = [effect for effect in effects if first[effect.item] is effect]
    return tuple(effects)


def fortunes(context: Record, seen: Record, truth: Record) -> tuple[Fortune, ...]:
    """What became of every attempt that was sent, in a settled world; parameters as `ledger`."""
    return tuple(_fortune(context, truth.attempts[j], j) for j in range(int(seen.n_attempts)))


def _fortune(context: Record, happened: Record, j: int) -> Fortune:
    executed = item_list(happened.effect)
    copied = item_list(happened.copy_effect)
    arrives = happened.mode != Mode.TIMEOUT_PRE and math.isfinite(happened.arrival_s)
    return Fortune(
        attempt=j,
        mode=MODE_NAMES[int(happened.mode)],
        arrival_s=float(happened.arrival_s) if arrives else None,
        execution_s=float(happened.execution_s) if executed else None,
        items_executed=executed,
        items_suppressed=item_list(happened.wanted & ~happened.effect),
        copy_s=float(happened.execution_s + context.law.copy_delay_s) if copied else None,
        copy_items=copied,
    )


def measures(contract: Record, seen: Record, truth: Record) -> dict[str, bool | int | float]:
    """The measures of a settled world by name: flags as bool, counts as int, times as float [s].

    An episode that is still running counts as unresolved, as if the client walked away now.
    """
    outcome = np.zeros(1, dtype=OUTCOME)
    write_outcome(contract, seen, truth, outcome[0])
    return {name: _measure(name, outcome[0][name]) for name in MEASURES}


def _measure(name: str, value: Any) -> bool | int | float:
    if name in FLAGS:
        return bool(value)
    return int(value) if name in COUNTS else float(value)


def world_dict(plan: Plan, world: Record) -> dict[str, Any]:
    """A drawn world in JSON's types.

    Parameters
    ----------
    plan
        The plan that the world was drawn from.
    world
        A `WORLD` record of `Plan.worlds`.

    Returns
    -------
    dict
        ``id``, ``seed``, ``context`` (its name), ``start``, ``contract`` (with the lag that really
        acts and ``lag_documented``), ``costs``, ``attempts`` (the fate of each one that a policy
        could make: ``mode``, ``commit_delay_s`` from sending, None for never, ``copy_delay_s`` from
        execution, None for no copy, ``items``, how many of those sent commit, and ``queued``),
        ``operator_answers``, and the law's ``retry_after_s`` and ``outage_s``.
    """
    seed, number, context, answers, _, fates = world.item()
    contract, costs = _promised(plan, context)
    law = plan.contexts[context].law
    return {
        "id": number,
        "seed": seed,
        "context": plan.situations[context].name,
        "start": plan.preset.start,
        "contract": dict(contract),
        "costs": dict(costs),
        "attempts": [_fate(*fate) for fate in fates[: contract["max_attempts"]].tolist()],
        "operator_answers": bool(answers),
        "retry_after_s": float(law.retry_after_s),
        "outage_s": float(law.outage_s),
    }


@lru_cache(maxsize=512)
def _promised(plan: Plan, context: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Contract and costs of a context in JSON's types; thousands of worlds share them."""
    situation = plan.situations[context]
    return situation.contract.model_dump(mode="json"), situation.costs.model_dump(mode="json")


def _fate(
    commit_delay_s: float, copy_delay_s: float, n_commit: int, mode: int, queued: int, _: object
) -> dict[str, Any]:
    """The fields of a `FATE` record in JSON's types."""
    return {
        "mode": MODE_NAMES[mode],
        "commit_delay_s": commit_delay_s if math.isfinite(commit_delay_s) else None,
        "copy_delay_s": copy_delay_s if math.isfinite(copy_delay_s) else None,
        "items": n_commit,
        "queued": bool(queued),
    }
