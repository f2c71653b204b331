"""The values that learners are taught: played greedily they are as good as the optimum."""

from __future__ import annotations

import numpy as np
import pytest

from exactlyonce_env.actions import KINDS, SECONDS
from exactlyonce_env.presets import load_plan
from policies.base import ActionBatch, Policy
from policies.bayes import BayesOptimal, q_values
from policies.rollout import run_policy
from policies.spec import parse_policy


class Taught(Policy):
    """The best action of the values that are taught."""

    def __init__(self, plan):
        self.plan, self.decisions = plan, 0

    @property
    def spec(self):
        return "taught"

    def act(self, batch):
        best = q_values(self.plan, batch.views).argmax(axis=1)
        actions = ActionBatch.empty(len(batch))
        actions.kinds[:], actions.seconds[:] = KINDS[best], SECONDS[best]
        self.decisions += len(batch)
        return actions


@pytest.mark.parametrize("preset", ["late-tail", "late-fixed"])
def test_the_teacher_closes_the_gap_in_few_calls(preset):
    plan, ids = load_plan(preset), np.arange(10**6, 10**6 + 1500)
    teacher = Taught(plan)
    taught = run_policy(plan, teacher, 0, ids).rewards
    best = run_policy(plan, BayesOptimal(plan), 0, ids).rewards
    lost = best - taught
    assert lost.mean() <= 0.002 + 3 * lost.std() / np.sqrt(len(ids))
    wait = run_policy(plan, parse_policy("wait:3600"), 0, ids).rewards.mean()
    assert taught.mean() > wait
    assert teacher.decisions < 20 * len(ids)  # of 40 steps: the call budget is never in the way
