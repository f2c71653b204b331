"""Runs of whole tasks, of policies and of agents, paired episode by episode."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation.compare import compare_runs
from evaluation.compare_sandbox import open_sandbox_run
from evaluation.first_actions import equivalence, first_action, replayed_actions
from evaluation.llm.fake import Answer, FakeEndpoint, Request
from evaluation.sandbox import Cell, plan_cells
from evaluation.sandbox_store import load_episodes
from evaluation.statistics.exact_tests import Stratum, stratified_exact
from exactlyonce_env.errors import UserError
from exactlyonce_env.sandbox.carrying_out import first_arguments
from exactlyonce_env.sandbox.session import Session
from exactlyonce_env.sandbox.tasks import make_task

TASKS = "invoice_batch,hotfix_long,appointment_plain"
FAULTS = "timeout_pre,timeout_post,timeout_late,http500_pre,http500_post"


@pytest.fixture(scope="module")
def tasks() -> str:
    from exactlyonce_env.sandbox.tasks import TASKS as ALL

    return ",".join(list(ALL)[:4])


def sandbox(folder: Path, policies: str, tasks: str, *more: str) -> None:
    from exactlyonce_env.cli import main

    args = ("evaluate", "sandbox", "--policies", policies, "--tasks", tasks, "--faults", FAULTS)
    assert main([*args, "--out", str(folder), *more]) == 0


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tasks: str) -> Path:
    folder = tmp_path_factory.mktemp("sandbox")
    sandbox(folder / "guard", "guard", tasks)
    sandbox(folder / "both", "verify-retry,guard", tasks)
    sandbox(folder / "fewer", "verify-retry", tasks.split(",")[0])
    return folder


def test_episodes_are_paired_cell_by_cell(runs: Path, tasks: str) -> None:
    found = compare_runs(runs / "guard", runs / "both", pairs=[("guard", "verify-retry")])
    assert found["preset"] == "sandbox"
    (row,) = found["rows"]
    one, other = load_episodes(runs / "guard"), load_episodes(runs / "both")
    pairs = [
        (one[cell], other[Cell(**{**vars(cell), "policy": "verify-retry"})])
        for cell in one
        if cell.fault != "ok"
    ]
    a = np.array([left.grade.exactly_once for left, _ in pairs])
    b = np.array([right.grade.exactly_once for _, right in pairs])
    assert (row["n"], row["planned"], row["incomplete"]) == (len(pairs), len(pairs), 0)
    difference = row["difference"]["exactly_once"]
    assert (difference["a"], difference["b"]) == (a.mean(), b.mean())
    assert row["mcnemar"]["only_a"] == int(np.sum(a & ~b)) > row["mcnemar"]["only_b"]
    names = np.array([left.cell.task for left, _ in pairs])
    strata = [
        Stratum(int(b[own].sum()), int(own.sum()), int(a[own].sum()), int(own.sum()))
        for own in (names == task for task in tasks.split(","))
    ]
    assert row["stratified"] == {
        "by": "task",
        "strata": 4,
        "p": pytest.approx(stratified_exact(strata)),
        "p_holm": pytest.approx(stratified_exact(strata)),
    }
    assert row["gee"]["clusters"] == 4
    assert [effect["name"] for effect in row["gee"]["effects"]] == ["intercept", "arm=B"]
    assert set(row["mixed"]["sd"]) == {"task", "task x instance"}
    assert "one instance" in row["mixed"]["note"]
    assert row["nominal"]["n"] == 4
    pooled = row["shapley"]["pooled"]
    assert pooled["pseudo_r2"] == pytest.approx(sum(pooled["shares"].values()))
    assert pooled["n"] == 2 * len(pairs)
    assert row["shapley"]["resolved"]["n"] + row["shapley"]["unresolved"]["n"] == pooled["n"]


def test_two_fits_of_one_comparison_are_one(runs: Path) -> None:
    one = compare_runs(runs / "guard", runs / "both", pairs=[("guard", "verify-retry")])
    other = compare_runs(runs / "guard", runs / "both", pairs=[("guard", "verify-retry")])
    assert one == other


def test_scripted_policies_cannot_tell_what_looks_alike(runs: Path) -> None:
    (row,) = compare_runs(runs / "guard", runs / "both")["rows"]
    assert (row["a"], row["b"]) == ("guard", "guard")
    for side in "ab":
        found = row["first_actions"][side]
        assert set(found["agreement"]) == {"timeout", "server_error"}
        for agreed in found["agreement"].values():
            assert agreed["across"] == 1.0
            assert agreed["within"] is None
            assert "--repeats" in agreed["within_why"]
        assert {tuple(test["faults"]) for test in found["tests"]} == {
            ("timeout_pre", "timeout_post"),
            ("timeout_pre", "timeout_late"),
            ("timeout_post", "timeout_late"),
            ("http500_pre", "http500_post"),
        }
        assert all((t["distance"], t["p"], t["p_holm"]) == (0.0, 1.0, 1.0) for t in found["tests"])


def test_the_first_action_is_the_call_after_the_fault() -> None:
    def call(tool: str, focal: bool = False, **arguments: Any) -> dict[str, Any]:
        return {"tool": tool, "arguments": arguments, "focal": focal}

    sent = call("pay", True, amount=3, idempotency_key="k")
    for following, action in (
        (call("list"), "list"),
        (call("pay", amount=3, idempotency_key="k"), "again, same key"),
        (call("pay", amount=3, idempotency_key="j"), "again, new key"),
        (call("pay", amount=3), "again, no key"),
        (call("pay", amount=4, idempotency_key="k"), "pay"),
    ):
        assert first_action([call("list"), sent, following]) == action
    assert first_action([call("pay", True, a=1), call("pay", a=1)]) == "again"
    assert first_action([sent]) == "end"
    assert first_action([call("list")]) is None


def test_agreement_and_distance_by_hand() -> None:
    def cell(fault: str, write: str, repeat: int = 0) -> Cell:
        return Cell("p", "none", "native", fault, "t", 0, write, repeat=repeat)

    actions = {}
    for k in range(8):
        actions[cell("timeout_pre", f"w{k}")] = "retry"
        actions[cell("timeout_post", f"w{k}")] = "read"
        actions[cell("timeout_post", f"w{k}", 1)] = "read" if k < 4 else "retry"
    found = equivalence(actions)
    (agreed,) = found["agreement"].values()
    assert (agreed["across"], agreed["pairs_across"]) == (4 / 16, 16)
    assert (agreed["within"], agreed["pairs_within"]) == (0.5, 8)
    (test,) = found["tests"]
    # All eight pairs differ the same way: 2 of 256 arrangements are as far apart.
    assert (test["pairs"], test["distance"], test["p"]) == (8, 1.0, 2 / 256)
    with pytest.raises(UserError, match="looks like another"):
        equivalence({cell("rate_limited", "w"): "read"})


def test_replays_are_bounded(monkeypatch: pytest.MonkeyPatch, tasks: str) -> None:
    import evaluation.first_actions as module

    cells = plan_cells(
        policies=["guard"], tasks=tasks.split(",")[:1], faults=["timeout_pre", "timeout_post"]
    )
    found = replayed_actions(cells)
    assert set(found) == set(cells)
    monkeypatch.setattr(module, "MAX_REPLAYED", 3)
    with pytest.raises(UserError, match="more than 3"):
        replayed_actions(cells)


def test_other_cells_are_refused(runs: Path, tmp_path: Path, tasks: str) -> None:
    with pytest.raises(UserError, match=r"task .* only in"):
        compare_runs(runs / "guard", runs / "fewer", pairs=[("guard", "verify-retry")])
    from evaluation.runner import evaluate
    from exactlyonce_env.presets import load_plan

    evaluate(load_plan("late-tail"), ["guard"], worlds=20, out=tmp_path / "worlds")
    with pytest.raises(UserError, match="of one kind"):
        compare_runs(runs / "guard", tmp_path / "worlds")


# --- agents ---------------------------------------------------------------------------------------

TASK = "invoice_batch"


def steady(request: Request) -> Answer:
    """Does the task's calls in order, and repeats one that failed."""
    session = Session(TASK)
    calls = [
        (s.tool, json.dumps(first_arguments(session, s, "plain"))) for s in make_task(TASK, 0).steps
    ]
    calls.append(("finish", json.dumps({"status": "completed", "summary": "done"})))
    results = [str(m["content"]) for m in request.history if m.get("role") == "tool"]
    done = sum(not text.startswith(("HTTP", "Timeout")) for text in results)
    return Answer(None, [calls[min(done, len(calls) - 1)]])


def careful(request: Request) -> Answer:
    """The same, but gives a task up at the first failure."""
    results = [str(m["content"]) for m in request.history if m.get("role") == "tool"]
    if any(text.startswith(("HTTP", "Timeout")) for text in results):
        give_up = json.dumps({"status": "uncertain", "summary": "a call failed"})
        return Answer(None, [("finish", give_up)])
    return steady(request)


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from exactlyonce_env.cli import main

    folder = tmp_path_factory.mktemp("agents")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "k")
        for name, script in (("steady", steady), ("careful", careful)):
            with FakeEndpoint(script) as fake:
                asked = ("--base-url", fake.base_url, "--tasks", TASK, "--repeats", "2")
                kinds = ("--faults", "timeout_pre,timeout_post")
                args = ["agent", "--model", name, *asked, *kinds, "--out", str(folder / name)]
                assert main(args) == 0
    return folder


def test_runs_of_agents_are_paired(agents: Path) -> None:
    (row,) = compare_runs(agents / "steady", agents / "careful")["rows"]
    assert (row["a"], row["b"]) == ("agent:steady", "agent:careful")
    # Three writes, two faults, two repeats.
    assert (row["n"], row["planned"], row["incomplete"]) == (12, 12, 0)
    # A repeat after a write that never happened is right, after a committed one a duplicate.
    assert row["difference"]["exactly_once"]["a"] == 0.5
    # Who gives up is right by chance where the last write had happened.
    assert row["difference"]["exactly_once"]["b"] == pytest.approx(2 / 12)
    assert row["difference"]["unresolved"]["value"] == 1.0
    assert row["nominal"]["exactly_once_a"]["value"] == 1.0
    assert "three clusters" in row["gee"]["why"]
    assert "two clusters" in row["bootstrap"]["why"]
    steady, careful = (row["first_actions"][side] for side in "ab")
    assert steady["agreement"]["timeout"]["across"] == 1.0
    assert steady["agreement"]["timeout"]["within"] == 1.0
    assert steady["agreement"]["timeout"]["pairs_within"] == 6
    assert careful["tests"][0]["p"] == 1.0


def test_an_agent_against_a_policy_and_a_missing_episode(agents: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(agents / "careful", tmp_path / "some")
    store = tmp_path / "some"
    from evaluation.llm.store import open_store

    with open_store(store) as opened:
        place, document = next(
            (place, d)
            for place, d in opened.documents()
            if d.get("kind") == "agent" and d["cell"]["fault"] == "timeout_post"
        )
        opened.finish(place, document | {"status": "missing", "final": True, "reason": "x"})
    (row,) = compare_runs(agents / "steady", store)["rows"]
    assert (row["n"], row["planned"], row["missing_a"], row["missing_b"]) == (11, 12, 0, 1)
    # A failed where B is missing: B may have done better, and cannot have done worse.
    assert row["envelope"]["difference"] == pytest.approx([-4 / 12, -3 / 12])


def test_the_tables_fit_a_narrow_terminal(
    runs: Path, agents: Path, printed: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    pair = ("--pair", "guard=verify-retry")
    told = printed("compare", str(runs / "guard"), str(runs / "both"), *pair)
    assert "verify-retry (B) minus guard (A)" in told
    for word in ("McNemar, exact", "equivalence (TOST)", "GEE", "mixed model", "without a fault"):
        assert f"│ {word}" in told
    assert "…" not in told.partition("What explains")[0]
    told = printed("compare", str(agents / "steady"), str(agents / "careful"))
    assert "not defined: a clustered model needs three" in told


def test_a_folder_without_episodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"manifest\.json"):
        open_sandbox_run(tmp_path)
