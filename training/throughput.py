"""How fast the learner runs: here, and the same learner on CartPole as a peer.

Both take the shipped settings of an algorithm: the same network, environments, rollout, batch and
passes.  CartPole is stepped as Stable-Baselines3 makes it, one Python object an environment.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

from exactlyonce_env.plan import Plan
from training.model import make_model
from training.settings import PpoSettings, settings

__all__ = ["throughput"]

ALGORITHMS = ("ppo", "maskable-ppo")


def throughput(
    plan: Plan, *, rollouts: int = 6, progress: Callable[[str], None] | None = None
) -> list[dict[str, Any]]:
    """Steps per second of training at the shipped settings, medians over rollouts.

    A rollout is collected and learned from; the first of each, which warms up, is not counted, and
    the learners take turns.

    Parameters
    ----------
    plan
        The worlds.
    rollouts
        Counted rollouts of each learner, at least 1.
    progress
        Called with what is being measured.

    Returns
    -------
    One mapping a learner: ``learner``, ``environment``, ``steps_per_s``, and ``env_share``, the
    share of the wall time that was spent in the environment.
    """
    chosen = {name: settings(name, plan.preset.name) for name in ALGORITHMS}
    learners: list[tuple[str, str, Any, _Clock]] = []
    for name, setting in chosen.items():
        model = make_model(plan, name, setting, seed=0)
        learners.append((name, plan.preset.name, model, _Clock(model)))
    peer = _on_cartpole(chosen["ppo"])
    learners.append(("ppo", "CartPole-v1", peer, _Clock(peer)))
    speeds: dict[int, list[float]] = {k: [] for k in range(len(learners))}
    shares: dict[int, list[float]] = {k: [] for k in range(len(learners))}
    for turn in range(rollouts + 1):
        for k, (name, environment, model, clock) in enumerate(learners):
            if progress is not None:
                progress(f"speed of {name} on {environment}")
            steps, clock.busy_s = model.num_timesteps, 0.0
            began = time.perf_counter()
            model.learn(model.n_steps * model.n_envs, reset_num_timesteps=False)
            took_s = time.perf_counter() - began
            if turn > 0:
                speeds[k].append((model.num_timesteps - steps) / took_s)
                shares[k].append(clock.busy_s / took_s)
    return [
        {
            "learner": name,
            "environment": environment,
            "steps_per_s": statistics.median(speeds[k]),
            "env_share": statistics.median(shares[k]),
        }
        for k, (name, environment, _, _) in enumerate(learners)
    ]


class _Clock:
    """Counts the seconds that a model's environment takes to step."""

    def __init__(self, model: Any) -> None:
        self.busy_s = 0.0
        env: VecEnv = model.get_env()
        step = env.step

        def timed(actions: Any) -> Any:
            began = time.perf_counter()
            found = step(actions)
            self.busy_s += time.perf_counter() - began
            return found

        env.step = timed  # type: ignore[method-assign]


def _on_cartpole(chosen: Any) -> PPO:
    assert isinstance(chosen, PpoSettings)
    widths = list(chosen.network)
    return PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", chosen.n_envs, seed=0),
        learning_rate=chosen.learning_rate[0],
        n_steps=chosen.n_steps,
        n_epochs=chosen.n_epochs,
        batch_size=chosen.batch_size,
        policy_kwargs={"net_arch": {"pi": widths, "vf": widths}},
        seed=0,
        device="cpu",
    )
