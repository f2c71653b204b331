"""Methods of `exactlyonce stats` that take lists of responses, scores or actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from exactlyonce_env.errors import UserError

__all__ = ["LIST_METHODS"]

Fields = Mapping[str, Any]

MAX_ENTRIES = 100_000
"""Entries of a list."""


def _listed(entry: Fields, name: str) -> list[Any]:
    values = entry[name]
    if not isinstance(values, list):
        raise UserError(f"{name} must be a list, not {type(values).__name__}")
    if len(values) > MAX_ENTRIES:
        raise UserError(f"{name} holds {len(values):,} entries, more than {MAX_ENTRIES:,}")
    return values


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{name} holds {value!r}, which is no number")
    return float(value)


def _numbers(entry: Fields, name: str) -> list[float]:
    return [_number(value, name) for value in _listed(entry, name)]


def _labels(values: Any, name: str) -> list[str]:
    if not isinstance(values, list):
        raise UserError(f"{name} must be a list of labels")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise UserError(f"{name} holds {value!r}; a label is text or a whole number")
    return [str(value) for value in values]


def _flags(entry: Fields, name: str) -> list[int]:
    for value in _listed(entry, name):
        if not (isinstance(value, bool) or (isinstance(value, int) and value in (0, 1))):
            raise UserError(f"{name} holds {value!r}; it takes true and false, or 1 and 0")
    return [int(value) for value in entry[name]]


def _matrix(entry: Fields, name: str) -> list[list[float]]:
    rows = _listed(entry, name)
    if not rows or not all(isinstance(row, list) and row for row in rows):
        raise UserError(f"{name} must be a list of lists, a list of the tasks' scores for each run")
    if len({len(row) for row in rows}) > 1:
        raise UserError(f"{name} needs a score of every task for every run")
    return [[_number(value, name) for value in row] for row in rows]


def _options(entry: Fields, *names: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        if name not in entry:
            continue
        value = entry[name]
        if name == "confidence" or name == "target":
            found[name] = _number(value, name)
        elif isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise UserError(f"{name} must be a whole number from 0 on, not {value!r}")
        else:
            found[name] = value
    return found


def _factors(entry: Fields) -> dict[str, list[str]]:
    factors = entry["factors"]
    if not isinstance(factors, dict) or not factors:
        raise UserError("factors must be an object with a list of levels for each factor")
    return {name: _labels(levels, f"factor {name}") for name, levels in factors.items()}


def _icc(entry: Fields) -> Any:
    from evaluation.statistics.clusters import intraclass_correlation

    labels = _labels(_listed(entry, "clusters"), "clusters")
    return {"icc": intraclass_correlation(_numbers(entry, "values"), labels)}


def _bootstrap(entry: Fields) -> Any:
    from evaluation.statistics.clusters import cluster_bootstrap

    labels = _labels(_listed(entry, "clusters"), "clusters")
    options = _options(entry, "resamples", "confidence", "seed")
    return asdict(cluster_bootstrap(_numbers(entry, "values"), labels, **options))


def _gee(entry: Fields) -> Any:
    from evaluation.statistics.models import gee

    clusters = _labels(_listed(entry, "clusters"), "clusters")
    return {
        "effects": [asdict(e) for e in gee(_flags(entry, "success"), _factors(entry), clusters)]
    }


def _mixed(entry: Fields) -> Any:
    from evaluation.statistics.models import mixed_model

    tasks, instances = (_labels(_listed(entry, name), name) for name in ("tasks", "instances"))
    return asdict(mixed_model(_flags(entry, "success"), _factors(entry), tasks, instances))


def _shapley(entry: Fields) -> Any:
    from evaluation.statistics.models import shapley_shares

    shares = shapley_shares(_flags(entry, "success"), _factors(entry))
    return {"shares": shares, "pseudo_r2": sum(shares.values())}


def _agreement(entry: Fields) -> Any:
    from evaluation.statistics.invariance import first_action_agreement

    groups = _listed(entry, "runs")
    for group in groups:
        if not isinstance(group, list) or not all(isinstance(world, list) for world in group):
            raise UserError("runs must hold groups of worlds, each a list of first actions")
    made = [[_labels(world, "runs") for world in group] for group in groups]
    return asdict(first_action_agreement(made))


def _variation(entry: Fields) -> Any:
    from evaluation.statistics.invariance import total_variation_test

    first, second = (_labels(_listed(entry, name), name) for name in ("first", "second"))
    return asdict(total_variation_test(first, second, **_options(entry, "permutations", "seed")))


def _seeds(entry: Fields) -> Any:
    from evaluation.statistics.seeds import seed_measures

    options = _options(entry, "target", "resamples", "confidence", "seed")
    found = seed_measures(_matrix(entry, "scores"), **options)
    return {name: asdict(estimate) for name, estimate in found.items()}


def _profile(entry: Fields) -> Any:
    from evaluation.statistics.seeds import performance_profile

    options = _options(entry, "resamples", "confidence", "seed")
    scores, thresholds = _matrix(entry, "scores"), _numbers(entry, "thresholds")
    return asdict(performance_profile(scores, thresholds, **options))


def _improvement(entry: Fields) -> Any:
    from evaluation.statistics.seeds import probability_of_improvement

    options = _options(entry, "resamples", "confidence", "seed")
    return asdict(probability_of_improvement(_matrix(entry, "x"), _matrix(entry, "y"), **options))


DRAWN = ("resamples", "confidence", "seed")
LIST_METHODS: dict[str, tuple[Callable[[Fields], Any], tuple[str, ...], tuple[str, ...]]] = {
    "icc": (_icc, ("values", "clusters"), ()),
    "cluster-bootstrap": (_bootstrap, ("values", "clusters"), DRAWN),
    "gee": (_gee, ("success", "factors", "clusters"), ()),
    "mixed-model": (_mixed, ("success", "factors", "tasks", "instances"), ()),
    "shapley": (_shapley, ("success", "factors"), ()),
    "first-actions": (_agreement, ("runs",), ()),
    "total-variation": (_variation, ("first", "second"), ("permutations", "seed")),
    "seeds": (_seeds, ("scores",), ("target", *DRAWN)),
    "performance-profile": (_profile, ("scores", "thresholds"), DRAWN),
    "improvement": (_improvement, ("x", "y"), DRAWN),
}
"""Each method with the fields it needs and those it may have."""
