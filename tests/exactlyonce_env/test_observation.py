"""The observation vector: documented, bounded, and made of visible things only."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exactlyonce_env import observation
from exactlyonce_env.actions import (
    MAX_WAIT_S,
)
from exactlyonce_env.observation import (
    DYNAMIC_FEATURES,
    FEATURES,
    N_DYNAMIC,
    N_FEATURES,
    N_STATIC,
    STATIC_FEATURES,
)
from exactlyonce_env.plan import Plan
from exactlyonce_env.presets import PRESET_NAMES, load_plan
from exactlyonce_env.records import COSTS, MAX_ATTEMPTS, VIEW
from exactlyonce_env.vocabulary import OperatorStatus, Response

from .worldbench import bench, decide, opened, play, run, shipped

Floats = npt.NDArray[np.float32]
LOW, HIGH = observation.observation_bounds()
INDEX = {feature.name: k for k, feature in enumerate(FEATURES)}


def observe(plan: Plan, view: np.record) -> Floats:
    out = np.full(N_FEATURES, np.nan, dtype=np.float32)
    observation.write_observation(view, plan.contexts, plan.static, out)
    return out


def named(plan: Plan, view: np.record) -> dict[str, float]:
    return dict(zip(INDEX, observe(plan, view).tolist(), strict=True))


def on_time_scale(seconds: float) -> float:
    return math.log1p(seconds) / math.log1p(604800)


# The table --------------------------------------------------------------------------------------


def test_every_feature_is_named_once_and_explained() -> None:
    assert N_FEATURES == len(INDEX) == N_DYNAMIC + N_STATIC == len(FEATURES)
    assert FEATURES == DYNAMIC_FEATURES + STATIC_FEATURES
    for feature in FEATURES:
        assert feature.name.replace("_", "").isalnum()
        assert feature.unit
        assert feature.low < feature.high
        assert "?" not in feature.meaning
        # A meaning is a phrase that ends, not one that was cut off.
        assert len(feature.meaning) > 9
        assert not feature.meaning.endswith((";", "-1", ","))


def test_bounds_are_those_of_the_table() -> None:
    assert LOW.dtype == HIGH.dtype == np.float32
    assert LOW.tolist() == [feature.low for feature in FEATURES]
    assert HIGH.tolist() == [feature.high for feature in FEATURES]
    assert (LOW >= -1).all()
    assert (HIGH <= 2).all()


def test_what_an_observation_must_hold() -> None:
    """Section 6, point by point."""
    wanted = [
        "elapsed",
        *(f"since_sent_{j}" for j in range(MAX_ATTEMPTS)),
        *(f"response_{j}" for j in range(MAX_ATTEMPTS)),
        "read_age",
        "read_shown",
        "operator",
        "lag",
        "accepts_key",
        "key_retention",
        "idempotent",
        "in_flight_bound",
        "late_q50",
        "late_q99",
        "late_share",
        *(f"cost_{name}" for name in COSTS.names),
        "steps_left",
        "attempts_left",
    ]
    assert set(wanted) <= set(INDEX)


# Values by hand ---------------------------------------------------------------------------------


def test_the_first_view_after_a_time_out() -> None:
    plan = bench("timeout_pre")
    seen = named(plan, play(plan, []).view)
    expected = dict.fromkeys((feature.name for feature in DYNAMIC_FEATURES), 0.0)
    expected |= {f"since_sent_{j}": -1.0 for j in range(1, MAX_ATTEMPTS)}
    expected |= {
        "elapsed": on_time_scale(30),
        "steps_left": 1.0,
        "attempts_left": 5 / 6,
        "since_sent_0": on_time_scale(30),
        "response_0": 2 / 8,
        "last_is_timeout": 1.0,
        "read_age": -1.0,
        "operator_age": -1.0,
    }
    assert {name: seen[name] for name in expected} == pytest.approx(expected, abs=1e-6)


def test_a_longer_history() -> None:
    """A keyed batch: HTTP 500, a read, a keyed retry that is refused with 429, a wait of 2 s."""
    plan = bench("partial_batch", "rate_limited", n_items=2, accepts_key=True, original_key="sent")
    view = play(plan, ["read", "keyed_retry", "wait:2"]).view
    seen = named(plan, view)
    #       0 s sent, 1 s answered, 2 s read, 3 s refused (Retry-After to 8 s), 5 s now
    expected = {
        "elapsed": on_time_scale(5),
        "steps_left": 37 / 40,
        "attempts_left": 4 / 6,
        "since_answer": on_time_scale(2),
        "since_sent_0": on_time_scale(5),
        "since_sent_1": on_time_scale(3),
        "since_sent_2": -1.0,
        "response_0": -3 / 8,
        "response_1": -4 / 8,
        "response_2": 0.0,
        "last_is_server_error": 0.0,
        "last_is_rate_limited": 1.0,
        "last_key": 1.0,
        "retry_after": on_time_scale(3),
        "read_age": on_time_scale(4),
        "read_shown": 0.5,
        "read_complete": 0.0,
        "read_failed": 0.0,
        "reads_since_attempt": 0.0,
        "operator": 0.0,
        "retry_permitted": 1.0,
        "keyed_retry_permitted": 1.0,
        "items_known_absent": 0.5,
    }
    assert {name: seen[name] for name in expected} == pytest.approx(expected, abs=1e-6)


def test_reads_operators_and_other_keys() -> None:
    plan = bench("timeout_post", "ok", accepts_key=True, candidate_key="different")
    asked = named(plan, play(plan, ["read", "read", "escalate", "wait:7"]).view)
    assert asked["reads_since_attempt"] == pytest.approx(math.log2(3) / 6, abs=1e-6)
    assert asked["read_complete"] == asked["read_shown"] == asked["operator"] == 1
    assert asked["operator_age"] == asked["read_age"] == pytest.approx(on_time_scale(7), abs=1e-6)
    other = named(plan, play(plan, ["keyed_retry"]).view)
    assert other["last_key"] == 0.5
    assert other["last_is_success"] == 1
    silent = bench("timeout_post", operator_answer_rate=0, readback="none")
    told = named(silent, play(silent, ["escalate", "read"]).view)
    assert (told["operator"], told["read_failed"], told["read_age"]) == (-1, 1, -1)


@pytest.mark.parametrize("response", [r for r in Response if r])
def test_each_response_has_a_flag_and_a_code(response: Response) -> None:
    view = play(bench("timeout_pre"), []).view
    view["attempts"]["response"][0] = response
    seen = named(bench("timeout_pre"), view)
    flags = {name: value for name, value in seen.items() if name.startswith("last_is_")}
    assert flags == {name: float(name == f"last_is_{response.name.lower()}") for name in flags}
    assert len(flags) == len(Response) - 1
    assert seen["response_0"] == response / 8


def test_the_static_part_by_hand() -> None:
    plan = load_plan(
        {
            "name": "bench",
            "start": "send",
            "contract": {
                "readback": "eventual",
                "lag_s": 60,
                "accepts_key": True,
                "key_retention_s": 3600,
                "in_flight_same_key": "conflict",
                "irreversible": True,
                "n_items": 4,
                "in_flight_bound_s": 7200,
                "candidate_key": "different",
                "operator_answer_rate": 0.25,
            },
            "documented": {"delays": True, "shares": True, "retry_faults": True},
            "faults": {"original": {"timeout_late_tail": 1, "timeout_pre": 3}},
        }
    )
    seen = named(plan, opened(plan, 0)[0])
    expected = {
        "readback_none": 0.0,
        "readback_strong": 0.0,
        "readback_eventual": 1.0,
        "readback_authoritative": 0.0,
        "lag": on_time_scale(60),
        "accepts_key": 1.0,
        "key_retention": on_time_scale(3600),
        "in_flight_conflict": 1.0,
        "idempotent": 0.0,
        "irreversible": 1.0,
        "n_items": 2 / 5,
        "in_flight_bound": on_time_scale(7200),
        "client_timeout": on_time_scale(30),
        "latency": on_time_scale(1),
        "original_key_sent": 0.0,
        "candidate_key_same": 0.0,
        "operator_delay": on_time_scale(900),
        "operator_answer_rate": 0.25,
        "operator_sees_in_flight": 0.0,
        "start_send": 1.0,
        "dispatch_claims": 0.0,
        "late_q50": on_time_scale(math.sqrt(40 * 7200)),
        "late_share": 0.25,
        "absent_share": 0.75,
        "commit_share": -1.0,
        "retry_fault_rate": 0.0,
        **{
            f"cost_{name}": math.log1p(1000 * price) / math.log(10001)
            for name, price in zip(
                COSTS.names, (1, 1, 0.5, 0.3, 0.2, 0.12, 0.002, 0.002, 0.15), strict=True
            )
        },
    }
    assert {name: seen[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    left = set(seen) - set(expected) - {feature.name for feature in DYNAMIC_FEATURES}
    assert left == {"late_q10", "late_q90", "late_q99"}


def test_what_is_not_documented_is_minus_one() -> None:
    plan = load_plan(
        {
            "name": "bench",
            "contract": {
                "readback": "eventual",
                "lag_s": 60,
                "lag_documented": False,
                "key_retention_s": None,
            },
        }
    )
    seen = named(plan, opened(plan, 0)[0])
    for name in ("lag", "in_flight_bound", "late_q10", "late_q50", "late_q99", "late_share"):
        assert seen[name] == -1
    for name in ("absent_share", "commit_share", "retry_fault_rate"):
        assert seen[name] == -1
    assert seen["key_retention"] == 2  # for ever


CHANGES: dict[str, Any] = {
    "readback": "authoritative",
    "accepts_key": True,
    "key_retention_s": 7.0,
    "in_flight_same_key": "conflict",
    "idempotent": True,
    "irreversible": True,
    "n_items": 2,
    "in_flight_bound_s": 1e4,
    "client_timeout_s": 31.0,
    "candidate_key": "different",
    "latency_s": 2.0,
    "operator_delay_s": 1.0,
    "operator_answer_rate": 0.5,
    "operator_sees_in_flight": True,
    "dispatch_claims": True,
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_contract_field_can_be_seen(name: str) -> None:
    one, other = bench("ok"), bench("ok", **{name: CHANGES[name]})
    assert one.static.tobytes() != other.static.tobytes()


def test_the_static_part_depends_on_the_contract_alone() -> None:
    """Another law, the same contract: the same bytes."""
    one = bench("timeout_pre")
    other = bench(
        "timeout_late", "http500_pre", faults={"queued_share": 1, "copy_delay_s": 9, "outage_s": 7}
    )
    assert one.contracts.tobytes() == other.contracts.tobytes()
    assert one.contexts.tobytes() != other.contexts.tobytes()
    assert one.static.tobytes() == other.static.tobytes()
    for plan in (one, shipped("native")):
        for c, contract in enumerate(plan.contracts):
            row = np.full(N_STATIC, np.nan, dtype=np.float32)
            observation.write_static(contract, row)
            assert row.tobytes() == plan.static[c].tobytes()


def test_the_dynamic_part_depends_on_the_view_alone() -> None:
    """The same view in two worlds with other truths: the same bytes."""
    lost = run("timeout_pre ok", "wait:10 read retry")
    late = run("timeout_late ok", "wait:10 read retry")
    assert lost.truth.tobytes() != late.truth.tobytes()
    assert observe(lost.plan, lost.view).tobytes() == observe(late.plan, late.view).tobytes()


# Bounds -----------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(
    preset=st.sampled_from(PRESET_NAMES),
    world=st.integers(0, 2**50),
    actions=st.lists(
        st.sampled_from(
            ["read", "wait:15", f"wait:{MAX_WAIT_S}", "retry", "keyed_retry", "escalate"]
        ),
        max_size=30,
    ),
)
def test_finite_and_inside_the_bounds_at_any_horizon(
    preset: str, world: int, actions: list[str]
) -> None:
    plan = shipped(preset)
    seen, truth = opened(plan, world)
    for action in [*actions, "finish"]:
        features = observe(plan, seen)
        assert np.isfinite(features).all()
        outside = [FEATURES[k].name for k in np.flatnonzero((features < LOW) | (features > HIGH))]
        assert outside == []
        if seen["ending"]:
            break
        decide(plan, seen, truth, action)


TIME = st.floats(0, 1e15)


@given(
    clock_s=TIME,
    ages=st.tuples(TIME, TIME, TIME, TIME),
    reads=st.integers(0, 10**5),
    n=st.integers(0, MAX_ATTEMPTS),
    status=st.sampled_from([int(s) for s in OperatorStatus]),
)
def test_no_view_leaves_the_bounds(
    clock_s: float, ages: tuple[float, ...], reads: int, n: int, status: int
) -> None:
    """Views far beyond what a call budget allows."""
    plan = bench("timeout_pre", max_attempts=8, max_steps=10**5)
    seen = np.zeros(1, VIEW)[0]
    seen["clock_s"], seen["n_attempts"], seen["operator_status"] = clock_s, n, status
    seen["read_at_s"] = clock_s - min(ages[0], clock_s)
    seen["operator_at_s"] = clock_s - min(ages[1], clock_s)
    seen["retry_at_s"] = clock_s + ages[2]
    seen["reads_since_attempt"] = seen["n_reads"] = seen["n_steps"] = reads
    for j in range(n):
        seen["attempts"][j]["sent_s"] = seen["attempts"][j]["answered_s"] = clock_s - min(
            ages[3], clock_s
        )
        seen["attempts"][j]["payload"] = 1
        seen["attempts"][j]["response"] = 1 + j % 7
    features = observe(plan, seen)
    assert np.isfinite(features).all()
    assert ((features >= LOW) & (features <= HIGH)).all()


def test_extreme_contracts_stay_inside_the_bounds() -> None:
    for contract, costs in (
        (
            {
                "readback": "eventual",
                "lag_s": 1e9,
                "key_retention_s": 1e9,
                "n_items": 30,
                "in_flight_bound_s": 1e9,
                "client_timeout_s": 86400,
                "latency_s": 86399,
                "operator_delay_s": 1e7,
            },
            dict.fromkeys(COSTS.names, 1e6),
        ),
        (
            {
                "client_timeout_s": 1e-9,
                "latency_s": 0,
                "operator_delay_s": 0,
                "key_retention_s": 1e-9,
            },
            dict.fromkeys(COSTS.names, 0),
        ),
    ):
        static = load_plan(
            {"name": "x", "contract": contract, "costs": costs, "faults": {"original": {"ok": 1}}}
        ).static[0]
        assert np.isfinite(static).all()
        assert ((static >= LOW[N_DYNAMIC:]) & (static <= HIGH[N_DYNAMIC:])).all()
