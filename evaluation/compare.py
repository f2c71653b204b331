"""Two runs on the same worlds, side by side: paired differences with everything that bears on them.

Only worlds that both runs hold count, and only runs of one configuration and one seed are compared:
anything else would compare worlds, not policies.  Of the sandbox's tasks both runs must hold the
same cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from evaluation.analyses import STAGES, Matched, analyses, clustered_share, compared, tested, told
from evaluation.compare_sandbox import SandboxRun, kind_of, open_sandbox_run, paired_row
from evaluation.first_decisions import decision_equivalence
from evaluation.intervals import share_interval
from evaluation.paired import holm
from evaluation.paired_counts import PairCounts, accounted, count_pairs
from evaluation.statistics.checks import or_why
from evaluation.store import Run, open_run
from exactlyonce_env.errors import UserError

__all__ = ["DEFAULT_MARGIN", "compare_runs", "policy_pairs"]

DEFAULT_MARGIN = 0.02
"""Largest difference in exactly-once success that counts as none, unless another is declared."""

MEASURES = ("reward", "elapsed_s", "duplicates", "false_retry_permissions", "steps")
"""Numbers that are compared besides exactly-once success, B minus A."""

FLAGS = ("exactly_once", "unresolved", "overclaim")
COLUMNS = ("world", "context", "mode", *FLAGS, *MEASURES)


def policy_pairs(
    one: Run | SandboxRun, other: Run | SandboxRun, named: Sequence[tuple[str, str]] = ()
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
    ``preset``, ``seed``, ``margin`` and ``rows``: of each pair the number of worlds or episodes
    ``n``, what is missing and what it may have changed (`evaluation.paired_counts.envelope`), the
    share of exactly-once success on either side with its intervals, the paired differences, the
    exact McNemar test with Holm's adjustment over the rows, two one-sided tests of equivalence, and
    everything of `evaluation.analyses.analyses`, with contexts or tasks as clusters; the first
    actions of either side in worlds that look alike, as
    `evaluation.first_actions.matched_equivalence`.  Of whole tasks also success without a fault.

    Raises
    ------
    UserError
        For folders that hold no runs, runs of other worlds, and policies without a common world.
    """
    kinds = [kind_of(open_run(folder).manifest) for folder in (one, other)]
    if "preset" not in kinds:
        preset, seed, rows = "sandbox", 0, _sandbox_rows(one, other, pairs, margin)
    elif kinds == ["preset", "preset"]:
        first, second = open_run(one), open_run(other)
        _refuse_other_worlds(first, second)
        preset, seed = first.manifest.preset, first.manifest.seed
        rows = [_row(first, second, pair, margin) for pair in policy_pairs(first, second, pairs)]
    else:
        raise UserError(
            "one run is of the worlds of a preset, the other of the sandbox's tasks; compare two "
            "of one kind"
        )
    for tests in ([row["mcnemar"] for row in rows], [row["stratified"] for row in rows]):
        known = [test for test in tests if "p" in test]
        for test, p in zip(
            known, holm([test["p"] for test in known]) if known else (), strict=True
        ):
            test["p_holm"] = float(p)
    return {"preset": preset, "seed": seed, "margin": margin, "rows": rows}


def _sandbox_rows(
    one: str | Path, other: str | Path, pairs: Sequence[tuple[str, str]], margin: float
) -> list[dict[str, Any]]:
    first, second = open_sandbox_run(one), open_sandbox_run(other)
    return [paired_row(first, second, pair, margin) for pair in policy_pairs(first, second, pairs)]


def _refuse_other_worlds(first: Run, second: Run) -> None:
    a, b = first.manifest, second.manifest
    if a.config_sha256 != b.config_sha256 or a.seed != b.seed:
        what = (
            f"seeds {a.seed} and {b.seed}"
            if a.config_sha256 == b.config_sha256
            else f"configurations of {a.preset!r} and {b.preset!r}"
        )
        raise UserError(f"the runs met other worlds ({what}); compare runs of the same worlds")


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
    counts = _counts(first, second, one, other)
    return {
        "a": pair[0],
        "b": pair[1],
        "n": len(at_one),
        **accounted(counts),
        "exactly_once_a": _share(left),
        "exactly_once_b": _share(right),
        "difference": {name: compared(left[name], right[name]) for name in (*FLAGS, *MEASURES)},
        **tested(counts, margin),
        **analyses(_matched(left, right)),
        "first_actions": {
            side: or_why(lambda r=run, p=policy: decision_equivalence(r, p, left["world"].tolist()))  # type: ignore[misc]
            for side, run, policy in (("a", first, pair[0]), ("b", second, pair[1]))
        },
    }


def _counts(
    first: Run, second: Run, one: Mapping[str, npt.NDArray[Any]], other: Mapping[str, Any]
) -> PairCounts:
    """Pairs of the worlds that both runs planned, by how they went."""
    sides = [dict(zip(s["world"].tolist(), s["exactly_once"], strict=True)) for s in (one, other)]
    spans = [
        {world for span in run.manifest.worlds for world in range(*span)} for run in (first, second)
    ]
    worlds = sorted(spans[0] & spans[1])
    return count_pairs((sides[0].get(world), sides[1].get(world)) for world in worlds)


def _share(columns: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
    success, contexts = columns["exactly_once"], columns["context"]
    return told(share_interval(success)) | {
        "clustered": clustered_share(success, contexts, "context")
    }


def _matched(left: dict[str, npt.NDArray[Any]], right: dict[str, npt.NDArray[Any]]) -> Matched:
    """Worlds as episodes.

    Contexts are their tasks and contracts; where there are fewer than three, each world is a
    cluster of its own, and faults are the strata.
    """
    contexts = left["context"]
    few = len(np.unique(contexts)) < 3
    return Matched(
        a=left["exactly_once"],
        b=right["exactly_once"],
        task=contexts,
        instance=left["world"],
        stage=np.array([STAGES[str(mode)] for mode in left["mode"]]),
        contract=contexts,
        harness=np.full(len(contexts), "none"),
        cluster="instance" if few else "task",
        stratum="stage" if few else "task",
        names={"task": "context", "instance": "world", "stage": "fault stage"},
    )
