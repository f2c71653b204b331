"""How a model does in worlds that training never meets, taking its best action in each view."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from stable_baselines3.common.base_class import BaseAlgorithm

from exactlyonce_env.actions import ACTION_NAMES, KINDS, N_ACTIONS, SECONDS, mask_views
from exactlyonce_env.batch import act_batch, begin_batch
from exactlyonce_env.observation import FEATURES, N_FEATURES, observe_views
from exactlyonce_env.plan import Plan
from exactlyonce_env.records import N_TERMS, TRUTH, VIEW
from exactlyonce_env.vocabulary import Ending
from policies.base import ViewBatch
from policies.checkpoint import Checkpoint
from policies.learned import LearnedPolicy
from policies.rollout import run_policy
from training.model import Layers, actor_layers

__all__ = ["OpenWorlds", "held_out_rewards", "to_checkpoint"]

RUNNING = int(Ending.RUNNING)

Rewards: TypeAlias = npt.NDArray[np.float64]


def held_out_rewards(model: BaseAlgorithm, plan: Plan, worlds: int, seed: int) -> Rewards:
    """Reward of each of the worlds 0..``worlds`` - 1 of ``seed``, (worlds,)."""
    layers = actor_layers(model)
    ids = np.arange(worlds)
    if layers is None:
        return _recurrent_rewards(model, plan, seed, ids)
    checkpoint = to_checkpoint(layers, model, {})
    return run_policy(plan, LearnedPolicy("training", checkpoint), seed, ids).rewards


def to_checkpoint(layers: Layers, model: BaseAlgorithm, manifest: dict[str, Any]) -> Checkpoint:
    """The model's network as a checkpoint."""
    policy: Any = model.policy
    return Checkpoint(
        layers=layers,
        activation="relu" if policy.activation_fn.__name__ == "ReLU" else "tanh",
        features=tuple(feature.name for feature in FEATURES),
        actions=ACTION_NAMES,
        manifest=manifest,
    )


class OpenWorlds:
    """Worlds that are stepped together while the ended ones drop out.

    Attributes
    ----------
    running
        Places (m,) int64 of the worlds that still run.
    rewards
        (n,) float64, what each world has earned so far.
    """

    def __init__(self, plan: Plan, seed: int, ids: npt.NDArray[np.int64]) -> None:
        n = len(ids)
        self._plan = plan
        self._seen, self._truth = np.zeros(n, VIEW), np.zeros(n, TRUTH)
        self._contracts = np.ascontiguousarray(plan.contracts)
        self._terms = np.zeros(N_TERMS)
        self.rewards: Rewards = np.zeros(n)
        self.running = np.arange(n)
        key = np.uint64(seed)
        begin_batch(plan.contexts, plan.context_cdf, plan.table, key, ids, self._seen, self._truth)

    def views(self) -> ViewBatch:
        """What the clients of the running worlds have seen, (m,)."""
        return ViewBatch(self._seen[self.running], self._contracts)

    def observe(self, batch: ViewBatch) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """Observations (m, N_FEATURES) and masks (m, 11) of a batch of `views`."""
        observations = np.empty((len(batch), N_FEATURES), np.float32)
        masks = np.empty((len(batch), N_ACTIONS), np.int8)
        observe_views(batch.views, batch.contracts, self._plan.static, observations)
        mask_views(batch.views, batch.contracts, masks)
        return observations, masks.view(np.bool_)

    def act(self, choices: npt.NDArray[np.int64]) -> None:
        """Take the discrete actions (m,) in the running worlds."""
        plan = self._plan
        act_batch(
            plan.contexts,
            plan.table,
            self._seen,
            self._truth,
            self.running,
            KINDS[choices],
            SECONDS[choices],
            self._terms,
            self.rewards,
        )
        self.running = self.running[self._seen["ending"][self.running] == RUNNING]


def _recurrent_rewards(
    model: BaseAlgorithm, plan: Plan, seed: int, ids: npt.NDArray[np.int64]
) -> Rewards:
    """The same for a network with a memory, which no policy of single views can express."""
    worlds = OpenWorlds(plan, seed, ids)
    memory: Any = None
    first = True
    while len(worlds.running):
        before = worlds.running
        observations, _ = worlds.observe(worlds.views())
        starts = np.full(len(before), first)
        choices, memory = model.predict(observations, memory, starts, deterministic=True)
        worlds.act(choices.astype(np.int64))
        kept = np.isin(before, worlds.running)
        memory = tuple(part[:, kept] for part in memory)
        first = False
    return worlds.rewards
