"""A language model in the worlds of a preset: many episodes at a time, one decision after another.

A world counts for a model when its episode came to an end.  Where the provider gave no answer the
world is missing: it is reported, and scored nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from evaluation.llm.calling import Calls, NoAnswerError
from evaluation.llm.running import Document, Done, run_units, taken
from evaluation.llm.store import Store
from evaluation.llm.trial import way_of
from exactlyonce_env.episode import Walk
from exactlyonce_env.plan import Plan
from exactlyonce_env.records import MEASURES
from exactlyonce_env.replay_words import timeline
from exactlyonce_env.vocabulary import MODE_NAMES, Action
from policies.llm.answers import InvalidAnswerError
from policies.llm.asking import Question
from policies.llm.endpoint import CHAT
from policies.llm.policy import LLMPolicy
from policies.llm.prompts import NUDGES
from policies.rollout import world_names

__all__ = ["Returned", "place_of", "run_worlds", "stored_worlds"]

KEPT = ("world", "reward", "context_index", "fault", "outcome")
"""Fields of a document that its row is made of."""


@dataclass(frozen=True)
class Returned:
    """Where a model's episodes stand.

    Attributes
    ----------
    columns
        The store's columns of the worlds that came to an end, sorted by world.
    planned, missing
        Number of worlds, and of those that got no answer or were not run.
    reasons
        Why worlds are missing, with their number.
    """

    columns: dict[str, npt.NDArray[Any]]
    planned: int
    missing: int
    reasons: dict[str, int]


@dataclass
class _Tally:
    """What one episode used."""

    invalid: int = 0
    answers: list[dict[str, Any]] = field(default_factory=list)


def place_of(spec: str, world: int, repeat: int) -> str:
    """Where the calls of an episode are kept."""
    return f"{spec}/{world}/{repeat}"


def run_worlds(
    plan: Plan,
    policy: LLMPolicy,
    calls: Calls,
    *,
    seed: int,
    worlds: Sequence[int],
    repeats: int = 1,
    concurrency: int = 8,
    done: Done | None = None,
) -> None:
    """Run every episode that the store does not hold yet; see `evaluation.llm.running`.

    Parameters
    ----------
    plan, seed, worlds, repeats
        The worlds, and how often each is played.
    policy
        The model and how it is asked.
    calls
        Its way to the provider and the store.
    concurrency
        Episodes at the same time.
    done
        Called with the document of each episode, stored ones included.

    Raises
    ------
    UserError
        Where every request would fail.

    A budget that is used up ends the run quietly; ``calls.stopped`` names it.
    """
    how = ""

    async def find_way() -> None:
        nonlocal how
        how = await way_of(policy, calls)

    async def play(unit: tuple[int, int]) -> Document:
        world, repeat = unit
        place = place_of(policy.spec, world, repeat)
        return await _episode(Walk(plan, seed, world), policy, how, calls, place, repeat)

    run_units(
        product(worlds, range(repeats)),
        lambda unit: place_of(policy.spec, *unit),
        play,
        calls,
        concurrency=concurrency,
        done=done,
        before=find_way,
    )


async def _episode(
    walk: Walk, policy: LLMPolicy, how: str, calls: Calls, place: str, repeat: int
) -> dict[str, Any]:
    """Play one world to its end; its document."""
    tally = _Tally()
    words: list[str] = []
    complaints: list[tuple[str, str]] = []
    step = 0
    reason, final = "", False
    try:
        while not walk.ended:
            view = walk.view
            question = Question(view.seen, view.contract, policy.variant, how, tuple(complaints))
            body = question.body(policy.model, policy.settings)
            response = await calls.ask(place, step, CHAT, body)
            noted: dict[str, Any] = {"step": step, "decision": len(words)}
            step += 1
            try:
                answer = question.read(response)
            except InvalidAnswerError as wrong:
                tally.invalid += 1
                tally.answers.append(noted | {"action": None, "invalid": str(wrong)})
                complaints.append((question.text(response), str(wrong)))
                if tally.invalid <= NUDGES:
                    continue
                word, action, seconds = "finish_uncertain", Action.FINISH_UNCERTAIN, 0.0
            else:
                tally.answers.append(
                    noted
                    | {
                        "action": answer.word,
                        "rationale": answer.rationale,
                        "belief": answer.belief,
                        "invalid": None,
                    }
                )
                word, action, seconds = answer.word, answer.action, answer.seconds
            complaints.clear()
            walk.act(action, seconds, word)
            words.append(word)
    except NoAnswerError as error:
        reason, final = str(error), error.final
    return _document(walk, policy, calls, place, repeat, tally, words, reason, final)


def _document(
    walk: Walk,
    policy: LLMPolicy,
    calls: Calls,
    place: str,
    repeat: int,
    tally: _Tally,
    words: Sequence[str],
    reason: str,
    final: bool,
) -> dict[str, Any]:
    told = walk.told()
    return {
        "kind": "policy",
        "policy": policy.spec,
        "preset": told.preset,
        "seed": told.seed,
        "world": told.world,
        "repeat": repeat,
        "fault": _fault(walk),
        "context": told.context,
        "context_index": int(walk.truth["context"]),
        "status": "missing" if reason else "returned",
        "reason": reason,
        "final": final,
        "actions": list(words),
        "invalid": tally.invalid,
        **taken(calls.store.spent(place)),
        "outcome": None if reason else told.outcome,
        "reward": None if reason else told.reward,
        "answers": tally.answers,
        "timeline": [
            {"time_s": m.time_s, "seen": m.seen, "happened": m.happened} for m in timeline(told)
        ],
    }


def _fault(walk: Walk) -> str:
    """The fault mode of the world's original, whether or not it was sent."""
    _, modes = world_names(walk.plan, np.uint64(walk.seed), np.array([walk.world]))
    return MODE_NAMES[int(modes[0])]


def documents_of(
    store: Store, spec: str, worlds: Sequence[int], repeat: int
) -> Iterator[dict[str, Any]]:
    """The finished episodes of one repeat, by world."""
    for world in worlds:
        document = store.document(place_of(spec, world, repeat))
        if document is not None:
            yield document


def stored_worlds(store: Store, spec: str, worlds: Sequence[int], repeat: int = 0) -> Returned:
    """The episodes of a model as the columns of any other policy."""
    rows = []
    reasons: dict[str, int] = {}
    for document in documents_of(store, spec, worlds, repeat):
        if document["status"] == "returned":
            rows.append({name: document[name] for name in KEPT})
        else:
            reasons[document["reason"]] = reasons.get(document["reason"], 0) + 1
    return Returned(_columns(rows), len(worlds), len(worlds) - len(rows), reasons)


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, npt.NDArray[Any]]:
    columns: dict[str, npt.NDArray[Any]] = {
        name: np.array([row["outcome"][name] for row in rows]) for name in MEASURES
    }
    columns["world"] = np.array([row["world"] for row in rows], dtype=np.int64)
    columns["reward"] = np.array([row["reward"] for row in rows], dtype=np.float64)
    columns["cost"] = columns["duplicates"].astype(np.float64)
    columns["context"] = np.array([row["context_index"] for row in rows], dtype=np.int32)
    columns["mode"] = np.array([row["fault"] for row in rows], dtype=np.str_)
    return columns
