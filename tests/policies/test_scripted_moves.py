"""The moves of the honest line-up, written out for one world after another."""

from __future__ import annotations

import pytest

from .episodebench import DECIDING, VERIFYING, plan_of, play

HONEST = tuple(spec for spec in DECIDING if "oracle" not in spec)

# Time-out at 30 s, read-back strong, no key.
UNKNOWN_AND_ABSENT = {
    "never-retry": ["finish_uncertain"],
    "blind-retry": ["retry", "finish"],
    "sdk-retry": ["wait:1", "retry", "finish"],
    "rules": ["finish_uncertain"],
    "verify-retry": ["read", "retry", "finish"],
    "wait:10": ["read", "retry", "finish"],
    "wait:60": ["wait:30", "read", "retry", "finish"],
    "poll:30": ["read", "retry", "finish"],
    "poll:100": [
        *("read", "wait:14", "read", "wait:29", "read", "wait:24", "read"),
        *("retry", "finish"),
    ],
    "same-key": ["retry", "finish"],
    "guard": ["read", "retry", "finish"],
    "escalate": ["escalate", "retry", "finish"],
    "state-oracle": ["retry", "finish"],
    "outcome-oracle": ["retry", "finish"],
}


@pytest.mark.parametrize("spec", UNKNOWN_AND_ABSENT)
def test_a_timeout_that_hides_an_absent_write(spec: str) -> None:
    played = play(plan_of("timeout_pre"), spec)
    assert played.moves == UNKNOWN_AND_ABSENT[spec]
    assert played.outcome.exactly_once == (spec not in ("never-retry", "rules"))


UNKNOWN_AND_COMMITTED = {
    "never-retry": ["finish_uncertain"],
    "blind-retry": ["retry", "finish"],
    "sdk-retry": ["wait:1", "retry", "finish"],
    "rules": ["finish_uncertain"],
    "verify-retry": ["read", "finish"],
    "wait:60": ["wait:30", "read", "finish"],
    "poll:100": ["read", "finish"],
    "same-key": ["retry", "finish"],
    "guard": ["read", "finish"],
    "escalate": ["escalate", "finish"],
    "state-oracle": ["finish"],
    "outcome-oracle": ["finish"],
}


@pytest.mark.parametrize("mode", ["timeout_post", "http500_post"])
@pytest.mark.parametrize("spec", UNKNOWN_AND_COMMITTED)
def test_an_error_that_hides_a_committed_write(spec: str, mode: str) -> None:
    played = play(plan_of(mode), spec)
    wanted = UNKNOWN_AND_COMMITTED[spec]
    if mode == "http500_post" and spec == "wait:60":
        wanted = ["wait:59", "read", "finish"]  # the answer came after 1 s instead of 30 s
    assert played.moves == wanted
    assert played.outcome.duplicates == (spec in ("blind-retry", "sdk-retry", "same-key"))


@pytest.mark.parametrize(
    ("mode", "retry_after_s"), [("rate_limited", 5), ("unavailable", 5), ("outage", 119)]
)
@pytest.mark.parametrize("spec", DECIDING)
def test_a_rejection_with_retry_after_is_obeyed_and_repeated_without_a_look(
    spec: str, mode: str, retry_after_s: float
) -> None:
    wanted = [f"wait:{retry_after_s}", "retry", "finish"]
    assert play(plan_of(mode), spec).moves == (
        ["finish_uncertain"] if spec == "never-retry" else wanted
    )


@pytest.mark.parametrize("spec", DECIDING)
def test_a_changed_schema_is_repeated_at_once_except_by_those_who_never_do(spec: str) -> None:
    gives_up = spec in ("never-retry", "sdk-retry", "rules")
    assert play(plan_of("schema_drift"), spec).moves == (
        ["finish_uncertain"] if gives_up else ["retry", "finish"]
    )


@pytest.mark.parametrize("spec", DECIDING)
def test_an_acknowledged_write_is_finished_at_once(spec: str) -> None:
    assert play(plan_of("ok"), spec).moves == ["finish"]


@pytest.mark.parametrize("spec", DECIDING)
def test_the_first_send_carries_a_key_only_where_the_policy_adds_one(spec: str) -> None:
    adds = spec in ("same-key", "guard", "state-oracle", "outcome-oracle")
    keyed = play(plan_of("ok", start="send", accepts_key=True), spec)
    plain = play(plan_of("ok", start="send"), spec)
    assert keyed.moves == ["keyed_retry" if adds else "retry", "finish"]
    assert plain.moves == ["retry", "finish"]


@pytest.mark.parametrize("spec", ["blind-retry", "sdk-retry", "verify-retry", "wait:60", "poll:60"])
def test_a_reissue_repeats_the_request_as_it_was_first_sent(spec: str) -> None:
    keyed = play(plan_of("timeout_pre", accepts_key=True, original_key="sent"), spec)
    plain = play(plan_of("timeout_pre", accepts_key=True), spec)
    assert keyed.moves[-2:] == ["keyed_retry", "finish"]
    assert plain.moves[-2:] == ["retry", "finish"]


def test_sdk_retry_backs_off_three_times_and_then_gives_up() -> None:
    played = play(plan_of("timeout_pre", "timeout_pre"), "sdk-retry")
    assert played.moves == [
        *("wait:1", "retry", "wait:2", "retry", "wait:4", "retry", "finish_uncertain")
    ]
    assert played.outcome.elapsed_s == 4 * 30 + 7


def test_sdk_retry_waits_for_the_longer_of_its_own_pause_and_retry_after() -> None:
    plan = plan_of("rate_limited", "rate_limited", faults={"retry_after_s": 3})
    played = play(plan, "sdk-retry")
    assert played.moves == [
        *("wait:3", "retry", "wait:3", "retry", "wait:4", "retry", "finish_uncertain")
    ]


def test_a_conflict_is_answered_with_the_same_key_after_growing_pauses() -> None:
    # Keyed and queued for 90 s: 409 at 31 s and at 62 s, the first one's result at 122 s.
    plan = plan_of(
        "timeout_late",
        accepts_key=True,
        original_key="sent",
        in_flight_same_key="conflict",
        faults={"queued_share": 1.0},
    )
    for spec in ("same-key", "blind-retry", "guard"):
        played = play(plan, spec)
        assert played.moves == [
            *("keyed_retry", "wait:30", "keyed_retry", "wait:60", "keyed_retry", "finish")
        ]
        assert played.outcome.exactly_once


@pytest.mark.parametrize("spec", [*VERIFYING, "guard", "escalate"])
@pytest.mark.parametrize(
    ("mode", "then"), [("timeout_post", ["finish"]), ("timeout_pre", ["retry", "finish"])]
)
def test_without_read_back_the_operator_is_asked(spec: str, mode: str, then: list[str]) -> None:
    assert play(plan_of(mode, readback="none"), spec).moves == ["escalate", *then]


@pytest.mark.parametrize("spec", [*VERIFYING, "guard", "escalate"])
def test_a_silent_operator_leaves_it_uncertain(spec: str) -> None:
    plan = plan_of("timeout_pre", readback="none", operator_answer_rate=0.0)
    assert play(plan, spec).moves == ["escalate", "finish_uncertain"]


@pytest.mark.parametrize("spec", [*VERIFYING, "escalate"])
def test_every_unknown_outcome_is_asked_about_anew(spec: str) -> None:
    plan = plan_of("timeout_pre", "http500_pre", readback="none", max_attempts=3)
    asked = ["escalate", "retry"]
    assert play(plan, spec).moves == [*asked, *asked, "escalate", "finish_uncertain"]


@pytest.mark.parametrize("spec", [*VERIFYING, "guard", "escalate"])
def test_instant_calls_and_answers_cause_no_endless_questions(spec: str) -> None:
    plan = plan_of(
        "http500_pre",
        "http500_pre",
        readback="none",
        latency_s=0.0,
        operator_delay_s=0.0,
        max_attempts=3,
    )
    asked = ["escalate", "retry"]
    played = play(plan, spec)
    assert played.moves[:4] == [*asked, *asked]
    assert played.moves[-1] == "finish_uncertain"
    assert played.outcome.elapsed_s == 0.0


@pytest.mark.parametrize("spec", ["verify-retry", "wait:30", "poll:30", "guard"])
def test_verifiers_look_once_more_when_no_attempt_is_left(spec: str) -> None:
    plan = plan_of("timeout_pre", "timeout_post", max_attempts=2)
    assert play(plan, spec).moves == ["read", "retry", "read", "finish"]
    plan = plan_of("timeout_pre", "timeout_pre", max_attempts=2)
    assert play(plan, spec).moves == ["read", "retry", "read", "finish_uncertain"]
    # A late original shows up although the last attempt was refused: 429 at 32 s, 5 s to wait.
    plan = plan_of("timeout_late", "rate_limited", max_attempts=2, faults={"late_fixed_s": 36})
    assert play(plan, spec).moves == ["read", "retry", "wait:5", "read", "finish"]


@pytest.mark.parametrize("spec", [*VERIFYING, "guard", "escalate"])
def test_nobody_asks_about_what_is_known_to_be_absent(spec: str) -> None:
    plan = plan_of("unavailable", "unavailable", max_attempts=2, readback="none")
    assert play(plan, spec).moves == ["wait:5", "retry", "finish_uncertain"]


@pytest.mark.parametrize("spec", ["blind-retry", "same-key", "rules"])
def test_others_end_uncertain_when_no_attempt_is_left(spec: str) -> None:
    plan = plan_of("unavailable", "unavailable", max_attempts=2)
    assert play(plan, spec).moves == ["wait:5", "retry", "finish_uncertain"]


def test_a_read_in_an_outage_is_made_again_when_it_is_over() -> None:
    # The outage meets the re-issue at 31 s; guard must look again, for attempt 0 may still land.
    played = play(plan_of("timeout_late", "outage", max_attempts=2), "guard")
    assert played.moves == ["read", "retry", "wait:119", "read", "finish"]
    assert played.outcome.exactly_once


@pytest.mark.parametrize("spec", ["verify-retry", "wait:40", "poll:40", "guard"])
def test_a_pending_attempt_is_looked_at_again_and_never_repeated(spec: str) -> None:
    played = play(plan_of("timeout_late", readback="authoritative"), spec)
    assert "retry" not in played.moves
    assert played.moves[-2:] == ["read", "finish"]
    assert played.outcome.exactly_once
    assert played.outcome.elapsed_s < 2.5 * 90


def test_polling_stops_where_an_authoritative_read_says_not_executed() -> None:
    played = play(plan_of("timeout_pre", readback="authoritative"), "poll:900")
    assert played.moves == ["read", "retry", "finish"]


@pytest.mark.parametrize("spec", HONEST)
def test_a_request_that_the_operator_sees_in_flight_is_never_repeated(spec: str) -> None:
    plan = plan_of(
        "timeout_late",
        readback="none",
        operator_sees_in_flight=True,
        faults={"late_fixed_s": 5000},
    )
    played = play(plan, spec)
    if "escalate" in played.moves:
        assert played.moves == ["escalate", "finish_uncertain"]
        assert played.outcome.exactly_once
    else:
        assert spec in ("never-retry", "blind-retry", "sdk-retry", "rules", "same-key")


@pytest.mark.parametrize("spec", ["verify-retry", "wait:60", "poll:60", "guard"])
def test_a_batch_is_completed_with_the_missing_items_only(spec: str) -> None:
    played = play(plan_of("partial_batch", n_items=4), spec)
    first, second = played.view.attempts[0].payload, played.view.attempts[1].payload
    assert first == 0b1111
    assert 0 < second < first
    assert played.outcome.exactly_once
    assert not played.outcome.unresolved
