"""From settings to a Stable-Baselines3 model, and from the model to the layers of a checkpoint."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from stable_baselines3.common.base_class import BaseAlgorithm

from exactlyonce_env.actions import ACTION_NAMES
from exactlyonce_env.plan import Plan
from training.settings import DqnSettings, PpoSettings, RecurrentSettings, Settings
from training.standardise import Standardised, feature_scale, fold
from training.vec_env import RecoveryVecEnv

__all__ = ["actor_layers", "geometric", "make_model", "schedule"]

Layers: TypeAlias = tuple[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]], ...]

_ACTIVATIONS = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}


def make_model(
    plan: Plan, algorithm: str, chosen: Settings, seed: int, *, log_folder: str | None = None
) -> BaseAlgorithm:
    """A new model of the algorithm over `RecoveryVecEnv`, its weights drawn from ``seed``."""
    env = RecoveryVecEnv(plan, chosen.n_envs)
    common: dict[str, Any] = {
        "env": env,
        "learning_rate": lambda left: schedule(chosen.learning_rate, 1.0 - left),
        "gamma": chosen.gamma,
        "batch_size": chosen.batch_size,
        "max_grad_norm": chosen.max_grad_norm,
        "policy_kwargs": _network(plan, chosen, seed),
        "tensorboard_log": log_folder,
        "seed": seed,
        "device": "cpu",
    }
    if isinstance(chosen, DqnSettings):
        return _dqn(chosen, common)
    assert isinstance(chosen, PpoSettings)
    return _ppo(algorithm, chosen, common)


def _ppo(algorithm: str, chosen: PpoSettings, common: dict[str, Any]) -> BaseAlgorithm:
    from sb3_contrib import MaskablePPO, RecurrentPPO
    from stable_baselines3 import PPO

    classes = {"ppo": PPO, "maskable-ppo": MaskablePPO, "recurrent-ppo": RecurrentPPO}
    policy = "MlpPolicy"
    if isinstance(chosen, RecurrentSettings):
        policy = "MlpLstmPolicy"
        common["policy_kwargs"]["lstm_hidden_size"] = chosen.lstm_size
    model: BaseAlgorithm = classes[algorithm](
        policy,
        n_steps=chosen.n_steps,
        n_epochs=chosen.n_epochs,
        gae_lambda=chosen.gae_lambda[0],
        clip_range=chosen.clip_range,
        ent_coef=chosen.entropy[0],
        vf_coef=chosen.value_weight,
        normalize_advantage=chosen.normalise_advantage,
        target_kl=chosen.target_kl,
        **common,
    )
    prior = torch.tensor([chosen.action_prior.get(name, 0.0) for name in ACTION_NAMES])
    policy_net: Any = model.policy
    with torch.no_grad():
        policy_net.action_net.bias.copy_(prior)
    return model


def _dqn(chosen: DqnSettings, common: dict[str, Any]) -> BaseAlgorithm:
    from stable_baselines3 import DQN

    return DQN(
        "MlpPolicy",
        buffer_size=chosen.buffer_size,
        learning_starts=chosen.learning_starts,
        train_freq=chosen.train_every // chosen.n_envs,
        gradient_steps=chosen.gradient_steps,
        target_update_interval=chosen.target_update_every,
        exploration_initial_eps=chosen.explore[0],
        exploration_final_eps=chosen.explore[1],
        exploration_fraction=chosen.explore_share,
        **common,
    )


def _network(plan: Plan, chosen: Settings, seed: int) -> dict[str, Any]:
    widths = list(chosen.network)
    on_policy = isinstance(chosen, PpoSettings)
    keywords: dict[str, Any] = {
        "net_arch": {"pi": widths, "vf": widths} if on_policy else widths,
        "activation_fn": _ACTIVATIONS[chosen.activation],
    }
    if chosen.standardise:
        prior = chosen.action_prior if isinstance(chosen, PpoSettings) else {}
        mean, scale = feature_scale(plan, prior, seed)
        keywords["features_extractor_class"] = Standardised
        keywords["features_extractor_kwargs"] = {"mean": mean, "scale": scale}
    return keywords


def schedule(pair: tuple[float, float], done: float) -> float:
    """Value of a linear schedule when the share ``done`` of it has passed."""
    start, end = pair
    return start + (end - start) * min(max(done, 0.0), 1.0)


def geometric(pair: tuple[float, float], done: float) -> float:
    """Value of a geometric schedule when the share ``done`` has passed; linear from or to 0."""
    start, end = pair
    if start == 0.0 or end == 0.0:
        return schedule(pair, done)
    return float(start * (end / start) ** min(max(done, 0.0), 1.0))


def actor_layers(model: BaseAlgorithm) -> Layers | None:
    """The network that scores the actions, from raw observations on; None if it has a memory."""
    policy: Any = model.policy
    if hasattr(policy, "lstm_actor"):
        return None
    if hasattr(policy, "q_net"):
        extractor = policy.q_net.features_extractor
        modules = list(policy.q_net.q_net)
    else:
        extractor = policy.pi_features_extractor
        modules = [*policy.mlp_extractor.policy_net, policy.action_net]
    layers = [
        (m.weight.detach().numpy().copy(), m.bias.detach().numpy().copy())
        for m in modules
        if isinstance(m, torch.nn.Linear)
    ]
    if isinstance(extractor, Standardised):
        layers[0] = fold(*layers[0], extractor.mean.numpy(), extractor.scale.numpy())
    return tuple(layers)
