"""The environment as Stable-Baselines3 sees it: the native one, in another shape."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3 import DQN
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnvWrapper, VecMonitor

from exactlyonce_env.envs.vector import RecoveryVectorEnv
from exactlyonce_env.errors import UserError
from exactlyonce_env.presets import load_plan
from training.vec_env import TRAINING_WORLDS, RecoveryVecEnv, spread_seeds

N = 24


def played(env, steps, seed=0):
    """Results of random steps after a reset."""
    rng = np.random.default_rng(seed)
    return [env.step(rng.integers(11, size=N)) for _ in range(steps)]


@pytest.mark.parametrize("name", ["late-tail", "contextual"])
def test_equals_the_native_environment(name):
    plan = load_plan(name)
    env = RecoveryVecEnv(plan, N)
    native = RecoveryVectorEnv(plan=plan, num_envs=N, autoreset_mode="SameStep")
    seeds = env.seed(7)
    ours = env.reset()
    theirs, infos = native.reset(seed=seeds, options={"world": TRAINING_WORLDS})
    np.testing.assert_array_equal(ours, theirs)
    rng = np.random.default_rng(1)
    returns = np.zeros(N)
    ends = 0
    for _ in range(60):
        np.testing.assert_array_equal(get_action_masks(env), infos["action_mask"] == 1)
        actions = rng.integers(11, size=N)
        obs, rewards, dones, told = env.step(actions)
        theirs, native_rewards, terminations, _, infos = native.step(actions)
        np.testing.assert_array_equal(obs, theirs)
        np.testing.assert_array_equal(rewards, native_rewards.astype(np.float32))
        np.testing.assert_array_equal(dones, terminations)
        returns += native_rewards
        for i in range(N):
            if not dones[i]:
                assert told[i] == {}
                continue
            ends += 1
            np.testing.assert_array_equal(told[i]["terminal_observation"], infos["final_obs"][i])
            assert told[i]["TimeLimit.truncated"] is False
            assert told[i]["episode"]["r"] == pytest.approx(returns[i], abs=1e-12)
            assert told[i]["cost"] == infos["final_info"]["cost"][i]
            assert told[i]["is_success"] == infos["final_info"]["is_success"][i]
        returns[dones] = 0.0
    assert ends > 50


def test_episode_lengths_add_up():
    env = RecoveryVecEnv(load_plan("late-tail"), N)
    env.seed(0)
    env.reset()
    lengths = np.zeros(N, dtype=int)
    for _, _, dones, infos in played(env, 80):
        lengths += 1
        for i in np.flatnonzero(dones):
            assert infos[i]["episode"]["l"] == lengths[i]
        lengths[dones] = 0


def test_training_worlds_are_not_those_of_evaluation():
    env = RecoveryVecEnv(load_plan("late-tail"), N)
    env.seed(3)
    env.reset()
    assert env.get_attr("world_id") == [2**40] * N
    assert env.get_attr("world_seed") == spread_seeds(3, N)
    played(env, 50)
    env.reset()  # goes on, and never back to the worlds below
    assert min(env.get_attr("world_id")) > 2**40
    unseeded = RecoveryVecEnv(load_plan("late-tail"), N)
    unseeded.reset()
    assert unseeded.get_attr("world_id") == [2**40] * N


def test_runs_with_neighbouring_seeds_share_no_world():
    assert not set(spread_seeds(0, 256)) & set(spread_seeds(1, 256))
    assert len(set(spread_seeds(0, 256))) == 256


def test_attributes_and_methods():
    env = RecoveryVecEnv(load_plan("late-tail"), N)
    env.seed(0)
    env.reset()
    assert env.render_mode is None
    assert env.get_attr("render_mode", indices=[0, 2]) == [None, None]
    assert is_masking_supported(env)
    assert env.has_attr("world_id")
    assert not env.has_attr("nonsense")
    assert len(env.env_method("action_masks")) == N
    np.testing.assert_array_equal(
        env.env_method("action_masks", indices=[3])[0], env.action_masks()[3]
    )
    assert env.env_is_wrapped(Monitor) == [True] * N
    assert env.env_is_wrapped(VecEnvWrapper, indices=0) == [False]
    with pytest.raises(UserError, match="one for all worlds"):
        env.set_attr("plan", None)
    env.close()
    env.close()


def test_reset_options():
    env = RecoveryVecEnv(load_plan("late-tail"), N, first_world=0)
    env.seed(5)
    env.set_options({"world": 9})
    env.reset()
    assert env.get_attr("world_id") == [9] * N
    env.reset()
    assert env.get_attr("world_id") == [10] * N
    env.set_options([{"world": k} for k in range(N)])
    with pytest.raises(UserError, match="same for all"):
        env.reset()


def test_state_brings_back_the_very_next_steps():
    plan = load_plan("contextual")
    env = RecoveryVecEnv(plan, N)
    env.seed(11)
    env.reset()
    played(env, 17)
    state = env.state()
    masks = env.action_masks()
    expected = played(env, 30, seed=2)
    other = RecoveryVecEnv(plan, N)
    other.restore(state)
    np.testing.assert_array_equal(other.action_masks(), masks)
    for ours, theirs in zip(played(other, 30, seed=2), expected, strict=True):
        for mine, other_part in zip(ours[:3], theirs[:3], strict=True):
            np.testing.assert_array_equal(mine, other_part)
        for a, b in zip(ours[3], theirs[3], strict=True):
            assert a.get("episode", {}).get("r") == b.get("episode", {}).get("r")
            assert a.get("episode", {}).get("l") == b.get("episode", {}).get("l")
    with pytest.raises(UserError, match="does not fit 3 environments"):
        RecoveryVecEnv(plan, 3).restore(state)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_clones_go_their_own_way(clone):
    env = RecoveryVecEnv(load_plan("late-tail"), N)
    env.seed(1)
    env.reset()
    played(env, 5)
    other = clone(env)
    for ours, theirs in zip(played(env, 20), played(other, 20), strict=True):
        for a, b in zip(ours[:3], theirs[:3], strict=True):
            np.testing.assert_array_equal(a, b)


def test_no_output_is_reused():
    env = RecoveryVecEnv(load_plan("late-tail"), N)
    env.seed(1)
    first = env.reset()
    kept = first.copy()
    results = played(env, 3)
    copies = [tuple(np.copy(part) for part in result[:3]) for result in results]
    played(env, 3)
    np.testing.assert_array_equal(first, kept)
    for result, before in zip(results, copies, strict=True):
        for part, old in zip(result[:3], before, strict=True):
            np.testing.assert_array_equal(part, old)


def test_algorithms_run_on_it():
    plan = load_plan("late-tail")
    model = MaskablePPO(
        "MlpPolicy", VecMonitor(RecoveryVecEnv(plan, 8)), n_steps=16, batch_size=64, n_epochs=1
    )
    model.learn(256)
    assert model.ep_info_buffer
    model = DQN("MlpPolicy", RecoveryVecEnv(plan, 8), learning_starts=64, train_freq=4)
    model.learn(256)
    assert model.ep_info_buffer
