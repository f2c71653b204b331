"""The references: what they see, what they wait for, and what even they cannot avoid."""

from __future__ import annotations

import numpy as np
import pytest

from exactlyonce_env.vocabulary import Mode
from policies.rollout import run_policy
from policies.spec import LINEUP, parse_policy

from .episodebench import DECIDING, plan_of, play, shipped

FAULTS = [mode.name.lower() for mode in Mode if mode not in (Mode.OK, Mode.PARTIAL_BATCH)]


@pytest.mark.parametrize("readback", ["none", "strong", "eventual"])
@pytest.mark.parametrize("mode", FAULTS)
def test_the_outcome_oracle_is_exactly_once_except_for_unkeyed_redelivery(
    mode: str, readback: str
) -> None:
    plan = plan_of(mode, readback=readback)
    outcomes = run_policy(plan, parse_policy("outcome-oracle"), 0, np.arange(50)).outcomes
    assert outcomes["exactly_once"].all() == (mode != "redelivery")
    assert outcomes["exactly_once"].any() == (mode != "redelivery")
    assert not outcomes["unresolved"].any()


@pytest.mark.parametrize("contract", [{"idempotent": True}, {"accepts_key": True}])
def test_redelivery_harms_neither_idempotent_nor_keyed_writes(contract: dict[str, bool]) -> None:
    plan = plan_of("redelivery", start="send", **contract)
    outcomes = run_policy(plan, parse_policy("outcome-oracle"), 0, np.arange(50)).outcomes
    assert outcomes["exactly_once"].all()


def test_the_outcome_oracle_finishes_at_the_very_commit() -> None:
    played = play(plan_of("timeout_late", faults={"late_fixed_s": 90.3}), "outcome-oracle")
    assert played.moves == ["wait:60.3", "finish"]
    assert played.outcome.elapsed_s == 90.3
    plan = shipped("late-tail")
    episodes = run_policy(plan, parse_policy("outcome-oracle"), 0, np.arange(2000))
    delay_s = plan.worlds(0, range(2000))["fates"]["commit_delay_s"][:, 0]
    late = episodes.modes == Mode.TIMEOUT_LATE_TAIL
    np.testing.assert_array_equal(episodes.outcomes["elapsed_s"][late], delay_s[late])


def test_the_state_oracle_cannot_see_requests_in_flight() -> None:
    played = play(plan_of("timeout_late"), "state-oracle")
    assert played.moves == ["retry", "finish"]
    assert played.outcome.duplicates == 1
    seen = play(plan_of("timeout_late", faults={"late_fixed_s": 30}), "state-oracle")
    assert seen.moves == ["finish"]
    assert seen.outcome.exactly_once


PARTS = {
    "strong": ["read", "retry", "finish"],
    "authoritative": ["read", "retry", "finish"],
    "eventual": ["wait:60", "read", "retry", "finish"],  # committed and answered at 1 s
    "none": ["escalate", "retry", "finish"],
}


@pytest.mark.parametrize("lag_documented", [True, False])
@pytest.mark.parametrize("readback", PARTS)
@pytest.mark.parametrize("spec", ["state-oracle", "outcome-oracle"])
def test_the_rest_of_a_batch_is_sent_once_the_client_sees_the_first_part(
    spec: str, readback: str, lag_documented: bool
) -> None:
    lag_s = 60.0 if readback == "eventual" else 0.0
    plan = plan_of(
        "partial_batch", n_items=5, readback=readback, lag_s=lag_s, lag_documented=lag_documented
    )
    played = play(plan, spec)
    assert played.moves == PARTS[readback]
    assert played.outcome.exactly_once


@pytest.mark.parametrize("spec", ["state-oracle", "outcome-oracle"])
def test_a_batch_that_nobody_can_show_is_left_uncertain(spec: str) -> None:
    plan = plan_of("partial_batch", n_items=5, readback="none", operator_answer_rate=0.0)
    played = play(plan, spec)
    assert played.moves == ["escalate", "finish_uncertain"]
    assert played.outcome.duplicates == 0


@pytest.mark.parametrize("spec", ["state-oracle", "outcome-oracle"])
def test_a_keyed_batch_is_resumed_without_a_look(spec: str) -> None:
    plan = plan_of("partial_batch", n_items=5, accepts_key=True, start="send")
    played = play(plan, spec)
    assert played.moves == ["keyed_retry", "keyed_retry", "finish"]
    assert played.outcome.exactly_once


def test_a_wait_longer_than_one_action_allows_is_taken_in_parts() -> None:
    played = play(plan_of("timeout_late", faults={"late_fixed_s": 1_000_000}), "outcome-oracle")
    assert played.moves == ["wait:604800", "wait:395170", "finish"]


@pytest.mark.parametrize(
    "preset", ["late-fixed", "late-tail", "stale-tail", "native", "keys-everywhere"]
)
def test_the_clairvoyant_reward_bounds_every_policy_in_every_world(preset: str) -> None:
    ids = np.arange(150)
    bound = run_policy(shipped(preset), parse_policy("clairvoyant"), 3, ids).rewards
    for spec in DECIDING:
        rewards = run_policy(shipped(preset), parse_policy(spec), 3, ids).rewards
        assert (rewards <= bound + 1e-9).all(), spec


def test_tables_mark_exactly_the_policies_that_see_hidden_state() -> None:
    marked = {spec for spec in LINEUP if parse_policy(spec).privileged}
    assert marked == {"state-oracle", "outcome-oracle", "clairvoyant"}
