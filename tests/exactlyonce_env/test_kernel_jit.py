"""The same bits with and without compilation."""

from __future__ import annotations

import json
from pathlib import Path

import numba
import numpy as np

from exactlyonce_env.presets import PRESET_NAMES

from . import worldbench


def test_compiled_and_interpreted_kernels_agree_bit_for_bit(run_python) -> None:  # type: ignore[no-untyped-def]
    """Worlds, views, truths, terms, rewards, observations, masks and outcomes of all presets."""
    assert not numba.config.DISABLE_JIT
    done = run_python(str(Path(worldbench.__file__)), env={"NUMBA_DISABLE_JIT": "1"})
    assert done.returncode == 0, done.stderr
    interpreted = json.loads(done.stdout)
    assert list(interpreted) == [*PRESET_NAMES, "sampler"]
    assert interpreted.pop("sampler") == worldbench.sampler_fingerprint()
    assert interpreted == worldbench.fingerprints()


def test_the_fingerprint_sees_a_change_of_one_bit(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    before = worldbench.fingerprints(("late-tail", "native"), 1, 2)
    act = worldbench.kernel.act

    def nudged(*arguments: object) -> float:
        return float(np.nextafter(act(*arguments), 1.0))

    monkeypatch.setattr(worldbench.kernel, "act", nudged)
    after = worldbench.fingerprints(("late-tail", "native"), 1, 2)
    assert all(before[name] != after[name] for name in before)
