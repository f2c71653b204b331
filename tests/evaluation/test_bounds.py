"""The bounds of a preset on one set of worlds, and the plots of how long the optimum holds out."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import matplotlib.image
import numpy as np
import pytest

from evaluation.bounds import FEWEST_WORLDS, bounds, deltas_s, standard_errors
from evaluation.manifest import read_manifest
from evaluation.persistence import (
    Persistence,
    choose_context,
    decision_map,
    families,
    late_law,
    persistence,
    with_ratios,
)
from evaluation.persistence_plots import (
    decision_figure,
    persistence_figure,
    plot_decision_map,
    plot_persistence,
)
from exactlyonce_env.delays import Fixed, Mixture
from exactlyonce_env.errors import UserError
from exactlyonce_env.presets import load_plan
from exactlyonce_env.vocabulary import Action

SECOND = 0.12 / 3600.0


# --- bounds ---------------------------------------------------------------------------------------


def test_where_waiting_for_the_delay_is_all_there_is():
    """Late-fixed: wait to 90 s and read; a third then re-issues, which takes a second more."""
    found = bounds(load_plan("late-fixed"), worlds=2000)
    assert found.bayes_value == pytest.approx(1.0 - 61.0 * SECOND - 0.002 - (0.002 + SECOND) / 3)
    assert (found.best_wait.delta_s, found.best_poll.delta_s) == (90.0, 90.0)
    assert found.best_wait.reward.value == pytest.approx(found.bayes_simulated.value, abs=1e-6)
    assert abs(found.standard_errors) < 4.0
    assert found.contexts == ()
    order = [found.clairvoyant, found.outcome_oracle, found.bayes_simulated, found.best_poll.reward]
    values = [estimate.value for estimate in order]
    assert values == sorted(values, reverse=True)


TWO = {
    "name": "two",
    "faults": {"original": {"timeout_pre": 1, "timeout_post": 1, "timeout_late": 1}},
    "variants": [
        {"name": "common", "weight": 0.96},
        {"name": "rare", "weight": 0.03, "costs": {"time_per_hour": 12.0}},
        {"name": "never seen", "weight": 0.01, "costs": {"time_per_hour": 1.2}},
    ],
}


def test_each_contract_has_a_bound():
    found = bounds(load_plan(TWO), worlds=60)
    assert [row.names for row in found.contexts] == [("common",), ("rare",), ("never seen",)]
    assert [row.numbers for row in found.contexts] == [(0,), (1,), (2,)]
    assert [row.weight for row in found.contexts] == pytest.approx([0.96, 0.03, 0.01])
    mean = sum(row.weight * row.bayes_value for row in found.contexts)
    assert mean == pytest.approx(found.bayes_value)
    assert sum(row.worlds for row in found.contexts) == 60
    common, rare, unseen = found.contexts
    assert common.worlds >= FEWEST_WORLDS > rare.worlds > 0 == unseen.worlds
    assert common.best_wait.delta_s == 90.0
    assert rare.best_wait is None
    assert rare.simulated.n == rare.worlds
    assert (unseen.simulated, unseen.best_wait) == (None, None)
    assert common.bayes_value > unseen.bayes_value > rare.bayes_value  # as time gets dearer
    row = found.to_dict()["contexts"][2]
    assert (row["bayes_simulated"], row["best_wait"]) == (None, None)


def test_contracts_that_nobody_can_tell_apart_are_one():
    hidden = {**TWO, "variants": [{"faults": {"late_fixed_s": s}} for s in (60.0, 120.0)]}
    found = bounds(load_plan(hidden), worlds=50)
    assert found.contexts == ()
    assert found.best_wait.delta_s == 120.0


def test_a_run_is_kept_with_its_manifest(tmp_path):
    plan = load_plan("late-fixed")
    first = bounds(plan, worlds=50, out=tmp_path / "run", command=["exactlyonce", "bounds"])
    manifest = read_manifest(tmp_path / "run" / "manifest.json")
    assert manifest.status == "complete"
    assert manifest.worlds == ((0, 50),)
    assert {"bayes-optimal", "clairvoyant", "outcome-oracle", "wait:90"} <= set(manifest.policies)
    again = bounds(plan, worlds=80, out=tmp_path / "run")
    assert again.to_dict()["worlds"] == 80
    assert first.bayes_value == again.bayes_value


def test_standard_errors():
    assert standard_errors(np.array([1.0, 3.0]), 1.0) == pytest.approx(1.0)
    assert standard_errors(np.array([1.0, 3.0]), 2.0) == 0.0
    assert standard_errors(np.full(9, 0.3), 0.3) == 0.0
    assert standard_errors(np.full(9, 0.3), 0.2) == math.inf
    assert math.isnan(standard_errors(np.array([1.0]), 1.0))


def test_a_prediction_that_is_off_is_noticed():
    found = bounds(load_plan("late-fixed"), worlds=50)
    assert found.agrees
    assert not replace(found, standard_errors=-3.1).agrees
    assert not replace(found, standard_errors=math.inf).agrees


def test_the_grid_has_every_certain_delay():
    assert 90.0 in deltas_s(load_plan("late-fixed"))
    tail = deltas_s(load_plan("late-tail"))
    assert {0.0, 3600.0, 7200.0} < set(tail)
    assert tail == sorted(tail)
    measured = {
        "family": "empirical",
        "times_s": [40.0, 100.0, 500.0],
        "cdf": [0.25, 0.5, 0.75],
        "n": 40,
        "last_observed_s": 600.0,
    }
    assert max(deltas_s(load_plan("late-tail", delays=measured))) == 500.0


# --- how long the optimum holds out ---------------------------------------------------------------

RATIOS_H = tuple(float(r) for r in np.geomspace(0.1, 100.0, 13))


@pytest.fixture(scope="module")
def tail() -> Persistence:
    return persistence(load_plan("late-tail"), 0, RATIOS_H)


def held(found: Persistence, family: str):
    return next(curve for curve in found.curves if curve.family == family).held


def test_every_family_has_the_median_of_the_preset(tail):
    assert tail.median_s == pytest.approx(math.sqrt(40.0 * 7200.0))
    for curve in tail.curves:
        assert float(curve.law.quantile(0.5)) == pytest.approx(tail.median_s, rel=1e-9)
    assert [curve.family for curve in tail.curves if curve.own] == ["log-uniform"]
    assert tail.own_ratio_h == pytest.approx(1.0 / 0.12)


def test_exponential_persistence_grows_with_the_ratio_as_its_logarithm(tail):
    """Δ* = ln[q (c_d λ - c_w) / ((1 - q) c_w)] / λ with q = 1/2, but for the price of the reads."""
    rate, loss = math.log(2.0) / tail.median_s, 1.0 + 1.0 + 0.2
    times = []
    for ratio_h, (action, elapsed_s) in zip(tail.ratios_h, held(tail, "exponential"), strict=True):
        if action == Action.RETRY:
            times.append(elapsed_s)
            price = 1.0 / ratio_h / 3600.0
            expected_s = math.log((loss * rate - price) / price) / rate
            assert elapsed_s == pytest.approx(expected_s, rel=0.1)
    assert len(times) > 8
    assert times == sorted(times)


def test_heavy_tails_are_held_out_for_longer_and_fixed_ones_to_their_end(tail):
    last = {curve.family: curve.held[-1].elapsed_s for curve in tail.curves}
    assert last["fixed"] < last["exponential"] < last["lognormal"] < last["Lomax"]
    for action, elapsed_s in held(tail, "fixed"):
        expected_s = tail.median_s + 1.0 if action == Action.RETRY else 30.0
        assert elapsed_s == pytest.approx(expected_s, abs=0.01)


def test_the_dearer_the_time_the_sooner_it_ends(tail):
    for curve in tail.curves:
        times = [elapsed_s for _, elapsed_s in curve.held]
        assert all(later > 0.95 * sooner for sooner, later in pairwise(times))
        assert curve.held[0] == (Action.FINISH, 30.0)  # a blind claim pays where time is so dear


def test_a_law_of_its_own_gets_a_line_of_its_own():
    plan = load_plan("late-tail", delays="uniform:loc=10,scale=100")
    found = persistence(plan, 0, (8.0,))
    assert [curve.family for curve in found.curves if curve.own] == ["the preset's own"]
    assert found.median_s == 60.0
    assert 111.0 <= found.curves[-1].held[0].elapsed_s < 120.0


def test_two_kinds_of_late_writes_are_mixed():
    faults = {"original": {"timeout_late": 1, "timeout_late_tail": 3}}
    law = late_law(load_plan("late-tail", config={"faults": faults}).situations[0])
    assert isinstance(law, Mixture)
    assert [part.weight for part in law.components] == [0.25, 0.75]


def test_the_ratio_changes_the_price_of_time_alone():
    plan = load_plan("late-fixed", config={"costs": {"duplicate": 3.0}})
    varied = with_ratios(plan, 0, (0.5, 6.0), Fixed(value_s=10.0))
    assert varied.contracts["costs"]["time_per_hour"].tolist() == [6.0, 0.5]
    assert varied.contracts["costs"]["duplicate"].tolist() == [3.0, 3.0]
    shares = np.diff(varied.contexts["law"]["first_cdf"][0], prepend=0.0)
    assert shares[[1, 2, 3, 4]] == pytest.approx([1 / 3, 1 / 3, 0.0, 1 / 3])
    assert with_ratios(plan, 0, (1.0,)).contexts["law"]["late_fixed_s"].tolist() == [90.0]


def test_the_map_waits_until_nothing_can_land_any_more():
    found = decision_map(load_plan("late-tail"), 0, (0.1, 8.0), n_moments=7)
    assert found.elapsed_s[0] == 31.0
    assert found.elapsed_s[-1] > 7200.0 > found.elapsed_s[-2]
    assert found.actions[1].tolist() == [Action.WAIT] * 6 + [Action.RETRY]
    assert found.actions[0].tolist()[0] == Action.FINISH
    assert found.actions[0].tolist()[-1] == Action.RETRY


def test_contexts_by_name():
    plan = load_plan(TWO)
    assert choose_context(plan) == 0
    assert choose_context(plan, "rare") == 1
    with pytest.raises(UserError, match=r"no context 'x'; .*common, rare, never seen.* 0 to 2"):
        choose_context(plan, "x")
    assert choose_context(load_plan("stale-tail"), "60") == 60
    with pytest.raises(UserError, match="'91'"):
        choose_context(load_plan("stale-tail"), "91")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"faults": {"original": {"timeout_pre": 1}}}, "lands late"),
        ({"costs": {"duplicate": 0.0}}, "costs.duplicate 0"),
    ],
)
def test_what_has_no_curve_is_refused(config, message):
    with pytest.raises(UserError, match=message):
        persistence(load_plan("late-tail", config=config), 0, (1.0,))


def test_shapes_of_the_families():
    laws = families(100.0)
    assert float(laws["fixed"].quantile(0.99)) == 100.0
    assert float(laws["log-uniform"].support_s[1] / laws["log-uniform"].support_s[0]) == (
        pytest.approx(180.0)
    )


# --- plots ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def decisions():
    return decision_map(load_plan("late-tail"), 0, RATIOS_H, n_moments=24)


def test_both_plots_are_written_in_both_formats(tail, decisions, tmp_path):
    written = [
        *plot_persistence(tail, tmp_path / "persistence"),
        *plot_decision_map(decisions, tmp_path / "decision-map"),
    ]
    assert sorted(path.name for path in written) == [
        "decision-map.png",
        "decision-map.svg",
        "persistence.png",
        "persistence.svg",
    ]
    for path in written:
        if path.suffix == ".png":
            assert min(matplotlib.image.imread(path).shape[:2]) >= 600
        again = tmp_path / f"again{path.suffix}"
        plot = plot_persistence if path.stem == "persistence" else plot_decision_map
        plot(tail if path.stem == "persistence" else decisions, again)
        assert again.read_bytes() == path.read_bytes()


def test_the_lines_are_named_and_no_name_covers_another(tail):
    figure = persistence_figure(tail)
    (axes,) = figure.axes
    names = [text.get_text() for text in axes.texts]
    assert {curve.family for curve in tail.curves} < set(names)
    assert "own costs: 8.33 h" in names
    boxes = [text.get_window_extent() for text in axes.texts]
    for index, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:index])
        assert figure.bbox.containsx(box.x1)
        assert figure.bbox.containsy(box.y1)
    assert axes.get_xlabel() == "cost of a duplicate / cost of an hour [h], log scale"
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[-1] == "no re-issue: claims completion"


def test_the_map_names_its_regions(decisions):
    figure = decision_figure(decisions)
    (axes,) = figure.axes
    names = [text.get_text() for text in axes.texts]
    assert {"re-issue", "wait,\nthen look again"} < set(names)
    boxes = [text.get_window_extent() for text in axes.texts]
    frame = axes.get_window_extent()
    for index, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:index])
        assert frame.contains(box.x0, box.y0)
        assert frame.contains(box.x1, box.y1)
    legend = {text.get_text() for text in figure.legends[0].get_texts()}
    assert legend == {"wait, then look again", "re-issue", "claim completion"}


def test_the_numbers_behind_the_plots_are_json(tail, decisions):
    curves = json.loads(json.dumps(tail.to_dict(), allow_nan=False))
    assert curves["curves"][0]["ends_with"][-1] == "retry"
    assert len(curves["curves"][0]["elapsed_s"]) == len(RATIOS_H)
    cells = json.loads(json.dumps(decisions.to_dict(), allow_nan=False))
    assert np.array(cells["actions"]).shape == (len(RATIOS_H), 24)
    assert cells["actions"][-1][0] == "wait"


def test_another_suffix_is_refused(tail, tmp_path):
    with pytest.raises(UserError, match="suffix"):
        plot_persistence(tail, tmp_path / "p.pdf")
    assert list(tmp_path.iterdir()) == []
