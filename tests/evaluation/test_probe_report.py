"""Published counts, written down as responses, give the published figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluation.statistics.exact_tests import Stratum, stratified_exact


def write(path: Path, *lines: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def counts(policy: str, events: int, planned: int, **more: Any) -> list[dict[str, Any]]:
    """So many unprotected retries of so many planned responses, the others unresolved."""
    base = {"policy": policy, "status": "valid", "key": "omitted", **more}
    missing = base.pop("missing", 0)
    lines = [
        {**base, "action": "retry", "count": events},
        {**base, "action": "unresolved", "count": planned - events - missing},
        {**base, "status": "missing", "count": missing},
    ]
    return [line for line in lines if line["count"]]


@pytest.fixture
def told(printed: Callable[..., str], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def run(*lines: dict[str, Any]) -> dict[str, Any]:
        path = write(tmp_path / "responses.jsonl", *lines)
        assert "Contrasts" in printed("probe-report", path) or len(lines) < 4
        found: dict[str, Any] = json.loads(printed("probe-report", path, "--json", "-"))
        return found

    return run


def test_published_limits_of_one_arm(told: Callable[..., dict[str, Any]]) -> None:
    found = told(*counts("none", 0, 80), *counts("some", 55, 80))
    limits = {row["policy"]: row["ci"]["unsupported"] for row in found["totals"]}
    assert [round(100 * x, 2) for x in limits["none"]] == [0.0, 4.51]
    assert [round(100 * x, 2) for x in limits["some"]] == [57.41, 78.65]


def test_a_published_contrast(told: Callable[..., dict[str, Any]]) -> None:
    # In whatever order the lines come, what the label adds is positive.
    found = told(
        *counts("m", 115, 128, label="absent"),
        *counts("m", 124, 128, label="weak"),
    )
    row = next(r for r in found["contrasts"] if r["measure"] == "unsupported")
    assert row["labels"] == ["weak", "absent"]
    assert [round(100 * x, 2) for x in (*row["difference"], row["low"], row["high"])] == [
        7.03,
        7.03,
        0.83,
        13.75,
    ]
    assert row["p"] == pytest.approx(stratified_exact([Stratum(124, 128, 115, 128)]))


def test_missing_responses_widen_everything(told: Callable[..., dict[str, Any]]) -> None:
    lines = [
        line
        for task, (one, other, missing) in {"a": (9, 4, 1), "b": (7, 5, 0)}.items()
        for line in (
            *counts("m", one, 10, label="absent", task=task, missing=missing),
            *counts("m", other, 10, label="weak", task=task),
        )
    ]
    found = told(*lines)
    row = next(r for r in found["contrasts"] if r["measure"] == "retries")
    assert row["labels"] == ["weak", "absent"]
    assert row["difference"] == pytest.approx([-8 / 20, -7 / 20])
    ps = [stratified_exact([Stratum(9 + k, 10, 4, 10), Stratum(7, 10, 5, 10)]) for k in range(2)]
    assert row["p"] == pytest.approx(max(ps))
    assert row["p_holm"] == row["p"]


def test_a_test_that_cannot_be_made_says_why(told: Callable[..., dict[str, Any]]) -> None:
    found = told(
        *counts("m", 3, 10, label="absent", task="a"), *counts("m", 4, 10, label="weak", task="b")
    )
    assert {(row["p"], row["p_why"]) for row in found["contrasts"]} == {
        (None, "the labels share no task")
    }
    many = told(
        *counts("m", 0, 400, label="absent", missing=300),
        *counts("m", 0, 400, label="weak", missing=300),
    )
    assert all("assignments" in row["p_why"] for row in many["contrasts"])


def test_orders_of_policies(told: Callable[..., dict[str, Any]]) -> None:
    lines = [
        line
        for policy, one, other in (("a", 1, 2), ("b", 5, 4), ("c", 9, 9))
        for line in (
            *counts(policy, one, 10, label="absent"),
            *counts(policy, other, 10, label="weak"),
        )
    ]
    found = told(*lines)
    row = next(r for r in found["ranks"] if r["measure"] == "retries")
    assert (row["low"], row["high"], row["policies"]) == (1.0, 1.0, ["a", "b", "c"])


def test_a_run_of_probe_is_read_back(printed: Callable[..., str], tmp_path: Path) -> None:
    run = json.loads(
        printed("probe", "canonical-block", "--out", str(tmp_path / "run"), "--json", "-")
    )
    path = str(tmp_path / "run" / "responses.jsonl")
    found = json.loads(printed("probe-report", path, "--json", "-"))
    assert found["totals"] == run["totals"]
    rows = {(r["policy"], r["measure"]): r for r in found["contrasts"]}
    follower = rows["label-follower", "retries"]
    assert follower["labels"] == ["weak", "absent"]
    assert follower["difference"] == [-1.0, -1.0]
    assert follower["p_holm"] < 1e-20


def test_what_is_no_response_is_refused(refusal: Callable[..., str], tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", {"policy": "m", "status": "perhaps"})
    assert "line 1" in refusal("probe-report", path)
