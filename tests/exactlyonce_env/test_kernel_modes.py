"""Every fault mode against every contract class, with numbers worked out by hand from the design.

Constants of these tables: latency 1 s, client time-out 30 s, late delay 90 s, tail fixed at 600 s,
copy after 2 s, Retry-After 5 s, outage 120 s.
"""

from __future__ import annotations

from typing import Any

import pytest

from exactlyonce_env.vocabulary import GROUPS, MODE_NAMES

from .worldbench import Episode, bench, find_world, play, run

TAIL = {"late_tail": {"family": "fixed", "value_s": 600}}

# mode: response, answered at [s], effects at [s], end of Retry-After [s] (0: none)
FIRST: dict[str, tuple[str, float, list[float], float]] = {
    "ok": ("success", 1, [1], 0),
    "timeout_pre": ("timeout", 30, [], 0),
    "timeout_post": ("timeout", 30, [1], 0),
    "timeout_late": ("timeout", 30, [90], 0),
    "timeout_late_tail": ("timeout", 30, [600], 0),
    "http500_pre": ("server_error", 1, [], 0),
    "http500_post": ("server_error", 1, [1], 0),
    "redelivery": ("success", 1, [1, 3], 0),
    "rate_limited": ("rate_limited", 1, [], 6),
    "unavailable": ("unavailable", 1, [], 6),
    "outage": ("unavailable", 1, [], 120),
    "schema_drift": ("schema", 1, [], 0),
}
MODES = list(FIRST)

CLASSES: dict[str, dict[str, Any]] = {
    "plain-strong": {},
    "plain-eventual": {"readback": "eventual", "lag_s": 60},
    "plain-none": {"readback": "none"},
    "plain-authoritative": {"readback": "authoritative"},
    "keyed-coalesce": {"accepts_key": True, "original_key": "sent"},
    "keyed-conflict": {
        "accepts_key": True,
        "original_key": "sent",
        "in_flight_same_key": "conflict",
    },
    "keyed-omitted": {"accepts_key": True},
    "idempotent": {"idempotent": True},
}


def episode(mode: str, actions: str, contract: str = "plain-strong", **options: Any) -> Episode:
    return run([mode, "ok"], actions, faults=TAIL, **CLASSES[contract], **options)


def test_the_table_names_every_mode_but_the_batch_one() -> None:
    assert {*FIRST, "partial_batch"} == set(MODE_NAMES)


@pytest.mark.parametrize("contract", CLASSES)
@pytest.mark.parametrize("mode", MODES)
def test_first_attempt(mode: str, contract: str) -> None:
    response, answered_s, effects_s, retry_at_s = FIRST[mode]
    if contract.startswith("keyed") and contract != "keyed-omitted" and mode == "redelivery":
        effects_s = [1]  # the copy comes under the same key
    world = episode(mode, "", contract)
    assert world.responses == [response]
    assert world.clocks == world.answers == [answered_s]
    assert world.times == effects_s
    assert float(world.view["retry_at_s"]) == retry_at_s
    assert float(world.view["decided_from_s"]) == answered_s
    assert world.view["n_reissues"] == world.view["n_steps"] == 0


@pytest.mark.parametrize("mode", MODES)
def test_start_send_shows_the_same_as_an_original(mode: str) -> None:
    world = episode(mode, "wait:7 retry", start="send")
    response, answered_s, effects_s, retry_at_s = FIRST[mode]
    assert world.clocks == [0, 7, 7 + answered_s]
    assert world.views[1]["n_attempts"] == 0
    assert world.responses == [response]
    assert world.times == [7 + t for t in effects_s]
    assert float(world.view["retry_at_s"]) == (7 + retry_at_s if retry_at_s else 0)
    assert world.view["n_reissues"] == 0
    assert world.term("reissue") == 0
    assert world.false_permissions == 0
    assert world.measure("elapsed_s") == 7 + answered_s


@pytest.mark.parametrize("mode", MODES)
def test_a_further_attempt_meets_the_same_modes(mode: str) -> None:
    """A re-issue sent at t = 30 after a lost original shows what the table says, 30 s later."""
    world = run(["timeout_pre", mode], "retry finish", faults=TAIL)
    response, answered_s, effects_s, retry_at_s = FIRST[mode]
    assert world.responses == ["timeout", response]
    assert world.clocks[1] == 30 + answered_s
    assert world.times == [30 + t for t in effects_s]
    assert float(world.view["retry_at_s"]) == (30 + retry_at_s if retry_at_s else 0)
    assert world.measure("reissues") == 1


@pytest.mark.parametrize("group", [g for g in GROUPS if g != "explicit"])
@pytest.mark.parametrize("contract", ["plain-strong", "keyed-coalesce", "keyed-conflict"])
def test_a_group_looks_the_same_whatever_is_behind_it(group: str, contract: str) -> None:
    """Byte-identical first views at the same virtual time, hidden outcomes apart."""
    plans = [
        bench(
            mode.name.lower(),
            faults={**TAIL, "queued_share": queued},
            n_items=4,
            **CLASSES[contract],
        )
        for mode in GROUPS[group]
        for queued in (0, 1)
    ]
    views = {play(plan, [], world=k).view.tobytes() for plan in plans for k in range(3)}
    assert len(views) == 1


# (duplicates, omissions, false permissions) of a plain retry at once that meets no fault itself.
BLIND = {
    "ok": (1, 0, 1),
    "timeout_pre": (0, 0, 1),
    "timeout_post": (1, 0, 1),
    "timeout_late": (1, 0, 1),
    "timeout_late_tail": (1, 0, 1),
    "http500_pre": (0, 0, 1),
    "http500_post": (1, 0, 1),
    "redelivery": (2, 0, 1),
    "rate_limited": (0, 0, 0),
    "unavailable": (0, 0, 0),
    "outage": (0, 1, 0),  # sent into the outage: refused as well
    "schema_drift": (0, 0, 0),
}
STOPPED = {  # (duplicates, omissions) without any re-issue
    "ok": (0, 0),
    "timeout_pre": (0, 1),
    "timeout_post": (0, 0),
    "timeout_late": (0, 0),
    "timeout_late_tail": (0, 0),
    "http500_pre": (0, 1),
    "http500_post": (0, 0),
    "redelivery": (1, 0),
    "rate_limited": (0, 1),
    "unavailable": (0, 1),
    "outage": (0, 1),
    "schema_drift": (0, 1),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("last", ["finish", "finish_uncertain"])
def test_stopping_at_once(mode: str, last: str) -> None:
    world = episode(mode, last)
    duplicates, omissions = STOPPED[mode]
    exactly_once = (duplicates, omissions) == (0, 0)
    claimed = last == "finish"
    assert world.measures() == {
        "task_success": omissions == 0,
        "exactly_once": exactly_once,
        "duplicates": duplicates,
        "residual_duplicates": duplicates,
        "omissions": omissions,
        "unresolved": not claimed,
        "resolved_exact": exactly_once and claimed,
        "overclaim": claimed and not exactly_once,
        "false_retry_permissions": 0,
        "elapsed_s": FIRST[mode][1],
        "reads": 0,
        "waits": 0,
        "reissues": 0,
        "escalations": 0,
        "operator_s": 0,
        "steps": 1,
    }
    value = exactly_once - duplicates - 0.5 * omissions
    value -= 0.2 * (claimed and not exactly_once) + 0.3 * (not claimed)
    assert world.reward == pytest.approx(value, abs=1e-15)


@pytest.mark.parametrize("contract", [c for c in CLASSES if c != "idempotent"])
@pytest.mark.parametrize("mode", MODES)
def test_blind_plain_retry(mode: str, contract: str) -> None:
    """A plain retry is never protected, even where the original carried a key."""
    duplicates, omissions, false_permissions = BLIND[mode]
    if contract in ("keyed-coalesce", "keyed-conflict") and mode == "redelivery":
        duplicates = 1  # the copy of the keyed original is suppressed, the plain retry is not
    world = episode(mode, "retry finish", contract)
    assert world.measure("duplicates") == duplicates
    assert world.measure("omissions") == omissions
    assert world.measure("false_retry_permissions") == false_permissions
    assert world.clocks[1] == FIRST[mode][1] + 1


@pytest.mark.parametrize("actions", ["retry finish", "retry retry finish", "read retry finish"])
@pytest.mark.parametrize("mode", MODES)
def test_an_idempotent_write_cannot_duplicate(mode: str, actions: str) -> None:
    world = run([mode, "ok", "ok"], actions, faults=TAIL, **CLASSES["idempotent"])
    assert world.measure("duplicates") == world.measure("residual_duplicates") == 0
    assert world.false_permissions == 0
    assert world.measure("omissions") == (mode == "outage")


KEYED = {  # first same-key retry, in transit: (responses from the second on, effects at)
    "ok": (["success"], [1]),
    "timeout_pre": (["success"], [31]),
    "timeout_post": (["success"], [1]),
    "timeout_late": (["success"], [31]),
    "timeout_late_tail": (["success"], [31]),
    "http500_pre": (["success"], [2]),
    "http500_post": (["success"], [1]),
    "redelivery": (["success"], [1]),
    "rate_limited": (["success"], [2]),
    "unavailable": (["success"], [2]),
    "outage": (["unavailable"], []),
    "schema_drift": (["success"], [2]),
}


@pytest.mark.parametrize("contract", ["keyed-coalesce", "keyed-conflict"])
@pytest.mark.parametrize("mode", MODES)
def test_same_key_retry_is_exactly_once_in_every_mode(mode: str, contract: str) -> None:
    responses, effects_s = KEYED[mode]
    world = episode(mode, "keyed_retry finish", contract)
    assert world.responses[1:] == responses
    assert world.times == effects_s
    assert world.false_permissions == 0
    assert world.measure("duplicates") == 0
    assert world.measure("exactly_once") == (mode != "outage")


@pytest.mark.parametrize("mode", MODES)
def test_a_key_never_protects_an_original_that_omitted_it(mode: str) -> None:
    world = episode(mode, "keyed_retry finish", "keyed-omitted")
    duplicates, omissions, false_permissions = BLIND[mode]
    assert (world.measure("duplicates"), world.measure("omissions")) == (duplicates, omissions)
    assert world.false_permissions == false_permissions


@pytest.mark.parametrize("mode", MODES)
def test_a_different_candidate_key_protects_nothing(mode: str) -> None:
    world = episode(mode, "keyed_retry finish", "keyed-coalesce", candidate_key="different")
    duplicates, omissions, false_permissions = BLIND[mode]
    if mode == "redelivery":
        duplicates = 1  # the pinned key still suppresses the original's own copy
    assert world.keys == ["pinned", "other"]
    assert (world.measure("duplicates"), world.measure("omissions")) == (duplicates, omissions)
    assert world.false_permissions == false_permissions


# After `read` at once: (item shown, false permissions of a retry)
READ_AT_ONCE = {
    "plain-strong": {
        "shown": {"ok", "timeout_post", "http500_post", "redelivery"},
        "permitted": {"http500_pre", "rate_limited", "unavailable", "outage", "schema_drift"},
    },
    "plain-eventual": {  # issued at 1 s or 30 s: nothing committed is 60 s old
        "shown": set(),
        "permitted": {"rate_limited", "unavailable", "outage", "schema_drift"},
    },
    "plain-none": {
        "shown": set(),
        "permitted": {"rate_limited", "unavailable", "outage", "schema_drift"},
    },
    "plain-authoritative": {
        "shown": {"ok", "timeout_post", "http500_post", "redelivery"},
        "permitted": {
            "timeout_pre",
            "http500_pre",
            "rate_limited",
            "unavailable",
            "outage",
            "schema_drift",
        },
    },
}


@pytest.mark.parametrize("contract", READ_AT_ONCE)
@pytest.mark.parametrize("mode", MODES)
def test_read_at_once_then_retry(mode: str, contract: str) -> None:
    table = READ_AT_ONCE[contract]
    world = episode(mode, "read retry finish", contract)
    answered_s = FIRST[mode][1]
    assert world.clocks[1:] == [answered_s + 1, answered_s + 2, answered_s + 2]
    assert world.shown == (mode in table["shown"])
    assert world.false_permissions == (mode not in table["permitted"])
    # The retry sends the one item whether the read showed it or not.
    assert (world.measure("duplicates"), world.measure("omissions")) == BLIND[mode][:2]


def test_an_eventual_read_after_the_lag_teaches_what_a_strong_one_does() -> None:
    """Answered at 1 s, lag 60 s: a read issued at 61 s shows all that an HTTP 500 can hide."""
    for mode, shown in (("http500_pre", 0), ("http500_post", 1)):
        early = episode(mode, "wait:59.5 read retry finish", "plain-eventual")
        late = episode(mode, "wait:60 read retry finish", "plain-eventual")
        assert (early.shown, late.shown) == (0, shown)
        assert early.false_permissions == 1
        assert late.false_permissions == shown


@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.parametrize("mode", ["timeout_late", "timeout_late_tail"])
def test_late_writes_land_whatever_the_client_does(mode: str, queued: bool) -> None:
    due_s = FIRST[mode][2][0]
    for actions in (
        "finish",
        "wait:1000 finish",
        "read read wait:59 escalate read finish_uncertain",
    ):
        world = run([mode], actions, faults=TAIL, queued=queued)
        assert world.times == [due_s]
        assert world.measure("task_success") == 1


def test_the_boundary_of_a_late_delay_below_the_time_out() -> None:
    """A tail draw of 5 s is answered by the same time-out at 30 s."""
    world = run(
        ["timeout_late_tail"],
        "read finish",
        faults={"late_tail": {"family": "fixed", "value_s": 5}},
    )
    assert world.responses == ["timeout"]
    assert world.clocks[0] == 30
    assert world.times == [5]
    assert world.shown == 1


@pytest.mark.parametrize("k", [1, 2, 3])
def test_partial_batch_commits_the_first_items(k: int) -> None:
    plan = bench("partial_batch", n_items=4)
    kept = plan.worlds(0, range(64))["fates"]["n_commit"][:, 0]
    world = play(plan, ["read", "retry", "finish"], world=int((kept == k).argmax()))
    assert world.responses == ["server_error", "success"]
    assert world.shown == (1 << k) - 1
    assert world.payloads == [0b1111, 0b1111 - ((1 << k) - 1)]
    assert [(e.time_s, e.attempt, e.item) for e in world.ledger] == [
        *((1.0, 0, item) for item in range(k)),
        *((3.0, 1, item) for item in range(k, 4)),
    ]
    assert world.false_permissions == 0
    assert world.measure("exactly_once") == 1


@pytest.mark.parametrize("mode", MODES)
def test_batches_of_four_count_item_by_item(mode: str) -> None:
    duplicates, omissions, false_permissions = BLIND[mode]
    world = run([mode, "ok"], "retry finish", faults=TAIL, n_items=4)
    assert world.measure("duplicates") == 4 * duplicates
    assert world.measure("omissions") == 4 * omissions
    assert world.false_permissions == false_permissions
    assert world.payloads == [0b1111, 0b1111]


def test_other_constants_are_fields_of_the_world() -> None:
    faults = {"late_fixed_s": 47, "copy_delay_s": 11, "retry_after_s": 8, "outage_s": 33}
    times = {"latency_s": 2.5, "client_timeout_s": 20}
    assert run("timeout_late", "", faults=faults, **times).times == [47]
    assert run("timeout_late", "", faults=faults, **times).clocks == [20]
    assert run("redelivery", "", faults=faults, **times).times == [2.5, 13.5]
    assert float(run("rate_limited", "", faults=faults, **times).view["retry_at_s"]) == 10.5
    assert float(run("outage", "", faults=faults, **times).view["retry_at_s"]) == 33
    assert run("timeout_pre", "escalate", operator_delay_s=77, **times).clocks == [20, 97]


def test_the_bench_finds_the_fates_it_is_asked_for() -> None:
    plan = bench("timeout_late", "http500_pre", "ok", faults={"queued_share": 0.5})
    k = find_world(plan, ["timeout_late", "http500_pre", "ok"], queued=[True])
    fates = plan.worlds(0, [k])[0]["fates"]
    assert [MODE_NAMES[m] for m in fates["mode"][:3]] == ["timeout_late", "http500_pre", "ok"]
    assert fates["queued"][0] == 1
    with pytest.raises(LookupError, match="redelivery"):
        find_world(plan, ["redelivery"])
