"""Philox4x32-10: random numbers that are a pure function of (seed, world id, index).

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.  The key is
the 64-bit seed; the 128-bit counter is (world id, index, block).  So world 123456 is the same world
alone, in a batch of any size, in any order and on any machine.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from exactlyonce_env.compiled import inlined

Word: TypeAlias = Any
"""A 32-bit word held in a uint64."""

MULTIPLIER_0 = np.uint64(0xD2511F53)
MULTIPLIER_1 = np.uint64(0xCD9E8D57)
WEYL_0 = np.uint64(0x9E3779B9)
WEYL_1 = np.uint64(0xBB67AE85)
WORD = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
LOW_5 = np.uint64(5)
LOW_6 = np.uint64(6)
SHIFT_26 = np.uint64(26)
TO_UNIT_53 = 1.0 / 9007199254740992.0  # 2**-53
TO_UNIT_32 = 1.0 / 4294967296.0  # 2**-32

WORLD_INDEX = 0
"""Index of the block that draws what belongs to the world as a whole."""
FIRST_ATTEMPT_INDEX = 1
"""Attempt j draws from index ``FIRST_ATTEMPT_INDEX + j``."""


@inlined
def philox4x32(
    c0: Word, c1: Word, c2: Word, c3: Word, k0: Word, k1: Word
) -> tuple[Word, Word, Word, Word]:
    """One block: four counter words and two key words in, four random words out."""
    for _ in range(10):
        product_0 = MULTIPLIER_0 * c0
        product_1 = MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (
            (product_1 >> HALF) ^ c1 ^ k0,
            product_1 & WORD,
            (product_0 >> HALF) ^ c3 ^ k1,
            product_0 & WORD,
        )
        k0 = (k0 + WEYL_0) & WORD
        k1 = (k1 + WEYL_1) & WORD
    return c0, c1, c2, c3


@inlined
def uniforms(seed: np.uint64, world: int, index: int, block: int) -> tuple[float, float, float]:
    """Three independent uniforms in [0, 1): one of 53 bits, two of 32 bits."""
    key = np.uint64(seed)
    count = np.uint64(world)
    w0, w1, w2, w3 = philox4x32(
        count & WORD, count >> HALF, np.uint64(index), np.uint64(block), key & WORD, key >> HALF
    )
    fine = np.float64(((w0 >> LOW_5) << SHIFT_26) | (w1 >> LOW_6)) * TO_UNIT_53
    return fine, np.float64(w2) * TO_UNIT_32, np.float64(w3) * TO_UNIT_32
