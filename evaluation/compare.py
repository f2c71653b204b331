"""Two runs on the same worlds, side by side: paired differences with everything that bears on them.

Only worlds that both runs hold count, and only runs of one configuration and one seed are compared:
anything else would compare worlds, not policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from evaluation.intervals import Estimate, share_interval
from evaluation.paired import holm, mcnemar_exact, paired_difference
from evaluation.statistics.clusters import cluster_bootstrap
from evaluation.statistics.exact_tests import tost_paired
from evaluation.store import Run, open_run
from exactlyonce_env.errors import UserError

__all__ = ["DEFAULT_MARGIN", "compare_runs", "policy_pairs"]

DEFAULT_MARGIN = 0.02
"""Largest difference in exactly-once success that counts as none, unless another is declared."""

MEASURES = ("reward", "elapsed_s", "duplicates", "false_retry_permissions", "steps")
"""Numbers that are compared besides exactly-once success, B minus A."""

FLAGS = ("exactly_once", "unresolved", "overclaim")
COLUMNS = ("world", "context", *FLAGS, *MEASURES)


def policy_pairs(
    one: Run, other: Run, named: Sequence[tuple[str, str]] = ()
) -> list[tuple[str, str]]:
    """Which policy of the first run is compared with which of the second.

    Those named; else the policies of the same name; else, where each run has one, these.

    Raises
    ------
    UserError
        For a policy that a run does not hold, and where nothing can be paired.
    """
    for a, b in named:
        for run, policy in ((one, a), (other, b)):
            if policy not in run.policies:
                raise UserError(
                    f"{run.folder} has no policy {policy!r}, it has: {', '.join(run.policies)}"
                )
    if named:
        return list(named)
    shared = [(policy, policy) for policy in one.policies if policy in other.policies]
    if shared:
        return shared
    if len(one.policies) == len(other.policies) == 1:
        return [(one.policies[0], other.policies[0])]
    raise UserError(
        f"the runs share no policy; say which to compare with --pair A=B, of "
        f"{', '.join(one.policies)} and {', '.join(other.policies)}"
    )


def compare_runs(
    one: str | Path,
    other: str | Path,
    *,
    pairs: Sequence[tuple[str, str]] = (),
    margin: float = DEFAULT_MARGIN,
) -> dict[str, Any]:
    """Compare the policies of two run folders, world by world.

    Parameters
    ----------
    one, other
        Run folders of `evaluate`; differences are those of the second minus the first.
    pairs
        Policies to compare, as `policy_pairs` takes them.
    margin
        Largest difference in exactly-once success that counts as none.

    Returns
    -------
    ``preset``, ``seed``, ``margin`` and ``rows``: of each pair the number of worlds ``n``, the
    share of exactly-once success on either side with its interval, the paired difference, the exact
    McNemar test with Holm's adjustment over the rows, two one-sided tests of equivalence, the
    differences of the other measures, and, where the worlds come from several contexts, a bootstrap
    over whole contexts.

    Raises
    ------
    UserError
        For folders that hold no runs, runs of other worlds, and policies without a common world.
    """
    first, second = open_run(one), open_run(other)
    a, b = first.manifest, second.manifest
    if a.config_sha256 != b.config_sha256 or a.seed != b.seed:
        what = (
            f"seeds {a.seed} and {b.seed}"
            if a.config_sha256 == b.config_sha256
            else f"configurations of {a.preset!r} and {b.preset!r}"
        )
        raise UserError(f"the runs met other worlds ({what}); compare runs of the same worlds")
    rows = [_row(first, second, pair, margin) for pair in policy_pairs(first, second, pairs)]
    adjusted = holm([row["mcnemar"]["p"] for row in rows])
    for row, p in zip(rows, adjusted, strict=True):
        row["mcnemar"]["p_holm"] = float(p)
    return {"preset": a.preset, "seed": a.seed, "margin": margin, "rows": rows}


def _row(first: Run, second: Run, pair: tuple[str, str], margin: float) -> dict[str, Any]:
    one = first.arrays(pair[0], COLUMNS)
    other = second.arrays(pair[1], COLUMNS)
    _, at_one, at_other = np.intersect1d(
        one["world"], other["world"], assume_unique=True, return_indices=True
    )
    if not len(at_one):
        raise UserError(f"{pair[0]} and {pair[1]} share no world")
    left = {name: values[at_one] for name, values in one.items()}
    right = {name: values[at_other] for name, values in other.items()}
    n = len(at_one)
    gained = int(np.sum(right["exactly_once"] & ~left["exactly_once"]))
    lost = int(np.sum(left["exactly_once"] & ~right["exactly_once"]))
    return {
        "a": pair[0],
        "b": pair[1],
        "n": n,
        "exactly_once_a": _told(share_interval(left["exactly_once"])),
        "exactly_once_b": _told(share_interval(right["exactly_once"])),
        "difference": {
            name: _told(paired_difference(right[name], left[name])) for name in (*FLAGS, *MEASURES)
        },
        "mcnemar": {"only_a": lost, "only_b": gained, "p": mcnemar_exact(lost, gained)},
        "equivalence": {"margin": margin, **asdict(tost_paired(gained, lost, n, margin))},
        "by_context": _by_context(left, right),
    }


def _told(estimate: Estimate) -> dict[str, Any]:
    return {"value": estimate.value, "ci": estimate.ci}


def _by_context(
    left: dict[str, npt.NDArray[Any]], right: dict[str, npt.NDArray[Any]]
) -> dict[str, Any] | None:
    """The difference in exactly-once success, with whole contexts resampled."""
    if len(np.unique(left["context"])) < 2:
        return None
    difference = right["exactly_once"].astype(float) - left["exactly_once"].astype(float)
    found = cluster_bootstrap(difference, left["context"], resamples=2000)
    return asdict(found)
