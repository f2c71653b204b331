"""What recorded responses say: counts, contrasts between labels, tests, and orders of policies.

Everything stands on planned responses: with any missing, limits are envelopes over every way in
which the missing ones may have gone, and a p-value is the largest over them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import combinations, product
from math import prod
from typing import Any

from evaluation.paired import holm
from evaluation.probe.designs import LEVELS
from evaluation.probe.responses import Response
from evaluation.probe.summary import MEASURES, Tally, summarise
from evaluation.statistics.exact_tests import Stratum, stratified_exact
from evaluation.statistics.ranks import kendall_tau_b
from evaluation.statistics.shares import Arm, newcombe
from exactlyonce_env.errors import UserError

__all__ = ["report"]

MAX_ASSIGNMENTS = 20_000
"""Assignments of missing responses that a test goes through; beyond them it has no p."""


def report(responses: Sequence[Response]) -> dict[str, Any]:
    """Recompute everything from recorded responses.

    Returns
    -------
    ``cells``, ``totals`` and ``ranges`` as `evaluation.probe.summary.summarise`; ``contrasts``
    between every two labels, the stronger one minus the weaker, by policy, key condition and
    measure: arms, Newcombe difference with its envelope, the exact test stratified by task with the
    largest p over the missing responses, and Holm's adjustment within each measure; ``ranks``:
    Kendall's tau-b between the orders of the policies under every two labels.
    """
    return summarise(responses) | {
        "contrasts": _contrasts(responses),
        "ranks": _ranks(responses),
    }


def _tallies(responses: Iterable[Response], *fields: str) -> dict[tuple[str, ...], Tally]:
    """Counts by policy and by factors of the prompt."""
    found: dict[tuple[str, ...], Tally] = {}
    for response in responses:
        cell = response.cell.to_dict()
        key = (response.policy, *(str(cell[field]) for field in fields))
        found.setdefault(key, Tally()).add(response)
    return found


def _arm(tally: Tally, measure: str) -> Arm:
    return Arm(int(getattr(tally, measure)), tally.planned, tally.missing)


def _contrasts(responses: Sequence[Response]) -> list[dict[str, Any]]:
    whole = _tallies(responses, "key", "original", "label")
    by_task = _tallies(responses, "key", "original", "label", "task")
    groups = dict.fromkeys(key[:3] for key in whole)
    rows: list[dict[str, Any]] = []
    for measure, group in product(MEASURES, groups):
        labels = [key[3] for key in whole if key[:3] == group]
        # The stronger label first, so that a rise with the label is positive.
        for one, other in combinations(sorted(labels, key=LEVELS["label"].index, reverse=True), 2):
            arms = (
                _arm(whole[(*group, one)], measure),
                _arm(whole[(*group, other)], measure),
            )
            found = newcombe(*arms)
            rows.append(
                {
                    "policy": group[0],
                    "key": group[1],
                    "original": group[2],
                    "measure": measure,
                    "labels": [one, other],
                    "arms": [asdict(arm) for arm in arms],
                    "difference": [found.smallest, found.largest],
                    "low": found.low,
                    "high": found.high,
                    "p": None,
                }
            )
            try:
                rows[-1]["p"] = _stratified_p(by_task, group, one, other, measure)
            except UserError as error:
                rows[-1]["p_why"] = str(error)
    for measure in MEASURES:
        family = [r for r in rows if r["measure"] == measure and r["p"] is not None]
        for row, adjusted in zip(family, holm([r["p"] for r in family]), strict=True):
            row["p_holm"] = float(adjusted)
    return rows


def _stratified_p(
    by_task: dict[tuple[str, ...], Tally],
    group: tuple[str, ...],
    one: str,
    other: str,
    measure: str,
) -> float:
    """The largest p over the missing responses.

    Raises
    ------
    UserError
        Where the labels share no task, and where there are too many assignments to go through.
    """
    tasks = [
        key[4] for key in by_task if key[:4] == (*group, one) and (*group, other, key[4]) in by_task
    ]
    pairs = [
        tuple(_arm(by_task[(*group, label, task)], measure) for label in (one, other))
        for task in tasks
    ]
    arms = [arm for pair in pairs for arm in pair]
    if not arms:
        raise UserError("the labels share no task")
    if prod(arm.missing + 1 for arm in arms) > MAX_ASSIGNMENTS:
        raise UserError(f"more than {MAX_ASSIGNMENTS:,} assignments of the missing responses")
    worst = 0.0
    for extra in product(*(range(arm.missing + 1) for arm in arms)):
        counts = [arm.count + more for arm, more in zip(arms, extra, strict=True)]
        strata = [
            Stratum(counts[2 * k], pair[0].n, counts[2 * k + 1], pair[1].n)
            for k, pair in enumerate(pairs)
        ]
        worst = max(worst, stratified_exact(strata))
    return worst


def _ranks(responses: Sequence[Response]) -> list[dict[str, Any]]:
    by_label = _tallies(responses, "label")
    policies = list(dict.fromkeys(key[0] for key in by_label))
    labels = list(dict.fromkeys(key[1] for key in by_label))
    rows = []
    for measure, (one, other) in product(MEASURES, combinations(labels, 2)):
        both = [p for p in policies if (p, one) in by_label and (p, other) in by_label]
        arms = [[_arm(by_label[(p, label)], measure) for p in both] for label in (one, other)]
        if len(both) < 2 or len({arm.n for side in arms for arm in side}) > 1:
            continue  # an order of counts needs one denominator
        row: dict[str, Any] = {"measure": measure, "labels": [one, other], "policies": both}
        try:
            found = kendall_tau_b(
                [arm.count for arm in arms[0]],
                [arm.count for arm in arms[1]],
                [arm.missing for arm in arms[0]],
                [arm.missing for arm in arms[1]],
            )
        except UserError as error:
            rows.append(row | {"low": None, "high": None, "why": str(error)})
        else:
            rows.append(row | {"low": found.low, "high": found.high})
    return rows
