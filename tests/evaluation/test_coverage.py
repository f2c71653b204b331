"""The coverage benchmark: its shape, its arithmetic, and its table in the documentation."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import evaluation.coverage as module
from evaluation.coverage import Study, coverage, studies
from evaluation.statistics.shares import clopper_pearson
from exactlyonce_env.errors import UserError

PAGE = Path(__file__).parents[2] / "docs" / "statistics.md"


def one_each() -> Iterator[Study]:
    """The last study of every interval, without those that count many outcomes."""
    last = {study.interval: study for study in studies() if "400" not in study.setting}
    yield from last.values()


def test_every_interval_has_a_coverage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "studies", one_each)
    told: list[str] = []
    rows = coverage(10, told.append)
    assert len(told) == len(rows) == len({study.interval for study in studies()}) == 13
    for row in rows:
        assert 0.0 <= row["coverage"] <= 1.0
        assert row["mean_width"] > 0.0
        assert row["undefined"] == 0.0
        assert row["nominal"] == (0.90 if row["interval"].startswith("TOST") else 0.95)
        assert (row["error"] == 0.0) or row["repetitions"] == 10
    assert coverage(10) == rows


def test_a_counted_coverage_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    (study,) = (s for s in studies() if (s.interval, s.setting) == ("Wilson", "n 10, p 0.5"))
    monkeypatch.setattr(module, "studies", lambda: iter([study]))
    # Wilson at 10 holds one half for 2 to 8 of 10.
    inside = sum(math.comb(10, k) for k in range(2, 9)) / 2**10
    assert coverage(10)[0]["coverage"] == pytest.approx(inside)


def test_clopper_pearson_never_falls_below_its_level() -> None:
    rows = [module._counted(s) for s in studies() if s.interval == "Clopper-Pearson"][:8]
    assert all(row["coverage"] >= 0.95 for row in rows)


def test_a_drawn_coverage_counts_what_is_defined() -> None:
    def draw(rng: np.random.Generator) -> tuple[float, float]:
        number = rng.random()
        if number < 0.25:
            raise UserError("not defined")
        return (0.0, 1.0) if number < 0.5 else (2.0, 3.0)

    found = module._drawn(Study("x", "y", 0.5, draw=draw), 2000, 0)
    assert found["undefined"] == pytest.approx(0.25, abs=0.04)
    assert found["coverage"] == pytest.approx(1 / 3, abs=0.05)
    assert found["mean_width"] == 1.0
    share = found["coverage"]
    n = 2000 * (1 - found["undefined"])
    assert found["error"] == pytest.approx(math.sqrt(share * (1 - share) / n))


def test_the_page_holds_a_row_for_every_study() -> None:
    rows = [line.split("|")[1:3] for line in PAGE.read_text().splitlines() if "clusters of" in line]
    written = {(name.strip(), setting.strip()) for name, setting in rows}
    clustered = {(s.interval, s.setting) for s in studies() if "clusters of" in s.setting}
    assert written == clustered
    exact = clopper_pearson(0, 80)
    assert f"{100 * exact.high:.2f}" in PAGE.read_text()


def test_on_the_command_line(
    printed: Callable[..., str],
    refusal: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (study,) = (s for s in studies() if (s.interval, s.setting) == ("Wilson", "n 10, p 0.5"))
    monkeypatch.setattr(module, "studies", lambda: iter([study]))
    told = printed("bench", "--coverage", "--json", str(tmp_path / "c.json"))
    assert "97.9" in told
    found = json.loads((tmp_path / "c.json").read_text())
    assert found["repetitions"] == 1000
    assert found["rows"][0]["interval"] == "Wilson"
    assert "at least 10" in refusal("bench", "--coverage", "--repetitions", "3")
    assert "add --coverage" in refusal("bench", "--repetitions", "30")
    assert "not --worlds" in refusal("bench", "--coverage", "--worlds", "3")
    assert "not --models" in refusal("bench", "--coverage", "--models")
