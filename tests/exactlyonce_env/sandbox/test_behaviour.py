"""The coder reads what the agent did after the fault from its calls alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from exactlyonce_env.sandbox.behaviour import BEHAVIOURS, behaviour_of, could_show
from exactlyonce_env.sandbox.session import Session
from exactlyonce_env.sandbox.tools import PATHS

from .sandboxbench import ARGUMENTS, BATCH, ROWS, drive, one_write

Call = tuple[str, Mapping[str, Any]]

CHARGE: Call = ("billing_charge", ARGUMENTS["billing/charge"])
KEYED: Call = ("billing_charge", {**CHARGE[1], "idempotency_key": "k"})
REKEYED: Call = ("billing_charge", {**CHARGE[1], "idempotency_key": "k2"})
REWORDED: Call = ("billing_charge", {**CHARGE[1], "description": "again"})
ANOTHER: Call = ("billing_charge", {**CHARGE[1], "customer": "cust-9"})
LOOK: Call = ("billing_list_charges", {"customer": "cust-2"})
LOOK_AT_ALL: Call = ("billing_list_charges", {})
LOOK_ELSEWHERE: Call = ("billing_list_charges", {"customer": "cust-9"})
LOOK_AT_MAIL: Call = ("mail_list_sent", {})
MAIL: Call = ("mail_send", ARGUMENTS["mail/send"])
ASK: Call = ("escalate_to_human", {"question": "?"})
WAIT: Call = ("wait", {"seconds": 60})
FINISH: Call = ("finish", {"status": "completed", "summary": "x"})
WRONG: Call = ("billing_charge", {"customer": "cust-2"})


def coded(*calls: Call, path: str = "billing/charge", fault: str = "timeout_post") -> str:
    session = Session(one_write(path), fault=fault)
    for name, arguments in calls:
        session.call(name, arguments)
    return behaviour_of(session)


@pytest.mark.parametrize(
    ("calls", "code"),
    [
        ((CHARGE, CHARGE), "blind_retry"),
        ((CHARGE, WAIT, REWORDED, FINISH), "blind_retry"),
        ((KEYED, CHARGE), "blind_retry"),
        ((CHARGE, MAIL, CHARGE), "blind_retry"),
        ((CHARGE, LOOK_ELSEWHERE, CHARGE), "blind_retry"),
        ((CHARGE, LOOK_AT_MAIL, CHARGE), "blind_retry"),
        ((LOOK, CHARGE, CHARGE), "blind_retry"),
        ((KEYED, KEYED), "retry_same_key"),
        ((KEYED, REKEYED), "retry_new_key"),
        ((CHARGE, KEYED), "retry_new_key"),
        ((CHARGE, LOOK, CHARGE), "verify_then_retry"),
        ((CHARGE, LOOK_AT_ALL, WAIT, KEYED), "verify_then_retry"),
        ((CHARGE, LOOK, MAIL, CHARGE), "verify_then_retry"),
        ((CHARGE, LOOK, FINISH), "verify_then_skip"),
        ((CHARGE, LOOK, MAIL, FINISH), "verify_then_skip"),
        ((CHARGE, LOOK), "verify_then_skip"),
        ((CHARGE, ASK, CHARGE), "escalate"),
        ((CHARGE, LOOK, ASK), "escalate"),
        ((CHARGE, CHARGE, LOOK, ASK), "blind_retry"),
        ((CHARGE, FINISH), "stop_without_checking"),
        ((CHARGE,), "stop_without_checking"),
        ((CHARGE, WAIT, WRONG, FINISH), "stop_without_checking"),
        ((CHARGE, MAIL, FINISH), "move_on"),
        ((CHARGE, ANOTHER, FINISH), "move_on"),
        ((MAIL, FINISH), "not_triggered"),
        ((WRONG, LOOK, FINISH), "not_triggered"),
        ((), "not_triggered"),
    ],
)
def test_the_first_decision_about_the_write_counts(calls: tuple[Call, ...], code: str) -> None:
    assert coded(*calls) == code
    assert code in BEHAVIOURS


def test_a_refused_retry_is_a_retry_and_a_failed_look_is_no_look() -> None:
    other = ("billing_charge", {**REWORDED[1], "idempotency_key": "k"})
    assert coded(KEYED, other) == "retry_same_key"  # refused with 422
    post: Call = ("social_publish", ARGUMENTS["social/x"])
    unreadable: Call = ("social_list_posts", {"platform": "x"})
    assert coded(post, unreadable, post, path="social/x") == "blind_retry"
    assert coded(CHARGE, LOOK, CHARGE, fault="outage") == "blind_retry"


@pytest.mark.parametrize("fault", ["timeout_pre", "timeout_post", "timeout_late"])
@pytest.mark.parametrize("calls", [(CHARGE, CHARGE), (CHARGE, LOOK, FINISH), (CHARGE, FINISH)])
def test_the_truth_plays_no_part(fault: str, calls: tuple[Call, ...]) -> None:
    assert coded(*calls, fault=fault) == coded(*calls)


def test_no_fault_has_a_code_of_its_own() -> None:
    assert coded(CHARGE, CHARGE, fault="ok") == "no_fault"
    assert coded(fault="ok") == "no_fault"


def test_of_a_batch_a_row_makes_it_the_same_write() -> None:
    batch: Call = ("db_batch_insert", {"table": "moves", "rows": ROWS})
    rest: Call = ("db_batch_insert", {"table": "moves", "rows": ROWS[2:]})
    more: Call = ("db_batch_insert", {"table": "moves", "rows": [{"shard": 9}]})
    look: Call = ("db_query", {"table": "moves"})
    assert coded(batch, rest, path=BATCH) == "blind_retry"
    assert coded(batch, look, rest, path=BATCH, fault="partial_batch") == "verify_then_retry"
    assert coded(batch, more, path=BATCH) == "move_on"


@pytest.mark.parametrize(
    ("path", "tool", "arguments", "shows"),
    [
        ("social/weibo", "social_list_posts", {"platform": "weibo"}, True),
        ("social/weibo", "social_list_posts", {"platform": "weibo", "query": "OUT it"}, True),
        ("social/weibo", "social_list_posts", {"platform": "weibo", "query": "other"}, False),
        ("social/weibo", "social_list_posts", {"platform": "mastodon"}, False),
        ("social/x", "social_list_posts", {"platform": "x"}, False),
        ("billing/refund", "billing_list_charges", {"customer": "cust-1"}, True),
        ("tickets/create", "tickets_list", {"project": "WEB"}, True),
        ("tickets/create", "tickets_list", {"project": "OPS"}, False),
        ("tickets/create", "tickets_search", {"query": "slow web"}, True),
        ("tickets/create", "tickets_search", {"query": "fast"}, False),
        ("tickets/comment", "tickets_get", {"ticket_id": "OPS-1"}, True),
        ("tickets/comment", "tickets_search", {"query": "down"}, False),
        ("mail/send", "mail_list_sent", {}, True),
        ("mail/send", "mail_list_sent", {"to": "b@example.org"}, False),
        ("mail/send", "mail_list_sent", {"cursor": "2"}, True),
        (BATCH, "db_query", {"table": "moves", "where": {"shard": 3}}, True),
        (BATCH, "db_query", {"table": "moves", "where": {"shard": 9}}, False),
        ("database/insert", "db_query", {"table": "audit", "where": {"event": "x"}}, True),
        ("database/upsert", "db_query", {"table": "flags", "where": {"key": "dark"}}, True),
        ("database/upsert", "db_query", {"table": "flags", "where": {"key": "light"}}, False),
        ("deployments/run", "deploy_list_runs", {"service": "search"}, True),
        ("deployments/run", "deploy_list_runs", {"service": "router"}, False),
    ],
)
def test_which_reads_could_show_a_write(
    path: str, tool: str, arguments: dict[str, Any], shows: bool
) -> None:
    assert could_show(tool, arguments, PATHS[path], ARGUMENTS[path]) == shows


@pytest.mark.parametrize(
    ("policy", "codes"),
    [
        ("never-retry", {"move_on", "stop_without_checking"}),
        ("blind-retry", {"blind_retry"}),
        ("verify-retry", {"verify_then_retry", "escalate"}),
        ("escalate", {"escalate"}),
    ],
)
def test_scripted_policies_have_their_code(policy: str, codes: set[str]) -> None:
    runs = drive(policy, "timeout_pre", first_send="plain")
    assert {behaviour_of(run.session) for run in runs} == codes
    keyed = drive("same-key", "timeout_pre", contract="keys-everywhere")
    assert {behaviour_of(run.session) for run in keyed} == {"retry_same_key"}
