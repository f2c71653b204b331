"""A model under the recovery driver: every call kept, nothing paid twice, missing told apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai", reason="the extra llm is not installed")

from evaluation.llm.calling import Calls, Limits
from evaluation.llm.fake import FakeEndpoint, Faults
from evaluation.llm.recovery_run import run_recovery
from evaluation.llm.store import open_store
from evaluation.sandbox import plan_cells
from policies.llm.asking import Settings
from policies.llm.endpoint import Patience, ProviderError
from policies.llm.policy import LLMPolicy

from .llm_toys import Toy, answer, chat, patient_script

QUICK = Patience(retries=1, first_s=0.0, longest_s=0.0)
MODEL = LLMPolicy("toy", settings=Settings(answers="text"))
CELLS = plan_cells(policies=["llm:toy"], tasks=["invoice_batch"], faults=["timeout_late"])


def run(toy: Toy, store: Any, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    calls = Calls(toy, store, patience=QUICK, **more)
    run_recovery(MODEL, CELLS, calls, concurrency=2, done=found.append)
    return found


def test_a_model_that_waits_recovers_and_is_asked_once() -> None:
    toy = Toy(patient_script)
    with open_store(None) as store:
        first = run(toy, store)
        asked = toy.asked
        again = run(toy, store)
        assert store.spent().n_calls == asked == toy.asked
    assert sorted(d["write"] for d in first) == ["charge_0", "charge_1", "mail"]
    assert all(d["status"] == "returned" and d["exactly_once"] for d in first)
    assert sum(d["n_calls"] for d in first) == asked
    assert sorted(map(repr, first)) == sorted(map(repr, again))


def test_invalid_answers_are_counted_and_an_episode_without_an_answer_is_missing() -> None:
    with open_store(None) as store:
        found = run(Toy(lambda path, body: chat("no JSON")), store)
    assert {d["invalid"] for d in found} == {3}
    assert all(d["unresolved"] for d in found)

    def gone(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if len(body["messages"][-1]["content"]) % 2:
            raise ProviderError("http_400", "too long", False)
        return chat(answer("finish_uncertain"))

    with open_store(None) as store:
        found = run(Toy(gone), store)
    assert all((d["status"] == "missing") == (d["reason"] != "") for d in found)


def test_a_budget_ends_it_and_no_thread_is_left() -> None:
    with open_store(None) as store:
        found = run(Toy(patient_script), store, limits=Limits(tokens=1))
        assert store.spent().n_calls == 0
    assert found == []


def test_the_command_keeps_calls_and_resumes(run_cli: Any, tmp_path: Path) -> None:
    args = ("evaluate", "sandbox", "--policies", "guard,llm:fake", "--tasks", "invoice_batch")
    with FakeEndpoint("patient", Faults([""], rate=0.1, seed=2)) as fake:
        more = ("--faults", "timeout_late,timeout_post", "--base-url", fake.base_url)
        command = (*args, *more, "--out", str(tmp_path / "run"), "--json", str(tmp_path / "r.json"))
        env = {"OPENAI_API_KEY": "sk-canary-0123456789abcdef"}
        done = run_cli(*command, "--concurrency", "4", env=env)
        assert done.returncode == 0, done.stderr
        result = json.loads((tmp_path / "r.json").read_text())
        asked = fake.counts["/chat/completions"]
        assert run_cli(*command, env=env).returncode == 0
        assert fake.counts["/chat/completions"] == asked
    assert json.loads((tmp_path / "r.json").read_text()) == result
    scripted, model = result["rows"][:2], result["rows"][2:]
    assert ["planned" in row for row in scripted] == [False, False]
    assert [(row["planned"], row["returned"], row["exactly_once"]) for row in model] == [
        (3, 3, 1.0)
    ] * 2
    spent = result["spent"]["llm:fake"]
    assert spent["episodes"]["n_calls"] == sum(row["model_calls"] for row in model)
    assert spent["all"]["n_calls"] + spent["all"]["provider_errors"] == asked
    lines = (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()
    assert len(lines) == 2 * (1 + 6)
