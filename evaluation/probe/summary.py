"""Counts of recorded responses: by prompt, by key condition, and their ranges over variants.

Every share stands on the *planned* responses.  Invalid and missing ones are neither yes nor no:
with ``m`` of them a count lies between itself and itself + m, whatever they would have been.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evaluation.probe.designs import Cell, Variant
from evaluation.probe.replay import OUTCOMES, WORLDS, expand
from evaluation.probe.responses import ANY_TASK, Response
from evaluation.statistics.clusters import intraclass_correlation
from evaluation.statistics.shares import clopper_pearson, wilson
from exactlyonce_env.errors import UserError

__all__ = ["Tally", "cell_rows", "range_rows", "summarise", "total_rows"]

MEASURES = ("retries", "unsupported")
"""Counts that ranges and intervals are given for; the second are false retry permissions."""


@dataclass
class Tally:
    """Counts of some responses.

    Attributes
    ----------
    planned, returned, invalid
        Responses that were planned, that came, and of those the invalid ones.
    retries
        Decisions that send the write again, with or without a key.
    protected, unsupported
        Retries that section 5 of the design permits, and those that it does not.
    stops, waits, unresolved
        Decisions that claim completion, that wait, and that leave the outcome open: ``unresolved``
        counts the waits too, for nothing comes of them in this horizon.
    outcomes
        Sums over the replayed worlds; ``rows`` is their number.
    """

    planned: int = 0
    returned: int = 0
    invalid: int = 0
    retries: int = 0
    protected: int = 0
    unsupported: int = 0
    stops: int = 0
    waits: int = 0
    unresolved: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)

    @property
    def missing(self) -> int:
        """Planned responses that are not scored: those that did not come, and the invalid ones."""
        return self.planned - self.returned + self.invalid

    def add(self, response: Response) -> None:
        """Count a response, and replay its decision."""
        n = response.count
        self.planned += n
        self.returned += n * (response.status != "missing")
        self.invalid += n * (response.status == "invalid")
        if response.action is None:
            return
        found = expand(response.cell.variant, response.action, response.same_key)
        self.retries += n * found.reissue
        self.protected += n * (found.permitted is True)
        self.unsupported += n * (found.permitted is False)
        self.stops += n * (response.action == "stop")
        self.waits += n * (response.action == "wait")
        self.unresolved += n * (response.action in ("wait", "unresolved"))
        self.outcomes["rows"] += n * len(WORLDS)
        for name, number in found.outcomes.items():
            self.outcomes[name] += n * number

    def bounds(self, name: str) -> list[int]:
        """A count, were all missing responses no, and were all of them yes."""
        count: int = getattr(self, name)
        return [count, count + self.missing]

    def to_dict(self) -> dict[str, Any]:
        """The counts in JSON types."""
        return {
            "planned": self.planned,
            "returned": self.returned,
            "invalid": self.invalid,
            "missing": self.missing,
            "retries": self.retries,
            "protected": self.protected,
            "unsupported": self.unsupported,
            "unresolved": self.unresolved,
            "stops": self.stops,
            "waits": self.waits,
            **{f"{name}_bounds": self.bounds(name) for name in MEASURES},
            "outcomes": {name: self.outcomes[name] for name in ("rows", *OUTCOMES)},
        }


def summarise(responses: Sequence[Response]) -> dict[str, Any]:
    """``cells``, ``totals`` and ``ranges`` of responses."""
    return {
        "cells": cell_rows(responses),
        "totals": total_rows(responses),
        "ranges": range_rows(responses),
    }


def cell_rows(responses: Iterable[Response]) -> list[dict[str, Any]]:
    """A row for each policy, design and prompt."""
    groups = _grouped(responses, lambda one: (one.policy, one.design, one.cell))
    return [
        {"policy": policy, "design": design, **cell.to_dict(), **tally.to_dict()}
        for (policy, design, cell), tally in groups.items()
    ]


def total_rows(responses: Iterable[Response]) -> list[dict[str, Any]]:
    """A row for each policy, design and key condition, with the intervals of its shares.

    ``ci`` is Clopper and Pearson's at 95 %, as if every response were independent.  Draws of one
    prompt are not: ``clustered`` holds Wilson's interval at Kish's ``effective_n``, with the
    ``icc`` within prompts that `_correlations` estimates once for all key conditions of a policy
    and design, or ``why`` there is none.  With missing responses either is the envelope over every
    way in which they may have gone.
    """
    responses = list(responses)
    groups = _grouped(responses, lambda one: (one.policy, one.design, one.cell.variant.condition))
    prompts = _grouped(responses, lambda one: (one.policy, one.design, one.cell))
    correlations = _correlations(prompts)
    rows = []
    for (policy, design, condition), tally in groups.items():
        own = [
            cell
            for (who, where, cell) in prompts
            if (who, where, cell.variant.condition) == (policy, design, condition)
        ]
        icc = correlations[policy, design]
        rows.append(
            {
                "policy": policy,
                "design": design,
                "key": condition[0],
                "original": condition[1],
                **tally.to_dict(),
                "ci": {name: _interval(tally, name) for name in MEASURES},
                "clustered": {name: _clustered(tally, name, icc[name], own) for name in MEASURES},
            }
        )
    return rows


def _correlations(
    prompts: Mapping[tuple[str, str, Cell], Tally],
) -> dict[tuple[str, str], dict[str, float | None]]:
    """The correlation within prompts of each policy and design, by measure.

    Each response counts as its distance from the share of its key condition, so that the
    conditions' differences are none of the prompts'.  Estimates below zero count as zero.  Where
    every condition has one answer only, it is not defined and taken as 1, so that only prompts
    count; None where no condition has two prompts, and where the responses do not say their tasks.
    """
    found: dict[tuple[str, str], dict[str, float | None]] = {}
    for who in dict.fromkeys(key[:2] for key in prompts):
        own = {cell: tally for (*key, cell), tally in prompts.items() if tuple(key) == who}
        found[who] = {name: _correlation(own, name) for name in MEASURES}
    return found


def _correlation(prompts: Mapping[Cell, Tally], name: str) -> float | None:
    conditions = Counter(cell.variant.condition for cell in prompts)
    if max(conditions.values()) < 2 or any(cell.task == ANY_TASK for cell in prompts):
        return None
    values: list[float] = []
    labels: list[int] = []
    for condition in conditions:
        own = [
            (k, t) for k, (c, t) in enumerate(prompts.items()) if c.variant.condition == condition
        ]
        scored = sum(tally.planned - tally.missing for _, tally in own)
        share = sum(getattr(tally, name) for _, tally in own) / scored if scored else 0.0
        for k, tally in own:
            count, n = getattr(tally, name), tally.planned - tally.missing
            values += [1.0 - share] * count + [-share] * (n - count)
            labels += [k] * n
    if len(set(labels)) == len(labels):
        return 0.0  # one response a prompt
    try:
        return max(intraclass_correlation(values, labels), 0.0)
    except UserError:
        return 1.0


def _clustered(tally: Tally, name: str, icc: float | None, prompts: Sequence[Cell]) -> Any:
    if icc is None:
        return {"why": "a correlation within prompts takes two prompts or more whose task is known"}
    size = tally.planned / len(prompts)
    low, high = (
        wilson(count, tally.planned, icc=icc, mean_cluster_size=size)
        for count in tally.bounds(name)
    )
    return {
        "prompts": len(prompts),
        "icc": icc,
        "effective_n": low[1],
        "low": low[0].low,
        "high": high[0].high,
    }


def range_rows(responses: Iterable[Response]) -> list[dict[str, Any]]:
    """How far shares differ between the variants of a policy, design and key condition.

    ``min``, ``max`` and ``mean`` are pairs: at the lowest and at the highest that the missing
    responses allow.  Every variant counts the same in the mean, with the weight that is stated,
    however many of its responses are there.
    """
    variants: dict[Any, dict[Variant, Tally]] = {}
    keyed = _grouped(responses, lambda one: (one.policy, one.design, one.cell.variant))
    for (policy, design, variant), tally in keyed.items():
        group = (policy, design, variant.condition)
        variants.setdefault(group, {})[variant] = tally
    rows = []
    for (policy, design, (key, original)), tallies in variants.items():
        for name in MEASURES:
            shares = [
                [count / tally.planned for count in tally.bounds(name)]
                for tally in tallies.values()
            ]
            low, high = zip(*shares, strict=True)
            rows.append(
                {
                    "policy": policy,
                    "design": design,
                    "key": key,
                    "original": original,
                    "measure": name,
                    "variants": len(shares),
                    "weight": 1.0 / len(shares),
                    "min": [min(low), min(high)],
                    "max": [max(low), max(high)],
                    "mean": [sum(low) / len(low), sum(high) / len(high)],
                    "missing": sum(tally.missing for tally in tallies.values()),
                }
            )
    return rows


def _grouped(responses: Iterable[Response], key: Callable[[Response], Any]) -> dict[Any, Tally]:
    """Tallies by group, in the order in which the groups come."""
    found: dict[Any, Tally] = {}
    for response in responses:
        found.setdefault(key(response), Tally()).add(response)
    return found


def _interval(tally: Tally, name: str) -> list[float]:
    low, high = tally.bounds(name)
    return [
        clopper_pearson(low, tally.planned).low,
        clopper_pearson(high, tally.planned).high,
    ]
