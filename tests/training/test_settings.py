"""Settings: the shipped files hold, and mistakes are told in one line."""

from __future__ import annotations

import pytest

from exactlyonce_env.errors import UserError
from exactlyonce_env.presets import PRESET_NAMES
from training.settings import ALGORITHMS, settings


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_shipped_settings_are_valid(algorithm, preset):
    assert isinstance(settings(algorithm, preset), ALGORITHMS[algorithm])


def test_an_override_replaces_a_field_and_no_other(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("gae_lambda: [0.5, 0.5]\n")
    plain, own = settings("ppo", "late-tail"), settings("ppo", "late-tail", file)
    assert own.gae_lambda == (0.5, 0.5)
    assert own == plain.model_copy(update={"gae_lambda": (0.5, 0.5)})
    assert settings("ppo", "late-tail", {"gae_lambda": [0.5, 0.5]}) == own


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"learning_rat": 1}, "unknown field 'learning_rat'; choose from .*learning_rate"),
        ({"gamma": 1.5}, "gamma should be less than or equal to 1, not 1.5|gamma .*1.5"),
        ({"batch_size": 1000, "n_envs": 64, "n_steps": 32}, "must divide n_envs x n_steps = 2048"),
        ({"action_prior": {"run": 1}}, "unknown action 'run'; choose from read, wait:15"),
        ({"activation": "gelu"}, "activation .*'tanh' or 'relu'"),
        ({"imitation": {"rounds": 0}}, "imitation.rounds"),
    ],
)
def test_mistakes_are_named(overrides, message):
    with pytest.raises(UserError, match=message) as caught:
        settings("ppo", "late-tail", overrides)
    assert "\n" not in str(caught.value)


def test_unknown_algorithm():
    with pytest.raises(UserError, match=r"'masked-ppo' \(did you mean maskable-ppo\?\)"):
        settings("masked-ppo", "late-tail")


def test_dqn_trains_at_whole_steps():
    with pytest.raises(UserError, match="train_every 100 must be a multiple of n_envs 64"):
        settings("dqn", "late-tail", {"train_every": 100, "n_envs": 64})
