"""One running world with its outputs in one record, and the compiled step over it.

A call from Python into compiled code pays for every array it passes, so all that a step of the
single environment reads and writes beside the plan lies in one record of about a kilobyte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from exactlyonce_env import kernel
from exactlyonce_env.actions import N_ACTIONS, write_mask
from exactlyonce_env.compiled import Array, compiled
from exactlyonce_env.observation import N_FEATURES, write_observation
from exactlyonce_env.records import N_TERMS, TRUTH, VIEW
from exactlyonce_env.settlement import count_effects
from exactlyonce_env.vocabulary import Ending, Term

RUNNING = int(Ending.RUNNING)
T_TIME = int(Term.TIME)

CELL = np.dtype(
    (
        np.record,
        [
            ("seen", VIEW),
            ("truth", TRUTH),
            ("terms", "f8", (N_TERMS,)),
            ("observation", "f4", (N_FEATURES,)),
            ("mask", "i1", (N_ACTIONS,)),
            ("pad", "i1", (-(4 * N_FEATURES + N_ACTIONS) % 8,)),
        ],
    )
)


@compiled
def open_cell(
    contexts: Array,
    context_cdf: Array,
    table: Array,
    static: Array,
    cell: Array,
    seed: np.uint64,
    world: int,
) -> None:
    """Begin world ``world`` of ``seed`` in ``cell`` (1,) and write its first outputs."""
    own = cell[0]
    kernel.begin(contexts, context_cdf, table, seed, world, own.seen, own.truth)
    write_observation(own.seen, contexts, static, own.observation)
    write_mask(own.seen, contexts[own.seen.context].contract, own.mask)


@compiled
def step_cell(
    contexts: Array,
    table: Array,
    static: Array,
    cell: Array,
    action: int,
    seconds: float,
    term: int,
) -> tuple[float, bool, float, float, float, bool]:
    """Take one decision in ``cell`` (1,) and write its outputs.

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
    write_observation(seen, contexts, static, own.observation)
    write_mask(seen, contract, own.mask)
    cost = 0.0
    exact = False
    ended = seen.ending != RUNNING
    if ended:
        duplicates, omissions = count_effects(contract, seen, truth)
        cost = float(duplicates)
        exact = duplicates == 0 and omissions == 0
    return float(reward), bool(ended), float(terms[T_TIME]), float(terms[term]), cost, exact


def entry(function: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    """The compiled code of ``function`` for arguments of these types, called without type dispatch.

    Dispatch on record arrays costs more than a step.  Without JIT it is the function itself.
    """
    if not hasattr(function, "compile"):
        return function
    typeof: Callable[[Any], Any] = numba.typeof
    signature = tuple(typeof(argument) for argument in arguments)
    code: Callable[..., Any] = function.compile(signature)
    return code
