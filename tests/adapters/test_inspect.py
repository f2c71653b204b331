"""The sandbox inside Inspect, offline: real `eval` runs with a scripted model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("inspect_ai", reason="the extra inspect is not installed")

from inspect_ai import eval as inspect_eval
from inspect_ai.model import ModelOutput, ModelUsage, get_model

from evaluation.adapters.inspect_task import sandbox
from exactlyonce_env.errors import UserError
from exactlyonce_env.sandbox.tasks import make_task

TASK = "invoice_batch"


def call(tool: str, arguments: dict[str, Any]) -> ModelOutput:
    output = ModelOutput.for_tool_call("mockllm/model", tool, arguments)
    output.usage = ModelUsage(input_tokens=10, output_tokens=5, total_tokens=15)
    return output


def say(text: str) -> ModelOutput:
    output = ModelOutput.from_content("mockllm/model", text)
    output.usage = ModelUsage(input_tokens=10, output_tokens=5, total_tokens=15)
    return output


def steps() -> list[tuple[str, dict[str, Any]]]:
    return [(s.tool, dict(s.arguments)) for s in make_task(TASK, 0).steps]


DONE = ("finish", {"status": "completed", "summary": "done"})


def run(outputs: list[ModelOutput], log_dir: Path, **factors: Any) -> Any:
    (log,) = inspect_eval(
        sandbox(tasks=TASK, writes="charge_0", **factors),
        model=get_model("mockllm/model", custom_outputs=outputs),
        log_dir=str(log_dir),
        display="none",
    )
    assert log.status == "success", log.error
    return log


def values(log: Any) -> dict[str, float]:
    return dict(log.samples[0].scores["ledger"].value)


def test_a_sound_agent_is_exactly_once(tmp_path: Path) -> None:
    outputs = [call(*step) for step in [*steps(), DONE]]
    log = run(outputs, tmp_path, faults="ok")
    assert values(log)["exactly_once"] == 1.0
    assert log.samples[0].id == f"{TASK}/0/charge_0/ok"
    assert {s.name for s in log.results.scores} >= {"exactly_once", "duplicates"}


def test_a_blind_repeat_is_a_duplicate(tmp_path: Path) -> None:
    first, *rest = steps()
    outputs = [call(*step) for step in [first, first, *rest, DONE]]
    log = run(outputs, tmp_path, faults="timeout_post")
    found = values(log)
    assert (found["exactly_once"], found["duplicates"], found["overclaim"]) == (0.0, 1.0, 1.0)
    score = log.samples[0].scores["ledger"]
    assert score.metadata["behaviour"] == "blind_retry"
    tools = [m for m in log.samples[0].messages if m.role == "tool"]
    assert "Timeout" in tools[0].error.message


def test_turns_without_a_call_are_nudged(tmp_path: Path) -> None:
    log = run([say("hm")] * 3, tmp_path, faults="ok")
    roles = [m.role for m in log.samples[0].messages]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user", "assistant"]
    assert values(log)["unresolved"] == 1.0


@pytest.mark.parametrize("wrong", [("no_such_tool", {}), ("wait", {"minutes": 1})])
def test_wrong_calls_count_so_that_the_episode_ends(
    wrong: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    log = run([call(*wrong) for _ in range(45)], tmp_path, faults="ok")
    tools = [m for m in log.samples[0].messages if m.role == "tool"]
    assert len(tools) == 40
    assert all(message.error.message.startswith("HTTP 40") for message in tools)
    assert values(log)["unresolved"] == 1.0


def test_epochs_are_repeats(tmp_path: Path) -> None:
    outputs = [call(*DONE) for _ in range(3)]
    log = run(outputs, tmp_path, faults="ok", repeats=3)
    assert len(log.samples) == 3


def test_nothing_of_the_fault_reaches_the_model(tmp_path: Path) -> None:
    log = run([call(*DONE)], tmp_path, faults="timeout_late")
    told = json.dumps([m.model_dump(mode="json") for m in log.samples[0].messages])
    assert "timeout_late" not in told


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UserError, match="choose from"):
        sandbox(tasks="nothing")
