"""Two runs of the sandbox's tasks, of policies or of agents, paired episode by episode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.analyses import (
    STAGES,
    Matched,
    analyses,
    clustered_share,
    compared,
    tested,
    told,
)
from evaluation.intervals import share_interval
from evaluation.manifest import Manifest, read_manifest
from evaluation.paired import mcnemar_exact, paired_difference
from evaluation.paired_counts import accounted, count_pairs
from evaluation.run_folder import manifest_path
from evaluation.sandbox import Cell, Episode
from evaluation.statistics.checks import or_why
from exactlyonce_env.errors import UserError
from exactlyonce_env.sandbox.grading import Grade

__all__ = ["SandboxRun", "kind_of", "open_sandbox_run", "paired_row"]

FLAGS = ("exactly_once", "unresolved", "overclaim")
NUMBERS = ("duplicates", "false_retry_permissions", "elapsed_s", "steps")
FACTORS = tuple(f.name for f in fields(Cell) if f.name != "policy")
"""What two episodes of a pair have in common: everything but who acts."""


@dataclass(frozen=True)
class SandboxRun:
    """A run of whole tasks.

    Attributes
    ----------
    folder
        Where it is.
    planned
        The cells of each policy, fault-free twins included.
    found
        The episodes that came to an end.
    first_actions
        Gives the first actions of some cells, as `evaluation.first_actions`; raises `UserError`
        where they cannot be had.
    """

    folder: Path
    planned: Mapping[str, Sequence[Cell]]
    found: Mapping[Cell, Episode]
    first_actions: Callable[[Sequence[Cell]], dict[Cell, str]]

    @property
    def policies(self) -> tuple[str, ...]:
        """Who acts in it."""
        return tuple(self.planned)


def kind_of(manifest: Manifest) -> str:
    """``agent``, ``sandbox`` or ``preset``."""
    if manifest.config.get("kind") == "agent":
        return "agent"
    return "sandbox" if manifest.preset == "sandbox" else "preset"


def open_sandbox_run(folder: str | Path) -> SandboxRun:
    """Read a run of `evaluate sandbox --out` or of `agent --out`.

    Raises
    ------
    UserError
        For a folder that holds neither.
    """
    path = Path(folder)
    manifest = read_manifest(manifest_path(path))
    opened = _agents(path, manifest) if kind_of(manifest) == "agent" else _scripted(path)
    if not opened.planned:
        raise UserError(f"{path} holds no episode")
    return opened


def _scripted(folder: Path) -> SandboxRun:
    from evaluation.first_actions import replayed_actions
    from evaluation.sandbox_store import load_episodes

    found = load_episodes(folder)
    return SandboxRun(folder, _by_policy(found), found, replayed_actions)


def _agents(folder: Path, manifest: Manifest) -> SandboxRun:
    from evaluation.first_actions import first_action
    from evaluation.llm.agent_folder import planned_cells
    from evaluation.llm.store import open_store

    names = [f.name for f in fields(Grade)]
    cells = dict.fromkeys(c for mine in planned_cells(manifest).values() for c in mine)
    found: dict[Cell, Episode] = {}
    actions: dict[Cell, str] = {}
    with open_store(folder, readonly=True) as store:
        for _, document in store.documents():
            if document.get("kind") != "agent":
                continue
            cell = Cell(**document["cell"])
            cells[cell] = None
            if document["status"] != "returned":
                continue
            grade = Grade(**{name: document[name] for name in names})
            found[cell] = Episode(cell, grade, str(document["behaviour"]))
            action = first_action(document["calls"])
            if action is not None:
                actions[cell] = action
    return SandboxRun(
        folder,
        _by_policy(cells),
        found,
        lambda asked: {c: actions[c] for c in asked if c in actions},
    )


def _by_policy(cells: Mapping[Cell, Any]) -> dict[str, list[Cell]]:
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.policy, []).append(cell)
    return found


def _places(run: SandboxRun, policy: str) -> dict[Cell, Cell]:
    """The cells of a policy by what they share with those of another one."""
    return {replace(cell, policy=""): cell for cell in run.planned[policy]}


def _refuse_other_cells(
    one: SandboxRun, other: SandboxRun, left: Mapping[Cell, Cell], right: Mapping[Cell, Cell]
) -> None:
    """Refuse policies that did not meet the same cells; twins may lack on a side.

    Raises
    ------
    UserError
        Naming the factors in which they differ, or the first cell that one lacks.
    """
    both = [{place for place in side if place.fault != "ok"} or set(side) for side in (left, right)]
    if both[0] == both[1]:
        return
    words = []
    for name in FACTORS:
        levels = [{getattr(place, name) for place in side} for side in both]
        for run, k in ((one, 0), (other, 1)):
            only = sorted(map(str, levels[k] - levels[1 - k]))
            if only:
                more = f" and {len(only) - 3} more" if len(only) > 3 else ""
                words.append(f"{name} {', '.join(only[:3])}{more} only in {run.folder}")
    if not words:
        k = 0 if both[0] - both[1] else 1
        run, lacks = (one, other)[k], both[k] - both[1 - k]
        first = min(lacks, key=str)
        words.append(
            f"{len(lacks)} cells only in {run.folder}, such as {first.task}/{first.instance}, "
            f"{first.write}, {first.fault}"
        )
    raise UserError(f"the runs met other cells: {'; '.join(words)}")


def paired_row(
    one: SandboxRun, other: SandboxRun, pair: tuple[str, str], margin: float
) -> dict[str, Any]:
    """Everything about one policy of the second run against one of the first.

    Raises
    ------
    UserError
        Where the two did not meet the same cells, and where no pair of episodes is left.
    """
    sides = (_places(one, pair[0]), _places(other, pair[1]))
    _refuse_other_cells(one, other, *sides)
    shared = [place for place in sides[0] if place in sides[1]]
    places = [place for place in shared if place.fault != "ok"] or shared
    met, quiet = _met(one, other, places, sides)
    pairs = [(left, right) for left, right in met if left is not None and right is not None]
    if not pairs:
        raise UserError(
            f"no pair of episodes of {pair[0]} and {pair[1]} counts: of {len(places)} planned, "
            f"{quiet} never met the fault on a side, and {len(met)} lack an episode"
        )
    left, right = zip(*pairs, strict=True)
    matched = _matched(left, right)
    counts = count_pairs((_success(a), _success(b)) for a, b in met)
    return {
        "a": pair[0],
        "b": pair[1],
        "n": len(pairs),
        **accounted(counts),
        "not_triggered": quiet,
        "exactly_once_a": _share(matched.a, matched.task),
        "exactly_once_b": _share(matched.b, matched.task),
        "difference": {name: _difference(left, right, name) for name in (*FLAGS, *NUMBERS)},
        "nominal": or_why(lambda: _nominal(one, other, shared, sides)),
        **tested(counts, margin),
        **analyses(matched),
        "first_actions": {
            "a": _first_actions(one, places, sides[0]),
            "b": _first_actions(other, places, sides[1]),
        },
    }


def _met(
    one: SandboxRun,
    other: SandboxRun,
    places: Sequence[Cell],
    sides: tuple[Mapping[Cell, Cell], Mapping[Cell, Cell]],
) -> tuple[list[tuple[Episode | None, Episode | None]], int]:
    """The planned pairs, None for a missing episode, and how many of them count for nothing.

    A pair counts for nothing where an episode ended without having met the fault.
    """
    pairs: list[tuple[Episode | None, Episode | None]] = []
    quiet = 0
    for place in places:
        left, right = (
            run.found.get(side[place]) for run, side in zip((one, other), sides, strict=True)
        )
        if place.fault != "ok" and any(
            episode is not None and not episode.grade.triggered for episode in (left, right)
        ):
            quiet += 1
        else:
            pairs.append((left, right))
    return pairs, quiet


def _success(episode: Episode | None) -> bool | None:
    return None if episode is None else bool(episode.grade.exactly_once)


def _matched(left: Sequence[Episode], right: Sequence[Episode]) -> Matched:
    cells = [episode.cell for episode in left]
    return Matched(
        a=np.array([episode.grade.exactly_once for episode in left]),
        b=np.array([episode.grade.exactly_once for episode in right]),
        task=np.array([cell.task for cell in cells]),
        instance=np.array([cell.instance for cell in cells]),
        stage=np.array([STAGES[cell.fault] for cell in cells]),
        contract=np.array([cell.contract for cell in cells]),
        harness=np.array([cell.wrapper for cell in cells]),
    )


def _share(success: Any, tasks: Any) -> dict[str, Any]:
    return {**told(share_interval(success)), "clustered": clustered_share(success, tasks)}


def _difference(left: Sequence[Episode], right: Sequence[Episode], name: str) -> dict[str, Any]:
    a, b = (np.array([getattr(e.grade, name) for e in side]) for side in (left, right))
    return compared(a, b)


def _nominal(
    one: SandboxRun,
    other: SandboxRun,
    shared: Sequence[Cell],
    sides: tuple[Mapping[Cell, Cell], Mapping[Cell, Cell]],
) -> dict[str, Any]:
    """Success without a fault, paired: recovery aside, do both know the task?"""
    twins = [place for place in shared if place.fault == "ok"]
    pairs = [
        (one.found[sides[0][t]], other.found[sides[1][t]])
        for t in twins
        if sides[0][t] in one.found and sides[1][t] in other.found
    ]
    if not pairs:
        raise UserError("the runs share no episode without a fault")
    left, right = (
        np.array([episode.grade.exactly_once for episode in side])
        for side in zip(*pairs, strict=True)
    )
    only_a, only_b = int(np.sum(left & ~right)), int(np.sum(right & ~left))
    return {
        "n": len(pairs),
        "exactly_once_a": told(share_interval(left)),
        "exactly_once_b": told(share_interval(right)),
        "difference": told(paired_difference(right, left)),
        "mcnemar": {"only_a": only_a, "only_b": only_b, "p": mcnemar_exact(only_a, only_b)},
    }


def _first_actions(
    run: SandboxRun, places: Sequence[Cell], side: Mapping[Cell, Cell]
) -> dict[str, Any]:
    from evaluation.first_actions import equivalence

    cells = [side[place] for place in places]
    return or_why(lambda: equivalence(run.first_actions([c for c in cells if c in run.found])))
