"""The brute force itself: its fates against draws, its values by hand, its optimum against all."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from exactlyonce_env.delays import delays_from_spec, encode
from exactlyonce_env.presets import load_plan
from exactlyonce_env.quantiles import BEYOND_S
from policies.clairvoyant import best_episodes
from policies.rollout import run_policy
from policies.spec import LINEUP, parse_policy

from .brute_force import Lookup, exact_value, solve
from .fate_tree import atoms, fates_of
from .small_worlds import CASES, FIXED_MIX, OPEN, THREE, small_plan, solved

HONEST = tuple(spec for spec in LINEUP if not parse_policy(spec).privileged)
HOUR_S = 3600.0

CHEAP = (
    "strong-four-steps",
    "strong-dear-duplicates",
    "strong-open-tail",
    "lag",
    "hidden-lag-weighted",
    "hidden-law",
    "authoritative-in-transit",
    "blind",
    "blind-operator-half",
    "operator-half",
    "bound-lag",
    "key",
    "key-blind",
    "key-conflict",
    "key-in-transit-expires-blind",
    "one-decision",
    "instant-service",
)
"""Cases in which even a search with many more waits takes no time."""


@pytest.mark.parametrize(
    ("law", "expected"),
    [
        (THREE, {60.0: 0.4, 150.0: 0.3, 600.0: 0.3}),
        (OPEN, {60.0: 0.4, 240.0: 0.4, BEYOND_S: 0.2}),
        (FIXED_MIX, {45.0: 0.3, 60.0: 0.3, 240.0: 0.2, 900.0: 0.2}),
    ],
)
def test_atoms_of_a_law(law, expected):
    table, offsets = encode([delays_from_spec("fixed:7"), delays_from_spec(law)])
    assert dict(atoms(table, int(offsets[1]))) == pytest.approx(expected)


def test_a_continuous_law_has_no_atoms():
    table, offsets = encode([delays_from_spec("expon:scale=80")])
    with pytest.raises(ValueError, match="infinitely many"):
        atoms(table, int(offsets[0]))


@pytest.mark.parametrize("name", ["send-blind-key", "batch-of-three", "strong-two-late-modes"])
def test_fates_are_those_that_are_drawn(name):
    plan, n = small_plan(name), 40_000
    drawn = plan.worlds(3, range(n))["fates"]
    for attempt in (0, 1):
        fates = fates_of(plan, 0, attempt == 0)
        chances = Counter()
        for mode, delay_s, copy_s, n_commit, queued, weight in fates:
            chances[mode, delay_s, copy_s, n_commit, queued] += weight
        assert sum(chances.values()) == pytest.approx(1.0, abs=1e-12)
        columns = (drawn[field][:, attempt].tolist() for field in drawn.dtype.names[:5])
        delays, copies, counts, modes, queued = columns
        found = Counter(zip(modes, delays, copies, counts, queued, strict=True))
        assert set(found) == set(chances)
        for fate, p in chances.items():
            assert abs(found[fate] / n - p) <= 5 * np.sqrt(p * (1 - p) / n), fate


def test_late_fixed_by_hand():
    """Look when the late write must have landed; a third has not and is sent again."""
    plan = load_plan("late-fixed", config={"contract": {"max_steps": 7, "max_attempts": 2}})
    seconds = 60.0 + 1.0 + 1.0 / 3.0
    by_hand = 1.0 - 0.12 * seconds / HOUR_S - 0.002 - 0.002 / 3.0
    solution = solve(plan)
    assert solution.value == pytest.approx(by_hand, abs=1e-12)
    assert [str(choice) for _, _, choice, _ in solution.walk()] == [
        "wait:60",
        "read",
        "retry",
        "finish",
        "finish",
    ]
    assert "t=90" in solution.tree()


def test_first_decision_by_hand():
    """A valid key is worth one re-issue and its second; else to stop without a claim is best."""
    solution = solve(load_plan("first-decision"))
    stop = 2.0 / 3.0 - 0.5 / 3.0 - 0.3
    key = 1.0 - 0.002 - 0.12 / HOUR_S
    assert solution.classes == pytest.approx({0: stop, 1: key, 2: stop}, abs=1e-12)
    assert solution.value == pytest.approx((2.0 * stop + key) / 3.0, abs=1e-12)


def test_asking_the_operator_by_hand():
    """Nobody but the operator knows; his answer must come when the last write has landed."""
    by_hand = (
        1.0 - 0.5 * (600.0 - 30.0) / HOUR_S - 0.05 - (0.002 + 0.5 / HOUR_S) / 3.0
    )  # asked at 300 s, answered at 600 s
    assert solved("blind").value == pytest.approx(by_hand, abs=1e-12)


def test_giving_up_by_hand():
    """Where nothing can be learned the claim is a bet on the two worlds out of three."""
    assert solved("blind-operator-never").value == pytest.approx(
        2.0 / 3.0 - (0.5 + 0.2) / 3.0, abs=1e-12
    )


def test_hidden_lag_by_hand():
    """A lag of 0 or 40 s: one look too early would take a hidden write for an absent one."""
    plan = load_plan(
        {
            "contract": {
                "readback": "eventual",
                "lag_documented": False,
                "max_steps": 5,
                "max_attempts": 2,
            },
            "lags_s": {"low": 0, "high": 40, "step": 40},
            "costs": {"time_per_hour": 1, "duplicate": 5},
            "faults": {"original": {"timeout_pre": 1, "timeout_post": 3}},
        }
    )
    # The write, if there is one, was committed after 1 s and shows at 41 s at the latest.
    by_hand = 1.0 - 0.002 - (12.0 + 0.25) / HOUR_S - 0.25 * 0.002
    solution = solve(plan)
    assert solution.value == pytest.approx(by_hand, abs=1e-12)
    assert set(solution.classes) == {0}


def test_a_key_sent_just_late_enough_by_hand():
    """A record of 100 s made after 140 s still lives when the last late write arrives at 240 s."""
    solution = solved("key-in-transit-expires-blind")
    least = 0.002 + 0.5 * (110.0 + 1.0) / HOUR_S
    assert 1.0 - least - 1e-6 < solution.value < 1.0 - least


@pytest.mark.parametrize("name", CASES)
def test_playing_the_optimum_earns_its_value(name):
    """Accounting only: the policy is run through the expansion without any maximum."""
    solution = solved(name)
    assert exact_value(small_plan(name), Lookup(solution)) == pytest.approx(
        solution.value, abs=1e-12
    )


@pytest.mark.parametrize("name", CASES)
def test_no_policy_of_the_line_up_beats_it(name):
    plan, best = small_plan(name), solved(name).value
    values = {spec: exact_value(plan, parse_policy(spec)) for spec in HONEST}
    assert max(values.values()) <= best + 1e-12, values


@pytest.mark.parametrize("name", ["hidden-lag", "send", "key-queued-expires", "batch-of-three"])
def test_exact_values_are_the_means_of_simulated_worlds(name):
    plan, ids = small_plan(name), np.arange(20_000)
    for spec in ("verify-retry", "poll:150", "guard"):
        rewards = run_policy(plan, parse_policy(spec), 17, ids).rewards
        error = rewards.std() / np.sqrt(len(ids))
        assert abs(exact_value(plan, parse_policy(spec)) - rewards.mean()) <= 4 * error + 1e-12
    best, _ = best_episodes(plan, 17, ids[:4000])
    assert solved(name).value <= best.mean() + 4 * best.std() / np.sqrt(len(best))


@pytest.mark.parametrize("name", CHEAP)
def test_no_wait_is_missing(name):
    """Neither odd seconds nor instants beside every event are worth waiting for."""
    beside = [at_s + by_s for at_s in (60, 150, 240, 600) for by_s in (-30, -1, 1, 15)]
    odd = np.round(np.random.default_rng(len(name)).uniform(30, 700, 4) * 8) / 8
    wider = solve(small_plan(name), instants_s=[*beside, *odd], merging=True)
    assert wider.value == pytest.approx(solved(name).value, abs=1e-12)
    assert wider.n_nodes >= solved(name).n_nodes
