"""The sandbox as an OpenEnv environment: server and client over a loopback socket."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openenv", reason="the extra openenv is not installed")

import httpx
import uvicorn

from evaluation.adapters.openenv_server import (
    Answer,
    CallToolAction,
    ListToolsAction,
    Opening,
    SandboxClient,
    main,
    make_app,
)
from exactlyonce_env.errors import UserError
from exactlyonce_env.sandbox.contracts import FAULTS
from exactlyonce_env.sandbox.log import read_episodes
from exactlyonce_env.sandbox.serving import bind, url_of
from exactlyonce_env.sandbox.session import Session
from exactlyonce_env.sandbox.tasks import make_task

TASK = "invoice_batch"
WORLD = {"task": TASK, "instance": 0, "write": "charge_0"}
DONE = CallToolAction(tool_name="finish", arguments={"status": "completed", "summary": "done"})
SESSIONS = 9


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("openenv")


@pytest.fixture(scope="module")
def url(log: Path) -> Iterator[str]:
    """Address of a server in a thread of its own."""
    listener = bind("127.0.0.1", 0)
    app = make_app(out=log, max_sessions=SESSIONS)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield url_of(listener)
    server.should_exit = True
    thread.join()


def calls() -> list[CallToolAction]:
    return [
        CallToolAction(tool_name=step.tool, arguments=dict(step.arguments))
        for step in make_task(TASK, 0).steps
    ]


def play(url: str, actions: list[CallToolAction], **world: Any) -> tuple[list[Any], Any]:
    """The results of an episode, the opening first, and the state at its end."""
    with SandboxClient(base_url=url).sync() as client:
        results = [client.reset(**WORLD | world)]
        results += [client.step(action) for action in actions]
        return results, client.state()


def test_a_sound_agent_earns_it_all(url: str) -> None:
    results, state = play(url, [*calls(), DONE], fault="ok")
    opening = results[0].observation
    session = Session(TASK, write="charge_0")
    assert isinstance(opening, Opening)
    assert opening.instructions == session.instructions
    assert [(t.name, t.description, t.input_schema) for t in opening.tools] == [
        (t.name, t.description, t.input_schema) for t in session.tools
    ]
    assert opening.calls_left == 40
    assert [result.done for result in results] == [False] * 4 + [True]
    assert [result.reward for result in results[1:]] == [0.0, 0.0, 0.0, 1.0]
    assert isinstance(results[1].observation, Answer)
    assert json.loads(results[1].observation.result)["ok"] is True
    assert state.measures["exactly_once"] is True
    assert state.world["fault"] == "ok"
    assert state.step_count == 4


def test_a_blind_repeat_pays_for_its_duplicate(url: str) -> None:
    first, *rest = calls()
    results, state = play(url, [first, first, *rest, DONE], fault="timeout_post")
    assert results[1].observation.is_error
    assert results[1].observation.result == "Timeout: no response within 30 s."
    assert results[-1].reward == pytest.approx(-1.2)
    assert state.measures["duplicates"] == 1
    assert state.measures["overclaim"] is True


@pytest.mark.parametrize("fault", ["timeout_pre", "timeout_post", "timeout_late"])
def test_nothing_of_the_truth_is_told_before_the_end(url: str, fault: str) -> None:
    with SandboxClient(base_url=url).sync() as client:
        seen = [client.reset(**WORLD, fault=fault).observation.model_dump_json()]
        seen.append(client.step(ListToolsAction()).observation.model_dump_json())
        seen.append(client.step(calls()[0]).observation.model_dump_json())
        state = client.state()
        assert (state.world, state.measures) == (None, None)
        told = " ".join([*seen, state.model_dump_json()])
    assert not [name for name in FAULTS if f'"{name}"' in told]
    for word in ("accepts_key", "intent_fields", "annotations", "charge_0"):
        assert word not in told


def test_the_three_timeouts_look_the_same(url: str) -> None:
    answers = {
        play(url, calls()[:1], fault=fault)[0][1].observation.model_dump_json()
        for fault in ("timeout_pre", "timeout_post", "timeout_late")
    }
    assert len(answers) == 1


def test_a_seed_says_the_rest(url: str) -> None:
    with SandboxClient(base_url=url).sync() as client:
        told = {seed: client.reset(seed=seed).observation.instructions for seed in (1, 2, 1)}
        assert told[1] == client.reset(seed=1).observation.instructions
        assert told[1] != told[2]
        assert client.state().seed == 1


def test_sessions_do_not_meet(url: str) -> None:
    def scores(fault: str) -> tuple[str, bool, int, float]:
        first, *rest = calls()
        results, state = play(url, [first, first, *rest, DONE], fault=fault)
        measures = state.measures
        return fault, measures["exactly_once"], measures["duplicates"], results[-1].reward

    faults = ["timeout_pre", "timeout_post", "ok", "timeout_late"] * 6
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(scores, faults))
    alone = {fault: scores(fault) for fault in set(faults)}
    assert found == [alone[fault] for fault in faults]
    assert alone["timeout_pre"] == ("timeout_pre", True, 0, 1.0)
    assert alone["timeout_late"][2] == 1


def test_bad_input_is_told_and_the_session_goes_on(url: str) -> None:
    with SandboxClient(base_url=url).sync() as client:
        with pytest.raises(RuntimeError, match="call reset first"):
            client.step(DONE)
        with pytest.raises(RuntimeError, match="unknown field 'fualt'"):
            client.reset(fualt="timeout_late")
        client.reset(**WORLD, fault="ok")
        answer = client.step(CallToolAction(tool_name="no_such_tool")).observation
        assert answer.is_error
        assert answer.calls_left == 39
        with pytest.raises(RuntimeError, match="unknown task"):
            client.reset(task="nothing")
        assert client.step(DONE).done  # the episode was not lost


def test_words_without_a_call_are_nudged(url: str) -> None:
    said = CallToolAction(tool_name="", arguments={"text": "Let me think."})
    results, state = play(url, [said] * 3, fault="ok")
    assert "calling a tool" in results[1].observation.result
    assert [result.done for result in results[1:]] == [False, False, True]
    assert state.measures["unresolved"] is True


def test_after_the_end_nothing_is_earned(url: str) -> None:
    results, state = play(url, [*calls(), DONE, DONE], fault="ok")
    assert [result.reward for result in results[-2:]] == [1.0, 0.0]
    assert results[-1].done
    assert state.measures["exactly_once"] is True


def test_no_more_sessions_than_allowed(url: str) -> None:
    clients = [SandboxClient(base_url=url).sync() for _ in range(SESSIONS)]
    try:
        for client in clients:
            client.connect()
            client.reset(**WORLD)
        with (
            pytest.raises(Exception, match=r"capacity|CAPACITY"),
            SandboxClient(base_url=url).sync() as late,
        ):
            late.reset(**WORLD)
    finally:
        for client in clients:
            client.close()


def test_the_schema_is_published(url: str) -> None:
    schema = httpx.get(f"{url}/schema").json()
    assert schema["action"]["title"] == "CallToolAction"
    assert set(schema["reset_observation"]["properties"]) >= {"instructions", "tools"}
    assert "measures" in schema["state"]["properties"]
    assert httpx.get(f"{url}/metadata").json()["name"] == "exactlyonce_sandbox"


def test_every_episode_is_logged(url: str, log: Path) -> None:
    with SandboxClient(base_url=url).sync() as client:
        client.reset(**WORLD, fault="ok", episode_id="left alone")
        client.step(calls()[0])

    def line() -> list[dict[str, Any]]:
        return [row for row in read_episodes(log).rows if row["id"] == "left alone"]

    until_s = time.monotonic() + 10.0
    while not line() and time.monotonic() < until_s:
        time.sleep(0.05)
    (row,) = line()
    assert (row["ended_by"], row["omissions"], row["unresolved"]) == ("client", 2, True)


def test_bad_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--reward", "half"]) == 2
    assert capsys.readouterr().err.startswith("error: unknown reward 'half'")
    with pytest.raises(UserError, match="unknown prompt"):
        make_app(prompt="reflect")
    with pytest.raises(UserError, match="must be positive"):
        make_app(max_sessions=0)
