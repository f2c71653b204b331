"""The contexts of `contextual`: contracts, delay laws, bounds and costs of low discrepancy.

Context k is point k of an unscrambled Sobol sequence, so that the catalogue is the same on every
machine: points 0 to 4,095 train, the next 1,024 test, and those up to 16,383 are there for who
wants more of them to train on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from exactlyonce_env.arithmetic import exp, log
from exactlyonce_env.config import Contract, Costs, Documented, Faults, Situation
from exactlyonce_env.delays import (
    Exponential,
    Fixed,
    Law,
    LogNormal,
    LogUniform,
    Lomax,
    Uniform,
    Weibull,
    delays_from_spec,
)
from exactlyonce_env.errors import invalid

if TYPE_CHECKING:
    from exactlyonce_env.config import Preset

N_TRAIN = 4096
N_TEST = 1024
N_ALL = 16384

AXES: tuple[str, ...] = (
    "readback",
    "lag",
    "key",
    "key_retention",
    "key_in_flight",
    "original_key",
    "candidate_key",
    "idempotent",
    "irreversible",
    "batch",
    "family",
    "scale",
    "shape",
    "bound",
    "late_share",
    "absent_share",
    "commit_share",
    "operator",
    "operator_delay",
    "duplicate",
    "omission",
    "unresolved",
    "overclaim",
    "time_per_hour",
    "read",
    "reissue",
    "escalation",
)
"""One axis of the sequence for each thing that varies."""


def contextual_situations(preset: Preset) -> list[Situation]:
    """The contexts of the preset's split, equally likely.

    A field that the preset states holds in every context in place of its axis.

    Raises
    ------
    UserError
        Where a stated field makes a context impossible.
    """
    return list(_catalogue(json.dumps(preset.dump(), sort_keys=True)))


@lru_cache(maxsize=4)
def _catalogue(canonical: str) -> tuple[Situation, ...]:
    fields = json.loads(canonical)
    name = fields["name"]
    points = _sobol(N_TRAIN + N_TEST)
    numbers = {
        "train": np.arange(N_TRAIN),
        "test": np.arange(N_TRAIN, N_TRAIN + N_TEST),
        "more": np.delete(np.arange(N_ALL), np.s_[N_TRAIN : N_TRAIN + N_TEST]),
    }[fields.get("split", "train")]
    if len(numbers) > N_TRAIN:
        points = np.concatenate([points, _sobol(N_ALL)[len(points) :]])
    try:
        return tuple(
            _situation(f"{name}/{k}", dict(zip(AXES, points[k].tolist(), strict=True)), fields)
            for k in numbers.tolist()
        )
    except ValidationError as error:
        raise invalid(f"preset {name}: in a context of the catalogue", error) from None


def _sobol(n: int) -> npt.NDArray[np.float64]:
    """The first ``n`` points (n, len(AXES)) of the Sobol sequence, half a cell off the origin."""
    from scipy.stats import qmc

    size = 1 << (n - 1).bit_length()
    points = qmc.Sobol(len(AXES), scramble=False, bits=30).random(size)[:n]
    return np.asarray(points + 0.5 / size, dtype=np.float64)


def _log_between(u: float, low: float, high: float) -> float:
    """The point at share ``u`` of the way from ``low`` to ``high`` on a logarithmic scale."""
    return float(f"{exp(log(low) + u * (log(high) - log(low))):.6g}")


def _choice(u: float, choices: Sequence[tuple[float, Any]]) -> Any:
    """The choice whose cumulative share covers ``u``."""
    for share, value in choices:
        if u < share:
            return value
        u -= share
    return choices[-1][1]


FAMILY_SHARES: tuple[tuple[float, type[Law]], ...] = (
    (0.1, Fixed),
    (0.15, Uniform),
    (0.25, LogUniform),
    (0.1, Exponential),
    (0.1, Weibull),
    (0.15, LogNormal),
    (0.15, Lomax),
)


def _law(u: dict[str, float]) -> tuple[Law, float]:
    """A delay law and its median [s]; ``scale`` sets it to 30 s to 40 min, ``shape`` spreads it."""
    median = _log_between(u["scale"], 30.0, 2400.0)
    return _law_around(median, u), median


def _law_around(median: float, u: dict[str, float]) -> Law:
    """The law of the family that the point names, with this median [s]."""
    shape = u["shape"]
    family = _choice(u["family"], FAMILY_SHARES)
    if family is Fixed:
        return Fixed(value_s=median)
    if family is Uniform:
        half = round(median * (0.2 + 0.75 * shape), 3)
        return Uniform(loc=median - half, scale=2.0 * half)
    if family is LogUniform:
        spread = _log_between(shape, 2.0, 15.0)
        return LogUniform(a=median / spread, b=median * spread)
    if family is Exponential:
        return Exponential(scale=median / log(2.0))
    if family is Weibull:
        c = round(0.5 + shape, 3)
        return Weibull(c=c, scale=median / exp(log(log(2.0)) / c))
    if family is LogNormal:
        return LogNormal(s=round(0.4 + 1.4 * shape, 3), scale=median)
    c = round(0.7 + 1.8 * shape, 3)
    return Lomax(c=c, scale=median / (exp(log(2.0) / c) - 1.0))


def _contract(u: dict[str, float], law: Law, stated: dict[str, Any]) -> Contract:
    readback = stated.get("readback") or _choice(
        u["readback"], [(0.1, "none"), (0.45, "strong"), (0.3, "eventual"), (0.15, "authoritative")]
    )
    accepts_key = stated.get("accepts_key", u["key"] < 0.3)
    latest_s = law.support_s[1]
    bounded = u["bound"] < 0.6 and latest_s < 1e6
    return Contract(
        **{
            "readback": readback,
            "lag_s": _log_between(u["lag"], 10.0, 300.0) if readback == "eventual" else 0.0,
            "accepts_key": accepts_key,
            "key_retention_s": _choice(
                u["key_retention"], [(0.4, 86400.0), (0.2, None), (0.2, 3600.0), (0.2, 600.0)]
            ),
            "in_flight_same_key": "conflict" if u["key_in_flight"] < 0.3 else "coalesce",
            "original_key": "sent" if accepts_key and u["original_key"] < 0.5 else "omitted",
            "candidate_key": "different" if u["candidate_key"] < 0.2 else "same",
            "idempotent": u["idempotent"] < 0.08,
            "irreversible": u["irreversible"] < 0.3,
            "n_items": 1 if u["batch"] < 0.8 else 2 + int(5 * (u["batch"] - 0.8) / 0.2),
            "in_flight_bound_s": float(f"{latest_s * 1.05 + 5.0:.4g}") if bounded else None,
            "operator_answer_rate": _choice(u["operator"], [(0.6, 1.0), (0.2, 0.5), (0.2, 0.0)]),
            "operator_delay_s": _log_between(u["operator_delay"], 300.0, 3600.0),
            **stated,
        }
    )


def _costs(u: dict[str, float], stated: dict[str, float]) -> Costs:
    axes = {
        "duplicate": _log_between(u["duplicate"], 0.2, 5.0),
        "omission": _log_between(u["omission"], 0.1, 2.0),
        "unresolved": _log_between(u["unresolved"], 0.05, 0.8),
        "overclaim": _log_between(u["overclaim"], 0.05, 1.0),
        "time_per_hour": _log_between(u["time_per_hour"], 0.02, 1.0),
        "read": _log_between(u["read"], 0.0005, 0.01),
        "reissue": _log_between(u["reissue"], 0.0005, 0.01),
        "escalation": _log_between(u["escalation"], 0.02, 0.5),
    }
    return Costs(**{**axes, **stated})


def _faults(
    u: dict[str, float], law: Law, median_s: float, n_items: int, stated: dict[str, Any]
) -> Faults:
    """All groups; within a timeout and an HTTP 500 the outcomes have their own shares."""
    late = 0.1 + 0.8 * u["late_share"]
    absent = (1.0 - late) * (0.15 + 0.7 * u["absent_share"])
    committed = 0.15 + 0.7 * u["commit_share"]
    timeout, server, acknowledged, explicit = 0.6, 0.16, 0.08, 0.16
    partial = 0.5 * committed if n_items > 1 else 0.0
    axes = {
        "original": {
            "timeout_pre": timeout * absent,
            "timeout_post": timeout * (1.0 - late - absent),
            "timeout_late_tail": timeout * late,
            "http500_pre": server * (1.0 - committed),
            "http500_post": server * (committed - partial),
            "partial_batch": server * partial,
            "ok": acknowledged * 0.5,
            "redelivery": acknowledged * 0.5,
            "rate_limited": explicit / 4,
            "unavailable": explicit / 4,
            "outage": explicit / 4,
            "schema_drift": explicit / 4,
        },
        "retry_fault_rate": 0.1,
        "late_fixed_s": median_s,
        "late_tail": law,
    }
    return Faults(**{**axes, **stated})


def _situation(name: str, u: dict[str, float], fields: dict[str, Any]) -> Situation:
    faults = fields.get("faults", {})
    law, median_s = _law(u)
    if "late_tail" in faults:
        law = delays_from_spec(faults["late_tail"])
        median_s = float(f"{law.median_s:.6g}") if math.isfinite(law.median_s) else median_s
    contract = _contract(u, law, fields.get("contract", {}))
    return Situation(
        name=name,
        contract=contract,
        costs=_costs(u, fields.get("costs", {})),
        faults=_faults(u, law, median_s, contract.n_items, faults),
        documented=Documented(**fields.get("documented", {})),
    )
