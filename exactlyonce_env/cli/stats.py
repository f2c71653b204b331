"""`exactlyonce stats` and `plan`: the project's statistics, one method at a time."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from exactlyonce_env.cli.output import JsonTarget, human_console, to_jsonable, write_json
from exactlyonce_env.cli.stats_lists import LIST_METHODS
from exactlyonce_env.errors import UserError, unknown

Fields = Mapping[str, Any]

LONGEST = 300
"""Characters of a message."""


def stats(
    method: Annotated[
        str,
        typer.Argument(
            metavar="METHOD",
            help="One of those below.",
        ),
    ],
    source: Annotated[
        str, typer.Option("--input", metavar="FILE|-", help="JSON to read; - is stdin.")
    ] = "-",
    json_target: JsonTarget = None,
) -> None:
    """Compute one statistic from counts: JSON in, JSON out, a list in gives a list out.

    \b
    clopper-pearson    {count, n, confidence?} -> {low, high}
    wilson             {count, n, icc?, mean_cluster_size?} -> {low, high, effective_n}
    newcombe           {count1, n1, missing1?, count2, n2, missing2?}, arm 1 minus arm 2
    mover-interaction  {coded: {unlabeled, labeled}, canonical: {...}}, each {count, n,
                       missing?}: (labeled - unlabeled) of coded minus that of canonical
    stratified-exact   {strata: [{count1, n1, count2, n2}]} -> {p}
    mcnemar            {b, c} -> {p}
    holm               {p: [...]} -> {adjusted}
    kendall-tau-b      {x, y, missing_x?, missing_y?} -> {low, high}
    tost-paired        {b, c, n, margin} -> {difference, p, low, high}

    \b
    icc                {values, clusters}: correlation of the values of one cluster
    cluster-bootstrap  {values, clusters, resamples?, seed?}: mean, whole clusters drawn
    gee                {success, factors: {name: levels}, clusters} -> {effects}
    mixed-model        {success, factors, tasks, instances} -> {effects, sd}
    shapley            {success, factors} -> {shares, pseudo_r2}
    first-actions      {runs: [[[...]]]}: groups of worlds that look alike, each of runs
    total-variation    {first, second, permutations?, seed?} -> {distance, p, pairs}
    seeds              {scores: [[...]], target?}, for each run the tasks' scores:
                       interquartile mean, mean, median, optimality gap
    performance-profile  {scores, thresholds} -> {shares, low, high}
    improvement        {x: [[...]], y: [[...]]}: how likely a run of x beats one of y

    Shares, not percent. n is what was planned, missing ones included; with any missing the result
    is an envelope over every way in which they may have gone.
    """  # noqa: D301  (a paragraph after \b keeps its lines)
    if method not in METHODS:
        raise unknown("method", method, tuple(METHODS))
    given = _read(source)
    entries = given if isinstance(given, list) else [given]
    found = []
    for number, entry in enumerate(entries, 1):
        try:
            found.append(_computed(method, entry))
        except UserError as error:
            place = f"entry {number}: " if isinstance(given, list) else ""
            raise UserError(f"{method}: {place}{_short(str(error))}") from None
    result = to_jsonable(found if isinstance(given, list) else found[0])
    human_console(json_target).print(json.dumps(result, indent=2), markup=False, soft_wrap=True)
    if json_target is not None:
        write_json(result, json_target)


def _short(text: str) -> str:
    """A message without the middle of a long value that it quotes."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 60]} ... {text[-55:]}"


def _read(source: str) -> Any:
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        where = "stdin" if source == "-" else source
        raise UserError(f"--input: {where} is not JSON: {error}") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _computed(method: str, entry: Any) -> Any:
    function, wanted, optional = METHODS[method]
    if not isinstance(entry, dict):
        raise UserError(f"the input must be an object with {', '.join(wanted)}")
    _check_fields(entry, wanted, optional)
    try:
        return function(entry)
    except (TypeError, OverflowError, ZeroDivisionError) as error:
        raise UserError(f"the input does not fit: {error}") from None


def _check_fields(entry: Fields, wanted: tuple[str, ...], optional: tuple[str, ...]) -> None:
    known = (*wanted, *optional)
    for name in wanted:
        if name not in entry:
            raise UserError(f"{name} is missing; the fields are {', '.join(known)}")
    for name in entry:
        if name not in known:
            raise unknown("field", name, known)


def _number(entry: Fields, name: str, default: float | None = None) -> float:
    value = entry.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{name} must be a number, not {value!r}")
    return float(value)


def _numbers(entry: Fields, name: str) -> list[float]:
    values = entry.get(name)
    if not isinstance(values, list):
        raise UserError(f"{name} must be a list of numbers")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"{name} holds {value!r}, which is no number")
    return values


def _clopper_pearson(entry: Fields) -> Any:
    from evaluation.statistics.shares import CONFIDENCE, clopper_pearson

    return asdict(
        clopper_pearson(entry["count"], entry["n"], _number(entry, "confidence", CONFIDENCE))
    )


def _wilson(entry: Fields) -> Any:
    from evaluation.statistics.shares import CONFIDENCE, wilson

    clustered = {
        name: _number(entry, name) for name in ("icc", "mean_cluster_size") if name in entry
    }
    confidence = _number(entry, "confidence", CONFIDENCE)
    found, size = wilson(entry["count"], entry["n"], confidence=confidence, **clustered)
    return {**asdict(found), "effective_n": size}


def _newcombe(entry: Fields) -> Any:
    from evaluation.statistics.shares import CONFIDENCE, Arm, newcombe

    one, other = (
        Arm(entry[f"count{k}"], entry[f"n{k}"], entry.get(f"missing{k}", 0)) for k in (1, 2)
    )
    found = newcombe(one, other, _number(entry, "confidence", CONFIDENCE))
    return _with_range(found)


def _with_range(found: Any) -> dict[str, Any]:
    """The outermost differences as one field, and the rest as it is."""
    fields = asdict(found)
    return {"difference": [fields.pop("smallest"), fields.pop("largest")], **fields}


def _mover(entry: Fields) -> Any:
    from evaluation.statistics.shares import CONFIDENCE, Arm, mover_interaction

    sides = []
    for side in ("coded", "canonical"):
        arms = entry[side]
        if not isinstance(arms, dict):
            raise UserError(f"{side} must be an object with unlabeled and labeled")
        _check_fields(arms, ("unlabeled", "labeled"), ())
        made = {}
        for name, arm in arms.items():
            if not isinstance(arm, dict):
                raise UserError(f"{side}.{name} must be an object with count and n")
            _check_fields(arm, ("count", "n"), ("missing",))
            made[name] = Arm(arm["count"], arm["n"], arm.get("missing", 0))
        sides.append(made)
    coded, canonical = sides
    confidence = _number(entry, "confidence", CONFIDENCE)
    return _with_range(mover_interaction(coded, canonical, confidence))


def _stratified(entry: Fields) -> Any:
    from evaluation.statistics.exact_tests import Stratum, stratified_exact

    names = ("count1", "n1", "count2", "n2")
    strata = entry["strata"]
    if not isinstance(strata, list):
        raise UserError("strata must be a list of objects")
    for stratum in strata:
        if not isinstance(stratum, dict):
            raise UserError(f"a stratum must be an object with {', '.join(names)}")
        _check_fields(stratum, names, ())
    return {"p": stratified_exact([Stratum(**stratum) for stratum in strata])}


def _mcnemar(entry: Fields) -> Any:
    from evaluation.paired import mcnemar_exact

    for name in ("b", "c"):
        if isinstance(entry[name], bool) or not isinstance(entry[name], int):
            raise UserError(f"{name} must be a whole number from 0 on, not {entry[name]!r}")
    return {"p": mcnemar_exact(entry["b"], entry["c"])}


def _holm(entry: Fields) -> Any:
    from evaluation.paired import holm

    return {"adjusted": holm(_numbers(entry, "p")).tolist()}


def _kendall(entry: Fields) -> Any:
    from evaluation.statistics.ranks import kendall_tau_b

    missing: list[Any] = [
        _numbers(entry, name) if name in entry else [] for name in ("missing_x", "missing_y")
    ]
    found = asdict(kendall_tau_b(_numbers(entry, "x"), _numbers(entry, "y"), *missing))
    if not found["undefined"]:
        del found["undefined"]
    return found


def _tost(entry: Fields) -> Any:
    from evaluation.statistics.exact_tests import tost_paired

    return asdict(tost_paired(entry["b"], entry["c"], entry["n"], _number(entry, "margin")))


METHODS: dict[str, tuple[Callable[[Fields], Any], tuple[str, ...], tuple[str, ...]]] = {
    "clopper-pearson": (_clopper_pearson, ("count", "n"), ("confidence",)),
    "wilson": (_wilson, ("count", "n"), ("icc", "mean_cluster_size", "confidence")),
    "newcombe": (
        _newcombe,
        ("count1", "n1", "count2", "n2"),
        ("missing1", "missing2", "confidence"),
    ),
    "mover-interaction": (_mover, ("coded", "canonical"), ("confidence",)),
    "stratified-exact": (_stratified, ("strata",), ()),
    "mcnemar": (_mcnemar, ("b", "c"), ()),
    "holm": (_holm, ("p",), ()),
    "kendall-tau-b": (_kendall, ("x", "y"), ("missing_x", "missing_y")),
    "tost-paired": (_tost, ("b", "c", "n", "margin"), ()),
    **LIST_METHODS,
}
"""Each method with the fields it needs and those it may have."""


def plan(
    baseline: Annotated[
        float, typer.Option("--baseline", metavar="P", help="Share of the baseline, 0 to 1.")
    ],
    detect: Annotated[
        float, typer.Option("--detect", metavar="D", help="Difference to be found, -1 to 1.")
    ],
    pairs: Annotated[
        int | None,
        typer.Option("--pairs", metavar="N", help="Say the power of so many worlds instead."),
    ] = None,
    discordance: Annotated[
        float | None,
        typer.Option(
            "--discordance",
            metavar="S",
            help="Share of worlds in which the two differ; default as if they were independent.",
        ),
    ] = None,
    power: Annotated[float, typer.Option("--power", metavar="P", help="Power wanted.")] = 0.8,
    alpha: Annotated[float, typer.Option("--alpha", metavar="A", help="Two-sided level.")] = 0.05,
    json_target: JsonTarget = None,
) -> None:
    """Say how many worlds a paired comparison needs.

    Both policies meet the same worlds, so the exact McNemar test decides, and what counts is how
    often the two come out differently (--discordance).
    """
    from evaluation.statistics.power import plan_pairs, power_of

    if pairs is None:
        found = plan_pairs(baseline, detect, discordance, power=power, alpha=alpha)
    else:
        found = power_of(baseline, detect, discordance, pairs=pairs, alpha=alpha)
    human_console(json_target).print(
        f"{found.pairs:,} worlds find a difference of {detect:+g} from {baseline:g} with power "
        f"{found.power:.3f} at level {alpha:g}, if the two differ in {found.discordance:.1%} of "
        "the worlds",
        soft_wrap=True,
    )
    if json_target is not None:
        write_json(found, json_target)
