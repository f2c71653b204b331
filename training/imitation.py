"""A supervised start: the policy first learns the value of every action from one who knows it.

Views come from a mixture of the teacher and the learner (DAgger: S. Ross, G. Gordon and D. Bagnell,
2011), so that the learner is also taught what to do after its own mistakes.  Since the teacher
values all actions, the loss is the expected regret of the learner's policy itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from stable_baselines3.common.base_class import BaseAlgorithm

from exactlyonce_env.errors import UserError
from exactlyonce_env.plan import Plan
from policies.base import ViewBatch
from training.boundary import Stop
from training.held_out import OpenWorlds
from training.settings import ImitationSettings
from training.vec_env import TRAINING_WORLDS

__all__ = ["Labeller", "imitate", "regret_of"]

Values: TypeAlias = npt.NDArray[np.float64]


class Labeller(Protocol):
    """Who values actions: the reward still to come of each discrete action, then optimal play."""

    def __call__(self, batch: ViewBatch) -> Values:
        """Values (n, 11) float64 for n views; minus infinity where an action is no choice."""


@dataclass
class _Lessons:
    """What was seen, which actions were allowed and how much each falls short of the best."""

    observations: list[npt.NDArray[np.float32]]
    regrets: list[npt.NDArray[np.float32]]  # (n, 11), infinity where no choice
    best: list[npt.NDArray[np.float32]]  # (n,), value of the best action


def imitate(
    model: BaseAlgorithm,
    plan: Plan,
    labeller: Labeller,
    *,
    worlds: int,
    seed: int,
    chosen: ImitationSettings,
    stop: Stop,
    progress: Any = None,
) -> list[dict[str, Any]]:
    """Teach the actor and the critic of a PPO model in ``worlds`` training worlds.

    Returns
    -------
    list of dict
        For each round the number of views so far, and the mean regret of the learner's best action
        in the views of the round, before it learned from them.

    Raises
    ------
    UserError
        For a labeller that does not return (n, 11) values with a finite one in each row.
    KeyboardInterrupt
        When it was asked to stop; nothing of the phase is kept then.
    """
    rng = np.random.default_rng([seed, worlds])
    policy: Any = model.policy
    optimizer = torch.optim.Adam(policy.parameters(), lr=chosen.learning_rate)
    lessons = _Lessons([], [], [])
    rounds = []
    share = -(-worlds // chosen.rounds)
    for k in range(chosen.rounds):
        first = TRAINING_WORLDS + k * share
        ids = np.arange(first, first + share)
        teacher_share = 1.0 - k / max(chosen.rounds - 1, 1)
        regret = _collect(policy, plan, labeller, seed, ids, teacher_share, chosen, rng, lessons)
        rounds.append({"views": sum(map(len, lessons.best)), "regret": regret})
        left = 1.0 - k / chosen.rounds
        for group in optimizer.param_groups:
            group["lr"] = chosen.learning_rate * left
        _learn(policy, lessons, optimizer, chosen, rng, stop)
        if progress is not None:
            progress(f"imitation {k + 1}/{chosen.rounds}, regret {regret:.4f}")
    return rounds


def regret_of(values: Values) -> npt.NDArray[np.float32]:
    """How much each action (n, 11) falls short of the best of its row; infinity where masked."""
    shortfall: npt.NDArray[np.float32] = (values.max(axis=1, keepdims=True) - values).astype(
        np.float32
    )
    return shortfall


def _collect(
    policy: Any,
    plan: Plan,
    labeller: Labeller,
    seed: int,
    ids: npt.NDArray[np.int64],
    teacher_share: float,
    chosen: ImitationSettings,
    rng: np.random.Generator,
    lessons: _Lessons,
) -> float:
    """Play the worlds with a mixture of both; the mean regret of the learner's best actions."""
    worlds = OpenWorlds(plan, seed, ids)
    total = 0.0
    count = 0
    while len(worlds.running):
        batch = worlds.views()
        observations, masks = worlds.observe(batch)
        values = _checked(labeller(batch), masks)
        masks = np.isfinite(values)
        regrets = regret_of(values)
        with torch.no_grad():
            scores = _scores(policy, torch.from_numpy(observations)).numpy()
        scores[~masks] = -np.inf
        n = len(batch)
        total += float(regrets[np.arange(n), scores.argmax(axis=1)].sum())
        count += n
        lessons.observations.append(observations)
        lessons.regrets.append(regrets)
        lessons.best.append(values.max(axis=1).astype(np.float32))
        taught = rng.random(n) < teacher_share
        choices = np.where(taught, values.argmax(axis=1), _drawn(scores, rng))
        strays = rng.random(n) < chosen.explore
        choices = np.where(strays, _drawn(np.where(masks, 0.0, -np.inf), rng), choices)
        worlds.act(choices)
    return total / count


def _learn(
    policy: Any,
    lessons: _Lessons,
    optimizer: torch.optim.Optimizer,
    chosen: ImitationSettings,
    rng: np.random.Generator,
    stop: Stop,
) -> None:
    observations = torch.from_numpy(np.concatenate(lessons.observations))
    regrets = torch.from_numpy(np.concatenate(lessons.regrets))
    best = torch.from_numpy(np.concatenate(lessons.best))
    allowed = torch.isfinite(regrets)
    regrets = torch.where(allowed, regrets, 0.0)
    for _ in range(chosen.epochs):
        order = torch.from_numpy(rng.permutation(len(best)))
        for start in range(0, len(order), chosen.batch_size):
            rows = order[start : start + chosen.batch_size]
            if stop.asked:
                raise KeyboardInterrupt
            scores = _scores(policy, observations[rows])
            log_shares = torch.log_softmax(scores.masked_fill(~allowed[rows], -1e9), dim=1)
            shortfall = regrets[rows]
            loss = (log_shares.exp() * shortfall).sum(dim=1).mean()
            if chosen.cross_entropy:
                wanted = torch.softmax(
                    (-shortfall / chosen.temperature).masked_fill(~allowed[rows], -torch.inf), dim=1
                )
                loss = loss - chosen.cross_entropy * (wanted * log_shares).sum(dim=1).mean()
            error = policy.predict_values(observations[rows]).squeeze(1) - best[rows]
            optimizer.zero_grad()
            (loss + chosen.value_weight * error.square().mean()).backward()
            optimizer.step()


def _scores(policy: Any, observations: torch.Tensor) -> torch.Tensor:
    features = policy.extract_features(observations, policy.pi_features_extractor)
    scores: torch.Tensor = policy.action_net(policy.mlp_extractor.forward_actor(features))
    return scores


def _drawn(scores: npt.NDArray[Any], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """An action of each row (n,), drawn by the softmax of the scores (n, 11)."""
    noise = rng.gumbel(size=scores.shape)
    choices: npt.NDArray[np.int64] = (scores + noise).argmax(axis=1)
    return choices


def _checked(values: Values, masks: npt.NDArray[np.bool_]) -> Values:
    if values.shape != masks.shape:
        raise UserError(f"the labeller returned shape {values.shape} for {masks.shape[0]} views")
    values = np.where(masks, values, -np.inf)
    if not np.isfinite(values.max(axis=1)).all():
        raise UserError("the labeller values no allowed action of some view")
    return values
