"""Drawing worlds: fates as pure functions of (seed, world id, attempt)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from exactlyonce_env.compiled import Array, Record, compiled
from exactlyonce_env.philox import FIRST_ATTEMPT_INDEX, WORLD_INDEX, uniforms
from exactlyonce_env.quantiles import delay_quantile
from exactlyonce_env.records import N_MODES
from exactlyonce_env.rules import (
    M_PARTIAL_BATCH,
    M_REDELIVERY,
    M_TIMEOUT_LATE,
    commits,
    is_late,
)


@compiled
def pick(cdf: Array, n: int, u: float) -> int:
    """Smallest index whose cumulative probability exceeds ``u``."""
    index = 0
    while index < n - 1 and u >= cdf[index]:
        index += 1
    return index


@compiled
def draw_context(context_cdf: Array, seed: np.uint64, world: int) -> int:
    """Index of the context that a world lives in."""
    n = len(context_cdf)
    if n == 1:
        return 0
    fine, _, _ = uniforms(seed, world, WORLD_INDEX, 0)
    low = 0
    high = n - 1
    while low < high:
        middle = (low + high) // 2
        if fine < context_cdf[middle]:
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def draw_operator(answer_rate: float, seed: np.uint64, world: int) -> bool:
    """Whether the operator of this world ever answers."""
    if answer_rate >= 1.0:
        return True
    _, second, _ = uniforms(seed, world, WORLD_INDEX, 0)
    return second < answer_rate


@compiled
def draw_fate(
    contract: Record, law: Record, table: Array, seed: np.uint64, world: int, attempt: int
) -> tuple[int, float, float, Any, bool]:
    """Fate of one attempt: (mode, commit delay [s], copy delay [s], items committed, queued).

    The delay is infinite where nothing commits, the copy delay where there is no copy.
    """
    fine, mode_u, flag_u = uniforms(seed, world, FIRST_ATTEMPT_INDEX + attempt, 0)
    cdf = law.first_cdf if attempt == 0 else law.retry_cdf
    mode = pick(cdf, N_MODES, mode_u)
    if not commits(mode):
        return mode, math.inf, math.inf, 0, False
    delay_s = contract.latency_s
    n_commit = np.int64(contract.n_items)
    queued = False
    copy_delay_s = math.inf
    if is_late(mode):
        queued = flag_u < law.queued_share
        if mode == M_TIMEOUT_LATE:
            delay_s = law.late_fixed_s
        else:
            delay_s = delay_quantile(table, law.tail_offset, fine)
    elif mode == M_PARTIAL_BATCH:
        n_commit = 1 + np.int64(flag_u * (n_commit - 1))
    elif mode == M_REDELIVERY:
        copy_delay_s = law.copy_delay_s
    return mode, delay_s, copy_delay_s, n_commit, queued


@compiled
def draw_worlds(
    contexts: Array, context_cdf: Array, table: Array, seed: np.uint64, ids: Array, out: Array
) -> None:
    """Write the worlds ``ids`` (n,) out in full into the `WORLD` records ``out`` (n,)."""
    for i in range(len(ids)):
        world = ids[i]
        record = out[i]
        context = draw_context(context_cdf, seed, world)
        contract = contexts[context].contract
        record.seed = seed
        record.world = world
        record.context = context
        record.operator_answers = draw_operator(contract.operator_answer_rate, seed, world)
        for attempt in range(contract.max_attempts):
            mode, delay_s, copy_delay_s, n_commit, queued = draw_fate(
                contract, contexts[context].law, table, seed, world, attempt
            )
            fate = record.fates[attempt]
            fate.mode = mode
            fate.commit_delay_s = delay_s
            fate.copy_delay_s = copy_delay_s
            fate.n_commit = n_commit
            fate.queued = queued
