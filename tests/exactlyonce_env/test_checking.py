"""The public contract test: it passes sound presets and catches what is broken."""

from __future__ import annotations

import doctest
import itertools
import re
import shlex
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from exactlyonce_env import checking, kernel, permission
from exactlyonce_env.checking import CheckSummary, PresetCheckError, check_preset
from exactlyonce_env.cli import main
from exactlyonce_env.errors import UserError
from exactlyonce_env.presets import PRESET_NAMES
from exactlyonce_env.view import View

LAW = "lomax:c=0.8,scale=120"


@pytest.mark.parametrize("name", PRESET_NAMES)
def test_every_shipped_preset_holds(name: str) -> None:
    delays = LAW if name == "empirical" else None
    found = check_preset(name, delays=delays, worlds=32)
    assert (found.preset, found.worlds) == (name, 32)
    assert found.steps >= 32
    assert 0 <= found.permitted <= found.reissues
    assert found.histories > 0


def test_worlds_with_one_history_are_compared() -> None:
    assert check_preset("late-tail", worlds=32).shared > 10


@pytest.mark.parametrize(
    "preset",
    [
        {
            "contract": {
                "readback": "authoritative",
                "accepts_key": True,
                "original_key": "sent",
                "key_retention_s": 50.0,
                "in_flight_same_key": in_flight,
                "n_items": 3,
                "operator_answer_rate": 0.5,
                "operator_sees_in_flight": True,
            },
            "faults": {"retry_fault_rate": 0.7, "copy_delay_s": 30.0},
        }
        for in_flight in ("coalesce", "conflict")
    ],
)
def test_a_preset_of_ones_own_is_checked(preset: dict[str, Any]) -> None:
    assert check_preset(preset, worlds=48, seed=5).preset == "custom"


def test_the_check_is_reproducible() -> None:
    assert check_preset("native", worlds=16, seed=2) == check_preset("native", worlds=16, seed=2)
    assert isinstance(check_preset("native", worlds=16), CheckSummary)


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(UserError, match="worlds must be an integer >= 1"):
        check_preset("late-tail", worlds=0)
    with pytest.raises(UserError, match="max_actions must be"):
        check_preset("late-tail", max_actions=-1)
    with pytest.raises(UserError, match="unknown preset"):
        check_preset("late-tial")


# --- a policy under test --------------------------------------------------------------------------


def test_a_policy_sees_views_and_nothing_else() -> None:
    seen = []

    def policy(view: View) -> str:
        seen.append(view)
        return "read" if view.last_report is None else "finish"

    found = check_preset("late-tail", policy=policy, worlds=16)
    assert all(type(view) is View for view in seen)
    assert found.steps == len(seen) == 32


def test_a_policy_that_answers_nonsense_is_caught() -> None:
    with pytest.raises(PresetCheckError, match="the policy answered 'shrug'"):
        check_preset("late-tail", policy=lambda view: "shrug", worlds=2)


def test_a_policy_that_knows_more_than_its_view_is_caught() -> None:
    turns = itertools.count()
    with pytest.raises(PresetCheckError, match="answered one view with 'read' and with 'wait:60'"):
        check_preset(
            "late-tail", policy=lambda view: "wait:60" if next(turns) else "read", worlds=4
        )


# --- broken worlds are caught ---------------------------------------------------------------------


def replays(error: pytest.ExceptionInfo[PresetCheckError]) -> list[list[str]]:
    """The commands in the message, as the shell would split them."""
    found = re.findall(r"^replay with: exactlyonce (.*)$", str(error.value), flags=re.MULTILINE)
    return [shlex.split(command) for command in found]


def test_a_leak_is_caught_with_the_two_worlds_that_show_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def leaky(seen: Any, contexts: Any, static: Any, out: np.ndarray) -> None:
        out[0] = next(calls) / 1e6

    calls = itertools.count()
    monkeypatch.setattr(checking, "write_observation", leaky)
    with pytest.raises(PresetCheckError, match="share a visible history") as error:
        check_preset("late-tail", worlds=8)
    commands = replays(error)
    assert len(commands) == 2
    for command in commands:
        assert main(command) == 0
    assert "Outcome" in capsys.readouterr().out


def test_terms_that_do_not_sum_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = SimpleNamespace(begin=kernel.begin, act=lambda *given: kernel.act(*given) + 1e-9)
    monkeypatch.setattr(checking, "kernel", wrong)
    with pytest.raises(PresetCheckError, match="the terms do not sum to the reward"):
        check_preset("late-tail", worlds=2)


def test_a_false_permission_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    generous = SimpleNamespace(
        NO_KEY=permission.NO_KEY,
        candidate_key=permission.candidate_key,
        next_payload=permission.next_payload,
        protected=permission.protected,
        permitted=lambda *given: True,
    )
    monkeypatch.setattr(checking, "permission", generous)
    with pytest.raises(PresetCheckError, match="a re-issue is permitted, but attempt 0 has"):
        check_preset("late-tail", worlds=8)


def test_measures_that_do_not_count_the_ledger_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = checking.measures
    monkeypatch.setattr(checking, "measures", lambda *given: {**honest(*given), "duplicates": 17})
    with pytest.raises(PresetCheckError, match="do not count the effects of the ledger"):
        check_preset("late-tail", worlds=2)


def test_a_replay_that_differs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = checking.replay
    monkeypatch.setattr(
        checking, "replay", lambda plan, seed, world, taken: honest(plan, seed, world + 1, taken)
    )
    with pytest.raises(PresetCheckError, match="a replay of the same actions ends otherwise"):
        check_preset("late-tail", worlds=8)


def test_a_contradictory_view_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def late_answer(*given: Any) -> None:
        kernel.begin(*given)
        given[5].attempts[0].answered_s = 12.0

    monkeypatch.setattr(checking, "kernel", SimpleNamespace(begin=late_answer, act=kernel.act))
    with pytest.raises(PresetCheckError, match=r"contradictory view: .* 12 s"):
        check_preset("late-tail", worlds=2)


def test_the_command_names_the_files_that_were_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("costs: {duplicate: 3}\n", encoding="utf-8")
    wrong = SimpleNamespace(begin=kernel.begin, act=lambda *given: kernel.act(*given) + 1e-9)
    monkeypatch.setattr(checking, "kernel", wrong)
    with pytest.raises(PresetCheckError) as error:
        check_preset("late-tail", config=config, delays=LAW, worlds=2)
    assert f"late-tail --config {config} --delays {LAW} --seed 0" in str(error.value)
    with pytest.raises(PresetCheckError, match="late-tail --config FILE --seed 0"):
        check_preset({"costs": {"duplicate": 3}}, worlds=2)


def test_the_examples_in_the_docstrings() -> None:
    found = doctest.testmod(checking)
    assert found.attempted > 0
    assert found.failed == 0
