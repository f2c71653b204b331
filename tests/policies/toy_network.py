"""A checkpoint made by hand: read, look again every minute, finish when the effect is shown."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from policies.checkpoint import Checkpoint

FEATURES = ("read_complete", "read_age")
ACTIONS = ("finish", "read", "wait:60")


def patient_reader(
    features: tuple[str, ...] = FEATURES, actions: tuple[str, ...] = ACTIONS
) -> Checkpoint:
    """Scores: FINISH 9 once a read is complete and -1 before, READ 0.2, and WAIT

    10 relu(age + 0.1) - 30 relu(age - 0.1): nothing before the first read (age -1), much up to an
    age of 0.2 (14 s), below 0.2 from 0.206 on (15 s).
    """
    columns = {name: k for k, name in enumerate(features)}
    hidden = np.zeros((3, len(features)), np.float32)
    hidden[0, columns["read_complete"]] = 1
    hidden[1:, columns["read_age"]] = 1
    out = np.zeros((len(actions), 3), np.float32)
    out[actions.index("finish"), 0] = 10
    out[actions.index("wait:60")] = 0, 10, -30
    bias = np.zeros(len(actions), np.float32)
    bias[actions.index("read")] = 0.2
    bias[actions.index("finish")] = -1
    return Checkpoint(
        ((hidden, np.array([0, 0.1, -0.1], np.float32)), (out, bias)),
        "relu",
        features,
        actions,
        {"preset": "late-tail", "made": "by hand"},
    )


def random_network(*hidden: int, activation: str = "tanh", seed: int = 0) -> Checkpoint:
    """Over the whole observation and all actions, with weights of a usual size."""
    from exactlyonce_env.actions import ACTION_NAMES
    from exactlyonce_env.observation import FEATURES as TABLE

    generator = np.random.Generator(np.random.Philox(seed))
    sizes = (len(TABLE), *hidden, len(ACTION_NAMES))
    layers = tuple(
        (
            (generator.normal(size=(m, k)) * 1.5 / np.sqrt(k)).astype(np.float32),
            generator.normal(size=m).astype(np.float32) / 4,
        )
        for k, m in pairwise(sizes)
    )
    names = tuple(feature.name for feature in TABLE)
    return Checkpoint(layers, activation, names, ACTION_NAMES, {})  # type: ignore[arg-type]
