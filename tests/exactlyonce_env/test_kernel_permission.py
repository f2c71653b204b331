"""Retry permission: the three rules by hand, then against all worlds that share a history."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exactlyonce_env import permission
from exactlyonce_env.plan import Plan
from exactlyonce_env.settlement import settle
from exactlyonce_env.vocabulary import Key

from .worldbench import bench, decide, opened, run, shipped

KEY = {"accepts_key": True, "original_key": "sent"}
BOUND = {"in_flight_bound_s": 100}


@pytest.mark.parametrize(
    ("modes", "actions", "contract", "false_permissions"),
    [
        # Rule 1: protected replay.
        ("timeout_post ok", "keyed_retry", KEY, 0),
        ("timeout_post ok", "keyed_retry", {"accepts_key": True}, 1),
        ("timeout_post ok", "keyed_retry", {**KEY, "candidate_key": "different"}, 1),
        ("rate_limited ok", "keyed_retry", {"accepts_key": True}, 0),
        ("rate_limited timeout_post ok", "keyed_retry keyed_retry", {"accepts_key": True}, 0),
        ("timeout_pre ok ok", "retry keyed_retry", KEY, 2),
        ("timeout_post ok", "wait:69.5 keyed_retry", {**KEY, "key_retention_s": 100}, 0),
        ("timeout_post ok", "wait:70 keyed_retry", {**KEY, "key_retention_s": 100}, 1),
        ("timeout_post ok", "wait:604800 keyed_retry", {**KEY, "key_retention_s": None}, 0),
        # Rule 2: idempotent.
        ("timeout_post ok ok", "retry retry", {"idempotent": True}, 0),
        # Rule 3: terminal and effect-free in every compatible world.
        ("timeout_pre ok", "retry", {}, 1),
        ("timeout_pre ok", "read retry", {}, 1),
        ("timeout_pre ok", "wait:604800 read retry", {}, 1),
        ("rate_limited ok", "retry", {}, 0),
        ("unavailable ok", "retry", {}, 0),
        ("schema_drift ok", "retry", {}, 0),
        ("outage outage outage", "retry retry", {}, 0),
        ("ok ok", "retry", {}, 1),
        ("ok ok", "read retry", {}, 1),
        ("http500_pre ok", "retry", {}, 1),
        ("http500_pre ok", "read retry", {}, 0),
        ("http500_pre ok", "read retry", {"readback": "none"}, 1),
        ("timeout_pre ok", "read retry", {"readback": "authoritative"}, 0),
        ("timeout_late ok", "read retry", {"readback": "authoritative"}, 1),
        ("timeout_late ok", "wait:60 read retry", {"readback": "authoritative"}, 1),
        # A documented bound, that has passed before a read that shows nothing.
        ("timeout_pre ok", "wait:69.5 read retry", BOUND, 1),
        ("timeout_pre ok", "wait:70 read retry", BOUND, 0),
        ("timeout_pre ok", "wait:200 retry", BOUND, 1),
        ("timeout_pre ok", "read wait:200 retry", BOUND, 1),
        ("timeout_late ok", "wait:70 read retry", BOUND, 1),
        ("timeout_pre timeout_pre ok", "wait:70 read retry retry", BOUND, 1),
        ("timeout_pre timeout_pre ok", "wait:70 read retry wait:70 read retry", BOUND, 0),
        (
            "timeout_pre ok",
            "wait:129.5 read retry",
            {**BOUND, "readback": "eventual", "lag_s": 60},
            1,
        ),
        (
            "timeout_pre ok",
            "wait:130 read retry",
            {**BOUND, "readback": "eventual", "lag_s": 60},
            0,
        ),
        ("timeout_pre ok", "wait:70 escalate retry", {**BOUND, "readback": "none"}, 0),
        # Nothing can be concluded through an undocumented lag.
        (
            "http500_pre ok",
            "wait:604800 read retry",
            {"readback": "eventual", "lag_s": 60, "lag_documented": False},
            1,
        ),
        (
            "http500_pre ok",
            "escalate retry",
            {"readback": "eventual", "lag_s": 60, "lag_documented": False},
            0,
        ),
        # What was once known stays known; what was shown is never absent.
        ("http500_pre ok", "read wait:1000 retry", {}, 0),
        ("http500_pre http500_pre ok", "read retry read retry", {}, 0),
        ("http500_pre http500_pre ok", "read retry retry", {}, 1),
        # For a batch the same holds for the items re-sent.
        ("partial_batch ok", "read retry", {"n_items": 2}, 0),
        ("partial_batch ok", "retry", {"n_items": 2}, 1),
        ("partial_batch ok ok", "read retry retry", {"n_items": 2}, 1),
        ("timeout_post ok", "read retry", {"n_items": 2, **BOUND}, 1),
    ],
)
def test_rules_by_hand(
    modes: str, actions: str, contract: dict[str, Any], false_permissions: int
) -> None:
    world = run(modes, [*actions.split(), "finish"], **contract)
    assert world.false_permissions == false_permissions
    assert world.measure("false_retry_permissions") == false_permissions


def test_harmless_luck_is_a_false_permission_all_the_same() -> None:
    world = run("timeout_pre ok", "retry finish")
    assert world.measure("resolved_exact") == 1
    assert world.measure("false_retry_permissions") == 1


def keys_of(contract: np.record) -> list[int]:
    """Keys with which the next attempt may be sent."""
    keyed = [int(permission.candidate_key(contract))] if contract["accepts_key"] else []
    return [int(Key.NONE), *keyed]


def touched(plan: Plan, seen: np.record, truth: np.record) -> int:
    """Items that have an effect or will get one if the client does nothing more."""
    left = truth.copy()
    settle(plan.contexts[left["context"]], seen, left)
    attempts = left["attempts"][: seen["n_attempts"]]
    return int(np.bitwise_or.reduce(attempts["effect"] | attempts["copy_effect"]))


ACTIONS = st.lists(
    st.sampled_from(
        ["read", "read", "wait:15", "wait:300", "wait:3600", "retry", "keyed_retry", "escalate"]
    ),
    max_size=12,
)


@given(
    preset=st.sampled_from(
        ["late-tail", "stale-tail", "native", "keys-everywhere", "contextual", "contextual"]
    ),
    first_id=st.integers(0, 2**40),
    actions=ACTIONS,
)
def test_permitted_and_unprotected_means_that_nothing_happened_or_will(
    preset: str, first_id: int, actions: list[str]
) -> None:
    """Soundness: each world drawn is one of those that share the history."""
    plan = shipped(preset)
    for world in range(first_id, first_id + 6):
        seen, truth = opened(plan, world)
        contract = plan.contexts[seen["context"]]["contract"]
        for action in actions:
            for key in keys_of(contract):
                if contract["idempotent"] or permission.protected(seen, contract, key):
                    continue
                if permission.permitted(seen, contract, key):
                    payload = permission.next_payload(seen, contract, key)
                    assert touched(plan, seen, truth) & payload == 0
            decide(plan, seen, truth, action)


FAULTS = {
    "original": "fit",
    "original_ok_share": 0.1,
    "retry": "fit",
    "retry_fault_rate": 0.7,
    "queued_share": 0.5,
}
OPEN_ENDED = {"late_tail": {"family": "loguniform", "a": 40, "b": 1e6}}
BOUNDED = {"late_tail": {"family": "uniform", "loc": 40, "scale": 60}}


@pytest.mark.parametrize(
    ("contract", "law"),
    [
        ({}, OPEN_ENDED),
        (BOUND, BOUNDED),
        ({"readback": "eventual", "lag_s": 60}, OPEN_ENDED),
        ({"readback": "eventual", "lag_s": 60, **BOUND}, BOUNDED),
        ({"readback": "authoritative"}, OPEN_ENDED),
        ({"readback": "none", "operator_delay_s": 80, **BOUND}, BOUNDED),
        ({"n_items": 2, **BOUND}, BOUNDED),
        ({"n_items": 2, "readback": "authoritative", "accepts_key": True}, OPEN_ENDED),
        ({**KEY, **BOUND, "key_retention_s": 100}, BOUNDED),
        ({**KEY, "in_flight_same_key": "conflict", "operator_sees_in_flight": True}, OPEN_ENDED),
    ],
)
def test_permission_is_what_all_worlds_of_one_history_have_in_common(
    contract: dict[str, Any], law: dict[str, Any]
) -> None:
    """Sound and complete: refused where some world that looks the same has an effect to come."""
    plan = bench("ok", faults={**FAULTS, **law}, **contract)
    lists = (
        "",
        "read",
        "wait:69 wait:1 read",
        "wait:130 read",
        "read retry wait:200 read",
        "escalate",
    )
    if plan.contracts[0]["accepts_key"]:
        lists = (*lists, "read keyed_retry", "keyed_retry wait:400 read")
    refused = granted = 0
    for actions in lists:
        histories = defaultdict(list)
        for world in range(300):
            seen, truth = opened(plan, world)
            for action in actions.split():
                decide(plan, seen, truth, action)
            histories[seen.tobytes()].append((seen, touched(plan, seen, truth)))
        for alike in histories.values():
            seen = alike[0][0]
            for key in keys_of(plan.contracts[0]):
                if permission.protected(seen, plan.contracts[0], key):
                    continue
                payload = permission.next_payload(seen, plan.contracts[0], key)
                clean = not any(items & payload for _, items in alike)
                if permission.permitted(seen, plan.contracts[0], key):
                    assert clean
                    granted += 1
                elif len(alike) >= 12:
                    assert not clean
                    refused += 1
    assert granted > 3
    assert refused > 3
