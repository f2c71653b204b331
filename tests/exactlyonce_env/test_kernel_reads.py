"""What a read-back, an operator and an outage show, and when.  Late 90 s, time-out 30 s."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exactlyonce_env.vocabulary import Authority, OperatorStatus, ReadError

from .worldbench import Episode, run


def tail(delay_s: float) -> dict[str, Any]:
    return {"late_tail": {"family": "fixed", "value_s": delay_s}}


def statuses(world: Episode) -> list[str]:
    """What the last authoritative report said of each attempt."""
    codes = world.view["attempts"]["authority"][: world.view["n_attempts"]]
    return [Authority(int(code)).name.lower() for code in codes]


# The moment of a read ---------------------------------------------------------------------------


@pytest.mark.parametrize(("wait_s", "shown"), [(59.5, 0), (60, 1), (61, 1)])
@pytest.mark.parametrize("queued", [False, True])
def test_a_read_shows_the_moment_at_which_it_is_issued(
    wait_s: float, shown: int, queued: bool
) -> None:
    """Issued at 89.5 s and answered at 90.5 s it does not show the commit at 90 s; a tie shows."""
    world = run("timeout_late", f"wait:{wait_s} read", queued=queued)
    assert world.clocks[-1] == 30 + wait_s + 1
    assert float(world.view["read_at_s"]) == 30 + wait_s
    assert world.shown == shown


@pytest.mark.parametrize("documented", [True, False])
@pytest.mark.parametrize(("wait_s", "shown"), [(119.5, 0), (120, 1)])
def test_an_eventual_read_is_lag_old_whether_the_lag_is_told_or_not(
    wait_s: float, shown: int, documented: bool
) -> None:
    """Commit at 90 s, lag 60 s: visible from 150 s on, which is 120 s after the time-out."""
    world = run(
        "timeout_late",
        f"wait:{wait_s} read",
        readback="eventual",
        lag_s=60,
        lag_documented=documented,
    )
    assert world.shown == shown
    contract = world.plan.contracts[0]
    assert float(contract["lag_s"]) == (60 if documented else -1)


@pytest.mark.parametrize("delay_s", [0.5, 40, 90, 299.75, 300, 300.25, 7200])
@pytest.mark.parametrize("delta_s", [30, 90, 300, 900])
@pytest.mark.parametrize("lag_s", [0, 45, 120])
def test_waiting_delta_plus_lag_succeeds_exactly_when_the_delay_is_at_most_delta(
    delay_s: float, delta_s: float, lag_s: float
) -> None:
    contract = {"readback": "eventual", "lag_s": lag_s} if lag_s else {"readback": "strong"}
    wait_s = delta_s + lag_s - 30
    world = run(["timeout_late_tail"], [f"wait:{wait_s}", "read"], faults=tail(delay_s), **contract)
    assert world.shown == (delay_s <= delta_s)
    absent = run(["timeout_pre"], [f"wait:{wait_s}", "read"], **contract)
    assert absent.shown == 0


@given(
    actions=st.lists(
        st.sampled_from(["read", "wait:15", "wait:100", "retry"]), min_size=1, max_size=8
    ),
    lag_s=st.sampled_from([0.0, 50.0]),
    beyond_s=st.sampled_from([0.25, 1000.0]),
)
def test_completing_the_absent_world_in_time_duplicates_in_every_later_world(
    actions: list[str], lag_s: float, beyond_s: float
) -> None:
    """Done within T where nothing happened, a client repeats whatever lands after T + lag."""
    contract = {"readback": "eventual", "lag_s": lag_s} if lag_s else {"readback": "strong"}
    absent = run(["timeout_pre"], [*actions, "finish"], **contract)
    if absent.measure("task_success"):
        done_s = absent.clocks[-1]
        late = run(
            ["timeout_late_tail"],
            [*actions, "finish"],
            faults=tail(done_s + lag_s + beyond_s),
            **contract,
        )
        assert late.view.tobytes() == absent.view.tobytes()
        assert late.measure("duplicates") >= 1


# Kinds of read-back -----------------------------------------------------------------------------


def test_no_read_back_is_an_error_that_teaches_nothing() -> None:
    world = run("timeout_post ok", "read retry finish", readback="none")
    after_read = world.views[1]
    assert after_read["read_error"] == ReadError.NO_READBACK
    assert after_read["read_at_s"] == -1
    assert after_read["shown"] == 0
    assert world.clocks[1] == 31
    assert world.term("read", 0) == -0.002
    assert world.measure("reads") == 1
    assert world.payloads == [1, 1]


def test_a_read_error_leaves_what_was_read_before() -> None:
    """A batch: the first read shows item 0; a read during the later outage changes nothing."""
    world = run("partial_batch outage ok", "read retry read wait:120 retry finish", n_items=2)
    assert [int(view["shown"]) for view in world.views[1:5]] == [0b01] * 4
    assert world.views[3]["read_error"] == ReadError.OUTAGE
    assert float(world.views[3]["read_at_s"]) == 1
    assert world.payloads == [0b11, 0b10, 0b10]
    assert world.measure("exactly_once") == 1


@pytest.mark.parametrize("queued", [False, True])
def test_authoritative_reads_tell_pending_from_committed_without_a_lag(queued: bool) -> None:
    for wait_s, status in ((59.5, "pending"), (60, "committed")):
        world = run("timeout_late", f"wait:{wait_s} read", readback="authoritative", queued=queued)
        assert statuses(world) == [status]
        assert world.shown == (status == "committed")


@pytest.mark.parametrize(
    ("modes", "actions", "expected"),
    [
        ("timeout_pre", "read", ["not_executed"]),
        ("http500_pre", "read", ["not_executed"]),
        ("timeout_post", "read", ["committed"]),
        ("rate_limited", "read", ["not_executed"]),
        ("outage ok", "wait:120 retry read", ["not_executed", "committed"]),
        # 120 s: the retry sent at 30 s has landed; the original comes at 600 s.
        ("timeout_late_tail timeout_late", "retry wait:60 read", ["pending", "committed"]),
    ],
)
def test_authoritative_statuses(modes: str, actions: str, expected: list[str]) -> None:
    world = run(modes, actions, readback="authoritative", faults=tail(600))
    assert statuses(world) == expected


def test_a_suppressed_request_in_transit_is_pending_until_it_is_refused() -> None:
    keys = {"accepts_key": True, "original_key": "sent", "readback": "authoritative"}
    before = run("timeout_late ok", "keyed_retry read", **keys)
    after = run("timeout_late ok", "keyed_retry wait:59 read", **keys)
    assert statuses(before) == ["pending", "committed"]
    assert statuses(after) == ["not_executed", "committed"]


@pytest.mark.parametrize("in_flight", ["coalesce", "conflict"])
def test_not_executed_is_final_even_where_a_copy_follows(in_flight: str) -> None:
    """The keyed re-issue at 31 s changes nothing; its copy comes after the record expired, at 45 s.

    Either it is not said to be "not executed", or its copy does not execute.
    """
    world = run(
        "timeout_late redelivery",
        "keyed_retry wait:5 read wait:5 finish",
        accepts_key=True,
        original_key="sent",
        key_retention_s=45,
        in_flight_same_key=in_flight,
        readback="authoritative",
        queued=(True, None),
        faults={"late_fixed_s": 32, "copy_delay_s": 77},
    )
    if statuses(world)[1] == "not_executed":
        assert {effect.attempt for effect in world.ledger} == {0}


def test_a_strong_read_gives_no_statuses() -> None:
    assert statuses(run("timeout_pre", "read")) == ["unknown"]


# The operator -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("delay_s", "shown"), [(929.5, 1), (930, 1), (930.5, 0)])
def test_the_operator_reports_the_ledger_at_the_moment_of_the_answer(
    delay_s: float, shown: int
) -> None:
    """Asked at 30 s, answered at 930 s, whatever the read-back is."""
    for readback in ("none", "strong", "eventual", "authoritative"):
        lag_s = 500 if readback == "eventual" else 0
        world = run(
            "timeout_late_tail", "escalate", faults=tail(delay_s), readback=readback, lag_s=lag_s
        )
        assert world.clocks == [30, 930]
        assert world.shown == shown
        assert world.view["operator_status"] == OperatorStatus.ANSWERED
        assert float(world.view["operator_at_s"]) == float(world.view["read_at_s"]) == 930
        assert statuses(world) == ["unknown"]
        assert world.term("escalation") == -0.15
        assert world.measure("operator_s") == 900


def test_the_operator_sees_requests_in_flight_only_where_the_contract_says_so() -> None:
    for sees, expected in ((True, "pending"), (False, "unknown")):
        world = run("timeout_late_tail", "escalate", faults=tail(931), operator_sees_in_flight=sees)
        assert statuses(world) == [expected]
        assert world.shown == 0
    gone = run("timeout_pre ok", "escalate retry finish", operator_sees_in_flight=True)
    assert statuses(gone) == ["not_executed", "unknown"]
    assert gone.false_permissions == 0
    assert gone.measure("exactly_once") == 1


def test_an_operator_report_is_evidence_like_a_strong_read() -> None:
    """After an HTTP 500 an empty report permits the retry that a stale read does not."""
    stale = {"readback": "eventual", "lag_s": 5000}
    for mode, false_permissions in (("http500_pre", 0), ("http500_post", 1), ("timeout_pre", 1)):
        world = run([mode, "ok"], "escalate retry finish", **stale)
        assert world.false_permissions == false_permissions
        assert run([mode, "ok"], "wait:900 read retry finish", **stale).false_permissions == 1


def test_a_retry_sends_what_the_operator_did_not_report() -> None:
    world = run("partial_batch ok", "escalate retry finish", n_items=2, readback="none")
    assert world.payloads == [0b11, 0b10]
    assert world.measure("exactly_once") == 1
    assert world.false_permissions == 0


def test_a_silent_operator_costs_the_same_and_tells_nothing() -> None:
    world = run("timeout_post ok", "escalate retry finish", operator_answer_rate=0)
    asked = world.views[1]
    assert asked["operator_status"] == OperatorStatus.SILENT
    assert asked["read_at_s"] == -1
    assert asked["shown"] == 0
    assert float(asked["operator_at_s"]) == 930
    assert world.term("escalation", 0) == -0.15
    assert world.term("time", 0) == -0.12 * 900 / 3600
    assert world.measure("operator_s") == 900
    assert world.measure("duplicates") == 1


def test_an_outage_does_not_silence_the_operator() -> None:
    world = run("outage", "escalate", operator_delay_s=20)
    assert world.clocks == [1, 21]
    assert world.view["operator_status"] == OperatorStatus.ANSWERED
    assert float(world.view["read_at_s"]) == 21


# Outages ----------------------------------------------------------------------------------------


def test_during_an_outage_every_call_gets_503_with_the_time_left() -> None:
    world = run("outage ok ok", "read wait:50 retry wait:66 read wait:0 read retry finish")
    #            1 s   2     52        53  119 s: still out, answered at 120: back
    assert world.clocks == [1, 2, 52, 53, 119, 120, 120, 121, 122, 122]
    assert [int(view["read_error"]) for view in world.views[1:8]] == [
        ReadError.OUTAGE,
        ReadError.OUTAGE,
        ReadError.OUTAGE,
        ReadError.OUTAGE,
        ReadError.OUTAGE,
        ReadError.OUTAGE,
        ReadError.NONE,
    ]
    assert {float(view["retry_at_s"]) for view in world.views} == {120}
    assert world.responses == ["unavailable", "unavailable", "success"]
    assert world.times == [122]
    assert world.false_permissions == 0
    assert world.measure("exactly_once") == 1
    assert (world.measure("reads"), world.measure("reissues")) == (3, 2)


def test_an_outage_is_over_at_its_very_end() -> None:
    assert run("outage ok", "wait:119 retry").responses == ["unavailable", "success"]
    assert run("outage ok", "wait:118.5 retry").responses == ["unavailable", "unavailable"]


def test_a_read_during_an_outage_fails_where_there_is_no_read_back_too() -> None:
    world = run("outage", "read wait:118 read", readback="none")
    assert [int(view["read_error"]) for view in world.views] == [
        ReadError.NONE,
        ReadError.OUTAGE,
        ReadError.OUTAGE,
        ReadError.NO_READBACK,
    ]


def test_an_attempt_sent_into_an_outage_uses_up_its_number() -> None:
    """The second attempt would have been redelivered; the outage takes its number."""
    world = run("outage redelivery ok", "retry wait:120 retry finish")
    assert world.responses == ["unavailable", "unavailable", "success"]
    assert [(e.time_s, e.attempt) for e in world.ledger] == [(123.0, 2)]
    spent = run("outage ok", "retry wait:120 retry finish", max_attempts=2)
    assert spent.responses == ["unavailable", "unavailable"]
    assert spent.view["n_client_errors"] == 1
    assert spent.measure("omissions") == 1


def test_an_outage_met_during_an_outage_does_not_prolong_it() -> None:
    world = run("outage outage ok", "wait:50 retry wait:68 retry finish")
    assert [float(view["retry_at_s"]) for view in world.views[:3]] == [120, 120, 120]
    assert world.clocks[3] == 120
    assert world.responses[-1] == "success"


def test_a_later_call_may_meet_an_outage_of_its_own() -> None:
    world = run("outage outage ok", "wait:129 retry read wait:118 read")
    assert float(world.views[2]["retry_at_s"]) == 250
    assert world.views[3]["read_error"] == ReadError.OUTAGE
    assert world.clocks[4] == 250
    assert world.views[5]["read_error"] == ReadError.NONE


@pytest.mark.parametrize("queued", [False, True])
def test_a_write_in_flight_lands_during_an_outage(queued: bool) -> None:
    """Late at 90 s; the re-issue at 30 s meets an outage until 150 s."""
    world = run("timeout_late outage", "retry wait:118 read wait:0 read", queued=(queued, None))
    assert world.times == [90]
    assert world.views[3]["read_error"] == ReadError.OUTAGE
    assert world.clocks[3] == 150
    assert world.shown == 1


@pytest.mark.parametrize(
    ("mode", "response"),
    [("rate_limited", "rate_limited"), ("unavailable", "unavailable"), ("schema_drift", "schema")],
)
def test_refusals_belong_to_their_one_attempt(mode: str, response: str) -> None:
    """Nothing but an outage touches the next call, even one that ignores the Retry-After."""
    world = run([mode, "ok"], "read retry finish")
    assert world.views[1]["read_error"] == ReadError.NONE
    assert world.responses == [response, "success"]
    assert world.clocks == [1, 2, 3, 3]
    assert world.measure("exactly_once") == 1
    assert world.false_permissions == 0
