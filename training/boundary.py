"""What happens between two rollouts: schedules, evaluations, savings, and the end on request."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from stable_baselines3.common.callbacks import BaseCallback

from training.average import Average
from training.model import geometric, schedule
from training.settings import PpoSettings, Settings
from training.state import save_state

__all__ = ["Boundary", "Notes", "Progress", "Stop", "asked_to_stop", "standard_error"]

Progress: TypeAlias = Callable[[int, str], None]
"""Called with the steps done so far and a word on what is going on."""

Evaluate: TypeAlias = Callable[[int], npt.NDArray[np.float64]]
"""Rewards of the model in that many held-out worlds."""


@dataclass
class Notes:
    """What a run has measured so far; it survives an interruption."""

    imitation: list[dict[str, Any]] | None = None  # None: not done
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    averaged_at: int = 0  # steps
    train_s: float = 0.0  # wall time without evaluations
    evaluate_s: float = 0.0
    env_s: float = 0.0  # of train_s, spent in the environment

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types."""
        return asdict(self)


@dataclass
class Stop:
    """Whether somebody asked the run to end."""

    asked: bool = False


@contextmanager
def asked_to_stop() -> Iterator[Stop]:
    """Turn the first Ctrl-C or SIGTERM into a request; the second Ctrl-C interrupts at once."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def standard_error(rewards: npt.NDArray[np.float64]) -> float | None:
    """Of the mean; None for a single reward."""
    return float(rewards.std(ddof=1) / np.sqrt(len(rewards))) if len(rewards) > 1 else None


class Boundary(BaseCallback):
    """The one callback of a run.

    A rollout's start is the only moment at which the whole state fits into one file, so everything
    is done there.
    """

    def __init__(
        self,
        chosen: Settings,
        total: int,
        notes: Notes,
        average: Average,
        *,
        state_path: Path,
        evaluate: Evaluate,
        keep: Callable[[int], None],
        progress: Progress,
        stop: Stop,
    ) -> None:
        super().__init__()
        self._chosen = chosen
        self._total = total
        self._notes = notes
        self._average = average
        self._state_path = state_path
        self._evaluate = evaluate
        self._keep = keep
        self._progress = progress
        self._stop = stop
        self._mark_s = self._saved_s = time.perf_counter()
        self._env_mark_s = 0.0

    def _on_training_start(self) -> None:
        self._env_mark_s = self._busy_s()
        self._mark_s = self._saved_s = time.perf_counter()

    def _on_rollout_start(self) -> None:
        done = self._done
        if isinstance(self._chosen, PpoSettings):
            model: Any = self.model
            share = done / self._total / self._chosen.explore_share
            model.ent_coef = geometric(self._chosen.entropy, share)
            model.rollout_buffer.gae_lambda = schedule(self._chosen.gae_lambda, share)
        self._take_average()
        self.take_time()
        last = self._notes.evaluations[-1]["steps"] if self._notes.evaluations else 0
        every = self._chosen.evaluate_every
        if done // every > last // every:
            with self._average.applied(self.model):
                self.evaluate(self._chosen.evaluate_worlds)
                self._keep(done)
        if self._stop.asked or self._mark_s - self._saved_s > self._chosen.checkpoint_every_s:
            save_state(self._state_path, self.model, self._average.state(), self._notes.to_json())
            self._saved_s = time.perf_counter()
        if self._stop.asked:
            raise KeyboardInterrupt
        self._progress(done, self.latest())

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self._take_average()
        self.take_time()

    def _take_average(self) -> None:
        """Once after each rollout: a resumed run comes here twice with the same weights."""
        done = self._done
        if done > self._notes.averaged_at:
            self._average.update(self.model)
            self._notes.averaged_at = done

    @property
    def _done(self) -> int:
        """Steps taken so far; the callback's own count lags behind at a rollout's start."""
        return int(self.model.num_timesteps)

    def evaluate(self, worlds: int) -> npt.NDArray[np.float64]:
        """Note how the model does in held-out worlds; its time is kept apart."""
        rewards = self._evaluate(worlds)
        self._notes.evaluations.append(
            {
                "steps": self._done,
                "worlds": worlds,
                "reward": float(rewards.mean()),
                "standard_error": standard_error(rewards),
            }
        )
        self.logger.record("held_out/reward", float(rewards.mean()))
        now = time.perf_counter()
        self._notes.evaluate_s += now - self._mark_s
        self._mark_s = now
        return rewards

    def take_time(self) -> None:
        """Add the time since the last call to that of training."""
        now, busy = time.perf_counter(), self._busy_s()
        self._notes.train_s += now - self._mark_s
        self._notes.env_s += busy - self._env_mark_s
        self._mark_s, self._env_mark_s = now, busy

    def latest(self) -> str:
        """The last evaluation in a few words."""
        if not self._notes.evaluations:
            return "training"
        return f"held-out reward {self._notes.evaluations[-1]['reward']:.4f}"

    def _busy_s(self) -> float:
        env: Any = self.training_env
        return float(env.busy_s)
