"""The exact bound: the best that a client can do who sees only views.

`bayes_value` says what it earns, `BayesOptimal` plays it, `q_values` values every action.
"""

from policies.bayes.policy import BayesOptimal, q_values
from policies.bayes.solution import BayesValue, bayes_value

__all__ = ["BayesOptimal", "BayesValue", "bayes_value", "q_values"]
