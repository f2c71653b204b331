"""Rows of a summary against the episodes they summarise."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.runner import evaluate
from evaluation.summary import summarise
from exactlyonce_env.errors import UserError
from exactlyonce_env.presets import load_plan
from exactlyonce_env.records import MEASURES


@pytest.fixture(scope="module")
def found():
    return evaluate(
        load_plan("late-fixed"), ["wait:60", "wait:120", "blind-retry", "clairvoyant"], worlds=3000
    )


def test_every_measure_is_a_mean_with_an_interval(found):
    rows = {row["policy"]: row for row in summarise(found)}
    for spec, row in rows.items():
        columns = found.episodes[spec]
        for name in (*MEASURES, "reward"):
            assert row[name] == pytest.approx(columns[name].astype(float).mean()), name
            low, high = row["ci"][name]
            assert low <= row[name] <= high, name
        assert row["duplicate_rate"] == (columns["duplicates"] > 0).mean()
        assert row["false_retry_permission_rate"] == (columns["false_retry_permissions"] > 0).mean()
        assert row["regret"] == pytest.approx((found.best_rewards - columns["reward"]).mean())
    assert rows["clairvoyant"]["regret"] == 0.0
    assert rows["clairvoyant"]["privileged"]
    assert not rows["wait:60"]["privileged"]


def test_known_answers_of_the_fixed_delay(found):
    """Every late write lands at 90 s: waiting 60 s duplicates all of them, waiting 120 s none."""
    worlds = found.plan.worlds(0, range(3000))
    late = worlds["fates"]["mode"][:, 0] == 3
    rows = {row["policy"]: row for row in summarise(found)}
    assert rows["wait:60"]["duplicate_rate"] == late.mean()
    assert rows["wait:120"]["duplicate_rate"] == 0.0
    assert rows["wait:120"]["exactly_once"] == 1.0


def test_paired_comparison(found):
    rows = {row["policy"]: row for row in summarise(found, baseline="wait:120")}
    assert "versus" not in rows["wait:120"]
    versus = rows["wait:60"]["versus"]
    worse = int((found.episodes["wait:60"]["duplicates"] > 0).sum())
    assert versus["mcnemar"]["only_baseline"] == worse
    assert versus["mcnemar"]["only_policy"] == 0
    assert versus["mcnemar"]["p"] == pytest.approx(2.0 * 0.5**worse)
    assert versus["exactly_once"] == pytest.approx(-worse / 3000)
    difference = found.episodes["wait:60"]["reward"] - found.episodes["wait:120"]["reward"]
    assert versus["reward"] == pytest.approx(np.mean(difference))


def test_unknown_baseline(found):
    with pytest.raises(UserError, match="guard"):
        summarise(found, baseline="guard")
