"""`exactlyonce presets`, `worlds` and `replay` as a user and a program meet them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from exactlyonce_env.cli.world import MAX_WORLDS, parse_ids
from exactlyonce_env.errors import UserError
from exactlyonce_env.presets import PRESET_NAMES, load_plan
from exactlyonce_env.records import MEASURES
from exactlyonce_env.registration import ENV_IDS
from exactlyonce_env.vocabulary import TERM_NAMES

Run = Callable[..., Any]
LAW = "lomax:c=0.8,scale=120"


@pytest.fixture
def as_json(printed: Run) -> Run:
    """What a command prints with ``--json -``, and nothing beside it."""
    return lambda *args: json.loads(printed(*args, "--json", "-"))


# --- presets --------------------------------------------------------------------------------------


def test_presets_lists_them_all(printed: Run, as_json: Run) -> None:
    rows = as_json("presets")
    assert [row["name"] for row in rows] == list(PRESET_NAMES)
    assert sorted(env_id for row in rows for env_id in row["env_ids"]) == sorted(ENV_IDS)
    assert all(row["description"] for row in rows)
    assert [row["name"] for row in rows if row["needs_delays"]] == ["empirical"]
    assert {row["name"]: row["start"] for row in rows}["native"] == "send"
    table = printed("presets")
    assert all(name in table for name in (*PRESET_NAMES, *ENV_IDS))


@pytest.mark.parametrize("name", [name for name in PRESET_NAMES if name != "empirical"])
def test_a_printed_preset_is_accepted_back(
    name: str, printed: Run, as_json: Run, tmp_path: Path
) -> None:
    file = tmp_path / "mine.json"
    printed("presets", name, "--json", str(file))
    again, original = load_plan(name, config=file), load_plan(name)
    assert again.contexts.tobytes() == original.contexts.tobytes()
    assert again.table.tobytes() == original.table.tobytes()
    assert as_json("presets", name, "--config", str(file)) == json.loads(file.read_text())


def test_the_yaml_that_people_see_is_accepted_back(printed: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    text = printed("presets", "late-tail")
    file.write_text(text, encoding="utf-8")
    assert load_plan("late-tail", config=file).preset == load_plan("late-tail").preset
    assert yaml.safe_load(text)["contract"]["client_timeout_s"] == 30.0


def test_presets_shows_what_overrides_make_of_it(as_json: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[costs]\nduplicate = 2.5\n", encoding="utf-8")
    fields = as_json("presets", "late-tail", "--config", str(file), "--delays", "expon:scale=70")
    assert fields["costs"]["duplicate"] == 2.5
    assert fields["faults"]["late_tail"]["family"] == "expon"


def test_empirical_is_printed_without_delays_and_waits_for_them(
    printed: Run, as_json: Run, refusal: Run, tmp_path: Path
) -> None:
    file = tmp_path / "mine.json"
    printed("presets", "empirical", "--json", str(file))
    fields = json.loads(file.read_text())
    assert "late_tail" not in fields["faults"]
    assert fields["contract"]["readback"] == "strong"
    assert as_json("presets", "empirical", "--config", str(file)) == fields
    assert "needs delays" in refusal("worlds", "empirical", "--config", str(file))
    rows = as_json("worlds", "empirical", "--config", str(file), "--delays", LAW)
    assert rows == as_json("worlds", "empirical", "--delays", LAW)


def test_presets_refuses_what_it_cannot_mean(refusal: Run) -> None:
    line = refusal("presets", "late-tial")
    assert "did you mean late-tail?" in line
    assert all(name in line for name in PRESET_NAMES)
    assert "name it" in refusal("presets", "--delays", LAW)


# --- worlds ---------------------------------------------------------------------------------------


def test_worlds_is_a_bare_list_of_worlds(as_json: Run) -> None:
    rows = as_json("worlds", "native", "--seed", "3", "--ids", "0:100")
    assert [row["id"] for row in rows] == list(range(100))
    for row in rows:
        assert {"id", "contract", "costs", "attempts", "operator_answers"} <= set(row)
        assert len(row["attempts"]) == row["contract"]["max_attempts"]
        for attempt in row["attempts"]:
            assert set(attempt) == {"mode", "commit_delay_s", "copy_delay_s", "items", "queued"}
            assert (attempt["commit_delay_s"] is None) == (attempt["items"] == 0)
    assert {row["start"] for row in rows} == {"send"}
    assert len({row["context"] for row in rows}) > 5


def test_worlds_come_in_the_order_asked_for(as_json: Run) -> None:
    rows = as_json("worlds", "late-tail", "--ids", "7,3,5")
    assert [row["id"] for row in rows] == [7, 3, 5]
    assert rows == [as_json("worlds", "late-tail", "--ids", str(k))[0] for k in (7, 3, 5)]


def test_the_same_seed_gives_the_same_worlds_and_another_one_others(as_json: Run) -> None:
    first = as_json("worlds", "late-tail", "--seed", "1", "--ids", "0:20")
    assert first == as_json("worlds", "late-tail", "--seed", "1", "--ids", "0:20")
    other = as_json("worlds", "late-tail", "--seed", "2", "--ids", "0:20")
    assert [row["attempts"] for row in first] != [row["attempts"] for row in other]


def test_the_table_of_worlds(printed: Run) -> None:
    table = printed("worlds", "late-fixed", "--ids", "0:30")
    assert "late-fixed: 30 drawn worlds, seed 0 (privileged)" in table
    assert "timeout_late after 90 s" in table
    assert "5 x ok" in table
    long = printed("worlds", "late-fixed", "--ids", "0:500")
    assert "the first 200 of 500" in long


def test_the_table_tells_what_is_special_about_a_contract(printed: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "contract: {readback: eventual, lag_s: 7, lag_documented: false, accepts_key: true, "
        "n_items: 3, in_flight_bound_s: 100, operator_answer_rate: 0}\n"
        "faults: {original: {partial_batch: 1, redelivery: 1, timeout_late: 1}}\n",
        encoding="utf-8",
    )
    told = printed("worlds", "late-fixed", "--ids", "0:40", "--config", str(file))
    table = " ".join(told.split())
    for phrase in ("lag 7 s", "(undocumented)", "takes keys", "3 items", "silent operator", "of 3"):
        assert phrase in table
    assert "redelivery, copy" in table


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("0:3", [0, 1, 2]),
        ("7,3,5", [7, 3, 5]),
        ("4", [4]),
        ("0:2,9", [0, 1, 9]),
        (" 1 , 2 ", [1, 2]),
    ],
)
def test_ids_are_ranges_and_lists(text: str, ids: list[int]) -> None:
    assert parse_ids(text) == ids


@pytest.mark.parametrize(
    "text", ["", "a", "3:1", "3:3", "-1", "1:", ":4", "1:2:3", "1.5", "1,,2", "²"]
)
def test_other_ids_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="0:100 or 7,3,5"):
        parse_ids(text)


def test_too_many_worlds_are_refused_before_any_is_drawn(refusal: Run) -> None:
    assert f"more than {MAX_WORLDS:,}" in refusal("worlds", "late-tail", "--ids", "0:10000000000")
    assert "world id must lie in" in refusal("worlds", "late-tail", "--ids", str(2**63))
    assert "seed must lie in" in refusal("worlds", "late-tail", "--seed", "-1")


# --- replay ---------------------------------------------------------------------------------------


def test_replay_follows_the_command_contract(as_json: Run) -> None:
    told = as_json(
        "replay",
        "native",
        "--seed",
        "0",
        "--world",
        "4",
        "--actions",
        "retry,read,wait:60,retry,keyed_retry,escalate,finish",
    )
    first, *rest = told["steps"]
    assert first["action"] is None
    assert [step["action"] for step in rest] == [
        "retry",
        "read",
        "wait:60",
        "retry",
        "keyed_retry",
        "escalate",
        "finish",
    ]
    for step in rest:
        assert set(step["view"]) == {"text", "fields"}
        assert set(step["reward_terms"]) == set(TERM_NAMES)
        assert step["view"]["fields"]["clock_s"] == step["clock_s"]
    assert [step["permitted"] for step in rest] == [None, None, None, False, None, None, None]
    assert all({"time_s", "attempt", "item"} <= set(entry) for entry in told["ledger"])
    assert list(told["outcome"]) == list(MEASURES)
    total = sum(sum(step["reward_terms"].values()) for step in told["steps"])
    assert told["reward"] == pytest.approx(total, abs=1e-12)


def test_a_world_is_replayed_as_it_was_drawn(as_json: Run) -> None:
    (world,) = as_json("worlds", "late-tail", "--seed", "9", "--ids", "12")
    told = as_json("replay", "late-tail", "--seed", "9", "--world", "12", "--actions", "finish")
    delay_s = world["attempts"][0]["commit_delay_s"]
    assert [entry["time_s"] for entry in told["ledger"]] == ([] if delay_s is None else [delay_s])


def test_replay_without_actions_shows_the_first_view(as_json: Run) -> None:
    told = as_json("replay", "late-tail", "--world", "0")
    assert len(told["steps"]) == 1
    assert (told["ended"], told["reward"]) == (False, 0.0)


def test_the_tables_of_a_replay(printed: Run) -> None:
    text = printed("replay", "late-fixed", "--world", "4", "--actions", "read,retry,finish")
    assert "late-fixed: seed 0, world 4" in text
    assert "not permitted" in text
    assert "what really happened (privileged)" in text
    assert "false_retry_permissions" in text
    stopped = printed("replay", "late-fixed", "--world", "4", "--actions", "read")
    assert "should the client walk away now" in stopped
    assert "(no further action)" in stopped


def find(as_json: Run, preset: str, mode: str, *options: str) -> str:
    """A world whose original meets the mode."""
    rows = as_json("worlds", preset, "--ids", "0:200", *options)
    return str(next(row["id"] for row in rows if row["attempts"][0]["mode"] == mode))


def lines(text: str) -> list[str]:
    return [" ".join(line.replace("│", " ").split()) for line in text.splitlines()]


def test_the_timeline_shows_what_comes_after_the_end(as_json: Run, printed: Run) -> None:
    world = find(as_json, "late-fixed", "timeout_late")
    text = lines(printed("replay", "late-fixed", "--world", world, "--actions", "retry,finish"))
    text = text[text.index("Timeline") :]
    order = [
        text.index(line)
        for line in (
            "0 s sends attempt 0",
            "30 s attempt 0: timeout",
            "30 s sends attempt 1",
            "31 s attempt 1 takes effect",
            "31 s attempt 1: success",
            "31 s claims completion",
            "90 s attempt 0 takes effect again",
        )
    ]
    assert order == sorted(order)


def test_the_timeline_tells_how_a_key_works(as_json: Run, printed: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "contract: {accepts_key: true, original_key: sent, operator_answer_rate: 0, max_steps: 3}\n"
        "faults: {queued_share: 0}\n",
        encoding="utf-8",
    )
    options = ("--config", str(file))
    world = find(as_json, "late-fixed", "timeout_late", *options)
    actions = "keyed_retry,escalate,read"
    told = printed("replay", "late-fixed", "--world", world, "--actions", actions, *options)
    text = lines(told)
    assert "30 s sends attempt 1 (pinned key)" in text
    assert "0 s attempt 0 (timeout_late) stays in transit" in text
    assert "90 s attempt 0 finds its key in use: no new effect" in text
    assert "931 s operator: no answer" in text
    assert "932 s the budget of calls is used up" in text


def test_the_timeline_of_an_acknowledgement_that_claims(as_json: Run, printed: Run) -> None:
    text = printed("replay", "first-decision", "--world", "0", "--actions", "retry")
    assert "the acknowledgement claims completion" in text


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--world", "0", "--actions", "jump"], ["unknown action 'jump'", "wait:SECONDS"]),
        (["--world", "0", "--actions", "wait:soon"], ["'wait:soon'", "604800"]),
        (["--world", "0", "--actions", "finish,read"], ["action 2 (read)", "after the end"]),
        (["--world", "-2"], ["world id must lie in 0.."]),
        (["--world", "x"], ["--world"]),
        ([], ["--world"]),
        (["--world", "0", "--delays", "nonsense"], ["nonsense"]),
        (["--world", "0", "--config", "gone.yaml"], ["gone.yaml", "does not exist"]),
    ],
)
def test_replay_refuses_bad_input_in_one_line(
    refusal: Run, arguments: list[str], parts: list[str]
) -> None:
    line = refusal("replay", "late-tail", *arguments)
    assert all(part in line for part in parts)


def test_a_refused_command_leaves_no_file(refusal: Run, tmp_path: Path) -> None:
    target = tmp_path / "told.json"
    refusal(
        "replay", "late-tail", "--world", "0", "--actions", "finish,read", "--json", str(target)
    )
    refusal("worlds", "late-tail", "--ids", "5:1", "--json", str(target))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["presets", "worlds", "replay"])
def test_help_tells_what_is_privileged(command: str, printed: Run) -> None:
    text = printed(command, "--help")
    assert "--config" in text
    assert "--delays" in text
    assert ("rivileged" in text) == (command != "presets")


def test_the_installed_command_says_the_same(run_cli: Run) -> None:
    done = run_cli("worlds", "late-fixed", "--ids", "0:2", "--json", "-")
    assert (done.returncode, done.stderr) == (0, "")
    assert [row["id"] for row in json.loads(done.stdout)] == [0, 1]
    refused = run_cli("replay", "late-fixed", "--world", "0", "--actions", "finish,finish")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert len(refused.stderr.splitlines()) == 1
