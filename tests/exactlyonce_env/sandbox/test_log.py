"""The file of ended episodes: whole lines, clear errors, several writers."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from exactlyonce_env.errors import UserError
from exactlyonce_env.sandbox.grading import Grade
from exactlyonce_env.sandbox.hosting import Hosted
from exactlyonce_env.sandbox.log import EPISODES, FORMAT, EpisodeLog, episode_record, read_episodes
from exactlyonce_env.sandbox.session import Session


def ended(**variant: Any) -> Session:
    """An episode of a charge that met its fault and was then left alone."""
    session = Session("invoice_batch", **variant)
    step = session.task.steps[0]
    session.call(step.tool, step.arguments)
    session.call("finish", {"status": "completed", "summary": "done"})
    return session


def line(**variant: Any) -> dict[str, Any]:
    return episode_record(ended(**variant), ended_by="finish")


def test_a_line_says_which_world_it_was_what_was_called_and_how_it_is_graded(
    tmp_path: Path,
) -> None:
    session = ended(fault="timeout_post", write="charge_0", options={"page_size": 3})
    log = EpisodeLog(tmp_path, ["exactlyonce", "serve"])
    log.append(episode_record(session, wrapper="none", ended_by="finish", id="a"))
    log.close()

    (row,) = read_episodes(tmp_path).rows

    assert row["format"] == FORMAT
    assert row["id"] == "a"
    world = {
        "task": "invoice_batch",
        "instance": 0,
        "write": "charge_0",
        "fault": "timeout_post",
        "contract": "native",
        "docs": "default",
        "instruction": "default",
        "operator": "answers",
        "options": {"page_size": 3},
        "wrapper": "none",
    }
    assert {name: row[name] for name in world} == world
    assert row["ending"] == "claimed"
    assert row["ended_by"] == "finish"
    assert row["behaviour"]
    assert row["triggered"]
    assert set(Grade.__dataclass_fields__) <= set(row)
    assert row["reported"] == {"status": "completed", "summary": "done"}
    charge, finish = row["calls"]
    assert charge["tool"] == "billing_charge"
    assert charge["arguments"] == dict(session.task.steps[0].arguments)
    assert (charge["began_s"], charge["ended_s"]) == (0.0, 30.0)
    assert (charge["error"], charge["status"], charge["focal"]) == (True, 0, True)
    assert charge["text"].startswith("Timeout")
    assert finish["error"] is False


def test_the_instruction_variant_is_in_the_line() -> None:
    assert line(instruction="no-cue")["instruction"] == "no-cue"


def test_a_manifest_says_what_wrote_the_file_and_stays(tmp_path: Path) -> None:
    EpisodeLog(tmp_path, ["exactlyonce", "first"]).close()
    EpisodeLog(tmp_path, ["exactlyonce", "second"]).close()
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["format"] == FORMAT
    assert manifest["command"] == ["exactlyonce", "first"]
    assert "exactly_once" in manifest["measures"]
    assert read_episodes(tmp_path).rows == []


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": "exactlyonce-training/1"}')
    with pytest.raises(UserError, match="something else"):
        EpisodeLog(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        EpisodeLog(tmp_path / "file")


def test_numbers_that_json_lacks_are_written_as_text(tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path)
    log.append({**line(), "reported": {"x": [math.inf, 1.5]}})
    log.close()
    assert read_episodes(tmp_path).rows[0]["reported"] == {"x": ["inf", 1.5]}


def test_two_writers_share_a_file(tmp_path: Path) -> None:
    row = line()
    first, second = EpisodeLog(tmp_path), EpisodeLog(tmp_path)
    children = []
    for log in (first, second):
        if (child := os.fork()) == 0:
            for _ in range(20):
                log.append(row)
            os._exit(0)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
    assert len(read_episodes(tmp_path).rows) == 40


def test_part_of_a_line_at_the_end_is_no_episode_and_is_told(tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path)
    log.append(line())
    with (tmp_path / EPISODES).open("ab") as file:
        file.write(b'{"format": "exactlyonce-epi')
    found = read_episodes(tmp_path)
    assert len(found.rows) == 1
    assert found.torn

    log.append(line(fault="timeout_pre"))  # the next writer removes it
    found = read_episodes(tmp_path)
    assert [row["fault"] for row in found.rows] == ["ok", "timeout_pre"]
    assert not found.torn


def test_a_file_of_nothing_but_part_of_a_line_is_begun_anew(tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path)
    (tmp_path / EPISODES).write_bytes(b"{" * 3)
    log.append(line())
    assert len(read_episodes(tmp_path).rows) == 1


def test_a_damaged_line_elsewhere_is_an_error_that_names_it(tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path)
    log.append(line())
    path = tmp_path / EPISODES
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:40] + b"\n" + whole)
    with pytest.raises(UserError, match="line 2: not JSON"):
        read_episodes(tmp_path)
    path.write_bytes(whole + b'{"format": "other"}\n')
    with pytest.raises(UserError, match="line 2: no episode"):
        read_episodes(tmp_path)
    row = json.loads(whole)
    del row["duplicates"]
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(UserError, match="line 1: the field 'duplicates' is missing"):
        read_episodes(tmp_path)


def test_a_full_disk_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EpisodeLog(tmp_path)
    log.append(line())
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:10]))
    with pytest.raises(OSError, match="No space left"):
        log.append(line())
    monkeypatch.undo()
    found = read_episodes(tmp_path)
    assert len(found.rows) == 1
    assert not found.torn


def test_nothing_to_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        read_episodes(tmp_path / "none")
    with pytest.raises(UserError, match=r"there is no episodes\.jsonl"):
        read_episodes(tmp_path)


def test_an_episode_that_is_left_counts_as_exhausted() -> None:
    hosted = Hosted("a", Session("invoice_batch"))
    record = hosted.close()
    assert record is not None
    assert (record["ending"], record["ended_by"]) == ("exhausted", "client")
    assert record["unresolved"]
    assert hosted.close() is None  # once is enough
