"""The learner's speed beside its peer."""

from __future__ import annotations

from exactlyonce_env.presets import load_plan
from training.throughput import throughput


def test_each_learner_is_measured_and_the_environment_is_a_part_of_it():
    said = []
    rows = throughput(load_plan("late-fixed"), rollouts=1, progress=said.append)
    assert [(row["learner"], row["environment"]) for row in rows] == [
        ("ppo", "late-fixed"),
        ("maskable-ppo", "late-fixed"),
        ("ppo", "CartPole-v1"),
    ]
    assert all(row["steps_per_s"] > 0 and 0 < row["env_share"] < 1 for row in rows)
    assert "speed of ppo on CartPole-v1" in said
