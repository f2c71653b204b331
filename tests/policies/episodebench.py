"""A bench for policies: plans with one kind of fate, and episodes written out move by move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from exactlyonce_env import kernel
from exactlyonce_env.plan import Plan
from exactlyonce_env.presets import load_plan
from exactlyonce_env.records import N_TERMS, OUTCOME, TRUTH, VIEW
from exactlyonce_env.settlement import write_outcome
from exactlyonce_env.vocabulary import Action
from policies.base import PrivilegedPolicy, TruthBatch, ViewBatch
from policies.spec import LINEUP, parse_policy

DECIDING = tuple(spec for spec in LINEUP if spec != "clairvoyant")
"""Every policy of the line-up that takes actions."""

VERIFYING = ("verify-retry", "wait:60", "poll:60")
"""Policies that re-issue a write of unknown outcome only after a report that does not show it."""


def plan_of(
    *modes: str,
    start: str = "fault",
    faults: Mapping[str, Any] | None = None,
    **contract: Any,
) -> Plan:
    """Worlds whose original meets the first mode and every later attempt the second, else `ok`."""
    original, *retry = modes
    return load_plan(
        {
            "name": "bench",
            "start": start,
            "contract": contract,
            "faults": {
                "original": {original: 1},
                "retry": {retry[0]: 1} if retry else "fit",
                "retry_fault_rate": 1.0 if retry else 0.0,
                **(faults or {}),
            },
        }
    )


@cache
def shipped(name: str) -> Plan:
    """The plan of a shipped preset; ``empirical`` with the delays of ``late-lomax``."""
    return load_plan(name, delays="lomax:c=0.8,scale=120" if name == "empirical" else None)


@dataclass(frozen=True, eq=False)
class Played:
    """One episode: its moves as text, the last view, and what came of it."""

    moves: list[str]
    view: np.record
    outcome: np.record
    reward: float


def play(plan: Plan, spec: str, world: int = 0, seed: int = 0) -> Played:
    """Let the policy play one world through the public protocol, one view at a time."""
    policy = parse_policy(spec)
    seen, truth = np.zeros(1, dtype=VIEW), np.zeros(1, dtype=TRUTH)
    kernel.begin(
        plan.contexts, plan.context_cdf, plan.table, np.uint64(seed), world, seen[0], truth[0]
    )
    moves: list[str] = []
    reward = 0.0
    while seen[0].ending == 0:
        views = ViewBatch(seen.copy(), plan.contracts)
        if isinstance(policy, PrivilegedPolicy):
            actions = policy.act(views, TruthBatch(truth.copy(), plan.contexts))
        else:
            actions = policy.act(views)
        kind, seconds = int(actions.kinds[0]), float(actions.seconds[0])
        moves.append(f"wait:{seconds:g}" if kind == Action.WAIT else Action(kind).name.lower())
        reward += kernel.act(
            plan.contexts, plan.table, seen[0], truth[0], kind, seconds, np.zeros(N_TERMS)
        )
    outcome = np.zeros(1, dtype=OUTCOME)
    write_outcome(plan.contexts[seen[0].context].contract, seen[0], truth[0], outcome[0])
    return Played(moves, seen[0], outcome[0], reward)
