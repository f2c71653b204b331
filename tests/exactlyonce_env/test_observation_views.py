"""Observations and masks of many views at once: those that the environment shows."""

from __future__ import annotations

import numpy as np
import pytest

from exactlyonce_env.actions import N_ACTIONS, mask_views
from exactlyonce_env.envs.vector import RecoveryVectorEnv
from exactlyonce_env.observation import N_FEATURES, observe_views
from exactlyonce_env.presets import load_plan

N = 48


@pytest.mark.parametrize("name", ["late-tail", "native", "contextual"])
def test_the_same_bits_as_in_the_environment(name):
    plan = load_plan(name)
    env = RecoveryVectorEnv(plan=plan, num_envs=N, autoreset_mode="SameStep")
    observations, infos = env.reset(seed=5)
    contracts = np.ascontiguousarray(plan.contracts)
    rng = np.random.default_rng(0)
    for _ in range(40):
        views = np.array([env.records(i)[0] for i in range(N)])
        found = np.full((N, N_FEATURES), np.nan, dtype=np.float32)
        masks = np.full((N, N_ACTIONS), -1, dtype=np.int8)
        observe_views(views, contracts, plan.static, found)
        mask_views(views, contracts, masks)
        np.testing.assert_array_equal(found, observations)
        np.testing.assert_array_equal(masks, infos["action_mask"])
        observations, _, _, _, infos = env.step(rng.integers(N_ACTIONS, size=N))
