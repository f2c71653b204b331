"""Networks: what a checkpoint holds is what Stable-Baselines3 trained."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from exactlyonce_env.actions import ACTION_NAMES, N_ACTIONS
from exactlyonce_env.observation import N_FEATURES
from exactlyonce_env.presets import load_plan
from policies.network import Network
from training.held_out import to_checkpoint
from training.model import actor_layers, geometric, make_model, schedule
from training.settings import settings
from training.standardise import MAX_SCALE, feature_scale, fold

SMALL = {"n_envs": 8, "network": [12, 9]}
PPO = {**SMALL, "n_steps": 8, "batch_size": 32}


@pytest.fixture(scope="module")
def plan():
    return load_plan("late-tail")


@pytest.fixture(scope="module")
def observations(plan):
    rng = np.random.default_rng(0)
    return rng.uniform(-1, 1, size=(200, N_FEATURES)).astype(np.float32)


def scores(model, observations):
    policy = model.policy
    x = torch.from_numpy(observations)
    with torch.no_grad():
        if hasattr(policy, "q_net"):
            return policy.q_net(x).numpy()
        features = policy.extract_features(x, policy.pi_features_extractor)
        return policy.action_net(policy.mlp_extractor.forward_actor(features)).numpy()


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize("algorithm", ["ppo", "maskable-ppo", "dqn"])
def test_the_checkpoint_scores_as_the_model_does(plan, observations, algorithm, standardise):
    base = SMALL if algorithm == "dqn" else PPO
    for activation in ("tanh", "relu"):
        chosen = settings(
            algorithm,
            "late-tail",
            {**base, "standardise": standardise, "activation": activation, "train_every": 64}
            if algorithm == "dqn"
            else {**base, "standardise": standardise, "activation": activation},
        )
        model = make_model(plan, algorithm, chosen, 0)
        checkpoint = to_checkpoint(actor_layers(model), model, {})
        assert checkpoint.activation == activation
        assert [len(bias) for _, bias in checkpoint.layers] == [12, 9, N_ACTIONS]
        np.testing.assert_allclose(
            Network(checkpoint).scores(observations), scores(model, observations), atol=2e-5
        )


def test_a_network_with_a_memory_has_no_such_form(plan):
    chosen = settings("recurrent-ppo", "late-tail", {**PPO, "lstm_size": 4})
    assert actor_layers(make_model(plan, "recurrent-ppo", chosen, 0)) is None


def test_the_prior_is_what_is_tried_at_first(plan, observations):
    prior = {"finish": -3.0, "read": 1.0}
    chosen = settings("maskable-ppo", "late-tail", {**PPO, "action_prior": prior})
    model = make_model(plan, "maskable-ppo", chosen, 0)
    found = scores(model, observations).mean(axis=0)
    for k, name in enumerate(ACTION_NAMES):
        assert found[k] == pytest.approx(prior.get(name, 0.0), abs=0.1)


def test_folding_a_scale_by_hand():
    weight, bias = np.array([[2.0, 3.0]], np.float32), np.array([1.0], np.float32)
    mean, scale = np.array([0.5, 0.0], np.float32), np.array([10.0, 1.0], np.float32)
    folded, shifted = fold(weight, bias, mean, scale)
    assert folded.tolist() == [[20.0, 3.0]]
    assert shifted.tolist() == [-9.0]  # 1 - 20 * 0.5


def test_the_scale_is_that_of_what_varies(plan):
    mean, scale = feature_scale(plan, {}, 0)
    again = feature_scale(plan, {}, 0)
    assert mean.tobytes() == again[0].tobytes()
    assert scale.tobytes() == again[1].tobytes()
    assert scale.max() <= MAX_SCALE
    names = {name: k for k, name in enumerate(_names())}
    for constant in ("idempotent", "cost_duplicate", "lag"):
        assert scale[names[constant]] == 1.0
    assert scale[names["elapsed"]] > 2.0


def test_schedules_are_linear_and_end():
    assert [schedule((0.03, 0.01), done) for done in (0.0, 0.5, 1.0, 1.2)] == pytest.approx(
        [0.03, 0.02, 0.01, 0.01]
    )


def test_geometric_schedules_multiply():
    assert [geometric((0.1, 0.001), done) for done in (0.0, 0.5, 1.0, 3.0)] == pytest.approx(
        [0.1, 0.01, 0.001, 0.001]
    )
    assert geometric((0.1, 0.0), 0.25) == pytest.approx(0.075)


def _names():
    from exactlyonce_env.observation import FEATURES

    return [feature.name for feature in FEATURES]
