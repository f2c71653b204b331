"""One training run: a folder in, a trained policy out, and no harm from an interruption.

The folder of a run holds

- ``manifest.json``: what was asked for, what came out;
- ``checkpoint.npz``: the trained network, in the form that `policies.learned` reads (a recurrent
  one, which has no such form, is kept as ``checkpoint.pt``: tensors alone);
- ``checkpoints/``: the network at each evaluation;
- ``tensorboard/``: the logs;
- ``resume.pt``: the state that the same command goes on from, until the run is complete.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.logger import configure

from exactlyonce_env.errors import UserError
from exactlyonce_env.files import write_atomically
from exactlyonce_env.plan import Plan, checked_seed
from policies.checkpoint import save_checkpoint
from training.average import Average
from training.boundary import Boundary, Notes, Progress, Stop, asked_to_stop, standard_error
from training.held_out import held_out_rewards, to_checkpoint
from training.imitation import Labeller, imitate
from training.manifest import check_same_run, describe, origin, read_manifest, write_manifest
from training.model import actor_layers, make_model
from training.settings import PpoSettings, Settings
from training.state import load_state, restore_model, save_state

__all__ = ["train"]

MAX_SEED = 2**32 - 1
"""NumPy's old generator, which Stable-Baselines3 seeds, takes no larger one."""


def train(
    plan: Plan,
    algorithm: str,
    chosen: Settings,
    *,
    steps: int,
    seed: int,
    out: Path,
    imitate_worlds: int = 0,
    labeller: Labeller | None = None,
    worlds: int = 20_000,
    held_out_seed: int = 0,
    command: Sequence[str] = (),
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train a policy, or go on with an interrupted run of the same arguments in ``out``.

    With ``ppo`` and ``maskable-ppo`` an interrupted run ends in the same bytes of
    ``checkpoint.npz`` as one that was left alone, on the same machine with the same versions. With
    ``recurrent-ppo`` it ends in the same weights; with ``dqn`` it does not, since the replay buffer
    is not kept: a resumed run first explores ``learning_starts`` steps at random, as a new one.

    Parameters
    ----------
    plan
        The worlds.
    algorithm, chosen
        A name from `training.settings.ALGORITHMS` and its settings.
    steps
        Steps of single worlds, rounded up to whole rollouts; 0, after imitation only: none.
    seed
        Of the weights, the exploration and the training worlds; these have ids from 2^40 on.
    out
        Folder of the run.
    imitate_worlds
        Worlds in which the policy first learns from ``labeller``; 0: none.
    worlds, held_out_seed
        The final evaluation: worlds 0..``worlds`` - 1 of that seed.
    command
        How the run was started, for the manifest.
    progress
        Called with the steps done and a word on what is going on.

    Returns
    -------
    dict
        What `manifest.json` holds under ``result``.

    Raises
    ------
    UserError
        For arguments out of range, or a folder that holds another run.
    KeyboardInterrupt
        When it was asked to stop; the state is saved then.
    """
    asked = describe(
        plan,
        algorithm,
        chosen,
        steps=_checked_steps(steps, imitate_worlds),
        seed=_checked_seed(seed),
        imitate_worlds=imitate_worlds,
        worlds=_positive("worlds", worlds),
        held_out_seed=checked_seed(held_out_seed),
        command=command,
    )
    if imitate_worlds and labeller is None:
        raise UserError("learning by imitation needs a labeller that values every action")
    if imitate_worlds and algorithm not in ("ppo", "maskable-ppo"):
        raise UserError(f"{algorithm} cannot start from imitation; choose ppo or maskable-ppo")
    found = read_manifest(out / "manifest.json")
    if found is not None:
        check_same_run(out, found, asked)
        if found["status"] == "complete":
            result: dict[str, Any] = found["result"]
            return result
        asked["started_utc"] = found["started_utc"]
    out.mkdir(parents=True, exist_ok=True)
    write_manifest(out, asked, "running")
    threads = torch.get_num_threads()
    torch.set_num_threads(chosen.threads)
    try:
        with asked_to_stop() as stop:
            run = _Run(plan, algorithm, chosen, asked, out, progress or _silent, stop)
            result = run.result(labeller)
    except KeyboardInterrupt:
        write_manifest(out, asked, "interrupted")
        raise
    finally:
        torch.set_num_threads(threads)
    write_manifest(out, asked, "complete", result)
    (out / "resume.pt").unlink(missing_ok=True)
    return result


class _Run:
    """The parts of a run that need each other."""

    def __init__(
        self,
        plan: Plan,
        algorithm: str,
        chosen: Settings,
        asked: dict[str, Any],
        out: Path,
        progress: Progress,
        stop: Stop,
    ) -> None:
        self.plan, self.algorithm, self.chosen = plan, algorithm, chosen
        self.asked, self.out, self.progress, self.stop = asked, out, progress, stop
        self.notes = Notes()
        self.state_path = out / "resume.pt"

    def result(self, labeller: Labeller | None) -> dict[str, Any]:
        """Train to the end, evaluate, and write the checkpoint."""
        began = time.perf_counter()
        self.progress(0, "preparing")
        model = make_model(self.plan, self.algorithm, self.chosen, self.asked["seed"])
        model.set_logger(configure(str(self.out / "tensorboard"), ["tensorboard"]))
        state = load_state(self.state_path) if self.state_path.exists() else None
        if state is not None:
            restore_model(model, state)
            self.notes = Notes(**state["notes"])
        else:
            _open_worlds(model)
        to_imitate = self.asked["imitate_worlds"] > 0 and self.notes.imitation is None
        if to_imitate and labeller is not None:
            self._imitate(model, labeller)
        average = Average(model, self.chosen.average)
        if state is not None:
            average.restore(state["average"])
        elif self.notes.imitation is not None:
            save_state(self.state_path, model, average.state(), self.notes.to_json())
        self.notes.train_s += time.perf_counter() - began
        boundary = Boundary(
            self.chosen,
            self.asked["steps"],
            self.notes,
            average,
            state_path=self.state_path,
            evaluate=lambda worlds: self._rewards(model, worlds),
            keep=lambda done: self._keep(model, done),
            progress=self.progress,
            stop=self.stop,
        )
        left = self.asked["steps"] - model.num_timesteps
        if left > 0:
            model.learn(left, callback=boundary, reset_num_timesteps=False)
        self.progress(model.num_timesteps, "evaluating")
        with average.applied(model):
            return self._finish(model)

    def _imitate(self, model: BaseAlgorithm, labeller: Labeller) -> None:
        assert isinstance(self.chosen, PpoSettings)
        self.notes.imitation = imitate(
            model,
            self.plan,
            labeller,
            worlds=self.asked["imitate_worlds"],
            seed=self.asked["seed"],
            chosen=self.chosen.imitation,
            stop=self.stop,
            progress=lambda text: self.progress(0, text),
        )

    def _rewards(self, model: BaseAlgorithm, worlds: int) -> Any:
        return held_out_rewards(model, self.plan, worlds, self.asked["held_out"]["seed"])

    def _keep(self, model: BaseAlgorithm, done: int) -> None:
        """Keep the network as it is between two rollouts."""
        folder = self.out / "checkpoints"
        folder.mkdir(exist_ok=True)
        self._save_network(model, folder / f"step-{done:010d}", {})

    def _finish(self, model: BaseAlgorithm) -> dict[str, Any]:
        rewards = self._rewards(model, self.asked["held_out"]["worlds"])
        held_out = {
            **self.asked["held_out"],
            "reward": float(rewards.mean()),
            "standard_error": standard_error(rewards),
        }
        file = self._save_network(model, self.out / "checkpoint", {"measured": held_out})
        notes = self.notes
        return {
            "preset": self.asked["preset"],
            "algorithm": self.algorithm,
            "seed": self.asked["seed"],
            "steps": model.num_timesteps,
            "held_out": held_out,
            "train_s": notes.train_s,
            "imitated_worlds": self.asked["imitate_worlds"],
            "steps_per_s": model.num_timesteps / notes.train_s,
            "env_share": notes.env_s / notes.train_s,
            "evaluations": notes.evaluations,
            "imitation": notes.imitation,
            "checkpoint": file.name,
        }

    def _save_network(self, model: BaseAlgorithm, stem: Path, found: dict[str, Any]) -> Path:
        """As a checkpoint, or, with a memory, as tensors that `torch.load` reads weights-only."""
        layers = actor_layers(model)
        if layers is None:
            path = stem.with_suffix(".pt")
            weights = model.policy.state_dict()
            write_atomically(path, lambda temporary: torch.save(weights, temporary))
            return path
        manifest = {**origin(self.asked), "steps_done": model.num_timesteps, **found}
        checkpoint = to_checkpoint(layers, model, manifest)
        return save_checkpoint(stem.with_suffix(".npz"), checkpoint)


def _open_worlds(model: BaseAlgorithm) -> None:
    """Take the first observations now, so that a run is continued from its very first moment."""
    env = model.get_env()
    assert env is not None
    observations = env.reset()
    assert isinstance(observations, np.ndarray)
    model._last_obs = observations
    model._last_episode_starts = np.ones(env.num_envs, dtype=np.bool_)


def _positive(name: str, value: int) -> int:
    if not 1 <= value <= 10**12:
        raise UserError(f"{name} must lie in 1..10^12, not {value}")
    return value


def _checked_steps(steps: int, imitate_worlds: int) -> int:
    return 0 if steps == 0 and imitate_worlds > 0 else _positive("steps", steps)


def _checked_seed(seed: int) -> int:
    if not 0 <= seed <= MAX_SEED:
        raise UserError(f"the seed of a training run must lie in 0..{MAX_SEED}, not {seed}")
    return seed


def _silent(done: int, text: str) -> None:
    """Nobody watches."""
