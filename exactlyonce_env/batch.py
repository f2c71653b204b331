"""Many worlds at once: the kernel's functions over arrays of records.

The caller owns every buffer.  Worlds are told apart by their place in the arrays; ``running`` names
the places on which a step acts, so that ended worlds keep their records untouched.
"""

from __future__ import annotations

import numpy as np

from exactlyonce_env import kernel
from exactlyonce_env.compiled import Array, compiled
from exactlyonce_env.drawing import draw_context, draw_fate
from exactlyonce_env.settlement import write_outcome


@compiled
def begin_batch(
    contexts: Array,
    context_cdf: Array,
    table: Array,
    seed: np.uint64,
    ids: Array,
    seen: Array,
    truths: Array,
) -> None:
    """Open the worlds ``ids`` (n,) int64 in ``seen`` (n,) VIEW and ``truths`` (n,) TRUTH."""
    for i in range(len(ids)):
        kernel.begin(contexts, context_cdf, table, seed, ids[i], seen[i], truths[i])


@compiled
def act_batch(
    contexts: Array,
    table: Array,
    seen: Array,
    truths: Array,
    running: Array,
    kinds: Array,
    seconds: Array,
    terms: Array,
    rewards: Array,
) -> None:
    """Take one decision in each of the worlds at the places ``running`` (m,) int64.

    ``kinds`` (m,) are `Action` numbers, ``seconds`` (m,) [s] count for WAIT.  Each step's reward is
    added to ``rewards`` (n,); ``terms`` (9,) is scratch and keeps the last world's terms.
    """
    for k in range(len(running)):
        i = running[k]
        rewards[i] += kernel.act(contexts, table, seen[i], truths[i], kinds[k], seconds[k], terms)


@compiled
def grade_batch(contexts: Array, seen: Array, truths: Array, outcomes: Array) -> None:
    """Write the measures of ended episodes into ``outcomes`` (n,) OUTCOME."""
    for i in range(len(seen)):
        write_outcome(contexts[seen[i].context].contract, seen[i], truths[i], outcomes[i])


@compiled
def name_worlds(
    contexts: Array,
    context_cdf: Array,
    table: Array,
    seed: np.uint64,
    ids: Array,
    own_contexts: Array,
    modes: Array,
) -> None:
    """Write what tables group worlds by, whatever a client does in them.

    ``own_contexts`` (n,) int32 receives the context's index, ``modes`` (n,) int8 the
    original's mode.
    """
    for i in range(len(ids)):
        context = draw_context(context_cdf, seed, ids[i])
        contract = contexts[context].contract
        mode, _, _, _, _ = draw_fate(contract, contexts[context].law, table, seed, ids[i], 0)
        own_contexts[i] = context
        modes[i] = mode
