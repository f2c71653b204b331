"""Worlds and replays as tables for people.  Privileged: they show what no client can know."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from exactlyonce_env.replay_words import step_words, timeline
from exactlyonce_env.view_text import number_text, seconds_text

if TYPE_CHECKING:
    from exactlyonce_env.episode import Replay

MAX_ROWS = 200
"""Worlds that a table shows; the JSON has them all."""


def worlds_table(preset: str, seed: int, rows: Sequence[dict[str, Any]]) -> Table:
    """One row for each world of `world_dict`, up to `MAX_ROWS`."""
    table = _table(f"{preset}: {len(rows):,} drawn worlds, seed {seed} (privileged)")
    if len(rows) > MAX_ROWS:
        table.caption_justify = "left"
        table.caption = f"the first {MAX_ROWS} of {len(rows):,}; --json writes all"
    table.add_column("id", justify="right")
    table.add_column("context", no_wrap=True)
    table.add_column("contract")
    table.add_column("original")
    table.add_column("further attempts")
    for row in rows[:MAX_ROWS]:
        first, *rest = [_fate(fate, row["contract"]["n_items"]) for fate in row["attempts"]]
        table.add_row(
            str(row["id"]), row["context"], _contract(row), first, ", ".join(_runs(rest)) or "none"
        )
    return table


def replay_tables(told: Replay) -> Iterator[Table | str]:
    """The steps, the timeline and the outcome of a replay."""
    yield _steps_table(told)
    yield _timeline(told)
    yield from _outcome(told)


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left")


def _contract(row: dict[str, Any]) -> str:
    contract = row["contract"]
    parts = [f"{contract['readback']} read-back".replace("none", "no")]
    if contract["readback"] == "eventual":
        hidden = "" if contract["lag_documented"] else " (undocumented)"
        parts[0] += f", lag {seconds_text(contract['lag_s'])}{hidden}"
    if contract["accepts_key"]:
        parts.append("takes keys")
    if contract["idempotent"]:
        parts.append("idempotent")
    if contract["n_items"] > 1:
        parts.append(f"{contract['n_items']} items")
    if contract["in_flight_bound_s"] is not None:
        parts.append(f"bound {seconds_text(contract['in_flight_bound_s'])}")
    if not row["operator_answers"]:
        parts.append("silent operator")
    return ", ".join(parts)


def _fate(fate: dict[str, Any], n_items: int) -> str:
    text = str(fate["mode"])
    if fate["mode"].startswith("timeout_late"):
        text += f" after {seconds_text(fate['commit_delay_s'])}"
        text += ", queued" if fate["queued"] else ", in transit"
    if fate["copy_delay_s"] is not None:
        text += f", copy {seconds_text(fate['copy_delay_s'])} later"
    if 0 < fate["items"] < n_items:
        text += f", {fate['items']} of {n_items} items"
    return text


def _runs(texts: Sequence[str]) -> Iterator[str]:
    """Neighbours that are equal, once with their number."""
    k = 0
    while k < len(texts):
        n = 1
        while k + n < len(texts) and texts[k + n] == texts[k]:
            n += 1
        yield texts[k] if n == 1 else f"{n} x {texts[k]}"
        k += n


def _steps_table(told: Replay) -> Table:
    context = f", context {told.context}" if told.context != told.preset else ""
    table = _table(f"{told.preset}: seed {told.seed}, world {told.world}{context}")
    table.add_column("", justify="right")
    table.add_column("action", no_wrap=True)
    table.add_column("clock", justify="right", no_wrap=True)
    table.add_column("the client sees")
    table.add_column("reward", justify="right")
    table.add_column("re-issue")
    before = None
    for k, step in enumerate(told.steps):
        permitted = {None: "", True: "permitted", False: "[bold]not permitted[/bold]"}[
            step.permitted
        ]
        table.add_row(
            str(k) if k else "",
            step.action or "",
            seconds_text(step.clock_s),
            step_words(step, before),
            number_text(step.reward, 5) if k else "",
            permitted,
        )
        before = step.view
    table.add_section()
    table.add_row("", "total", "", "", number_text(told.reward, 5), "")
    return table


def _timeline(told: Replay) -> Table:
    """What the client saw beside what really happened, in order of time."""
    table = _table("Timeline")
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("the client")
    table.add_column("what really happened (privileged)")
    ended_s = told.steps[-1].clock_s
    moments = timeline(told)
    for k, moment in enumerate(moments):
        if moment.time_s > ended_s >= moments[k - 1].time_s:
            table.add_section()
        happened = re.sub("again$", "[bold]again[/bold]", moment.happened)
        table.add_row(seconds_text(moment.time_s), moment.seen, happened)
    return table


def _outcome(told: Replay) -> Iterator[Table]:
    table = _table("Outcome" if told.ended else "Outcome, should the client walk away now")
    table.min_width = len(str(table.title))
    table.add_column("measure")
    table.add_column("value", justify="right")
    for name, value in told.outcome.items():
        text = (
            {True: "yes", False: "no"}[value] if isinstance(value, bool) else number_text(value, 3)
        )
        table.add_row(name, text)
    yield table
