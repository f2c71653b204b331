"""The reference counts over the 34 focal writes, from the contract classes of `native`.

The weight of a context is its number of focal writes; a single world of each context decides, for
nothing but the mode varies in these worlds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from exactlyonce_env.plan import Plan
from exactlyonce_env.presets import load_plan, shipped_fields
from policies.rollout import run_policy
from policies.spec import parse_policy


def focal_writes(
    mode: str, *, preset: str = "native", start: str = "send", keyed: bool = False, **change: Any
) -> Plan:
    """The classes that a mode fits; ``keyed`` originals carried their key where one is taken."""
    fields = shipped_fields(preset)
    variants = []
    for variant in fields["variants"]:
        contract = {**fields.get("contract", {}), **variant["contract"]}
        batch = contract.get("n_items", 1) > 1
        if mode == "partial_batch" and not batch:
            continue
        if keyed and contract.get("accepts_key"):
            contract["original_key"] = "sent"
        variants.append({**variant, "contract": contract})
    return load_plan(
        {
            "name": "focal",
            "start": start,
            "contract": {"n_items": 4 if mode == "partial_batch" else 1},
            "faults": {"original": {mode: 1}, **change},
            "variants": variants,
        }
    )


def count(plan: Plan, spec: str, measure: str) -> int:
    """How many focal writes end with ``measure``; every context must agree with itself."""
    episodes = run_policy(plan, parse_policy(spec), 0, np.arange(600))
    total = 0
    for context, situation in enumerate(plan.situations):
        values = episodes.outcomes[measure][episodes.contexts == context]
        assert len(values)
        assert len(set(values.tolist())) == 1
        total += int(situation.weight) * int(values[0] > 0)
    return total


def writes(plan: Plan) -> int:
    return int(sum(situation.weight for situation in plan.situations))


def test_there_are_34_focal_writes_33_of_them_with_a_read_back() -> None:
    plan = focal_writes("ok")
    assert writes(plan) == 34
    assert count(plan, "never-retry", "exactly_once") == 34
    unreadable = [s for s in plan.situations if s.contract.readback == "none"]
    assert sum(s.weight for s in unreadable) == 1


@pytest.mark.parametrize(("mode", "duplicated"), [("timeout_pre", 0), ("timeout_post", 30)])
def test_blind_retry_with_a_plain_first_send(mode: str, duplicated: int) -> None:
    assert count(focal_writes(mode), "blind-retry", "duplicates") == duplicated


@pytest.mark.parametrize("mode", ["timeout_post", "timeout_late", "timeout_late_tail"])
def test_never_retry_is_exactly_once_where_the_write_lands(mode: str) -> None:
    assert count(focal_writes(mode), "never-retry", "exactly_once") == 34


def test_never_retry_omits_everything_where_it_does_not() -> None:
    assert count(focal_writes("timeout_pre"), "never-retry", "omissions") == 34


def test_wait_60_at_90_s_with_keyed_first_sends() -> None:
    plan = focal_writes("timeout_late", start="fault", keyed=True)
    exact = count(plan, "wait:60", "exactly_once")
    escalated = count(plan, "wait:60", "escalations")
    assert escalated == 1  # the write without a read-back, and the operator's 930 s are enough
    assert exact - escalated == 9


def test_wait_120_at_90_s_is_exactly_once_in_all() -> None:
    plan = focal_writes("timeout_late", start="fault", keyed=True)
    assert count(plan, "wait:120", "exactly_once") == 34


def test_redelivery_with_keys_attached_where_accepted() -> None:
    for spec in ("guard", "same-key", "outcome-oracle"):
        assert count(focal_writes("redelivery"), spec, "duplicates") == 25
    keyed = focal_writes("redelivery", start="fault", keyed=True)
    assert count(keyed, "never-retry", "duplicates") == 25
    plain = focal_writes("redelivery")
    assert count(plain, "never-retry", "duplicates") == 30


def test_the_outcome_oracle_over_205_worlds() -> None:
    modes = (
        *("timeout_pre", "timeout_post", "timeout_late"),
        *("http500_pre", "http500_post", "redelivery", "partial_batch"),
    )
    plans = [focal_writes(mode) for mode in modes]
    assert sum(writes(plan) for plan in plans) == 205
    assert sum(count(plan, "outcome-oracle", "exactly_once") for plan in plans) == 180


KEYED_MODES = (
    *("ok", "timeout_pre", "timeout_post", "timeout_late", "timeout_late_tail"),
    *("http500_pre", "http500_post", "partial_batch", "redelivery"),
    *("rate_limited", "unavailable", "outage", "schema_drift"),
)


@pytest.mark.parametrize("in_flight", ["coalesce", "conflict"])
@pytest.mark.parametrize("queued_share", [0.0, 1.0])
@pytest.mark.parametrize("mode", KEYED_MODES)
@pytest.mark.parametrize("first", ["original keyed", "first send keyed"])
def test_the_same_key_is_exactly_once_in_every_mode(
    first: str, mode: str, queued_share: float, in_flight: str
) -> None:
    plan = focal_writes(
        mode,
        preset="keys-everywhere",
        start="fault" if first == "original keyed" else "send",
        keyed=True,
        queued_share=queued_share,
    )
    fields = plan.preset.dump()
    for variant in fields["variants"]:
        variant["contract"]["in_flight_same_key"] = in_flight
    plan = load_plan(fields)
    for spec in ("same-key", "guard", "outcome-oracle"):
        outcomes = run_policy(plan, parse_policy(spec), 1, np.arange(60)).outcomes
        assert outcomes["exactly_once"].all(), spec
        assert not outcomes["false_retry_permissions"].any(), spec
