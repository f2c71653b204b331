"""Each trait of a real service beyond the reference contracts, and that it is off by default."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exactlyonce_env.sandbox.grading import grade
from exactlyonce_env.sandbox.options import Options, make_options
from exactlyonce_env.sandbox.session import Reply, Session
from exactlyonce_env.sandbox.tools import PATHS

from .sandboxbench import ARGUMENTS, BATCH, ROWS, one_write

CHARGE = ARGUMENTS["billing/charge"]
KEYED = {**CHARGE, "idempotency_key": "k"}


def charged(session: Session, **arguments: Any) -> Reply:
    return session.call("billing_charge", {**KEYED, **arguments})


def late_charge(queued: bool, **options: Any) -> Session:
    """An episode whose keyed charge timed out and is queued, or in transit, for 90 s."""
    for instance in range(99):
        session = Session(
            one_write("billing/charge", instance), fault="timeout_late", options=options
        )
        charged(session)
        operation = session.operation("billing_charge", CHARGE)
        assert operation is not None
        if bool(operation.truth["attempts"]["in_transit"][0, 0]) != queued:
            return session
    raise AssertionError("no such world")


def effects(session: Session, path: str = "billing/charge") -> int:
    operation = session.operation(PATHS[path].tool, ARGUMENTS[path])
    session.settle()
    return len(operation.effects(math.inf)) if operation else 0


def entries(reply: Reply, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(reply.text)[name]
    return found


def test_the_reference_has_none_of_them() -> None:
    options = Options()
    assert options.key_retention_s is None
    assert (options.in_flight_same_key, options.key_mismatch) == ("coalesce", "reject")
    rest = options.model_dump(exclude={"key_retention_s", "in_flight_same_key", "key_mismatch"})
    assert not any(rest.values())
    assert make_options(None) == make_options({}) == make_options(options) == options
    assert all(
        field.description for field in Options.model_fields.values() if field.annotation is not bool
    )


@pytest.mark.parametrize("queued", [True, False])
def test_a_key_that_expires_in_flight_protects_nothing(queued: bool) -> None:
    kept = late_charge(queued)
    charged(kept)
    assert effects(kept) == 1
    forgotten = late_charge(queued, key_retention_s=20.0)
    forgotten.call("wait", {"seconds": 30})
    assert not charged(forgotten).error
    assert effects(forgotten) == 2
    assert grade(forgotten).duplicates == 1
    assert grade(forgotten).false_retry_permissions == 1


def test_a_key_in_progress_is_coalesced_by_default() -> None:
    session = late_charge(True)
    session.call("wait", {"seconds": 31})  # within a client's time-out of the commit at 90 s
    reply = charged(session)
    assert not reply.error
    assert session.now_s == 90.0
    shown = entries(session.call("billing_list_charges", {}), "charges")
    assert json.loads(reply.text)["charge_id"] in [entry["charge_id"] for entry in shown]
    assert effects(session) == 1


def test_a_key_in_progress_is_refused_where_the_service_does_not_coalesce() -> None:
    session = late_charge(True, in_flight_same_key="conflict")
    reply = charged(session)
    assert reply.status == 409
    assert "still in progress" in reply.text
    assert session.now_s == 35.0
    session.call("wait", {"seconds": 55})
    assert not charged(session).error  # done by now: the first result is replayed
    assert effects(session) == 1


@pytest.mark.parametrize(("mismatch", "status"), [("reject", 422), ("conflict", 409)])
def test_a_key_with_other_arguments_is_refused(mismatch: str, status: int) -> None:
    session = Session(one_write("billing/charge"), options={"key_mismatch": mismatch})
    assert not charged(session).error
    for changed in ({"description": "other"}, {"amount": 99.0}, {"customer": "cust-9"}):
        reply = charged(session, **changed)
        assert (reply.status, reply.error) == (status, True)
        assert "used with other arguments" in reply.text
    assert not charged(session).error  # as it was: a replay
    session.settle()
    assert sum(len(op.effects(math.inf)) for op in session.records.operations.values()) == 1


@pytest.mark.parametrize("changed", [{"description": "other"}, {"amount": 99.0}])
def test_a_key_with_other_arguments_may_count_as_another_write(changed: dict[str, Any]) -> None:
    session = Session(one_write("billing/charge"), options={"key_mismatch": "ignore"})
    first, other = charged(session), charged(session, **changed)
    again = charged(session, **changed)
    ids = [json.loads(reply.text)["charge_id"] for reply in (first, other, again)]
    assert ids[0] != ids[1] == ids[2]
    assert (
        len(entries(session.call("billing_list_charges", {"customer": "cust-2"}), "charges")) == 2
    )


def test_a_request_that_never_arrived_leaves_its_key_free() -> None:
    for fault, refused in (("timeout_pre", False), ("timeout_post", True)):
        session = Session(one_write("billing/charge"), fault=fault)
        charged(session)
        assert charged(session, description="other").error == refused
    late = late_charge(False)
    assert not charged(late, description="other").error  # in transit: the service knows nothing


def test_a_key_goes_with_the_request_that_arrived_first() -> None:
    late = late_charge(False)
    assert not charged(late, description="other").error
    assert not charged(late, description="other").error  # a replay
    assert charged(late).status == 422
    late.call("wait", {"seconds": 90})  # the original arrives and finds its key in use
    assert effects(late) == 1


def test_a_key_is_free_again_once_its_record_is_gone() -> None:
    session = Session(one_write("billing/charge"), options={"key_retention_s": 60.0})
    charged(session)
    assert charged(session, description="other").status == 422
    session.call("wait", {"seconds": 60})
    assert not charged(session, description="other").error
    assert effects(session) == 2


def test_a_failure_is_replayed_under_its_key() -> None:
    for fault, count in (("http500_pre", 0), ("http500_post", 1)):
        session = Session(
            one_write("billing/charge"), fault=fault, options={"cached_failures": True}
        )
        texts = {charged(session).text for _ in range(3)}
        assert texts == {"HTTP 500: internal server error."}
        assert effects(session) == count
        assert not charged(session, idempotency_key="another").error
        assert effects(session) == count + 1
    plain = Session(one_write("billing/charge"), fault="http500_pre")
    assert charged(plain).error
    assert not charged(plain).error


def test_it_exists_already_because_the_client_wrote_it() -> None:
    session = Session(one_write("deployments/run"), fault="timeout_post", options={"unique": True})
    arguments = ARGUMENTS["deployments/run"]
    assert session.call("deploy_run", arguments).status == 0
    refused = session.call("deploy_run", arguments)
    assert (refused.status, refused.text) == (409, "HTTP 409: it exists already")
    session.call("finish", {"status": "completed", "summary": "it was there"})
    assert grade(session).resolved_exact


def test_it_exists_already_because_a_stranger_wrote_it() -> None:
    options = {"unique": True, "stranger": True}
    session = Session(one_write("deployments/run"), fault="timeout_post", options=options)
    arguments = ARGUMENTS["deployments/run"]
    assert session.call("deploy_run", arguments).text == "HTTP 409: it exists already"
    assert session.armed
    assert not session.triggered
    session.call("finish", {"status": "completed", "summary": "it was there"})
    assert grade(session).omissions == 1
    assert grade(session).overclaim


def test_of_a_table_only_the_same_row_exists_already() -> None:
    session = Session(one_write(BATCH), options={"unique": True})
    assert not session.call("db_batch_insert", {"table": "moves", "rows": ROWS[:2]}).error
    assert session.call("db_batch_insert", {"table": "moves", "rows": ROWS}).status == 409
    assert not session.call("db_batch_insert", {"table": "moves", "rows": ROWS[2:]}).error
    assert not session.call("db_insert", {"table": "audit", "row": ROWS[0]}).error


@pytest.mark.parametrize("path", [path for path in sorted(ARGUMENTS) if PATHS[path].reader])
def test_the_read_back_shows_a_strangers_record_of_the_same_name(path: str) -> None:
    session = Session(one_write(path), fault="timeout_pre", options={"stranger": True})
    arguments = {a: ARGUMENTS[path][b] for a, b in PATHS[path].read_arguments.items()}
    without = Session(one_write(path)).call(PATHS[path].reader, arguments)
    shown = session.call(PATHS[path].reader, arguments)
    assert shown.text != without.text
    session.call("finish", {"status": "completed", "summary": "it is there"})
    measures = grade(session)
    assert measures.omissions == (4 if path == BATCH else 1)  # a stranger's record is none of ours
    assert measures.overclaim
    assert measures.unrequested == 0


def test_reads_need_not_be_monotone() -> None:
    session = Session(one_write("tickets/comment"), options={"stale_every": 2})
    session.call("tickets_comment", ARGUMENTS["tickets/comment"])
    seen = []
    for _ in range(4):
        reply = session.call("tickets_get", {"ticket_id": "OPS-1"})
        seen.append(len(entries(reply, "comments")))
    assert seen == [1, 0, 1, 0]
    session.call("wait", {"seconds": 300})
    seen = [
        len(entries(session.call("tickets_get", {"ticket_id": "OPS-1"}), "comments"))
        for _ in range(2)
    ]
    assert seen == [1, 1]


def test_a_stale_read_permits_nothing() -> None:
    session = Session(
        one_write("tickets/comment"), fault="http500_post", options={"stale_every": 1}
    )
    session.call("tickets_comment", ARGUMENTS["tickets/comment"])
    session.call("tickets_get", {"ticket_id": "OPS-1"})
    session.call("tickets_comment", ARGUMENTS["tickets/comment"])
    assert grade(session).false_retry_permissions == 1


@given(page_size=st.integers(1, 6), rows=st.integers(1, 9))
def test_pages_hold_every_entry_once(page_size: int, rows: int) -> None:
    session = Session(one_write(BATCH), options={"page_size": page_size})
    wanted = [{"n": k} for k in range(rows)]
    session.call("db_batch_insert", {"table": "moves", "rows": wanted})
    found: list[int] = []
    cursor: dict[str, str] = {}
    while True:
        reply = json.loads(session.call("db_query", {"table": "moves", **cursor}).text)
        assert len(reply["rows"]) <= page_size
        found += [row["n"] for row in reply["rows"]]
        if "next_cursor" not in reply:
            break
        cursor = {"cursor": reply["next_cursor"]}
    assert found == list(range(rows))


def test_one_page_is_not_the_list() -> None:
    """A write that a later page would show is not known to be absent."""
    session = Session(one_write("tickets/create"), fault="http500_pre", options={"page_size": 1})
    for _ in range(2):
        session.call("tickets_create", {**ARGUMENTS["tickets/create"], "project": "OPS"})
    session.call("tickets_create", ARGUMENTS["tickets/create"])
    first = session.call("tickets_list", {"project": "OPS"})
    assert "next_cursor" in first.text
    unknown = session.call("tickets_list", {"project": "OPS", "cursor": "77"})
    assert (unknown.status, unknown.error) == (404, True)


@pytest.mark.parametrize("cursor", ["-1", "x", "1.0", "٣", "9" * 5000, "1 "])
def test_a_cursor_that_was_never_given(cursor: str) -> None:
    session = Session(one_write("tickets/create"), options={"page_size": 1})
    reply = session.call("tickets_list", {"project": "OPS", "cursor": cursor})
    assert reply.status == 404


@pytest.mark.parametrize(
    "faults",
    [
        ("timeout_pre", "timeout_post", "timeout_late", "timeout_late_tail"),
        ("http500_pre", "http500_post", "partial_batch"),
    ],
)
def test_an_error_that_misleads_says_the_same_of_every_outcome(faults: tuple[str, ...]) -> None:
    texts = set()
    for fault in faults:
        session = Session(one_write(BATCH), fault=fault, options={"misleading_errors": True})
        texts.add(session.call("db_batch_insert", ARGUMENTS[BATCH]).text)
    (text,) = texts
    assert text.endswith("The request was not processed.")


def test_a_batch_that_succeeds_with_failures() -> None:
    session = Session(one_write(BATCH), options={"item_failures": True})
    reply = session.call("db_batch_insert", ARGUMENTS[BATCH])
    assert not reply.error
    answer = json.loads(reply.text)
    assert answer["ok"] is False
    assert len(answer["row_ids"]) == 2
    assert [entry["index"] for entry in answer["failed"]] == [2, 3]
    missing = [ROWS[entry["index"]] for entry in answer["failed"]]
    session.call("db_batch_insert", {"table": "moves", "rows": missing})
    session.call("finish", {"status": "completed", "summary": "x"})
    assert grade(session).exactly_once


def test_a_batch_that_succeeds_with_failures_is_not_to_be_sent_again_whole() -> None:
    session = Session(one_write(BATCH), options={"item_failures": True})
    session.call("db_batch_insert", ARGUMENTS[BATCH])
    session.call("db_batch_insert", ARGUMENTS[BATCH])
    assert grade(session).duplicates == 2
    overlooked = Session(one_write(BATCH), options={"item_failures": True})
    overlooked.call("db_batch_insert", ARGUMENTS[BATCH])
    overlooked.call("finish", {"status": "completed", "summary": "x"})
    assert (grade(overlooked).omissions, grade(overlooked).overclaim) == (2, True)
