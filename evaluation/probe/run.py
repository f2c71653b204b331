"""Asking policies and models for the planned responses of a design.

A model is asked once for each draw.  An answer that is not what was asked for is invalid, and a
request that got no answer is missing: both stay so, in this run and in one that goes on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from evaluation.llm.calling import Calls, NoAnswerError
from evaluation.llm.models import ModelOptions
from evaluation.llm.running import Document, Done, run_units, taken
from evaluation.llm.store import Store, open_store
from evaluation.llm.trial import way_of
from evaluation.probe.answers import Decision, InvalidAnswerError, parse_decision
from evaluation.probe.designs import Cell, Design
from evaluation.probe.policies import Scripted, named_policy
from evaluation.probe.prompts import PROBE_VERSION, answer_schema, messages_for
from evaluation.probe.replay import PRESET, SEED, expand, measures_of, same_key_of, walk_of
from evaluation.probe.responses import Response
from exactlyonce_env.errors import UserError
from policies.llm.asking import Settings, chat_text, schema_format
from policies.llm.endpoint import CHAT, Endpoint
from policies.llm.policy import LLMPolicy
from policies.llm.prompts import Variant as PromptVariant
from policies.llm.prompts import split_spec

__all__ = ["ANSWERS", "Asked", "Model", "place_of", "probe_policy", "run_model", "run_scripted"]

ANSWERS = ("text", "schema", "auto")
"""How a model is asked: in words alone, with a JSON schema, or whichever the endpoint keeps to."""

MODEL = "llm"


@dataclass(frozen=True)
class Model:
    """A language model as a subject of the probe.

    Attributes
    ----------
    name
        The endpoint's name of it, or ``local``.
    settings
        How it is asked; ``answers`` is one of `ANSWERS`.
    endpoint
        Who answers; None: by name and settings.
    """

    name: str
    settings: Settings = field(default_factory=lambda: Settings(answers="text"))
    endpoint: Endpoint | None = None

    @property
    def spec(self) -> str:
        """Name in tables and files."""
        return f"{MODEL}:{self.name}"

    def way(self) -> dict[str, Any]:
        """How it is asked, in JSON types."""
        return {
            "prompt": {"probe": PROBE_VERSION},
            "answers": self.settings.answers,
            "temperature": self.settings.temperature,
            "max_tokens": self.settings.max_tokens,
        }

    def policy(self) -> LLMPolicy:
        """The model as the project's policy, which knows how to reach it."""
        return LLMPolicy(self.name, PromptVariant(), self.settings, self.endpoint)

    def body(self, cell: Cell, how: str) -> dict[str, Any]:
        """The request about a prompt."""
        body: dict[str, Any] = {"model": self.name, "messages": messages_for(cell)}
        body |= self.settings.limits()
        if how == "schema":
            body["response_format"] = schema_format(answer_schema(cell.variant))
        return body


@dataclass(frozen=True)
class Asked:
    """What came of asking a model.

    Attributes
    ----------
    responses
        Every planned response.
    asked
        Requests that this command sent and that were answered.
    tokens_in, tokens_out, usd
        What all answers cost, earlier commands included.
    provider_errors
        Failed requests, each try counted, earlier commands included.
    stopped
        The budget that ended the run; empty: none did.
    """

    responses: list[Response]
    asked: int
    tokens_in: int
    tokens_out: int
    usd: float
    provider_errors: int
    stopped: str

    def account(self) -> dict[str, Any]:
        """All but the responses in JSON types, and why responses are not scored."""
        reasons = Counter(one.reason for one in self.responses if one.status != "valid")
        return {
            "policy": self.responses[0].policy,
            "planned": len(self.responses),
            "asked": self.asked,
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            "usd": self.usd,
            "provider_errors": self.provider_errors,
            "reasons": dict(reasons.most_common()),
            "stopped": self.stopped,
        }


def probe_policy(spec: str, settings: Settings | None = None) -> Scripted | Model:
    """A subject by its name: a scripted policy, one of the line-up, or ``llm:MODEL``.

    Raises
    ------
    UserError
        For an unknown name, or a model whose prompt is to be changed: the probe has its own.
    """
    kind, _, name = (part.strip() for part in spec.partition(":"))
    if kind != MODEL:
        return named_policy(spec)
    if not name:
        raise UserError(f"{spec!r} needs the name of a model, for instance llm:gpt-x")
    if split_spec(name)[0] != name:
        raise UserError(f"{spec!r}: the probe has its own prompts; write llm:{split_spec(name)[0]}")
    chosen = settings or Settings(answers="text")
    if chosen.answers not in ANSWERS:
        raise UserError(f"the probe asks by {', '.join(ANSWERS)}, not by {chosen.answers}")
    return Model(name, chosen)


def run_scripted(policy: Scripted, design: Design) -> list[Response]:
    """The planned responses of a policy that no model is asked for; its draws are all alike."""
    found = []
    for cell in design.cells:
        response = _decided(Response(policy.spec, design.name, cell, "valid"), policy.decide(cell))
        found += [replace(response, draw=draw) for draw in range(design.draws)]
    return found


def run_model(
    model: Model,
    design: Design,
    folder: Any,
    options: ModelOptions,
    done: Done | None = None,
) -> Asked:
    """The planned responses of a model; what the store holds is not asked again.

    Parameters
    ----------
    model, design
        Who is asked what.
    folder
        The run folder, where every call is kept; None: in memory only.
    options
        How it is run; ``repeats`` counts no further: the design says how many draws there are.
    done
        Called with the document of each response, stored ones included.

    Raises
    ------
    UserError
        Where every request would fail, or the folder holds another way of asking.

    A budget that is used up ends the run quietly; ``stopped`` names it.
    """
    policy = model.policy()
    endpoint = policy.connect()
    with open_store(folder, secrets=getattr(endpoint, "secrets", ())) as store:
        store.same_way(f"probe {model.spec}", model.way())
        calls = Calls(
            endpoint,
            store,
            patience=options.patience,
            prices=options.prices,
            limits=options.limits,
        )
        how = ""

        async def find_way() -> None:
            nonlocal how
            how = await way_of(policy, calls)

        async def play(unit: tuple[Cell, int]) -> Document:
            place = place_of(model.spec, design.name, *unit)
            return await _response(model, design, *unit, how, calls, place)

        run_units(
            design.units(),
            lambda unit: place_of(model.spec, design.name, *unit),
            play,
            calls,
            concurrency=options.concurrency,
            done=done,
            before=find_way,
        )
        sums: Counter[str] = Counter()
        usd = 0.0
        for cell, draw in design.units():
            document = store.document(place_of(model.spec, design.name, cell, draw)) or {}
            usd += document.get("usd", 0.0)
            for name in ("tokens_in", "tokens_out", "provider_errors"):
                sums[name] += document.get(name, 0)
        return Asked(
            stored_responses(store, model.spec, design, calls.stopped),
            calls.asked,
            sums["tokens_in"],
            sums["tokens_out"],
            usd,
            sums["provider_errors"],
            calls.stopped,
        )


def place_of(spec: str, design: str, cell: Cell, draw: int) -> str:
    """Where the call of a response is kept."""
    return f"{spec}/probe/{design}/{cell.name}/{draw}"


async def _response(
    model: Model, design: Design, cell: Cell, draw: int, how: str, calls: Calls, place: str
) -> dict[str, Any]:
    """Ask once; the document."""
    text: str | None = None
    decision: Decision | None = None
    invalid = reason = ""
    try:
        text = chat_text(await calls.ask(place, 0, CHAT, model.body(cell, how)))
        decision = parse_decision(text, cell.variant)
    except InvalidAnswerError as wrong:
        invalid = str(wrong)
        reason = f"invalid: {wrong}"
    except NoAnswerError as error:
        reason = str(error)
    action = None if decision is None else decision.action
    key = None if decision is None else decision.idempotency_key
    outcome = None
    if action is not None:
        outcome = measures_of(expand(cell.variant, action, same_key_of(cell, key)))
    answer = {"step": 0, "decision": 0, "action": action, "invalid": invalid or None}
    if decision is not None:
        answer["rationale"] = decision.rationale
    return {
        "kind": "probe",
        "policy": model.spec,
        "design": design.name,
        "preset": PRESET,
        "seed": SEED,
        "world": walk_of(cell.variant).world,
        "context": cell.name,
        "fault": "timeout",
        "repeat": draw,
        "cell": cell.to_dict(),
        # An answer that cannot be read is scored nowhere, as if none had come.
        "status": "missing" if reason else "returned",
        "reason": reason,
        "final": True,
        "text": text,
        "action": action,
        "idempotency_key": key,
        "actions": [] if action is None else [action],
        "invalid": int(bool(invalid)),
        "invalid_reason": invalid,
        **taken(calls.store.spent(place)),
        "outcome": outcome,
        "reward": None,
        "answers": [] if text is None else [answer],
        "timeline": [],
    }


def stored_responses(store: Store, spec: str, design: Design, stopped: str = "") -> list[Response]:
    """Every planned response of a model; what the store does not hold is missing."""
    why = f"not run: {stopped}" if stopped else "not run"
    found = []
    for cell, draw in design.units():
        document = store.document(place_of(spec, design.name, cell, draw))
        response = Response(
            spec, design.name, cell, "missing", draw=draw, reason=why, version=PROBE_VERSION
        )
        if document is not None:
            response = _of_document(response, document)
        found.append(response)
    return found


def _of_document(response: Response, document: dict[str, Any]) -> Response:
    if document["text"] is None:
        return replace(response, reason=document["reason"])
    told = replace(response, text=document["text"], reason=document["invalid_reason"])
    if document["action"] is None:
        return replace(told, status="invalid")
    decision = Decision(document["action"], document["idempotency_key"])
    return _decided(replace(told, status="valid"), decision)


def _decided(response: Response, decision: Decision) -> Response:
    key = decision.idempotency_key
    return replace(
        response,
        action=decision.action,
        idempotency_key=key,
        same_key=same_key_of(response.cell, key),
        version=PROBE_VERSION,
    )
