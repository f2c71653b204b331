"""Strict answers of the probe: valid as they stand, or invalid for good."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evaluation.probe.answers import Decision, InvalidAnswerError, parse_decision
from evaluation.probe.designs import Variant

PLAIN = Variant()
KEYED = Variant(key="omitted")
CODED = Variant(actions="coded", mapping=3, order=2)
SUPPLIED = Variant(key="supplied", original="sent")

GOOD = '{"action": "retry", "rationale": "because"}'


def said(**fields: Any) -> str:
    return json.dumps(fields)


@pytest.mark.parametrize(
    ("text", "variant", "decision"),
    [
        (GOOD, PLAIN, Decision("retry", None, "because")),
        (f"\n {GOOD}\n", PLAIN, Decision("retry", None, "because")),
        (said(rationale="", action="unresolved"), PLAIN, Decision("unresolved")),
        (
            said(action="retry_with_key", rationale="r"),
            KEYED,
            Decision("retry_with_key", None, "r"),
        ),
        # Mapping 3 begins with the last action: A unresolved, B retry, C stop, D wait.
        (said(action="A", rationale=""), CODED, Decision("unresolved")),
        (said(action="B", rationale=""), CODED, Decision("retry")),
        (said(action="C", rationale=""), CODED, Decision("stop")),
        (said(action="D", rationale=""), CODED, Decision("wait")),
        (
            said(action="retry_with_key", rationale="", idempotency_key="k"),
            SUPPLIED,
            Decision("retry_with_key", "k"),
        ),
        (said(action="wait", rationale="", idempotency_key=None), SUPPLIED, Decision("wait")),
    ],
)
def test_valid_answers(text: str, variant: Variant, decision: Decision) -> None:
    assert parse_decision(text, variant) == decision


@pytest.mark.parametrize(
    ("text", "variant", "wrong"),
    [
        (None, PLAIN, "empty"),
        ("  \n", PLAIN, "empty"),
        (f"```json\n{GOOD}\n```", PLAIN, "code fence"),
        (f"Here: {GOOD}", PLAIN, "not one JSON object"),
        (f"{GOOD} {GOOD}", PLAIN, "not one JSON object"),
        ("[" * 100_000, PLAIN, "not one JSON object"),
        ('"retry"', PLAIN, "not a JSON object"),
        (f"[{GOOD}]", PLAIN, "not a JSON object"),
        (said(action="retry"), PLAIN, "'rationale' is missing"),
        (said(rationale="r"), PLAIN, "'action' is missing"),
        (said(action="retry", rationale="r", confidence=1), PLAIN, "no field 'confidence'"),
        (said(action="retry", rationale="r", idempotency_key=None), PLAIN, "no field 'idempotency"),
        (said(action="retry", rationale="r", idempotency_key="k"), KEYED, "no field 'idempotency"),
        ('{"action": "wait", "action": "retry", "rationale": ""}', PLAIN, "occurs twice"),
        ('{"action": NaN, "rationale": ""}', PLAIN, "NaN is no JSON"),
        (said(action="retry", rationale=None), PLAIN, "rationale is no text"),
        (said(action=["retry"], rationale=""), PLAIN, "action is no text"),
        (said(action="Retry", rationale=""), PLAIN, "no action 'Retry'"),
        (said(action="retry ", rationale=""), PLAIN, "no action 'retry '"),
        (said(action="retry_with_key", rationale=""), PLAIN, "no action 'retry_with_key'"),
        (said(action="A", rationale=""), PLAIN, "no action 'A'"),
        (said(action="retry", rationale=""), CODED, "no action 'retry'"),
        (said(action="a", rationale=""), CODED, "no action 'a'"),
        (said(action="E", rationale=""), CODED, "no action 'E'"),
        (said(action="wait", rationale=""), SUPPLIED, "'idempotency_key' is missing"),
        (said(action="wait", rationale="", idempotency_key=""), SUPPLIED, "must be null"),
        (said(action="retry", rationale="", idempotency_key="k"), SUPPLIED, "must be null"),
        (
            said(action="retry_with_key", rationale="", idempotency_key=None),
            SUPPLIED,
            "needs an idempotency_key",
        ),
        (
            said(action="retry_with_key", rationale="", idempotency_key=""),
            SUPPLIED,
            "needs an idempotency_key",
        ),
        (
            said(action="retry_with_key", rationale="", idempotency_key=7),
            SUPPLIED,
            "needs an idempotency_key",
        ),
    ],
)
def test_invalid_answers(text: str | None, variant: Variant, wrong: str) -> None:
    with pytest.raises(InvalidAnswerError, match=wrong):
        parse_decision(text, variant)
