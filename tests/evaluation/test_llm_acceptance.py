"""What a run of models promises as a whole, over a real socket and in processes of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai", reason="the extra llm is not installed")

from evaluation.llm.fake import SCRIPTS, Answer, FakeEndpoint, Request
from evaluation.llm.store import open_store

KEY = "sk-canary-0123456789abcdef"
CHAT_PATH = "/chat/completions"
CONCURRENCY = 8
DELAY_S = 0.02

Script = Callable[[Request], Answer]


def slow_patient(request: Request) -> Answer:
    found = SCRIPTS["patient"](request)
    return Answer(found.text, found.tool_calls, delay_s=DELAY_S)


def slow_agent(request: Request) -> Answer:
    """Reads, errs in a tool's name, then ends; four calls an episode."""
    done = sum(entry.get("role") == "tool" for entry in request.history)
    finish = json.dumps({"status": "uncertain", "summary": "nothing was done"})
    calls = [("list_invoices", "{}"), ("no_such_tool", "{}"), ("list_invoices", "{}")]
    return Answer(None, [[*calls, ("finish", finish)][min(done, 3)]], delay_s=DELAY_S)


def evaluate_command(url: str, out: Path) -> list[str]:
    return [
        *("evaluate", "late-tail", "--policies", "wait:300,llm:fake", "--worlds", "16"),
        *("--repeats", "2", "--base-url", url, "--concurrency", str(CONCURRENCY)),
        *("--out", str(out)),
    ]


def agent_command(url: str, out: Path) -> list[str]:
    return [
        *("agent", "--model", "fake", "--tasks", "invoice_batch", "--faults", "timeout_late"),
        *("--repeats", "4", "--base-url", url, "--concurrency", str(CONCURRENCY)),
        *("--out", str(out)),
    ]


def table(run: Path) -> Any:
    """The rows of a summary but for tokens: the fake's ids of calls grow by a digit now and then.

    What is left holds every measure, every interval, and the numbers of episodes and of calls.
    """

    def scrubbed(found: Any) -> Any:
        if isinstance(found, dict):
            return {k: scrubbed(v) for k, v in found.items() if not k.startswith("tokens")}
        return [scrubbed(entry) for entry in found] if isinstance(found, list) else found

    return scrubbed(json.loads((run / "summary.json").read_text())["rows"])


def kill_after(fake: FakeEndpoint, requests: int, args: Sequence[str]) -> None:
    """Run a command until so many requests have come, then kill it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "exactlyonce_env", *args],
        env=os.environ | {"OPENAI_API_KEY": KEY},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while fake.counts.get(CHAT_PATH, 0) < requests and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.003)
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize(
    ("script", "command"),
    [(slow_patient, evaluate_command), (slow_agent, agent_command)],
    ids=["evaluate", "agent"],
)
def test_three_kills_change_nothing_and_cost_what_was_in_flight(
    run_cli: Any, tmp_path: Path, script: Script, command: Callable[[str, Path], list[str]]
) -> None:
    env = {"OPENAI_API_KEY": KEY}
    with FakeEndpoint(script) as fake:
        assert run_cli(*command(fake.base_url, tmp_path / "whole"), env=env).returncode == 0
        whole = fake.counts[CHAT_PATH]
    killed = tmp_path / "killed"
    with FakeEndpoint(script) as fake:
        args = command(fake.base_url, killed)
        lost = 0
        for k, share in enumerate((0.2, 0.5, 0.8), start=1):
            kill_after(fake, int(share * whole) + lost, args)
            with open_store(killed, readonly=True) as store:
                kept = store.spent().n_calls
            lost = fake.counts[CHAT_PATH] - kept
            assert 0 <= lost <= k * CONCURRENCY
        done = run_cli(*args, env=env)
        assert done.returncode == 0, done.stderr
        assert fake.counts[CHAT_PATH] == whole + lost
    assert table(killed) == table(tmp_path / "whole")
    with open_store(killed, readonly=True) as store:
        assert store.spent().n_calls == whole


@pytest.mark.parametrize(("concurrency", "sockets", "most"), [(1, 64, 1), (12, 64, 12), (24, 5, 5)])
def test_as_many_requests_are_open_as_was_asked(
    run_cli: Any, concurrency: int, sockets: int, most: int
) -> None:
    def slow(request: Request) -> Answer:
        return Answer(SCRIPTS["patient"](request).text, delay_s=0.1)

    worlds = 2 if concurrency == 1 else 24
    with FakeEndpoint(slow) as fake:
        done = run_cli(
            *("evaluate", "late-tail", "--policies", "llm:fake", "--worlds", str(worlds)),
            *("--concurrency", str(concurrency), "--sockets", str(sockets)),
            *("--base-url", fake.base_url, "--answers", "text"),
            env={"OPENAI_API_KEY": KEY},
        )
        assert done.returncode == 0, done.stderr
        assert fake.most_open == most
