"""What sets the guard apart: keys, the second look after the lag, and no blind repeat."""

from __future__ import annotations

import numpy as np
import pytest

from exactlyonce_env import kernel
from exactlyonce_env.records import N_TERMS, TRUTH, VIEW
from exactlyonce_env.vocabulary import Action
from policies.base import Policy, ViewBatch
from policies.spec import parse_policy

from .episodebench import plan_of, play


def test_absence_is_verified_again_after_the_documented_lag() -> None:
    played = play(plan_of("timeout_pre", readback="eventual", lag_s=60), "guard")
    assert played.moves == ["read", "wait:59", "read", "retry", "finish"]
    played = play(plan_of("timeout_post", readback="eventual", lag_s=60), "guard")
    assert played.moves == ["read", "wait:59", "read", "finish"]  # 1 s of the 60 s had passed
    assert played.outcome.exactly_once


@pytest.mark.parametrize("lag_s", [0.1, 0.3, 33.3, 77.7])
def test_the_second_look_is_never_a_rounding_error_too_early(lag_s: float) -> None:
    # Committed at the very moment of the answer: it shows at answer + lag and not before.
    plan = plan_of("timeout_late", readback="eventual", lag_s=lag_s, faults={"late_fixed_s": 30.0})
    assert play(plan, "guard").moves[-2:] == ["read", "finish"]


def test_an_undocumented_lag_makes_it_ask() -> None:
    plan = plan_of("timeout_post", readback="eventual", lag_s=600, lag_documented=False)
    assert play(plan, "guard").moves == ["read", "escalate", "finish"]


@pytest.mark.parametrize("readback", ["none", "strong", "eventual", "authoritative"])
def test_a_protected_replay_needs_no_look(readback: str) -> None:
    plan = plan_of("timeout_post", accepts_key=True, original_key="sent", readback=readback)
    played = play(plan, "guard")
    assert played.moves == ["keyed_retry", "finish"]
    assert played.outcome.exactly_once
    assert played.outcome.false_retry_permissions == 0


def test_an_idempotent_write_is_repeated_without_a_look() -> None:
    played = play(plan_of("timeout_post", idempotent=True, readback="none"), "guard")
    assert played.moves == ["retry", "finish"]
    assert played.outcome.exactly_once
    assert played.outcome.false_retry_permissions == 0


def test_an_expired_or_different_key_is_no_protection() -> None:
    expired = plan_of("timeout_post", accepts_key=True, original_key="sent", key_retention_s=20)
    assert play(expired, "guard").moves == ["read", "finish"]
    other = plan_of(
        "timeout_post", accepts_key=True, original_key="sent", candidate_key="different"
    )
    assert play(other, "guard").moves == ["read", "finish"]
    unkeyed = plan_of("timeout_post", accepts_key=True)
    assert play(unkeyed, "guard").moves == ["read", "finish"]


def test_after_a_verified_absence_the_reissue_carries_a_key_where_one_is_taken() -> None:
    # The key protects the third attempt from doubling the second once the first is known absent.
    plan = plan_of("rate_limited", "timeout_post", accepts_key=True, max_attempts=4)
    played = play(plan, "guard")
    assert played.moves[:3] == ["wait:5", "keyed_retry", "keyed_retry"]
    assert played.outcome.exactly_once


def test_a_rejected_reissue_does_not_clear_an_unknown_original() -> None:
    # verify-retry repeats after the 429 at 32 s without a look; the original lands at 34 s.
    plan = plan_of("timeout_late", "rate_limited", faults={"late_fixed_s": 34})
    assert play(plan, "guard").moves == ["read", "retry", "wait:5", "read", "finish"]


def test_a_keyed_batch_is_resumed_and_an_expired_one_sends_the_missing_part_plainly() -> None:
    batch = {"n_items": 4, "accepts_key": True, "original_key": "sent"}
    resumed = play(plan_of("partial_batch", **batch), "guard")
    assert resumed.moves == ["keyed_retry", "finish"]
    assert resumed.outcome.exactly_once
    expired = play(plan_of("partial_batch", key_retention_s=0.5, **batch), "guard")
    assert expired.moves == ["read", "retry", "finish"]
    assert expired.outcome.exactly_once


def test_a_protected_batch_is_resumed_even_where_a_report_shows_its_first_part() -> None:
    plan = plan_of("partial_batch", n_items=4, accepts_key=True, original_key="sent")
    seen, truth = np.zeros(1, dtype=VIEW), np.zeros(1, dtype=TRUTH)
    kernel.begin(plan.contexts, plan.context_cdf, plan.table, np.uint64(0), 0, seen[0], truth[0])
    kernel.act(plan.contexts, plan.table, seen[0], truth[0], Action.READ, 0.0, np.zeros(N_TERMS))
    assert seen[0].shown
    policy = parse_policy("guard")
    assert isinstance(policy, Policy)
    assert policy.act(ViewBatch(seen, plan.contracts)).kinds.tolist() == [Action.KEYED_RETRY]
