"""One running world in one record, and the compiled step over it.

A call from Python into compiled code pays for every array it passes, so the state of the single
environment is one record.
"""

from __future__ import annotations

import numpy as np

from exactlyonce_env import kernel
from exactlyonce_env.actions import write_mask
from exactlyonce_env.compiled import Array
from exactlyonce_env.envs.lean import held
from exactlyonce_env.observation import write_observation
from exactlyonce_env.records import N_TERMS, TRUTH, VIEW
from exactlyonce_env.settlement import count_effects
from exactlyonce_env.vocabulary import Ending, Term

RUNNING = int(Ending.RUNNING)
T_TIME = int(Term.TIME)

CELL = np.dtype((np.record, [("seen", VIEW), ("truth", TRUTH), ("terms", "f8", (N_TERMS,))]))


@held
def open_cell(
    contexts: Array,
    context_cdf: Array,
    table: Array,
    static: Array,
    cell: Array,
    observation: Array,
    mask: Array,
    seed: np.uint64,
    world: int,
) -> None:
    """Begin world ``world`` of ``seed`` in ``cell`` (1,); write its observation and its mask."""
    seen = cell[0].seen
    kernel.begin(contexts, context_cdf, table, seed, world, seen, cell[0].truth)
    write_observation(seen, contexts, static, observation)
    write_mask(seen, contexts[seen.context].contract, mask)


@held
def step_cell(
    contexts: Array,
    table: Array,
    static: Array,
    cell: Array,
    observation: Array,
    mask: Array,
    action: int,
    seconds: float,
    term: int,
) -> tuple[float, bool, float, float, float, bool]:
    """Take one decision in ``cell`` (1,); write the observation and the mask that follow.

    ``float`` and ``bool`` cost nothing compiled, and interpreted they turn NumPy's scalars into
    Python's.

    Returns
    -------
    tuple
        Reward, whether the episode ended, the reward terms of the time and of number ``term``,
        duplicates (0.0 until the end), and whether every item took effect exactly once (False
        until the end).  All nine terms lie in the cell.
    """
    own = cell[0]
    seen = own.seen
    truth = own.truth
    terms = own.terms
    reward = kernel.act(contexts, table, seen, truth, action, seconds, terms)
    contract = contexts[seen.context].contract
    write_observation(seen, contexts, static, observation)
    write_mask(seen, contract, mask)
    cost = 0.0
    exact = False
    ended = seen.ending != RUNNING
    if ended:
        duplicates, omissions = count_effects(contract, seen, truth)
        cost = float(duplicates)
        exact = bool(duplicates == 0 and omissions == 0)
    return float(reward), bool(ended), float(terms[T_TIME]), float(terms[term]), cost, exact


@held
def mask_cell(contexts: Array, cell: Array, mask: Array) -> None:
    """Write the mask of ``cell`` (1,)."""
    seen = cell[0].seen
    write_mask(seen, contexts[seen.context].contract, mask)
