"""The sweep: known answers, measured delays, and what lies beyond them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evaluation.sweep import default_deltas_s, sweep
from exactlyonce_env.errors import UserError
from exactlyonce_env.presets import load_plan

MEASURED = {
    "family": "empirical",
    "times_s": [40.0, 100.0, 500.0],
    "cdf": [0.25, 0.5, 0.75],
    "cdf_low": [0.1, 0.3, 0.5],
    "cdf_high": [0.4, 0.7, 0.9],
    "n": 40,
    "censored": 10,
    "last_observed_s": 600.0,
}


def test_success_is_the_law_of_the_delay():
    """exactly_once = 1 - late share * S(delta), within 4 standard errors."""
    plan = load_plan("late-tail")
    found = sweep(plan, [60, 300, 900, 3600, 7200], worlds=20000, seed=4)
    expected = {60: 0.0781, 300: 0.3880, 900: 0.5996, 3600: 0.8665, 7200: 1.0}
    for row in found.rows:
        share = expected[row["delta_s"]]
        assert row["landed"]["value"] == pytest.approx(share, abs=5e-5)
        success = 1.0 - (1.0 - share) / 3.0
        error = math.sqrt(success * (1.0 - success) / 20000)
        assert abs(row["exactly_once"] - success) <= 4.0 * error + 1e-12
        assert row["duplicate_rate"] == pytest.approx(1.0 - row["exactly_once"])
    assert found.best["wait"].delta_s == 3600
    assert found.best["poll"].delta_s == 7200


def test_the_fixed_delay_has_its_best_bound_at_the_delay():
    found = sweep(load_plan("late-fixed"), [30, 60, 89, 90, 91, 300], worlds=4000)
    best = found.best["wait"]
    assert (best.delta_s, best.low_s, best.high_s) == (90, 90, 90)
    assert found.with_key["exactly_once"] == 1.0


def test_poll_and_wait_agree_on_success_and_poll_is_faster():
    found = sweep(load_plan("late-tail"), [300, 900], worlds=3000)
    rows = {row["policy"]: row for row in found.rows}
    for delta in (300, 900):
        wait, poll = rows[f"wait:{delta}"], rows[f"poll:{delta}"]
        assert wait["exactly_once"] == poll["exactly_once"]
        assert poll["elapsed_s"] < wait["elapsed_s"]


def test_beyond_the_data_is_null_inside_a_grid_and_refused_alone():
    plan = load_plan("empirical", delays=MEASURED)
    found = sweep(plan, [40, 600, 601], worlds=2000)
    rows = {row["policy"]: row for row in found.rows}
    assert rows["wait:40"]["landed"] == {"value": 0.25, "low": 0.1, "high": 0.4}
    assert rows["wait:600"]["landed"]["value"] == 0.75
    for policy in ("wait:601", "poll:601"):
        assert rows[policy]["exactly_once"] is None
        assert rows[policy]["landed"] is None
        assert "600" in rows[policy]["note"]
    assert any("600" in note for note in found.notes)
    assert found.best["wait"].delta_s <= 600
    # a quarter of the late writes never lands within any wait
    assert rows["wait:600"]["exactly_once"] == pytest.approx(1 - 0.25 / 3, abs=0.025)
    with pytest.raises(UserError, match="600"):
        sweep(plan, [601], worlds=10)


def test_below_delayed_entry_nothing_is_said_of_what_has_landed(capsys):
    from exactlyonce_env.cli import main

    law = {**MEASURED, "observed_from_s": 30.0}
    found = sweep(load_plan("empirical", delays=law), [20, 100], worlds=100)
    landed = {row["policy"]: row["landed"]["value"] for row in found.rows}
    assert landed["wait:20"] is None
    assert landed["wait:100"] == 0.5
    sample = "tests/data/delays/event_log.csv"
    columns = ["--column", "seen_s", "--event-column", "completed", "--entry-column", "entry_s"]
    assert main(["fit", sample, *columns, "--json", "-"]) == 0
    assert "delayed entry" in capsys.readouterr().out


def test_the_default_grid_of_measured_delays_ends_where_they_end():
    grid = default_deltas_s(load_plan("empirical", delays=MEASURED))
    assert grid == [0.0, 100.0, 500.0]
    assert default_deltas_s(load_plan("late-tail"))[-1] == 7200.0


def test_short_delays_are_pointed_out():
    found = sweep(load_plan("empirical", delays="expon:scale=1"), [1], worlds=50)
    assert any("client time-out" in note for note in found.notes)
    assert not sweep(load_plan("late-tail"), [60], worlds=50).notes


def test_points_for_the_plot():
    found = sweep(load_plan("late-fixed"), [60, 120], worlds=300)
    kinds = {point.name: point.kind for point in found.points}
    assert kinds["wait:60"] == "wait"
    assert kinds["poll:120"] == "poll"
    assert kinds["outcome-oracle"] == "oracle"
    assert "keyed" in kinds.values()
    assert [bound.name for bound in found.bounds] == ["clairvoyant"]


@pytest.mark.parametrize("grid", [[], [-1.0], [math.nan], [60, 60], [1e9]])
def test_bad_grids(grid):
    with pytest.raises(UserError, match="delta"):
        sweep(load_plan("late-fixed"), grid, worlds=10)


def test_two_runs_are_equal(tmp_path):
    plan = load_plan("late-fixed")
    one = sweep(plan, [60, 120], worlds=500, out=tmp_path / "run")
    other = sweep(plan, [60, 120], worlds=500)
    assert one.rows == other.rows
    assert np.isfinite(one.best["wait"].reward)
