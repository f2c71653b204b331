"""The spaces of the environments and the checks of what a caller passes in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from operator import index
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from exactlyonce_env.actions import ACTION_NAMES, KINDS, MAX_WAIT_S, N_ACTIONS, SECONDS
from exactlyonce_env.errors import UserError
from exactlyonce_env.observation import observation_bounds
from exactlyonce_env.vocabulary import TERM_NAMES, Action, Term

T = TypeVar("T")

ACTION_MODES = ("discrete", "parametric")
RENDER_MODES = ("ansi", "rgb_array")
N_KINDS = len(Action)
NO_SECONDS = np.empty(0)
Choice = tuple[int, float, int, str]
"""Kind, seconds, and number and name of the reward term that the decision may cost at once."""


def _choice(kind: int, seconds: float) -> Choice:
    term = {
        Action.READ: Term.READ,
        Action.RETRY: Term.REISSUE,
        Action.KEYED_RETRY: Term.REISSUE,
        Action.ESCALATE: Term.ESCALATION,
    }.get(Action(kind), Term.TIME)
    return kind, seconds, term.value, TERM_NAMES[term]


CHOICES: dict[int, Choice] = {
    k: _choice(kind, seconds)
    for k, (kind, seconds) in enumerate(zip(KINDS.tolist(), SECONDS.tolist(), strict=True))
}
"""What each discrete action means."""


def observation_space() -> spaces.Space[Any]:
    """The space of one observation: (N_FEATURES,) float32."""
    return spaces.Box(*observation_bounds(), dtype=np.float32)


def action_space(action_mode: str) -> spaces.Space[Any]:
    """The space of one action in either mode."""
    if action_mode == "discrete":
        return spaces.Discrete(N_ACTIONS)
    return spaces.Dict(
        kind=spaces.Discrete(N_KINDS),
        seconds=spaces.Box(0.0, MAX_WAIT_S, shape=(), dtype=np.float64),
    )


def one_of(name: str, value: Any, choices: Iterable[Any]) -> Any:
    """``value``, if it is one of the choices."""
    if value not in choices:
        raise UserError(f"{name} must be one of {', '.join(map(str, choices))}, not {value!r}")
    return value


def count_of(name: str, value: Any) -> int:
    """``value``, if it is a whole number above 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"{name} must be a whole number above 0, not {value!r}")
    return value


def refused(action: Any) -> UserError:
    """The error that answers a discrete action outside the space."""
    names = ", ".join(f"{k} {name}" for k, name in enumerate(ACTION_NAMES))
    return UserError(f"action must be an integer in 0..{N_ACTIONS - 1} ({names}), not {action!r}")


def parametric_choice(action: Any) -> Choice:
    """What a parametric action means, or a `UserError`."""
    if not isinstance(action, Mapping) or set(action) != {"kind", "seconds"}:
        raise UserError(
            f"a parametric action is a mapping with the keys kind and seconds, not {action!r}"
        )
    kind = _or(-1, index, action["kind"])
    if not 0 <= kind < N_KINDS:
        names = ", ".join(f"{kind.value} {kind.name.lower()}" for kind in Action)
        raise UserError(f"kind must be an integer in 0..{N_KINDS - 1} ({names}), not {action!r}")
    seconds = _or(math.nan, float, action["seconds"])
    if not 0.0 <= seconds <= MAX_WAIT_S:
        raise UserError(f"seconds must lie in 0..{MAX_WAIT_S:g}, not {action['seconds']!r}")
    return _choice(kind, seconds)


def _or(fallback: T, convert: Callable[[Any], T], value: Any) -> T:
    try:
        return convert(value)
    except (TypeError, ValueError):
        return fallback


def batch_of_actions(
    action_mode: str, actions: Any, n: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Actions or kinds (n,) int64, and seconds (n,) float64 or (0,), or a `UserError`.

    Types and shapes are checked here; the ranges are left to compiled code.
    """
    if action_mode == "discrete":
        return _integers("actions", actions, n, N_ACTIONS), NO_SECONDS
    if not isinstance(actions, Mapping) or set(actions) != {"kind", "seconds"}:
        raise UserError(
            f"parametric actions are a mapping with the keys kind and seconds, not {actions!r}"
        )
    return _integers("kind", actions["kind"], n, N_KINDS), _seconds(actions["seconds"], n)


def _integers(name: str, values: Any, n: int, high: int) -> npt.NDArray[np.int64]:
    try:
        array = np.asarray(values)
    except ValueError:  # a ragged nesting of lists
        array = np.empty(0)
    if array.dtype.kind not in "iu" or array.shape != (n,):
        raise UserError(
            f"{name} must be {n} integers in 0..{high - 1}, not {array.dtype} {array.shape}"
        )
    return np.ascontiguousarray(array, dtype=np.int64)


def _seconds(values: Any, n: int) -> npt.NDArray[np.float64]:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.shape != (n,):
        raise UserError(f"seconds must be {n} numbers in 0..{MAX_WAIT_S:g}, not {values!r}")
    return np.ascontiguousarray(array)


def checked_options(options: Mapping[str, Any] | None, known: tuple[str, ...]) -> Mapping[str, Any]:
    """Reset options, or a `UserError` that names what may stand in them."""
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise UserError(f"reset options must be a mapping, not {options!r}")
    for name in options:
        if name not in known:
            raise UserError(f"unknown reset option {name!r}; choose from {', '.join(known)}")
    return options
