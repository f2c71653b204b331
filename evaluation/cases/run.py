"""Playing the contract cases: scripted policies, and models with tool calls.

The rounds and tool requests of an episode are counted by the same rules for all.  A turn without a
tool request is the final answer, whatever it looks like: it ends the episode, so that an answer
that cannot be read leads to no further request of anybody.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from evaluation.cases.data import Case
from evaluation.cases.grading import grade
from evaluation.cases.policies import Policy, named_policy
from evaluation.cases.prompts import CASES_VERSION, system_text, task_text
from evaluation.cases.tools import tools_of
from evaluation.cases.world import MAX_ROUNDS, World
from evaluation.llm.calling import Calls, NoAnswerError
from evaluation.llm.conversation import PROTOCOLS, open_conversation
from evaluation.llm.models import ModelOptions
from evaluation.llm.running import Document, Done, run_units, taken
from evaluation.llm.store import Spent, Store, open_store
from exactlyonce_env.errors import UserError, unknown
from policies.llm.asking import Settings
from policies.llm.endpoint import Endpoint
from policies.llm.policy import LLMPolicy
from policies.llm.prompts import Variant, split_spec

__all__ = ["CaseModel", "case_policy", "place_of", "play_policy", "run_model", "run_scripted"]

MODEL = "llm"

NOTHING_SPENT = Spent(0, 0, 0, 0.0, 0)


@dataclass(frozen=True)
class CaseModel:
    """A language model that works through the cases.

    Attributes
    ----------
    name
        The endpoint's name of it, or ``local``.
    settings
        How it is asked.
    protocol
        One of `PROTOCOLS`.
    endpoint
        Who answers; None: by name and settings.
    """

    name: str
    settings: Settings = field(default_factory=Settings)
    protocol: str = "chat"
    endpoint: Endpoint | None = None

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise unknown("--protocol", self.protocol, tuple(PROTOCOLS))

    @property
    def spec(self) -> str:
        """Name in tables and stores: ``llm:MODEL``, and the protocol where it is not the usual."""
        return f"{MODEL}:{self.name}" + ("" if self.protocol == "chat" else f"+{self.protocol}")

    def way(self) -> dict[str, Any]:
        """How it is asked, in JSON types."""
        return {
            "prompt": {"cases": CASES_VERSION},
            "protocol": self.protocol,
            "temperature": self.settings.temperature,
            "max_tokens": self.settings.max_tokens,
        }

    def connect(self) -> Endpoint:
        """Who answers."""
        return LLMPolicy(self.name, Variant(), self.settings, self.endpoint).connect()


def case_policy(
    spec: str, settings: Settings | None = None, protocol: str = "chat"
) -> Policy | CaseModel:
    """Who plays the cases, by name: a scripted policy, or ``llm:MODEL``.

    Raises
    ------
    UserError
        For an unknown name, or a model whose prompt is to be changed: the cases have their own.
    """
    kind, _, name = (part.strip() for part in spec.partition(":"))
    if kind != MODEL:
        return named_policy(spec)
    if not name:
        raise UserError(f"{spec!r} needs the name of a model, for instance llm:gpt-x")
    if split_spec(name)[0] != name:
        raise UserError(
            f"{spec!r}: the cases have their own prompt; write llm:{split_spec(name)[0]}"
        )
    return CaseModel(name, settings or Settings(), protocol)


def place_of(spec: str, case: Case, repeat: int) -> str:
    """Where an episode is kept."""
    return f"{spec}/cases/{case.id}/{repeat}"


def play_policy(case: Case, policy: Policy) -> tuple[World, str | None]:
    """Play a case to its end; the world, and the final answer, None where the rounds ran out."""
    world, play = World(case), policy.play(case)
    try:
        ask = next(play)
        for _ in range(MAX_ROUNDS):
            # What a script is told is what a model would read.
            reply = json.loads(json.dumps(world.request(ask.tool, ask.arguments)))
            ask = play.send(reply)
    except StopIteration as over:
        return world, str(over.value)
    return world, None


def run_scripted(policy: Policy, cases: Sequence[Case]) -> list[Document]:
    """The documents of a policy that no model is asked for; it does the same every time."""
    documents = []
    for case in cases:
        world, answer = play_policy(case, policy)
        documents.append(_document(policy.spec, world, 0, answer))
    return documents


def run_model(
    model: CaseModel,
    cases: Sequence[Case],
    folder: Any,
    options: ModelOptions,
    done: Done | None = None,
) -> tuple[list[Document], str]:
    """The documents of a model's episodes; what the store holds is not asked again.

    Parameters
    ----------
    model, cases
        Who plays what.
    folder
        The run folder, where every call is kept; None: in memory only.
    options
        How it is run.
    done
        Called with the document of each episode, stored ones included.

    Returns
    -------
    A document for each planned episode, and the budget that ended the run; empty: none did.
    Episodes without an answer from the provider are missing, and so are those that were not begun.

    Raises
    ------
    UserError
        Where every request would fail, or the folder holds another way of asking.
    """
    endpoint = model.connect()
    with open_store(folder, secrets=getattr(endpoint, "secrets", ())) as store:
        store.same_way(f"cases {model.spec}", model.way())
        calls = Calls(
            endpoint,
            store,
            patience=options.patience,
            prices=options.prices,
            limits=options.limits,
        )
        planned = list(product(cases, range(options.repeats)))

        async def play(unit: tuple[Case, int]) -> Document:
            return await _episode(model, *unit, calls, place_of(model.spec, *unit))

        run_units(
            planned,
            lambda unit: place_of(model.spec, *unit),
            play,
            calls,
            concurrency=options.concurrency,
            done=done,
        )
        return _stored(store, model.spec, planned, calls.stopped), calls.stopped


async def _episode(model: CaseModel, case: Case, repeat: int, calls: Calls, place: str) -> Document:
    """Play one episode to its end; its document."""
    world = World(case)
    talk = open_conversation(model.protocol, system_text(), task_text(case), tools_of(case.domain))
    answer: str | None = None
    reason, final = "", False
    try:
        for step in range(MAX_ROUNDS):
            body = talk.body(model.name, model.settings)
            turn = talk.take(await calls.ask(place, step, talk.path, body))
            if not turn.calls:
                answer = turn.text
                break
            for call in turn.calls:
                reply = world.request(call.name, call.arguments)
                talk.add_result(call, json.dumps(reply))
    except NoAnswerError as error:
        reason, final = str(error), error.final
    spent = calls.store.spent(place)
    return _document(model.spec, world, repeat, answer, reason=reason, final=final, spent=spent)


def _document(
    spec: str,
    world: World,
    repeat: int,
    answer: str | None,
    *,
    reason: str = "",
    final: bool = False,
    spent: Spent = NOTHING_SPENT,
) -> Document:
    """An episode in JSON types; one without the provider's answer has no observations."""
    case, observed = world.case, None
    if not reason:
        observed = grade(world, answer).to_dict()
    return {
        "kind": "case",
        "policy": spec,
        **_where(case, repeat),
        "status": "missing" if reason else "returned",
        "reason": reason,
        "final": final,
        "observed": observed,
        "answer": answer,
        "calls": [one.to_dict() for one in world.log],
        "ledger": [effect.to_dict() for effect in world.ledger],
        "invalid": sum(one.error in ("invalid_arguments", "unknown_tool") for one in world.log),
        **taken(spent),
        # What readers of any store look for.
        "preset": "cases",
        "seed": 0,
        "world": 0,
        "context": case.id,
        "actions": [one.tool for one in world.log],
        "answers": [],
        "outcome": None,
        "reward": None,
        "timeline": [],
    }


def _where(case: Case, repeat: int) -> Document:
    return {
        "case": case.id,
        "family": case.family,
        "domain": case.domain,
        "requires_progress": case.requires_progress,
        "fault": case.family,
        "repeat": repeat,
    }


def _stored(
    store: Store, spec: str, planned: Sequence[tuple[Case, int]], stopped: str
) -> list[Document]:
    """A document for each planned episode; what the store does not hold is missing."""
    why = f"not run: {stopped}" if stopped else "not run"
    found = []
    for case, repeat in planned:
        document = store.document(place_of(spec, case, repeat))
        if document is None:
            document = _document(spec, World(case), repeat, None, reason=why)
        found.append(document)
    return found
