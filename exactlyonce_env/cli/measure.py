"""`exactlyonce fit`: from a file of measured delays to a law that every command takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from exactlyonce_env.cli.output import JsonTarget, human_console, write_json

if TYPE_CHECKING:
    from rich.console import Console

    from exactlyonce_env.measured import DelayFit

DelayFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="CSV, TSV, blank-separated, JSONL, Parquet, JMeter JTL or xlsx."
    ),
]
Markers = Annotated[
    list[str] | None,
    typer.Option(
        "--timeout-marker", metavar="V", help="Value that means 'timed out': a number or 'blank'."
    ),
]
Drops = Annotated[
    list[str] | None,
    typer.Option("--drop-marker", metavar="V", help="Value that means 'no request was made'."),
]
Where = Annotated[
    list[str] | None,
    typer.Option("--where", metavar="COL=PATTERN", help="Keep rows that match; may be repeated."),
]


def fit(
    file: DelayFile,
    column: Annotated[
        str | None,
        typer.Option("--column", metavar="C", help="Delay column: name, number from 1, or 'all'."),
    ] = None,
    unit: Annotated[
        str | None, typer.Option("--unit", metavar="ms|s", help="Unit of the delays; default s.")
    ] = None,
    censored_at: Annotated[
        float | None,
        typer.Option(
            "--censored-at", metavar="X", help="Client time-out: values from X on are censored."
        ),
    ] = None,
    event_column: Annotated[
        str | None,
        typer.Option("--event-column", metavar="E", help="1 = completed, 0 = censored."),
    ] = None,
    entry_column: Annotated[
        str | None,
        typer.Option("--entry-column", metavar="N", help="Delayed entry (left truncation)."),
    ] = None,
    limit_column: Annotated[
        str | None,
        typer.Option("--limit-column", metavar="L", help="Time-out that differs by row."),
    ] = None,
    timeout_marker: Markers = None,
    drop_marker: Drops = None,
    keep_zeros: Annotated[
        bool, typer.Option("--keep-zeros", help="Zeros are real delays below the resolution.")
    ] = False,
    header: Annotated[
        bool | None,
        typer.Option("--header/--no-header", help="Whether the first line names the columns."),
    ] = None,
    delimiter: Annotated[
        str | None,
        typer.Option("--delimiter", metavar="D", help="One character, or tab, comma, space, ..."),
    ] = None,
    sheet: Annotated[
        str | None, typer.Option("--sheet", metavar="NAME", help="Sheet of a workbook.")
    ] = None,
    where: Where = None,
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="OUT", help="Write the law for --delays of any command."),
    ] = None,
    json_target: JsonTarget = None,
) -> None:
    """Estimate the law of measured delays; time-outs are right-censored, never dropped.

    Prints quantiles with 95 % intervals (product-limit estimate), the tail index, and the
    families by AIC with their distance from the measured curve. What the file leaves open is asked
    for, not guessed.
    """
    from exactlyonce_env.measured import DelayFileOptions, fit_delays, read_delays

    options = DelayFileOptions(
        column=column,
        unit=unit,
        censored_at=censored_at,
        event_column=event_column,
        entry_column=entry_column,
        limit_column=limit_column,
        timeout_markers=tuple(timeout_marker or ()),
        drop_markers=tuple(drop_marker or ()),
        keep_zeros=keep_zeros,
        header=header,
        delimiter=delimiter,
        sheet=sheet,
        where=tuple(where or ()),
    )
    found = fit_delays(read_delays(file, options))
    if save is not None:
        found.save(save)
    if json_target is not None:
        write_json(found.to_json(), json_target)
    console = human_console(json_target)
    _print(console, found)
    if save is not None:
        console.print(f"saved for --delays: {save}", markup=False)


def _print(console: Console, found: DelayFit) -> None:
    from rich.markup import escape
    from rich.table import Table

    measured = found.measured
    console.print(
        f"{measured.source}: {measured.n:,} rows, {measured.censored:,} censored "
        f"({100 * measured.censored / measured.n:.2f} %), {measured.column}, "
        f"unit {measured.unit}",
        markup=False,
    )
    quantiles = Table(title="quantiles, 95 % intervals", title_justify="left")
    for heading in ("share", "delay", "from", "to"):
        quantiles.add_column(heading, justify="right")
    for level, limits in found.quantiles.items():
        cells = [_delay(limits[name]) for name in ("value_s", "low_s", "high_s")]
        quantiles.add_row(f"{100 * float(level):g} %", *cells)
    console.print(quantiles)
    families = Table(title="families by AIC", title_justify="left")
    for heading in ("family", "AIC", "greatest distance", "parameters"):
        families.add_column(heading, justify="left" if heading == "parameters" else "right")
    for fitted in found.families:
        parameters = ", ".join(f"{name}={value:.4g}" for name, value in fitted.parameters.items())
        families.add_row(
            fitted.family, f"{fitted.aic:.1f}", f"{fitted.max_distance:.3f}", parameters
        )
    console.print(families)
    if found.tail is not None:
        tail = found.tail
        console.print(
            f"tail index {tail.alpha:.2f} ({tail.low:.2f} to {tail.high:.2f}) from the {tail.k:,} "
            "longest rows; 1 or less means an infinite mean"
        )
    for note in found.notes:
        console.print(f"note: {note}", markup=False)
    for warning in found.warnings:
        console.print(f"[bold]warning:[/bold] {escape(str(warning))}")


def _delay(seconds: float | None) -> str:
    return "not reached" if seconds is None else f"{seconds:.4g} s"
