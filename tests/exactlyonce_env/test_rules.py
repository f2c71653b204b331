"""The rules of the world, one by one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exactlyonce_env import rules
from exactlyonce_env.vocabulary import GROUPS, Mode, Readback, Response


def test_which_modes_execute_at_all() -> None:
    executing = {
        Mode.OK,
        Mode.TIMEOUT_POST,
        Mode.TIMEOUT_LATE,
        Mode.TIMEOUT_LATE_TAIL,
        Mode.HTTP500_POST,
        Mode.PARTIAL_BATCH,
        Mode.REDELIVERY,
    }
    assert {mode for mode in Mode if rules.commits(int(mode))} == executing
    late = {Mode.TIMEOUT_LATE, Mode.TIMEOUT_LATE_TAIL}
    assert {mode for mode in Mode if rules.is_late(int(mode))} == late


def test_groups_cover_the_modes_once() -> None:
    grouped = [mode for modes in GROUPS.values() for mode in modes]
    assert sorted(grouped) == sorted(Mode)
    assert len(Mode) == 13


def test_responses_of_modes() -> None:
    expected = {
        Response.SUCCESS: GROUPS["acknowledged"],
        Response.TIMEOUT: GROUPS["timeout"],
        Response.SERVER_ERROR: GROUPS["server_error"],
        Response.RATE_LIMITED: (Mode.RATE_LIMITED,),
        Response.UNAVAILABLE: (Mode.UNAVAILABLE, Mode.OUTAGE),
        Response.SCHEMA: (Mode.SCHEMA_DRIFT,),
    }
    for response, modes in expected.items():
        for mode in modes:
            assert rules.response_of(int(mode)) == response


def test_responses_that_refuse_and_that_leave_it_open() -> None:
    refused = {Response.RATE_LIMITED, Response.UNAVAILABLE, Response.SCHEMA, Response.CONFLICT}
    assert {r for r in Response if rules.is_rejection(int(r))} == refused
    unknown = {Response.TIMEOUT, Response.SERVER_ERROR}
    assert {r for r in Response if rules.is_unknown(int(r))} == unknown


@pytest.mark.parametrize("response", list(Response))
def test_only_a_time_out_takes_the_client_s_patience(response: Response) -> None:
    wait_s = rules.response_delay_s(int(response), 1.0, 30.0)
    assert wait_s == (30.0 if response == Response.TIMEOUT else 1.0)


def test_commit_and_visibility() -> None:
    assert rules.commit_time_s(10.0, 90.0) == 100.0
    assert rules.commit_time_s(10.0, math.inf) == math.inf
    assert rules.read_horizon_s(int(Readback.STRONG), 60.0, 100.0) == 100.0
    assert rules.read_horizon_s(int(Readback.EVENTUAL), 60.0, 100.0) == 40.0
    assert rules.read_horizon_s(int(Readback.AUTHORITATIVE), 60.0, 100.0) == 100.0
    assert rules.visible(40.0, 40.0)
    assert not rules.visible(math.nextafter(40.0, 41.0), 40.0)
    assert not rules.visible(math.inf, 1e300)


@pytest.mark.parametrize(
    ("now_s", "alive"), [(9.9, False), (10, True), (109.9, True), (110, False), (1e9, False)]
)
def test_life_of_a_key_record(now_s: float, alive: bool) -> None:
    assert bool(rules.record_alive(10.0, 100.0, now_s)) == alive
    assert bool(rules.record_alive(10.0, math.inf, now_s)) == (now_s >= 10)


@pytest.mark.parametrize(
    ("execution_s", "answer_s"),
    [
        (5.0, 11.0),
        (11.0, 11.0),
        (25.0, 25.0),
        (40.0, 40.0),
        (40.01, math.inf),
        (math.inf, math.inf),
    ],
)
def test_answer_of_a_coalesced_call(execution_s: float, answer_s: float) -> None:
    """Sent at 10 s with a latency of 1 s and a patience of 30 s."""
    assert rules.coalesced_answer_s(10.0, 1.0, 30.0, execution_s) == answer_s


def test_when_nothing_more_can_come_of_an_attempt() -> None:
    after = {r: rules.terminal_after_s(int(r), 10.0, 12.0, 500.0) for r in Response if r}
    assert after[Response.TIMEOUT] == 510.0
    assert after[Response.SUCCESS] == math.inf
    for response in set(after) - {Response.TIMEOUT, Response.SUCCESS}:
        assert after[response] == 12.0
    assert rules.terminal_after_s(int(Response.TIMEOUT), 10.0, 40.0, math.inf) == math.inf


MASK = st.integers(0, 2**30 - 1)


@given(MASK, st.integers(0, 30))
def test_first_items_are_the_lowest(mask: int, count: int) -> None:
    items = [k for k in range(30) if mask >> k & 1]
    assert rules.first_items(mask, count) == sum(1 << k for k in items[:count])
    assert rules.count_items(mask) == len(items)


def test_full_payload() -> None:
    assert rules.full_payload(1) == 0b1
    assert rules.full_payload(4) == 0b1111
    assert rules.full_payload(30) == 2**30 - 1


@pytest.mark.parametrize(
    ("reported", "shown", "payload"),
    [
        (False, 0b0000, 0b1111),  # nothing was read
        (True, 0b0000, 0b1111),
        (True, 0b0011, 0b1100),
        (True, 0b0101, 0b1010),
        (True, 0b1111, 0b1111),  # it showed everything
    ],
)
def test_what_a_retry_sends(reported: bool, shown: int, payload: int) -> None:
    assert rules.retry_payload(reported, shown, 0b1111) == payload
