"""How long the optimum holds out before it re-issues, and what it does when: two plots.

The *persistence curve* follows the path on which nothing ever shows while the price of time varies,
one line for each family of delays with the preset's median. The *decision map* has the optimal
action right after a read that showed nothing, over elapsed time and price of time. Both are read
against one ratio: the cost of a duplicate over the cost of an hour, the hours of waiting that one
duplicate outweighs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from exactlyonce_env.delays import (
    Component,
    Exponential,
    Fixed,
    Law,
    LogNormal,
    LogUniform,
    Lomax,
    Mixture,
    Weibull,
    dump,
)
from exactlyonce_env.errors import UserError
from exactlyonce_env.presets import load_plan
from exactlyonce_env.vocabulary import MODE_NAMES, Action, Mode
from policies.bayes.policy import best_action
from policies.bayes.quiet import HoldOut, hold_out, quiet_view
from policies.bayes.solution import solution_of

if TYPE_CHECKING:
    from exactlyonce_env.config import Situation
    from exactlyonce_env.plan import Plan

LATE = (Mode.TIMEOUT_LATE, Mode.TIMEOUT_LATE_TAIL)
RATIOS_H = tuple(float(r) for r in np.logspace(-1.0, 2.5, 57))
"""Costs of a duplicate over cost of an hour [h] that are looked at."""
N_MOMENTS = 96
LONG_S = 86400.0
MAP_LEVEL = 0.99
"""A decision map ends at twice the time by which this share of the late writes has landed."""
OWN = "the preset's own"


@dataclass(frozen=True)
class Curve:
    """How long the optimum holds out under one delay law.

    ``held`` (R,) belongs to the ratios (R,) [h] at which it was computed.
    """

    family: str
    law: Law
    own: bool  # whether the preset's own delays follow it
    held: tuple[HoldOut, ...]


@dataclass(frozen=True)
class Persistence:
    """Curves of one context over the ratio; ``own_ratio_h`` [h] is that of its own costs."""

    preset: str
    context: str
    median_s: float
    ratios_h: tuple[float, ...]
    own_ratio_h: float
    curves: tuple[Curve, ...]

    def to_dict(self) -> dict[str, Any]:
        """The curves in JSON's types."""
        return {
            "preset": self.preset,
            "context": self.context,
            "median_s": self.median_s,
            "own_ratio_h": self.own_ratio_h,
            "ratios_h": list(self.ratios_h),
            "curves": [
                {
                    "family": curve.family,
                    "law": dump(curve.law),
                    "own": curve.own,
                    "elapsed_s": [held.elapsed_s for held in curve.held],
                    "ends_with": [_name(held.action) for held in curve.held],
                }
                for curve in self.curves
            ],
        }


@dataclass(frozen=True, eq=False)
class DecisionMap:
    """Optimal action (R, T) by ratio (R,) [h] and elapsed time (T,) [s], having seen nothing."""

    preset: str
    context: str
    own_ratio_h: float
    ratios_h: NDArray[np.float64]
    elapsed_s: NDArray[np.float64]
    actions: NDArray[np.int64]

    def to_dict(self) -> dict[str, Any]:
        """The map in JSON's types; rows are ratios."""
        return {
            "preset": self.preset,
            "context": self.context,
            "own_ratio_h": self.own_ratio_h,
            "ratios_h": self.ratios_h.tolist(),
            "elapsed_s": self.elapsed_s.tolist(),
            "actions": [[_name(Action(int(a))) for a in row] for row in self.actions],
        }


def _name(action: Action | None) -> str:
    return "exhausted" if action is None else action.name.lower()


def choose_context(plan: Plan, wanted: str | None = None) -> int:
    """The context of that name or number; without one the likeliest, the first of equals.

    Raises
    ------
    UserError
        For an unknown one.
    """
    if wanted is None:
        return int(np.argmax([situation.weight for situation in plan.situations]))
    names = [situation.name or "" for situation in plan.situations]
    if wanted in names:
        return names.index(wanted)
    if wanted.isascii() and wanted.isdigit() and int(wanted) < len(names):
        return int(wanted)
    distinct = list(dict.fromkeys(names))
    shown = ", ".join(distinct[:5]) + (", ..." if len(distinct) > 5 else "")
    raise UserError(
        f"preset {plan.preset.name} has no context {wanted!r}; give a name ({shown}) or a number "
        f"from 0 to {len(names) - 1}"
    )


def require_drawable(plan: Plan, context: int) -> None:
    """Refuse a context that neither plot can show anything of.

    Raises
    ------
    UserError
        Where no write lands late, duplicates cost nothing, no outcome is ever left open, or the
        calls are too few to wait and read.
    """
    late_law(plan.situations[context])
    with_ratios(plan, context, (1.0,))
    quiet_view(plan, context, LONG_S)


def late_law(situation: Situation) -> Law:
    """Law of the delay of an original that lands late.

    Raises
    ------
    UserError
        Where none ever does.
    """
    shares = situation.faults.shares("original", situation.contract.n_items)
    fixed, tail = (shares[mode] for mode in LATE)
    if fixed + tail <= 0.0:
        raise UserError(
            f"no write of context {situation.name!r} lands late: there is nothing to hold out for"
        )
    at_once = Fixed(value_s=situation.faults.late_fixed_s)
    if tail <= 0.0 or fixed <= 0.0:
        return at_once if tail <= 0.0 else situation.faults.late_tail
    parts = ((fixed, at_once), (tail, situation.faults.late_tail))
    return Mixture(
        components=tuple(Component(weight=share / (fixed + tail), law=law) for share, law in parts)
    )


def families(median_s: float) -> dict[str, Law]:
    """One law of each family with the same median [s], ordinary to heavy shapes."""
    ln2 = math.log(2.0)
    spread = math.sqrt(180.0)  # of the reference tail, 40 s to 2 h
    return {
        "fixed": Fixed(value_s=median_s),
        "exponential": Exponential(scale=median_s / ln2),
        "log-uniform": LogUniform(a=median_s / spread, b=median_s * spread),
        "lognormal": LogNormal(s=1.5, scale=median_s),
        "Weibull": Weibull(c=0.5, scale=median_s / ln2**2.0),
        "Lomax": Lomax(c=0.8, scale=median_s / (2.0 ** (1.0 / 0.8) - 1.0)),
    }


def persistence(plan: Plan, context: int, ratios_h: Sequence[float] = RATIOS_H) -> Persistence:
    """Curves of every family and of the context's own law.

    Raises
    ------
    UserError
        As `require_drawable`.
    """
    situation = plan.situations[context]
    own = late_law(situation)
    median_s = float(own.quantile(0.5))
    if not math.isfinite(median_s):
        raise UserError("less than half of the delays are known, so their median is not")
    laws = families(median_s)
    same = next((name for name, law in laws.items() if _alike(law, own)), None)
    curves = [
        _curve(plan, context, name, None if name == same else law, ratios_h)
        for name, law in laws.items()
    ]
    if same is None:
        curves.append(_curve(plan, context, OWN, None, ratios_h))
    return Persistence(
        plan.preset.name,
        situation.name or plan.preset.name,
        median_s,
        tuple(ratios_h),
        _own_ratio_h(situation),
        tuple(curves),
    )


def _alike(law: Law, other: Law) -> bool:
    """Whether two laws of one family are the same but for rounding."""
    if type(law) is not type(other):
        return False
    levels = np.array([0.01, 0.25, 0.5, 0.75, 0.99])
    return bool(np.allclose(law.quantile(levels), other.quantile(levels), rtol=1e-3))


def _curve(
    plan: Plan, context: int, family: str, law: Law | None, ratios_h: Sequence[float]
) -> Curve:
    """The curve of a law; None: the context's own."""
    varied = with_ratios(plan, context, ratios_h, law)
    held = tuple(hold_out(varied, k) for k in range(len(ratios_h)))
    return Curve(family, law or late_law(plan.situations[context]), law is None, held)


def decision_map(
    plan: Plan, context: int, ratios_h: Sequence[float] = RATIOS_H, n_moments: int = N_MOMENTS
) -> DecisionMap:
    """Optimal action by ratio and elapsed time, see `MAP_LEVEL`.

    Raises
    ------
    UserError
        As `require_drawable`.
    """
    situation = plan.situations[context]
    law = late_law(situation)
    varied = with_ratios(plan, context, ratios_h)
    first_s = float(quiet_view(plan, context, 0.0)["clock_s"][0])
    last_s = 2.0 * float(law.quantile(MAP_LEVEL))
    if not math.isfinite(last_s):
        last_s = 2.0 * law.support_s[1]
    elapsed_s = np.geomspace(first_s, max(last_s, 4.0 * first_s), n_moments)
    solution = solution_of(varied)
    actions = np.array(
        [
            [
                best_action(solution.answer(quiet_view(varied, k, float(at_s))[0]))[0]
                for at_s in elapsed_s
            ]
            for k in range(len(ratios_h))
        ]
    )
    return DecisionMap(
        plan.preset.name,
        situation.name or plan.preset.name,
        _own_ratio_h(situation),
        np.array(ratios_h),
        elapsed_s,
        actions,
    )


def _own_ratio_h(situation: Situation) -> float:
    costs = situation.costs
    return costs.duplicate / costs.time_per_hour if costs.time_per_hour > 0.0 else math.inf


def with_ratios(
    plan: Plan, context: int, ratios_h: Sequence[float], law: Law | None = None
) -> Plan:
    """One context at several prices of time, one context each, under its own law or another.

    A documented bound on the time in flight is dropped with the law that it was true of.

    Raises
    ------
    UserError
        Where duplicates cost nothing: then there is no ratio.
    """
    situation = plan.situations[context]
    duplicate = situation.costs.duplicate
    if duplicate <= 0.0:
        raise UserError(
            f"context {situation.name!r} has costs.duplicate 0, and its ratio to the cost of time "
            "is what the plots vary; set it above 0"
        )
    parts = ("contract", "costs", "faults", "documented")
    fields: dict[str, Any] = {
        part: getattr(situation, part).model_dump(mode="json", by_alias=True) for part in parts
    }
    if law is not None:
        faults = situation.faults
        fields["contract"]["in_flight_bound_s"] = None
        for attempt in ("original", "retry"):
            if attempt == "retry" and faults.retry_fault_rate == 0.0:
                continue
            shares = faults.shares(attempt, situation.contract.n_items)
            shares[Mode.TIMEOUT_LATE_TAIL] += shares[Mode.TIMEOUT_LATE]
            shares[Mode.TIMEOUT_LATE] = 0.0
            if attempt == "retry":
                shares[Mode.OK] = 0.0
            fields["faults"][attempt] = dict(zip(MODE_NAMES, shares, strict=True))
        fields["faults"]["original_ok_share"] = None
        fields["faults"]["late_tail"] = dump(law)
    variants = [
        {"name": f"{ratio:g} h", "costs": {"time_per_hour": duplicate / ratio}}
        for ratio in ratios_h
    ]
    return load_plan({"name": "ratios", "start": plan.preset.start, **fields, "variants": variants})
