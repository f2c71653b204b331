"""Agents in the sandbox: two protocols, one episode, graded from the ledger."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from evaluation.llm.agent_folder import begin_folder, planned_cells
from evaluation.llm.agent_prompts import REFLECT, system_text_of
from evaluation.llm.agent_run import Agent, agent_cells, episodes_of, place_of, run_agent
from evaluation.llm.agent_summary import agent_rows
from evaluation.llm.calling import Calls
from evaluation.llm.spending import spending
from evaluation.llm.store import Store, open_store
from evaluation.manifest import read_manifest
from exactlyonce_env.errors import UserError
from exactlyonce_env.sandbox.carrying_out import first_arguments
from exactlyonce_env.sandbox.session import Session
from exactlyonce_env.sandbox.tasks import make_task
from policies.llm.endpoint import Patience, ProviderError

from .llm_toys import Script, Toy, chat, responses

QUICK = Patience(retries=1, first_s=0.0, longest_s=0.0)
TASK = "invoice_batch"

DONE = ("finish", json.dumps({"status": "completed", "summary": "done"}))


def happy_path() -> list[tuple[str, str]]:
    """The calls that do the task, as a model would write them."""
    session = Session(TASK)
    steps = make_task(TASK, 0).steps
    return [(s.tool, json.dumps(first_arguments(session, s, "plain"))) for s in steps]


def turns_so_far(body: dict[str, Any]) -> int:
    history = body.get("messages") or body["input"]
    said = [m for m in history if m.get("role") == "assistant" or m.get("type") == "function_call"]
    return len(said)


def run(
    script: Script, store: Store, agent: Agent | None = None, **factors: Any
) -> tuple[list[dict[str, Any]], Toy, list[Any]]:
    toy = Toy(script)
    agent = agent or Agent("toy")
    cells = agent_cells(agent, **{"tasks": [TASK], "faults": ["ok"], **factors})
    run_agent(agent, cells, Calls(toy, store, patience=QUICK), concurrency=3)
    return [store.document(place_of(cell)) or {} for cell in cells], toy, cells


@pytest.mark.parametrize("protocol", ["chat", "responses"])
def test_the_happy_path_one_call_a_turn(protocol: str) -> None:
    say = chat if protocol == "chat" else responses
    calls = [*happy_path(), DONE]

    def script(path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert path == ("/chat/completions" if protocol == "chat" else "/responses")
        return say(None, [calls[turns_so_far(body)]])

    with open_store(None) as store:
        (document,), toy, _ = run(script, store, Agent("toy", protocol=protocol))
    assert document["status"] == "returned"
    assert document["ended_by"] == "finish"
    assert document["exactly_once"] is True
    assert [c["tool"] for c in document["calls"]] == [name for name, _ in calls]
    assert toy.asked == len(calls)


def test_parallel_calls_are_carried_out_in_order() -> None:
    calls = [*happy_path(), DONE]
    with open_store(None) as store:
        (document,), toy, _ = run(lambda path, body: chat("all at once", calls), store)
    assert toy.asked == 1
    assert document["exactly_once"] is True
    assert [c["tool"] for c in document["calls"]] == [name for name, _ in calls]


def test_results_are_told_under_the_ids_of_their_calls() -> None:
    calls = happy_path()

    def script(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if turns_so_far(body) == 0:
            return chat(None, calls)
        results = [m for m in body["messages"] if m["role"] == "tool"]
        assert [r["tool_call_id"] for r in results] == [f"c{k}" for k in range(len(calls))]
        assert all(json.loads(r["content"])["ok"] for r in results)
        return chat(None, [DONE])

    with open_store(None) as store:
        (document,), _, _ = run(script, store)
    assert document["exactly_once"] is True


def test_turns_without_a_call_are_nudged_twice_and_then_end_it() -> None:
    with open_store(None) as store:
        (document,), toy, _ = run(lambda path, body: chat("I am thinking."), store)
    assert toy.asked == 3
    assert document["ended_by"] == "nudges"
    assert document["unresolved"] is True
    last = toy.bodies[-1]["messages"]
    assert [m["role"] for m in last] == ["system", "user", "assistant", "user", "assistant", "user"]


def test_arguments_that_are_no_json_are_a_wrong_call() -> None:
    def script(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if turns_so_far(body) == 0:
            return chat(None, [("create_charge", '{"amount": ')])
        assert "HTTP 4" in body["messages"][-1]["content"]
        return chat(None, [DONE])

    with open_store(None) as store:
        (document,), _, _ = run(script, store)
    assert document["invalid"] == 1
    assert document["calls"][0]["status"] in (400, 404)
    assert document["omissions"] > 0


def test_the_budget_of_calls_ends_an_episode() -> None:
    look = ("list_charges", "{}")
    with open_store(None) as store:
        (document,), _, _ = run(lambda path, body: chat(None, [look] * 15), store)
    assert len(document["calls"]) == 40
    assert document["ended_by"] == "budget"


def test_reflection_is_asked_for_after_a_tool_error_only() -> None:
    def script(path: str, body: dict[str, Any]) -> dict[str, Any]:
        turn = turns_so_far(body)
        texts = [m["content"] for m in body["messages"] if m["role"] == "user"]
        assert texts.count(REFLECT) == (turn > 0)
        return chat(None, [("nothing_of_that_name", "{}")] if turn == 0 else [DONE])

    with open_store(None) as store:
        run(script, store, Agent("toy", "reflect"))
        assert "Rules of reliable clients" in system_text_of("aware")
        assert "Rules of reliable clients" not in system_text_of("reflect")


def test_faults_twins_and_rows() -> None:
    calls = [*happy_path(), DONE]

    def blind(path: str, body: dict[str, Any]) -> dict[str, Any]:
        # Every call again until it succeeds, then the next.
        results = [m["content"] for m in body["messages"] if m["role"] == "tool"]
        done = sum(not r.startswith(("HTTP", "Timeout")) for r in results)
        return chat(None, [calls[done]])

    with open_store(None) as store:
        _, toy, cells = run(blind, store, faults=["timeout_pre", "timeout_post", "ok"])
        found, documents = episodes_of(store, cells)
        rows = agent_rows(cells, found, documents)
        asked = toy.asked
        _, toy, _ = run(blind, store, faults=["timeout_pre", "timeout_post", "ok"])
        assert (asked > 0, toy.asked) == (True, 0)
    pre, post, fine = rows
    assert (pre["planned"], pre["returned"], pre["missing"]) == (3, 3, 0)
    assert pre["exactly_once"] == pre["nominal"] == pre["recovery"] == fine["exactly_once"] == 1.0
    assert post["exactly_once"] == 0.0  # the repeat of a committed write is a duplicate
    assert post["duplicate_count"] == 3
    assert post["recovery"] == 0.0
    assert post["behaviour"] == {"blind_retry": 3}
    assert post["tokens"] == 110 * post["model_calls"]


def test_a_wrapper_stands_between_the_agent_and_its_tools() -> None:
    calls = [*happy_path(), DONE]

    def blind(path: str, body: dict[str, Any]) -> dict[str, Any]:
        results = [m["content"] for m in body["messages"] if m["role"] == "tool"]
        done = sum(not r.startswith(("HTTP", "Timeout")) for r in results)
        return chat(None, [calls[min(done, len(calls) - 1)]])

    with open_store(None) as store:
        _, _, cells = run(blind, store, faults=["timeout_post"], wrappers=["none", "verify-retry"])
        found, documents = episodes_of(store, cells)
        none, wrapped = agent_rows(cells, found, documents)
    assert none["exactly_once"] == 0.0
    # Both charges are verified; the Sent folder lags, so that the mail is sent twice all the same.
    assert wrapped["exactly_once"] == pytest.approx(2 / 3)


def test_provider_trouble_is_never_scored() -> None:
    def script(path: str, body: dict[str, Any]) -> dict[str, Any]:
        raise ProviderError("http_400", "context_length_exceeded", retry=False)

    with open_store(None) as store:
        _, _, cells = run(script, store, faults=["timeout_post"])
        found, documents = episodes_of(store, cells)
        (row,) = agent_rows(cells, found, documents)
    assert (row["planned"], row["returned"], row["missing"]) == (3, 0, 3)
    assert row["missing_reasons"] == {"http_400: context_length_exceeded": 3}
    assert row["exactly_once"] is None
    assert row["provider_errors"] == 3


def test_repeats_are_separate_draws() -> None:
    calls = [*happy_path(), DONE]
    with open_store(None) as store:
        _, toy, cells = run(lambda p, b: chat(None, calls), store, repeats=3)
        found, documents = episodes_of(store, cells)
        (row,) = agent_rows(cells, found, documents)
    assert toy.asked == 3
    assert (row["planned"], row["repeats"], row["pass_hat_k"]) == (3, 3, 1.0)
    assert row["kappa"] is None


def test_the_agent_sees_nothing_of_the_fault_or_the_truth() -> None:
    seen: list[str] = []

    def script(path: str, body: dict[str, Any]) -> dict[str, Any]:
        seen.append(json.dumps(body))
        return chat(None, [DONE])

    with open_store(None) as store:
        run(script, store, faults=["timeout_post", "timeout_pre", "timeout_late"])
    assert len(set(seen)) == 1  # until the fault is met all worlds look the same
    assert "timeout_" not in seen[0]


def test_unknown_names_are_refused() -> None:
    agent = Agent("toy")
    for factors in (
        {"tasks": ["nothing"]},
        {"faults": ["flood"]},
        {"contracts": ["none"]},
        {"docs": ["long"]},
        {"wrappers": ["cotton"]},
        {"writes": ["nothing"]},
        {"operator": "asleep"},
    ):
        with pytest.raises(UserError, match="choose from"):
            agent_cells(agent, **factors)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="--prompt"):
        Agent("toy", "kind")
    with pytest.raises(UserError, match="--protocol"):
        Agent("toy", protocol="smtp")


@pytest.mark.parametrize(
    ("calls", "wrong"),
    [
        ("no list", 1),
        ([1, None, []], 3),
        ([{"id": "c", "type": "function"}], 1),
        ([{"id": "c", "type": "function", "function": {"name": 7, "arguments": "{}"}}], 0),
        ([{"id": {}, "function": {"name": "list_charges", "arguments": None}}], 1),
    ],
)
def test_malformed_calls_are_invalid_and_harm_nothing(calls: object, wrong: int) -> None:
    def script(path: str, body: dict[str, Any]) -> dict[str, Any]:
        found = chat(None, [DONE])
        if turns_so_far(body) == 0:
            found["choices"][0]["message"]["tool_calls"] = calls
        return found

    with open_store(None) as store:
        (document,), _, _ = run(script, store)
    assert document["status"] == "returned"
    assert document["ended_by"] == "finish"
    assert document["invalid"] == wrong


def test_a_long_name_of_a_call_is_cut() -> None:
    def script(path: str, body: dict[str, Any]) -> dict[str, Any]:
        return chat(None, [("x" * 10**6, "{}") if turns_so_far(body) == 0 else DONE])

    with open_store(None) as store:
        (document,), toy, _ = run(script, store)
    assert len(document["calls"][0]["tool"]) == 200
    assert len(json.dumps(toy.bodies[-1]["messages"])) < 20_000


def test_declared_factors_are_never_pooled() -> None:
    with open_store(None) as store:
        _, _, cells = run(
            lambda path, body: chat(None, [DONE]),
            store,
            faults=["timeout_post"],
            docs=["default", "explicit"],
        )
        found, documents = episodes_of(store, cells)
        rows = agent_rows(cells, found, documents)
    assert [(row["docs"], row["planned"]) for row in rows] == [("default", 3), ("explicit", 3)]


def test_names_and_lists_that_fit_nothing_are_refused() -> None:
    for name in ("", "  ", "x" * 300, "toy+aware", "toy+responses"):
        with pytest.raises(UserError, match="model"):
            Agent(name)
    with pytest.raises(UserError, match="--writes: unknown 'nope'; choose from charge_0"):
        agent_cells(Agent("toy"), tasks=[TASK], writes=["nope"])
    with pytest.raises(UserError, match="no write of these tasks"):
        agent_cells(Agent("toy"), tasks=[TASK], faults=["partial_batch"])


def test_every_call_is_accounted_for_by_its_use() -> None:
    """Finished episodes, their twins, one that got no answer half way, and the trial."""

    agent = Agent("toy")
    with open_store(None) as store:
        run(lambda path, body: chat(None, [DONE]), store, agent, faults=["timeout_post", "ok"])
        twins = {place_of(cell) for cell in agent_cells(agent, tasks=[TASK], faults=["ok"])}
        calls = Calls(Toy(lambda path, body: chat("x")), store)
        asyncio.run(calls.ask("agent:toy/half/way", 0, "/chat/completions", {"messages": []}))
        asyncio.run(calls.ask("probe/toy", 0, "/chat/completions", {"messages": []}))
        asyncio.run(calls.ask("agent:toy+aware/x", 0, "/chat/completions", {"messages": []}))
        store.note("agent:toy/half/way", 1, "http_500", "down")
        found = spending(store, agent.spec, "probe/toy", twins)
    assert {use: row["n_calls"] for use, row in found.items()} == {
        "episodes": 3,
        "twins": 1,
        "unfinished": 1,
        "trials": 1,
        "all": 6,
    }
    assert found["unfinished"]["provider_errors"] == 1
    assert found["all"]["tokens_in"] == 600


FACTORS: dict[str, Any] = {
    "wrappers": ["none"],
    "contracts": ["native"],
    "faults": ["timeout_post"],
    "tasks": [TASK],
    "instances": [0],
    "writes": None,
    "docs": ["default"],
    "instruction": "default",
    "operator": "answers",
    "repeats": 1,
}


def test_a_folder_of_agents_is_one_configuration_that_may_grow(tmp_path: Path) -> None:
    first = begin_folder(tmp_path, [Agent("a")], FACTORS, ["exactlyonce", "agent"])
    assert read_manifest(tmp_path / "manifest.json").status == "running"
    assert list(planned_cells(first)["agent:a"]) == agent_cells(Agent("a"), **FACTORS)
    second = begin_folder(tmp_path, [Agent("b")], FACTORS, ["exactlyonce", "agent"])
    assert second.policies == ("agent:a", "agent:b")
    assert [one.status for one in second.earlier] == ["interrupted"]
    both = [Agent("a"), Agent("b")]
    grown = begin_folder(tmp_path, both, FACTORS | {"instances": [0, 1], "repeats": 2}, [])
    assert sum(len(cells) for cells in planned_cells(grown).values()) == 28
    for agents, other, words in (
        (both, FACTORS | {"docs": ["explicit"], "instances": [0, 1], "repeats": 2}, "docs"),
        (both, FACTORS | {"instances": [0, 1]}, "holds 2 repeats, asked for 1"),
        (both, FACTORS | {"repeats": 2}, "holds worlds 0:2, asked for 0:1"),
        (both[:1], FACTORS | {"instances": [0, 1, 2], "repeats": 2}, "also holds policy 'agent:b'"),
        (both[:1], FACTORS | {"instances": [0, 1], "repeats": 3}, "also holds 'agent:b'"),
    ):
        with pytest.raises(UserError, match=words):
            begin_folder(tmp_path, agents, other, [])
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "notes.txt").write_text("x")
    with pytest.raises(UserError, match="no run folder"):
        begin_folder(tmp_path / "strange", both, FACTORS, [])
