"""Publicly reported incidents in our vocabulary: the recovery that hurt, and one that helps."""

from __future__ import annotations

from typing import Any

import pytest

from .worldbench import run

KEYED = {"accepts_key": True, "original_key": "sent"}


def tail(delay_s: float, **faults: Any) -> dict[str, Any]:
    return {"faults": {"late_tail": {"family": "fixed", "value_s": delay_s}, **faults}}


# id: fates, contract, actions that hurt, what came of it, contract and actions that help
INCIDENTS: dict[str, tuple[str, dict[str, Any], str, tuple[int, int], dict[str, Any], str]] = {
    "slow-charge": (
        "timeout_late ok ok",
        {},
        "retry retry finish",
        (2, 0),
        KEYED,
        "keyed_retry keyed_retry finish",
    ),
    "fresh-key-per-request": (
        "timeout_post ok",
        {**KEYED, "candidate_key": "different"},
        "keyed_retry finish",
        (1, 0),
        KEYED,
        "keyed_retry finish",
    ),
    "dispatch-storm": (
        "http500_post http500_post http500_post http500_post http500_post http500_post",
        {},
        "retry retry retry retry retry finish",
        (5, 0),
        {},
        "read finish",
    ),
    "lagging-search": (
        "timeout_post ok",
        {"readback": "eventual", "lag_s": 300},
        "read retry finish",
        (1, 0),
        {},
        "read finish",
    ),
    "stale-describe": (
        "timeout_post ok ok",
        {"readback": "eventual", "lag_s": 120},
        "read retry read retry finish",
        (2, 0),
        {"readback": "eventual", "lag_s": 120},
        "wait:91 read finish",
    ),
    "never-retry": (
        "timeout_pre ok",
        {},
        "wait:100000 read finish_uncertain",
        (0, 1),
        {"in_flight_bound_s": 600},
        "wait:570 read retry finish",
    ),
    "timed-out-yet-written": (
        "timeout_late_tail ok",
        tail(5000),
        "wait:300 read retry finish",
        (1, 0),
        tail(5000),
        "wait:4970 read finish",
    ),
    "notify-overnight": (
        "timeout_late_tail ok",
        {"in_flight_bound_s": 172800, **tail(90000)},
        "wait:86370 read retry finish",
        (1, 0),
        {"in_flight_bound_s": 172800, **tail(90000)},
        "wait:172770 read finish",
    ),
    "ack-timeout-redelivery": (
        "redelivery",
        {"faults": {"copy_delay_s": 1800}},
        "finish",
        (1, 0),
        {**KEYED, "faults": {"copy_delay_s": 1800}},
        "finish",
    ),
    "unknown-commit": (
        "timeout_post ok",
        {"readback": "eventual", "lag_s": 3600},
        "wait:60 read retry finish",
        (1, 0),
        {"readback": "authoritative"},
        "wait:60 read finish",
    ),
}


@pytest.mark.parametrize("incident", INCIDENTS)
def test_incident(incident: str) -> None:
    modes, contract, hurts, (duplicates, omissions), better, helps = INCIDENTS[incident]
    bad = run(modes, hurts, **contract)
    assert (bad.measure("duplicates"), bad.measure("omissions")) == (duplicates, omissions)
    good = run(modes, helps, **better)
    assert good.measure("resolved_exact") == 1
    assert good.false_permissions == 0


@pytest.mark.parametrize("incident", INCIDENTS)
def test_no_re_issue_that_hurt_was_permitted(incident: str) -> None:
    modes, contract, hurts, *_ = INCIDENTS[incident]
    world = run(modes, hurts, **contract)
    assert world.false_permissions == world.measure("reissues")
