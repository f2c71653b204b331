"""Running whole episodes: one fused compiled loop for the line-up, one batched loop for all others.

Both give the same bytes, and neither depends on how the worlds are split over threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from exactlyonce_env import kernel
from exactlyonce_env.actions import MAX_WAIT_S
from exactlyonce_env.batch import act_batch, begin_batch, grade_batch, name_worlds
from exactlyonce_env.compiled import Array, compiled
from exactlyonce_env.errors import UserError
from exactlyonce_env.plan import Plan, checked_seed
from exactlyonce_env.records import N_TERMS, OUTCOME, TRUTH, VIEW
from exactlyonce_env.settlement import write_outcome
from exactlyonce_env.vocabulary import Action, Ending
from policies.base import (
    ActionBatch,
    AnyPolicy,
    Bound,
    PlannedPolicy,
    Policy,
    PrivilegedPolicy,
    TruthBatch,
    ViewBatch,
)
from policies.lineup import FIRST_ORACLE, LineupPolicy, Oracle, decide, decide_privileged
from policies.threads import in_threads

RUNNING = int(Ending.RUNNING)

Ids = npt.NDArray[np.int64]

MIN_WORLDS_PER_THREAD = 2048
"""Fewer worlds are done before a second thread has started."""


@dataclass(frozen=True, eq=False)
class Episodes:
    """What one policy did and earned in ``n`` worlds.

    Attributes
    ----------
    outcomes
        (n,) `OUTCOME` records, in the order of the worlds asked for.
    rewards
        (n,) float64, sum of the rewards of each episode.
    contexts
        (n,) int32, index of each world's context in the plan.
    modes
        (n,) int8, `Mode` of each world's original.
    """

    outcomes: npt.NDArray[Any]
    rewards: npt.NDArray[np.float64]
    contexts: npt.NDArray[np.int32]
    modes: npt.NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.rewards)


@compiled
def rollout(
    contexts: Array,
    context_cdf: Array,
    table: Array,
    seed: np.uint64,
    ids: Array,
    code: int,
    parameter: float,
    seen: Array,
    truth: Array,
    terms: Array,
    outcomes: Array,
    rewards: Array,
) -> None:
    """Run one episode in each of the worlds ``ids`` (n,) with a line-up policy.

    ``seen`` (1,) VIEW, ``truth`` (1,) TRUTH and ``terms`` (9,) are scratch; results go to
    ``outcomes`` (n,) OUTCOME and ``rewards`` (n,) float64.
    """
    view = seen[0]
    happened = truth[0]
    for i in range(len(ids)):
        kernel.begin(contexts, context_cdf, table, seed, ids[i], view, happened)
        context = contexts[happened.context]
        total = 0.0
        while view.ending == RUNNING:
            if code < FIRST_ORACLE:
                action, seconds = decide(code, parameter, view, context.contract)
            else:
                action, seconds = decide_privileged(
                    code, parameter, view, context.contract, happened, context.law
                )
            total += kernel.act(contexts, table, view, happened, action, seconds, terms)
        write_outcome(context.contract, view, happened, outcomes[i])
        rewards[i] = total


def run_policy(plan: Plan, policy: AnyPolicy, seed: int, ids: npt.ArrayLike) -> Episodes:
    """Run ``policy`` in the worlds ``ids`` (n,) of ``seed``.

    The line-up takes the fused loop, every other policy the batched one, a bound its own search.

    Raises
    ------
    UserError
        For a seed or an id out of range, or where an own policy returns no valid actions.
    """
    wanted = _checked_ids(ids)
    key = np.uint64(checked_seed(seed))
    if isinstance(policy, PlannedPolicy):
        policy = policy.for_plan(plan)
    if isinstance(policy, Bound):
        return _run_bound(plan, policy, key, wanted)
    # A subclass may decide otherwise, and then it is not the line-up's code that decides.
    if type(policy) is LineupPolicy or type(policy) is Oracle:
        return _run_fused(plan, policy.code, policy.parameter, key, wanted)
    return run_batched(plan, policy, seed, wanted)


def run_batched(
    plan: Plan, policy: Policy | PrivilegedPolicy, seed: int, ids: npt.ArrayLike
) -> Episodes:
    """As `run_policy`, with the batched loop: begin all worlds, act on those that still run.

    Raises
    ------
    UserError
        As `run_policy`.
    """
    wanted = _checked_ids(ids)
    key = np.uint64(checked_seed(seed))
    n = len(wanted)
    seen, truths = np.zeros(n, dtype=VIEW), np.zeros(n, dtype=TRUTH)
    rewards, terms = np.zeros(n), np.zeros(N_TERMS)
    begin_batch(plan.contexts, plan.context_cdf, plan.table, key, wanted, seen, truths)
    contracts = np.ascontiguousarray(plan.contracts)  # one layout, so compiled once
    running = np.arange(n)
    while len(running):
        views = ViewBatch(seen[running], contracts)
        if isinstance(policy, PrivilegedPolicy):
            actions = policy.act(views, TruthBatch(truths[running], plan.contexts))
        else:
            actions = policy.act(views)
        kinds, seconds = _checked_actions(actions, len(running), policy.spec)
        act_batch(plan.contexts, plan.table, seen, truths, running, kinds, seconds, terms, rewards)
        running = running[seen["ending"][running] == RUNNING]
    outcomes = np.zeros(n, dtype=OUTCOME)
    grade_batch(plan.contexts, seen, truths, outcomes)
    return Episodes(outcomes, rewards, *world_names(plan, key, wanted))


def _run_fused(plan: Plan, code: int, parameter: float, key: np.uint64, ids: Ids) -> Episodes:
    outcomes, rewards = np.zeros(len(ids), dtype=OUTCOME), np.zeros(len(ids))

    def run(part: slice) -> None:
        rollout(
            plan.contexts,
            plan.context_cdf,
            plan.table,
            key,
            ids[part],
            code,
            parameter,
            np.zeros(1, dtype=VIEW),
            np.zeros(1, dtype=TRUTH),
            np.zeros(N_TERMS),
            outcomes[part],
            rewards[part],
        )

    in_threads(len(ids), run, MIN_WORLDS_PER_THREAD)
    return Episodes(outcomes, rewards, *world_names(plan, key, ids))


def _run_bound(plan: Plan, bound: Bound, key: np.uint64, ids: Ids) -> Episodes:
    outcomes, rewards = np.zeros(len(ids), dtype=OUTCOME), np.zeros(len(ids))

    def run(part: slice) -> None:
        rewards[part], outcomes[part] = bound.best_episodes(plan, int(key), ids[part])

    in_threads(len(ids), run, MIN_WORLDS_PER_THREAD)
    return Episodes(outcomes, rewards, *world_names(plan, key, ids))


def world_names(
    plan: Plan, key: np.uint64, ids: Ids
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int8]]:
    """What tables group worlds by: each one's context (n,) and its original's `Mode` (n,)."""
    contexts = np.zeros(len(ids), dtype=np.int32)
    modes = np.zeros(len(ids), dtype=np.int8)
    name_worlds(plan.contexts, plan.context_cdf, plan.table, key, ids, contexts, modes)
    return contexts, modes


def _checked_ids(ids: npt.ArrayLike) -> Ids:
    wanted = np.asarray(ids)
    if wanted.ndim != 1 or (wanted.size and wanted.dtype.kind not in "iu"):
        raise UserError(
            f"world ids must be a sequence of integers, not {wanted.dtype} of shape {wanted.shape}"
        )
    wanted = np.ascontiguousarray(wanted, dtype=np.int64)
    if wanted.size and wanted.min() < 0:
        raise UserError(f"world ids must be at least 0, not {wanted.min()}")
    return wanted


def _checked_actions(
    actions: ActionBatch, n: int, spec: str
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float64]]:
    """The decisions of an own policy, or one line that says what is wrong with them."""
    kinds, seconds = np.asarray(actions.kinds), np.asarray(actions.seconds, dtype=np.float64)
    if kinds.shape != (n,) or seconds.shape != (n,):
        raise UserError(
            f"policy {spec!r} returned kinds of shape {kinds.shape} and seconds of shape "
            f"{seconds.shape} for {n} views; both must be ({n},)"
        )
    known = np.isin(kinds, list(Action))
    if not known.all():
        raise UserError(
            f"policy {spec!r} returned the action {kinds[~known][0]}; the kinds are "
            + ", ".join(f"{action.value} {action.name.lower()}" for action in Action)
        )
    waits = seconds[kinds == Action.WAIT]
    sound = (waits >= 0.0) & (waits <= MAX_WAIT_S)
    if not sound.all():
        raise UserError(
            f"policy {spec!r} waits {waits[~sound][0]:g} s; a wait lasts 0 to {MAX_WAIT_S:g} s"
        )
    return kinds.astype(np.int8), seconds
