"""The runner: same worlds for all, the same bytes whether stored, split, resumed or not."""

from __future__ import annotations

import json

import numpy as np
import pytest

from evaluation import runner
from evaluation.runner import evaluate
from evaluation.store import open_run
from exactlyonce_env.errors import UserError
from exactlyonce_env.presets import load_plan
from policies.rollout import run_policy
from policies.spec import LINEUP, parse_policy


@pytest.fixture(scope="module")
def plan():
    return load_plan("late-tail")


def test_rows_are_those_of_the_rollout(plan):
    found = evaluate(plan, ["wait:300", "guard"], worlds=(5, 405), seed=3)
    direct = run_policy(plan, parse_policy("guard"), 3, np.arange(5, 405))
    columns = found.episodes["guard"]
    np.testing.assert_array_equal(columns["world"], np.arange(5, 405))
    np.testing.assert_array_equal(columns["reward"], direct.rewards)
    for name in ("duplicates", "elapsed_s", "steps", "reads"):
        np.testing.assert_array_equal(columns[name], direct.outcomes[name])


def test_parts_do_not_change_the_result(plan, monkeypatch):
    whole = evaluate(plan, ["wait:300"], worlds=1000)
    monkeypatch.setattr(runner, "PART_SIZE", 97)
    split = evaluate(plan, ["wait:300"], worlds=1000)
    for name, values in whole.episodes["wait:300"].items():
        np.testing.assert_array_equal(values, split.episodes["wait:300"][name])


def test_stored_equals_in_memory_and_an_interrupted_run_resumes(plan, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "PART_SIZE", 100)
    specs = ["guard", "clairvoyant", "wait:60"]
    memory = evaluate(plan, specs, worlds=450, seed=1)
    done = []

    def interrupt(policy, worlds):
        done.append((policy, worlds))
        if len(done) == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(plan, specs, worlds=450, seed=1, out=tmp_path / "run", progress=interrupt)
    assert open_run(tmp_path / "run").manifest.status == "interrupted"
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*.parquet")}
    assert len(before) == 7
    stored = evaluate(plan, specs, worlds=450, seed=1, out=tmp_path / "run")
    assert open_run(tmp_path / "run").manifest.status == "complete"
    for path, written in before.items():
        assert path.stat().st_mtime_ns == written, "finished work was done again"
    for spec in specs:
        for name, values in memory.episodes[spec].items():
            np.testing.assert_array_equal(values, stored.episodes[spec][name], err_msg=name)
    np.testing.assert_array_equal(memory.best_rewards, stored.best_rewards)


def test_a_run_of_other_worlds_is_refused(plan, tmp_path):
    evaluate(plan, ["guard"], worlds=50, out=tmp_path / "run")
    with pytest.raises(UserError, match="seed"):
        evaluate(plan, ["guard"], worlds=50, seed=1, out=tmp_path / "run")
    with pytest.raises(UserError, match="configuration"):
        evaluate(load_plan("late-fixed"), ["guard"], worlds=50, out=tmp_path / "run")


def test_the_manifest_replays_the_worlds(plan, tmp_path):
    evaluate(plan, ["guard"], worlds=50, seed=9, out=tmp_path / "run", command=["exactlyonce", "x"])
    text = (tmp_path / "run" / "manifest.json").read_text()
    manifest = json.loads(text)
    assert manifest["seed"] == 9
    assert manifest["command"] == ["exactlyonce", "x"]
    again = load_plan(manifest["config"])
    np.testing.assert_array_equal(again.contexts, plan.contexts)
    assert str(tmp_path) not in text


@pytest.mark.parametrize(
    ("policies", "worlds", "match"),
    [
        (["wait:300", "wait:300.0"], 5, "twice"),
        ([], 5, "at least one"),
        (["wait"], 5, "wait"),
        (["gard"], 5, "guard"),
        (["guard"], 0, "at least one world"),
        (["guard"], (5, 5), "5:5"),
        (["guard"], (-1, 5), "-1"),
    ],
)
def test_bad_input_is_named(plan, policies, worlds, match):
    with pytest.raises(UserError, match=match):
        evaluate(plan, policies, worlds=worlds)


def test_a_bad_seed_is_named(plan):
    with pytest.raises(UserError, match="seed"):
        evaluate(plan, ["guard"], worlds=5, seed=-1)


def test_no_policy_beats_clairvoyant_in_any_world():
    for name in ("late-tail", "native", "contextual"):
        found = evaluate(load_plan(name), LINEUP, worlds=400, seed=2)
        for spec, columns in found.episodes.items():
            excess = columns["reward"] - found.best_rewards
            assert excess.max() <= 1e-9, (name, spec, int(excess.argmax()))
