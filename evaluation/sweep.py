"""The sweep: which waiting bound is best, and what each of them costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluation.frontier import FrontierPoint
from evaluation.intervals import Estimate
from evaluation.paired import paired_difference
from evaluation.runner import Evaluation, Progress, evaluate
from evaluation.summary import policy_estimates
from exactlyonce_env.actions import MAX_WAIT_S
from exactlyonce_env.delay_steps import Empirical
from exactlyonce_env.errors import UserError
from exactlyonce_env.presets import load_plan
from exactlyonce_env.vocabulary import Mode
from policies.base import AnyPolicy
from policies.spec import parse_policy

if TYPE_CHECKING:
    from exactlyonce_env.delays import Law
    from exactlyonce_env.plan import Plan

DEFAULT_DELTAS_S = (0.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0)
DEFAULT_LEVELS = (0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
"""Measured delays are swept at these quantiles and at their end."""
FAMILIES = ("wait", "poll")
SHOWN = ("exactly_once", "duplicate_rate", "elapsed_s", "reward", "omissions", "unresolved")
COMPANIONS = ("guard", "outcome-oracle", "clairvoyant")
"""Policies drawn beside the two curves, with `KEYED` where the write takes a key."""
KEYED = "same-key"


@dataclass(frozen=True)
class BestDelta:
    """The waiting bound with the highest mean reward of one family.

    ``low_s`` and ``high_s`` span the bounds of the grid that the data do not tell from the best
    one: those whose paired difference in reward has an interval that reaches 0.
    """

    family: str
    delta_s: float
    reward: float
    low_s: float
    high_s: float


@dataclass(frozen=True)
class Sweep:
    """Result of a sweep: rows in the order family, Δ; see `sweep`."""

    rows: list[dict[str, Any]]
    best: dict[str, BestDelta]
    points: list[FrontierPoint]
    bounds: list[FrontierPoint]
    notes: list[str]
    with_key: dict[str, Any]
    evaluation: Evaluation


def sweep(
    plan: Plan,
    deltas_s: Sequence[float],
    *,
    worlds: int,
    seed: int = 0,
    out: str | Path | None = None,
    command: Sequence[str] = (),
    progress: Progress | None = None,
) -> Sweep:
    """Evaluate ``wait:Δ`` and ``poll:Δ`` over a grid of Δ [s] on the same worlds.

    Each row has ``policy``, ``family``, ``delta_s``, the means of `SHOWN` with ``ci``, and
    ``landed``: the chance that an in-flight write has landed Δ after it was sent ({value, low,
    high}; the interval where the delays are measured).  Under measured delays a Δ beyond the last
    observation has null figures and a ``note``: nothing is extrapolated.

    Raises
    ------
    UserError
        For an empty grid, a negative or repeated Δ, or a grid that lies beyond the data altogether.
    """
    grid = _checked_grid(deltas_s)
    known = [delta for delta in grid if not _beyond(plan, delta)]
    if not known:
        last_s = _last_observed_s(plan)
        raise UserError(
            f"delta {', '.join(f'{d:g}' for d in grid)} s lies beyond the last observed delay of "
            f"{last_s:g} s: nothing is known there; choose at most {last_s:g}"
        )
    specs = [_spec(family, delta) for family in FAMILIES for delta in known]
    evaluation = evaluate(
        plan,
        [*specs, *COMPANIONS],
        worlds=worlds,
        seed=seed,
        out=out,
        command=command,
        progress=progress,
    )
    estimates = {
        spec: policy_estimates(columns, evaluation.best_rewards)
        for spec, columns in evaluation.episodes.items()
    }
    rows = [
        _row(plan, family, delta, estimates.get(_spec(family, delta)))
        for family in FAMILIES
        for delta in grid
    ]
    best = {family: _best(evaluation, estimates, family, known) for family in FAMILIES}
    points, bounds = _points(evaluation, estimates, known)
    keyed = _with_key(plan, worlds, seed)
    points.append(_point(_KEYED_LABEL, "keyed", None, keyed))
    return Sweep(
        rows=rows,
        best=best,
        points=points,
        bounds=bounds,
        notes=_notes(plan, len(known) < len(grid)),
        with_key=_figures(keyed),
        evaluation=evaluation,
    )


_KEYED_LABEL = f"{KEYED}, with a key"


def default_deltas_s(plan: Plan) -> list[float]:
    """The grid for those who name none: fixed, or the quantiles and the end of measured delays."""
    law = _shared_tail(plan)
    if not isinstance(law, Empirical):
        return list(DEFAULT_DELTAS_S)
    quantiles = law.quantile(np.array(DEFAULT_LEVELS))
    reached = {float(f"{q:.6g}") for q in quantiles if q < law.last_event_s}
    return sorted({0.0, *reached, law.last_event_s})


def beyond_notes(plan: Plan, specs: Sequence[str]) -> list[str]:
    """What to say of waiting policies, by spec, whose Δ lies beyond the plan's measured delays."""
    beyond = []
    for spec in specs:
        family, _, delta = spec.partition(":")
        if family in FAMILIES and _beyond(plan, float(delta)):
            beyond.append(spec)
    if not beyond:
        return []
    return [f"{', '.join(beyond)}: {_end_of_data(plan)}"]


def _with_key(plan: Plan, worlds: int, seed: int) -> dict[str, Estimate]:
    """`KEYED` on the same worlds, were every write to take a key and the original to carry it."""
    keyed = load_plan(
        plan.preset, config={"contract": {"accepts_key": True, "original_key": "sent"}}
    )
    found = evaluate(keyed, [KEYED], worlds=worlds, seed=seed)
    return policy_estimates(found.episodes[KEYED], found.best_rewards)


def _figures(estimates: dict[str, Estimate]) -> dict[str, Any]:
    return {
        **{name: estimates[name].value for name in SHOWN},
        "ci": {name: estimates[name].ci for name in SHOWN},
    }


def _notes(plan: Plan, beyond: bool) -> list[str]:
    notes = []
    if beyond:
        notes.append(_end_of_data(plan))
    law = _shared_tail(plan)
    timeout_s = float(plan.contracts["client_timeout_s"].max())
    if law is not None and law.quantile(0.99) <= timeout_s:
        notes.append(
            f"99 % of these delays are shorter than the client time-out of {timeout_s:g} s, so "
            "waiting hardly matters; if your client gives up sooner, set contract.client_timeout_s "
            "with --config"
        )
    return notes


def _end_of_data(plan: Plan) -> str:
    return (
        f"the data end at {_last_observed_s(plan):g} s: beyond it nothing is known, and a write "
        "that had not landed by then counts as landing after every wait"
    )


def _spec(family: str, delta_s: float) -> str:
    return parse_policy(f"{family}:{delta_s!r}").spec


def _row(
    plan: Plan, family: str, delta_s: float, estimates: dict[str, Estimate] | None
) -> dict[str, Any]:
    row: dict[str, Any] = {"policy": _spec(family, delta_s), "family": family, "delta_s": delta_s}
    if estimates is None:
        row |= dict.fromkeys(SHOWN) | {"ci": dict.fromkeys(SHOWN), "landed": None}
        row["note"] = f"beyond the last observed delay of {_last_observed_s(plan):g} s"
        return row
    row |= _figures(estimates)
    row["landed"] = _landed(plan, delta_s)
    return row


def _landed(plan: Plan, delta_s: float) -> dict[str, float | None] | None:
    """Chance that a late write has landed by Δ, where all of them follow one law."""
    law = _shared_tail(plan)
    if law is None:
        return None
    if isinstance(law, Empirical):
        found = law.landed(delta_s)
        return {"value": found.value, "low": found.low, "high": found.high}
    return {"value": float(law.cdf(delta_s)), "low": None, "high": None}


def _shared_tail(plan: Plan) -> Law | None:
    """The law of every late write of the preset, or None where there is more than one."""
    laws: list[Law] = []
    for situation in plan.situations:
        shares = situation.faults.shares("original", situation.contract.n_items)
        if shares[Mode.TIMEOUT_LATE] > 0:
            return None
        if shares[Mode.TIMEOUT_LATE_TAIL] > 0 and situation.faults.late_tail not in laws:
            laws.append(situation.faults.late_tail)
    return laws[0] if len(laws) == 1 else None


def _last_observed_s(plan: Plan) -> float:
    """End of what was observed of measured delays; infinity for a law given by its formula."""
    law = _shared_tail(plan)
    return law.horizon_s if isinstance(law, Empirical) else math.inf


def _beyond(plan: Plan, delta_s: float) -> bool:
    return delta_s > _last_observed_s(plan)


def _best(
    evaluation: Evaluation,
    estimates: dict[str, dict[str, Estimate]],
    family: str,
    known: Sequence[float],
) -> BestDelta:
    rewards = {delta: estimates[_spec(family, delta)]["reward"].value for delta in known}
    delta_s = max(rewards, key=lambda delta: (rewards[delta], -delta))
    best = evaluation.episodes[_spec(family, delta_s)]["reward"]
    alike = [
        delta
        for delta in known
        if paired_difference(evaluation.episodes[_spec(family, delta)]["reward"], best).high >= 0.0
    ]
    # A single world has no interval (NaN), and then nothing is told from the best.
    alike = alike or list(known)
    return BestDelta(family, delta_s, rewards[delta_s], min(alike), max(alike))


def _points(
    evaluation: Evaluation, estimates: dict[str, dict[str, Estimate]], known: Sequence[float]
) -> tuple[list[FrontierPoint], list[FrontierPoint]]:
    points: list[FrontierPoint] = []
    bounds: list[FrontierPoint] = []
    curves = {_spec(family, delta): (family, delta) for family in FAMILIES for delta in known}
    for spec, policy in evaluation.policies.items():
        family, delta_s = curves.get(spec, (None, None))
        point = _point(spec, family or _kind(spec, policy), delta_s, estimates[spec])
        (bounds if point.kind == "bound" else points).append(point)
    return points, bounds


def _kind(spec: str, policy: AnyPolicy) -> Any:
    if spec == "clairvoyant":
        return "bound"
    return "oracle" if policy.privileged else "policy"


def _point(
    spec: str, kind: Any, delta_s: float | None, estimates: dict[str, Estimate]
) -> FrontierPoint:
    share, time = estimates["exactly_once"], estimates["elapsed_s"]
    return FrontierPoint(
        name=spec,
        kind=kind,
        delta_s=delta_s,
        exactly_once=share.value,
        eos_low=share.low,
        eos_high=share.high,
        elapsed_s=time.value,
        elapsed_low_s=time.low,
        elapsed_high_s=time.high,
    )


def _checked_grid(deltas_s: Sequence[float]) -> list[float]:
    if not deltas_s:
        raise UserError("name at least one delta in seconds, for instance --deltas 60,300,900")
    for delta in deltas_s:
        if not 0.0 <= delta <= MAX_WAIT_S:
            raise UserError(f"delta {delta:g} must lie in 0..{MAX_WAIT_S:g} seconds")
    repeated = [delta for k, delta in enumerate(deltas_s) if delta in deltas_s[:k]]
    if repeated:
        raise UserError(f"delta {repeated[0]:g} is named twice")
    return [float(delta) for delta in deltas_s]
