"""What a run of agents says: a row for each agent, wrapper, contract and fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evaluation.llm.models import agreement_of
from evaluation.sandbox import GROUPS, Cell, Episode, group_of, summarise

__all__ = ["agent_rows"]

Key = tuple[Any, ...]


def agent_rows(
    cells: Sequence[Cell],
    found: Mapping[Cell, Episode],
    documents: Mapping[Cell, Mapping[str, Any]],
    by: str = "policy",
    stopped: str = "",
) -> list[dict[str, Any]]:
    """One row for each group of cells, as `evaluation.sandbox.summarise`, with what it took.

    Parameters
    ----------
    cells
        What was planned, without the twins.
    found
        The episodes that came to an end, twins included.
    documents
        The document of every episode that was begun.
    by
        ``policy`` or ``write``.
    stopped
        The budget that ended the run; empty: none did.

    Returns
    -------
    Rows with, besides the measures, ``planned``, ``returned``, ``missing``, ``missing_reasons``,
    ``provider_errors``, ``model_calls``, ``tokens``, ``usd``, and with repeats ``pass_hat_k``,
    ``kappa`` and ``agreement``.  A group of which nothing came back has a row all the same.
    """
    names = GROUPS[by]
    groups: dict[Key, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(group_of(cell, by), []).append(cell)
    summed = {
        tuple(row[name] for name in names): row
        for row in summarise([found[c] for c in cells if c in found], found, by)
    }
    rows = []
    for key, members in groups.items():
        row = summed.get(key) or dict(zip(names, key, strict=True)) | _nothing(members[0])
        rows.append(row | _account(members, found, documents, stopped))
    return rows


def _nothing(cell: Cell) -> dict[str, Any]:
    """The measures of a group of which nothing came back."""
    from evaluation.sandbox import FLAGS, NUMBERS

    measures = (*FLAGS, *NUMBERS)
    return {
        "privileged": cell.wrapper.endswith("-oracle"),
        "episodes": 0,
        "exactly_once_count": 0,
        "duplicate_count": 0,
        "behaviour": {},
        **dict.fromkeys(measures),
        "triggered": 0,
        "nominal": None,
        "recovery": None,
        "ci": {name: [None, None] for name in measures},
    }


def _account(
    members: Sequence[Cell],
    found: Mapping[Cell, Episode],
    documents: Mapping[Cell, Mapping[str, Any]],
    stopped: str,
) -> dict[str, Any]:
    begun = [documents[cell] for cell in members if cell in documents]
    returned = sum(cell in found for cell in members)
    reasons = Counter(str(d["reason"]) for d in begun if d["status"] == "missing")
    if len(members) > len(begun):
        reasons[f"not run: {stopped}" if stopped else "not run"] += len(members) - len(begun)
    repeats = 1 + max(cell.repeat for cell in members)
    account: dict[str, Any] = {
        "planned": len(members),
        "returned": returned,
        "missing": len(members) - returned,
        "missing_reasons": dict(reasons),
        "invalid": sum(int(d["invalid"]) for d in begun),
        "provider_errors": sum(int(d["provider_errors"]) for d in begun),
        "model_calls": sum(int(d["n_calls"]) for d in begun),
        "tokens": sum(int(d["tokens_in"]) + int(d["tokens_out"]) for d in begun),
        "usd": sum(float(d["usd"]) for d in begun),
        "repeats": repeats,
    }
    if stopped:
        account["stopped"] = stopped
    if repeats > 1:
        account |= agreement_of(_outcomes(members, found, repeats))
    return account


def _outcomes(
    members: Sequence[Cell], found: Mapping[Cell, Episode], repeats: int
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Exactly-once success (repeats, worlds) of the worlds in which all repeats came to an end."""
    worlds: dict[Key, dict[int, bool]] = {}
    for cell in members:
        if cell in found:
            key = (cell.task, cell.instance, cell.write, cell.fault)
            worlds.setdefault(key, {})[cell.repeat] = found[cell].grade.exactly_once
    whole = [runs for runs in worlds.values() if len(runs) == repeats]
    return np.array([[runs[k] for runs in whole] for k in range(repeats)], dtype=bool)
