"""From keywords to worlds: what a user asks for holds in every context, or is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exactlyonce_env import UserError
from exactlyonce_env.config import Variant
from exactlyonce_env.delays import Lomax
from exactlyonce_env.envs.plans import arrays_of, plan_of
from exactlyonce_env.observation import FEATURES, N_DYNAMIC
from exactlyonce_env.presets import PRESET_NAMES, load_plan

MADE = [name for name in PRESET_NAMES if name != "empirical"]
PLACE = {feature.name: k - N_DYNAMIC for k, feature in enumerate(FEATURES)}


@pytest.mark.parametrize("name", MADE)
def test_without_keywords_the_preset_is_itself(name: str) -> None:
    plan, same = plan_of(name), load_plan(name)
    assert plan.preset == same.preset
    for part in ("contexts", "context_cdf", "table", "static"):
        assert getattr(plan, part).tobytes() == getattr(same, part).tobytes()


@pytest.mark.parametrize("name", MADE)
def test_costs_hold_in_every_context(name: str) -> None:
    plan, before = plan_of(name, costs={"duplicate": 7.0, "read": 0.0}), load_plan(name)
    costs, old = plan.contracts["costs"], before.contracts["costs"]
    assert set(costs["duplicate"]) == {7.0}
    assert set(costs["read"]) == {0.0}
    for kept in ("success", "omission", "overclaim", "time_per_hour", "escalation"):
        assert (costs[kept] == old[kept]).all()
    assert (plan.contexts["law"]["first_cdf"] == before.contexts["law"]["first_cdf"]).all()
    assert (plan.context_cdf == before.context_cdf).all()
    assert [s.name for s in plan.situations] == [s.name for s in before.situations]
    told = plan.static[:, PLACE["cost_duplicate"]]
    assert np.allclose(told, np.log1p(7000) / np.log(10001), atol=1e-6)


def test_contract_fields_win_over_variants() -> None:
    assert len(set(load_plan("native").contracts["readback"])) > 1
    plan = plan_of("native", contract={"readback": "strong", "lag_s": 0.0, "max_steps": 9})
    assert set(plan.contracts["readback"]) == {1}
    assert set(plan.contracts["max_steps"]) == {9}
    assert len(plan.contexts) == 14


def test_a_lag_takes_the_place_of_a_range_of_lags() -> None:
    plan = plan_of("stale-tail", contract={"lag_s": 45.0})
    assert plan.contracts["lag_s"].tolist() == [45.0]


def test_faults_hold_in_every_context() -> None:
    plan = plan_of("native", faults={"retry_fault_rate": 0.0, "outage_s": 60.0})
    assert set(plan.contexts["law"]["outage_s"]) == {60.0}
    assert (plan.contexts["law"]["retry_cdf"][:, 0] == 1.0).all()


def test_a_mix_of_contracts_takes_the_place_of_the_variants() -> None:
    plan = plan_of(
        "contextual",
        variants=[
            {"weight": 3, "name": "keyed", "contract": {"accepts_key": True}},
            Variant(weight=1, contract={"readback": "none"}),
        ],
    )
    assert plan.contracts["accepts_key"].tolist() == [1, 0]
    assert plan.contracts["readback"].tolist() == [1, 0]
    assert plan.context_cdf.tolist() == [0.75, 1.0]
    assert plan.situations[0].name == "keyed"


def test_delays_in_any_form() -> None:
    law = Lomax(c=0.8, scale=120.0)
    forms = (law, {"family": "lomax", "c": 0.8, "scale": 120.0}, "lomax:c=0.8,scale=120")
    plans = [plan_of("late-tail", delays=delays) for delays in forms]
    assert [plan.situations[0].faults.late_tail for plan in plans] == [law] * 3
    assert plan_of("late-tail", delays="lomax:c=0.9,scale=120") is not plans[2]
    both = plan_of("late-tail", delays=law, costs={"duplicate": 2.0})
    assert both.situations[0].faults.late_tail == law


def test_delays_hold_in_every_context() -> None:
    own = {"family": "fixed", "value_s": 40.0}
    mine = {"variants": [{"faults": {"late_tail": own}}, {"contract": {"accepts_key": True}}]}
    for preset in (mine, "contextual"):
        plan = plan_of(preset, delays="lomax:c=0.8,scale=120")
        laws = [situation.faults.late_tail for situation in plan.situations]
        assert laws == [Lomax(c=0.8, scale=120.0)] * len(plan.contexts)


def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("costs: {duplicate: 2.0}\n")
    first = plan_of("late-tail", config=file)
    assert plan_of("late-tail", config=str(file)) is first
    file.write_text("costs: {duplicate: 12.0}\n")
    second = plan_of("late-tail", config=file)
    assert first.contracts["costs"]["duplicate"] == [2.0]
    assert second.contracts["costs"]["duplicate"] == [12.0]
    # A keyword stands above the file, the file above the preset.
    third = plan_of("late-tail", config=file, costs={"duplicate": 4.0})
    assert third.contracts["costs"]["duplicate"] == [4.0]


def test_equal_keywords_share_a_plan() -> None:
    first = plan_of("late-tail", costs={"duplicate": np.float64(2.5), "read": 0.25})
    assert plan_of("late-tail", costs={"read": 0.25, "duplicate": 2.5}) is first
    assert plan_of("late-tail", costs={"read": 0.25, "duplicate": 3.5}) is not first


@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        ({"costs": {"duplicates": 1.0}}, "costs.duplicates"),
        ({"costs": {"duplicate": -1.0}}, "costs.duplicate"),
        ({"costs": 3.0}, "costs must be a mapping of field names to values, not 3.0"),
        ({"contract": {"readback": "weak"}}, "contract.readback"),
        ({"contract": {"lag_s": 5.0}}, "needs readback=eventual"),
        ({"variants": ["keyed"]}, "variants must be a mapping"),
        ({"variants": [{"contract": {"readbak": "none"}}]}, "readbak"),
        ({"faults": {"original": {"timeout": 1}}}, "unknown fault mode 'timeout'"),
        ({"delays": "lomx:c=1,scale=2"}, "lomx"),
        ({"costs": {"read": object()}}, "plain data"),
    ],
)
def test_bad_keywords_are_told_by_name(keywords: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        plan_of("late-tail", **keywords)


def test_arrays_are_read_only() -> None:
    for array in arrays_of(load_plan("late-tail")):
        assert not array.flags.writeable
