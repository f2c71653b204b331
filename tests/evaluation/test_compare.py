"""Two runs of the same worlds, paired; anything else is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from evaluation.analyses import STAGES
from evaluation.compare import compare_runs
from evaluation.runner import evaluate
from evaluation.statistics.exact_tests import Stratum, stratified_exact
from exactlyonce_env.errors import UserError
from exactlyonce_env.presets import load_plan

WORLDS = 600
NATIVE = 250


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    plan = load_plan("late-tail")
    evaluate(plan, ["wait:300"], worlds=WORLDS, out=folder / "a")
    evaluate(plan, ["wait:900"], worlds=WORLDS, out=folder / "b")
    evaluate(plan, ["wait:900", "wait:300"], worlds=(100, 300), out=folder / "part")
    evaluate(plan, ["wait:300"], worlds=50, seed=1, out=folder / "seed")
    evaluate(load_plan("native"), ["guard"], worlds=NATIVE, out=folder / "native")
    evaluate(load_plan("native"), ["verify-retry"], worlds=NATIVE, out=folder / "native2")
    return folder


def test_one_policy_each_is_compared_world_by_world(runs: Path) -> None:
    found = compare_runs(runs / "a", runs / "b")
    (row,) = found["rows"]
    plan = load_plan("late-tail")
    columns = evaluate(plan, ["wait:300", "wait:900"], worlds=WORLDS).episodes
    left, right = columns["wait:300"], columns["wait:900"]
    only_a = int(np.sum(left["exactly_once"] & ~right["exactly_once"]))
    only_b = int(np.sum(right["exactly_once"] & ~left["exactly_once"]))
    assert (row["a"], row["b"], row["n"]) == ("wait:300", "wait:900", WORLDS)
    assert (row["mcnemar"]["only_a"], row["mcnemar"]["only_b"]) == (only_a, only_b)
    assert only_a == 0 < only_b
    assert row["difference"]["exactly_once"]["value"] == pytest.approx(only_b / WORLDS)
    reward = float(np.mean(right["reward"] - left["reward"]))
    assert row["difference"]["reward"]["value"] == pytest.approx(reward)
    assert row["mcnemar"]["p"] == row["mcnemar"]["p_holm"] == pytest.approx(2 * 0.5**only_b)
    assert row["equivalence"]["p"] > 0.5
    assert row["planned"] == WORLDS
    assert row["incomplete"] == 0
    # Without a context to resample, worlds are, and faults are the strata.
    assert (row["bootstrap"]["by"], row["bootstrap"]["clusters"]) == ("world", WORLDS)
    assert row["bootstrap"]["caveat"] == ""
    strata = []
    stages = np.array([STAGES[mode] for mode in left["mode"]])
    for stage in np.unique(stages):
        own = stages == stage
        successes = (int(side["exactly_once"][own].sum()) for side in (right, left))
        b, a = successes
        strata.append(Stratum(b, int(own.sum()), a, int(own.sum())))
    assert (row["stratified"]["by"], row["stratified"]["strata"]) == ("fault stage", 3)
    assert row["stratified"]["p"] == pytest.approx(stratified_exact(strata))
    # Every world a cluster of two: the difference of logits, and t on worlds - 1.
    effect = row["gee"]["effects"][-1]
    a, b = (float(side["exactly_once"].mean()) for side in (left, right))
    assert effect["value"] == pytest.approx(np.log(b / (1 - b)) - np.log(a / (1 - a)), abs=1e-6)
    assert "intercepts of contexts" in row["mixed"]["why"]
    assert "two clusters" in row["exactly_once_a"]["clustered"]["why"]
    # Both succeed always where the fate can be read at once.
    assert "never varies" in row["shapley"]["resolved"]["why"]
    share = row["shapley"]["unresolved"]
    assert share["pseudo_r2"] == pytest.approx(share["shares"]["model"])
    assert share["left_out"]["contract"] == "one level only"
    for side in "ab":
        found = row["first_actions"][side]
        assert list(found["agreement"]) == ["same view"]
        # All worlds look alike at the timeout: the k-th of each of three faults are matched.
        agreed, places = (
            found["agreement"]["same view"],
            sorted(np.unique(stages, return_counts=True)[1]),
        )
        assert agreed["pairs_across"] == 2 * places[0] + places[1]
        assert agreed["across"] == 1.0
        assert agreed["within"] is None
        assert [test["p"] for test in found["tests"]] == [1.0] * 3


def test_names_in_common_are_paired_on_the_worlds_in_common(runs: Path) -> None:
    found = compare_runs(runs / "a", runs / "part")
    (row,) = found["rows"]
    assert (row["a"], row["b"], row["n"]) == ("wait:300", "wait:300", 200)
    assert row["difference"]["exactly_once"]["value"] == 0.0
    assert row["mcnemar"]["p"] == 1.0
    assert row["equivalence"]["p"] == 0.0
    named = compare_runs(runs / "a", runs / "part", pairs=[("wait:300", "wait:900")])
    assert named["rows"][0]["difference"]["exactly_once"]["value"] > 0.0


def test_contexts_are_resampled_whole(runs: Path) -> None:
    (row,) = compare_runs(runs / "native2", runs / "native")["rows"]
    found = row["bootstrap"]
    assert found["by"] == row["stratified"]["by"] == row["gee"]["by"] == "context"
    assert found["value"] == pytest.approx(row["difference"]["exactly_once"]["value"])
    assert found["low"] <= found["value"] <= found["high"]
    assert "too narrow" in found["caveat"]
    assert set(row["mixed"]["sd"]) == {"context", "context x world"}
    assert row["mixed"]["effects"][-1]["value"] * found["value"] > 0.0
    clustered = row["exactly_once_a"]["clustered"]
    assert clustered["value"] == row["exactly_once_a"]["value"]
    assert 0.0 <= clustered["icc"] <= 1.0
    assert clustered["effective_n"] <= NATIVE
    assert set(row["shapley"]["pooled"]["shares"]) == {"model", "contract", "fault stage"}


def test_other_worlds_are_refused(runs: Path) -> None:
    for other, words in (("seed", "seeds 0 and 1"), ("native", "configurations")):
        with pytest.raises(UserError, match=words):
            compare_runs(runs / "a", runs / other)
    with pytest.raises(UserError, match="no policy 'guard'"):
        compare_runs(runs / "a", runs / "b", pairs=[("wait:300", "guard")])
    with pytest.raises(UserError, match="margin"):
        compare_runs(runs / "a", runs / "b", margin=0.0)


def test_on_the_command_line(
    runs: Path, printed: Callable[..., str], refusal: Callable[..., str]
) -> None:
    a, b = str(runs / "a"), str(runs / "b")
    told = printed("compare", a, b)
    assert "wait:900 (B) minus wait:300 (A), 600 worlds" in told
    assert "McNemar, exact" in told
    assert "not defined: random" in told
    several = printed("compare", str(runs / "part"), str(runs / "part"))
    assert "B minus A, exactly-once success" in several
    row = json.loads(printed("compare", a, b, "--json", "-"))["rows"][0]
    assert row["n"] == WORLDS
    assert "is not A=B" in refusal("compare", a, b, "--pair", "wait:300")
    assert "no manifest.json" in refusal("compare", a, str(runs))


def test_who_sees_more_tells_worlds_apart(runs: Path, tmp_path: Path) -> None:
    evaluate(load_plan("late-tail"), ["clairvoyant", "state-oracle"], worlds=60, out=tmp_path / "o")
    one = compare_runs(tmp_path / "o", tmp_path / "o", pairs=[("clairvoyant", "state-oracle")])
    told = one["rows"][0]["first_actions"]
    assert all("sees what is hidden" in told[side]["why"] for side in "ab")


def test_first_decisions_of_a_language_model(tmp_path: Path) -> None:
    """A model that knows what it cannot see is found out."""
    from evaluation.first_decisions import decision_equivalence
    from evaluation.llm.store import open_store
    from evaluation.store import open_run

    plan = load_plan("late-tail")
    columns = evaluate(plan, ["guard"], worlds=40, out=tmp_path / "run").episodes["guard"]
    with open_store(tmp_path / "run") as store:
        for world, mode in enumerate(columns["mode"]):
            for repeat in range(2):
                action = "retry" if str(mode) == "timeout_pre" else "read"
                document = {
                    "kind": "policy",
                    "policy": "llm:m",
                    "world": world,
                    "fault": str(mode),
                    "repeat": repeat,
                    "actions": [action, "finish"],
                    "status": "returned",
                }
                store.finish(f"llm:m/{world}/{repeat}", document)
    found = decision_equivalence(open_run(tmp_path / "run"), "llm:m", range(40))
    agreed = found["agreement"]["same view"]
    assert (agreed["within"], agreed["pairs_within"]) == (1.0, 40)
    assert 0.0 < agreed["across"] < 1.0
    distances = {tuple(sorted(test["faults"])): test for test in found["tests"]}
    assert distances["timeout_late_tail", "timeout_post"]["distance"] == 0.0
    apart = distances["timeout_post", "timeout_pre"]
    assert apart["distance"] == 1.0
    assert apart["p_holm"] < 0.01
