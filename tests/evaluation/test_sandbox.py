"""Comparisons in the sandbox: the cells, the twins, the rows, and runs that go on."""

from __future__ import annotations

import json

import pytest

from evaluation.sandbox import plan_cells, run_cell, run_cells, summarise
from evaluation.sandbox_store import append_episodes, load_episodes
from exactlyonce_env.cli import main
from exactlyonce_env.errors import UserError

TWELVE = 12


def test_the_cells_of_the_whole_matrix():
    cells = plan_cells(policies=["guard"])
    assert len(cells) == 11 * 34 + 1  # partial_batch fits one write
    assert len({cell.twin for cell in cells}) == TWELVE
    assert len(plan_cells(policies=["guard"], faults=["timeout_post"], instances=[0, 1])) == 34 + 35
    assert len(plan_cells(policies=["guard"], faults=["ok"])) == TWELVE


def test_rows_count_and_average():
    cells = plan_cells(policies=["verify-retry"], faults=["redelivery"], tasks=["cross_post"])
    twins = {cell.twin: run_cell(cell.twin) for cell in cells}
    (row,) = summarise([run_cell(cell) for cell in cells], twins)
    # mastodon carries a key, so its copy is suppressed; x is duplicated.
    assert (row["episodes"], row["triggered"]) == (2, 2)
    assert (row["exactly_once_count"], row["duplicate_count"]) == (1, 1)
    assert row["exactly_once"] == 0.5
    assert row["ci"]["exactly_once"][0] < 0.5 < row["ci"]["exactly_once"][1]
    assert (row["nominal"], row["recovery"]) == (1.0, 0.5)
    by_write = summarise([run_cell(cell) for cell in cells], twins, "write")
    assert [(r["write"], r["exactly_once"]) for r in by_write] == [
        ("post_x", 0.0),
        ("post_mastodon", 1.0),
    ]


def test_processes_do_not_matter():
    cells = plan_cells(policies=["guard", "wait:120"], faults=["timeout_late"])
    alone = [e for part in run_cells(cells, processes=1) for e in part]
    together = [e for part in run_cells(cells, processes=2) for e in part]
    assert alone == together


def test_unknown_names_are_refused():
    with pytest.raises(UserError, match="--faults: unknown 'timeout'"):
        plan_cells(policies=["guard"], faults=["timeout"])
    with pytest.raises(UserError, match="bound of single worlds"):
        plan_cells(policies=["clairvoyant"])
    with pytest.raises(UserError, match="unknown policy"):
        plan_cells(policies=["guards"])


def test_a_run_goes_on_where_it_was_killed(tmp_path):
    cells = plan_cells(policies=["guard"], faults=["http500_post"], tasks=["cross_post"])
    episodes = [run_cell(cell) for cell in cells]
    append_episodes(tmp_path, episodes)
    file = tmp_path / "episodes.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])  # killed in the last line
    assert list(load_episodes(tmp_path).values()) == episodes[:-1]
    append_episodes(tmp_path, episodes[-1:])
    assert file.read_bytes() == whole
    file.write_text("{}\n")
    with pytest.raises(UserError, match="line 1, is no episode"):
        load_episodes(tmp_path)


def test_the_command(capsys, tmp_path):
    out = tmp_path / "run"
    args = ["evaluate", "sandbox", "--policies", "guard", "--faults", "timeout_post,ok"]
    args += ["--tasks", "cross_post,invoice_batch", "--out", str(out), "--json", "-"]
    assert main(args) == 0
    first = capsys.readouterr().out
    rows = json.loads(first)["rows"]
    assert [(row["fault"], row["episodes"]) for row in rows] == [("timeout_post", 5), ("ok", 2)]
    assert all(row["exactly_once"] == 1.0 for row in rows)
    assert (out / "episodes.parquet").is_file()
    assert json.loads((out / "manifest.json").read_text())["preset"] == "sandbox"
    assert main(args) == 0  # all of it is there
    assert capsys.readouterr().out == first


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("sandbox", "--worlds-of", "3"), "no such option"),
        (("sandbox", "--instances", "a"), "--instances 'a' is no whole number"),
        (("sandbox", "--instances", "3:3"), "is an empty range"),
        (("sandbox", "--by", "task"), "--by: unknown 'task'"),
        (("sandbox", "--operator", "away"), "--operator: unknown 'away'"),
        (("sandbox", "--contract", "x"), "--contract: unknown 'x'"),
        (("sandbox", "--baseline", "guard"), "--baseline is an option of"),
        (("late-tail", "--faults", "ok"), "--faults is an option of `evaluate sandbox`"),
    ],
)
def test_mistakes_cost_one_line(capsys, args, message):
    assert main(["evaluate", *args]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err.lower() or message in captured.err
    assert captured.err.count("\n") == 1
