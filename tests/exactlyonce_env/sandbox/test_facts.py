"""The reference counts of scripted runs over the focal writes, through real tool calls."""

from __future__ import annotations

import math

import pytest

from exactlyonce_env.delays import REFERENCE_TAIL
from exactlyonce_env.sandbox.contracts import FAULTS, paths_of
from exactlyonce_env.vocabulary import Readback

from .sandboxbench import Run, drive, duplicated, exact

NATIVE = paths_of("native")


def late_by_s(run: Run) -> float:
    """How long after its sending the original took effect [s]."""
    session = run.session
    met = next(call for call in session.calls if call.focal)
    operation = session.operation(met.tool, met.arguments)
    assert operation is not None
    return float(operation.truth["attempts"]["execution_s"][0, 0])


def strong_and_unkeyed(path: str) -> bool:
    contract = NATIVE[path]
    strong = contract.get("readback", "strong") == Readback.STRONG.name.lower()
    return strong and not contract.get("accepts_key") and not contract.get("idempotent")


def readable_and_unkeyed(path: str) -> bool:
    contract = NATIVE[path]
    plain = not contract.get("accepts_key") and not contract.get("idempotent")
    return plain and contract.get("readback", "strong") != "none"


@pytest.mark.parametrize(("fault", "count"), [("timeout_pre", 0), ("timeout_post", 30)])
def test_blind_retry_of_plain_writes(fault: str, count: int) -> None:
    runs = drive("blind-retry", fault, first_send="plain")
    assert (duplicated(runs), len(runs)) == (count, 34)


@pytest.mark.parametrize("fault", ["timeout_post", "timeout_late", "timeout_late_tail"])
def test_never_retry_is_exactly_once_where_the_write_lands(fault: str) -> None:
    assert exact(drive("never-retry", fault)) == 34


def test_never_retry_omits_all_where_it_does_not() -> None:
    assert sum(run.grade.omissions > 0 for run in drive("never-retry", "timeout_pre")) == 34


@pytest.mark.parametrize("fault", FAULTS)
def test_the_same_key_under_keys_everywhere(fault: str) -> None:
    runs = drive("same-key", fault, contract="keys-everywhere")
    assert exact(runs) == len(runs) == (1 if fault == "partial_batch" else 34)
    assert not any(run.grade.false_retry_permissions for run in runs)


def test_wait_60_at_90_s() -> None:
    runs = drive("wait:60", "timeout_late")
    asked = [run for run in runs if run.grade.escalations]
    assert [run.path for run in asked] == ["social/x"]
    assert exact(runs) - exact(asked) == 9


def test_wait_120_at_90_s() -> None:
    runs = drive("wait:120", "timeout_late")
    assert exact([run for run in runs if run.path != "social/x"]) == 33


def test_redelivery_with_keys_attached_where_accepted() -> None:
    runs = drive("guard", "redelivery")
    assert (duplicated(runs), len(runs)) == (25, 34)
    assert not any(run.grade.exactly_once for run in runs if run.grade.duplicates)


def test_the_outcome_oracle_over_205_worlds() -> None:
    faults = (
        *("timeout_pre", "timeout_post", "timeout_late", "http500_pre", "http500_post"),
        *("redelivery", "partial_batch"),
    )
    runs = [run for fault in faults for run in drive("outcome-oracle", fault)]
    assert (exact(runs), len(runs)) == (180, 205)


def test_waiting_succeeds_if_and_only_if_the_delay_is_no_longer() -> None:
    for bound_s in (60, 300, 900):
        for run in drive(
            f"wait:{bound_s}", "timeout_late_tail", instances=range(6), only=readable_and_unkeyed
        ):
            assert run.grade.exactly_once == (late_by_s(run) <= bound_s), run.session.focal
            assert (run.grade.duplicates > 0) == (late_by_s(run) > bound_s)


@pytest.mark.parametrize("tail", ["uniform:loc=35,scale=165", "exponential:scale=100"])
def test_waiting_under_another_tail(tail: str) -> None:
    runs = drive(
        "wait:100", "timeout_late_tail", instances=range(4), only=readable_and_unkeyed, tail=tail
    )
    assert 0 < exact(runs) < len(runs)
    for run in runs:
        assert run.grade.exactly_once == (late_by_s(run) <= 100.0)


@pytest.mark.parametrize(
    ("bound_s", "share"), [(60, 0.0781), (300, 0.3880), (900, 0.5996), (3600, 0.8665)]
)
def test_waiting_under_the_heavy_tail_succeeds_as_often_as_the_law_says(
    bound_s: int, share: float
) -> None:
    assert float(REFERENCE_TAIL.cdf(bound_s)) == pytest.approx(share, abs=5e-5)
    runs = drive(
        f"wait:{bound_s}", "timeout_late_tail", instances=range(60), only=strong_and_unkeyed
    )
    n = len(runs)
    assert n > 700
    error = math.sqrt(share * (1.0 - share) / n)
    assert abs(exact(runs) / n - share) < 4.0 * error
