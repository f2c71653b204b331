"""`bayes-optimal` against the brute force: the same value, and a policy that earns it."""

from __future__ import annotations

import numpy as np
import pytest

from exactlyonce_env.presets import load_plan
from policies.bayes import BayesOptimal, bayes_value

from .brute_force import exact_value, solve
from .small_worlds import CASES, small_plan, solved

GRID_ERROR = 1e-3
"""What a refined grid may cost [reward]."""

SHORT_OF_BEST = {
    # It looks like a plain 503 that asks to wait as long as an outage lasts, and is taken for one.
    "outage-or-busy": 0.05,
    # Sends once more without having read, and with five steps there is none left to read first.
    "key-in-transit-expires": 0.1,
}
"""Where the programme leaves an action out, and what that costs in a case made to show it."""


@pytest.mark.parametrize("name", CASES)
def test_the_value_is_that_of_the_best_of_all_policies(name):
    found, best = bayes_value(small_plan(name)), solved(name).value
    beyond = 0.0 if CASES[name].two_unresolved else found.error_bound
    assert found.value <= best + GRID_ERROR + beyond, solved(name).tree()
    allowed = GRID_ERROR + found.error_bound + SHORT_OF_BEST.get(name, 0.0)
    assert found.value >= best - allowed, solved(name).tree()
    if CASES[name].two_unresolved:
        assert found.error_bound <= GRID_ERROR


@pytest.mark.parametrize("name", CASES)
def test_the_policy_earns_the_value(name):
    plan = small_plan(name)
    earned = exact_value(plan, BayesOptimal(plan))
    found = bayes_value(plan)
    beyond = 0.0 if CASES[name].two_unresolved else found.error_bound
    assert earned == pytest.approx(found.value, abs=GRID_ERROR + beyond)
    assert earned <= solved(name).value + 1e-6, solved(name).tree()


@pytest.mark.parametrize(
    "name", ["lags", "costs-differ", "one-decision", "hidden-law", "hidden-lag"]
)
def test_contexts_have_their_own_values(name):
    """Contexts with one contract are told apart by nobody: their mean is what they are worth."""
    plan, solution = small_plan(name), solved(name)
    found = bayes_value(plan)
    assert found.contexts.shape == (len(plan.contexts),)
    assert found.contexts.dtype == np.float64
    chances = np.diff(plan.context_cdf, prepend=0.0)
    shown_as = plan.contexts["law"]["shown_as"]
    for context, value in solution.classes.items():
        alike = shown_as == context
        mean = chances[alike] @ found.contexts[alike] / chances[alike].sum()
        assert mean == pytest.approx(value, abs=GRID_ERROR)
    assert chances @ found.contexts == pytest.approx(found.value, abs=1e-9)


def test_the_shipped_preset_of_one_decision():
    plan = load_plan("first-decision")
    solution, found = solve(plan), bayes_value(plan)
    assert found.value == pytest.approx(solution.value, abs=1e-9)
    for context, value in solution.classes.items():
        assert found.contexts[context] == pytest.approx(value, abs=1e-9)
    assert exact_value(plan, BayesOptimal(plan)) == pytest.approx(solution.value, abs=1e-9)
