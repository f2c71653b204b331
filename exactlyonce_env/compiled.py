"""The one way this package compiles a function.

Every compiled function runs unchanged under ``NUMBA_DISABLE_JIT=1``.  Nothing here turns on fast
arithmetic: floating-point operations keep their order, so that the same world has the same bytes on
every machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numba
import numpy.typing as npt

F = TypeVar("F", bound=Callable[..., object])

Record: TypeAlias = Any
"""A NumPy record of `exactlyonce_env.records`; type checkers do not know its fields."""
Array: TypeAlias = npt.NDArray[Any]


OPTIONS: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    "no_cfunc_wrapper": True,  # nobody calls these from C, and each wrapper costs compile time
}


def compiled(function: F) -> F:
    """Compile ``function`` in nopython mode, cached on disk, releasing the GIL while it runs."""
    return tied_to_sources(numba.njit(**OPTIONS)(function))


def inlined(function: F) -> F:
    """Like `compiled`, for small functions of the inner loop that LLVM should inline."""
    return tied_to_sources(numba.njit(**OPTIONS, forceinline=True)(function))


def tied_to_sources(dispatcher: Any) -> Any:
    """Tie the function's place in numba's cache to all sources that it may have been built from.

    Numba looks at the function's own file only, and would go on running the old code of a function
    that is called from there and was changed in another file.
    """
    store = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if store is not None:
        store._source_stamp = (store._source_stamp, sources_hash())
    return dispatcher


@cache
def sources_hash() -> str:
    """Hash of every source that compiled code is made of."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    policies = package.parent / "policies"
    for folder in (
        package,
        package / "envs",
        package / "sandbox",
        policies,
        policies / "bayes",
    ):
        for file in sorted(folder.glob("*.py")):
            text = file.read_bytes()
            if b"exactlyonce_env.compiled" in text or file.stem in ("records", "vocabulary"):
                digest.update(text)
    return digest.hexdigest()
