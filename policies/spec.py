"""Naming policies: ``wait:300`` and the like, each made by a lazily imported factory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from exactlyonce_env.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from policies.base import AnyPolicy


@dataclass(frozen=True)
class Entry:
    """How a name becomes a policy.

    Attributes
    ----------
    factory
        ``module:function``, imported when first needed; called with the name and its argument.
    argument
        What follows the name after a colon: nothing, a number of seconds, or any text.
    summary
        What the policy does, in a line.
    privileged
        Whether it sees hidden state.
    """

    factory: str
    argument: Literal["none", "seconds", "text"]
    summary: str
    privileged: bool = False


_SCRIPTED = "policies.lineup:lineup_policy"
_ORACLE = "policies.lineup:oracle"

REGISTRY: dict[str, Entry] = {
    "never-retry": Entry(_SCRIPTED, "none", "finish at once, uncertain after an error"),
    "blind-retry": Entry(_SCRIPTED, "none", "re-issue on any error until acknowledged"),
    "sdk-retry": Entry(
        _SCRIPTED, "none", "re-issue after time-outs, 5xx and 429, after 1, 2 and 4 s"
    ),
    "rules": Entry(_SCRIPTED, "none", "re-issue only after 429 and 503"),
    "verify-retry": Entry(_SCRIPTED, "none", "read; re-issue only if the effect is absent"),
    "wait": Entry(
        _SCRIPTED, "seconds", "read that long (plus the lag) after the sending, then as above"
    ),
    "poll": Entry(
        _SCRIPTED, "seconds", "read at once and with growing gaps until then, then re-issue"
    ),
    "same-key": Entry(_SCRIPTED, "none", "re-issue with the pinned key until acknowledged"),
    "guard": Entry(
        _SCRIPTED, "none", "keys where taken, else verification, else the operator; never blind"
    ),
    "escalate": Entry(_SCRIPTED, "none", "ask the operator at once, then act on the answer"),
    "learned": Entry(
        "policies.learned:learned",
        "text",
        "a trained network: the name of a shipped checkpoint, or the path of one",
    ),
    "llm": Entry(
        "policies.llm.policy:llm",
        "text",
        "a language model: its name at an OpenAI-compatible endpoint, or local; +aware and the "
        "like change the prompt",
    ),
    "state-oracle": Entry(_ORACLE, "none", "the guard reading the true current state", True),
    "outcome-oracle": Entry(
        _ORACLE, "none", "sees requests in flight; waits exactly as long as needed", True
    ),
    "bayes-optimal": Entry(
        "policies.bayes.policy:bayes_optimal",
        "none",
        "the best policy that sees only views, computed from the preset's own distribution",
    ),
    "clairvoyant": Entry(
        "policies.bounds:clairvoyant",
        "none",
        "best reachable reward in this very world: the bound for any client",
        True,
    ),
}
"""Every policy that has a name; add an `Entry` to name another."""

POLICY_NAMES: tuple[str, ...] = tuple(REGISTRY)
"""Names that ship, in the order of the line-up."""

LINEUP: tuple[str, ...] = (
    "never-retry",
    "blind-retry",
    "sdk-retry",
    "rules",
    "verify-retry",
    "wait:300",
    "poll:900",
    "same-key",
    "guard",
    "escalate",
    "state-oracle",
    "outcome-oracle",
    "clairvoyant",
)
"""Specs that are compared when nobody asks for others."""


def parse_policy(spec: str) -> AnyPolicy:
    """The policy that a spec string names, for instance ``guard`` or ``wait:300``.

    Raises
    ------
    UserError
        For an unknown name, a missing or malformed argument, or an argument where none is taken.
    """
    name, colon, text = (part.strip() for part in spec.partition(":"))
    entry = REGISTRY.get(name)
    if entry is None:
        hint = did_you_mean(name.lower().replace("_", "-"), REGISTRY)
        raise UserError(f"unknown policy {name!r}{hint}; choose from {', '.join(_usages())}")
    argument = _argument(name, entry, text if colon else None)
    module, _, function = entry.factory.partition(":")
    factory: Callable[[str, Any], AnyPolicy] = getattr(import_module(module), function)
    return factory(name, argument)


def _usages() -> list[str]:
    """How each name is written."""
    tails = {"none": "", "seconds": ":SECONDS", "text": ":..."}
    return [name + tails[entry.argument] for name, entry in REGISTRY.items()]


def _argument(name: str, entry: Entry, text: str | None) -> float | str | None:
    if entry.argument == "none":
        if text is not None:
            raise UserError(f"policy {name!r} takes no argument; write {name}, not {name}:{text}")
        return None
    if entry.argument == "text":
        return text or None
    if not text:
        raise UserError(f"policy {name!r} needs a number of seconds >= 0, for instance {name}:300")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.0 <= seconds < math.inf:
        raise UserError(
            f"policy {name!r} needs a number of seconds >= 0, for instance {name}:300, not {text!r}"
        )
    return seconds + 0.0  # -0.0 is 0
