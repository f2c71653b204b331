"""Views that no world can have produced are refused; all others are accepted."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from exactlyonce_env import kernel
from exactlyonce_env.plan import Plan
from exactlyonce_env.presets import load_plan
from exactlyonce_env.records import TRUTH, VIEW
from exactlyonce_env.view import Attempt, ContradictionError, Report, View
from exactlyonce_env.view_building import item_list
from exactlyonce_env.vocabulary import MODE_NAMES, Action, Authority, Response

STRONG: dict[str, Any] = {"readback": "strong"}
EVENTUAL: dict[str, Any] = {"readback": "eventual", "lag_s": 60.0}
TOLD: dict[str, Any] = {"readback": "authoritative"}
KEYED: dict[str, Any] = {"readback": "strong", "accepts_key": True, "original_key": "sent"}
BATCH: dict[str, Any] = {"readback": "strong", "n_items": 3}

TIMEOUT = Attempt(0.0, 30.0, "timeout")
SUCCESS = Attempt(0.0, 1.0, "success")
ERROR = Attempt(0.0, 1.0, "server_error")
REFUSED = Attempt(0.0, 1.0, "schema")
PINNED = replace(TIMEOUT, key="pinned")


def refused(
    contract: dict[str, Any],
    attempts: list[Attempt],
    *,
    contains: str,
    **history: Any,
) -> Any:
    return pytest.param(contract, attempts, history, contains, id=contains.replace(" ", "-"))


CONTRADICTIONS = [
    # What the contract rules out.
    refused(STRONG, [PINNED], contains="carried a key, but the write takes none"),
    refused(KEYED, [TIMEOUT], contains="carried key none, but the contract says pinned"),
    refused(
        {**KEYED, "candidate_key": "different"},
        [PINNED, Attempt(30.0, 60.0, "timeout", key="pinned")],
        contains="which this client never sends",
    ),
    refused(STRONG, [], contains="nothing was sent, but the episode starts after"),
    refused(
        {**STRONG, "max_attempts": 1},
        [REFUSED, Attempt(1.0, 2.0, "success")],
        contains="2 attempts, but the contract allows 1",
    ),
    refused(
        {"readback": "none"},
        [TIMEOUT],
        reports=[Report(30.0)],
        read_error="no_readback",
        contains="but the contract has no read-back",
    ),
    refused(STRONG, [TIMEOUT], read_error="no_readback", contains="but the contract has one"),
    refused(
        {"readback": "none"},
        [TIMEOUT],
        counts={"reads": 1},
        clock_s=31.0,
        contains="a read succeeded",
    ),
    refused(
        KEYED,
        [PINNED, Attempt(30.0, 31.0, "conflict", key="pinned")],
        contains="but the service coalesces",
    ),
    refused(STRONG, [TIMEOUT, Attempt(30.0, 31.0, "conflict")], contains="which takes a key"),
    # Times.
    refused(STRONG, [Attempt(0.0, math.nan, "timeout")], contains="answered at nan s"),
    refused(STRONG, [TIMEOUT], clock_s=math.inf, contains="clock_s is inf"),
    refused(STRONG, [Attempt(0.0, 31.0, "timeout")], contains="timeout after 31 s"),
    refused(STRONG, [Attempt(0.0, 2.0, "server_error")], contains="server error after 2 s"),
    refused(STRONG, [Attempt(0.0, 5.0, "success")], contains="success after 5 s"),
    refused(STRONG, [Attempt(5.0, 35.0, "timeout")], contains="but the original at 0 s"),
    refused(
        STRONG,
        [TIMEOUT, Attempt(20.0, 21.0, "success")],
        contains="the client was free at 30 s only",
    ),
    refused(STRONG, [TIMEOUT], clock_s=29.0, contains="but it is 29 s now"),
    refused(STRONG, [TIMEOUT], counts={"waits": 0}, clock_s=90.0, contains="with 0 waits"),
    refused(STRONG, [TIMEOUT], reports=[Report(10.0)], contains="a report of 10 s"),
    refused(
        STRONG,
        [TIMEOUT],
        reports=[Report(90.0)],
        clock_s=90.0,
        contains="cannot have come back by 90 s",
    ),
    refused(STRONG, [TIMEOUT], reports=[Report(90.0)], clock_s=80.0, contains="it is 80 s now"),
    refused(
        STRONG,
        [TIMEOUT],
        reports=[Report(100.0, source="operator")],
        contains="before anybody can have asked",
    ),
    refused(STRONG, [TIMEOUT], retry_at_s=40.0, contains="no answer was 429 or 503"),
    refused(STRONG, [TIMEOUT], read_error="outage", contains="no attempt was answered with 503"),
    # The operator.
    refused(
        STRONG,
        [TIMEOUT],
        operator="silent",
        operator_at_s=930.0,
        contains="but the contract says that it always answers",
    ),
    refused(
        {**STRONG, "operator_answer_rate": 0.0},
        [TIMEOUT],
        reports=[Report(930.0, source="operator")],
        contains="but the contract says that it never does",
    ),
    refused(
        STRONG,
        [TIMEOUT],
        operator="answered",
        operator_at_s=930.0,
        contains="but there is no report",
    ),
    refused(STRONG, [TIMEOUT], operator_at_s=930.0, contains="do not agree"),
    # Items.
    refused(BATCH, [replace(TIMEOUT, items=(0, 1))], contains="does not send the whole operation"),
    refused(BATCH, [replace(TIMEOUT, items=())], contains="attempt 0 sends no item"),
    refused(
        BATCH,
        [ERROR, Attempt(1.0, 2.0, "success", items=(2,))],
        contains="leaves out items that no report has shown",
    ),
    refused(
        BATCH,
        [ERROR, Attempt(2.0, 3.0, "success", items=(1,))],
        reports=[Report(1.0, (0,))],
        contains="leaves out items that no report has shown",
    ),
    refused(
        BATCH,
        [ERROR, Attempt(2.0, 3.0, "success", items=(0, 1, 2))],
        reports=[Report(1.0, (0,))],
        contains="does not send what the report before it left open",
    ),
    refused(
        {**BATCH, "accepts_key": True},
        [
            ERROR,
            Attempt(2.0, 3.0, "server_error", key="pinned", items=(1, 2)),
            Attempt(3.0, 4.0, "server_error", key="pinned", items=(2,)),
        ],
        reports=[Report(1.0, (0,))],
        contains="sends other items than the first one with its key",
    ),
    # Effects that must show, or cannot.
    refused(STRONG, [SUCCESS], reports=[Report(1.0)], contains="was acknowledged, but the report"),
    refused(
        EVENTUAL, [SUCCESS], reports=[Report(61.0)], contains="was acknowledged, but the report"
    ),
    refused(
        EVENTUAL, [SUCCESS], reports=[Report(60.0, (0,))], contains="no attempt can have had by"
    ),
    refused(EVENTUAL, [TIMEOUT], reports=[Report(59.0, (0,))], contains="can have had by -1 s"),
    refused(STRONG, [REFUSED], reports=[Report(1.0, (0,))], contains="shows an effect"),
    refused(BATCH, [TIMEOUT], reports=[Report(90.0, (0,))], contains="an effect that no attempt"),
    refused(BATCH, [ERROR], reports=[Report(90.0, (1, 2))], contains="that no attempt can"),
    refused(
        STRONG,
        [ERROR],
        reports=[Report(1.0), Report(60.0, (0,))],
        contains="an effect that no attempt can have had",
    ),
    refused(
        {**STRONG, "in_flight_bound_s": 100.0},
        [TIMEOUT],
        reports=[Report(100.0), Report(300.0, (0,))],
        contains="that no attempt can have had by",
    ),
    refused(
        STRONG,
        [TIMEOUT],
        reports=[Report(60.0, (0,)), Report(90.0)],
        contains="no longer shows an effect that was shown",
    ),
    refused(
        {"readback": "none"},
        [SUCCESS],
        reports=[Report(901.0, source="operator")],
        contains="was acknowledged, but",
    ),
    refused(
        STRONG,
        [SUCCESS],
        reports=[Report(1.0), Report(90.0, (0,))],
        contains="the report of 1 s lacks its effect",
    ),
    refused(
        STRONG, [TIMEOUT], reports=[Report(90.0), Report(60.0)], contains="comes after a later one"
    ),
    # What nobody can know.
    refused(
        STRONG, [replace(TIMEOUT, known_absent_items=(0,))], contains="though no report proves it"
    ),
    refused(
        STRONG,
        [replace(TIMEOUT, known_absent_items=(0,))],
        reports=[Report(90.0)],
        contains="though no report proves it",
    ),
    refused(
        STRONG,
        [replace(SUCCESS, known_absent_items=(0,))],
        contains="was acknowledged, yet items of it are known absent",
    ),
    refused(
        {**STRONG, "in_flight_bound_s": 100.0},
        [replace(TIMEOUT, known_absent_items=(0,))],
        reports=[Report(99.0)],
        contains="though no report proves",
    ),
    # Authorities.
    refused(
        STRONG,
        [replace(TIMEOUT, authority="not_executed")],
        reports=[Report(90.0)],
        contains="nobody who sees requests in flight has reported",
    ),
    refused(
        TOLD, [replace(TIMEOUT, authority="pending")], contains="nobody who sees requests in flight"
    ),
    refused(
        TOLD,
        [replace(SUCCESS, authority="not_executed")],
        reports=[Report(1.0)],
        contains="replays no earlier one",
    ),
    refused(
        TOLD,
        [replace(SUCCESS, authority="pending")],
        reports=[Report(1.0, (0,))],
        contains="so its processing has ended",
    ),
    refused(
        TOLD,
        [replace(REFUSED, authority="committed")],
        reports=[Report(1.0)],
        contains="was refused, yet it is called committed",
    ),
    refused(
        {**TOLD, "in_flight_bound_s": 100.0},
        [replace(TIMEOUT, authority="pending")],
        reports=[Report(100.0)],
        contains="pending after the documented bound",
    ),
    refused(
        TOLD,
        [replace(TIMEOUT, authority="committed")],
        reports=[Report(90.0)],
        contains="must have executed by 90 s",
    ),
    refused(
        TOLD,
        [replace(ERROR, authority="committed")],
        reports=[Report(90.0)],
        contains="is called committed, but",
    ),
    refused(
        TOLD,
        [replace(TIMEOUT, authority="not_executed")],
        reports=[Report(90.0, (0,))],
        contains="that no attempt can have",
    ),
    refused(
        TOLD,
        [replace(TIMEOUT, authority="pending")],
        reports=[Report(90.0, (0,))],
        contains="no attempt can have had by 90 s",
    ),
    # Keys.
    refused(
        {**KEYED, "in_flight_same_key": "conflict", "in_flight_bound_s": 40.0},
        [PINNED, Attempt(50.0, 51.0, "conflict", key="pinned")],
        contains="met no earlier request with its key",
    ),
    refused(
        {**KEYED, "in_flight_same_key": "conflict", "key_retention_s": 20.0},
        [PINNED, Attempt(30.0, 31.0, "conflict", key="pinned")],
        contains="that can have been in process",
    ),
    refused(
        {**KEYED, "in_flight_bound_s": 40.0},
        [PINNED, Attempt(30.0, 45.0, "success", key="pinned")],
        contains="with its key that can have been",
    ),
    refused(
        KEYED,
        [PINNED, Attempt(31.0, 45.0, "success", key="pinned")],
        reports=[Report(30.0, (0,))],
        contains="shows an effect that no attempt can have had by 30 s",
    ),
    refused(
        {**TOLD, "accepts_key": True, "original_key": "sent"},
        [
            Attempt(0.0, 1.0, "success", key="pinned", authority="committed"),
            Attempt(1.0, 2.0, "success", key="pinned", authority="committed"),
        ],
        reports=[Report(2.0, (0,))],
        contains="both called committed under one key",
    ),
    # Counters.
    refused(
        STRONG, [TIMEOUT], ending="exhausted", counts={"waits": 50}, contains="the budget is 40"
    ),
    refused(
        {**STRONG, "max_steps": 1},
        [TIMEOUT],
        reports=[Report(30.0)],
        contains="is used up, yet the episode goes on",
    ),
    refused(
        STRONG, [TIMEOUT], counts={"reads": 0}, reports=[Report(30.0)], contains="nothing was read"
    ),
    refused(
        STRONG,
        [TIMEOUT],
        counts={"escalations": 1},
        clock_s=930.0,
        contains="number of escalations",
    ),
]


@pytest.mark.parametrize(("contract", "attempts", "history", "contains"), CONTRADICTIONS)
def test_a_contradictory_view_is_refused_and_never_permitted(
    contract: dict[str, Any], attempts: list[Attempt], history: dict[str, Any], contains: str
) -> None:
    def permits(key: str) -> bool:
        return View(contract, attempts, **history).permits(key).permitted

    for key in ("none", "pinned", "other"):
        with pytest.raises(ContradictionError, match=r"^[^\n]*$") as error:
            permits(key)
        assert contains in str(error.value)


@pytest.mark.parametrize(
    ("field", "value", "contains"),
    [
        ("pinned_payload", 1, "pinned_payload is not what"),
        ("n_reissues", 3, "3 re-issues, but 1 attempts"),
        ("n_steps", 5, "5 steps, but the calls add up to 1"),
        ("n_reads", -1, "n_reads is -1"),
        ("reads_since_attempt", 4, "more reads since the last attempt"),
        ("decided_from_s", 0.0, "the first decision was at 30 s"),
        ("ever_shown", 0, "shows items that were never shown"),
        ("shown", 2, "shown has items outside the operation"),
        ("ending", 9, "ending has no meaning 9"),
        ("read_error", 5, "read_error has no meaning 5"),
        ("n_attempts", 9, "9 attempts, but the contract allows 6"),
        ("retry_at_s", -3.0, "a Retry-After until -3 s"),
        ("operator_at_s", 930.0, "do not agree"),
    ],
)
def test_a_forged_record_is_refused(field: str, value: float, contains: str) -> None:
    honest = View(STRONG, [TIMEOUT], reports=[Report(30.0, (0,))])
    honest.check()
    forged = np.array([honest.seen], dtype=VIEW)
    forged[field] = value
    with pytest.raises(ContradictionError) as error:
        View.of(forged[0], honest.contract).permits()
    assert contains in str(error.value)


@pytest.mark.parametrize(
    ("field", "value", "contains"),
    [
        ("response", 0, "response has no meaning 0"),
        ("key", 3, "key has no meaning 3"),
        ("clear", 2, "items known absent that it did not send"),
        ("payload", 3, "sends items outside the operation"),
    ],
)
def test_a_forged_attempt_is_refused(field: str, value: int, contains: str) -> None:
    honest = View(STRONG, [TIMEOUT])
    forged = np.array([honest.seen], dtype=VIEW)
    forged[0].attempts[0][field] = value
    with pytest.raises(ContradictionError) as error:
        View.of(forged[0], honest.contract).permits()
    assert contains in str(error.value)


def test_an_item_outside_the_operation_cannot_be_told() -> None:
    with pytest.raises(ContradictionError, match="there is no item 1"):
        View(STRONG, [TIMEOUT], reports=[Report(30.0, (1,))])
    with pytest.raises(ContradictionError, match="9 attempts"):
        View(STRONG, [TIMEOUT] * 9)


@pytest.mark.parametrize(
    ("contract", "attempts", "history"),
    [
        # An older view than the operator's may show less.
        (EVENTUAL, [TIMEOUT], {"reports": [Report(930.0, (0,), "operator"), Report(930.0)]}),
        # A lag that is not documented explains a missing effect at any time.
        ({**EVENTUAL, "lag_documented": False}, [SUCCESS], {"reports": [Report(1e5)]}),
        # A replayed success is not executed itself.
        (
            {**TOLD, "accepts_key": True, "original_key": "sent"},
            [
                Attempt(0.0, 1.0, "success", key="pinned", authority="committed"),
                Attempt(1.0, 2.0, "success", key="pinned", authority="not_executed"),
            ],
            {"reports": [Report(2.0, (0,))]},
        ),
        # A keyed request waits for the first one's result.
        (KEYED, [PINNED, Attempt(30.0, 45.0, "success", key="pinned")], {}),
        # The record of a key expires, so the write happens again.
        (
            {**TOLD, "accepts_key": True, "original_key": "sent", "key_retention_s": 10.0},
            [
                Attempt(0.0, 1.0, "success", key="pinned", authority="committed"),
                Attempt(10.0, 11.0, "success", key="pinned", authority="committed"),
            ],
            {"reports": [Report(11.0, (0,))]},
        ),
    ],
)
def test_an_unusual_but_possible_view_is_accepted(
    contract: dict[str, Any], attempts: list[Attempt], history: dict[str, Any]
) -> None:
    View(contract, attempts, **history).check()


# --- exactly the reachable views are accepted -----------------------------------------------------

DELAYS_S = (0.5, 20.0, 30.5, 31.5, 35.0, 45.0, 60.0, 61.0, 500.0)
RESPONSES = ("success", "timeout", "server_error", "rate_limited", "schema", "conflict")
AUTHORITIES = ("unknown", "pending", "committed", "not_executed")
HIDDEN_LAGS_S = (0.0, 0.5, 1.0, 1.5, 10.0, 29.5, 30.0, 31.0, 40.0, 100.0)

Key = tuple[tuple[tuple[float, float, int, int, int], ...], tuple[tuple[float, int], ...]]


def full_support(contract: dict[str, Any]) -> Plan:
    """Every mode that is no outage, with delays on both sides of everything that matters."""
    n_items = contract.get("n_items", 1)
    latest_s = contract.get("in_flight_bound_s", math.inf)
    delays_s = [delay_s for delay_s in DELAYS_S if delay_s <= latest_s]
    weights = {
        mode: 1.0
        for mode in MODE_NAMES
        if mode not in ("outage", "unavailable") and (mode != "partial_batch" or n_items > 1)
    }
    law = {
        "family": "mixture",
        "components": [
            {"weight": 1 / len(delays_s), "law": {"family": "fixed", "value_s": delay_s}}
            for delay_s in delays_s
        ],
    }
    faults = {
        "original": weights,
        "retry": weights,
        "retry_fault_rate": 0.9,
        "late_fixed_s": delays_s[-1],
        "late_tail": law,
        "copy_delay_s": 1.0,
    }
    return load_plan({"contract": contract, "faults": faults})


def reachable(plan: Plan, actions: list[tuple[Action, float]], worlds: int) -> dict[Key, View]:
    """The views that worlds show after the actions, by responses, authorities and reports."""
    seen, truth, terms = np.zeros(1, VIEW), np.zeros(1, TRUTH), np.zeros(9)
    found: dict[Key, View] = {}
    for world in range(worlds):
        key = np.uint64(0)
        kernel.begin(plan.contexts, plan.context_cdf, plan.table, key, world, seen[0], truth[0])
        reports = []
        for action, seconds in actions:
            kernel.act(plan.contexts, plan.table, seen[0], truth[0], int(action), seconds, terms)
            if action == Action.READ:
                reports.append((float(seen[0].read_at_s), int(seen[0].shown)))
        attempts = tuple(
            (
                float(a.sent_s),
                float(a.answered_s),
                int(a.response),
                int(a.authority),
                int(a.payload),
            )
            for a in seen[0].attempts[: seen[0].n_attempts]
        )
        found.setdefault((attempts, tuple(reports)), View.of(seen[0], plan.contracts[0]))
    return found


def candidates(reached: dict[Key, View], told: bool, n_items: int) -> list[Key]:
    """Every combination of responses, authorities and reports at the times of the reached views."""
    timings = {
        (
            tuple((sent_s, answered_s, payload) for sent_s, answered_s, _, _, payload in attempts),
            tuple(at_s for at_s, _ in reports),
        )
        for attempts, reports in reached
    }
    codes = [int(Response[response.upper()]) for response in RESPONSES]
    authorities = [int(Authority[a.upper()]) for a in AUTHORITIES[1:]] if told else [0]
    keys = []
    for attempts, moments in sorted(timings):
        for responses in itertools.product(codes, repeat=len(attempts)):
            for said in itertools.product(authorities, repeat=len(attempts)):
                for shown in itertools.product(range(1 << n_items), repeat=len(moments)):
                    told_of = tuple(
                        (sent_s, answered_s, response, authority, payload)
                        for (sent_s, answered_s, payload), response, authority in zip(
                            attempts, responses, said, strict=True
                        )
                    )
                    keys.append((told_of, tuple(zip(moments, shown, strict=True))))
    return keys


def accepted(key: Key, like: View) -> bool:
    attempts, reports = key
    keys = [attempt.key for attempt in like.attempts]
    try:
        View(
            like.contract,
            [
                Attempt(
                    sent_s,
                    answered_s,
                    Response(response).name.lower(),
                    keys[j],
                    item_list(payload),
                    authority=Authority(authority).name.lower(),
                )
                for j, (sent_s, answered_s, response, authority, payload) in enumerate(attempts)
            ],
            reports=[Report(at_s, item_list(shown)) for at_s, shown in reports],
        ).check()
    except ContradictionError:
        return False
    return True


READ, WAIT = (Action.READ, 0.0), (Action.WAIT, 12.0)
RETRY, KEYED_RETRY = (Action.RETRY, 0.0), (Action.KEYED_RETRY, 0.0)
TOLD_KEYED = {**TOLD, "accepts_key": True, "original_key": "sent", "in_flight_bound_s": 46.0}
COALESCE, CONFLICT = {"in_flight_same_key": "coalesce"}, {"in_flight_same_key": "conflict"}


@pytest.mark.parametrize(
    ("contract", "actions", "worlds"),
    [
        pytest.param(STRONG, [READ], 1000, id="strong"),
        pytest.param({**STRONG, "n_items": 2}, [RETRY, READ], 8000, id="batch"),
        pytest.param(
            {**STRONG, "n_items": 2, "in_flight_bound_s": 50.0},
            [READ, RETRY, READ],
            12000,
            id="bounded batch, read twice",
        ),
        pytest.param(
            {"readback": "eventual", "lag_s": 20.0, "n_items": 2},
            [RETRY, READ],
            8000,
            id="eventual",
        ),
        pytest.param({**TOLD, "in_flight_bound_s": 40.0}, [RETRY, WAIT, READ], 8000, id="told"),
        pytest.param(
            {**KEYED, **COALESCE, "n_items": 2}, [KEYED_RETRY, READ], 12000, id="coalesce"
        ),
        pytest.param(
            {**KEYED, **CONFLICT, "n_items": 2}, [KEYED_RETRY, READ], 12000, id="conflict"
        ),
        pytest.param(
            {**TOLD_KEYED, **COALESCE}, [KEYED_RETRY, WAIT, READ], 8000, id="told, coalesce"
        ),
        pytest.param(
            {**TOLD_KEYED, **CONFLICT, "key_retention_s": 25.0},
            [KEYED_RETRY, WAIT, READ],
            8000,
            id="told, conflict, expiring",
        ),
    ],
)
def test_exactly_the_reachable_views_are_accepted(
    contract: dict[str, Any], actions: list[tuple[Action, float]], worlds: int
) -> None:
    reached = reachable(full_support(contract), actions, worlds)
    told = contract["readback"] == "authoritative"
    keys = candidates(reached, told, contract.get("n_items", 1))
    likely = [key for key in keys if key in reached]
    assert (
        len(likely) >= 5
    )  # rejections leave no authority to tell apart, so not every one is built
    others = [key for key in keys if key not in reached]
    assert others
    random.Random(0).shuffle(others)
    like = next(iter(reached.values()))
    assert [key for key in likely if not accepted(key, like)] == []
    assert [key for key in others[:500] if accepted(key, like)] == []


def test_any_hidden_lag_explains_what_an_undocumented_lag_shows() -> None:
    contract = {"readback": "eventual", "lag_documented": False, "n_items": 2}
    reached: dict[Key, View] = {}
    for lag_s in HIDDEN_LAGS_S:
        plan = full_support({**contract, "lag_s": lag_s})
        reached |= reachable(plan, [RETRY, READ], 3000)
    like = next(iter(reached.values()))
    for key in candidates(reached, False, 2):
        assert accepted(key, like) == (key in reached), key
