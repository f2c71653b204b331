"""Whether a policy treats worlds alike that it cannot tell apart.

Until a hidden effect may show, matched worlds look the same.  A policy that sees views only can
differ between them no more than it differs between independent runs of one world.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from exactlyonce_env.errors import UserError

__all__ = ["Agreement", "first_action_agreement", "total_variation_test"]

MAX_PERMUTATIONS = 1_000_000


@dataclass(frozen=True)
class Agreement:
    """Agreement on first actions.

    Attributes
    ----------
    across
        Share of equal first actions over pairs of matched worlds.
    within
        Share of equal first actions over pairs of independent runs of one world; NaN where no world
        was run twice.
    pairs_across, pairs_within
        Pairs behind them.
    """

    across: float
    within: float
    pairs_across: int
    pairs_within: int


def first_action_agreement(runs: Sequence[Sequence[Sequence[Hashable]]]) -> Agreement:
    """Compare agreement across matched worlds with that across independent runs.

    Parameters
    ----------
    runs
        ``runs[g][w]`` are the first actions of the runs of world ``w`` of matched group ``g``.

    Raises
    ------
    UserError
        Where no group has two worlds.
    """
    equal = [0, 0]
    pairs = [0, 0]
    for group in runs:
        for w, world in enumerate(group):
            for i, action in enumerate(world):
                for other in world[i + 1 :]:
                    pairs[1] += 1
                    equal[1] += action == other
                for later in group[w + 1 :]:
                    for other in later:
                        pairs[0] += 1
                        equal[0] += action == other
    if not pairs[0]:
        raise UserError("agreement across worlds needs a group of two matched worlds or more")
    within = equal[1] / pairs[1] if pairs[1] else float("nan")
    return Agreement(equal[0] / pairs[0], within, pairs[0], pairs[1])


@dataclass(frozen=True)
class Variation:
    """A permutation test.

    Attributes
    ----------
    distance
        Total variation distance between the two distributions of actions, 0 to 1.
    p
        Share of permutations, the observed one included, with a distance at least as large.
    pairs
        Matched pairs.
    """

    distance: float
    p: float
    pairs: int


def total_variation_test(
    first: Sequence[Hashable],
    second: Sequence[Hashable],
    *,
    permutations: int = 10_000,
    seed: int = 0,
) -> Variation:
    """Permute within matched pairs: is the distance between two distributions more than chance?

    Parameters
    ----------
    first, second
        Actions in the worlds of each pair, (n,) in the same order.
    permutations, seed
        How many, and the generator's key.  All 2^n swaps are gone through where they are fewer.

    Source: B. Phipson and G. K. Smyth (2010), Stat. Appl. Genet. Mol. Biol. 9:39, for a p that
    counts the observed arrangement.

    Raises
    ------
    UserError
        For lists of other lengths, none at all, and a number out of range.
    """
    if len(first) != len(second) or not first:
        raise UserError(
            f"matched pairs need two lists of one length, not {len(first)} and {len(second)}"
        )
    if not 1 <= permutations <= MAX_PERMUTATIONS:
        raise UserError(f"permutations must lie in 1..{MAX_PERMUTATIONS}, not {permutations}")
    kinds = {action: k for k, action in enumerate(dict.fromkeys([*first, *second]))}
    one = np.array([kinds[action] for action in first])
    other = np.array([kinds[action] for action in second])
    n, m = len(first), len(kinds)
    # Swapping pair i turns the difference of counts of its two actions round.
    steps = np.zeros((n, m))
    np.add.at(steps, (np.arange(n), one), 1.0)
    np.add.at(steps, (np.arange(n), other), -1.0)
    observed = _distance(steps.sum(axis=0), n)
    if n < 60 and 2**n <= permutations:
        bits = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
        distances = _distance((1.0 - 2.0 * bits) @ steps, n)
        p = float(np.mean(distances >= observed - 1e-12))
    else:
        signs = np.random.default_rng(seed).choice((-1.0, 1.0), size=(permutations, n))
        distances = _distance(signs @ steps, n)
        p = float((1 + np.sum(distances >= observed - 1e-12)) / (permutations + 1))
    return Variation(float(observed), p, n)


def _distance(differences: npt.NDArray[np.float64], n: int) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = np.abs(differences).sum(axis=-1) / (2.0 * n)
    return found
