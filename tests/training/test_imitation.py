"""Learning from one who knows: a toy teacher whose best action is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from exactlyonce_env.actions import ACTION_NAMES, N_ACTIONS
from exactlyonce_env.errors import UserError
from exactlyonce_env.presets import load_plan
from training.boundary import Stop
from training.held_out import OpenWorlds
from training.imitation import imitate, regret_of
from training.model import make_model
from training.run import train
from training.settings import ImitationSettings, settings

SMALL = {"n_envs": 16, "n_steps": 16, "batch_size": 64, "network": [16], "n_epochs": 1}
READ, RETRY, FINISH = (ACTION_NAMES.index(name) for name in ("read", "retry", "finish"))


def toy(batch):
    """Read first; what was seen is finished, the rest re-issued once and then finished."""
    views = batch.views
    values = np.full((len(batch), N_ACTIONS), 0.2)
    unread = views["n_reads"] == 0
    seen = (views["shown"] != 0) | (views["n_attempts"] > 1)
    best = np.where(unread, READ, np.where(seen, FINISH, RETRY))
    values[np.arange(len(batch)), best] = 1.0
    return values


@pytest.fixture(scope="module")
def plan():
    return load_plan("late-tail")


def model_of(plan):
    return make_model(plan, "maskable-ppo", settings("maskable-ppo", "late-tail", SMALL), 0)


def test_regret_falls_and_the_teacher_is_followed(plan):
    model = model_of(plan)
    chosen = ImitationSettings(rounds=4, epochs=8, batch_size=64, learning_rate=1e-2)
    rounds = imitate(
        model, plan, toy, worlds=400, seed=0, chosen=chosen, stop=Stop(), progress=None
    )
    regrets = [row["regret"] for row in rounds]
    assert regrets[0] > 0.3
    assert regrets[-1] < 0.02
    assert [row["views"] for row in rounds] == sorted(row["views"] for row in rounds)
    worlds = OpenWorlds(plan, 5, np.arange(50))
    batch = worlds.views()
    observations, masks = worlds.observe(batch)
    choices, _ = model.predict(observations, action_masks=masks, deterministic=True)
    assert (choices == READ).all()
    with torch.no_grad():
        values = model.policy.predict_values(torch.from_numpy(observations)).numpy()
    np.testing.assert_allclose(values, 1.0, atol=0.1)  # the critic learned the best value


def test_the_same_seed_teaches_the_same(plan):
    chosen = ImitationSettings(rounds=2, epochs=1)
    weights = []
    for _ in range(2):
        model = model_of(plan)
        imitate(model, plan, toy, worlds=50, seed=3, chosen=chosen, stop=Stop())
        weights.append([p.detach().numpy().tobytes() for p in model.policy.parameters()])
    assert weights[0] == weights[1]


def test_regret_by_hand():
    values = np.array([[1.0, 0.25, -np.inf], [-1.0, -1.0, 0.0]])
    assert regret_of(values).tolist() == [[0.0, 0.75, np.inf], [1.0, 1.0, 0.0]]


def test_unfit_labellers_are_refused(plan):
    chosen = ImitationSettings(rounds=1)
    arguments = {"worlds": 8, "seed": 0, "chosen": chosen, "stop": Stop()}
    with pytest.raises(UserError, match=r"returned shape \(8, 2\) for 8 views"):
        imitate(model_of(plan), plan, lambda batch: np.zeros((len(batch), 2)), **arguments)
    with pytest.raises(UserError, match="no allowed action"):
        imitate(model_of(plan), plan, lambda b: np.full((len(b), N_ACTIONS), -np.inf), **arguments)


def test_a_stop_ends_the_phase(plan):
    with pytest.raises(KeyboardInterrupt):
        imitate(
            model_of(plan),
            plan,
            toy,
            worlds=8,
            seed=0,
            chosen=ImitationSettings(rounds=1),
            stop=Stop(True),
        )


def test_a_run_that_starts_so_resumes_to_the_same_bytes(plan, tmp_path):
    import signal

    def run(out, stop_at=None):
        def progress(done, text):
            if done == stop_at:
                signal.raise_signal(signal.SIGINT)

        return train(
            plan,
            "maskable-ppo",
            settings("maskable-ppo", "late-tail", {**SMALL, "imitation": {"rounds": 2}}),
            steps=768,
            seed=0,
            out=out,
            imitate_worlds=64,
            labeller=toy,
            worlds=100,
            progress=progress,
        )

    whole = run(tmp_path / "whole")
    assert [set(row) for row in whole["imitation"]] == [{"views", "regret"}] * 2
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", stop_at=256)
    assert run(tmp_path / "parts")["imitation"] == whole["imitation"]
    first, second = (
        (tmp_path / name / "checkpoint.npz").read_bytes() for name in ("whole", "parts")
    )
    assert first == second


def test_imitation_alone_is_a_run(plan, tmp_path):
    found = train(
        plan,
        "maskable-ppo",
        settings("maskable-ppo", "late-tail", {**SMALL, "imitation": {"rounds": 2}}),
        steps=0,
        seed=0,
        out=tmp_path / "run",
        imitate_worlds=64,
        labeller=toy,
        worlds=50,
    )
    assert (found["steps"], found["imitated_worlds"]) == (0, 64)
    assert (tmp_path / "run" / "checkpoint.npz").is_file()
    with pytest.raises(UserError, match="steps must lie in"):
        train(plan, "ppo", settings("ppo", "late-tail"), steps=0, seed=0, out=tmp_path / "none")


def test_a_cheap_loop_is_unlearned(plan):
    """Each of the short waits of a loop costs almost nothing, all of them use up the calls."""

    def waits(batch):
        values = np.full((len(batch), N_ACTIONS), 0.5)
        values[:, FINISH] = 0.5002
        return values

    model = model_of(plan)
    with torch.no_grad():
        model.policy.action_net.bias[ACTION_NAMES.index("wait:15")] = 4.0
    chosen = ImitationSettings(rounds=6, epochs=10, batch_size=64, learning_rate=1e-2)
    rounds = imitate(model, plan, waits, worlds=300, seed=0, chosen=chosen, stop=Stop())
    assert rounds[0]["regret"] > 1e-4
    assert rounds[-1]["regret"] < 1e-5


def test_what_cannot_start_so(plan, tmp_path):
    arguments = {"steps": 10, "seed": 0, "out": tmp_path / "x", "imitate_worlds": 5}
    with pytest.raises(UserError, match="needs a labeller"):
        train(plan, "ppo", settings("ppo", "late-tail"), **arguments)
    with pytest.raises(UserError, match="dqn cannot start from imitation"):
        train(plan, "dqn", settings("dqn", "late-tail"), labeller=toy, **arguments)
