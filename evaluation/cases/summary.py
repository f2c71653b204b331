"""What a run of the contract cases says: a row for each policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from evaluation.cases.data import FAMILIES
from evaluation.cases.grading import SCORES
from evaluation.intervals import wilson_interval
from evaluation.statistics.clusters import intraclass_correlation
from evaluation.statistics.shares import effective_n, wilson
from exactlyonce_env.errors import UserError

__all__ = ["case_row", "case_rows"]

SUMS = ("invalid", "provider_errors", "n_calls", "tokens_in", "tokens_out")


def case_rows(documents: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each policy, in the order in which they come."""
    policies: dict[str, list[Mapping[str, Any]]] = {}
    for document in documents:
        policies.setdefault(document["policy"], []).append(document)
    return [case_row(policy, members) for policy, members in policies.items()]


def case_row(policy: str, documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The row of one policy.

    Parameters
    ----------
    policy
        Its name.
    documents
        All its planned episodes.  Missing ones are counted, and scored nowhere.

    Returns
    -------
    ``n`` episodes that came to an end, of ``planned``; for each of `SCORES` the count that holds,
    its share, its 95 % Wilson interval, and the mean of the families' shares, each family with the
    same weight; the counts by family; and ``warnings``.  Repeats of a case are not independent:
    with them the intervals are taken at the ``effective_n`` (Kish) of ``icc``, the correlation of
    the strict score within a case.  Where all episodes agree it is not defined and taken as 1, so
    that only cases count.
    """
    ended = [document for document in documents if document["status"] == "returned"]
    n = len(ended)
    counts = {name: _count(ended, name) for name in SCORES}
    families: dict[str, dict[str, Any]] = {}
    for family in FAMILIES:
        planned = [document for document in documents if document["family"] == family]
        if planned:
            members = [document for document in planned if document["status"] == "returned"]
            families[family] = {
                "planned": len(planned),
                "n": len(members),
                **{name: _count(members, name) for name in SCORES},
            }
    known = [row for row in families.values() if row["n"]]
    shares = {name: counts[name] / n if n else None for name in SCORES}
    repeats = 1 + max((int(document["repeat"]) for document in documents), default=0)
    icc, size = _correlation(ended) if repeats > 1 else (None, 1.0)
    missing = Counter(str(d["reason"]) for d in documents if d["status"] == "missing")
    return {
        "policy": policy,
        "planned": len(documents),
        "n": n,
        "missing": len(documents) - n,
        "missing_reasons": dict(missing),
        **counts,
        "shares": shares,
        "ci": {name: _interval(counts[name], n, icc, size) for name in SCORES},
        "icc": icc,
        "effective_n": float(n) if icc is None else effective_n(n, icc, size),
        "family_means": {
            name: sum(row[name] / row["n"] for row in known) / len(known) if known else None
            for name in SCORES
        },
        "families": families,
        "repeats": repeats,
        **{name: sum(int(document[name]) for document in documents) for name in SUMS},
        "usd": sum(float(document["usd"]) for document in documents),
        "warnings": _warnings(repeats, n, len(families) - len(known)),
    }


def _count(documents: Sequence[Mapping[str, Any]], name: str) -> int:
    return sum(bool(document["observed"][name]) for document in documents)


def _correlation(ended: Sequence[Mapping[str, Any]]) -> tuple[float | None, float]:
    """Correlation of the strict score within a case, and the mean number of episodes of one."""
    cases = [document["case"] for document in ended]
    size = len(cases) / max(len(set(cases)), 1)
    if size <= 1.0:
        return None, 1.0
    try:
        found = intraclass_correlation([d["observed"]["strict"] for d in ended], cases)
    except UserError:  # one case only, or all the same
        return 1.0, size
    return max(found, 0.0), size


def _interval(count: int, n: int, icc: float | None, size: float) -> list[float | None]:
    """Wilson's interval, with repeats at the effective number of episodes."""
    if not n:
        return [None, None]
    if icc is None:
        return wilson_interval(count, n).ci
    limits, _ = wilson(count, n, icc=icc, mean_cluster_size=size)
    return [limits.low, limits.high]


def _warnings(repeats: int, n: int, empty: int) -> list[str]:
    warnings = []
    if repeats > 1:
        warnings.append(
            f"the {repeats} repeats of a case are not independent of one another; the intervals "
            "count them by their correlation within cases, which few cases estimate roughly"
        )
    if empty and n:
        warnings.append(
            f"{empty} families have no episode that came to an end; the means are of the others"
        )
    return warnings
