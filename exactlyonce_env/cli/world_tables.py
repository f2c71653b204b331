"""Worlds and replays as tables for people.  Privileged: they show what no client can know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from exactlyonce_env.view_text import number_text, seconds_text

if TYPE_CHECKING:
    from exactlyonce_env.episode import Replay, Step
    from exactlyonce_env.ledger import Fortune
    from exactlyonce_env.view import Attempt, View

MAX_ROWS = 200
"""Worlds that a table shows; the JSON has them all."""

Moment = tuple[float, float, str, str]
"""Time [s], rank among its moments, what the client does or sees, what really happens."""


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
            _seen(step, before),
            number_text(step.reward, 5) if k else "",
            permitted,
        )
        before = step.view
    table.add_section()
    table.add_row("", "total", "", "", number_text(told.reward, 5), "")
    return table


def _seen(step: Step, before: View | None) -> str:
    """What one step showed the client."""
    view = step.view
    parts = []
    known = 0 if before is None else len(before.attempts)
    for j, attempt in enumerate(view.attempts[known:], start=known):
        parts.append(f"attempt {j}{_key(attempt)}: {attempt.response.replace('_', ' ')}")
    if before is not None:
        counts = ("n_client_errors", "n_reads", "n_escalations")
        error, read, asked = (bool(view.seen[name] > before.seen[name]) for name in counts)
        if error:
            parts.append("an error: nothing can be sent like this")
        if read and view.read_error != "none":
            parts.append("no read-back" if view.read_error == "no_readback" else "503: an outage")
        elif asked and view.operator == "silent":
            parts.append("no answer")
        elif read or asked:
            parts.append(_report(view))
    elif not parts:
        parts.append("nothing was sent yet")
    if view.ending != "running":
        parts.append(f"the episode ends: {view.ending}")
    return "; ".join(parts)


def _key(attempt: Attempt) -> str:
    return {"none": "", "pinned": " (pinned key)", "other": " (another key)"}[attempt.key]


def _report(view: View) -> str:
    report = view.last_report
    assert report is not None
    n_items = int(view.contract.n_items)
    if not report.items_shown:
        shown = "no effect shows"
    elif len(report.items_shown) == n_items:
        shown = "the effect shows" if n_items == 1 else "all effects show"
    else:
        shown = "items " + ", ".join(map(str, report.items_shown)) + " show"
    told = [a.authority.replace("_", " ") for a in view.attempts]
    if all(word == "unknown" for word in told):
        return shown
    return shown + "; " + ", ".join(f"attempt {j}: {word}" for j, word in enumerate(told))


def _timeline(told: Replay) -> Table:
    """What the client saw beside what really happened, in order of time."""
    table = _table("Timeline")
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("the client")
    table.add_column("what really happened (privileged)")
    ended_s = told.steps[-1].clock_s
    moments = sorted([*_client_moments(told), *_service_moments(told)], key=lambda m: m[:2])
    for k, (time_s, _, client, service) in enumerate(moments):
        if time_s > ended_s >= moments[k - 1][0]:
            table.add_section()
        table.add_row(seconds_text(time_s), client, service)
    return table


def _client_moments(told: Replay) -> Iterator[Moment]:
    """Decision k begins at rank 2k and is answered at rank 2k + 1."""
    for k, step in enumerate(told.steps):
        before = told.steps[k - 1] if k else None
        known = 0 if before is None else len(before.view.attempts)
        for j, attempt in enumerate(step.view.attempts[known:], start=known):
            response = attempt.response.replace("_", " ")
            yield attempt.sent_s, 2 * k, f"sends attempt {j}{_key(attempt)}", ""
            yield attempt.answered_s, 2 * k + 1, f"attempt {j}: {response}", ""
        kind = (step.action or "").partition(":")[0]
        if before is None:
            continue
        seen = _seen(step, before.view)
        if kind == "read":
            yield before.clock_s, 2 * k, f"reads: {seen}", ""
        elif kind == "escalate":
            yield before.clock_s, 2 * k, "asks the operator", ""
            yield step.clock_s, 2 * k + 1, f"operator: {seen}", ""
        elif kind == "finish":
            yield step.clock_s, 2 * k, "claims completion", ""
        elif kind == "finish_uncertain":
            yield step.clock_s, 2 * k, "names the operation uncertain", ""
        elif kind != "wait" and len(step.view.attempts) == known:
            yield step.clock_s, 2 * k, f"{kind}: {seen}", ""
    last = 2 * len(told.steps)
    if told.ending == "claimed" and told.steps[-1].action != "finish":
        yield told.steps[-1].clock_s, last, "the acknowledgement claims completion", ""
    if told.ending == "exhausted":
        yield told.steps[-1].clock_s, last, "the budget of calls is used up", ""
    if not told.ended:
        yield told.steps[-1].clock_s, last, "(no further action)", ""


def _service_moments(told: Replay) -> Iterator[Moment]:
    sent = [
        (attempt.sent_s, 2 * k + 0.2)
        for k, step in enumerate(told.steps)
        for attempt in step.view.attempts[len(told.steps[k - 1].view.attempts) if k else 0 :]
    ]
    executed: set[int] = set()
    for effect in told.ledger:
        again = " [bold]again[/bold]" if effect.item in executed else ""
        executed.add(effect.item)
        item = f"item {effect.item}: " if told.steps[0].view.contract.n_items > 1 else ""
        source = "the copy of attempt" if effect.copy else "attempt"
        sent_s, rank = sent[effect.attempt]
        # A commit at the very instant of an answer counts as visible, so it stands before it.
        rank = rank + 0.2 if effect.time_s == sent_s else -1
        yield effect.time_s, rank, "", f"{item}{source} {effect.attempt} takes effect{again}"
    for fortune, moment in zip(told.attempts, sent, strict=True):
        yield from _fortune_moments(fortune, *moment)


def _fortune_moments(fortune: Fortune, sent_s: float, rank: float) -> Iterator[Moment]:
    name = f"attempt {fortune.attempt} ({fortune.mode})"
    at_s = sent_s if fortune.arrival_s is None else fortune.arrival_s
    if at_s > sent_s:
        yield sent_s, rank, "", f"{name} stays in transit"
        yield at_s, -2, "", f"attempt {fortune.attempt} arrives"
        rank = -2
    elif fortune.arrival_s is None:
        yield at_s, rank, "", f"{name} is lost on the way"
    elif not fortune.items_executed and not fortune.items_suppressed:
        yield at_s, rank, "", f"{name} arrives and has no effect"
    else:
        late = fortune.mode.startswith("timeout_late")
        yield at_s, rank, "", f"{name} arrives" + (" and stays in process" if late else "")
    if fortune.items_suppressed:
        found = "finds its key in use: no new effect"
        if fortune.items_executed:
            found = "resumes the batch where its key stopped"
        yield at_s, rank + 0.1, "", f"attempt {fortune.attempt} {found}"


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
