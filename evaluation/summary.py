"""What a run says: one row a policy, every number with its interval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from evaluation.columns import MEASURE_NAMES
from evaluation.intervals import Estimate, mean_interval, share_interval
from evaluation.paired import Comparison, compare_to_baseline, regret
from exactlyonce_env.errors import UserError

if TYPE_CHECKING:
    from evaluation.runner import Columns, Evaluation

RATES: Mapping[str, str] = {
    "duplicate_rate": "duplicates",
    "false_retry_permission_rate": "false_retry_permissions",
    "overclaim_rate": "overclaim",
}
"""Share of episodes in which the measure is above 0."""

COMPARED = ("exactly_once", "reward", "elapsed_s")


def summarise(evaluation: Evaluation, baseline: str | None = None) -> list[dict[str, Any]]:
    """One row a policy, in the order asked for.

    Each row has ``policy``, ``privileged``, ``episodes``, every measure and ``reward`` as a mean
    per episode, the three rates as shares of episodes, ``regret`` to `clairvoyant`, and the 95 %
    intervals of all of them under ``ci``.  With a baseline the others carry ``versus``: paired
    differences, the exact McNemar test on exactly-once success and its Holm adjustment over the
    policies compared.

    Raises
    ------
    UserError
        For a baseline that is not among the policies.
    """
    compared = _comparisons(evaluation, baseline)
    rows = []
    for spec, policy in evaluation.policies.items():
        columns = evaluation.episodes[spec]
        estimates = policy_estimates(columns, evaluation.best_rewards)
        row: dict[str, Any] = {
            "policy": spec,
            "privileged": policy.privileged,
            "episodes": len(columns["world"]),
            **{name: estimate.value for name, estimate in estimates.items()},
            "ci": {name: estimate.ci for name, estimate in estimates.items()},
        }
        if spec in compared:
            row["versus"] = _versus(compared[spec])
        rows.append(row)
    return rows


def policy_estimates(
    columns: Columns, best_rewards: npt.NDArray[np.float64]
) -> dict[str, Estimate]:
    """Estimate every measure and rate, the reward and the regret of one policy."""
    estimates = {}
    for name in MEASURE_NAMES:
        if name == "cost":
            continue
        values = columns[name]
        estimates[name] = (
            share_interval(values) if values.dtype == np.bool_ else mean_interval(values)
        )
    for rate, measure in RATES.items():
        estimates[rate] = share_interval(columns[measure] > 0)
    estimates["regret"] = regret(columns["reward"], best_rewards)
    return estimates


def _comparisons(evaluation: Evaluation, baseline: str | None) -> dict[str, Comparison]:
    if baseline is None:
        return {}
    if baseline not in evaluation.policies:
        raise UserError(
            f"baseline {baseline!r} is not among the policies; choose from "
            f"{', '.join(evaluation.policies)}"
        )
    found = compare_to_baseline(evaluation.episodes, baseline, measures=COMPARED)
    return {comparison.policy: comparison for comparison in found}


def _versus(comparison: Comparison) -> dict[str, Any]:
    differences = comparison.differences
    test = comparison.exactly_once
    return {
        "baseline": comparison.baseline,
        **{name: estimate.value for name, estimate in differences.items()},
        "ci": {name: estimate.ci for name, estimate in differences.items()},
        "mcnemar": {
            "only_policy": test.only_policy,
            "only_baseline": test.only_baseline,
            "p": test.p,
            "p_holm": test.p_holm,
        },
    }
