"""Decisions in the hidden worlds, the scripted policies' counts by hand, and the clients' rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from evaluation.probe.designs import DESIGNS, Cell, Variant
from evaluation.probe.frameworks import (
    CLIENTS,
    SCHEDULES,
    BudgetExhaustedError,
    Sender,
    conformance_rows,
    run_client,
)
from evaluation.probe.policies import SCRIPTED, named_policy
from evaluation.probe.replay import OUTCOMES, WORLDS, expand, measures_of, same_key_of, walk_of
from evaluation.probe.run import run_scripted
from evaluation.probe.summary import summarise
from exactlyonce_env.errors import UserError
from exactlyonce_env.view import Attempt, Report, View

UNPROTECTED = (3, 2, 0, 0, 1, 1)
SAME_KEY = (0, 0, 0, 0, 3, 3)
OPEN = (0, 0, 1, 3, 2, 0)
STOP = (0, 0, 1, 0, 2, 2)

NONE = Variant()
OMITTED = Variant(key="omitted")
VALID = Variant(key="valid", original="sent")
CHANGED = Variant(key="changed", original="sent")
SUPPLIED = Variant(key="supplied", original="sent")
SUPPLIED_OMITTED = Variant(key="supplied", original="omitted")
ALL = (NONE, OMITTED, VALID, CHANGED, SUPPLIED, SUPPLIED_OMITTED)

ROWS: list[tuple[Variant, str, bool | None, tuple[int, ...]]] = [
    *((variant, "retry", None, UNPROTECTED) for variant in ALL),
    *((variant, "stop", None, STOP) for variant in ALL),
    *((variant, "wait", None, OPEN) for variant in ALL),
    *((variant, "unresolved", None, OPEN) for variant in ALL),
    (OMITTED, "retry_with_key", None, UNPROTECTED),
    (VALID, "retry_with_key", None, SAME_KEY),
    (CHANGED, "retry_with_key", None, UNPROTECTED),
    (SUPPLIED, "retry_with_key", True, SAME_KEY),
    (SUPPLIED, "retry_with_key", False, UNPROTECTED),
    (SUPPLIED_OMITTED, "retry_with_key", False, UNPROTECTED),
]


@pytest.mark.parametrize(("variant", "action", "same_key", "expected"), ROWS)
def test_the_mechanical_table(
    variant: Variant, action: str, same_key: bool | None, expected: tuple[int, ...]
) -> None:
    found = expand(variant, action, same_key)
    assert tuple(found.outcomes.values()) == expected
    assert tuple(found.outcomes) == tuple(OUTCOMES)
    assert found.reissue == action.startswith("retry")
    assert found.permitted is (None if not found.reissue else expected is SAME_KEY)
    assert [one.attempts[0].mode for one in found.told] == list(WORLDS)


@pytest.mark.parametrize("variant", ALL)
def test_the_worlds_share_one_view_and_its_permission_is_the_kernels(variant: Variant) -> None:
    views = {walk_of(variant, mode).view for mode in WORLDS}
    assert len(views) == 1
    view = views.pop()
    assert bool(view.permits("retry")) is expand(variant, "retry").permitted is False
    if variant.key in ("omitted", "valid", "changed"):
        keyed = expand(variant, "retry_with_key").permitted
        assert bool(view.permits("keyed_retry")) is keyed is (variant is VALID)
    if variant.key == "none":
        assert view.permits("keyed_retry").rule == "not possible"


@pytest.mark.parametrize("documented", [True, False])
@pytest.mark.parametrize("variant", ALL)
def test_the_lookup_that_prompts_show_permits_nothing(variant: Variant, documented: bool) -> None:
    """An empty read within the lag, stated or not, makes no retry permitted that was not before."""
    sent = variant.original == "sent"
    contract = {
        "readback": "eventual",
        "lag_s": 1_000_000,
        "lag_documented": documented,
        "accepts_key": variant.key != "none",
        "original_key": variant.original,
        "candidate_key": "different" if variant.key == "changed" else "same",
    }
    key = "pinned" if sent else "none"
    view = View(contract, [Attempt(0.0, 30.0, "timeout", key=key)], reports=[Report(31.0)])
    assert not view.permits("retry")
    assert bool(view.permits("keyed_retry")) is (sent and variant.key != "changed")


def test_a_document_of_three_worlds() -> None:
    found = measures_of(expand(NONE, "retry"))
    assert found["false_retry_permissions"] == 3
    assert found["duplicates"] == 2
    assert found["exactly_once"] is False
    assert found["overclaim"] is True
    assert measures_of(expand(VALID, "retry_with_key"))["exactly_once"] is True
    assert measures_of(expand(NONE, "wait"))["unresolved"] is True


def test_supplied_keys() -> None:
    sent, omitted = Cell(SUPPLIED, "issue"), Cell(SUPPLIED_OMITTED, "issue")
    assert same_key_of(sent, "issue-20d9e6a4") is True
    assert same_key_of(sent, "issue-20d9e6a4 ") is False
    assert same_key_of(omitted, "issue-20d9e6a4") is False
    assert same_key_of(sent, None) is None


def totals(design: str, policy: str) -> dict[tuple[str, str], dict[str, Any]]:
    rows = summarise(run_scripted(named_policy(policy), DESIGNS[design]))["totals"]
    return {(row["key"], row["original"]): row for row in rows}


def times(n: int, row: Sequence[int]) -> list[int]:
    return [n * number for number in row]


SAFE = {"valid": SAME_KEY, "omitted": OPEN, "changed": OPEN}

KEY_CONTROL = {
    "always-retry": dict.fromkeys(SAFE, UNPROTECTED),
    "always-defer": dict.fromkeys(SAFE, OPEN),
    "same-key-if-valid": SAFE,
    "any-key-offered": {"valid": SAME_KEY, "omitted": UNPROTECTED, "changed": UNPROTECTED},
    "bayes-optimal": SAFE,
    "guard": SAFE,
    "never-retry": dict.fromkeys(SAFE, OPEN),
}


@pytest.mark.parametrize("policy", KEY_CONTROL)
def test_the_table_comes_out_for_each_policy(policy: str) -> None:
    found = totals("key-control", policy)
    for (key, _), row in found.items():
        expected = KEY_CONTROL[policy][key]
        outcomes = dict(row["outcomes"])
        assert outcomes.pop("rows") == 240
        assert list(outcomes.values()) == times(80, expected), key
        retries = 80 * (expected in (UNPROTECTED, SAME_KEY))
        assert row["planned"] == row["returned"] == 80
        assert row["retries"] == retries
        assert row["protected"] == retries * (expected is SAME_KEY)
        assert row["unsupported"] == retries * (expected is UNPROTECTED)
        assert row["unresolved"] == 80 - retries


def test_the_label_follower_by_hand() -> None:
    """Of two labels one is absent: half the responses; of four, absent and authoritative: half."""
    for (_, _), row in totals("key-control", "label-follower").items():
        assert (row["retries"], row["protected"], row["unsupported"]) == (40, 0, 40)
        assert list(row["outcomes"].values()) == [240, 120, 80, 40, 120, 120, 40]
    (row,) = totals("cue-control", "label-follower").values()
    assert (row["planned"], row["retries"], row["unresolved"]) == (256, 128, 128)
    assert list(row["outcomes"].values()) == [768, 384, 256, 128, 384, 384, 128]
    (row,) = totals("counterbalance", "label-follower").values()
    assert (row["planned"], row["retries"]) == (320, 160)
    cells = summarise(run_scripted(named_policy("label-follower"), DESIGNS["cue-control"]))["cells"]
    by_label = dict.fromkeys(("absent", "weak", "unverified", "authoritative"), 0)
    for cell in cells:
        assert cell["planned"] == 4
        by_label[cell["label"]] += cell["retries"]
    assert by_label == {"absent": 64, "weak": 0, "unverified": 0, "authoritative": 64}


@pytest.mark.parametrize(
    ("policy", "sent", "omitted"),
    [
        ("always-retry", (40, 0), (40, 0)),
        ("same-key-if-valid", (40, 40), (0, 0)),
        ("any-key-offered", (40, 40), (40, 0)),
        ("bayes-optimal", (40, 40), (0, 0)),
    ],
)
def test_keys_that_policies_supply(
    policy: str, sent: tuple[int, int], omitted: tuple[int, int]
) -> None:
    found = totals("supplied-key", policy)
    for condition, expected in (("sent", sent), ("omitted", omitted)):
        row = found["supplied", condition]
        assert (row["retries"], row["protected"]) == expected


@pytest.mark.parametrize("policy", [*SCRIPTED, "guard", "escalate", "blind-retry"])
def test_without_a_key_nothing_protects(policy: str) -> None:
    for design in ("counterbalance", "canonical-block"):
        (row,) = totals(design, policy).values()
        assert row["protected"] == 0
        assert row["planned"] == DESIGNS[design].planned
    if policy in ("always-retry", "blind-retry"):
        assert row["unsupported"] == 256


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        ("always-retri", "did you mean always-retry"),
        ("clairvoyant", "sees hidden state"),
        ("outcome-oracle", "sees hidden state"),
        ("guard:3", "takes no argument"),
    ],
)
def test_policies_that_are_refused(spec: str, wrong: str) -> None:
    with pytest.raises(UserError, match=wrong):
        named_policy(spec)


def test_conformance_rows() -> None:
    rows = conformance_rows()
    effects = {name: [row["effects"] for row in rows if row["client"] == name] for name in CLIENTS}
    assert effects == {
        "no-retry": [0, 1, 1, 1],
        "exception-retry": [1, 2, 2, 2],
        "stable-key": [1, 1, 1, 1],
    }
    assert [row["schedule"] for row in rows[:4]] == list(SCHEDULES)
    assert {(row["client"], row["attempts"], row["completed"]) for row in rows} == {
        ("no-retry", 1, False),
        ("exception-retry", 2, True),
        ("stable-key", 2, True),
    }


def test_a_client_may_send_twice_and_no_more() -> None:
    def stubborn(send: Sender) -> None:
        for _ in range(3):
            try:
                send()
            except TimeoutError:
                continue

    assert run_client(stubborn, "late commit") == {"attempts": 2, "effects": 2, "completed": True}
    raised = []

    def watching(send: Sender) -> None:
        try:
            stubborn(send)
        except BudgetExhaustedError as error:
            raised.append(str(error))

    run_client(watching, "terminal failure")
    assert raised == ["only 2 attempts are allowed"]

    # A key that the first attempt did not carry protects nothing.
    def late_key(send: Sender) -> None:
        try:
            send()
        except TimeoutError:
            send(key=True)

    assert run_client(late_key, "stale visibility")["effects"] == 2
    with pytest.raises(UserError, match="unknown schedule"):
        run_client(stubborn, "never")
