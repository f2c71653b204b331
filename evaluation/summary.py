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
        account = evaluation.accounts.get(spec)
        if account is not None:
            from evaluation.llm.models import pooled

            columns = pooled(account.runs)
        if not len(columns["world"]):
            rows.append({"policy": spec, "privileged": False, "episodes": 0, **_nothing()})
            rows[-1] |= {} if account is None else account.to_dict()
            continue
        best = evaluation.best_rewards[columns["world"] - evaluation.worlds[0]]
        estimates = policy_estimates(columns, best)
        row: dict[str, Any] = {
            "policy": spec,
            "privileged": policy.privileged,
            "episodes": len(columns["world"]),
            **{name: estimate.value for name, estimate in estimates.items()},
            "ci": {name: estimate.ci for name, estimate in estimates.items()},
        }
        if account is not None:
            row |= account.to_dict()
        if spec in compared:
            row["versus"] = _versus(compared[spec])
        rows.append(row)
    return rows


def _nothing() -> dict[str, Any]:
    """The estimates of a policy without any episode."""
    names = [name for name in (*MEASURE_NAMES, *RATES, "regret") if name != "cost"]
    return {**dict.fromkeys(names), "ci": {name: [None, None] for name in names}}


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
    found = compare_to_baseline(_common(evaluation, baseline), baseline, measures=COMPARED)
    return {comparison.policy: comparison for comparison in found}


def _common(evaluation: Evaluation, baseline: str) -> Mapping[str, Columns]:
    """The episodes on the worlds that every policy has, but those without any episode.

    Only a language model can lack worlds.
    """
    episodes = {
        spec: columns
        for spec, columns in evaluation.episodes.items()
        if len(columns["world"]) or spec == baseline
    }
    if not evaluation.accounts:
        return episodes
    shared = np.arange(*evaluation.worlds)
    for columns in episodes.values():
        shared = np.intersect1d(shared, columns["world"], assume_unique=True)
    if not len(shared):
        raise UserError(f"the policies share no world that came to an end; leave out {baseline!r}")
    return {
        spec: {
            name: values[np.searchsorted(columns["world"], shared)]
            for name, values in columns.items()
        }
        for spec, columns in episodes.items()
    }


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
