"""The compiled loops of the vector environment: many worlds, one call, no allocation.

Most work on a range of the worlds, so that two threads can share a batch.  A world whose ``ending``
is set waits for its reset; its seed and its id stand in its `TRUTH` record.
"""

from __future__ import annotations

import numpy as np

from exactlyonce_env import kernel
from exactlyonce_env.actions import KINDS, SECONDS, write_mask
from exactlyonce_env.compiled import Array, inlined
from exactlyonce_env.envs.lean import lean
from exactlyonce_env.envs.prefetch import prefetch
from exactlyonce_env.observation import scale_times, write_observation, write_unscaled
from exactlyonce_env.records import N_TERMS
from exactlyonce_env.settlement import count_effects
from exactlyonce_env.vocabulary import Ending

RUNNING = int(Ending.RUNNING)
MANY_CONTEXTS = 64  # more than these do not stay in the nearest cache by themselves
BLOCK = 32  # worlds whose rows stay in the nearest cache between the two passes over them


@lean
def first_outside(values: Array, high: float) -> int:
    """Place of the first of ``values`` (n,) that does not lie in 0..high; -1: there is none."""
    outside = False
    for i in range(len(values)):  # no early exit, so that it compiles to vector instructions
        outside |= not 0 <= values[i] <= high
    if outside:
        for i in range(len(values)):
            if not 0 <= values[i] <= high:
                return i
    return -1


@lean
def open_range(
    contexts: Array,
    context_cdf: Array,
    table: Array,
    static: Array,
    seen: Array,
    truth: Array,
    chosen: Array,
    observations: Array,
    masks: Array,
    low: int,
    high: int,
) -> None:
    """Open the next world, and write its observation and mask, where ``chosen`` (N,) bool."""
    for i in range(low, high):
        if chosen[i]:
            hidden = truth[i]
            kernel.begin(
                contexts, context_cdf, table, hidden.seed, hidden.world + 1, seen[i], hidden
            )
            write_observation(seen[i], contexts, static, observations[i])
            write_mask(seen[i], contexts[seen[i].context].contract, masks[i])


@lean
def observe_range(
    contexts: Array, static: Array, seen: Array, observations: Array, masks: Array
) -> None:
    """Write the observation (N, N_FEATURES) and the mask (N, 11) of every world."""
    for i in range(len(seen)):
        write_observation(seen[i], contexts, static, observations[i])
        write_mask(seen[i], contexts[seen[i].context].contract, masks[i])


@lean
def mask_range(contexts: Array, seen: Array, masks: Array) -> None:
    """Write the mask of every world into ``masks`` (N, 11) int8."""
    for i in range(len(seen)):
        write_mask(seen[i], contexts[seen[i].context].contract, masks[i])


@inlined
def _fetch_ahead(
    contexts: Array,
    static: Array,
    seen: Array,
    truth: Array,
    observations: Array,
    i: int,
    high: int,
) -> None:
    """Prefetch what worlds after ``i`` need: records and rows first, then what they point to."""
    far = min(i + 5, high - 1)
    prefetch(seen, far, 3)  # the head and the first attempts
    prefetch(truth, far, 2)
    prefetch(observations, far, 5)
    if len(contexts) > MANY_CONTEXTS:
        context = int(np.int64(seen[min(i + 2, high - 1)].context))
        prefetch(contexts, context, 7)
        prefetch(static, context, 3)


@lean
def step_range(
    contexts: Array,
    context_cdf: Array,
    table: Array,
    static: Array,
    seen: Array,
    truth: Array,
    actions: Array,
    seconds: Array,
    observations: Array,
    masks: Array,
    rewards: Array,
    terminations: Array,
    costs: Array,
    exact: Array,
    terms: Array,
    scratch: Array,
    low: int,
    high: int,
) -> None:
    """Take one decision in each world of the range; one that had ended is reset instead.

    ``actions`` (N,) int64 are discrete, or kinds where ``seconds`` (N,) is not empty.  The outputs
    are (N, ...) each; ``terms`` (N, 9) may be empty.  ``scratch`` (9,) belongs to this call alone.
    """
    parametric = len(seconds) > 0
    itemised = len(terms) > 0
    for start in range(low, high, BLOCK):
        stop = min(start + BLOCK, high)
        for i in range(start, stop):
            _fetch_ahead(contexts, static, seen, truth, observations, i, high)
            view = seen[i]
            hidden = truth[i]
            reward = 0.0
            cost = 0.0
            succeeded = False
            ended = False
            if view.ending != RUNNING:
                kernel.begin(
                    contexts, context_cdf, table, hidden.seed, hidden.world + 1, view, hidden
                )
                for k in range(N_TERMS):
                    scratch[k] = 0.0
            else:
                action = actions[i]
                if parametric:
                    reward = kernel.act(contexts, table, view, hidden, action, seconds[i], scratch)
                else:
                    reward = kernel.act(
                        contexts, table, view, hidden, KINDS[action], SECONDS[action], scratch
                    )
                ended = view.ending != RUNNING
                if ended:
                    duplicates, omissions = count_effects(
                        contexts[view.context].contract, view, hidden
                    )
                    cost = float(duplicates)
                    succeeded = duplicates == 0 and omissions == 0
            if itemised:
                for k in range(N_TERMS):
                    terms[i, k] = scratch[k]
            rewards[i] = reward
            terminations[i] = ended
            costs[i] = cost
            exact[i] = succeeded
            write_unscaled(view, contexts, static, observations[i])
            write_mask(view, contexts[view.context].contract, masks[i])
        for i in range(start, stop):
            scale_times(observations[i])
