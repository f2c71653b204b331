"""The incident gallery: what went wrong, what would have been right, what policies make of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from evaluation.incidents import Run, replay, run_policy, run_steps
from exactlyonce_env.cli import main
from exactlyonce_env.errors import UserError
from exactlyonce_env.presets import load_plan
from exactlyonce_env.records import MEASURES
from exactlyonce_env.sandbox.incidents import (
    incident_names,
    incident_text,
    load_incident,
    make_incident,
)
from policies.rollout import run_policy as kernel_run
from policies.spec import parse_policy

# name: reported (executions, duplicates, omissions, claim), then whether guard, same-key and
# bayes-optimal end resolved and exactly once
GALLERY: dict[str, tuple[tuple[int, int, int, str], tuple[bool, bool, bool]]] = {
    "slow-charge": ((3, 2, 0, "completed"), (False, False, True)),
    "fresh-key-per-request": ((2, 1, 0, "completed"), (True, True, True)),
    "key-from-volatile-payload": ((2, 1, 0, "completed"), (True, True, True)),
    "doubled-stock": ((2, 1, 0, "completed"), (False, False, False)),
    "notify-overnight": ((2, 0, 0, "failed"), (False, False, True)),
    "dispatch-storm": ((50, 49, 0, "completed"), (True, False, True)),
    "lagging-search": ((2, 1, 0, "completed"), (True, False, True)),
    "lost-id": ((3, 2, 0, "completed"), (True, False, True)),
    "stale-describe": ((3, 2, 0, "completed"), (True, False, True)),
    "own-412": ((1, 0, 0, "failed"), (True, False, True)),
    "never-retry": ((0, 0, 1, "uncertain"), (True, True, True)),
    "timed-out-yet-written": ((1, 0, 0, "failed"), (False, False, True)),
    "ack-timeout-redelivery": ((4, 3, 0, "completed"), (False, False, True)),
    "pod-still-running": ((201, 101, 0, "completed"), (True, False, True)),
    "activity-overlap": ((2, 1, 0, "completed"), (True, True, True)),
    "whole-run-retry": ((5, 2, 0, "completed"), (True, True, True)),
    "unknown-commit": ((2, 1, 0, "completed"), (True, False, True)),
}


def told(run: Run) -> list[str]:
    return [moment.seen or moment.happened or "" for moment in run.timeline]


def as_reported(incident: Any) -> Run:
    return run_steps(incident, "reported", incident.reported)


def small(**fields: Any) -> Any:
    return make_incident({"name": "small", "reported": [{"do": "send"}], **fields}, "test")


# --- the gallery ----------------------------------------------------------------------------------


def test_every_row_has_a_file_under_its_name() -> None:
    assert set(incident_names()) == set(GALLERY)
    for name in GALLERY:
        incident = load_incident(name)
        assert incident.name == name
        assert all((incident.title, incident.source, incident.hidden, incident.mistake))
        assert incident.remedy
        assert incident.right


@pytest.mark.parametrize("name", GALLERY)
def test_the_reported_wrong_outcome_and_the_right_one(name: str) -> None:
    incident = load_incident(name)
    executions, duplicates, omissions, claim = GALLERY[name][0]
    wrong = as_reported(incident).outcome
    assert (wrong["executions"], wrong["duplicates"]) == (executions, duplicates)
    assert (wrong["omissions"], wrong["claim"]) == (omissions, claim)
    assert not wrong["resolved_exact"]
    assert wrong["false_failure"] is (claim == "failed")
    right = run_steps(incident, "right", incident.right).outcome
    assert right["resolved_exact"]
    assert not right["false_failure"]
    # Without a bound in the contract nothing permits to send a lost request again.
    assert right["false_retry_permissions"] == (name == "never-retry")


@pytest.mark.parametrize("name", GALLERY)
def test_the_same_world_under_guard_same_key_and_the_honest_optimum(name: str) -> None:
    found = replay(load_incident(name))
    assert found["name"] == name
    runs = found["runs"]
    policies = ["reported", "right", "guard", "same-key", "bayes-optimal"]
    assert [run["policy"] for run in runs] == policies
    assert tuple(run["outcome"]["resolved_exact"] for run in runs[2:]) == GALLERY[name][1]
    for run in runs:
        times = [moment["time_s"] for moment in run["timeline"]]
        assert times == sorted(times)
        assert all(set(m) == {"time_s", "client", "seen", "happened"} for m in run["timeline"])
    json.dumps(found, allow_nan=False)


def test_where_keys_are_ignored_only_counting_helps() -> None:
    stock = load_incident("doubled-stock")
    assert "the operator's answer settles nothing" in told(as_reported(stock))
    assert run_policy(stock, "verify-retry").outcome["resolved_exact"]
    assert run_policy(stock, "guard").outcome["false_retry_permissions"] == 0  # it was promised


def test_waiting_long_enough_is_right_where_the_charge_is_late() -> None:
    slow = load_incident("slow-charge")
    assert run_policy(slow, "wait:89").outcome["duplicates"] == 1
    assert run_policy(slow, "wait:90").outcome["resolved_exact"]
    assert run_policy(slow, "outcome-oracle").outcome["resolved_exact"]


@pytest.mark.parametrize("spec", ["guard", "verify-retry", "wait:300", "sdk-retry", "escalate"])
@pytest.mark.parametrize(
    "fate",
    [
        {"mode": "timeout_pre"},
        {"mode": "timeout_post"},
        {"mode": "timeout_late", "delay_s": 90, "queued": True},
        {"mode": "http500_pre"},
        {"mode": "http500_post"},
        {"mode": "rate_limited"},
        {"mode": "schema_drift"},
    ],
    ids=lambda fate: str(fate["mode"]),
)
@pytest.mark.parametrize(
    "contract",
    [
        {"readback": "strong"},
        {"readback": "eventual", "lag_s": 120},
        {"readback": "none", "accepts_key": True, "original_key": "sent"},
    ],
    ids=["strong", "eventual", "keyed"],
)
def test_one_write_of_one_client_agrees_with_the_kernel(
    contract: dict[str, Any], fate: dict[str, Any], spec: str
) -> None:
    plan = load_plan(
        {
            "name": "one",
            "contract": contract,
            "faults": {"original": {fate["mode"]: 1}, "queued_share": 1},
        }
    )
    expected = kernel_run(plan, parse_policy(spec), 0, np.arange(1)).outcomes
    found = run_policy(small(contract=contract, writes={"job": {"fates": [fate]}}), spec).outcome
    assert {name: found[name] for name in MEASURES} == {
        name: expected[name][0] for name in MEASURES
    }


# --- what the format expresses --------------------------------------------------------------------


def test_the_second_client_knows_of_the_first_one_but_not_its_answer() -> None:
    run = as_reported(load_incident("lagging-search"))
    assert [m.client for m in run.timeline if m.client].count("worker-b") == 4
    assert "reads create: nothing there" in told(run)


def test_copies_are_redelivered_again_and_again_unless_a_key_stops_them() -> None:
    fates = [{"mode": "redelivery", "copies_s": [1800, 3600, 5400]}]
    plain = small(writes={"job": {"fates": fates}})
    assert as_reported(plain).outcome["executions"] == 4
    assert [t for t in told(as_reported(plain)) if "copy" in t] == [
        "job is executed by a copy of attempt 0"
    ] * 3
    keyed = small(
        contract={"accepts_key": True, "original_key": "sent"},
        writes={"job": {"fates": fates}},
        reported=[{"do": "send", "key": "intent"}],
    )
    assert as_reported(keyed).outcome["executions"] == 1


def test_an_undo_leaves_the_earliest_and_a_read_no_longer_shows_the_rest() -> None:
    repaired = small(
        writes={"charge": {"fates": ["timeout_post"]}},
        reported=[
            {"do": "send"},
            {"do": "send"},
            {"do": "undo", "at_s": 60},
            {"do": "read"},
            {"do": "undo", "at_s": 90, "keep": 0, "by": "the bank"},
            {"do": "read"},
        ],
    )
    run = as_reported(repaired)
    assert (run.outcome["duplicates"], run.outcome["residual_duplicates"]) == (1, 0)
    assert (run.outcome["standing"], run.outcome["omissions"]) == (0, 1)
    assert [t for t in told(run) if "reads" in t] == [
        "reads charge: it is there",
        "reads charge: nothing there",
    ]
    assert "the bank undoes 1 execution of charge" in told(run)


def test_the_service_undoes_in_every_run() -> None:
    voided = small(
        writes={"hold": {"fates": ["timeout_post"]}},
        events=[{"at_s": 20, "by": "the service"}],
    )
    run = run_policy(voided, "guard")
    assert (run.outcome["executions"], run.outcome["standing"]) == (2, 1)


def test_a_re_issue_may_land_after_the_original_and_every_attempt_has_a_fate() -> None:
    crossed = small(
        writes={
            "job": {
                "fates": [
                    {"mode": "timeout_late", "delay_s": 40},
                    {"mode": "timeout_late", "delay_s": 400},
                    "rate_limited",
                ]
            }
        },
        reported=[{"do": "send"}] * 3,
    )
    run = as_reported(crossed)
    happened = [m.happened for m in run.timeline if m.happened]
    assert happened == [
        "job is executed by attempt 0",
        "attempt 2 of job is refused",
        "job is executed by attempt 1",
    ]


def test_layers_multiply_until_one_is_acknowledged() -> None:
    fates = [{"mode": "http500_post", "times": 11}]
    step = {"do": "send", "layers": {"agent": 2, "framework": 3, "library": 2}, "every_s": 1}
    run = as_reported(small(writes={"job": {"fates": fates}}, reported=[step]))
    assert run.outcome["executions"] == 12
    assert sum("again by library" in t for t in told(run)) == 6
    assert sum("again by agent" in t for t in told(run)) == 1
    early = as_reported(small(writes={"job": {"fates": fates[:0]}}, reported=[step]))
    assert early.outcome["executions"] == 1


def test_an_error_may_tell_another_tale() -> None:
    fates = [{"mode": "http500_post", "shown_as": "unavailable", "says": "HTTP 503, try again"}]
    run = run_policy(small(writes={"job": {"fates": fates}}), "rules")
    assert "HTTP 503, try again" in told(run)
    assert run.outcome["duplicates"] == 1
    assert run.outcome["false_retry_permissions"] == 0
    hidden = [{"mode": "http500_pre", "shown_as": "timeout"}]
    late = run_policy(small(writes={"job": {"fates": hidden}}), "verify-retry")
    assert late.timeline[2].time_s == 30.0
    assert late.outcome["resolved_exact"]


def test_a_key_protects_as_long_as_it_is_kept() -> None:
    def run(retention_s: float) -> Run:
        return as_reported(
            small(
                contract={"accepts_key": True, "original_key": "sent"},
                writes={
                    "charge": {
                        "fates": ["timeout_post"],
                        "really": {"key_retention_s": retention_s},
                    }
                },
                reported=[
                    {"do": "send", "key": "intent"},
                    {"do": "send", "key": "intent", "at_s": 600},
                ],
            )
        )

    assert run(3600).outcome["executions"] == 1
    assert run(300).outcome["executions"] == 2
    assert run(300).outcome["false_retry_permissions"] == 0  # nobody told


# --- bad files ------------------------------------------------------------------------------------

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown field": ({"contrct": {}}, "unknown field 'contrct'; choose from name, title"),
    "no steps": ({"reported": []}, "reported"),
    "unknown step": ({"reported": [{"do": "resend"}]}, "reported.0.do"),
    "field of another step": (
        {"reported": [{"do": "read", "key": "k"}]},
        "a step that does read takes no key",
    ),
    "unknown write": (
        {"reported": [{"do": "send", "write": "x"}]},
        "reported.0.write: unknown 'x'; choose from write",
    ),
    "unknown mode": ({"writes": {"w": {"fates": ["lost"]}}}, "unknown fault mode 'lost'"),
    "late without a time": (
        {"writes": {"w": {"fates": ["timeout_late"]}}},
        "a fate of mode timeout_late needs delay_s",
    ),
    "bad contract": ({"contract": {"readback": "sometimes"}}, "contract of write: readback"),
    "unknown contract field": ({"contract": {"keys": 1}}, "unknown field 'keys'"),
    "vague, yet promised": ({"operator": "vague"}, "state contract.operator_answer_rate below 1"),
    "conditional without a name": ({"writes": {"w": {"conditional": True}}}, "conditional needs"),
    "an item that is not there": (
        {"reported": [{"do": "send", "items": [1]}]},
        "reported.0.items must lie in 0..0",
    ),
    "a wait of no length": ({"reported": [{"do": "wait"}]}, "either seconds or at_s"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_in_a_line(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields, complaint = BAD[case]
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"name": "mine", "reported": [{"do": "send"}], **fields}))
    assert main(["incident", str(file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert "mine.yaml" in line
    assert complaint in line


def test_steps_out_of_order_are_refused() -> None:
    with pytest.raises(UserError, match=r"reported\.2 begins at 5 s, before the step above it"):
        as_reported(
            small(
                clients={"a": {}, "b": {"at_s": 5}},
                reported=[
                    {"do": "send"},
                    {"do": "read", "at_s": 100},
                    {"do": "send", "client": "b"},
                ],
            )
        )


def test_bounds_and_unknown_policies_are_refused() -> None:
    for spec in ("clairvoyant", "guards"):
        with pytest.raises(UserError):
            replay(load_incident("slow-charge"), [spec])


# --- the command ----------------------------------------------------------------------------------

Printed = Callable[..., str]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    def run(*args: str) -> str:
        assert main(["incident", *args]) == 0
        return capsys.readouterr().out

    return run


def test_the_list_names_them_all(printed: Printed) -> None:
    rows = json.loads(printed("list", "--json", "-"))
    assert [row["name"] for row in rows] == sorted(GALLERY)
    assert all(name in printed("list") for name in GALLERY)


def test_a_printed_incident_is_accepted_as_a_file_with_any_policies(
    printed: Printed, tmp_path: Path
) -> None:
    text = printed("slow-charge", "--source")
    assert text == incident_text("slow-charge")
    for file, content in (
        (tmp_path / "mine.yaml", text),
        (tmp_path / "mine.json", json.dumps(yaml.safe_load(text))),
    ):
        file.write_text(content)
        found = json.loads(printed(str(file), "--policies", "guard,wait:300", "--json", "-"))
        assert found["source"] == "akash-network/console#3449"
        assert [run["policy"] for run in found["runs"]] == [
            "reported",
            "right",
            "guard",
            "wait:300",
        ]
        assert found["runs"][3]["outcome"]["resolved_exact"] is True


def test_a_toml_file_will_do(printed: Printed, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('name = "mine"\n[[reported]]\ndo = "send"\n')
    found = json.loads(printed(str(file), "--policies", "guard", "--json", "-"))
    assert [run["policy"] for run in found["runs"]] == ["reported", "guard"]


def test_people_see_both_sides(printed: Printed) -> None:
    text = printed("slow-charge", "--policies", "guard")
    for part in ("no response", "charge is executed by attempt 0", "Under guard", "more than once"):
        assert part in text


def test_an_unknown_incident_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["incident", "slow-chargee"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "did you mean slow-charge?" in line
