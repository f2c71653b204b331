"""The sandbox as a verifiers taskset: rollouts with a scripted model over a real socket."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verifiers.v1", reason="the extra verifiers is not installed")

import verifiers.v1 as vf

from evaluation.adapters.verifiers_taskset import PLAYED
from evaluation.llm.fake import Answer, FakeEndpoint, Faults, Request
from exactlyonce_env.sandbox.contracts import FAULTS
from exactlyonce_env.sandbox.session import Session
from exactlyonce_env.sandbox.tasks import make_task

TASK = "invoice_batch"
ID = "exactlyonce-sandbox"
ROWS = {"tasks": [TASK], "faults": ["timeout_post"], "writes": ["charge_0"]}
DONE = {"status": "completed", "summary": "done"}


@pytest.fixture(autouse=True)
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two lines by which verifiers finds the taskset, and no cache in the home folder."""
    module = "evaluation.adapters.verifiers_taskset"
    lines = f"from {module} import *\nfrom {module} import __all__\n"
    (tmp_path / "exactlyonce_sandbox.py").write_text(lines)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "exactlyonce_sandbox", raising=False)


def steps(first_sends: int) -> list[tuple[str, dict[str, Any]]]:
    first, *rest = [(s.tool, dict(s.arguments)) for s in make_task(TASK, 0).steps]
    return [first] * first_sends + rest + [("finish", DONE)]


def scripted(calls: list[tuple[str, Any]]) -> Callable[[Request], Answer]:
    """The next of some calls."""

    def script(request: Request) -> Answer:
        done = sum(message["role"] == "tool" for message in request.history)
        name, arguments = calls[done]
        return Answer(None, [(name, json.dumps(arguments))])

    return script


def load(**rows: Any) -> Any:
    agent = {"model": "fake"}
    return vf.load_environment(
        vf.resolve_env_config({"taskset": {"id": ID, **ROWS, **rows}, "agent": agent})
    )


def roll(script: Callable[[Request], Answer], faults: Faults | None = None, **rows: Any) -> Any:
    """The trace of a rollout."""
    environment = load(**rows)

    async def one(url: str) -> Any:
        context = vf.ModelContext(model="fake", client=vf.EvalClientConfig(base_url=url))
        async with environment.serving():
            (slot,) = environment.slots(next(iter(environment.taskset)))
            return await environment.run_slot(slot, context)

    with FakeEndpoint(script, faults or Faults()) as endpoint:
        (trace,) = asyncio.run(one(endpoint.base_url)).traces
    return trace


def roles(trace: Any) -> list[str]:
    return [node.message.role for node in trace.nodes]


def test_a_sound_agent_is_exactly_once() -> None:
    trace = roll(scripted(steps(1)))
    assert trace.ok, trace.errors
    assert trace.reward == 1.0
    assert trace.metrics["exactly_once"] == 1.0
    assert roles(trace)[:4] == ["system", "user", "assistant", "tool"]
    assert trace.nodes[1].message.content == Session(TASK).instructions


def test_a_blind_repeat_pays_for_its_duplicate() -> None:
    trace = roll(scripted(steps(2)))
    assert trace.reward == pytest.approx(-1.2)
    assert trace.metrics["duplicates"] == 1.0
    assert trace.metrics["overclaim"] == 1.0


def test_words_are_nudged_and_then_end_it() -> None:
    trace = roll(lambda request: Answer("Let me think."))
    assert roles(trace) == ["system", "user", *["assistant", "user"] * 2, "assistant"]
    assert trace.metrics["unresolved"] == 1.0


def test_wrong_calls_count() -> None:
    trace = roll(lambda request: Answer(None, [("no_such_tool", "{}")]))
    assert roles(trace).count("assistant") == 40
    assert trace.metrics["unresolved"] == 1.0


def test_the_providers_trouble_is_not_scored() -> None:
    trace = roll(scripted(steps(1)), Faults(rate=1.0, kinds=("http_500",)))
    assert not trace.ok
    assert trace.errors
    assert "ledger" not in trace.rewards


def test_a_trace_is_scored_again_from_what_it_holds() -> None:
    trace = roll(scripted(steps(2)))
    task = next(iter(load().taskset))
    played = json.loads(json.dumps(trace.info[PLAYED]))

    assert asyncio.run(task.ledger(SimpleNamespace(info={PLAYED: played}))) == pytest.approx(-1.2)
    with pytest.raises(ValueError, match="its own harness"):
        asyncio.run(task.ledger(SimpleNamespace(info={})))


def test_nothing_of_the_fault_reaches_the_model() -> None:
    seen: list[str] = []

    def script(request: Request) -> Answer:
        seen.append(json.dumps(request.body))
        return scripted(steps(1))(request)

    roll(script)
    assert not [name for name in FAULTS if f'"{name}"' in "".join(seen)]
    assert "charge_0" not in "".join(seen)
    assert "accepts_key" not in "".join(seen)


def test_which_worlds_there_are() -> None:
    assert [task.data.name for task in load().taskset] == [f"{TASK}/0/charge_0/timeout_post"]
    drawn = [task.data.world for task in load(drawn=5, tasks=[], faults=[]).taskset]
    assert len({world["task"] for world in drawn}) > 1
    assert min(world["instance"] for world in drawn) >= 2
    for wrong in ({"tasks": ["none"]}, {"faults": ["late"]}, {"writes": ["zz"]}):
        with pytest.raises(ValueError, match=r"choose from|no world fits"):
            list(load(**wrong).taskset)
