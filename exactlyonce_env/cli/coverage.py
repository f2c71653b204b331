"""`exactlyonce bench --coverage`: how often each interval holds the truth."""

from __future__ import annotations

from exactlyonce_env.cli.output import human_console, progress_console, write_json

__all__ = ["coverage"]


def coverage(repetitions: int | None, json_target: str | None) -> None:
    """Carry out the studies of `evaluation.coverage` and print or write what they find."""
    from rich.table import Table

    from evaluation.coverage import REPETITIONS
    from evaluation.coverage import coverage as measure

    asked = REPETITIONS if repetitions is None else repetitions
    with progress_console().status("starting") as status:
        rows = measure(asked, progress=status.update)
    table = Table(
        title="How often each interval holds the truth",
        caption="± Monte Carlo error; without one the coverage is exact; undefined: experiments "
        "without such an interval, which count neither way",
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("interval", "setting"):
        table.add_column(heading)
    for heading in ("nominal %", "coverage %", "mean width", "undefined %"):
        table.add_column(heading, justify="right")
    for row in rows:
        error = f" ±{100 * row['error']:.1f}" if row["repetitions"] else ""
        table.add_row(
            row["interval"],
            row["setting"],
            f"{100 * row['nominal']:g}",
            f"{100 * row['coverage']:.1f}{error}",
            f"{row['mean_width']:.3f}",
            f"{100 * row['undefined']:.1f}" if row["undefined"] else "",
        )
    human_console(json_target).print(table)
    if json_target is not None:
        write_json({"repetitions": asked, "rows": rows}, json_target)
