"""`exactlyonce serve`, `grade` and `play` as a user and a program meet them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exactlyonce_env.sandbox.log import EPISODES, EpisodeLog, episode_record
from exactlyonce_env.sandbox.session import Session
from exactlyonce_env.sandbox.tasks import make_task

Run = Callable[..., Any]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put lines on stdin."""
    return lambda text: monkeypatch.setattr("sys.stdin", io.StringIO(text))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["mcp"], "--task is missing; choose from release_announcement"),
        (["mcp", "--task", "nope"], "unknown task 'nope'"),
        (["mcp", "--task", "cross_post", "--fault", "lost"], "unknown fault 'lost'"),
        (["mcp", "--task", "cross_post", "--write", "9"], "no focal write '9'"),
        (["mcp", "--task", "cross_post", "--contract", "x"], "unknown contract 'x'"),
        (["mcp", "--task", "cross_post", "--docs", "x"], "unknown docs 'x'"),
        (["mcp", "--task", "cross_post", "--operator", "x"], "unknown operator 'x'"),
        (["mcp", "--task", "cross_post", "--wrapper", "x"], "'x'"),
        (["mcp", "--task", "cross_post", "--instance", "-1"], "--instance"),
        (["mcp", "--task", "cross_post", "--fault", "partial_batch"], "partial_batch fits a batch"),
        (["mcp", "--task", "cross_post", "--option", "pages"], "not NAME=VALUE"),
        (["mcp", "--task", "cross_post", "--option", "pages=1"], "unknown field 'pages'"),
        (["mcp", "--task", "cross_post", "--real-time", "-1"], "--real-time"),
        (["mcp", "--task", "cross_post", "--transport", "tcp"], "unknown --transport 'tcp'"),
        (["mcp", "--task", "cross_post", "--json", "-"], "--json tells where a server listens"),
        (["http", "--idle", "0"], "--idle"),
        (["http", "--port", "70000"], "--port"),
        (["http", "--host", "no.such.host.invalid"], "cannot listen on"),
        (["smtp"], "unknown protocol 'smtp'"),
    ],
)
def test_serve_refuses_bad_options_in_one_line(
    refusal: Run, options: list[str], words: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert words in refusal("serve", *options, "--out", str(out))
    assert not out.exists()


def test_serve_refuses_a_folder_that_it_cannot_write(refusal: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = refusal("serve", "http", "--port", "0", "--out", str(tmp_path / "file"))
    assert "cannot be written" in line


def test_grade_prints_the_measures(printed: Run, tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path)
    for fault in ("ok", "timeout_pre"):
        session = Session("cross_post", fault=fault)
        for step in session.task.steps:
            session.call(step.tool, step.arguments)
        session.call("finish", {"status": "completed", "summary": "done"})
        log.append(episode_record(session, ended_by="finish"))
    told = printed("grade", str(tmp_path))
    assert "2 episodes; the focal write was attempted in 2, 1 of which ended exactly once" in told
    assert "timeout_pre" in told

    found = json.loads(printed("grade", str(tmp_path), "--json", "-"))
    assert [row["exactly_once"] for row in found["episodes"]] == [True, False]
    assert found["episodes"][1]["overclaim"]
    assert found["incomplete_last_line"] is False

    with (tmp_path / EPISODES).open("a") as file:
        file.write('{"form')
    assert "part of a line" in printed("grade", str(tmp_path))
    assert json.loads(printed("grade", str(tmp_path), "--json", "-"))["incomplete_last_line"]


def test_grade_refuses_what_is_no_log(refusal: Run, tmp_path: Path) -> None:
    assert "no such folder" in refusal("grade", str(tmp_path / "none"))
    (tmp_path / EPISODES).write_text("x\n")
    assert "line 1: not JSON" in refusal("grade", str(tmp_path))


def test_a_person_plays_and_sees_what_really_happened(
    printed: Run, typed: Callable[[str], None]
) -> None:
    steps = make_task("invoice_batch", 0).steps
    charge = f"billing_charge {json.dumps(dict(steps[0].arguments))}"
    look = f"billing_list_charges customer={steps[0].arguments['customer']}"
    lines = [
        "tools",
        "help billing_charge",
        "help",
        "fly away",
        "wait seconds",
        "wait {",
        charge,
        look,
        "wait seconds=90",
        charge,
        look,
        'finish status=uncertain summary="not sure" uncertain_operations=["charge_0"]',
        "after the end nothing is read",
    ]
    typed("\n".join(lines))
    told = printed("play", "sandbox", "--task", "invoice_batch", "--fault", "timeout_late")
    assert steps[0].arguments["customer"] in told
    assert "billing_charge customer=STRING amount=NUMBER" in told
    assert "there is no tool 'fly'" in told
    assert "'seconds' is not KEY=VALUE" in told
    assert "the arguments are not JSON" in told
    assert "Timeout: no response within 30 s." in told
    assert '"charges": []' in told
    assert "What really happened" in told
    assert "the fault timeout_late meets it" in told
    assert "a DUPLICATE" in told
    assert "residual_duplicates" in told


def test_play_as_json_holds_the_timeline_in_order(
    printed: Run, typed: Callable[[str], None]
) -> None:
    (first, *_) = make_task("invoice_batch", 0).steps
    typed(f"{first.tool} {json.dumps(dict(first.arguments))}\nquit\n")
    told = printed(
        "play", "sandbox", "--task", "invoice_batch", "--fault", "timeout_late", "--json", "-"
    )
    record = json.loads(told)
    assert record["ended_by"] == "client"
    assert record["triggered"]
    times = [row["time_s"] for row in record["timeline"]]
    assert times == sorted(times) == [0.0, 30.0, 90.0]
    assert record["timeline"][1]["seen"] == "#0 answered: Timeout: no response within 30 s."
    assert "by call #0" in record["timeline"][2]["happened"]


def test_play_shows_copies_repeats_without_change_and_what_was_undone(
    printed: Run, typed: Callable[[str], None]
) -> None:
    (upsert, *_) = make_task("feature_flags", 0).steps
    line = f"{upsert.tool} {json.dumps(dict(upsert.arguments))}"
    typed(f"{line}\n{line}\n")
    options = ["--task", "feature_flags", "--fault", "redelivery", "--json", "-"]
    happened = [
        row["happened"] for row in json.loads(printed("play", "sandbox", *options))["timeline"]
    ]
    assert any("by a redelivered copy" in words for words in happened)
    assert any("again: no change" in words for words in happened)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["chess"], "unknown world 'chess'"),
        (["sandbox"], "--task is missing"),
        (["sandbox", "--task", "nope"], "unknown task 'nope'"),
    ],
)
def test_play_refuses_bad_options(refusal: Run, options: list[str], words: str) -> None:
    assert words in refusal("play", *options)


@pytest.mark.parametrize(("wrapper", "duplicates"), [("none", 1), ("verify-retry", 0)])
def test_a_wrapper_stands_between_the_person_and_the_tools(
    printed: Run, typed: Callable[[str], None], wrapper: str, duplicates: int
) -> None:
    (first, *_) = make_task("invoice_batch", 0).steps
    line = f"{first.tool} {json.dumps(dict(first.arguments))}"
    typed(f"{line}\n{line}\nquit\n")
    options = ("--task", "invoice_batch", "--fault", "timeout_post", "--wrapper", wrapper)
    record = json.loads(printed("play", "sandbox", *options, "--json", "-"))
    assert record["wrapper"] == wrapper
    assert record["duplicates"] == duplicates
