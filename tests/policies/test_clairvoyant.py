"""The clairvoyant bound against exhaustive search on small budgets, and against its own play."""

from __future__ import annotations

import numpy as np
import pytest

from exactlyonce_env import kernel
from exactlyonce_env.presets import PRESET_NAMES, load_plan
from exactlyonce_env.records import N_TERMS, TRUTH, VIEW
from exactlyonce_env.vocabulary import Action
from policies.clairvoyant import best_episodes, best_sequence

WAITS_S = (1.0, 3.0, 8.0)
ACTIONS = [
    (Action.READ, 0.0),
    *((Action.WAIT, seconds) for seconds in WAITS_S),
    (Action.RETRY, 0.0),
    (Action.KEYED_RETRY, 0.0),
    (Action.ESCALATE, 0.0),
    (Action.FINISH, 0.0),
    (Action.FINISH_UNCERTAIN, 0.0),
]

SMALL = {
    "latency_s": 1,
    "client_timeout_s": 3,
    "operator_delay_s": 5,
    "max_steps": 4,
    "max_attempts": 3,
}
FAULTS = {"outage_s": 5, "retry_fault_rate": 0.5, "late_fixed_s": 7, "copy_delay_s": 2}
CHEAP_TIME = {"time_per_hour": 1.0, "unresolved": 0.25}

CASES = {
    "unkeyed": {"contract": {}},
    "batch": {"contract": {"n_items": 3}},
    "stale-batch": {"contract": {"n_items": 3, "readback": "eventual", "lag_s": 2}},
    "blind-batch": {"contract": {"n_items": 2, "readback": "none"}},
    "keyed": {"contract": {"accepts_key": True, "original_key": "sent"}},
    "keyed-batch": {"contract": {"accepts_key": True, "original_key": "sent", "n_items": 3}},
    "late-key": {"contract": {"accepts_key": True, "n_items": 2}},
    "other-key": {
        "contract": {"accepts_key": True, "original_key": "sent", "candidate_key": "different"}
    },
    "short-retention": {
        "contract": {"accepts_key": True, "original_key": "sent", "key_retention_s": 4}
    },
    "conflict": {
        "contract": {
            "accepts_key": True,
            "original_key": "sent",
            "n_items": 2,
            "in_flight_same_key": "conflict",
        }
    },
    "idempotent": {"contract": {"idempotent": True, "n_items": 2}},
    "cheap-duplicates": {
        "contract": {"n_items": 2},
        "costs": {"duplicate": 0.05, "overclaim": 0.01, "omission": 1.0},
    },
    "no-time-cost": {"contract": {"n_items": 2}, "costs": {"time_per_hour": 0, "read": 0}},
    "send": {"contract": {"accepts_key": True, "n_items": 2}, "start": "send"},
    "send-unkeyed": {"contract": {"n_items": 2}, "start": "send"},
}


def small_plan(name):
    case = CASES[name]
    return load_plan(
        {
            "name": name,
            "start": case.get("start", "fault"),
            "contract": {**SMALL, **case["contract"]},
            "costs": {**CHEAP_TIME, **case.get("costs", {})},
            "faults": FAULTS,
        }
    )


def exhaustive(plan, seed, world):
    """Best reward over every sequence of `ACTIONS` within the call budget."""

    def best_from(seen, truth, earned):
        best = -np.inf
        for kind, seconds in ACTIONS:
            next_seen, next_truth = seen.copy(), truth.copy()
            terms = np.zeros(N_TERMS)
            value = earned + kernel.act(
                plan.contexts, plan.table, next_seen[0], next_truth[0], int(kind), seconds, terms
            )
            over = next_seen["ending"][0] != 0
            best = max(best, value if over else best_from(next_seen, next_truth, value))
        return best

    seen, truth = np.zeros(1, VIEW), np.zeros(1, TRUTH)
    kernel.begin(
        plan.contexts, plan.context_cdf, plan.table, np.uint64(seed), world, seen[0], truth[0]
    )
    return best_from(seen, truth, 0.0)


@pytest.mark.parametrize("name", CASES)
def test_no_sequence_beats_it_and_it_is_reached(name):
    plan = small_plan(name)
    reached = 0
    for world in range(5):
        best, actions = best_sequence(plan, 5, world)
        found = exhaustive(plan, 5, world)
        assert best >= found - 1e-12, (name, world, actions)
        on_grid = all(kind != Action.WAIT or seconds in WAITS_S for kind, seconds in actions)
        if on_grid:
            assert best == pytest.approx(found, abs=1e-12), (name, world, actions)
            reached += 1
    assert reached >= 2


@pytest.mark.parametrize("name", [name for name in PRESET_NAMES if name != "empirical"])
def test_playing_the_sequence_earns_the_bound(name):
    plan = load_plan(name)
    rewards, outcomes = best_episodes(plan, 11, np.arange(40))
    for world in range(40):
        best, actions = best_sequence(plan, 11, world)
        seen, truth = np.zeros(1, VIEW), np.zeros(1, TRUTH)
        terms = np.zeros(N_TERMS)
        kernel.begin(
            plan.contexts, plan.context_cdf, plan.table, np.uint64(11), world, seen[0], truth[0]
        )
        earned = 0.0
        for kind, seconds in actions:
            assert seen["ending"][0] == 0
            earned += kernel.act(
                plan.contexts, plan.table, seen[0], truth[0], int(kind), seconds, terms
            )
        assert seen["ending"][0] != 0
        assert earned == best
        assert best == rewards[world]
        assert outcomes["steps"][world] == len(actions)


def test_late_fixed_by_hand():
    """An absent original needs one re-issue (read-back is needless), all others nothing at all."""
    plan = load_plan("late-fixed")
    worlds = plan.worlds(0, range(300))
    rewards, outcomes = best_episodes(plan, 0, np.arange(300))
    absent = worlds["fates"]["commit_delay_s"][:, 0] == np.inf
    assert 0 < absent.sum() < len(absent)
    np.testing.assert_allclose(rewards[absent], 1.0 - 0.002 - 0.12 / 3600.0, atol=1e-12)
    assert (rewards[~absent] == 1.0).all()
    assert outcomes["exactly_once"].all()
