"""`exactlyonce compare`: two runs on the same worlds, paired."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from exactlyonce_env.cli.output import JsonTarget, human_console, write_json
from exactlyonce_env.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console


def compare(
    run_a: Annotated[Path, typer.Argument(metavar="RUN_A", help="Run folder of `evaluate`.")],
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
    --pair names. Refused where the runs met other worlds.
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
    from rich.table import Table

    table = Table(
        title=f"{found['preset']}, seed {found['seed']}: B minus A on the same worlds",
        caption="95 % intervals; McNemar exact, Holm over the rows; equivalent: two one-sided "
        f"tests within {100 * found['margin']:g} points at 5 %",
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("A", "B"):
        table.add_column(heading, no_wrap=True)
    for heading in ("worlds", "A exactly once %", "B %", "difference", "only A, only B"):
        table.add_column(heading, justify="right")
    for heading in ("p (Holm)", "equivalent", "duplicates", "mean time", "reward"):
        table.add_column(heading, justify="right")
    for row in found["rows"]:
        test, same = row["mcnemar"], row["equivalence"]
        table.add_row(
            row["a"],
            row["b"],
            f"{row['n']:,}",
            f"{100 * row['exactly_once_a']['value']:.1f}",
            f"{100 * row['exactly_once_b']['value']:.1f}",
            _difference(row, "exactly_once", 100.0, ".1f"),
            f"{test['only_a']}, {test['only_b']}",
            f"{test['p_holm']:.3g}",
            f"{'yes' if same['p'] < 0.05 else 'no'} ({same['p']:.3g})",
            _difference(row, "duplicates", 1.0, ".3f"),
            _difference(row, "elapsed_s", 1.0, ",.0f") + " s",
            _difference(row, "reward", 1.0, ".3f"),
        )
    console.print(table)
    for row in found["rows"]:
        clustered = row["by_context"]
        if clustered is not None:
            caveat = f" ({clustered['caveat']})" if clustered["caveat"] else ""
            console.print(
                f"{row['a']} and {row['b']}, {clustered['clusters']} contexts resampled: "
                f"difference {100 * clustered['value']:+.1f} points "
                f"[{100 * clustered['low']:+.1f}, {100 * clustered['high']:+.1f}]{caveat}",
                markup=False,
                soft_wrap=True,
            )


def _difference(row: Mapping[str, Any], name: str, scale: float, form: str) -> str:
    found = row["difference"][name]
    low, high = found["ci"]
    text = f"{scale * found['value']:+{form}}"
    if low is None:
        return text
    return f"{text} [dim]{scale * low:+{form}}..{scale * high:+{form}}[/dim]"
