"""Everything that is asked of two arms that met the same episodes, each with its reason if not.

An analysis that the data do not allow is never left out: in its place stands ``why``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from evaluation.intervals import Estimate
from evaluation.paired import mcnemar_exact, paired_difference
from evaluation.paired_counts import PairCounts
from evaluation.statistics.checks import or_why
from evaluation.statistics.clusters import cluster_bootstrap, intraclass_correlation
from evaluation.statistics.exact_tests import Stratum, stratified_exact, tost_paired
from evaluation.statistics.models import Effect, gee, mixed_model, shapley_shares
from evaluation.statistics.shares import wilson
from exactlyonce_env.errors import UserError

__all__ = [
    "STAGES",
    "Matched",
    "analyses",
    "clustered_share",
    "compared",
    "tested",
    "told",
]

STAGES = {
    "ok": "none",
    "timeout_pre": "before",
    "http500_pre": "before",
    "timeout_post": "after",
    "http500_post": "after",
    "timeout_late": "in flight",
    "timeout_late_tail": "in flight",
    "partial_batch": "partial",
    "redelivery": "repeated",
    "rate_limited": "refused",
    "unavailable": "refused",
    "outage": "refused",
    "schema_drift": "refused",
}
"""Where a fault strikes, relative to the execution of the request that meets it."""

UNRESOLVED = ("in flight", "repeated")
"""Stages that a read-back at once cannot resolve: what it shows is not yet how it ends."""

RESAMPLES = 2000
MAX_CLUSTER = 3000
"""Episodes of one cluster that the clustered model takes: its errors need a square matrix."""

MAX_CELLS = 5000
"""Combinations of task and instance that the mixed model takes, some ten seconds."""

MAX_LEVELS = 200
"""Levels of a factor that the pseudo-R squared is shared out over."""


@dataclass(frozen=True)
class Matched:
    """Two arms over the same episodes, in one order.

    Attributes
    ----------
    a, b
        (n,) whether the episode was exactly once.
    task, instance, stage, contract, harness
        (n,) labels of the episodes, the same for both arms.
    cluster, stratum
        What is resampled whole and what the exact test is stratified by: ``task`` or the name of
        another of these labels.
    names
        What labels are called where that is not their own name.
    """

    a: npt.NDArray[np.bool_]
    b: npt.NDArray[np.bool_]
    task: npt.NDArray[Any]
    instance: npt.NDArray[Any]
    stage: npt.NDArray[Any]
    contract: npt.NDArray[Any]
    harness: npt.NDArray[Any]
    cluster: str = "task"
    stratum: str = "task"
    names: Mapping[str, str] = field(default_factory=dict)

    def called(self, label: str) -> str:
        """The name of a label in results."""
        return self.names.get(label, label)

    @property
    def success(self) -> npt.NDArray[np.bool_]:
        """(2n,) success of A's episodes, then of B's."""
        return np.concatenate([self.a, self.b])

    @property
    def arm(self) -> list[str]:
        """(2n,) which arm."""
        return ["A"] * len(self.a) + ["B"] * len(self.b)

    def only(self, rows: npt.NDArray[np.bool_]) -> Matched:
        """The chosen episodes."""
        names = ("a", "b", "task", "instance", "stage", "contract", "harness")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})


def analyses(pairs: Matched) -> dict[str, Any]:
    """What clustered and stratified data say of B against A.

    Returns
    -------
    ``stratified``: the exact conditional test over strata; ``bootstrap``: the difference with
    whole clusters resampled; ``gee``: logistic model clustered, errors of Mancl and DeRouen, t(G -
    1); ``mixed``: binomial model with random intercepts; ``shapley``: shares of McFadden's
    pseudo-R squared, ``pooled``, over faults that a read-back ``resolved`` and over those that it
    cannot (``unresolved``).  Each holds its figures or ``why`` there are none.
    """
    return {
        "stratified": or_why(lambda: _stratified(pairs)),
        "bootstrap": or_why(lambda: _bootstrap(pairs)),
        "gee": or_why(lambda: _gee(pairs)),
        "mixed": or_why(lambda: _mixed(pairs)),
        "shapley": _shapley(pairs),
    }


def told(estimate: Estimate) -> dict[str, Any]:
    """An estimate with its interval."""
    return {"value": estimate.value, "ci": estimate.ci}


def compared(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> dict[str, Any]:
    """Means of either side, and the paired difference B minus A with its interval."""
    return {"a": float(np.mean(a)), "b": float(np.mean(b)), **told(paired_difference(b, a))}


def tested(pairs: PairCounts, margin: float) -> dict[str, Any]:
    """The exact McNemar test of the complete pairs, and two one-sided tests of equivalence."""
    lost, gained = pairs.only_a, pairs.only_b
    same = tost_paired(gained, lost, pairs.complete, margin)
    return {
        "mcnemar": {"only_a": lost, "only_b": gained, "p": mcnemar_exact(lost, gained)},
        "equivalence": {"margin": margin, **asdict(same)},
    }


def clustered_share(
    success: npt.NDArray[np.bool_], clusters: npt.NDArray[Any], cluster: str = "task"
) -> dict[str, Any]:
    """Wilson's interval of a share at Kish's n: ``value``, ``icc``, ``effective_n`` and ``ci``.

    A correlation below zero, which only chance gives, counts as zero.  Where it is not defined
    there is no such interval, and ``why``.
    """

    def found() -> dict[str, Any]:
        icc = max(intraclass_correlation(success, clusters), 0.0)
        size = len(success) / len(np.unique(clusters))
        limits, n = wilson(int(success.sum()), len(success), icc=icc, mean_cluster_size=size)
        return {
            "by": cluster,
            "value": float(np.mean(success)),
            "icc": icc,
            "effective_n": n,
            "ci": [limits.low, limits.high],
        }

    return or_why(found)


def _stratified(pairs: Matched) -> dict[str, Any]:
    names, codes = np.unique(getattr(pairs, pairs.stratum), return_inverse=True)
    n = np.bincount(codes)
    counts = [np.bincount(codes, arm, len(names)).astype(int) for arm in (pairs.b, pairs.a)]
    strata = [Stratum(int(b), int(m), int(a), int(m)) for b, a, m in zip(*counts, n, strict=True)]
    by = pairs.called(pairs.stratum)
    return {"by": by, "strata": len(strata), "p": stratified_exact(strata)}


def _bootstrap(pairs: Matched) -> dict[str, Any]:
    difference = pairs.b.astype(np.float64) - pairs.a
    found = cluster_bootstrap(difference, getattr(pairs, pairs.cluster), resamples=RESAMPLES)
    return {"by": pairs.called(pairs.cluster), **asdict(found)}


def _gee(pairs: Matched) -> dict[str, Any]:
    labels, by = getattr(pairs, pairs.cluster), pairs.called(pairs.cluster)
    clusters = np.concatenate([labels, labels])
    sizes = np.unique(clusters, return_counts=True)[1]
    if len(sizes) > 2 and sizes.max() > MAX_CLUSTER:
        raise UserError(
            f"a {by} holds {sizes.max():,} episodes; its bias-reduced errors are computed up to "
            f"{MAX_CLUSTER:,}"
        )
    effects = gee(pairs.success, {"arm": pairs.arm}, clusters.tolist())
    return {"by": by, "clusters": len(sizes), "effects": list(map(_told, effects))}


def _mixed(pairs: Matched) -> dict[str, Any]:
    tasks, instances = (list(map(str, [*v, *v])) for v in (pairs.task, pairs.instance))
    task, instance = pairs.called("task"), pairs.called("instance")
    n_tasks, cells = len(set(tasks)), len(set(zip(tasks, instances, strict=True)))
    if n_tasks < 2:
        raise UserError(f"random intercepts of {task}s need two of them, not {n_tasks}")
    if cells > MAX_CELLS:
        raise UserError(
            f"{cells:,} combinations of {task} and {instance} are more than {MAX_CELLS:,}"
        )
    fit = mixed_model(pairs.success, {"arm": pairs.arm}, tasks, instances)
    note = ""
    if cells == n_tasks:
        note = f"every {task} has one {instance}: its two deviations cannot be told apart"
    sd = dict(zip((task, f"{task} x {instance}"), fit.sd.values(), strict=True))
    return {"effects": list(map(_told, fit.effects)), "sd": sd, "note": note}


def _told(effect: Effect) -> dict[str, Any]:
    told = asdict(effect)
    return told | {"p": None if np.isnan(effect.p) else effect.p}


def _shapley(pairs: Matched) -> dict[str, Any]:
    beyond = np.isin(pairs.stage, UNRESOLVED)
    parts = (
        ("pooled", np.ones(len(beyond), dtype=bool)),
        ("resolved", ~beyond),
        ("unresolved", beyond),
    )
    return {name: or_why(lambda rows=rows: _shares(pairs.only(rows))) for name, rows in parts}  # type: ignore[misc]


def _shares(pairs: Matched) -> dict[str, Any]:
    if not len(pairs.a):
        raise UserError("there is no such episode")
    factors: dict[str, Sequence[Any]] = {
        "model": pairs.arm,
        "contract": [*pairs.contract, *pairs.contract],
        "fault stage": [*pairs.stage, *pairs.stage],
        "harness": [*pairs.harness, *pairs.harness],
    }
    levels = {name: len(set(values)) for name, values in factors.items()}
    left_out = {name: "one level only" for name, n in levels.items() if n < 2}
    left_out |= {
        name: f"{n} levels, more than {MAX_LEVELS}" for name, n in levels.items() if n > MAX_LEVELS
    }
    present = {name: values for name, values in factors.items() if name not in left_out}
    shares = shapley_shares(pairs.success, present)
    return {
        "n": 2 * len(pairs.a),
        "pseudo_r2": sum(shares.values()),
        "shares": shares,
        "left_out": left_out,
    }
