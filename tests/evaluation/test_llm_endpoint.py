"""The whole stack over a real socket, in fair weather and foul."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai", reason="the extra llm is not installed")

from evaluation.llm.fake import Answer, FakeEndpoint, Faults, Request
from evaluation.llm.models import ModelOptions
from evaluation.llm.store import FILE, open_store
from evaluation.runner import evaluate
from evaluation.summary import summarise
from exactlyonce_env.errors import UserError
from exactlyonce_env.plan import Plan
from exactlyonce_env.presets import load_plan
from policies.llm.asking import Settings
from policies.llm.endpoint import CHAT, OpenAIEndpoint, Patience, ProviderError
from policies.llm.policy import LLMPolicy

KEY = "sk-canary-0123456789abcdef"
QUICK = Patience(retries=8, first_s=0.0, longest_s=0.01)
BODY = {"model": "m", "messages": [{"role": "user", "content": "say hello"}]}


@pytest.fixture(autouse=True)
def a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return load_plan("late-tail")


def post(url: str, timeout_s: float = 5.0) -> dict[str, Any]:
    async def one() -> dict[str, Any]:
        endpoint = OpenAIEndpoint(url, timeout_s=timeout_s)
        try:
            return await endpoint.post(CHAT, BODY)
        finally:
            await endpoint.close()

    return asyncio.run(one())


def test_an_answer_comes_as_plain_json_and_the_key_is_sent() -> None:
    seen: list[Mapping[str, str]] = []

    def script(request: Request) -> Answer:
        seen.append(request.headers)
        assert request.path == CHAT
        assert dict(request.body) == BODY
        return Answer("hello")

    with FakeEndpoint(script) as fake:
        found = post(fake.base_url)
    assert found["choices"][0]["message"]["content"] == "hello"
    assert seen[0]["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("trouble", "kind", "retry", "fatal"),
    [
        ("slow", "timeout", True, False),
        ("http_429", "http_429", True, False),
        ("http_500", "http_500", True, False),
        ("http_503", "http_503", True, False),
        ("http_400", "http_400", False, False),
        ("http_401", "http_401", False, True),
        ("reset", "connection", True, False),
        ("malformed", "malformed", True, False),
        ("truncated", "connection", True, False),
        ("trickle", "timeout", True, False),
        ("endless", "too_long", True, False),
    ],
)
def test_trouble_is_told_apart(trouble: str, kind: str, retry: bool, fatal: bool) -> None:
    with (
        FakeEndpoint(lambda r: Answer("hello"), Faults([trouble], slow_s=2.0)) as fake,
        pytest.raises(ProviderError) as found,
    ):
        post(fake.base_url, timeout_s=0.3 if trouble in ("slow", "trickle") else 5.0)
    assert (found.value.kind, found.value.retry, found.value.fatal) == (kind, retry, fatal)
    if trouble == "http_429":
        assert found.value.retry_after_s == 0.01


def test_json_that_is_called_something_else_is_read() -> None:
    with FakeEndpoint(lambda r: Answer("hello"), Faults(["labelled_html"])) as fake:
        assert post(fake.base_url)["choices"][0]["message"]["content"] == "hello"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("localhost:8000", "does not begin with"),
        ("ftp://localhost/v1", "does not begin with"),
        ("http://", "names no host"),
        ("http:///v1", "names no host"),
        ("http://host:port/v1", "is no address"),
        ("http://host:99999/v1", "is no address"),
        ("http://host:0/v1", "port 0"),
        ("http://ho st/v1", "a blank"),
        ("http://host/v1?key=1", "no \\? or #"),
        ("http://[::1/v1", "is no address"),
        ("http://-host/v1", "names no host"),
        ("http://hö.example/v1", "a blank or a character"),
    ],
)
def test_a_malformed_address_is_refused_wherever_it_stands(
    monkeypatch: pytest.MonkeyPatch, url: str, why: str
) -> None:
    with pytest.raises(UserError, match=rf"^--base-url .*{why}"):
        OpenAIEndpoint(url)
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    with pytest.raises(UserError, match=rf"^OPENAI_BASE_URL .*{why}"):
        OpenAIEndpoint()


def test_a_password_in_an_address_is_not_repeated() -> None:
    with pytest.raises(UserError) as found:
        OpenAIEndpoint("http://me:hunter2@host/v1")
    assert "hunter2" not in str(found.value)
    assert "OPENAI_API_KEY" in str(found.value)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000/v1", "https://a.example/v1", "http://[::1]/v1"]
)
def test_addresses_are_taken(url: str) -> None:
    assert OpenAIEndpoint(url).url == url


def test_a_refused_connection_is_trouble_of_the_way() -> None:
    with FakeEndpoint(lambda r: Answer("hello")) as fake:
        url = fake.base_url
    with pytest.raises(ProviderError) as found:
        post(url)
    assert (found.value.kind, found.value.retry) == ("connection", True)


def test_without_a_key_and_an_address_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(UserError, match="OPENAI_API_KEY is not set"):
        OpenAIEndpoint()
    with pytest.raises(UserError, match="is no address"):
        OpenAIEndpoint("localhost:8000")


def rows_of(plan: Plan, url: str, out: Path | None = None, worlds: int = 25) -> dict[str, Any]:
    policy = LLMPolicy("fake", settings=Settings(base_url=url, timeout_s=5.0))
    options = ModelOptions(concurrency=10, patience=QUICK)
    found = evaluate(plan, ["wait:300", policy], worlds=worlds, out=out, models=options)
    return summarise(found, "wait:300")[1]


def test_foul_weather_changes_the_counts_and_nothing_else(plan: Plan) -> None:
    with FakeEndpoint("patient") as fake:
        calm = rows_of(plan, fake.base_url)
    with FakeEndpoint("patient", Faults([""], rate=0.25, seed=3)) as fake:
        foul = rows_of(plan, fake.base_url)
        met = sum(n for kind, n in fake.counts.items() if not kind.startswith("/"))
    assert met > 10
    assert foul["provider_errors"] == met
    assert (calm["missing"], foul["missing"]) == (0, 0)
    counted = ("provider_errors",)
    assert {k: v for k, v in foul.items() if k not in counted} == {
        k: v for k, v in calm.items() if k not in counted
    }


def test_an_ignored_schema_is_noticed_and_asked_for_in_words(plan: Plan) -> None:
    bodies: list[Mapping[str, Any]] = []

    def ignoring(request: Request) -> Answer:
        bodies.append(request.body)
        if "hello" in str(request.history[-1]["content"]):
            return Answer("Hello there!")
        return Answer('{"action": "finish_uncertain", "rationale": "x"}')

    with FakeEndpoint(ignoring) as fake:
        rows_of(plan, fake.base_url, worlds=3)
    assert "response_format" in bodies[0]
    assert all("response_format" not in body for body in bodies[1:])

    with FakeEndpoint("patient") as fake:
        row = rows_of(plan, fake.base_url, worlds=3)
    assert row["invalid"] == 0


def test_a_fence_is_invalid_even_from_an_endpoint_that_keeps_schemas(plan: Plan) -> None:
    with FakeEndpoint("patient", Faults(["", "fence"])) as fake:
        row = rows_of(plan, fake.base_url, worlds=1)
    assert row["invalid"] == 1


def test_the_key_reaches_nothing_that_is_written(plan: Plan, tmp_path: Path) -> None:
    def gossip(request: Request) -> Answer:
        said = request.headers["authorization"]
        return Answer(json.dumps({"action": "finish_uncertain", "rationale": f"I saw {said}"}))

    with FakeEndpoint(gossip, Faults(["", "http_500"])) as fake:
        rows_of(plan, fake.base_url, out=tmp_path, worlds=3)
    with open_store(tmp_path, readonly=True) as store:
        documents = [document for _, document in store.documents()]
    assert "I saw Bearer [key]" in repr(documents)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes(), path


# --- the command line -----------------------------------------------------------------------------


def command(url: str, out: Path, *more: str) -> list[str]:
    return [
        *("evaluate", "late-tail", "--policies", "wait:300,llm:fake", "--worlds", "40"),
        *("--base-url", url, "--concurrency", "6", "--out", str(out), *more),
    ]


def test_the_command_line_prints_and_writes_what_came_back(run_cli: Any, tmp_path: Path) -> None:
    env = {"OPENAI_API_KEY": KEY}
    with FakeEndpoint("patient") as fake:
        args = command(fake.base_url, tmp_path / "run", "--belief", "--repeats", "2")
        done = run_cli(*args, "--price", "1,4", "--json", str(tmp_path / "r.json"), env=env)
    assert done.returncode == 0, done.stderr
    assert "Language models" in done.stdout
    assert "pass^k" in done.stdout
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert [row["policy"] for row in rows] == ["wait:300", "llm:fake+belief"]
    row = rows[1]
    assert (row["planned"], row["returned"], row["missing"], row["invalid"]) == (80, 80, 0, 0)
    assert row["pass_hat_k"] == row["exactly_once"]
    assert row["usd"] == pytest.approx((row["tokens_in"] + 4 * row["tokens_out"]) / 1e6)
    belief = row["belief"]
    assert belief["n"] == row["model_calls"]
    assert 0.0 < belief["brier"] < 2.0
    (always,) = belief["curve"]["committed"]
    assert always["stated"] == pytest.approx(0.2)
    assert rows[0]["belief"] is None
    assert sum(bin_["n"] for bin_ in rows[0]["decisions"]) > 40
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes(), path


def test_a_killed_run_goes_on_with_no_call_lost_or_paid_twice(run_cli: Any, tmp_path: Path) -> None:
    env = os.environ | {"OPENAI_API_KEY": KEY}

    def slowly(request: Request) -> Answer:
        from evaluation.llm.fake import patient

        found = patient(request)
        return Answer(found.text, found.tool_calls, delay_s=0.02)

    def table(run: Path) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((run / "summary.json").read_text())
        return found

    with FakeEndpoint(slowly) as fake:
        args = command(fake.base_url, tmp_path / "killed")
        process = subprocess.Popen(
            [sys.executable, "-m", "exactlyonce_env", *args],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 120
        while fake.counts.get("/chat/completions", 0) < 60 and time.monotonic() < deadline:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed = fake.counts["/chat/completions"]
        with open_store(tmp_path / "killed", readonly=True) as store:
            kept = store.spent().n_calls
        assert 0 <= killed - kept <= 6  # what was in flight
        assert run_cli(*args, env={"OPENAI_API_KEY": KEY}).returncode == 0
        total = fake.counts["/chat/completions"]
    with FakeEndpoint(slowly) as fake:
        args = command(fake.base_url, tmp_path / "whole")
        assert run_cli(*args, env={"OPENAI_API_KEY": KEY}).returncode == 0
        whole = fake.counts["/chat/completions"]
    assert 60 <= killed < whole
    assert total - (killed - kept) == whole
    assert table(tmp_path / "killed") == table(tmp_path / "whole")
    assert (tmp_path / "killed" / FILE).exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_keeps_the_answers_in_flight(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    def slowly(request: Request) -> Answer:
        from evaluation.llm.fake import patient

        found = patient(request)
        return Answer(found.text, found.tool_calls, delay_s=0.2)

    with FakeEndpoint(slowly) as fake:
        process = subprocess.Popen(
            [sys.executable, "-m", "exactlyonce_env", *command(fake.base_url, tmp_path / "run")],
            env=os.environ | {"OPENAI_API_KEY": KEY},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 120
        while fake.counts.get("/chat/completions", 0) < 20 and time.monotonic() < deadline:
            time.sleep(0.005)
        process.send_signal(number)
        _, told = process.communicate(timeout=60)
        asked = fake.counts["/chat/completions"]
    assert process.returncode == code
    assert told.splitlines() == [
        f"interrupted; finished work is kept in {tmp_path / 'run'}, run the same command to resume"
    ]
    with open_store(tmp_path / "run", readonly=True) as store:
        assert store.spent().n_calls == asked


def test_a_full_disk_is_one_line_and_what_was_kept_is_kept(tmp_path: Path) -> None:
    with FakeEndpoint("patient") as fake:
        words = command(fake.base_url, tmp_path / "run")
        limited = (
            "import resource, signal, sys\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, 120_000))\n"
            "from exactlyonce_env.cli import main\n"
            f"sys.exit(main({words!r}))\n"
        )
        env = os.environ | {"OPENAI_API_KEY": KEY, "NUMBA_DISABLE_CACHING": "1"}
        done = subprocess.run(
            [sys.executable, "-c", limited], env=env, capture_output=True, text=True, check=False
        )
        asked = fake.counts["/chat/completions"]
    assert done.returncode == 2, done.stderr
    assert "cannot be written" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    with open_store(tmp_path / "run", readonly=True) as store:
        assert 0 < store.spent().n_calls <= asked


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--max-usd", "1"], "--max-usd needs --price"),
        (["--max-usd", "inf", "--price", "1,1"], "--max-usd must lie in"),
        (["--max-tokens", "9" * 20], "--max-tokens must lie in"),
        (["--price", "1,1e300"], "--price must lie in"),
        (["--timeout", "inf"], "--timeout must lie in"),
        (["--sockets", "1000000"], "--sockets must lie in"),
        (["--retries", "1000000000"], "--retries must lie in"),
        (["--concurrency", "1000000000"], "--concurrency must lie in"),
        (["--answer-tokens", "9" * 20], "--answer-tokens must lie in"),
        (["--temperature", "1e9"], "--temperature must lie in"),
        (["--prompts", "aware,aware"], "names 'aware' twice"),
        (["--policies", "llm:m+aware", "--prompt", "vanilla"], "names what --prompt names too"),
        (["--policies", "llm:m+belief", "--belief"], "names what --belief names too"),
        (["--policies", "llm:" + "m" * 300], "is no name of a model"),
        (["--price", "1"], "--price '1' is not IN,OUT"),
        (["--repeats", "0"], "--repeats must lie in"),
        (["--prompt", "kind"], "--prompt 'kind'"),
        (["--answers", "magic"], "--answers 'magic'"),
        (["--scoring", "likelihood", "--belief"], "--scoring sampled"),
    ],
)
def test_bad_options_are_one_line(
    run_cli: Any, tmp_path: Path, more: list[str], words: str
) -> None:
    done = run_cli(*command("http://127.0.0.1:9/v1", tmp_path / "r", *more))
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_wrong_key_is_one_line_too(run_cli: Any, tmp_path: Path) -> None:
    with FakeEndpoint("patient", Faults(["http_401"] * 50)) as fake:
        done = run_cli(*command(fake.base_url, tmp_path / "r"), env={"OPENAI_API_KEY": KEY})
    assert done.returncode == 2
    assert re.match("error: the endpoint refuses: http_401", done.stderr)


def test_agents_over_a_socket(run_cli: Any, tmp_path: Path) -> None:
    with FakeEndpoint("idle") as fake:
        done = run_cli(
            *("agent", "--model", "fake", "--base-url", fake.base_url, "--tasks", "invoice_batch"),
            *("--faults", "timeout_late", "--protocol", "responses", "--out", str(tmp_path / "a")),
            *("--json", str(tmp_path / "a.json")),
            env={"OPENAI_API_KEY": KEY},
        )
        assert fake.counts["/responses"] == 4  # three writes and the twin
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert row["policy"] == "agent:fake+responses"
    assert (row["planned"], row["returned"], row["triggered"]) == (3, 3, 0)
    assert (tmp_path / "a" / "manifest.json").exists()


def test_a_key_is_stripped_and_a_placeholder_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\r\n")
    assert OpenAIEndpoint("http://127.0.0.1:9/v1").secrets == (KEY,)
    monkeypatch.setenv("OPENAI_API_KEY", "1")
    assert OpenAIEndpoint("http://127.0.0.1:9/v1").secrets == ()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canäry-0123456789")
    with pytest.raises(UserError, match="a character that no key has"):
        OpenAIEndpoint("http://127.0.0.1:9/v1")


def test_an_agent_leaves_other_runs_alone(run_cli: Any, plan: Plan, tmp_path: Path) -> None:
    evaluate(plan, ["wait:300"], worlds=5, out=tmp_path / "run")
    (tmp_path / "file").write_text("x")
    for name, words in (("run", "none of agents"), ("file", "is a file")):
        done = run_cli(
            *("agent", "--model", "fake", "--base-url", "http://127.0.0.1:9/v1"),
            *("--tasks", "invoice_batch", "--out", str(tmp_path / name)),
        )
        assert done.returncode == 2
        assert words in done.stderr
