"""Run folders for the viewer's tests: small ones by hand, and real ones by the real writers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluation.cases.data import case_named
from evaluation.cases.run import CaseModel
from evaluation.cases.run import run_model as run_cases
from evaluation.llm.agent_run import Agent, agent_cells, run_agent
from evaluation.llm.calling import Calls, Prices
from evaluation.llm.models import ModelOptions
from evaluation.llm.policy_run import run_worlds
from evaluation.llm.store import open_store
from evaluation.probe.designs import TASKS, Cell, Design, Variant
from evaluation.probe.run import Model
from evaluation.probe.run import run_model as run_probe
from exactlyonce_env.presets import load_plan
from exactlyonce_env.records import MEASURES
from policies.llm.endpoint import Patience, ProviderError
from policies.llm.policy import LLMPolicy
from policies.llm.prompts import Variant as PromptVariant

CANARY = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
"""What a model might write to be run by a browser."""

NOTHING = dict.fromkeys(MEASURES, 0) | {"elapsed_s": 31.0, "exactly_once": True}


def policy_document(
    world: int,
    policy: str = "llm:gpt-x",
    fault: str = "timeout_pre",
    repeat: int = 0,
    reason: str = "",
    rationale: str = "look first",
    invalid: int = 0,
    **outcome: Any,
) -> dict[str, Any]:
    """An episode of a model as a policy, which reads and finishes."""
    return {
        "kind": "policy",
        "policy": policy,
        "preset": "late-tail",
        "seed": 0,
        "world": world,
        "repeat": repeat,
        "fault": fault,
        "context": "late-tail",
        "status": "missing" if reason else "returned",
        "reason": reason,
        "actions": ["read", "finish"],
        "invalid": invalid,
        "provider_errors": 0,
        "n_calls": 2,
        "tokens_in": 100 + world,
        "tokens_out": 10,
        "usd": 0.001,
        "outcome": None if reason else NOTHING | outcome,
        "reward": None if reason else 1.0,
        "answers": [{"step": 0, "action": "read", "rationale": rationale, "invalid": None}],
        "timeline": [{"time_s": 0.0, "seen": "sends attempt 0", "happened": ""}],
    }


def agent_document(task: str, write: str, fault: str, **fields: Any) -> dict[str, Any]:
    """An episode of an agent that called nothing."""
    return {
        **NOTHING,
        "kind": "agent",
        "policy": "agent:gpt-x",
        "task": task,
        "instance": 0,
        "write": write,
        "fault": fault,
        "wrapper": "none",
        "repeat": 0,
        "status": "returned",
        "reason": "",
        "ended_by": "finish",
        "behaviour": "move_on",
        "triggered": True,
        "collateral": 0,
        "unrequested": 0,
        "invalid": 0,
        "provider_errors": 0,
        "n_calls": 0,
        "calls": [],
        "timeline": [],
        **fields,
    }


def keep(folder: Path, documents: Mapping[str, Mapping[str, Any]]) -> Path:
    """A run folder that holds the documents by place."""
    folder.mkdir(parents=True, exist_ok=True)
    with open_store(folder) as store:
        for place, document in documents.items():
            store.finish(place, document)
    return folder


class Scripted:
    """An endpoint that gives prepared answers in order; what is raised is trouble."""

    def __init__(self, answers: Sequence[dict[str, Any] | str | Exception]) -> None:
        self._left = list(answers)

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0)
        answer = self._left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return said(answer) if isinstance(answer, str) else answer


def said(content: Any, **message: Any) -> dict[str, Any]:
    """A chat completion."""
    return {
        "choices": [{"message": {"role": "assistant", "content": content} | message}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 7},
    }


def asks(*calls: tuple[str, Any], text: str | None = None) -> dict[str, Any]:
    """A chat completion that calls tools."""
    entries = [
        {
            "id": f"{name}-{k}",
            "type": "function",
            "function": {
                "name": name,
                "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
            },
        }
        for k, (name, arguments) in enumerate(calls)
    ]
    return said(text, tool_calls=entries)


def slow_down() -> ProviderError:
    """A provider that asks for patience."""
    return ProviderError("http_429", "slow down", True)


def played(folder: Path, answers: Sequence[Any], *, belief: bool = False, world: int = 0) -> str:
    """Let a scripted model play a world of ``late-tail``; the episode's place."""
    policy = LLMPolicy(
        "toy", PromptVariant(belief=belief), endpoint=Scripted([said("hello"), *answers])
    )
    _run(
        folder,
        policy._endpoint,
        lambda c: run_worlds(load_plan("late-tail"), policy, c, seed=0, worlds=[world]),
    )
    return f"{policy.spec}/{world}/0"


def acted(
    folder: Path,
    answers: Sequence[Any],
    *,
    fault: str = "timeout_post",
    wrapper: str = "none",
    protocol: str = "chat",
    task: str = "invoice_batch",
) -> None:
    """Let a scripted agent do a task."""
    agent = Agent("toy", protocol=protocol)
    cells = agent_cells(agent, wrappers=(wrapper,), faults=(fault,), tasks=(task,))[:1]
    _run(folder, Scripted(answers), lambda c: run_agent(agent, cells, c, concurrency=1))


def desk(folder: Path, case: str, answers: Sequence[Any], *, protocol: str = "chat") -> str:
    """Let a scripted model work through a contract case; the episode's place."""
    folder.mkdir(parents=True, exist_ok=True)
    model = CaseModel("toy", protocol=protocol, endpoint=Scripted(answers))
    options = ModelOptions(concurrency=1, patience=Patience(retries=0, first_s=0.0))
    run_cases(model, [case_named(case)], folder, options)
    return f"{model.spec}/cases/{case}/0"


def probed(folder: Path, answer: Any, **levels: Any) -> str:
    """Let a scripted model take the probe's one decision in every task; one response's place."""
    folder.mkdir(parents=True, exist_ok=True)
    variant = Variant(**levels)
    model = Model("toy", endpoint=Scripted([answer] * len(TASKS)))
    options = ModelOptions(concurrency=1, patience=Patience(retries=0, first_s=0.0))
    run_probe(model, Design("key-control", "", (variant,), 1), folder, options)
    return f"{model.spec}/probe/key-control/{Cell(variant, 'issue').name}/0"


def _run(folder: Path, endpoint: Any, work: Callable[[Calls], None]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with open_store(folder) as store:
        patience = Patience(retries=1, first_s=0.0)
        work(Calls(endpoint, store, prices=Prices(1.0, 2.0), patience=patience))
