"""The wrapper that stacks observations."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

from exactlyonce_env import HistoryStack, RecoveryEnv, UserError
from exactlyonce_env.observation import N_FEATURES

ID = "ExactlyOnce/StaleTail-v0"


def test_the_newest_stands_last_and_zeros_stand_before_the_first() -> None:
    env, bare = HistoryStack(gymnasium.make(ID), length=3), RecoveryEnv("stale-tail")
    seen = [np.zeros(N_FEATURES, np.float32)] * 2
    for start in range(2):  # a new episode begins a new history
        seen = [*seen[:2], bare.reset(seed=3 + start)[0]]
        assert (env.reset(seed=3 + start)[0] == np.concatenate(seen)).all()
        for action in (0, 2, 0, 6):
            observation, *told = bare.step(action)
            stacked, *wrapped = env.step(action)
            seen.append(observation)
            assert (stacked == np.concatenate(seen[-3:])).all()
            assert stacked in env.observation_space
            assert told[:3] == wrapped[:3]


def test_it_keeps_masks_spec_and_unwrapped() -> None:
    env = HistoryStack(gymnasium.make(ID), length=2)
    env.reset(seed=0)
    assert (env.action_masks() == env.unwrapped.action_masks()).all()
    again = gymnasium.make(EnvSpec.from_json(env.spec.to_json()))
    assert isinstance(again, HistoryStack)
    assert (again.reset(seed=1)[0] == env.reset(seed=1)[0]).all()
    assert again.observation_space == env.observation_space


def test_the_checkers_agree() -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    env = HistoryStack(gymnasium.make(ID), length=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*different from the unwrapped version.*")
        check_env(env, skip_render_check=True)
        checker.check_env(env, warn=True, skip_render_check=True)


def test_copies_have_a_history_of_their_own() -> None:
    env = HistoryStack(gymnasium.make(ID), length=2)
    env.reset(seed=0)
    twin = copy.deepcopy(env)
    assert (env.step(0)[0] == twin.step(0)[0]).all()
    env.reset(seed=9)
    assert (twin._history[0] != 0).any()


@pytest.mark.parametrize("length", [0, -1, 2.0, True])
def test_a_bad_length_is_refused(length: Any) -> None:
    with pytest.raises(UserError, match="length must be a whole number above 0"):
        HistoryStack(gymnasium.make(ID), length=length)


def test_other_observations_are_refused() -> None:
    flat = gymnasium.wrappers.ReshapeObservation(gymnasium.make(ID), (1, N_FEATURES))
    with pytest.raises(UserError, match="one-dimensional Box"):
        HistoryStack(flat)
