"""Philox4x32-10 against published vectors, and a reference that reproduces NumPy's Philox4x64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exactlyonce_env.philox import FIRST_ATTEMPT_INDEX, WORLD_INDEX, philox4x32, uniforms

MULTIPLIERS = {
    32: (0xD2511F53, 0xCD9E8D57),
    64: (0xD2E7470EE14C6C93, 0xCA5A826395121157),
}
WEYL = {32: (0x9E3779B9, 0xBB67AE85), 64: (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)}


def reference(bits: int, counter: list[int], key: list[int]) -> list[int]:
    """Philox4x`bits`-10 in integers of any size (Salmon et al. 2011)."""
    mask = 2**bits - 1
    (m0, m1), (w0, w1) = MULTIPLIERS[bits], WEYL[bits]
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        p0, p1 = m0 * c0, m1 * c2
        c0, c1, c2, c3 = (p1 >> bits) ^ c1 ^ k0, p1 & mask, (p0 >> bits) ^ c3 ^ k1, p0 & mask
        k0, k1 = (k0 + w0) & mask, (k1 + w1) & mask
    return [c0, c1, c2, c3]


def ours(counter: list[int], key: list[int]) -> list[int]:
    words = philox4x32(*(np.uint64(word) for word in [*counter, *key]))
    return [int(word) for word in words]


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        # Random123, tests/kat_vectors, lines "philox4x32 10".
        (
            "00000000 00000000 00000000 00000000",
            "00000000 00000000",
            "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        ),
        (
            "ffffffff ffffffff ffffffff ffffffff",
            "ffffffff ffffffff",
            "408f276d 41c83b0e a20bc7c6 6d5451fd",
        ),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            "a4093822 299f31d0",
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_known_answers(counter: str, key: str, expected: str) -> None:
    words = [[int(word, 16) for word in text.split()] for text in (counter, key, expected)]
    assert ours(words[0], words[1]) == words[2]
    assert reference(32, words[0], words[1]) == words[2]


@given(st.integers(0, 2**256 - 2), st.integers(0, 2**128 - 1))
def test_the_reference_is_numpys_generator_at_64_bits(counter: int, key: int) -> None:
    """NumPy counts before it generates: its first block is that of counter + 1."""
    theirs = np.random.Philox(counter=counter, key=key).random_raw(4).tolist()
    words = [(counter + 1) >> 64 * k & (2**64 - 1) for k in range(4)]
    assert reference(64, words, [key & (2**64 - 1), key >> 64]) == theirs


WORD = st.integers(0, 2**32 - 1)


@given(st.lists(WORD, min_size=4, max_size=4), st.lists(WORD, min_size=2, max_size=2))
def test_ours_is_the_reference_at_32_bits(counter: list[int], key: list[int]) -> None:
    assert ours(counter, key) == reference(32, counter, key)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**63 - 1), st.integers(0, 9), st.integers(0, 3))
def test_uniforms_use_the_key_the_counter_and_every_bit(
    seed: int, world: int, index: int, block: int
) -> None:
    """Key = seed, counter = (world, index, block); 27 + 26 bits make the fine one."""
    low = 2**32 - 1
    w0, w1, w2, w3 = reference(
        32, [world & low, world >> 32, index, block], [seed & low, seed >> 32]
    )
    fine, second, third = uniforms(np.uint64(seed), np.int64(world), index, block)
    assert fine == ((w0 >> 5) * 2**26 + (w1 >> 6)) / 2**53
    assert (second, third) == (w2 / 2**32, w3 / 2**32)
    assert 0 <= fine < 1


def test_worlds_and_attempts_draw_from_different_blocks() -> None:
    assert WORLD_INDEX < FIRST_ATTEMPT_INDEX
    seen = {
        uniforms(np.uint64(seed), world, index, 0)
        for seed in (0, 1, 2**32)
        for world in (0, 1, 2**32)
        for index in range(9)
    }
    assert len(seen) == 81


def test_uniforms_are_uniform_and_uncorrelated() -> None:
    from scipy import stats

    draws = np.array(
        [uniforms(np.uint64(9), world, index, 0) for world in range(10000) for index in (1, 2)]
    )
    for column in draws.T:
        assert stats.kstest(column, "uniform").pvalue > 0.01
    table = np.column_stack([draws[::2], draws[1::2]])
    correlations = np.corrcoef(table.T)[np.triu_indices(6, 1)]
    assert np.abs(correlations).max() < 4 / np.sqrt(len(table))
