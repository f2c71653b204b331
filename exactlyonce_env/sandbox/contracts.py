"""The contracts of the sandbox's writes: those of the presets `native` and `keys-everywhere`.

The catalogue is stated once, in the presets' files; here an ordinary call takes 5 s, every attempt
after the first goes well, and an episode's first send may carry a key where one is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from exactlyonce_env.errors import UserError
from exactlyonce_env.plan import Plan, compile_preset
from exactlyonce_env.presets import preset, shipped_fields
from exactlyonce_env.vocabulary import MODE_NAMES

__all__ = ["CALL_S", "CONTRACTS", "FAULTS", "KEYED", "paths_of", "sandbox_plan"]

CONTRACTS = ("native", "keys-everywhere")
"""Contract variants."""

FAULTS = MODE_NAMES
"""``ok`` and the twelve faults, by name."""

CALL_S = 5.0
"""Time of an ordinary call [s]."""

KEYED = "+key"
"""Ending of the name of a context whose first send carries the key."""


@lru_cache(maxsize=2)
def paths_of(contract: str) -> dict[str, Mapping[str, Any]]:
    """Contract fields of each write path of a variant, by its name such as ``billing/charge``.

    Raises
    ------
    UserError
        For an unknown variant.
    """
    if contract not in CONTRACTS:
        raise UserError(f"unknown contract {contract!r}; choose from {', '.join(CONTRACTS)}")
    fields = shipped_fields(contract)
    base = fields.get("contract", {})
    return {v["name"]: {**base, **v["contract"]} for v in fields["variants"]}


def sandbox_plan(
    contract: str = "native",
    *,
    answers: bool = True,
    overrides: Mapping[str, Any] | None = None,
    tail: str | None = None,
) -> Plan:
    """The plan whose contexts are the write paths, each plain and, where it takes one, keyed.

    Parameters
    ----------
    contract
        A variant from `CONTRACTS`.
    answers
        Whether the operator answers.
    overrides
        Contract fields that replace those of every path, such as ``key_retention_s``.
    tail
        A delay law in place of the reference tail, as `exactlyonce_env.delays` reads it.

    Raises
    ------
    UserError
        For an unknown variant, or a field that no contract has.
    """
    return _plan(contract, answers, tuple(sorted((overrides or {}).items())), tail)


@lru_cache(maxsize=32)
def _plan(
    contract: str, answers: bool, overrides: tuple[tuple[str, Any], ...], tail: str | None
) -> Plan:
    variants = []
    for name, stated in paths_of(contract).items():
        own = {**stated, **dict(overrides)}
        variants.append({"name": name, "contract": own})
        if own.get("accepts_key"):
            keyed = {**own, "original_key": "sent"}
            variants.append({"name": name + KEYED, "contract": keyed})
    fields = {
        "name": f"sandbox-{contract}",
        "description": f"The write paths of the sandbox under {contract} contracts.",
        "start": "fault",
        "contract": {"latency_s": CALL_S, "operator_answer_rate": 1.0 if answers else 0.0},
        "variants": variants,
    }
    return compile_preset(preset(fields, delays=tail))
