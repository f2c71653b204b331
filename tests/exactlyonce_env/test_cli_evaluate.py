"""`evaluate`, `sweep` and `fit` as a user types them: the outside contract and its errors."""

from __future__ import annotations

import json

import pytest

from exactlyonce_env.cli import main
from exactlyonce_env.records import MEASURES

SAMPLES = "tests/data/delays"


def run_json(capsys, *args):
    code = main([*args, "--json", "-"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


def refusal(capsys, *args):
    code = main(list(args))
    captured = capsys.readouterr()
    assert code == 2, captured.out
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("error: ")
    return captured.err


def test_evaluate_rows(capsys):
    result = run_json(
        capsys, "evaluate", "late-tail", "--policies", "guard,wait:300", "--worlds", "200"
    )
    assert [row["policy"] for row in result["rows"]] == ["guard", "wait:300"]
    for row in result["rows"]:
        names = {
            *MEASURES,
            "reward",
            "regret",
            "duplicate_rate",
            "false_retry_permission_rate",
            "overclaim_rate",
        }
        assert names <= row.keys()
        for name in names:
            assert len(row["ci"][name]) == 2, name


def test_evaluate_writes_a_run_and_extends_it(capsys, tmp_path):
    out = str(tmp_path / "run")
    args = ("evaluate", "late-fixed", "--worlds", "300", "--out", out)
    first = run_json(capsys, *args, "--policies", "guard")
    more = run_json(capsys, *args, "--policies", "guard,wait:90", "--baseline", "guard")
    assert more["rows"][0]["exactly_once"] == first["rows"][0]["exactly_once"]
    assert more["rows"][1]["versus"]["baseline"] == "guard"
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"manifest.json", "summary.json", "episodes"} <= names


def test_evaluate_with_sweep_plots_the_frontier(capsys, tmp_path):
    out = tmp_path / "run"
    code = main(
        [
            *("evaluate", "late-fixed", "--policies", "guard", "--worlds", "60", "--sweep"),
            *("--out", str(out)),
        ]
    )
    assert code == 0
    text = capsys.readouterr().out
    assert "wait:7200" in text
    assert (out / "frontier.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (out / "frontier.svg").read_text()
    assert json.loads((out / "sweep.json").read_text())["best_delta_s"] == 120


def test_sweep_rows(capsys):
    result = run_json(
        capsys, "sweep", "late-tail", "--worlds", "200", "--seed", "1", "--deltas", "0,60,900"
    )
    assert result["best_delta_s"] in (0, 60, 900)
    keys = {"policy", "delta_s", "exactly_once", "duplicate_rate", "elapsed_s", "reward"}
    assert all(keys <= row.keys() for row in result["rows"])
    assert {row["delta_s"] for row in result["rows"]} == {0, 60, 900}


def test_overrides_reach_the_worlds(capsys, tmp_path):
    config = tmp_path / "mine.yaml"
    config.write_text("costs: {duplicate: 7.0}\nfaults: {original: {timeout_post: 1}}\n")
    result = run_json(
        capsys,
        *("evaluate", "late-tail", "--policies", "blind-retry", "--worlds", "20"),
        *("--config", str(config)),
    )
    row = result["rows"][0]
    assert row["duplicates"] == 1.0
    # success 0, duplicate 7, overclaim 0.2, one re-issue, one second
    assert row["reward"] == pytest.approx(-7.2 - 0.002 - 0.12 / 3600)


def test_raw_measurements_are_fitted_on_the_spot(capsys):
    result = run_json(capsys, "sweep", "--delays", f"{SAMPLES}/results.jtl", "--worlds", "50")
    assert result["preset"] == "empirical"
    assert all(row["landed"] is not None for row in result["rows"])


def test_fit_saves_a_law_that_commands_take(capsys, tmp_path):
    saved = str(tmp_path / "law.json")
    fitted = run_json(
        capsys, "fit", f"{SAMPLES}/results.jtl", "--censored-at", "30000", "--save", saved
    )
    assert {"n", "censored", "quantiles", "families"} <= fitted.keys()
    assert fitted["censored"] > 0
    assert {"value_s", "low_s", "high_s"} == fitted["quantiles"]["0.5"].keys()
    aics = [family["aic"] for family in fitted["families"]]
    assert aics == sorted(aics)
    result = run_json(
        capsys,
        *("evaluate", "empirical", "--delays", saved, "--policies", "guard", "--worlds", "20"),
    )
    assert result["rows"][0]["episodes"] == 20


@pytest.mark.parametrize(
    ("args", "needles"),
    [
        (("evaluate", "late-tial"), ("late-tial", "late-tail", "choose from")),
        (("evaluate", "late-tail", "--policies", "gard"), ("gard", "guard")),
        (("evaluate", "late-tail", "--policies", "guard,,rules"), ("empty entry",)),
        (("evaluate", "late-tail", "--policies", "wait"), ("wait", "seconds")),
        (("evaluate", "late-tail", "--policies", "wait:-1"), ("wait", "-1")),
        (("evaluate", "late-tail", "--worlds", "0"), ("--worlds", "0")),
        (("evaluate", "late-tail", "--worlds", "x"), ("--worlds", "x")),
        (("evaluate", "late-tail", "--seed", "-1"), ("seed", "-1")),
        (("evaluate", "late-tail", "--policies", "guard", "--baseline", "rules"), ("rules",)),
        (("evaluate", "late-tail", "--config", "nowhere.yaml"), ("nowhere.yaml",)),
        (("evaluate", "empirical"), ("empirical", "delays")),
        (("evaluate", "late-tail", "--delays", "lomax:c=-1"), ("c", "-1")),
        (("evaluate", "late-tail", "--delays", "nowhere.json"), ("nowhere.json",)),
        (("sweep",), ("empirical", "delays")),
        (("sweep", "late-tail", "--deltas", "60,x"), ("'x'", "number")),
        (("sweep", "late-tail", "--deltas", "60,60"), ("60", "twice")),
        (("sweep", "late-tail", "--deltas", "-5"), ("-5",)),
        (("sweep", "late-tail", "--deltas", "nan"), ("nan",)),
        (("fit", "nowhere.csv"), ("nowhere.csv",)),
        (("fit", f"{SAMPLES}/results.jtl", "--column", "nope"), ("nope",)),
        (("fit", f"{SAMPLES}/results.jtl", "--unit", "h"), ("h", "ms")),
        (("fit", f"{SAMPLES}/matrix.txt"), ("--column",)),
        (("bench", "--rounds", "0"), ("--rounds",)),
        (("evaluate", "late-tail", "--out", ""), ("--out", "empty")),
        (("evaluate", "late-tail", "--config", "tests"), ("tests", "folder")),
    ],
)
def test_bad_input(capsys, args, needles):
    line = refusal(capsys, *args)
    for needle in needles:
        assert needle in line


def test_nothing_is_written_on_bad_input(capsys, tmp_path):
    out = tmp_path / "run"
    refusal(capsys, "evaluate", "late-tail", "--policies", "guard,gard", "--out", str(out))
    refusal(capsys, "sweep", "late-tail", "--deltas", "60,60", "--out", str(out))
    refusal(capsys, "fit", f"{SAMPLES}/matrix.txt", "--save", str(tmp_path / "law.json"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "needles"),
    [
        ("", ("empty",)),
        ("delay_s\n", ("no ",)),
        ("delay_s\n1\n-2\n", ("negative", "-2")),
        ("delay_s\n1\nnan\n", ("'nan'", "line 3", "'delay_s'")),
        ("delay_s\nnan\n1\n", ("'nan'", "line 2", "'delay_s'")),
        ("delay_s\nnan\nnan\n", ("numeric", "'delay_s'", "line 1")),
        ("delay_s,done\n1,0\n2,0\n3,0\n4,0\n", ("censored",)),
    ],
)
def test_bad_delay_files(capsys, tmp_path, text, needles):
    file = tmp_path / "delays.csv"
    file.write_text(text)
    event = ("--event-column", "done") if "done" in text else ()
    line = refusal(capsys, "fit", str(file), *event).lower()
    for needle in needles:
        assert needle in line


def test_raw_delays_carry_the_warnings_of_their_fit(capsys, tmp_path):
    file = tmp_path / "delays.csv"
    file.write_text("".join(f"{1000 + 7 * k % 400}\n" for k in range(60)))
    for command in (
        ("sweep", "--deltas", "1100"),
        ("evaluate", "empirical", "--policies", "rules"),
    ):
        result = run_json(capsys, *command, "--worlds", "20", "--delays", str(file))
        assert any("seconds were assumed" in warning for warning in result["warnings"])
    assert main(["sweep", "--deltas", "1100", "--worlds", "20", "--delays", str(file)]) == 0
    assert "warning: seconds were assumed" in capsys.readouterr().out


def test_raw_delays_that_need_options_are_sent_to_fit(capsys):
    line = refusal(capsys, "sweep", "--delays", f"{SAMPLES}/matrix.txt", "--worlds", "20")
    assert f"exactlyonce fit {SAMPLES}/matrix.txt --save" in line


def test_waiting_beyond_the_data_is_flagged(capsys, tmp_path):
    file = tmp_path / "delays_s.csv"
    file.write_text("delay_s\n" + "".join(f"{k}\n" for k in range(40, 60)))
    args = ("evaluate", "empirical", "--delays", str(file), "--worlds", "20")
    known = run_json(capsys, *args, "--policies", "wait:59,poll:50,guard")
    assert known["notes"] == []
    beyond = run_json(capsys, *args, "--policies", "wait:59,poll:60,guard")
    [note] = beyond["notes"]
    assert note.startswith("poll:60: the data end at 59 s")
