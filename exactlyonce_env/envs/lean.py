"""Compiling the outermost functions of a step.

Nothing in a step allocates, so they do without numba's reference counts: these would take atomic
operations, which two threads also contend for, for every array that is passed on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

from exactlyonce_env.compiled import OPTIONS, F, tied_to_sources


def lean(function: F) -> F:
    """Like `compiled`, without reference counts: the function may not make arrays."""
    return tied_to_sources(numba.njit(**{**OPTIONS, "_nrt": False})(function))


def held(function: F) -> F:
    """Like `lean`, and keeping the GIL: for calls so short that releasing it shows."""
    return tied_to_sources(numba.njit(**{**OPTIONS, "_nrt": False, "nogil": False})(function))


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
