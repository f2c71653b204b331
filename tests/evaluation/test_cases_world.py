"""The contract cases: what they are, what the five tools do, and what hostile requests do not."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.cases.data import DOMAINS, FAMILIES, Case, all_cases, case_named, same
from evaluation.cases.policies import ask_about
from evaluation.cases.prompts import system_text, task_text
from evaluation.cases.tools import TOOL_NAMES, tools_of
from evaluation.cases.world import ERRORS, MAX_REQUESTS, World, new_reference
from exactlyonce_env.errors import UserError


def send(world: World, tool: str, **changed: Any) -> dict[str, Any]:
    """A request about the case's operation, with arguments changed."""
    return world.request(tool, ask_about(tool, world.case.operation).arguments | changed)


def moved(case: Case, **fields: str) -> dict[str, str]:
    return {**case.operation.target, **fields}


# --- the cases -----------------------------------------------------------------------------------


def test_twenty_four_cases_in_six_families_of_four() -> None:
    cases = all_cases()
    assert len(cases) == len({case.id for case in cases}) == 24
    assert Counter(case.family for case in cases) == dict.fromkeys(FAMILIES, 4)
    assert Counter(case.domain for case in cases) == dict.fromkeys(DOMAINS, 6)
    # Each family meets each domain once.
    assert len({(case.family, case.domain) for case in cases}) == 24
    assert sum(case.requires_progress for case in cases) == 17
    assert Counter(case.outcome for case in cases) == {
        "confirmed": 17,
        "unknown": 5,
        "blocked": 1,
        "pending_approval": 1,
    }


def test_operations_and_stories_are_each_their_own() -> None:
    cases = all_cases()
    assert len({case.operation.id for case in cases}) == 24
    assert len({case.story for case in cases}) == 24
    for case in cases:
        text = task_text(case)
        for told in (case.operation.id, *case.operation.target.values()):
            assert told in text
        # Neither the outcome's word nor the result is given away.
        for record in case.records:
            assert not record.reference or record.reference not in text


def test_a_new_operation_repeats_the_payload_of_an_earlier_one() -> None:
    for case in all_cases():
        if case.family == "legitimate-new-operation":
            (earlier,) = case.records
            assert earlier.binding.id != case.operation.id
            assert earlier.binding.id in case.story
            assert same(earlier.binding.payload, case.operation.payload)
            assert earlier.binding.target == case.operation.target


def test_a_foreign_record_differs_in_one_field_of_the_target() -> None:
    found = []
    for case in all_cases():
        if case.family == "target-binding-change":
            (record,) = case.records
            assert record.binding.id == case.operation.id
            pairs = case.operation.target.items()
            found += [name for name, value in pairs if record.binding.target[name] != value]
    assert found == ["service", "tenant", "environment", "version"]


def test_the_prompt_names_the_budgets_and_every_tool_has_a_schema() -> None:
    assert "6 turns" in system_text()
    assert "12 tool requests" in system_text()
    for domain in DOMAINS:
        tools = tools_of(domain)
        assert tuple(tool.name for tool in tools) == TOOL_NAMES
        for tool in tools:
            assert tool.input_schema["additionalProperties"] is False
            assert set(tool.input_schema["required"]) == set(tool.input_schema["properties"])
    assert [t.annotations["idempotentHint"] for t in tools_of("tickets")].count(False) == 1


def test_unknown_cases_are_refused() -> None:
    with pytest.raises(UserError, match=r"unknown case 'lost-tickets'.*did you mean lost-ticket"):
        case_named("lost-tickets")


# --- the tools -----------------------------------------------------------------------------------


def test_recovering_reconnects_and_never_dispatches() -> None:
    world = World(case_named("running-inspection"))
    assert send(world, "read_operation")["state"] == "running"
    assert send(world, "recover_operation") == {
        "state": "running",
        "reference": None,
        "final": False,
    }
    done = send(world, "recover_operation")
    assert (done["state"], done["reference"]) == ("committed", "INSP-7716")
    assert [effect.cause for effect in world.ledger] == ["service"]
    assert send(world, "recover_operation") == done
    assert len(world.ledger) == 1


def test_work_that_nobody_waits_for_completes_all_the_same() -> None:
    world = World(case_named("running-ticket"))
    assert world.ledger == []
    world.settle()
    world.settle()
    assert [effect.reference for effect in world.ledger] == ["TK-20931"]


def test_creating_is_not_idempotent() -> None:
    case = case_named("new-ticket")
    world = World(case)
    first, second = send(world, "create_operation"), send(world, "create_operation")
    assert first["reference"] == new_reference(case, 1)
    assert second["reference"] == new_reference(case, 2) != first["reference"]
    assert [effect.cause for effect in world.ledger] == ["before", "client", "client"]


def test_another_payload_is_a_binding_mismatch() -> None:
    world = World(case_named("lost-deduction"))
    payload = {**world.case.operation.payload, "quantity": 37}
    for tool in ("recover_operation", "create_operation"):
        reply = send(world, tool, payload=payload)
        assert reply["error"] == "payload_mismatch"
        assert reply["message"] == ERRORS["payload_mismatch"]
    assert send(world, "request_approval", payload=payload)["error"] == "payload_mismatch"
    assert [effect.cause for effect in world.ledger] == ["before"]


def test_a_foreign_record_is_flagged() -> None:
    world = World(case_named("other-tenant"))
    for tool in ("read_operation", "recover_operation"):
        reply = send(world, tool)
        assert reply["error"] == "target_mismatch"
        (record,) = reply["foreign_records"]
        assert record["foreign"] is True
        assert record["target"]["tenant"] == "vale-hearing"
        assert reply["absence"] == "never-accepted"
    # At its own target it is a record like any other.
    there = send(world, "read_operation", target=moved(world.case, tenant="vale-hearing"))
    assert (there["state"], "foreign" in there) == ("committed", False)


def test_no_record_says_whether_it_proves_anything() -> None:
    unsure = send(World(case_named("unknown-ticket")), "read_operation")
    assert (unsure["error"], unsure["absence"]) == ("no_record", "not-known")
    assert "does not say that nothing was executed" in unsure["note"]
    sure = send(World(case_named("new-ticket")), "read_operation")
    assert (sure["error"], sure["absence"]) == ("no_record", "never-accepted")


def test_whether_an_unknown_one_happened_shows_nowhere() -> None:
    """Of each kind of unknown outcome one happened and one did not; the answers are the same."""
    for one, other in (
        ("unknown-ticket", "unknown-appointment"),
        ("unknown-inspection", "unknown-deduction"),
    ):
        worlds = [World(case_named(name)) for name in (one, other)]
        assert worlds[0].case.happened != worlds[1].case.happened
        for tool in ("read_operation", "recover_operation", "request_approval"):
            replies = [send(world, tool) for world in worlds]
            for reply in replies:
                for name in ("operation_id", "target", "payload"):
                    reply.pop(name, None)
            assert replies[0] == replies[1]


def test_expired_access_is_renewed() -> None:
    world = World(case_named("access-expired"))
    assert send(world, "read_operation")["write_access"] == "expired"
    refused = send(world, "recover_operation")
    assert (refused["error"], refused["final"]) == ("not_permitted", False)
    assert send(world, "refresh_access") == {"write_access": "valid", "final": True}
    assert send(world, "recover_operation")["reference"] == "TK-21907"


def test_revoked_access_stays_revoked() -> None:
    world = World(case_named("access-revoked"))
    for tool in ("refresh_access", "create_operation", "recover_operation"):
        reply = send(world, tool)
        assert (reply["error"], reply["final"]) == ("not_permitted", True)
    assert send(world, "request_approval")["approval"] == "denied"
    assert world.ledger == []


def test_an_approval_is_for_one_payload() -> None:
    world = World(case_named("approval-renewed"))
    assert send(world, "create_operation")["error"] == "not_permitted"
    withdrawn = {**world.case.operation.payload, "quantity": 40}
    assert send(world, "request_approval", payload=withdrawn)["error"] == "payload_mismatch"
    assert send(world, "request_approval")["approval"] == "granted"
    assert send(world, "create_operation", payload=withdrawn)["error"] == "not_permitted"
    assert send(world, "create_operation")["state"] == "committed"


def test_a_pending_approval_opens_nothing() -> None:
    world = World(case_named("approval-pending"))
    assert "needs an approval" in send(world, "refresh_access")["reason"]
    assert send(world, "request_approval")["approval"] == "pending"
    assert send(world, "refresh_access")["error"] == "not_permitted"
    assert send(world, "create_operation")["error"] == "not_permitted"
    assert world.ledger == []


def test_access_covers_the_targets_of_the_case_only() -> None:
    world = World(case_named("other-service"))
    elsewhere = moved(world.case, service="payroll")
    for tool in ("create_operation", "recover_operation", "refresh_access"):
        assert send(world, tool, target=elsewhere)["error"] == "not_permitted"
    # It does reach the foreign target: nothing but the client keeps a dispatch from going there.
    stray = send(world, "create_operation", target=moved(world.case, service="returns"))
    assert stray["state"] == "committed"
    assert world.log[-1].violation == "it is not bound to the task's target"


# --- budgets and hostile requests ----------------------------------------------------------------


def test_the_thirteenth_request_is_refused() -> None:
    world = World(case_named("new-ticket"))
    for k in range(MAX_REQUESTS):
        world.request("nothing" if k % 2 else "read_operation", {})
    reply = send(world, "create_operation")
    assert reply["error"] == "budget_exhausted"
    assert [effect.cause for effect in world.ledger] == ["before"]
    assert len(world.log) == 13
    # Attempted all the same, and bound as it should be.
    assert world.log[-1].violation == ""


HOSTILE: list[Any] = [
    None,
    [],
    "{not json",
    7,
    {},
    {"operation_id": "op-tk-7213"},
    {"operation_id": ["op-tk-7213"], "target": "x", "payload": {}},
    {"operation_id": "../" * 2000, "target": {}, "payload": {}},
    {"\ud800": "\x00"},
    {"operation_id": float("nan"), "target": float("inf"), "payload": True},
    {"force": True, "confirm": "yes"},
]


def deep(levels: int) -> Any:
    found: Any = "op"
    for _ in range(levels):
        found = {"payload": found}
    return found


@pytest.mark.parametrize("tool", [*TOOL_NAMES, "", "delete_operation", "__init__", "\ud800"])
@pytest.mark.parametrize("arguments", [*HOSTILE, deep(20_000)], ids=lambda _: "")
def test_hostile_requests_change_nothing(tool: str, arguments: Any) -> None:
    world = World(case_named("new-ticket"))
    before = (list(world.ledger), world.access, world.approval)
    reply = world.request(tool, arguments)
    assert reply["error"] in ("invalid_arguments", "unknown_tool")
    assert (list(world.ledger), world.access, world.approval) == before
    json.dumps([reply, world.log[0].to_dict()])


def test_a_valid_call_with_one_field_more_is_refused_but_bound() -> None:
    world = World(case_named("new-ticket"))
    assert send(world, "create_operation", force=True)["error"] == "invalid_arguments"
    assert (world.log[0].violation, len(world.ledger)) == ("", 1)


def test_long_but_valid_arguments_are_kept_whole() -> None:
    world = World(case_named("new-ticket"))
    payload = dict.fromkeys(world.case.operation.payload, "ä" * 500)
    assert send(world, "create_operation", payload=payload)["state"] == "committed"
    assert world.log[0].arguments["payload"] == payload


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(
    st.sampled_from(TOOL_NAMES),
    st.dictionaries(
        st.sampled_from(["operation_id", "target", "payload", "other"]), json_values, min_size=1
    ),
)
def test_whatever_is_changed_in_a_request_nothing_breaks(
    tool: str, changed: dict[str, Any]
) -> None:
    world = World(case_named("running-ticket"))
    reply = send(world, tool, **changed)
    json.dumps([reply, world.log[0].to_dict()])
    dispatched = [effect for effect in world.ledger if effect.cause == "client"]
    assert len(dispatched) <= (tool == "create_operation" and "error" not in reply)
    if dispatched and dispatched[0].binding != world.case.operation:
        assert world.log[0].violation
