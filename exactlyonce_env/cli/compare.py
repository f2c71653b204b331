"""`exactlyonce compare`: two runs on the same worlds, paired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from exactlyonce_env.cli.output import JsonTarget, human_console, write_json
from exactlyonce_env.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def compare(
    run_a: Annotated[
        Path, typer.Argument(metavar="RUN_A", help="Run folder of `evaluate` or `agent`.")
    ],
    run_b: Annotated[Path, typer.Argument(metavar="RUN_B", help="Another, of the same worlds.")],
    pair: Annotated[
        list[str] | None,
        typer.Option(
            "--pair", metavar="A=B", help="A policy of each run; may be repeated; default by name."
        ),
    ] = None,
    margin: Annotated[
        float,
        typer.Option("--margin", metavar="D", help="Difference that counts as none, in shares."),
    ] = 0.02,
    json_target: JsonTarget = None,
) -> None:
    """Compare two runs world by world; every difference is that of RUN_B minus RUN_A.

    Policies of the same name are compared; where each run has one only, these; else those that
    --pair names. Refused where the runs met other worlds; runs of `evaluate sandbox` and `agent`
    where they met other tasks, writes, instances, faults, contracts or conditions. What the data do
    not allow is told with its reason.
    """
    from evaluation.compare import compare_runs

    found = compare_runs(run_a, run_b, pairs=[_pair(text) for text in pair or ()], margin=margin)
    _print(human_console(json_target), found)
    if json_target is not None:
        write_json(found, json_target)


def _pair(text: str) -> tuple[str, str]:
    one, equals, other = text.partition("=")
    if not (one and equals and other):
        raise UserError(f"--pair {text!r} is not A=B, such as wait:300=guard")
    return one, other


def _print(console: Console, found: Mapping[str, Any]) -> None:
    if console.quiet:
        return
    rows = found["rows"]
    sandbox = found["preset"] == "sandbox"
    title = "sandbox" if sandbox else f"{found['preset']}, seed {found['seed']}"
    if len(rows) > 1:
        _print_overview(console, f"{title}: B minus A, exactly-once success", rows)
    for row in rows:
        things = "episodes" if sandbox else "worlds"
        counted = f"{row['n']:,} of {row['planned']:,}" if row["incomplete"] else f"{row['n']:,}"
        name = f"{title}: {row['b']} (B) minus {row['a']} (A), {counted} {things}"
        _print_measures(console, name, row)
        _print_tests(console, row)
    _print_shares(console, rows)
    _print_first_actions(console, rows)


def _table(title: str, caption: str, names: Sequence[str], numbers: Sequence[str]) -> Table:
    from rich.table import Table

    table = Table(
        title=title or None, caption=caption, title_justify="left", caption_justify="left"
    )
    for heading in names:
        table.add_column(heading)
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table


def _print_overview(console: Console, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    table = _table(
        title,
        "points; 95 % intervals; p of McNemar's exact test with Holm's adjustment over the rows",
        ("A", "B"),
        ("n", "A %", "B %", "B - A", "p (Holm)"),
    )
    for row in rows:
        found = row["difference"]["exactly_once"]
        table.add_row(
            row["a"],
            row["b"],
            f"{row['n']:,}",
            f"{100 * found['a']:.1f}",
            f"{100 * found['b']:.1f}",
            _with_limits(found["value"], found["ci"], 100.0, ".1f"),
            _p(row["mcnemar"]["p_holm"]),
        )
    console.print(table)


MEASURES = {
    "exactly_once": ("exactly once %", 100.0, ".1f"),
    "unresolved": ("unresolved %", 100.0, ".1f"),
    "overclaim": ("overclaimed %", 100.0, ".1f"),
    "duplicates": ("duplicates", 1.0, ".3f"),
    "false_retry_permissions": ("not permitted", 1.0, ".3f"),
    "elapsed_s": ("time, s", 1.0, ",.0f"),
    "steps": ("steps", 1.0, ".2f"),
    "reward": ("reward", 1.0, ".3f"),
}


def _print_measures(console: Console, title: str, row: Mapping[str, Any]) -> None:
    _say(console, title)
    table = _table("", "means; paired differences with 95 % intervals", ("",), ("A", "B", "B - A"))
    for name, (words, scale, form) in MEASURES.items():
        found = row["difference"].get(name)
        if found is None:
            continue
        table.add_row(
            words,
            f"{scale * found['a']:{form}}",
            f"{scale * found['b']:{form}}",
            _with_limits(found["value"], found["ci"], scale, form),
        )
    console.print(table)


def _print_tests(console: Console, row: Mapping[str, Any]) -> None:
    from rich.table import Table

    table = Table(
        "",
        "B minus A in points, effects in log odds",
        title="Exactly-once success, B against A",
        title_justify="left",
    )
    for name, found, tell in (
        ("McNemar, exact", row["mcnemar"], _tell_mcnemar),
        ("equivalence (TOST)", row["equivalence"], _tell_equivalence),
        ("stratified, exact", row["stratified"], _tell_strata),
        ("clusters resampled", row["bootstrap"], _tell_bootstrap),
        ("GEE", row["gee"], _tell_gee),
        ("mixed model", row["mixed"], _tell_mixed),
        ("missing", row if row["incomplete"] else None, _tell_missing),
        ("without a fault", row.get("nominal"), _tell_nominal),
        ("A by clusters", row["exactly_once_a"]["clustered"], _tell_share),
        ("B by clusters", row["exactly_once_b"]["clustered"], _tell_share),
    ):
        if found is None:
            continue
        told = [f"not defined: {found['why']}"] if "why" in found else tell(found)
        if "p" in found:
            told.append(f"p {_p(found['p'])}")
        if "p_holm" in found:
            told.append(f"Holm {_p(found['p_holm'])}")
        table.add_row(name, "; ".join(told))
    if row.get("not_triggered"):
        table.add_row("fault not met", f"in {row['not_triggered']} pairs, which do not count")
    console.print(table)


def _tell_mcnemar(found: Mapping[str, Any]) -> list[str]:
    return [f"only A {found['only_a']:,}, only B {found['only_b']:,}"]


def _tell_equivalence(found: Mapping[str, Any]) -> list[str]:
    limits = _with_limits(found["difference"], (found["low"], found["high"]), 100.0, ".1f")
    verdict = "within" if found["p"] < 0.05 else "not shown to be within"
    return [f"{limits} at 90 %", f"{verdict} {100 * found['margin']:g} points"]


def _tell_strata(found: Mapping[str, Any]) -> list[str]:
    return [f"{_number_of(found['strata'], found['by'])}, arms as if independent"]


def _tell_bootstrap(found: Mapping[str, Any]) -> list[str]:
    limits = _with_limits(found["value"], (found["low"], found["high"]), 100.0, ".1f")
    told = [limits, _number_of(found["clusters"], found["by"])]
    return [*told, found["caveat"]] if found["caveat"] else told


def _number_of(n: int, by: str) -> str:
    return f"{n:,} {by}" if n == 1 else f"{n:,} {by}s"


def _tell_gee(found: Mapping[str, Any]) -> list[str]:
    return [
        _effect(found),
        f"{_number_of(found['clusters'], found['by'])}",
        f"errors of Mancl and DeRouen, t({found['clusters'] - 1:,})",
        f"p {_p(found['effects'][-1]['p'])}",
    ]


def _tell_mixed(found: Mapping[str, Any]) -> list[str]:
    spread = ", ".join(f"{name} {value:.2f}" for name, value in found["sd"].items())
    told = [f"{_effect(found)}, a posterior", f"deviations of {spread}"]
    return [*told, found["note"]] if found["note"] else told


def _effect(found: Mapping[str, Any]) -> str:
    effect = found["effects"][-1]
    return _with_limits(effect["value"], (effect["low"], effect["high"]), 1.0, ".2f")


def _tell_missing(row: Mapping[str, Any]) -> list[str]:
    found = row["envelope"]
    counts = f"{row['missing_a']:,} of A and {row['missing_b']:,} of B"
    if "why" in found:
        return [counts, found["why"]]
    low, high = (100 * value for value in found["difference"])
    outer = ", ".join(f"{100 * value:+.1f}" for value in found["ci"])
    least, most = map(_p, found["mcnemar_p"])
    return [
        counts,
        f"over every assignment {low:+.1f} to {high:+.1f} \\[{outer}]",
        f"p of McNemar {least} to {most}",
    ]


def _tell_nominal(found: Mapping[str, Any]) -> list[str]:
    a, b = (100 * found[f"exactly_once_{side}"]["value"] for side in "ab")
    difference = found["difference"]
    limits = _with_limits(difference["value"], difference["ci"], 100.0, ".1f")
    shares = f"A {a:.1f} %, B {b:.1f} % of {found['n']:,}"
    return [limits, shares, f"p {_p(found['mcnemar']['p'])}"]


def _tell_share(found: Mapping[str, Any]) -> list[str]:
    low, high = (100 * limit for limit in found["ci"])
    return [
        f"{100 * found['value']:.1f} % \\[{low:.1f}, {high:.1f}]",
        f"Wilson at Kish's n of {found['effective_n']:,.0f}, "
        f"correlation within a {found['by']} {found['icc']:.2f}",
    ]


PARTS = {
    "pooled": "all faults",
    "resolved": "a read-back resolves",
    "unresolved": "it cannot",
}


def _print_shares(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    factors = list(
        dict.fromkeys(
            name
            for row in rows
            for part in row["shapley"].values()
            for name in part.get("shares", ())
        )
    )
    table = _table(
        "What explains exactly-once success: shares of McFadden's pseudo-R squared",
        "Shapley shares of a logistic model without interactions; they sum to the whole",
        ("A, B", "faults") if len(rows) > 1 else ("faults",),
        ("episodes", *factors, "all"),
    )
    whys: list[str] = []
    for row in rows:
        for name, words in PARTS.items():
            part = row["shapley"][name]
            if "why" in part:
                whys += _whys(row, {f"shares, {words}": part})
                continue
            shares = [part["shares"].get(factor) for factor in factors]
            table.add_row(
                *([f"{row['a']}, {row['b']}"] if len(rows) > 1 else []),
                words,
                f"{part['n']:,}",
                *("" if share is None else f"{share:.3f}" for share in shares),
                f"{part['pseudo_r2']:.3f}",
            )
            if part["left_out"]:
                left = ", ".join(f"{k} ({why})" for k, why in part["left_out"].items())
                whys.append(f"{_pair_name(row)}, shares, {words}: without {left}")
    if table.row_count:
        console.print(table)
    for why in whys:
        _say(console, why)


def _print_first_actions(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    table = _table(
        "First actions in worlds that look alike",
        "across: equal first actions, of the pairs of matched worlds; within: of the pairs of "
        "independent runs of one world; distance: largest total variation between two faults, with "
        "the smallest p",
        ("policy", "group"),
        ("across", "within", "distance", "p (Holm)"),
    )
    whys = []
    shown = set()
    for row in rows:
        for side in "ab":
            found = row["first_actions"]
            found = found if "why" in found else found[side]
            if "why" in found:
                whys += _whys(row, {f"first actions of {side.upper()}": found})
                continue
            if (side, row[side]) in shown:
                continue
            shown.add((side, row[side]))
            for group, agreed in found["agreement"].items():
                if "why" in agreed:
                    whys.append(f"{row[side]}, {group}: {agreed['why']}")
                    continue
                tests = [test for test in found["tests"] if test["group"] == group]
                within = agreed["within"]
                table.add_row(
                    f"{side.upper()}: {row[side]}",
                    group.replace("_", " "),
                    f"{100 * agreed['across']:.1f} % of {agreed['pairs_across']:,}",
                    "" if within is None else f"{100 * within:.1f} % of {agreed['pairs_within']:,}",
                    f"{max(test['distance'] for test in tests):.2f}",
                    f"{min(test['p_holm'] for test in tests):.3g}",
                )
                if within is None:
                    whys.append(f"{row[side]}, {group}: {agreed['within_why']}")
    if table.row_count:
        console.print(table)
    for why in dict.fromkeys(whys):
        _say(console, why)


def _whys(row: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The reasons of what is not defined."""
    return [
        f"{_pair_name(row)}, {name}: {part['why']}" for name, part in parts.items() if "why" in part
    ]


def _pair_name(row: Mapping[str, Any]) -> str:
    return str(row["a"]) if row["a"] == row["b"] else f"{row['a']} and {row['b']}"


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def _p(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _with_limits(value: float, limits: Sequence[float | None], scale: float, form: str) -> str:
    low, high = limits
    text = f"{scale * value:+{form}}"
    if low is None or high is None:
        return text
    return f"{text} \\[{scale * low:+{form}}, {scale * high:+{form}}]"
