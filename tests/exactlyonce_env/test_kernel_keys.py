"""Idempotency keys, sentence by sentence of the design.  Late 90 s, time-out 30 s, latency 1 s."""

from __future__ import annotations

from typing import Any

import pytest

from .worldbench import Episode, run

KEYED = {"accepts_key": True, "original_key": "sent", "key_retention_s": None}


def keyed(modes: str, actions: str, **options: Any) -> Episode:
    return run(modes, actions, **{**KEYED, **options})


def tail(delay_s: float, **faults: Any) -> dict[str, Any]:
    return {"late_tail": {"family": "fixed", "value_s": delay_s}, **faults}


def test_a_lost_request_leaves_no_record() -> None:
    world = keyed("timeout_pre http500_pre ok ok", "keyed_retry keyed_retry keyed_retry finish")
    #              30 s        31           32 executes, 33 replays
    assert world.responses == ["timeout", "server_error", "success", "success"]
    assert [(e.time_s, e.attempt) for e in world.ledger] == [(32.0, 2)]
    assert world.false_permissions == 0


@pytest.mark.parametrize(
    ("wait_s", "response", "answered_s"),
    [
        (0, "timeout", 60),  # sent at 30 s: the first is done at 90 s, too late for this client
        (29.5, "timeout", 89.5),
        (30, "success", 90),  # sent at 60 s: the result comes at the very end of its patience
        (35, "success", 90),
        (59.5, "success", 90.5),  # an ordinary call's time at least
        (60, "success", 91),  # done: a plain replay
        (500, "success", 531),
    ],
)
def test_a_retry_coalesces_with_a_queued_original(
    wait_s: float, response: str, answered_s: float
) -> None:
    world = keyed("timeout_late ok", f"wait:{wait_s} keyed_retry finish", queued=(True,))
    assert world.responses == ["timeout", response]
    assert world.answers[1] == world.clocks[2] == answered_s
    assert [(e.time_s, e.attempt) for e in world.ledger] == [(90.0, 0)]
    assert world.false_permissions == 0
    assert world.measure("exactly_once") == 1


@pytest.mark.parametrize(
    ("wait_s", "response"), [(0, "conflict"), (59.5, "conflict"), (60, "success")]
)
def test_or_gets_409_while_the_original_is_in_progress(wait_s: float, response: str) -> None:
    world = keyed(
        "timeout_late ok",
        f"wait:{wait_s} keyed_retry finish",
        queued=(True,),
        in_flight_same_key="conflict",
    )
    assert world.responses == ["timeout", response]
    assert world.answers[1] == 30 + wait_s + 1
    assert [(e.time_s, e.attempt) for e in world.ledger] == [(90.0, 0)]
    assert world.false_permissions == 0
    assert world.view["retry_at_s"] == 0


def test_a_409_tells_of_its_own_attempt_only() -> None:
    """Refused without effect; the original stays open, so a plain retry is not permitted."""
    world = keyed(
        "timeout_late ok ok",
        "keyed_retry retry finish",
        queued=(True,),
        in_flight_same_key="conflict",
    )
    attempts = world.views[1]["attempts"]
    assert attempts["clear"][:2].tolist() == [0, 1]
    assert world.false_permissions == 1
    assert world.times == [32, 90]


@pytest.mark.parametrize("in_flight", ["coalesce", "conflict"])
@pytest.mark.parametrize(
    ("wait_s", "effect"),
    [
        (0, (31.0, 1)),  # the retry arrives first, at 30 s
        (59.5, (90.5, 1)),  # arrives at 89.5 s, executes after the original's arrival
        (60, (90.0, 0)),  # both at 90 s: the lower number is first
        (70, (90.0, 0)),
    ],
)
def test_in_transit_whichever_arrives_first_has_the_effect(
    wait_s: float, effect: tuple[float, int], in_flight: str
) -> None:
    world = keyed(
        "timeout_late ok",
        f"wait:{wait_s} keyed_retry finish",
        queued=(False,),
        in_flight_same_key=in_flight,
    )
    # A request that arrived and executes in the same instant is done: never a conflict.
    assert world.responses == ["timeout", "success"]
    assert [(e.time_s, e.attempt) for e in world.ledger] == [effect]
    assert world.measure("exactly_once") == 1


def test_two_requests_in_transit() -> None:
    """The original lands at 600 s, the retry sent at 30 s lands at 120 s and is first."""
    world = keyed("timeout_late_tail timeout_late", "keyed_retry finish", faults=tail(600))
    assert world.responses == ["timeout", "timeout"]
    assert [(e.time_s, e.attempt) for e in world.ledger] == [(120.0, 1)]
    plain = run("timeout_late_tail timeout_late", "retry finish", faults=tail(600))
    assert plain.times == [120, 600]


@pytest.mark.parametrize("in_flight", ["coalesce", "conflict"])
def test_one_in_transit_and_one_queued(in_flight: str) -> None:
    """The retry is queued at 30 s; the original arrives at 45 s and finds it in progress."""
    world = keyed(
        "timeout_late_tail timeout_late",
        "keyed_retry finish",
        faults=tail(45),
        queued=(False, True),
        in_flight_same_key=in_flight,
    )
    assert [(e.time_s, e.attempt) for e in world.ledger] == [(120.0, 1)]


@pytest.mark.parametrize(
    ("retry_s", "times", "false_permissions"),
    [(99.5, [1], 0), (100, [1, 101], 1), (250, [1, 251], 1)],
)
def test_an_expired_record_protects_nothing(
    retry_s: float, times: list[float], false_permissions: int
) -> None:
    world = keyed("timeout_post ok", f"wait:{retry_s - 30} keyed_retry finish", key_retention_s=100)
    assert world.times == times
    assert world.false_permissions == false_permissions
    assert world.responses[1] == "success"


def test_a_replay_does_not_renew_the_record() -> None:
    """It lives from the first arrival that created it: 0 s to 100 s."""
    world = keyed(
        "timeout_post ok ok", "wait:60 keyed_retry wait:10 keyed_retry finish", key_retention_s=100
    )
    assert [(e.time_s, e.attempt) for e in world.ledger] == [(1.0, 0), (102.0, 2)]
    assert world.false_permissions == 1


def test_a_new_effect_makes_a_new_record() -> None:
    world = keyed(
        "timeout_post ok ok", "wait:80 keyed_retry wait:80 keyed_retry finish", key_retention_s=100
    )
    #                     110 s executes     191 s: its record lives to 210 s
    assert [(e.time_s, e.attempt) for e in world.ledger] == [(1.0, 0), (111.0, 1)]
    # Attempt 0 is neither known absent nor covered any more: both re-issues were bets.
    assert world.false_permissions == 2


@pytest.mark.parametrize("in_flight", ["coalesce", "conflict"])
def test_a_queued_original_executes_after_its_record_expired(in_flight: str) -> None:
    """Queued at 0 s, record to 100 s, execution at 600 s: beside the newer effect."""
    world = keyed(
        "timeout_late_tail ok",
        "wait:90 keyed_retry finish",
        faults=tail(600),
        queued=(True,),
        key_retention_s=100,
        in_flight_same_key=in_flight,
    )
    assert world.responses == ["timeout", "success"]
    assert [(e.time_s, e.attempt) for e in world.ledger] == [(121.0, 1), (600.0, 0)]
    assert world.measure("duplicates") == 1
    assert world.false_permissions == 1


def test_a_record_in_transit_lives_from_its_arrival() -> None:
    """Arrived at 600 s: at 650 s the service replays, though the client could not count on it."""
    world = keyed(
        "timeout_late_tail ok", "wait:620 keyed_retry finish", faults=tail(600), key_retention_s=100
    )
    assert [(e.time_s, e.attempt) for e in world.ledger] == [(600.0, 0)]
    assert world.false_permissions == 1


def test_a_record_may_expire_before_the_original_in_transit_arrives() -> None:
    """The retry's record lives from 30 s to 80 s; the original arrives at 90 s and executes."""
    world = keyed("timeout_late ok", "keyed_retry finish", key_retention_s=50)
    assert world.times == [31, 90]
    assert world.false_permissions == 0


def test_a_plain_retry_is_never_protected() -> None:
    for modes, queued in (("timeout_post ok", ()), ("timeout_late ok", (True,))):
        world = keyed(modes, "retry finish", queued=queued)
        assert world.keys == ["pinned", "none"]
        assert world.measure("duplicates") == 1
        assert world.false_permissions == 1


def test_a_plain_attempt_leaves_no_record() -> None:
    world = keyed("timeout_pre ok ok", "retry keyed_retry finish")
    assert [(e.time_s, e.attempt) for e in world.ledger] == [(31.0, 1), (32.0, 2)]
    assert world.false_permissions == 2


def test_a_key_never_protects_an_original_that_omitted_it() -> None:
    world = keyed("timeout_post ok ok", "keyed_retry keyed_retry finish", original_key="omitted")
    assert world.keys == ["none", "pinned", "pinned"]
    assert world.times == [1, 31]  # the second keyed retry replays the first
    assert world.false_permissions == 2


def test_a_different_candidate_is_one_fixed_other_key() -> None:
    world = keyed("timeout_post ok ok", "keyed_retry keyed_retry finish", candidate_key="different")
    assert world.keys == ["pinned", "other", "other"]
    assert world.times == [1, 31]
    assert world.false_permissions == 2
    sent = run(
        "timeout_post ok ok",
        "keyed_retry keyed_retry finish",
        start="send",
        accepts_key=True,
        candidate_key="different",
    )
    assert sent.keys == ["other", "other"]
    assert sent.times == [1]
    assert sent.false_permissions == 0


def test_a_keyed_retry_where_no_key_is_taken_is_a_client_error() -> None:
    world = run("timeout_pre ok", "keyed_retry retry finish")
    after = world.views[1]
    assert (after["n_client_errors"], after["n_attempts"], after["n_reissues"]) == (1, 1, 0)
    assert after["n_steps"] == 1
    assert world.clocks[1] == 30
    assert world.rewards[0] == 0
    assert world.measure("reissues") == 1
    assert world.times == [31]  # the refused call did not use up a number


@pytest.mark.parametrize("action", ["retry", "keyed_retry"])
def test_beyond_max_attempts_is_the_same_kind_of_client_error(action: str) -> None:
    world = keyed("timeout_pre timeout_pre", f"{action} {action} finish", max_attempts=2)
    assert world.view["n_attempts"] == 2
    assert world.view["n_client_errors"] == 1
    assert world.clocks == [30, 60, 60, 60]
    assert world.rewards[1] == 0
    assert world.measure("reissues") == 1
    assert world.measure("steps") == 3


# Redelivery -------------------------------------------------------------------------------------


def test_a_redelivered_copy_comes_under_the_same_key() -> None:
    assert keyed("redelivery", "finish").times == [1]
    assert keyed("redelivery", "finish", original_key="omitted").times == [1, 3]
    assert keyed("redelivery", "finish", accepts_key=False, original_key="omitted").times == [1, 3]


def test_a_redelivered_copy_of_a_replay_is_suppressed_too() -> None:
    assert keyed("timeout_post redelivery", "keyed_retry finish").times == [1]


def test_a_copy_that_comes_after_the_record_expired_executes() -> None:
    world = keyed("redelivery", "finish", key_retention_s=100, faults={"copy_delay_s": 100})
    assert world.times == [1, 101]
    assert keyed(
        "redelivery", "finish", key_retention_s=101.5, faults={"copy_delay_s": 100}
    ).times == [1]


def test_a_copy_shows_in_reads_like_any_effect() -> None:
    world = run("redelivery", "read wait:10 read finish", n_items=2)
    assert [int(view["shown"]) for view in world.views[1:4]] == [0b11] * 3
    assert [(e.time_s, e.item, e.is_copy) for e in world.ledger] == [
        (1.0, 0, False),
        (1.0, 1, False),
        (3.0, 0, True),
        (3.0, 1, True),
    ]
    assert world.measure("duplicates") == 2


def test_a_copy_meets_the_record_of_a_newer_effect() -> None:
    """The retry sent at 701 s finds the record expired and makes one that lives to 1301 s; the copy
    of the original comes at 1000 s, under the same key."""
    world = keyed(
        "redelivery ok",
        "wait:700 keyed_retry finish",
        key_retention_s=600,
        faults={"copy_delay_s": 999},
    )
    assert [(e.time_s, e.attempt) for e in world.ledger] == [(1.0, 0), (702.0, 1)]


def test_a_copy_meets_the_record_of_a_request_that_was_in_transit() -> None:
    """The retry's record lives from 40 s to 85 s. The original arrives at 90 s, executes and makes
    one that lives to 135 s. The copy of the retry comes at 130 s, under the same key."""
    world = keyed(
        "timeout_late redelivery",
        "wait:10 keyed_retry finish",
        key_retention_s=45,
        faults={"copy_delay_s": 89},
    )
    assert [(e.time_s, e.attempt) for e in world.ledger] == [(41.0, 1), (90.0, 0)]
