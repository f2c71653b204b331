"""What a policy decides first in the worlds of a preset that look alike by then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from evaluation.first_actions import matched_equivalence
from evaluation.learning import played
from exactlyonce_env.config import Preset
from exactlyonce_env.errors import UserError
from exactlyonce_env.presets import load_plan
from exactlyonce_env.vocabulary import MODE_NAMES, Action
from policies.base import PlannedPolicy, Policy
from policies.bayes.policy import distinct_views
from policies.rollout import world_names
from policies.spec import parse_policy

if TYPE_CHECKING:
    from evaluation.store import Run
    from exactlyonce_env.plan import Plan

__all__ = ["decision_equivalence"]

MAX_WORLDS = 2000
"""Worlds, the first ones, that are looked at."""

GROUP = "same view"

Decisions = list[tuple[int, int, str]]
"""Place in the list of worlds, repeat, and what was decided first."""


def decision_equivalence(run: Run, policy: str, worlds: Sequence[int]) -> dict[str, Any]:
    """Whether a policy decides alike first in worlds whose views are the same by then.

    Parameters
    ----------
    run
        A run of a preset's worlds.
    policy
        One of its policies.
    worlds
        World ids; the first `MAX_WORLDS` count.

    Returns
    -------
    As `evaluation.first_actions.matched_equivalence`, with one group.  The first decision is the
    first one after the original was sent.  Of worlds with one view the k-th of each fault are
    matched.  Scripted and learned policies are played again; what language models decided is kept.

    Raises
    ------
    UserError
        Where no two faults share a view, a policy cannot be made again, and for a language model
        where the preset starts before the original is sent.
    """
    plan = load_plan(Preset.model_validate(run.manifest.config))
    ids = np.array(sorted(worlds)[:MAX_WORLDS], dtype=np.int64)
    seed = run.manifest.seed
    if policy.startswith("llm:"):
        groups, decisions = _recorded(run, plan, policy, seed, ids)
    else:
        groups, decisions = _played_again(plan, policy, seed, ids)
    _, modes = world_names(plan, np.uint64(seed), ids)
    return matched_equivalence({GROUP: _matched(groups, modes, decisions)})


def _played_again(
    plan: Plan, policy: str, seed: int, ids: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], Decisions]:
    """The number of each world's view at its first decision, and the decisions."""
    made = parse_policy(policy)
    if isinstance(made, PlannedPolicy):
        made = made.for_plan(plan)
    if not isinstance(made, Policy):
        raise UserError(f"{policy} sees what is hidden; worlds do not look alike to it")
    views: Any = None
    words: dict[int, str] = {}
    for running, seen, kinds, seconds in played(plan, made, seed, ids):
        if views is None:
            views = np.zeros(len(ids), dtype=seen.dtype)
        for k in np.flatnonzero(seen["n_attempts"] > 0):
            place = int(running[k])
            if place not in words:
                views[place] = seen[k]
                words[place] = _word(int(kinds[k]), float(seconds[k]))
        if len(words) == len(ids):
            break
    _, groups = distinct_views(views)
    return groups, [(place, 0, word) for place, word in words.items()]


def _word(kind: int, seconds: float) -> str:
    name = Action(kind).name.lower()
    return f"{name}:{seconds:g}" if kind == Action.WAIT else name


def _recorded(
    run: Run, plan: Plan, policy: str, seed: int, ids: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], Decisions]:
    """The same of a language model, from the episodes that the run keeps."""
    from evaluation.llm.store import open_store

    never = parse_policy("never-retry")
    assert isinstance(never, Policy)
    _, views, _, _ = next(played(plan, never, seed, ids))
    if (views["n_attempts"] == 0).any():
        raise UserError(
            "the preset starts before the original is sent; first decisions of language models are "
            "told of presets that start at the fault"
        )
    place_of = {int(world): place for place, world in enumerate(ids)}
    with open_store(run.folder, readonly=True) as store:
        found = [
            (place_of[document["world"]], int(document["repeat"]), str(document["actions"][0]))
            for _, document in store.documents(policy)
            if document.get("kind") == "policy"
            and document["world"] in place_of
            and document["actions"]
        ]
    _, groups = distinct_views(views)
    return groups, found


def _matched(
    groups: npt.NDArray[np.int64], modes: npt.NDArray[np.int8], decisions: Decisions
) -> dict[Any, dict[str, dict[int, str]]]:
    """The decisions by view and rank, fault and repeat; views that one fault has are left out."""
    by_view: dict[int, dict[str, list[int]]] = {}
    for place in dict.fromkeys(place for place, _, _ in decisions):
        faults = by_view.setdefault(int(groups[place]), {})
        faults.setdefault(MODE_NAMES[int(modes[place])], []).append(place)
    told: dict[int, dict[int, str]] = {}
    for place, repeat, word in decisions:
        told.setdefault(place, {})[repeat] = word
    found: dict[Any, dict[str, dict[int, str]]] = {}
    for view, faults in by_view.items():
        if len(faults) < 2:
            continue
        for fault, places in faults.items():
            for rank, place in enumerate(places):
                found.setdefault((view, rank), {})[fault] = told[place]
    if not found:
        raise UserError("no two faults share a view at the first decision")
    return found
