"""What a training run is made with: one readable file an algorithm, and the model that checks it.

``configs/ALGORITHM.yaml`` holds ``defaults`` and, under ``presets``, what differs for a preset.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from exactlyonce_env.actions import ACTION_NAMES
from exactlyonce_env.errors import invalid, unknown
from exactlyonce_env.presets import read_config

__all__ = [
    "ALGORITHMS",
    "DqnSettings",
    "ImitationSettings",
    "PpoSettings",
    "RecurrentSettings",
    "Settings",
    "settings",
]

Count = Annotated[int, Field(ge=1, le=10**9)]
Share = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(gt=0, le=1)]


class Settings(BaseModel):
    """What all algorithms share.

    Pairs of numbers are schedules: linear from the first one at the start of training to the second
    at its end, or at an earlier share of it where a field says so.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    steps: Count = Field(2_000_000, description="length of training, unless a command says it")
    n_envs: Annotated[int, Field(ge=1, le=65536)] = Field(
        256, description="worlds stepped together"
    )
    network: tuple[Annotated[int, Field(ge=1, le=4096)], ...] = Field(
        (64, 64), min_length=1, max_length=8, description="widths of the hidden layers"
    )
    activation: Literal["tanh", "relu"] = "tanh"
    standardise: bool = Field(
        True, description="scale each feature by its spread over first exploratory episodes"
    )
    learning_rate: tuple[Annotated[float, Field(ge=0, le=1)], Annotated[float, Field(ge=0, le=1)]]
    gamma: Rate = Field(1.0, description="discount; 1: the settlement counts in full")
    batch_size: Count
    max_grad_norm: Annotated[float, Field(gt=0)] = 0.5
    average: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="decay of the average of the weights over rollouts; 0: the last weights"
    )
    threads: Annotated[int, Field(ge=1, le=64)] = Field(1, description="threads of PyTorch")
    evaluate_every: Count = Field(500_000, description="steps between evaluations")
    evaluate_worlds: Count = Field(5000, description="held-out worlds of each of them")
    checkpoint_every_s: Annotated[float, Field(gt=0)] = Field(
        60.0, description="seconds between savings of the state that a run resumes from"
    )


class ImitationSettings(BaseModel):
    """The supervised phase before PPO, for runs that ask for one."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    worlds: Count = Field(6000, description="worlds to learn in, unless a command says it")
    rounds: Annotated[int, Field(ge=1, le=1000)] = Field(
        14, description="times that worlds are played and learned from"
    )
    epochs: Count = Field(10, description="passes over all views so far, in each round")
    batch_size: Count = 1024
    learning_rate: Annotated[float, Field(gt=0, le=1)] = Field(
        2e-3, description="falls linearly over the rounds"
    )
    cross_entropy: Annotated[float, Field(ge=0)] = Field(
        0.02,
        description="weight, beside the regret, of the cross entropy to the best actions: what "
        "hardly matters once, such as one of many short waits, is learned too",
    )
    temperature: Annotated[float, Field(gt=0)] = Field(
        2e-5, description="regret [reward] at which an action is e times less good than the best"
    )
    step_price: Annotated[float, Field(ge=0, le=1)] = Field(
        2e-4,
        description="what the teacher charges a call beside its costs, so that the learner does "
        "not use up its calls on short waits",
    )
    value_weight: Annotated[float, Field(ge=0)] = 0.5
    explore: Share = Field(0.05, description="share of random actions")


class PpoSettings(Settings):
    """PPO and MaskablePPO."""

    n_steps: Count = Field(32, description="steps of each world between two updates")
    n_epochs: Count = 4
    gae_lambda: tuple[Share, Share] = (0.95, 0.95)
    clip_range: Annotated[float, Field(gt=0, le=10)] = 0.2
    entropy: tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(ge=0)]] = Field(
        (0.1, 0.002), description="weight of the entropy bonus; geometric where neither is 0"
    )
    explore_share: Rate = Field(
        1.0, description="share of training until entropy and gae_lambda reach their second value"
    )
    value_weight: Annotated[float, Field(ge=0)] = 0.5
    normalise_advantage: bool = True
    target_kl: Annotated[float, Field(gt=0)] | None = None
    action_prior: dict[str, Annotated[float, Field(ge=-20, le=20)]] = Field(
        default_factory=dict,
        description="initial scores of actions, 0 where none is given: what is tried at first",
    )
    imitation: ImitationSettings = ImitationSettings()

    @field_validator("action_prior")
    @classmethod
    def _known_actions(cls, prior: dict[str, float]) -> dict[str, float]:
        for name in prior:
            if name not in ACTION_NAMES:
                raise ValueError(f"names the unknown action {name!r}; choose from {_ACTIONS}")
        return prior

    @model_validator(mode="after")
    def _fits(self) -> PpoSettings:
        collected = self.n_envs * self.n_steps
        if self.batch_size > collected or collected % self.batch_size:
            raise ValueError(
                f"batch_size {self.batch_size} must divide n_envs x n_steps = {collected}"
            )
        return self


class RecurrentSettings(PpoSettings):
    """RecurrentPPO: an LSTM in front of the layers."""

    lstm_size: Count = 64


class DqnSettings(Settings):
    """DQN; ``learning_starts`` and ``train_every`` count steps of single worlds."""

    buffer_size: Count = 200_000
    learning_starts: Annotated[int, Field(ge=0)] = 20_000
    train_every: Count = Field(2048, description="steps between two rounds of updates")
    gradient_steps: Count = 32
    target_update_every: Count = 10_000
    explore: tuple[Share, Share] = Field((1.0, 0.05), description="share of random actions")
    explore_share: Rate = Field(0.3, description="share of training until the second of them")

    @model_validator(mode="after")
    def _fits(self) -> DqnSettings:
        if self.train_every % self.n_envs:
            raise ValueError(
                f"train_every {self.train_every} must be a multiple of n_envs {self.n_envs}"
            )
        return self


ALGORITHMS: dict[str, type[Settings]] = {
    "maskable-ppo": PpoSettings,
    "ppo": PpoSettings,
    "recurrent-ppo": RecurrentSettings,
    "dqn": DqnSettings,
}
"""The algorithms by name, each with the model of its settings."""

_ACTIONS = ", ".join(ACTION_NAMES)


def settings(
    algorithm: str,
    preset: str,
    overrides: Mapping[str, Any] | str | os.PathLike[str] | None = None,
) -> Settings:
    """The settings of an algorithm for a preset.

    Parameters
    ----------
    algorithm
        A name from `ALGORITHMS`.
    preset
        Name of the preset; one without an entry of its own takes the defaults.
    overrides
        Fields that replace those of the shipped file: a mapping, or a YAML, TOML or JSON file.

    Raises
    ------
    UserError
        For an unknown algorithm or field, a value out of range or an unreadable file.
    """
    if algorithm not in ALGORITHMS:
        raise unknown("algorithm", algorithm, ALGORITHMS)
    shipped = _shipped(algorithm)
    fields = _over(shipped.get("defaults", {}), shipped.get("presets", {}).get(preset, {}))
    where = f"settings of {algorithm}"
    if overrides is not None:
        own = dict(overrides) if isinstance(overrides, Mapping) else read_config(overrides)
        fields = _over(fields, own)
        if not isinstance(overrides, Mapping):
            where = f"{Path(overrides).name}, over the {where}"
    model = ALGORITHMS[algorithm]
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise invalid(where, error, sorted(model.model_fields)) from None


def _over(fields: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """``fields`` with those of ``own``; of the imitation phase too, what is not said stays."""
    merged = fields | own
    if all(isinstance(part.get("imitation"), dict) for part in (fields, own)):
        merged["imitation"] = fields["imitation"] | own["imitation"]
    return merged


def _shipped(algorithm: str) -> dict[str, Any]:
    with as_file(files("training") / "configs" / f"{algorithm}.yaml") as path:
        return read_config(path)
