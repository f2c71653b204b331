"""`exactlyonce incident`: reported incidents, replayed beside what would have been right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from exactlyonce_env.cli.options import split_list
from exactlyonce_env.cli.output import JsonTarget, human_console, write_json
from exactlyonce_env.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

LIST = "list"
MAX_LINES = 40
"""Moments of a run that the terminal shows; the JSON has them all."""


def incident(
    name: Annotated[
        str,
        typer.Argument(
            metavar="list|NAME|FILE", help="`list`, an incident, or a YAML, TOML or JSON file."
        ),
    ],
    policies: Annotated[
        str | None,
        typer.Option(
            "--policies",
            metavar="P,Q,...",
            help="Policies that meet the same world; guard,same-key,bayes-optimal if not given.",
        ),
    ] = None,
    source: Annotated[
        bool, typer.Option("--source", help="Print the incident's file, to copy and edit.")
    ] = False,
    json_target: JsonTarget = None,
) -> None:
    """Replay a reported incident: what the client saw beside what really happened.

    First the client does what was reported, then what would have been right, then policies meet the
    same world. They take over where the original's outcome is open. bayes-optimal is made for the
    incident's contract and for the fates that the response leaves open, each as likely as the
    others (after a time-out: lost, executed, or late by the incident's own delay).

    An incident of your own is one small file: start from `exactlyonce incident NAME --source`.
    """
    console = human_console(json_target)
    if name == LIST:
        if policies is not None or source:
            raise UserError("`incident list` takes neither --policies nor --source; name one")
        rows = _rows()
        console.print(_list_table(rows))
        result: Any = rows
    elif source:
        from exactlyonce_env.sandbox.incidents import incident_text

        result = incident_text(name)
        console.print(result, end="", markup=False, soft_wrap=True)
    else:
        from evaluation.incidents import POLICIES, replay
        from exactlyonce_env.sandbox.incidents import load_incident

        chosen = POLICIES if policies is None else split_list(policies, "--policies")
        result = replay(load_incident(name), chosen)
        if not console.quiet:
            console.print(*_pages(result), sep="\n")
    if json_target is not None:
        write_json(result, json_target)


def _rows() -> list[dict[str, str]]:
    from exactlyonce_env.sandbox.incidents import incident_names, load_incident

    fields = ("name", "title", "source", "hidden", "mistake", "remedy")
    incidents = [load_incident(name) for name in incident_names()]
    return [{field: getattr(incident, field) for field in fields} for incident in incidents]


def _list_table(rows: Sequence[Mapping[str, str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title="Incidents",
        title_justify="left",
        caption="exactlyonce incident NAME replays one",
        caption_justify="left",
        show_lines=True,
    )
    table.add_column("incident", no_wrap=True)
    table.add_column("what was hidden", ratio=1)
    table.add_column("what the client did", ratio=1)
    table.add_column("source", overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[field]) for field in ("name", "hidden", "mistake", "source")))
    return table


def _pages(result: Mapping[str, Any]) -> Iterator[Any]:
    from rich.text import Text

    yield Text(f"{result['name']}: {result['title']}" if result["title"] else result["name"])
    for label, field in (
        ("reported in", "source"),
        ("hidden", "hidden"),
        ("the mistake", "mistake"),
        ("right", "remedy"),
    ):
        if result[field]:
            yield Text(f"  {label + ':':13}{result[field]}")
    for run in result["runs"]:
        yield _timeline_table(run)
    yield _outcome_table(result["runs"])


def _timeline_table(run: Mapping[str, Any]) -> Table:
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    moments = run["timeline"]
    title = {"reported": "The client as reported", "right": "What would have been right"}
    table = Table(
        title=title.get(run["policy"], escape(f"Under {run['policy']}")),
        title_justify="left",
        expand=True,
    )
    if len(moments) > MAX_LINES:
        table.caption = f"the first {MAX_LINES} of {len(moments)} moments; --json writes all"
        table.caption_justify = "left"
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("client", no_wrap=True)
    table.add_column("what the client does and sees", ratio=3)
    table.add_column("what really happens", ratio=2)
    for moment in moments[:MAX_LINES]:
        table.add_row(
            _clock(moment["time_s"]),
            Text(moment["client"] or ""),
            Text(moment["seen"] or ""),
            Text(moment["happened"] or "", style="bold"),
        )
    return table


def _outcome_table(runs: Sequence[Mapping[str, Any]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Outcome of each run", title_justify="left")
    table.add_column("run", no_wrap=True)
    for heading in ("executed", "standing", "duplicates", "missing", "unpermitted re-issues"):
        table.add_column(heading, justify="right")
    table.add_column("client says", no_wrap=True)
    table.add_column("took", justify="right", no_wrap=True)
    table.add_column("verdict")
    for run in runs:
        outcome = run["outcome"]
        table.add_row(
            Text(run["policy"]),
            *(
                str(outcome[name])
                for name in (
                    "executions",
                    "standing",
                    "duplicates",
                    "omissions",
                    "false_retry_permissions",
                )
            ),
            outcome["claim"],
            _clock(outcome["elapsed_s"]),
            _verdict(outcome),
        )
    return table


def _clock(seconds: float) -> str:
    """A time for people: seconds, and from ten minutes on hours and minutes as well."""
    if seconds < 600.0:
        return f"{seconds:g} s"
    minutes, rest = divmod(seconds, 60.0)
    hours, minutes = divmod(int(minutes), 60)
    return (f"{hours} h " if hours else "") + f"{minutes} min" + (f" {rest:g} s" if rest else "")


def _verdict(outcome: Mapping[str, Any]) -> str:
    if outcome["duplicates"]:
        undone = "" if outcome["residual_duplicates"] else ", undone"
        return "done more than once" + undone
    if outcome["omissions"]:
        return "not done"
    if outcome["false_failure"]:
        return "done once, and said to have failed"
    return "done once" + ("" if outcome["resolved_exact"] else ", and not known to be")
