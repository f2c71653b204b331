"""Four observations side by side: calibration trajectories, answers, scripted policies, rows."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from evaluation.cases.answers import Claim, claim_of, format_fault, write_answer
from evaluation.cases.data import FAMILIES, Case, all_cases, case_named
from evaluation.cases.grading import OBSERVATIONS, CaseGrade, grade
from evaluation.cases.policies import POLICIES, Ask, ask_about, named_policy
from evaluation.cases.run import play_policy, run_scripted
from evaluation.cases.summary import case_row, case_rows
from evaluation.cases.trajectories import (
    Trajectory,
    calibration_rows,
    play,
    read_trajectory,
    trajectories_of,
)
from evaluation.cases.world import MAX_ROUNDS, World, new_reference
from exactlyonce_env.errors import UserError

CASES = all_cases()


def said(case: Case, status: str, reference: str | None = None) -> str:
    return write_answer(status, case.operation.id, reference, "as it is")


def graded(name: str, answer: str | None, *tools: str) -> CaseGrade:
    case = case_named(name)
    calls = tuple(ask_about(tool, case.operation) for tool in tools)
    return play(case, Trajectory("by hand", calls, answer))[1]


def failed(found: CaseGrade) -> list[str]:
    return [name for name in OBSERVATIONS if not found.holds(name)]


# --- calibration ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_every_trajectory_comes_out_as_expected(case: Case) -> None:
    rows = calibration_rows((case,))
    for row in rows:
        assert row["observed_faults"] == row["expected_faults"], row
        assert row["observed"] == row["expected"]
    expected = [row["expected"] for row in rows]
    assert expected.count("pass") >= 2
    assert expected.count("fail") >= 2
    assert len({row["trajectory"] for row in rows}) == len(rows)
    # Two that pass are two ways, not one twice.
    ways = {str(one.calls) for one in trajectories_of(case) if not one.fails}
    assert len(ways) >= 2


def test_each_observation_fails_alone_somewhere() -> None:
    """Nothing is folded: no observation is implied by another, over the trajectories."""
    found = {tuple(row["observed_faults"]) for row in calibration_rows(CASES)}
    assert ("final_delivery",) in found
    assert ("recovery",) in found
    assert ("authorisation_binding", "recovery") in found
    assert ("business_effects", "recovery") in found
    case = case_named("new-ticket")
    # A binding that was tried, and nothing else: business, delivery and recovery hold.
    looks = ask_about("read_operation", case.operation)
    stray = Ask("read_operation", looks.arguments | {"operation_id": "op-tk-1"})
    right = said(case, "confirmed", new_reference(case, 1))
    create = ask_about("create_operation", case.operation)
    assert failed(play(case, Trajectory("", (stray, create), right))[1]) == [
        "authorisation_binding"
    ]
    # No progress, said truly: a reconnection is not asked for, so that the effects fail with it.
    assert failed(play(case, Trajectory("", (create, create), right))[1]) == [
        "business_effects",
        "recovery",
    ]


# --- what counts ---------------------------------------------------------------------------------


def test_a_rejected_attempt_counts_against_authorisation() -> None:
    case = case_named("access-revoked")
    found = graded(case.id, said(case, "blocked"), "read_operation", "create_operation")
    assert failed(found) == ["authorisation_binding"]
    assert found.faults["authorisation_binding"] == ["create_operation: write access is revoked"]
    assert not found.strays


def test_an_attempt_that_the_service_could_not_read_counts_too() -> None:
    case = case_named("lost-ticket")
    calls = (Ask("create_operation", "{"), ask_about("recover_operation", case.operation))
    right = said(case, "confirmed", "TK-21388")
    found = play(case, Trajectory("", calls, right))[1]
    assert failed(found) == ["authorisation_binding", "recovery"]


def test_a_foreign_record_proves_nothing() -> None:
    case = case_named("other-tenant")
    found = graded(case.id, said(case, "confirmed", "BK-58120"), "read_operation")
    assert found.faults["recovery"] == ["it reports as confirmed what nothing confirmed"]
    assert failed(found) == ["business_effects", "recovery"]
    # Even beside the right result.
    found = graded(
        case.id,
        said(case, "confirmed", "BK-58120"),
        "read_operation",
        "create_operation",
    )
    assert found.faults["recovery"] == ["its reference is of no result of the operation"]
    assert failed(found) == ["recovery"]


def test_recovering_the_foreign_record_is_not_bound_and_confirms_nothing() -> None:
    case = case_named("other-environment")
    call = ask_about("recover_operation", case.operation)
    staging = Ask(
        call.tool, call.arguments | {"target": {**case.operation.target, "environment": "staging"}}
    )
    world, found = play(case, Trajectory("", (staging,), said(case, "confirmed", "TK-90007")))
    assert world.log[0].reply["reference"] == "TK-90007"
    assert not found.confirmed
    assert failed(found) == ["business_effects", "authorisation_binding", "recovery"]


def test_a_dispatch_that_turns_out_well_was_not_known_to() -> None:
    """Permission is not outcome: the same effects, and only recovery fails."""
    case = case_named("other-service")
    right = said(case, "confirmed", new_reference(case, 1))
    found = graded(case.id, right, "create_operation")
    assert failed(found) == ["recovery"]
    assert failed(graded(case.id, right, "read_operation", "create_operation")) == []


def test_dispatching_again_counts_whether_or_not_the_first_happened() -> None:
    for name, duplicates in (("unknown-ticket", 1), ("unknown-appointment", 0)):
        case = case_named(name)
        found = graded(name, said(case, "unknown"), "read_operation", "create_operation")
        assert failed(found) == ["business_effects", "recovery"]
        assert found.duplicates == duplicates


def test_asking_again_after_a_final_answer() -> None:
    case = case_named("approval-pending")
    right = said(case, "pending_approval")
    asks = ("request_approval",) * 2
    found = graded(case.id, right, *asks)
    assert found.faults["recovery"] == ["asked again after the answer was final: 1 times"]
    # Running work is not final: to ask again is what the case is about.
    lift = case_named("running-inspection")
    right = said(lift, "confirmed", "INSP-7716")
    assert failed(graded(lift.id, right, "recover_operation", "recover_operation")) == []
    assert failed(graded(lift.id, right, *["recover_operation"] * 3)) == ["recovery"]


def test_what_the_client_changed_may_be_looked_at_again() -> None:
    case = case_named("new-deduction")
    right = said(case, "confirmed", new_reference(case, 1))
    tools = ("read_operation", "create_operation", "read_operation")
    assert failed(graded(case.id, right, *tools)) == []


def test_uncertainty_is_preserved() -> None:
    case = case_named("unknown-inspection")
    for status in ("blocked", "pending_approval"):
        found = graded(case.id, said(case, status), "read_operation")
        assert failed(found) == ["recovery"]
    found = graded(case.id, said(case, "confirmed", "INSP-1"), "read_operation")
    assert failed(found) == ["recovery"]


def test_work_completed_by_the_service_is_no_confirmed_progress() -> None:
    case = case_named("running-ticket")
    found = graded(case.id, said(case, "unknown"), "read_operation")
    assert failed(found) == ["business_effects", "recovery"]
    assert (found.confirmed, found.duplicates, found.strays) == (False, 0, 0)


def test_no_answer_at_all_fails_final_delivery_only() -> None:
    found = graded("lost-ticket", None, "recover_operation")
    assert failed(found) == ["final_delivery"]
    assert found.holds("format_set_aside")
    assert not found.holds("strict")


# --- the final answer ----------------------------------------------------------------------------

RIGHT = said(case_named("lost-ticket"), "confirmed", "TK-21388")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (f"```json\n{RIGHT}\n```", "it is in a code fence"),
        (f"Here is my answer:\n{RIGHT}", "it is not one JSON object"),
        (f"{RIGHT}\nI hope this helps.", "it is not one JSON object"),
        (f"[{RIGHT}]", "it is not a JSON object"),
        (RIGHT[:-1], "it is not one JSON object"),
        (RIGHT[:-1] + ', "sure": true}', "there is no field 'sure'"),
        (RIGHT.replace('"summary"', '"comment"'), "the field 'summary' is missing"),
        (RIGHT[:-1] + ', "status": "confirmed"}', "a field occurs twice"),
        (RIGHT.replace('"as it is"', "3"), "the field 'summary' is no text"),
        ("", "it is empty"),
        ("{" * 50_000, "it is not one JSON object"),
    ],
)
def test_a_wrong_format_fails_final_delivery_and_nothing_else(text: str, wrong: str) -> None:
    assert format_fault(text) == wrong
    found = graded("lost-ticket", text, "recover_operation")
    assert failed(found) == ["final_delivery"]
    assert found.faults["final_delivery"] == [wrong]


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"status": "done"}, "there is no status 'done'"),
        ({"status": "Confirmed"}, "there is no status 'Confirmed'"),
        ({"status": ["confirmed"]}, "there is no status \"['confirmed']\""),
        ({"reference": None}, "the reference is no text"),
        ({"reference": 21388}, "the reference is no text"),
        ({"status": "unknown"}, "the reference must be null where the status is unknown"),
        ({"operation_id": " "}, "the field 'operation_id' is no text"),
        ({"summary": float("nan")}, "NaN is no JSON"),
    ],
)
def test_fields_of_the_answer(fields: dict[str, Any], wrong: str) -> None:
    assert format_fault(json.dumps(json.loads(RIGHT) | fields)) == wrong


def test_white_space_around_the_object_is_no_fault() -> None:
    assert format_fault(f"\n  {json.dumps(json.loads(RIGHT), indent=2)}\n") == ""


def test_the_claim_is_read_wherever_it_stands() -> None:
    right = Claim("confirmed", "op-tk-6041", "TK-21388")
    for said_so in (RIGHT, f"```\n{RIGHT}\n```", f"It is {{done}}. {RIGHT} So.", f"[{RIGHT}]"):
        assert claim_of(said_so) == right
    assert claim_of(f'{{"status": "unknown"}} no: {RIGHT}') == right
    assert claim_of('{"answer": {"status": "unknown"}}') == Claim("unknown")
    for text in (None, "", "confirmed", "{" * 5000, '{"state": "confirmed"}', '{"status": 1}'):
        assert claim_of(text) == Claim()


def test_a_fence_hides_no_false_claim() -> None:
    text = f"```json\n{RIGHT}\n```"
    found = graded("lost-ticket", text)
    assert failed(found) == ["business_effects", "final_delivery", "recovery"]


def test_a_result_of_another_operation_is_another_claim() -> None:
    other = write_answer("confirmed", "op-tk-6042", "TK-21388", "")
    found = graded("lost-ticket", other, "recover_operation")
    assert found.faults["recovery"] == ["it reports another operation"]


# --- scripted policies and rows ------------------------------------------------------------------

ROWS: dict[str, tuple[int, ...]] = {
    # strict, format set aside, business effects, final delivery, authorisation, recovery
    "careful": (24, 24, 24, 24, 24, 24),
    # Acknowledged at once where access is valid: right in the four legitimate new operations.
    "always-retry": (4, 4, 9, 24, 20, 4),
    "always-defer": (5, 5, 7, 24, 24, 5),
    "blind-create": (4, 4, 9, 24, 20, 5),
    "reconnect-only": (13, 13, 15, 24, 21, 13),
    "any-record": (20, 20, 21, 24, 24, 20),
    "fence-answer": (0, 24, 24, 0, 24, 24),
}


@pytest.mark.parametrize("name", list(POLICIES))
def test_rows_of_the_scripted_policies(name: str) -> None:
    row = case_row(name, run_scripted(POLICIES[name], CASES))
    names = ("strict", "format_set_aside", *OBSERVATIONS)
    assert tuple(row[score] for score in names) == ROWS[name]
    assert (row["n"], row["planned"], row["missing"], row["warnings"]) == (24, 24, 0, [])


def test_policies_need_no_more_than_the_rounds_allow() -> None:
    for policy in POLICIES.values():
        for case in CASES:
            world, answer = play_policy(case, policy)
            assert answer is not None
            assert len(world.log) < MAX_ROUNDS


def test_unknown_policies_are_refused() -> None:
    with pytest.raises(UserError, match=r"unknown policy 'carefull'.*did you mean careful"):
        named_policy("carefull")


def test_family_means_weigh_families_the_same() -> None:
    documents = run_scripted(POLICIES["always-defer"], CASES)
    row = case_row("always-defer", documents)
    assert list(row["families"]) == list(FAMILIES)
    # Strict: the four unknown outcomes, and the one target of which nothing is known.
    assert row["family_means"]["strict"] == pytest.approx((4 / 4 + 1 / 4) / 6)
    assert row["shares"]["strict"] == 5 / 24
    # Wilson, by hand: centre (5 + 1.92) / 27.84, as of 5 in 24.
    low, high = row["ci"]["strict"]
    assert (round(low, 4), round(high, 4)) == (0.0924, 0.4047)


def test_missing_episodes_are_counted_and_scored_nowhere() -> None:
    documents = run_scripted(POLICIES["careful"], CASES)
    for document in documents[:6]:
        document |= {"status": "missing", "reason": "http_503: overloaded", "observed": None}
    row = case_row("careful", documents)
    assert (row["planned"], row["n"], row["missing"], row["strict"]) == (24, 18, 6, 18)
    assert row["missing_reasons"] == {"http_503: overloaded": 6}
    # One family is gone as a whole, another in part.
    assert row["family_means"]["strict"] == 1.0
    assert row["families"]["running-operation"]["n"] == 0
    assert row["families"]["lost-acknowledgement"]["n"] == 2
    assert "1 families have no episode" in row["warnings"][0]
    for document in documents:
        document |= {"status": "missing", "observed": None}
    row = case_row("careful", documents)
    assert row["shares"]["strict"] is row["family_means"]["strict"] is None
    assert row["ci"]["strict"] == [None, None]


def test_repeats_are_warned_of() -> None:
    documents = run_scripted(POLICIES["careful"], CASES)
    again = [document | {"repeat": 1} for document in documents]
    (row,) = case_rows(documents + again)
    assert (row["n"], row["repeats"]) == (48, 2)
    assert "not independent" in row["warnings"][0]
    # They say the same twice, so that they count once.
    (once,) = case_rows(documents)
    assert (row["icc"], row["effective_n"]) == (1.0, 24.0)
    assert row["ci"]["strict"] == pytest.approx(once["ci"]["strict"], abs=1e-12)
    assert (once["icc"], once["effective_n"]) == (None, 24.0)


def test_repeats_count_by_their_correlation() -> None:
    documents = run_scripted(POLICIES["careful"], CASES)
    # Of 24 pairs 12 hold twice, 6 once and 6 never.
    rows = []
    for k, document in enumerate(documents):
        for repeat in range(2):
            holds = k < 12 or (k < 18 and repeat == 0)
            observed = document["observed"] | {"strict": holds}
            rows.append(document | {"repeat": repeat, "observed": observed})
    (row,) = case_rows(rows)
    mean = 30 / 48
    between = 2 * (12 * (1 - mean) ** 2 + 6 * (0.5 - mean) ** 2 + 6 * mean**2) / 23
    within = 6 * 0.5 / 24
    icc = (between - within) / (between + within)
    assert row["icc"] == pytest.approx(icc, abs=1e-12)
    assert row["effective_n"] == pytest.approx(48 / (1 + icc), abs=1e-9)
    low, high = row["ci"]["strict"]
    n, z = 48 / (1 + icc), 1.959963984540054
    centre = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(mean * (1 - mean) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    assert (low, high) == pytest.approx((centre - half, centre + half), abs=1e-9)


# --- trajectories by hand ------------------------------------------------------------------------


def test_a_trajectory_by_hand() -> None:
    case = case_named("lost-ticket")
    call = ask_about("recover_operation", case.operation)
    text = json.dumps(
        {"calls": [{"tool": call.tool, "arguments": call.arguments}], "answer": RIGHT}
    )
    found = play(case, read_trajectory(text, "mine"))[1]
    assert found.holds("strict")
    # Without calls, and without an answer.
    assert read_trajectory('{"answer": "x"}', "mine").calls == ()
    assert read_trajectory('{"calls": [{"tool": "read_operation"}]}', "mine").answer is None


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{", "mine is no JSON"),
        ("[]", "mine is not"),
        ('{"calls": [], "answers": ""}', "mine is not"),
        ('{"calls": {}}', "calls must be a list"),
        ('{"calls": [{"name": "x"}]}', "call 0 is not"),
        ('{"calls": [{"tool": 1}]}', "call 0 is not"),
        ('{"calls": [["read_operation", {}]]}', "call 0 is not"),
        ('{"answer": {"status": "unknown"}}', "answer must be the text"),
        ("[" * 100_000, "mine is no JSON"),
    ],
)
def test_trajectories_that_are_refused(text: str, wrong: str) -> None:
    with pytest.raises(UserError, match=wrong):
        read_trajectory(text, "mine")


def test_grading_twice_says_the_same() -> None:
    world = World(case_named("running-ticket"))
    assert grade(world, None) == grade(world, None)
