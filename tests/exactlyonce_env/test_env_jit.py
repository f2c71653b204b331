"""The environments do the same without compilation, bit for bit."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import gymnasium
import numpy as np

import exactlyonce_env  # noqa: F401 - registers the ids

RunPython = Callable[..., CompletedProcess[str]]


def digest(told: Any) -> Any:
    """A value with its arrays as hashes of their bytes."""
    if isinstance(told, np.ndarray):
        if told.dtype == object:
            return [digest(value) for value in told]
        return [str(told.dtype), hashlib.sha256(told.tobytes()).hexdigest()]
    if isinstance(told, dict):
        return {key: digest(value) for key, value in told.items()}
    if isinstance(told, tuple | list):
        return [digest(value) for value in told]
    return [type(told).__name__, repr(told)]


def transcript() -> list[Any]:
    """What a single and two vector environments tell, in short episodes."""
    told: list[Any] = []
    env = gymnasium.make("ExactlyOnce/Native-v0", reveal=True)
    told.append(env.reset(seed=3))
    for action in (6, 0, 2, 7, 8, 9):
        told.append(env.step(action))
        if told[-1][2]:
            told.append(env.reset())
    for mode in ("NextStep", "SameStep"):
        envs = gymnasium.make_vec("ExactlyOnce/StaleTail-v0", num_envs=3, autoreset_mode=mode)
        told.append(envs.reset(seed=1))
        for actions in ([0, 9, 6], [1, 0, 10], [9, 6, 0]):
            told.append(envs.step(np.array(actions)))
        told.append(envs.reset(options={"reset_mask": np.array([True, False, True])}))
        told.append(envs.action_masks())
    return digest(told)


def test_interpreted_and_compiled_environments_agree(run_python: RunPython) -> None:
    done = run_python(__file__, env={"NUMBA_DISABLE_JIT": "1"}, timeout_s=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == transcript()


if __name__ == "__main__":
    assert Path(__file__).exists()
    json.dump(transcript(), sys.stdout)
