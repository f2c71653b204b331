"""Solved contracts on disk: the same values, and no harm from what cannot be read."""

from __future__ import annotations

import numpy as np
import pytest

from exactlyonce_env.presets import load_plan
from policies.bayes import cache, solution
from policies.bayes.solution import EFFORT, Solution


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.ENVIRONMENT_VARIABLE, str(tmp_path))
    return tmp_path / "bayes"


def solved(plan):
    return Solution(plan).contract(0, free=True)


def test_a_second_solution_comes_from_disk(folder, monkeypatch):
    plan = load_plan(
        "late-fixed",
        config={"faults": {"retry": {"timeout_pre": 1}, "retry_fault_rate": 0.1}},
    )
    first = solved(plan)
    assert len(list(folder.glob("*.npz"))) == 1
    monkeypatch.setattr(solution, "solve_contract", None)
    second = solved(plan)
    assert (second.value, second.steps, second.n_reads) == (
        first.value,
        first.steps,
        first.n_reads,
    )
    np.testing.assert_array_equal(second.fresh, first.fresh)
    assert second.children.keys() == first.children.keys()
    for kind, children in first.children.items():
        np.testing.assert_array_equal(second.children[kind].values, children.values)


def test_what_cannot_be_read_is_solved_again(folder):
    plan = load_plan("late-fixed")
    value = solved(plan).value
    (file,) = folder.glob("*.npz")
    file.write_bytes(file.read_bytes()[:100])
    assert solved(plan).value == value


def test_a_place_that_cannot_be_written_does_no_harm(tmp_path, monkeypatch):
    (tmp_path / "bayes").write_text("a file where the folder should be")
    monkeypatch.setenv(cache.ENVIRONMENT_VARIABLE, str(tmp_path))
    assert np.isfinite(solved(load_plan("late-fixed")).value)


def test_the_key_tells_what_matters_and_nothing_else():
    def key(**changes):
        plan = load_plan("late-tail", config=changes)
        return cache.key_of(Solution(plan).games[0], EFFORT, 1, True, False)

    assert key() == key()
    assert key() != key(costs={"duplicate": 2})
    assert key() != key(faults={"late_tail": "loguniform:a=40,b=7100"})
    assert key() != key(contract={"latency_s": 2})
    many = Solution(load_plan("stale-tail"))
    again = Solution(load_plan("stale-tail", config={"lags_s": {"low": 60, "high": 120}}))
    assert cache.key_of(many.games[30], EFFORT, 1, True, False) == cache.key_of(
        again.games[0], EFFORT, 1, True, False
    )
