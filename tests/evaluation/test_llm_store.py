"""The store of calls: what is kept, how it is found again, and what never gets in."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from evaluation.llm.store import FILE, open_store
from exactlyonce_env.errors import UserError

CHAT = "/chat/completions"


def body(*texts: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text} for text in texts]}


def answered(text: str) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}}]}


def test_a_call_is_found_by_its_place_its_step_and_its_request(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.add("a", 0, CHAT, body("x"), answered("1"), (10, 2), 0.5, 0.1)
        found = store.find("a", 0, CHAT, body("x"))
        assert found is not None
        assert found.response == answered("1")
        assert (found.tokens_in, found.tokens_out, found.usd) == (10, 2, 0.5)
        # Identical first requests of two episodes are two draws.
        assert store.find("b", 0, CHAT, body("x")) is None
        assert store.find("a", 1, CHAT, body("x")) is None
        assert store.find("a", 0, CHAT, body("y")) is None
        assert store.find("a", 0, "/responses", body("x")) is None


def test_an_episode_comes_back_whole_though_its_history_is_kept_once(tmp_path: Path) -> None:
    requests = [body("x"), body("x", "y"), body("x", "z"), body("x", "z", "w" * 5000)]
    with open_store(tmp_path) as store:
        for step, request in enumerate(requests):
            store.add("a", step, CHAT, request, answered(str(step)), (1, 1), 0.0, 0.0)
    with open_store(tmp_path, readonly=True) as store:
        calls = store.calls("a")
    assert [call["body"] for call in calls] == requests
    assert [call["response"] for call in calls] == [answered(str(k)) for k in range(4)]
    assert [call["path"] for call in calls] == [CHAT] * 4
    held = sqlite3.connect(tmp_path / FILE).execute("SELECT kept FROM calls").fetchall()
    assert [kept for (kept,) in held] == [0, 1, 1, 2]


def test_a_store_that_goes_on_keeps_the_history_once_too(tmp_path: Path) -> None:
    for step, request in enumerate([body("x"), body("x", "y")]):
        with open_store(tmp_path) as store:
            if step:
                assert store.find("a", 0, CHAT, body("x")) is not None
            store.add("a", step, CHAT, request, answered(""), (1, 1), 0.0, 0.0)
    with open_store(tmp_path) as store:
        assert [call["body"] for call in store.calls("a")] == [body("x"), body("x", "y")]


def test_what_was_spent_is_told_by_place_and_in_all(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.add("a", 0, CHAT, body("x"), answered(""), (10, 2), 0.5, 0.1)
        store.add("b", 0, CHAT, body("x"), answered(""), (20, 3), 0.25, 0.1)
        store.note("b", 1, "http_429", "slow down")
        assert store.spent("b") == (1, 20, 3, 0.25, 1)
        assert store.spent() == (2, 30, 5, 0.75, 1)
        assert [t["kind"] for t in store.trouble("b")] == ["http_429"]


def test_a_secret_is_blotted_out_wherever_it_turns_up(tmp_path: Path) -> None:
    canary = "sk-canary-0123456789"
    with open_store(tmp_path, secrets=(canary,)) as store:
        store.add("a", 0, CHAT, body(f"my key is {canary}"), answered(canary), (1, 1), 0.0, 0.0)
        store.note("a", 1, "http_500", f"bad key {canary}")
        store.finish(
            "a",
            {"kind": "policy", "policy": "p", "repeat": 0, "fault": "ok", "status": "returned"}
            | {"rationale": canary},
        )
        assert store.find("a", 0, CHAT, body(f"my key is {canary}")) is not None
        texts = [repr(store.calls("a")), repr(store.trouble("a")), repr(store.document("a"))]
    assert all("[key]" in text and canary not in text for text in texts)
    for path in tmp_path.iterdir():
        assert canary.encode() not in path.read_bytes()


def test_what_a_model_writes_survives_to_the_letter(tmp_path: Path) -> None:
    text = "\ud800 \x00 </script> \u2028 ' OR 1=1; --"
    with open_store(tmp_path) as store:
        store.add("a", 0, CHAT, body(text), answered(text), (1, 1), 0.0, 0.0)
        assert store.calls("a")[0]["response"] == answered(text)
        assert store.find("a", 0, CHAT, body(text)) is not None


def test_the_same_name_asked_otherwise_is_refused(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.same_way("llm:m", {"temperature": None})
        store.same_way("llm:m", {"temperature": None})
        with pytest.raises(UserError, match="asked otherwise"):
            store.same_way("llm:m", {"temperature": 0.5})


def test_a_folder_without_transcripts_says_what_makes_them(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no transcripts.*--out RUN"):
        open_store(tmp_path, readonly=True)


def test_another_file_of_that_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("not a database, but longer than its header would have to be" * 9)
    with pytest.raises(UserError, match="cannot be used"):
        open_store(tmp_path)


def test_another_format_is_refused(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.set_fact("format", "exactlyonce-llm/99")
    with pytest.raises(UserError, match="choose another folder"):
        open_store(tmp_path)


def test_two_processes_may_look_while_one_writes(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.add("a", 0, CHAT, body("x"), answered("1"), (1, 1), 0.0, 0.0)
        with open_store(tmp_path, readonly=True) as reader:
            assert len(reader.calls("a")) == 1
            store.add("a", 1, CHAT, body("x", "y"), answered("2"), (1, 1), 0.0, 0.0)
            assert len(reader.calls("a")) == 2
