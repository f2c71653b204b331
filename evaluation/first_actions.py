"""What an agent of the sandbox does first after the faulted answer, in worlds that look alike."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import combinations
from typing import Any

from evaluation.paired import holm
from evaluation.sandbox import Cell, session_after
from evaluation.statistics.checks import or_why
from evaluation.statistics.invariance import first_action_agreement, total_variation_test
from exactlyonce_env.errors import UserError
from exactlyonce_env.sandbox.tools import KEY
from exactlyonce_env.vocabulary import GROUPS

__all__ = ["Worlds", "equivalence", "first_action", "matched_equivalence", "replayed_actions"]

GROUP_OF = {
    mode.name.lower(): group
    for group, modes in GROUPS.items()
    if group != "explicit"
    for mode in modes
}
"""The group of every fault that cannot be told from others by what the client sees."""

MAX_REPLAYED = 4000
"""Episodes that are run again to see their first actions, about 2 ms each."""


def first_action(calls: Sequence[Mapping[str, Any]]) -> str | None:
    """The first call after the one that met the fault.

    Parameters
    ----------
    calls
        ``tool``, ``arguments`` and ``focal`` of each call of an episode, in order.

    Returns
    -------
    The tool's name; ``again`` where the same write is sent with the same arguments, with ``same
    key``, ``new key`` or ``no key`` if a key was sent in either; ``end`` where no call followed;
    None where the fault was not met.
    """
    met = next((k for k, call in enumerate(calls) if call["focal"]), None)
    if met is None:
        return None
    if met + 1 == len(calls):
        return "end"
    sent, following = calls[met], calls[met + 1]
    if sent["tool"] != following["tool"]:
        return str(following["tool"])
    before, after = dict(sent["arguments"]), dict(following["arguments"])
    keys = before.pop(KEY, None), after.pop(KEY, None)
    if before != after:
        return str(following["tool"])
    if keys == (None, None):
        return "again"
    if keys[1] is None:
        return "again, no key"
    return "again, same key" if keys[0] == keys[1] else "again, new key"


def replayed_actions(cells: Iterable[Cell]) -> dict[Cell, str]:
    """First actions of scripted policies, which decide the same when they are run again.

    Raises
    ------
    UserError
        For more than `MAX_REPLAYED` episodes that have a match, and a policy that cannot be made.
    """
    worlds: dict[Cell, list[Cell]] = {}
    for cell in cells:
        if cell.fault in GROUP_OF:
            worlds.setdefault(replace(cell, fault=GROUP_OF[cell.fault]), []).append(cell)
    matched = [cell for members in worlds.values() if len(members) > 1 for cell in members]
    if len(matched) > MAX_REPLAYED:
        raise UserError(
            f"the first actions of {len(matched):,} episodes are not on disk, and more than "
            f"{MAX_REPLAYED:,} are not run again for them"
        )
    found = {}
    for cell in matched:
        calls = [
            {"tool": call.tool, "arguments": call.arguments, "focal": call.focal}
            for call in session_after(cell).calls
        ]
        action = first_action(calls)
        if action is not None:
            found[cell] = action
    return found


Worlds = Mapping[str, Mapping[Hashable, Mapping[str, Mapping[int, str]]]]
"""First actions by group of faults, place (what matched worlds share), fault and repeat."""


def equivalence(actions: Mapping[Cell, str]) -> dict[str, Any]:
    """Whether an agent treats worlds alike that look alike until its first action.

    Parameters
    ----------
    actions
        The first action of each episode, as `first_action`.

    Returns
    -------
    As `matched_equivalence`; a group is one of faults that cannot be told apart.
    """
    worlds: dict[str, dict[Hashable, dict[str, dict[int, str]]]] = {}
    for cell, action in actions.items():
        group = GROUP_OF.get(cell.fault)
        if group is not None:
            place = replace(cell, fault=group, repeat=0)
            runs = worlds.setdefault(group, {}).setdefault(place, {})
            runs.setdefault(cell.fault, {})[cell.repeat] = action
    return matched_equivalence(worlds)


def matched_equivalence(worlds: Worlds) -> dict[str, Any]:
    """Agreement on first actions across matched worlds, and whether faults differ in them.

    Returns
    -------
    ``agreement`` by group: share of equal first actions ``across`` matched worlds and ``within``
    independent runs of one world, with the pairs behind them; ``tests``: for every two faults of a
    group the total variation distance between the first actions, its p by permutation within
    pairs, and Holm's adjustment over all of them.

    Raises
    ------
    UserError
        Where no group is there.
    """
    if not worlds:
        raise UserError("no fault was met that looks like another one")
    agreement = {
        group: or_why(lambda places=places: _agreement(places))  # type: ignore[misc]
        for group, places in worlds.items()
    }
    return {"agreement": agreement, "tests": _tests(worlds)}


def _agreement(places: Mapping[Hashable, Mapping[str, Mapping[int, str]]]) -> dict[str, Any]:
    found = first_action_agreement(
        [[list(runs.values()) for runs in faults.values()] for faults in places.values()]
    )
    told: dict[str, Any] = {
        "across": found.across,
        "within": found.within if found.pairs_within else None,
        "pairs_across": found.pairs_across,
        "pairs_within": found.pairs_within,
    }
    if not found.pairs_within:
        told["within_why"] = "no world was run twice; --repeats does"
    return told


def _tests(worlds: Worlds) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for group, places in worlds.items():
        faults = dict.fromkeys(fault for runs in places.values() for fault in runs)
        for one, other in combinations(faults, 2):
            pairs = [
                (action, runs[other][repeat])
                for runs in places.values()
                if one in runs and other in runs
                for repeat, action in runs[one].items()
                if repeat in runs[other]
            ]
            if pairs:
                first, second = zip(*pairs, strict=True)
                found = total_variation_test(first, second)
                rows.append({"group": group, "faults": [one, other], **asdict(found)})
    for row, adjusted in zip(rows, holm([row["p"] for row in rows]) if rows else (), strict=True):
        row["p_holm"] = float(adjusted)
    return rows
