"""Solved contracts on disk, each under a hash of all that it depends on.

The folder is ``$EXACTLYONCE_CACHE_DIR``, or ``exactlyonce-env`` in the user's cache folder.  What
cannot be read is solved again, what cannot be written is left unwritten.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from exactlyonce_env.compiled import sources_hash
from exactlyonce_env.files import write_atomically
from exactlyonce_env.quantiles import EMPIRICAL, MIXTURE
from policies.bayes.contexts import Effort, Solved
from policies.bayes.records import Children, Game

ENVIRONMENT_VARIABLE = "EXACTLYONCE_CACHE_DIR"
CELLS = (2, 3, 5, 3, 4, 4, 4, 4)
"""Numbers that a law of each family takes in the arena; see `exactlyonce_env.quantiles`."""


def cache_folder() -> Path:
    """Where solved contracts are kept."""
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    if named:
        return Path(named) / "bayes"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "exactlyonce-env" / "bayes"


@cache
def _own_sources() -> str:
    """Hash of the sources that decide what a solved contract looks like."""
    digest = hashlib.sha256(sources_hash().encode())
    for name in ("contexts.py", "solution.py"):
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()


def key_of(game: Game, effort: Effort, n_steps: int, free: bool, last: bool) -> str:
    """Name of a solved contract: a hash of the contract, its hidden laws, the effort, the code."""
    digest = hashlib.sha256(_own_sources().encode())
    digest.update(repr((tuple(effort), game.step_price, n_steps, free, last)).encode())
    digest.update(game.shares.tobytes())
    for member in game.members:
        context = game.contexts[member].copy()
        context["law"]["shown_as"] = 0  # a number of the preset's, not a property of the world
        offset = int(context["law"]["tail_offset"])
        context["law"]["tail_offset"] = 0
        digest.update(context.tobytes())
        digest.update(_law_bytes(game.table, offset))
    return digest.hexdigest()[:40]


def _law_bytes(table: Any, offset: int) -> bytes:
    """The numbers of one law of the arena, wherever it lies there."""
    family = int(table[offset])
    if family == EMPIRICAL:
        return bytes(table[offset : offset + 2 + 2 * int(table[offset + 1])].tobytes())
    if family != MIXTURE:
        return bytes(table[offset : offset + CELLS[family]].tobytes())
    n = int(table[offset + 1])
    parts = [_law_bytes(table, int(table[offset + 2 + n + k])) for k in range(n)]
    return bytes(table[offset : offset + 2 + n].tobytes()) + b"".join(parts)


def load(key: str) -> Solved | None:
    """A solved contract, or None where there is none that can be read."""
    try:
        stored = (cache_folder() / f"{key}.npz").read_bytes()
        with np.load(io.BytesIO(stored), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        children = {
            (r, k): Children(arrays[f"ages_{r}{k}"], arrays[f"values_{r}{k}"])
            for r in range(2)
            for k in range(2)
            if f"ages_{r}{k}" in arrays
        }
        value, steps, n_reads, free = arrays["numbers"].tolist()
        return Solved(
            value,
            int(steps),
            int(n_reads),
            bool(free),
            arrays["fresh"],
            arrays["opened"],
            arrays["first"],
            children,
        )
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return None


def save(key: str, solved: Solved) -> None:
    """Keep a solved contract, if there is a place for it."""
    arrays = {
        "numbers": np.array([solved.value, solved.steps, solved.n_reads, solved.free]),
        "fresh": solved.fresh,
        "opened": solved.opened,
        "first": solved.first,
    }
    for (r, k), children in solved.children.items():
        arrays[f"ages_{r}{k}"], arrays[f"values_{r}{k}"] = children
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        write_atomically(
            cache_folder() / f"{key}.npz", lambda path: path.write_bytes(buffer.getvalue())
        )
    except OSError:
        return
