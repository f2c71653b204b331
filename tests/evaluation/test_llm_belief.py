"""Stated beliefs and decisions against exact posteriors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evaluation.llm.belief import (
    Exact,
    actions_of,
    belief_row,
    brier,
    calibration,
    decision_curve,
    exact_belief,
)
from evaluation.llm.belief_plot import plot_beliefs
from exactlyonce_env.plan import Plan
from exactlyonce_env.presets import load_plan
from policies.bayes.explanation import Posterior
from policies.spec import parse_policy

THIRD = pytest.approx(1 / 3, abs=1e-3)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return load_plan("late-tail")


@pytest.fixture(scope="module")
def exact(plan: Plan) -> Exact:
    return Exact(plan, 0)


@pytest.fixture(scope="module")
def absent_world(plan: Plan) -> int:
    from exactlyonce_env.ledger import world_dict

    worlds = [world_dict(plan, record) for record in plan.worlds(0, range(50))]
    return next(w["id"] for w in worlds if w["attempts"][0]["mode"] == "timeout_pre")


def test_the_posterior_is_the_closed_form(exact: Exact, absent_world: int) -> None:
    # p_a / (p_a + p_late S(m)): .5 at once, and with S(300) = .6120 it is .6203.
    first, second, _, fourth = exact.along(absent_world, ["read", "wait:269", "read"])
    assert first == {"absent": THIRD, "committed": THIRD, "in_flight": THIRD}
    assert second is not None
    assert fourth is not None
    assert second["absent"] == pytest.approx(0.5, abs=1e-3)
    assert second["committed"] == pytest.approx(0.0, abs=1e-9)
    assert fourth["absent"] == pytest.approx(1 / (1 + 0.6120), abs=2e-3)


def test_five_states_become_three() -> None:
    found = exact_belief(Posterior(0.1, 0.2, 0.3, 0.15, 0.25))
    assert found == {"absent": 0.1, "committed": 0.45, "in_flight": pytest.approx(0.45)}
    assert exact_belief(None) is None


def test_brier_by_hand() -> None:
    exact = {"absent": 0.5, "committed": 0.0, "in_flight": 0.5}
    assert brier(exact, exact) == 0.0
    assert brier({"absent": 1.0, "committed": 0.0, "in_flight": 0.0}, exact) == 0.5
    sure = {"absent": 0.0, "committed": 1.0, "in_flight": 0.0}
    assert brier({"absent": 1.0, "committed": 0.0, "in_flight": 0.0}, sure) == 2.0


def test_a_curve_by_hand() -> None:
    curve = calibration([(0.05, 0.2), (0.05, 0.4), (1.0, 0.9), (0.5, 0.5)])
    assert [(b["low"], b["n"]) for b in curve] == [(0.0, 2), (0.5, 1), (0.9, 1)]
    assert curve[0]["stated"] == pytest.approx(0.05)
    assert curve[0]["exact"] == pytest.approx(0.3)
    assert calibration([]) == []


def stated(decision: int, **belief: float) -> dict[str, Any]:
    return {"decision": decision, "belief": belief}


def test_what_was_stated_is_held_against_the_view_it_was_stated_in(
    exact: Exact, absent_world: int
) -> None:
    truly = [
        stated(0, absent=1 / 3, committed=1 / 3, in_flight=1 / 3),
        stated(1, absent=0.5, committed=0.0, in_flight=0.5),
    ]
    document = {"world": absent_world, "actions": ["read", "finish_uncertain"], "answers": truly}
    row = belief_row(exact, [document])
    assert row is not None
    assert row["n"] == 2
    assert row["brier"] == pytest.approx(0.0, abs=1e-6)
    # The same beliefs one decision late are wrong.
    late = [{**truly[0], "decision": 1}, {**truly[1], "decision": 0}]
    other = belief_row(exact, [{**document, "answers": late}])
    assert other is not None
    assert other["brier"] == pytest.approx(1 / 6, abs=1e-3)
    assert belief_row(exact, [{**document, "answers": []}]) is None


def test_decisions_by_the_exact_probability(plan: Plan, exact: Exact, absent_world: int) -> None:
    # verify-retry looks once and re-issues at P(absent) = .5.
    played = list(actions_of(plan, parse_policy("verify-retry"), 0, [absent_world]))
    assert played == [(absent_world, ["read", "retry", "finish"])]
    curve = decision_curve(exact, played)
    assert [(b["low"], b["n"]) for b in curve][:2] == [(0.0, 1), (0.3, 1)]
    assert {b["low"]: b["reissue"] for b in curve}[0.5] == 1.0


def test_a_bound_decides_nothing(plan: Plan) -> None:
    assert list(actions_of(plan, parse_policy("clairvoyant"), 0, [0])) == []


def test_the_plot_is_drawn_where_something_was_stated(exact: Exact, tmp_path: Path) -> None:
    row = belief_row(
        exact,
        [
            {
                "world": 0,
                "actions": ["finish"],
                "answers": [stated(0, absent=0.2, committed=0.3, in_flight=0.5)],
            }
        ],
    )
    drawn = plot_beliefs([{"policy": "llm:x", "belief": row}], tmp_path / "b", "late-tail")
    assert [path.suffix for path in drawn] == [".png", ".svg"]
    assert "P(in flight)" in drawn[1].read_text() or drawn[1].stat().st_size > 10_000
    assert plot_beliefs([{"policy": "wait:300", "belief": None}], tmp_path / "c", "x") == []
