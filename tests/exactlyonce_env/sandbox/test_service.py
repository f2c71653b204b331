"""The HTTP service, in process and as a process that is killed."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from exactlyonce_env.errors import UserError
from exactlyonce_env.sandbox.hosting import Host, make_variant
from exactlyonce_env.sandbox.log import EpisodeLog, read_episodes
from exactlyonce_env.sandbox.service import MAX_BODY, Service
from exactlyonce_env.sandbox.serving import bind, url_of
from exactlyonce_env.sandbox.tasks import make_task

httpx = pytest.importorskip("httpx")
pytest.importorskip("uvicorn")

FINISH = {"tool": "finish", "arguments": {"status": "completed", "summary": "done"}}
NEW = {"task": "invoice_batch", "fault": "timeout_post"}
Talk = Callable[[Any, Service], Awaitable[None]]


@pytest.fixture
def talk(tmp_path: Path) -> Callable[..., None]:
    """Run a conversation with a service in process; it logs to ``tmp_path``."""

    def run(conversation: Talk, **options: Any) -> None:
        async def main() -> None:
            host = Host(EpisodeLog(tmp_path), **options)
            service = Service(host)
            transport = httpx.ASGITransport(service)
            async with httpx.AsyncClient(transport=transport, base_url="http://sandbox") as client:
                await conversation(client, service)
            await host.close()

        asyncio.run(main())

    return run


async def opened(client: Any, **fields: Any) -> str:
    """The URL of a new episode."""
    answer = await client.post("/episodes", json=NEW | fields)
    assert answer.status_code == 201
    url: str = answer.json()["url"]
    return url


def happy_calls(task: str, instance: int = 0) -> list[dict[str, Any]]:
    steps = make_task(task, instance).steps
    return [{"tool": step.tool, "arguments": dict(step.arguments)} for step in steps]


def test_an_episode_from_its_opening_to_its_grade(
    talk: Callable[..., None], tmp_path: Path
) -> None:
    async def conversation(client: Any, service: Service) -> None:
        url = await opened(client)
        seen = (await client.get(url)).json()
        assert "exactly once" in seen["instructions"]
        assert {"name", "description", "input_schema", "annotations"} == set(seen["tools"][0])
        assert (await client.get(f"{url}/tools")).json() == {"tools": seen["tools"]}
        texts = []
        for call in happy_calls("invoice_batch"):
            answer = (await client.post(f"{url}/calls", json=call)).json()
            texts.append(answer["text"])
        assert texts[0] == "Timeout: no response within 30 s."
        assert json.loads(texts[1])["ok"]
        answer = (await client.post(f"{url}/calls", json=FINISH)).json()
        assert answer["ended"]
        assert len(read_episodes(tmp_path).rows) == 1  # it is there before the agent knows
        late = (await client.post(f"{url}/calls", json=FINISH)).json()
        assert (late["error"], late["status"], late["ended"]) == (True, 410, True)
        admin = f"/admin/{service.token}/episodes"
        (listed,) = (await client.get(admin)).json()["episodes"]
        assert (listed["fault"], listed["ending"]) == ("timeout_post", "claimed")
        graded = (await client.get(f"{admin}/{listed['id']}")).json()
        assert graded["exactly_once"]
        assert graded == read_episodes(tmp_path).rows[0]

    talk(conversation)


def test_the_agents_side_never_tells_the_fault_or_the_truth(talk: Callable[..., None]) -> None:
    async def conversation(client: Any, service: Service) -> None:
        told = []
        for fault in ("ok", "timeout_post", "timeout_pre"):
            answer = await client.post("/episodes", json=NEW | {"fault": fault})
            url = answer.json()["url"]
            texts = [answer.text, (await client.get(url)).text]
            texts += [(await client.delete(url)).text, (await client.get(url)).text]
            told.append([text.replace(answer.json()["id"], "ID") for text in texts])
        assert told[0] == told[1] == told[2]
        assert (await client.get("/episodes")).status_code == 404
        assert (await client.get("/admin/guess/episodes")).status_code == 404
        assert service.token not in str(told)

    talk(conversation)


def test_a_running_episode_is_not_graded_before_its_end(talk: Callable[..., None]) -> None:
    async def conversation(client: Any, service: Service) -> None:
        url = await opened(client)
        place = f"/admin/{service.token}/episodes/{url.rsplit('/', 1)[1]}"
        assert (await client.get(place)).status_code == 409
        assert (await client.delete(url)).json() == {"ended": True}
        assert (await client.get(place)).json()["ended_by"] == "client"

    talk(conversation)


def test_turns_without_a_call_are_nudged_twice(talk: Callable[..., None], tmp_path: Path) -> None:
    async def conversation(client: Any, service: Service) -> None:
        url = await opened(client)
        turns = [(await client.post(f"{url}/turns", json={"text": "hm"})).json() for _ in range(3)]
        assert [turn["ended"] for turn in turns] == [False, False, True]
        assert "tool" in turns[0]["text"]
        assert turns[2]["text"] is None

    talk(conversation)
    assert read_episodes(tmp_path).rows[0]["ended_by"] == "nudges"


def test_the_budget_ends_an_episode(talk: Callable[..., None], tmp_path: Path) -> None:
    async def conversation(client: Any, service: Service) -> None:
        url = await opened(client)
        call = {"tool": "wait", "arguments": {"seconds": 1}}
        ends = [(await client.post(f"{url}/calls", json=call)).json()["ended"] for _ in range(40)]
        assert ends == [False] * 39 + [True]

    talk(conversation)
    (row,) = read_episodes(tmp_path).rows
    assert (row["ended_by"], row["ending"], row["steps"]) == ("budget", "exhausted", 40)


def test_episodes_at_the_same_time_do_not_touch_each_other(
    talk: Callable[..., None], tmp_path: Path
) -> None:
    tasks = ["invoice_batch", "cross_post", "feature_flags", "deploy_release"] * 3

    async def conversation(client: Any, service: Service) -> None:
        async def play(task: str, instance: int) -> None:
            url = await opened(client, task=task, instance=instance, fault="ok")
            for call in (*happy_calls(task, instance), FINISH):
                await client.post(f"{url}/calls", json=call)
                await asyncio.sleep(0)

        await asyncio.gather(*(play(task, k) for k, task in enumerate(tasks)))

    talk(conversation)
    rows = read_episodes(tmp_path).rows
    assert sorted((row["task"], row["instance"]) for row in rows) == sorted(
        (task, k) for k, task in enumerate(tasks)
    )
    assert all(row["exactly_once"] and row["unrequested"] == 0 for row in rows)


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "words"),
    [
        ("POST", "/episodes", b"{}", 400, "task is missing"),
        ("POST", "/episodes", b'{"task": "nope"}', 400, "unknown task 'nope'"),
        ("POST", "/episodes", b'{"task": "cross_post", "fail": 1}', 400, "unknown field 'fail'"),
        ("POST", "/episodes", b'{"task": "cross_post", "wrapper": "x"}', 400, "unknown wrapper"),
        ("POST", "/episodes", b"[1]", 400, "must be a JSON object"),
        ("POST", "/episodes", b"{", 400, "not JSON"),
        ("POST", "/episodes", b'{"instance": NaN}', 400, "not JSON"),
        ("POST", "/episodes", b"\xff", 400, "not JSON"),
        ("POST", "/episodes", b'{"a":' * 100 + b"1" + b"}" * 100, 400, "nests deeper"),
        ("POST", "/episodes", b'{"a":' * 9000 + b"1" + b"}" * 9000, 400, "not JSON"),
        ("POST", "/episodes", b" " * (MAX_BODY + 1), 413, "bytes"),
        ("POST", "URL/calls", b'{"name": "wait"}', 400, "a call is"),
        ("POST", "URL/calls", b'{"tool": "wait", "args": {}}', 400, "a call is"),
        ("POST", "URL/turns", b'{"text": 1}', 400, "a turn is"),
        ("PUT", "URL", b"", 405, "not possible"),
        ("GET", "/episodes/none", b"", 404, "no such episode"),
        ("GET", "/", b"", 404, "there is no GET /"),
    ],
)
def test_a_wrong_request_is_answered_with_one_line(
    talk: Callable[..., None], method: str, path: str, content: bytes, status: int, words: str
) -> None:
    async def conversation(client: Any, service: Service) -> None:
        url = await opened(client)
        answer = await client.request(method, path.replace("URL", url), content=content)
        assert answer.status_code == status
        assert words in answer.json()["error"]

    talk(conversation)


def test_wrong_arguments_are_the_services_answer_to_a_call(talk: Callable[..., None]) -> None:
    async def conversation(client: Any, service: Service) -> None:
        url = await opened(client)
        for arguments in ([1], "x", {"seconds": "long"}, None):
            call = {"tool": "wait", "arguments": arguments}
            answer = (await client.post(f"{url}/calls", json=call)).json()
            assert (answer["error"], answer["status"]) == (True, 400)

    talk(conversation)


def test_a_client_that_falls_silent_has_gone_away(
    talk: Callable[..., None], tmp_path: Path
) -> None:
    async def conversation(client: Any, service: Service) -> None:
        await opened(client)
        watch = asyncio.create_task(service.host.watch())
        for _ in range(200):
            await asyncio.sleep(0.01)
            if not service.host.running:
                break
        watch.cancel()
        assert [row["ended_by"] for row in read_episodes(tmp_path).rows] == ["client"]

    talk(conversation, idle_s=0.05)


def test_a_full_disk_loses_nothing_that_can_still_be_written(
    talk: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def conversation(client: Any, service: Service) -> None:
        log = service.host.log
        assert log is not None
        url = await opened(client)

        def full(record: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(log, "append", full)
            assert (await client.post(f"{url}/calls", json=FINISH)).status_code == 500

    talk(conversation)
    assert [row["ended_by"] for row in read_episodes(tmp_path).rows] == ["finish"]


def test_bad_options_of_a_host_are_refused() -> None:
    for options in ({"real_time": -1.0}, {"real_time": float("nan")}, {"idle_s": 0.0}):
        with pytest.raises(UserError):
            Host(**options)
    with pytest.raises(UserError, match="unknown wrapper"):
        Host().open(make_variant({"task": "cross_post", "wrapper": "guard"}))


def test_an_address_that_is_taken_or_unknown_is_refused() -> None:
    with bind("127.0.0.1", 0) as listener:
        port = int(url_of(listener).rsplit(":", 1)[1])
        with pytest.raises(UserError, match="cannot listen on"):
            bind("127.0.0.1", port)
    with pytest.raises(UserError, match="cannot listen on"):
        bind("no.such.host.invalid", 0)


def test_a_killed_server_keeps_what_has_ended_and_a_stopped_one_writes_the_rest(
    tmp_path: Path, repo_root: Path
) -> None:
    command = [
        sys.executable,
        "-m",
        "exactlyonce_env",
        "serve",
        "http",
        "--port",
        "0",
        "--json",
        "-",
        "--out",
    ]
    servers = [
        subprocess.Popen(
            [*command, str(tmp_path / name)], stdout=subprocess.PIPE, text=True, cwd=repo_root
        )
        for name in ("killed", "stopped")
    ]
    endings = ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 128 + signal.SIGTERM))
    for server, (number, code) in zip(servers, endings, strict=True):
        assert server.stdout is not None
        base = json.loads(server.stdout.readline())["url"]
        with httpx.Client(base_url=base, timeout=30.0) as client:
            ended, running = (client.post("/episodes", json=NEW).json()["url"] for _ in range(2))
            assert client.post(f"{ended}/calls", json=FINISH).json()["ended"]
            client.post(f"{running}/calls", json=happy_calls("invoice_batch")[0])
            server.send_signal(number)
            assert server.wait(timeout=20) == code
        server.stdout.close()
    rows = read_episodes(tmp_path / "killed").rows
    assert [row["ended_by"] for row in rows] == ["finish"]
    rows = read_episodes(tmp_path / "stopped").rows
    assert [(row["ended_by"], row["ending"]) for row in rows] == [
        ("finish", "claimed"),
        ("server", "exhausted"),
    ]
    assert len(rows[1]["calls"]) == 1


def test_a_stop_does_not_wait_for_virtual_time(talk: Callable[..., None]) -> None:
    async def conversation(client: Any, service: Service) -> None:
        url = await opened(client)
        began_s = time.monotonic()
        call = asyncio.create_task(
            client.post(f"{url}/calls", json={"tool": "wait", "arguments": {"seconds": 1000}})
        )
        await asyncio.sleep(0.05)
        assert not call.done()
        service.host.stop()
        assert (await call).status_code == 200
        assert time.monotonic() - began_s < 10.0

    talk(conversation, real_time=1.0)
