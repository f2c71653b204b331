"""`exactlyonce probe-report`: counts, intervals, tests and ranks of recorded responses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from exactlyonce_env.cli.output import JsonTarget, human_console, write_json

if TYPE_CHECKING:
    from rich.console import Console


def probe_report(
    responses: Annotated[
        Path,
        typer.Argument(
            metavar="RESPONSES.jsonl", help="Responses that `probe --out` wrote, or your own."
        ),
    ],
    json_target: JsonTarget = None,
) -> None:
    """Recompute counts, intervals, tests and ranks from recorded responses.

    One JSON object a line: policy, status (valid, invalid, missing) and the action of a valid one
    (retry, retry_with_key, stop, wait, unresolved), and as far as they matter label, semantics,
    key, original, actions, mapping, order, task, design, draw; count lets one line stand for many,
    so that published counts can be checked. Missing and invalid responses are neither yes nor no:
    intervals are envelopes over both, and p is the largest.
    """
    from evaluation.probe.report import report
    from evaluation.probe.responses import read_responses

    found = report(read_responses(responses))
    console = human_console(json_target)
    if not console.quiet:
        _print(console, found)
    if json_target is not None:
        write_json(found, json_target)


def _print(console: Console, found: Mapping[str, Any]) -> None:
    from exactlyonce_env.cli.probe import condition_words, print_totals

    print_totals(console, "recorded responses", found["totals"])
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title="Contrasts between labels, first minus second",
        caption="Newcombe 95 %, envelopes over missing responses; p exact, stratified by task, "
        "Holm within a measure",
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("policy", "key", "share of"):
        table.add_column(heading, no_wrap=True)
    table.add_column("labels")
    for heading in ("counts", "difference, points", "p", "p (Holm)"):
        table.add_column(heading, justify="right")
    for row in found["contrasts"]:
        counts = ", ".join(
            f"{arm['count']}/{arm['n']}" + (f" +{arm['missing']}" if arm["missing"] else "")
            for arm in row["arms"]
        )
        low, high = (100 * value for value in row["difference"])
        shown = f"{low:+.2f}" if low == high else f"{low:+.2f} to {high:+.2f}"
        table.add_row(
            escape(row["policy"]),
            condition_words(row),
            row["measure"],
            " - ".join(row["labels"]),
            counts,
            f"{shown} [{100 * row['low']:+.2f}, {100 * row['high']:+.2f}]",
            row["p_why"] if row["p"] is None else f"{row['p']:.3g}",
            f"{row['p_holm']:.3g}" if "p_holm" in row else "",
        )
    if found["contrasts"]:
        console.print(table)
    for row in found["ranks"]:
        value = row.get("why", "")
        if row["low"] is not None:
            value = f"{row['low']:.3f}"
            value += "" if row["low"] == row["high"] else f" to {row['high']:.3f}"
        console.print(
            f"order of {len(row['policies'])} policies by {row['measure']}, "
            f"{' and '.join(row['labels'])}: tau-b {value}",
            markup=False,
            soft_wrap=True,
        )
