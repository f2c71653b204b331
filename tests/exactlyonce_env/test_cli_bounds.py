"""`bounds` and `explain` as a user types them."""

from __future__ import annotations

import json

import pytest

from evaluation import persistence
from exactlyonce_env.cli import main


@pytest.fixture
def as_json(capsys):
    """What a command prints with ``--json -``, and nothing beside it."""

    def run(*args):
        code = main([*args, "--json", "-"])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        assert captured.err == ""
        return json.loads(captured.out)

    return run


@pytest.fixture
def printed(capsys):
    """What a command that succeeds prints."""

    def run(*args):
        code = main(list(args))
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return captured.out

    return run


def test_bounds_keys(as_json):
    found = as_json("bounds", "late-fixed", "--worlds", "200", "--seed", "1")
    assert found.keys() == {
        *("preset", "seed", "worlds", "bayes_value", "bayes_error_bound", "bayes_simulated"),
        *("clairvoyant", "outcome_oracle", "best_wait", "best_poll", "contexts", "warnings"),
    }
    assert (found["preset"], found["seed"], found["worlds"]) == ("late-fixed", 1, 200)
    for name in ("bayes_simulated", "clairvoyant", "outcome_oracle", "best_wait", "best_poll"):
        low, high = found[name]["ci"]
        assert low <= found[name]["value"] <= high
    assert found["best_wait"]["delta_s"] == 90
    assert found["contexts"] == []
    simulated = found["bayes_simulated"]
    assert simulated["difference"] == pytest.approx(simulated["value"] - found["bayes_value"])
    assert simulated["agrees"] is (abs(simulated["standard_errors"]) <= 3)


def test_bounds_by_contract(as_json, printed):
    found = as_json("bounds", "first-decision", "--worlds", "300")
    assert [row["names"] for row in found["contexts"]] == [
        ["key omitted"],
        ["key valid"],
        ["key changed"],
    ]
    for row in found["contexts"]:
        assert row.keys() == {
            *(
                "numbers",
                "names",
                "weight",
                "worlds",
                "bayes_value",
                "bayes_simulated",
                "best_wait",
            ),
        }
    text = printed("bounds", "first-decision", "--worlds", "300")
    assert "simulated less exact" in text
    assert "key changed" in text


def test_many_contracts_show_as_quantiles(printed, tmp_path):
    config = tmp_path / "lags.yaml"
    config.write_text("lags_s: {low: 30, high: 54, step: 1}\n")
    text = printed("bounds", "stale-tail", "--worlds", "50", "--config", str(config))
    assert "25 contracts: quantiles" in text
    assert "median" in text


def test_bounds_are_kept_and_drawn(printed, tmp_path, monkeypatch):
    monkeypatch.setattr(persistence, "RATIOS_H", (1.0, 8.0, 64.0))
    monkeypatch.setattr(persistence, "N_MOMENTS", 6)
    run, plots = tmp_path / "run", tmp_path / "plots"
    text = printed(
        *("bounds", "late-fixed", "--worlds", "50", "--out", str(run), "--plot", str(plots))
    )
    assert "late-fixed: what can be earned, 50 worlds, seed 0" in text
    kept = json.loads((run / "bounds.json").read_text())
    assert json.loads((run / "manifest.json").read_text())["status"] == "complete"
    names = {f"{name}.{kind}" for name in ("persistence", "decision-map") for kind in KINDS}
    assert {path.name for path in plots.iterdir()} == names
    assert set(kept["plots"]) == names
    curves = json.loads((plots / "persistence.json").read_text())
    assert curves["ratios_h"] == [1.0, 8.0, 64.0]
    [own] = [curve for curve in curves["curves"] if curve["own"]]
    assert own["family"] == "fixed"
    assert own["elapsed_s"] == pytest.approx([91.0] * 3, abs=0.01)


KINDS = ("png", "svg", "json")


def test_explain_tells_every_step(as_json, printed):
    found = as_json("explain", "late-tail", "--world", "0")
    assert (found["policy"], found["privileged"], found["world"]) == ("bayes-optimal", False, 0)
    first, last = found["steps"][0], found["steps"][-1]
    assert sum(first["posterior"].values()) == pytest.approx(1.0)
    assert first["posterior"].keys() == {"absent", "committed", "late", "partial", "duplicated"}
    assert first["values"].keys() == {
        *("read", "wait", "retry", "keyed_retry", "escalate", "finish", "finish_uncertain"),
    }
    assert first["values"]["keyed_retry"] is None
    optimum = first["optimum"]
    assert optimum.keys() == {"action", "value", "until_s", "second", "margin", "why"}
    assert optimum["action"] == first["next_action"]
    assert optimum["until_s"] > 31.0
    assert first["seen"] == "attempt 0: timeout"
    assert last["optimum"] is None
    assert found["ledger"][0]["attempt"] == 1
    assert found["outcome"]["exactly_once"] is True
    text = printed("explain", "late-tail", "--world", "0")
    assert optimum["why"] in text
    assert "what really happened (privileged)" in text
    assert "absent 33.3 %" in text


def test_explain_shows_the_regret_of_any_policy(as_json, printed):
    args = ("explain", "late-tail", "--world", "0", "--policy", "verify-retry")
    found = as_json(*args)
    [step] = [step for step in found["steps"] if step["next_action"] == "retry"]
    assert step["regret"] == pytest.approx(step["optimum"]["value"] - step["next_value"])
    assert found["regret"] == pytest.approx(
        sum(s["regret"] for s in found["steps"] if s["regret"] is not None)
    )
    assert f"regret {step['regret']:.4f}" in printed(*args)
    oracle = printed("explain", "late-fixed", "--world", "1", "--policy", "outcome-oracle")
    assert "played by outcome-oracle*" in oracle


@pytest.mark.parametrize(
    ("args", "needles"),
    [
        (("bounds", "late-tial"), ("late-tial", "late-tail", "choose from")),
        (("bounds", "empirical"), ("empirical", "delays")),
        (("bounds", "late-tail", "--worlds", "0"), ("--worlds", "0")),
        (("bounds", "late-tail", "--seed", "-1"), ("seed", "-1")),
        (("bounds", "late-tail", "--plot="), ("--plot", "empty")),
        (("bounds", "late-tail", "--plot", "README.md"), ("--plot", "README.md", "folder")),
        (("bounds", "late-tail", "--context", "x"), ("--context", "--plot")),
        (
            ("bounds", "late-tail", "--plot", "nowhere", "--context", "x"),
            ("'x'", "late-tail", "number"),
        ),
        (("bounds", "first-decision", "--plot", "nowhere"), ("max_steps 1",)),
        (("explain", "late-tail"), ("--world",)),
        (("explain", "late-tial", "--world", "0"), ("late-tial", "late-tail")),
        (("explain", "late-tail", "--world", "-1"), ("world id", "-1")),
        (("explain", "late-tail", "--world", str(2**63)), ("world id", str(2**63))),
        (("explain", "late-tail", "--world", "x"), ("--world", "x")),
        (("explain", "late-tail", "--world", "0", "--policy", "gard"), ("gard", "guard")),
        (
            ("explain", "late-tail", "--world", "0", "--policy", "clairvoyant"),
            ("clairvoyant", "bound"),
        ),
    ],
)
def test_bad_input(capsys, args, needles):
    assert main(list(args)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ")
    assert all(needle in line for needle in needles)
