"""Virtual seconds as wall-clock seconds: clients really time out, and really race a late commit."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exactlyonce_env.sandbox import hosting
from exactlyonce_env.sandbox.hosting import Host, Hosted
from exactlyonce_env.sandbox.log import EpisodeLog, read_episodes
from exactlyonce_env.sandbox.service import Service
from exactlyonce_env.sandbox.session import Session

httpx = pytest.importorskip("httpx")
pytest.importorskip("uvicorn")

FACTOR = 0.02
"""Wall-clock seconds of one virtual second: a timeout takes 0.6 s, a late commit comes at 1.8 s."""


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(hosting.time, "monotonic", lambda: self.now_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def charge_of(session: Session) -> tuple[str, dict[str, Any]]:
    step = session.task.steps[0]
    return step.tool, dict(step.arguments)


def test_without_a_factor_the_wall_clock_does_not_matter(clock: Clock) -> None:
    hosted = Hosted("a", Session("invoice_batch"))
    assert hosted.call("wait", {"seconds": 10})[1] == 0.0
    clock.now_s += 500.0
    hosted.call("wait", {"seconds": 10})
    assert hosted.session.now_s == 20.0


def test_a_reply_is_due_when_the_call_is_over(clock: Clock) -> None:
    hosted = Hosted("a", Session("invoice_batch", fault="timeout_late"), real_time=0.5)
    clock.now_s += 77.0  # before the first call no time counts
    reply, due_s = hosted.call(*charge_of(hosted.session))
    assert reply.text.startswith("Timeout")
    assert due_s == pytest.approx(15.0)


def test_the_clock_runs_while_the_client_thinks(clock: Clock) -> None:
    hosted = Hosted("a", Session("invoice_batch", fault="timeout_late"), real_time=0.5)
    name, arguments = charge_of(hosted.session)
    hosted.call(name, arguments)
    look = ("billing_list_charges", {"customer": arguments["customer"]})
    clock.now_s += 15.0  # 30 s of virtual time: the reply
    assert json.loads(hosted.call(*look)[0].text)["charges"] == []
    clock.now_s += 40.0  # thinking: the write commits at 90 s
    reply, due_s = hosted.call(*look)
    assert len(json.loads(reply.text)["charges"]) == 1
    assert due_s == pytest.approx(2.5)
    assert hosted.session.calls[-1].began_s == pytest.approx(110.0)


def test_a_client_that_gave_up_sees_the_services_as_they_are_then(clock: Clock) -> None:
    hosted = Hosted("a", Session("invoice_batch"), real_time=1.0)
    name, arguments = charge_of(hosted.session)
    look = ("billing_list_charges", {"customer": arguments["customer"]})
    assert hosted.call(name, arguments)[1] == pytest.approx(5.0)
    clock.now_s += 2.0  # the charge is under way
    assert json.loads(hosted.call(*look)[0].text)["charges"] == []
    other = dict(hosted.session.task.steps[1].arguments)
    assert hosted.call(name, other)[1] == pytest.approx(5.0)  # beside the first, at 2 s
    clock.now_s += 2.0
    assert hosted.call(name, arguments)[1] == pytest.approx(11.0)  # behind the first and the look
    clock.now_s += 20.0
    assert len(json.loads(hosted.call(*look)[0].text)["charges"]) == 2
    record = hosted.close()
    assert record is not None
    assert record["duplicates"] == 1
    assert record["real_time"] == 1.0


def test_time_never_ends_before_the_last_answer(clock: Clock) -> None:
    hosted = Hosted("a", Session("invoice_batch"), real_time=1.0)
    hosted.call("wait", {"seconds": 100})
    clock.now_s += 1.0
    hosted.call("finish", {"status": "uncertain", "summary": "left"})
    record = hosted.close()
    assert record is not None
    assert record["elapsed_s"] == 100.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """URL of a service in real time, on a socket of its own thread."""
    import asyncio

    from exactlyonce_env.sandbox.serving import bind, make_server, serve, url_of

    host = Host(EpisodeLog(tmp_path), real_time=FACTOR)
    listener = bind("127.0.0.1", 0)
    running = make_server(Service(host), host)
    thread = threading.Thread(target=lambda: asyncio.run(serve(running, host, listener)))
    thread.start()
    yield url_of(listener)
    running.should_exit = True
    thread.join(timeout=20)
    assert not thread.is_alive()


def test_a_client_times_out_by_itself_while_the_write_goes_on(server: str, tmp_path: Path) -> None:
    new = {"task": "invoice_batch", "fault": "timeout_late"}
    session = Session(**new)
    name, arguments = charge_of(session)
    for step in session.task.steps:  # what is compiled is loaded before the clock counts
        session.call(step.tool, step.arguments)
    session.call("billing_list_charges", {})
    with httpx.Client(timeout=20.0) as client:
        url = client.post(f"{server}/episodes", json=new).json()["url"]

        def charges() -> int:
            call = {
                "tool": "billing_list_charges",
                "arguments": {"customer": arguments["customer"]},
            }
            answer = client.post(f"{url}/calls", json=call).json()
            return len(json.loads(answer["text"])["charges"])

        began_s = time.monotonic()
        with pytest.raises(httpx.ReadTimeout):
            client.post(f"{url}/calls", json={"tool": name, "arguments": arguments}, timeout=0.1)
        assert time.monotonic() - began_s < 30.0 * FACTOR  # before the service's own answer
        assert charges() == 0
        while charges() == 0:
            time.sleep(0.1)
        assert time.monotonic() - began_s >= 90.0 * FACTOR
        client.delete(url)
    (row,) = read_episodes(tmp_path).rows
    assert row["triggered"]
    assert row["omissions"] == 2  # the charge was made, the other writes were never sent
