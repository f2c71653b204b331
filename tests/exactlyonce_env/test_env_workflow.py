"""The environment of whole tasks: several writes, and waiting that is filled with work."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

import exactlyonce_env  # noqa: F401 - registers the ids
from exactlyonce_env.actions import ACTION_NAMES
from exactlyonce_env.envs.workflow import DEFER, WorkflowEnv
from exactlyonce_env.errors import UserError

READ, RETRY, FINISH, UNCERTAIN = (
    ACTION_NAMES.index(name) for name in ("read", "retry", "finish", "finish_uncertain")
)
WAIT_300 = ACTION_NAMES.index("wait:300")
LATE = {"task": "invoice_batch", "instance": 0, "write": "charge_0", "fault": "timeout_late"}


def test_gymnasium_takes_it():
    env = gymnasium.make("ExactlyOnce/Workflow-v0", disable_env_checker=False)
    check_env(env.unwrapped, skip_render_check=True)
    env.close()


def test_stable_baselines_takes_it():
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    checker.check_env(WorkflowEnv())


def test_deferring_fills_the_wait_with_other_work():
    """The charge commits at 90 s: others are done meanwhile, and no wait is needed after them."""
    env = WorkflowEnv()
    env.reset(seed=0, options=LATE)
    assert env.action_masks()[DEFER]
    for _ in range(2):  # the second charge and the mail
        _, _, ended, _, _ = env.step(DEFER)
        assert not ended
    assert not env.action_masks()[DEFER]
    assert [call.tool for call in env.session.calls] == [
        "billing_charge",
        "billing_charge",
        "mail_send",
    ]
    assert env.session.now_s == 30 + 5 + 5
    env.step(WAIT_300)
    env.step(READ)
    _, reward, ended, truncated, info = env.step(FINISH)
    assert (ended, truncated, info["is_success"], info["claimed"]) == (True, False, True, True)
    assert reward == pytest.approx(1.0)


def test_rewards_by_hand():
    env = WorkflowEnv(first_send="plain")
    env.reset(seed=0, options=LATE)
    _, reward, _, _, _ = env.step(READ)
    assert reward == pytest.approx(-0.002 - 0.12 * 5 / 3600)
    # The re-issue duplicates; the second charge and the mail follow, and completion is claimed.
    _, reward, ended, _, info = env.step(RETRY)
    assert ended
    assert info["cost"] == 1.0
    assert reward == pytest.approx(-0.002 - 0.12 * 15 / 3600 - 1.0 - 0.2)


def test_giving_up_is_unresolved():
    env = WorkflowEnv()
    env.reset(seed=0, options=LATE)
    _, reward, ended, _, info = env.step(UNCERTAIN)
    assert ended
    assert not info["claimed"]
    assert reward == pytest.approx(1.0 - 0.3 - 0.12 * 10 / 3600)  # it lands, but was not claimed


def test_the_same_seed_gives_the_same_episode():
    found = []
    for _ in range(2):
        env = WorkflowEnv()
        rng = np.random.default_rng(3)
        observations = [env.reset(seed=11)[0]]
        ended = False
        while not ended:
            action = int(rng.choice(np.flatnonzero(env.action_masks())))
            observation, reward, ended, _, _ = env.step(action)
            observations += [observation, np.float64(reward)]
        found.append(b"".join(part.tobytes() for part in observations))
    assert found[0] == found[1]


def test_random_play_stays_in_bounds_and_ends():
    env = WorkflowEnv(contract="keys-everywhere")
    rng = np.random.default_rng(0)
    for seed in range(40):
        env.reset(seed=seed)
        for _ in range(60):
            action = int(rng.integers(12))  # masked ones too
            observation, reward, ended, _, _ = env.step(action)
            assert env.observation_space.contains(observation)
            assert np.isfinite(reward)
            if ended:
                break
        with pytest.raises(ResetNeeded) if ended else pytest.raises(UserError):
            env.step(READ if ended else 12)


def test_mistakes_are_named():
    with pytest.raises(UserError, match="tasks must be some of"):
        WorkflowEnv(tasks=("nothing",))
    with pytest.raises(UserError, match="unknown contract"):
        WorkflowEnv(contract="none")
    env = WorkflowEnv()
    with pytest.raises(ResetNeeded):
        env.step(0)
    with pytest.raises(UserError, match="unknown option 'world'"):
        env.reset(options={"world": 3})
    with pytest.raises(UserError, match="unknown task"):
        env.reset(options={"task": "nothing"})
