"""Whole runs: what they leave behind, and that an interruption changes nothing of it."""

from __future__ import annotations

import json
import signal
import threading

import numpy as np
import pytest
import torch

from exactlyonce_env.errors import UserError
from exactlyonce_env.presets import load_plan
from policies.checkpoint import load_checkpoint
from policies.learned import LearnedPolicy
from policies.rollout import run_policy
from training.boundary import Stop, asked_to_stop
from training.run import train
from training.settings import settings
from training.state import load_state

SMALL = {"n_envs": 16, "n_steps": 16, "batch_size": 64, "network": [16], "n_epochs": 2}
RECURRENT = {**SMALL, "lstm_size": 8}
DQN = {
    "n_envs": 16,
    "batch_size": 32,
    "network": [16],
    "learning_starts": 256,
    "train_every": 64,
    "gradient_steps": 2,
    "target_update_every": 128,
    "buffer_size": 2000,
}
OVERRIDES = {"ppo": SMALL, "maskable-ppo": SMALL, "recurrent-ppo": RECURRENT, "dqn": DQN}
STEPS = 2048


@pytest.fixture(scope="module")
def plan():
    return load_plan("late-tail")


def run(plan, algorithm, out, *, steps=STEPS, seed=4, progress=None, **more):
    overrides = {**OVERRIDES[algorithm], **more}
    return train(
        plan,
        algorithm,
        settings(algorithm, "late-tail", overrides),
        steps=steps,
        seed=seed,
        out=out,
        worlds=300,
        command=["exactlyonce", "train"],
        progress=progress,
    )


def interrupted_at(steps):
    """A progress function that asks for the end, as Ctrl-C does."""

    def progress(done, text):
        if done == steps:
            signal.raise_signal(signal.SIGINT)

    return progress


@pytest.mark.parametrize("algorithm", ["ppo", "maskable-ppo"])
def test_a_resumed_run_ends_in_the_same_bytes(plan, tmp_path, algorithm):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    result = run(plan, algorithm, whole, evaluate_every=1024)
    for stop in (512, 1280):
        with pytest.raises(KeyboardInterrupt):
            run(plan, algorithm, parts, evaluate_every=1024, progress=interrupted_at(stop))
        assert json.loads((parts / "manifest.json").read_text())["status"] == "interrupted"
        assert load_state(parts / "resume.pt")["counters"]["num_timesteps"] == stop + 256
    resumed = run(plan, algorithm, parts, evaluate_every=1024)
    assert (parts / "checkpoint.npz").read_bytes() == (whole / "checkpoint.npz").read_bytes()
    names = {path.name for path in (whole / "checkpoints").iterdir()}
    assert names == {"step-0000001024.npz"}
    for name in names:
        kept = (path / "checkpoints" / name for path in (whole, parts))
        assert len({path.read_bytes() for path in kept}) == 1
    assert resumed["evaluations"] == result["evaluations"]
    assert resumed["held_out"] == result["held_out"]
    assert not (parts / "resume.pt").exists()


def test_a_resumed_recurrent_run_ends_in_the_same_weights(plan, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    result = run(plan, "recurrent-ppo", whole, steps=768)
    with pytest.raises(KeyboardInterrupt):
        run(plan, "recurrent-ppo", parts, steps=768, progress=interrupted_at(256))
    resumed = run(plan, "recurrent-ppo", parts, steps=768)
    assert resumed["held_out"] == result["held_out"]
    assert result["checkpoint"] == "checkpoint.pt"
    first, second = (
        torch.load(path / "checkpoint.pt", weights_only=True) for path in (whole, parts)
    )
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_dqn_resumes_and_comes_to_its_end(plan, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(plan, "dqn", tmp_path, progress=interrupted_at(1024))
    result = run(plan, "dqn", tmp_path)
    assert result["steps"] == STEPS
    assert len(load_checkpoint(tmp_path / "checkpoint.npz").layers) == 2


def test_the_checkpoint_is_what_was_measured(plan, tmp_path):
    result = run(plan, "maskable-ppo", tmp_path)
    checkpoint = load_checkpoint(tmp_path / "checkpoint.npz")
    rewards = run_policy(plan, LearnedPolicy("x", checkpoint), 0, np.arange(300)).rewards
    assert rewards.mean() == result["held_out"]["reward"]
    assert checkpoint.manifest["measured"] == result["held_out"]
    assert checkpoint.manifest["preset"] == "late-tail"
    assert checkpoint.manifest["first_training_world"] == 2**40
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["status"] == "complete"
    assert manifest["result"] == json.loads(json.dumps(result))
    assert 0.0 < result["env_share"] < 1.0
    assert any((tmp_path / "tensorboard").iterdir())


def test_a_finished_run_is_not_trained_again(plan, tmp_path):
    result = run(plan, "ppo", tmp_path)
    before = (tmp_path / "checkpoint.npz").stat().st_mtime_ns
    assert run(plan, "ppo", tmp_path) == json.loads(json.dumps(result))
    assert (tmp_path / "checkpoint.npz").stat().st_mtime_ns == before


def test_another_run_is_refused(plan, tmp_path):
    run(plan, "ppo", tmp_path, steps=256)
    with pytest.raises(UserError, match="holds a run with seed 4, not 5; choose another folder"):
        run(plan, "ppo", tmp_path, steps=256, seed=5)
    with pytest.raises(UserError, match=r"settings.gae_lambda .*, not \[0.25, 0.25\]"):
        run(plan, "ppo", tmp_path, steps=256, gae_lambda=[0.25, 0.25])


def test_foreign_files_are_refused(plan, tmp_path):
    (tmp_path / "manifest.json").write_text('{"format": "other"}')
    with pytest.raises(UserError, match="no manifest of a training run"):
        run(plan, "ppo", tmp_path)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "resume.pt").write_bytes(b"\x80\x02cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(UserError, match=r"resume.pt' is damaged.*remove it"):
        run(plan, "ppo", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps must lie in"),
        ({"seed": -1}, "seed of a training run must lie in"),
        ({"seed": 2**32}, "seed of a training run must lie in"),
    ],
)
def test_arguments_out_of_range(plan, tmp_path, arguments, message):
    with pytest.raises(UserError, match=message):
        run(plan, "ppo", tmp_path / "new", **arguments)
    assert not (tmp_path / "new").exists()


def test_signals_ask_once_and_then_interrupt():
    before = signal.getsignal(signal.SIGINT)
    with asked_to_stop() as stop:
        assert stop == Stop(False)
        signal.raise_signal(signal.SIGTERM)
        assert stop.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_thread_leaves_the_signals_alone():
    found = []

    def look():
        with asked_to_stop() as stop:
            found.append((signal.getsignal(signal.SIGINT), stop.asked))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [(signal.getsignal(signal.SIGINT), False)]
