"""`train` as a user types it."""

from __future__ import annotations

import json

import pytest

from exactlyonce_env.cli import main
from exactlyonce_env.cli import train as command

SETTINGS = "n_envs: 16\nn_steps: 16\nbatch_size: 64\nnetwork: [16]\n"


def refusal(capsys, *args):
    code = main(list(args))
    captured = capsys.readouterr()
    assert code == 2, captured.out
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("error: ")
    return captured.err


def test_without_the_extra_one_line_says_what_to_install(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "torch" else object())
    error = refusal(capsys, "train", "late-tail", "--out", str(tmp_path / "run"))
    assert "needs torch" in error
    assert "pip install 'exactlyonce-env[train]'" in error
    assert not (tmp_path / "run").exists()


def test_train_writes_a_run_and_tells_of_it(capsys, tmp_path):
    pytest.importorskip("sb3_contrib")
    file, out = tmp_path / "small.yaml", tmp_path / "run"
    file.write_text(SETTINGS)
    args = ("train", "late-tail", "--steps", "512", "--worlds", "50", "--settings", str(file))
    assert main([*args, "--out", str(out), "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["steps"] == 512
    assert result["algorithm"] == "maskable-ppo"
    assert result["held_out"]["worlds"] == 50
    assert (out / result["checkpoint"]).is_file()
    manifest = (out / "manifest.json").read_text()
    assert str(tmp_path) not in manifest  # no folder of this machine
    assert main([*args, "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "mean reward in 50 held-out worlds of seed 0" in told
    assert f"{result['held_out']['reward']:.4f}" in told


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("late-tale",), "unknown preset 'late-tale' (did you mean late-tail?)"),
        (("late-tail", "--algo", "a2c"), "unknown algorithm 'a2c'"),
        (("late-tail", "--steps", "0"), "steps must lie in"),
        (("late-tail", "--worlds", "0"), "--worlds must lie in"),
        (("late-tail", "--settings", "nowhere.yaml"), "'nowhere.yaml' does not exist"),
        (("late-tail", "--imitate", "-1"), "--imitate must lie in"),
    ],
)
def test_mistakes_cost_one_line(capsys, tmp_path, args, message):
    pytest.importorskip("sb3_contrib")
    assert message in refusal(capsys, "train", *args, "--out", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_help_needs_no_torch(run_python):
    code = (
        "import sys\nfrom exactlyonce_env.cli import main\n"
        "assert main(['train', '--help']) == 0\nassert 'torch' not in sys.modules\n"
    )
    found = run_python("-c", code)
    assert found.returncode == 0, found.stderr
    assert "--imitate" in found.stdout
