"""Rewards: each term by hand, their sum to the last bit, and the settlement from a ledger."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exactlyonce_env import kernel
from exactlyonce_env.presets import load_plan
from exactlyonce_env.records import COSTS, N_TERMS, TRUTH, VIEW
from exactlyonce_env.vocabulary import TERM_NAMES

from .worldbench import Episode, play, run

PRICES = {
    "success": 17.0,
    "duplicate": 13.0,
    "omission": 11.0,
    "unresolved": 7.0,
    "overclaim": 5.0,
    "time_per_hour": 3.0,
    "read": 0.31,
    "reissue": 0.23,
    "escalation": 0.19,
}


def priced(modes: str, actions: str, **options: Any) -> Episode:
    return run(modes, actions, costs=PRICES, **options)


def terms_of(world: Episode, step: int = -1) -> dict[str, float]:
    """The terms of one action that are not zero."""
    named = zip(TERM_NAMES, world.terms[step].tolist(), strict=True)
    return {name: value for name, value in named if value}


def test_the_terms_have_the_names_of_the_costs() -> None:
    assert TERM_NAMES == (
        "time",
        "read",
        "reissue",
        "escalation",
        "success",
        "duplicate",
        "omission",
        "unresolved",
        "overclaim",
    )
    assert set(COSTS.names) == set(PRICES)


@pytest.mark.parametrize(
    ("modes", "actions", "expected"),
    [
        ("timeout_post", "read", {"time": -3 / 3600, "read": -0.31}),
        ("timeout_post", "wait:600", {"time": -0.5}),
        ("timeout_post ok", "retry", {"time": -3 / 3600, "reissue": -0.23}),
        ("timeout_post timeout_pre", "retry", {"time": -90 / 3600, "reissue": -0.23}),
        ("timeout_post", "keyed_retry", {}),
        ("timeout_post", "escalate", {"time": -0.75, "escalation": -0.19}),
        ("timeout_post", "finish", {"success": 17}),
        ("timeout_post", "finish_uncertain", {"success": 17, "unresolved": -7}),
        ("timeout_pre", "finish", {"omission": -11, "overclaim": -5}),
        ("timeout_pre", "finish_uncertain", {"omission": -11, "unresolved": -7}),
        ("timeout_late ok", "retry finish", {"duplicate": -13, "overclaim": -5}),
        ("redelivery ok", "retry finish", {"duplicate": -26, "overclaim": -5}),
        ("redelivery ok", "retry finish_uncertain", {"duplicate": -26, "unresolved": -7}),
    ],
)
def test_each_term_by_hand(modes: str, actions: str, expected: dict[str, float]) -> None:
    assert terms_of(priced(modes, actions)) == pytest.approx(expected, abs=1e-15)


def test_a_batch_can_miss_and_repeat_at_once() -> None:
    """Items 0..k-1 twice, none omitted; or, stopped at once, the rest omitted."""
    stopped = priced("partial_batch", "finish", n_items=4)
    k = len(stopped.ledger)
    assert terms_of(stopped) == {"omission": -11.0 * (4 - k), "overclaim": -5.0}
    twice = priced("partial_batch partial_batch", "retry finish_uncertain", n_items=4)
    counts = Counter(effect.item for effect in twice.ledger)
    duplicates = sum(n - 1 for n in counts.values())
    assert terms_of(twice) == {
        "duplicate": -13.0 * duplicates,
        "omission": -11.0 * (4 - len(counts)),
        "unresolved": -7.0,
    }


def test_exhaustion_pays_for_the_call_and_settles() -> None:
    world = priced("timeout_pre", "read", max_steps=1)
    assert terms_of(world) == pytest.approx(
        {"time": -3 / 3600, "read": -0.31, "omission": -11, "unresolved": -7}, abs=1e-15
    )


def test_terms_of_an_earlier_step_are_wiped() -> None:
    plan = load_plan("late-tail")
    seen, truth, terms = np.zeros(1, VIEW), np.zeros(1, TRUTH), np.full(N_TERMS, 99.0)
    kernel.begin(plan.contexts, plan.context_cdf, plan.table, np.uint64(0), 0, seen[0], truth[0])
    reward = kernel.act(plan.contexts, plan.table, seen[0], truth[0], 1, 36.0, terms)
    assert terms.tolist() == [-0.12 * 36.0 / 3600.0, *[0.0] * 8]
    assert reward == -0.12 * 36.0 / 3600.0


ACTIONS = st.lists(
    st.sampled_from(["read", "wait:15", "wait:300", "retry", "keyed_retry", "escalate"]),
    max_size=10,
)


@given(
    preset=st.sampled_from(["late-tail", "stale-tail", "native", "keys-everywhere"]),
    world=st.integers(0, 2**40),
    actions=ACTIONS,
    last=st.sampled_from(["finish", "finish_uncertain"]),
)
def test_the_terms_sum_to_the_reward_and_the_ledger_explains_them(
    preset: str, world: int, actions: list[str], last: str
) -> None:
    plan = load_plan(preset)
    episode = play(plan, [*actions, last], world=world)
    for terms, reward in zip(episode.terms, episode.rewards, strict=True):
        total = 0.0
        for term in terms:  # in the order of the terms, so that not a bit differs
            total += float(term)
        assert total == reward
    contract = plan.contexts[episode.view["context"]]["contract"]
    counts = Counter(effect.item for effect in episode.ledger)
    if contract["idempotent"]:
        counts = Counter(set(counts))
    executed = [counts[item] for item in range(contract["n_items"])]
    duplicates = sum(max(0, x - 1) for x in executed)
    omissions = executed.count(0)
    exactly_once = all(x == 1 for x in executed)
    claimed = last == "finish"
    costs = contract["costs"]
    settlement = {
        "success": costs["success"] * exactly_once,
        "duplicate": -costs["duplicate"] * duplicates,
        "omission": -costs["omission"] * omissions,
        "unresolved": -costs["unresolved"] * (not claimed),
        "overclaim": -costs["overclaim"] * (claimed and not exactly_once),
    }
    for name, value in settlement.items():
        assert episode.term(name) == value
        assert not episode.terms[:-1, TERM_NAMES.index(name)].any()
    assert episode.measure("duplicates") == episode.measure("residual_duplicates") == duplicates
    assert episode.measure("omissions") == omissions
    assert episode.measure("task_success") == (omissions == 0)
    assert episode.measure("exactly_once") == exactly_once
    assert episode.measure("overclaim") == (claimed and not exactly_once)
    assert episode.measure("resolved_exact") == (exactly_once and claimed)
    paid_s = episode.clocks[-1] - float(episode.view["decided_from_s"])
    assert episode.terms[:, 0].sum() == pytest.approx(
        -costs["time_per_hour"] * paid_s / 3600, rel=1e-12
    )
    for name, measure in (
        ("read", "reads"),
        ("reissue", "reissues"),
        ("escalation", "escalations"),
    ):
        paid = episode.terms[:, TERM_NAMES.index(name)].sum()
        assert paid == pytest.approx(-costs[name] * episode.measure(measure), rel=1e-12)
