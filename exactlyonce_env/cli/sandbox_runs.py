"""`exactlyonce evaluate sandbox`: the tasks under policies, wrappers, contracts and faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exactlyonce_env.cli.models import print_accounts
from exactlyonce_env.cli.options import split_list
from exactlyonce_env.cli.output import (
    JsonTarget,
    human_console,
    progress_console,
    typed_command,
    write_json,
)
from exactlyonce_env.cli.progress import progress_bar
from exactlyonce_env.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from evaluation.llm.models import ModelOptions
    from evaluation.sandbox import Cell, Episode
    from policies.base import AnyPolicy
    from policies.llm.policy import LLMPolicy

MAX_INSTANCES = 100_000


def evaluate_sandbox(
    policies: Sequence[str | AnyPolicy],
    asked: Mapping[str, str | None],
    options: ModelOptions,
    out: Path | None,
    json_target: JsonTarget,
) -> None:
    """Run what is asked for and print one row for each policy, wrapper, contract and fault.

    Raises
    ------
    UserError
        For an unknown name, or a list that cannot be read.
    """
    from evaluation.sandbox import BY, plan_cells, summarise
    from exactlyonce_env.sandbox.contracts import FAULTS
    from exactlyonce_env.sandbox.session import OPERATORS
    from exactlyonce_env.sandbox.tasks import TASKS
    from policies.llm.policy import LLMPolicy

    def listed(option: str, default: Sequence[str]) -> Sequence[str]:
        text = asked[option]
        return default if text is None else split_list(text, option)

    by = asked["--by"] or "policy"
    operator = asked["--operator"] or "answers"
    for option, value, choices in (("--by", by, BY), ("--operator", operator, OPERATORS)):
        if value not in choices:
            raise UserError(f"{option}: unknown {value!r}; choose from {', '.join(choices)}")
    cells = plan_cells(
        policies=[one if isinstance(one, str) else one.spec for one in policies],
        wrappers=listed("--wrapper", ("none",)),
        contracts=listed("--contract", ("native",)),
        faults=listed("--faults", FAULTS[1:]),
        tasks=listed("--tasks", tuple(TASKS)),
        instances=parse_instances(asked["--instances"] or "0"),
        first_send=asked["--first-send"] or "keyed",
        operator=operator,
    )
    models = {one.spec: one for one in policies if isinstance(one, LLMPolicy)}
    scripted = [cell for cell in cells if cell.policy not in models]
    wanted = list(dict.fromkeys([*(cell.twin for cell in scripted), *scripted]))
    result: dict[str, Any] = {
        "preset": "sandbox",
        "first_send": asked["--first-send"] or "keyed",
        "operator": operator,
        "by": by,
    }
    found = _run(wanted, out)
    planned = list(scripted)
    result["rows"] = summarise([found[cell] for cell in scripted], found, by)
    for spec, model in models.items():
        mine = [
            replace(cell, repeat=repeat)
            for repeat in range(options.repeats)
            for cell in cells
            if cell.policy == spec
        ]
        planned += mine
        rows, spent, episodes = _run_model(model, mine, options, out, by)
        result["rows"] += rows
        result.setdefault("spent", {})[spec] = spent
        found |= episodes
    rows = result["rows"]
    console = human_console(json_target)
    print_rows(console, rows, by)
    print_accounts(console, rows, result.get("spent", {}), out is not None)
    if out is not None:
        _keep(out, result, planned, found)
        console.print(f"episodes, manifest and summary are in {out}", markup=False)
    if json_target is not None:
        write_json(result, json_target)


DEFAULT = (
    "blind-retry",
    "sdk-retry",
    "verify-retry",
    "wait:300",
    "guard",
    "same-key",
    "state-oracle",
    "outcome-oracle",
)
"""Policies that are run where none is named."""


def parse_instances(text: str) -> list[int]:
    """Whole numbers, and ranges ``first:end`` without their end."""
    found: list[int] = []
    for entry in split_list(text, "--instances"):
        first, colon, end = entry.partition(":")
        parts = (first, end) if colon else (first, first)
        if not all(part.isascii() and part.isdigit() for part in parts):
            raise UserError(f"--instances {entry!r} is no whole number and no range such as 0:60")
        numbers = range(int(parts[0]), int(parts[1]) if colon else int(parts[0]) + 1)
        if not numbers:
            raise UserError(f"--instances {entry!r} is an empty range")
        if len(found) + len(numbers) > MAX_INSTANCES:
            raise UserError(f"--instances names more than {MAX_INSTANCES:,} instances")
        found += numbers
    return list(dict.fromkeys(found))


def _run(wanted: Sequence[Cell], out: Path | None) -> dict[Cell, Episode]:
    """The episodes by cell; those that the folder holds already are taken as they are."""
    from evaluation.sandbox import run_cells
    from evaluation.sandbox_store import append_episodes, load_episodes

    found: dict[Cell, Episode] = {}
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        found = load_episodes(out)
    missing = [cell for cell in wanted if cell not in found]
    with progress_console().status(f"{len(missing):,} episodes") as status:
        for episodes in run_cells(missing):
            if out is not None:
                append_episodes(out, episodes)
            found |= {episode.cell: episode for episode in episodes}
            status.update(f"{len(found):,} of {len(wanted):,} episodes")
    return found


def _run_model(
    model: LLMPolicy,
    cells: Sequence[Cell],
    options: ModelOptions,
    out: Path | None,
    by: str,
) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]], dict[Cell, Episode]]:
    """Run a language model: its rows, all its calls by use, and its episodes."""
    from evaluation.llm.agent_run import episodes_of, place_of
    from evaluation.llm.agent_summary import agent_rows
    from evaluation.llm.calling import Calls
    from evaluation.llm.models import way_asked
    from evaluation.llm.recovery_run import run_recovery
    from evaluation.llm.spending import spending
    from evaluation.llm.store import open_store
    from evaluation.llm.trial import trial_place
    from evaluation.sandbox_store import append_episodes, load_episodes

    beside = [c for c in dict.fromkeys(cell.twin for cell in cells) if c not in set(cells)]
    endpoint = model.connect()
    with open_store(out, secrets=getattr(endpoint, "secrets", ())) as store:
        store.same_way(model.spec, way_asked(model))
        calls = Calls(
            endpoint,
            store,
            patience=options.patience,
            prices=options.prices,
            limits=options.limits,
        )
        with progress_bar(len(beside) + len(cells), begin=model.spec) as advance:
            run_recovery(
                model,
                [*beside, *cells],
                calls,
                concurrency=options.concurrency,
                done=lambda document: advance(document["policy"], 1),
            )
        found, documents = episodes_of(store, [*beside, *cells])
        rows = agent_rows(cells, found, documents, by, calls.stopped)
        spent = spending(
            store, model.spec, trial_place(model.model), {place_of(cell) for cell in beside}
        )
    if out is not None:
        held = load_episodes(out)
        append_episodes(out, [episode for cell, episode in found.items() if cell not in held])
    return rows, spent, found


def _keep(
    out: Path,
    result: Mapping[str, Any],
    cells: Sequence[Cell],
    found: Mapping[Cell, Episode],
) -> None:
    """Write the table of episodes, the summary and the manifest."""
    from evaluation.manifest import ended, new_manifest, write_manifest
    from evaluation.sandbox_store import write_table

    wanted = list(dict.fromkeys([*(cell.twin for cell in cells), *cells]))
    write_table(out, (found[cell] for cell in wanted if cell in found))
    settings = {
        name: sorted({getattr(cell, name) for cell in wanted})
        for name in ("contract", "fault", "first_send", "instance", "operator", "task", "wrapper")
    }
    manifest = new_manifest(
        preset="sandbox",
        config=settings,
        seed=0,
        worlds=[(k, k + 1) for k in settings["instance"]],
        policies=list(dict.fromkeys(cell.policy for cell in wanted)),
        command=typed_command(),
    )
    write_manifest(ended(manifest, "complete"), out / "manifest.json")
    write_json(dict(result), str(out / "summary.json"))


def print_rows(
    console: Console,
    rows: Sequence[Mapping[str, Any]],
    by: str,
    title: str = "the sandbox, under the recovery driver",
) -> None:
    """The rows as a table."""
    from rich.markup import escape
    from rich.table import Table

    from evaluation.sandbox import GROUPS

    table = Table(
        title=title,
        caption="shares of triggered episodes with 95 % intervals; * sees hidden state",
        title_justify="left",
        caption_justify="left",
    )
    names = [n for n in GROUPS[by] if n == "policy" or len({row[n] for row in rows}) > 1]
    for name in names:
        table.add_column(name, no_wrap=True)
    for heading in ("n", "exactly once %", "duplicated", "unresolved %", "overclaimed %"):
        table.add_column(heading, justify="right")
    for heading in ("calls", "mean time", "nominal %", "recovery %"):
        table.add_column(heading, justify="right")
    for row in rows:
        cells = [escape(str(row[name])) for name in names]
        cells[0] += "*" if row["privileged"] else ""
        table.add_row(
            *cells,
            f"{row['triggered']}"
            + ("" if row["triggered"] == row["episodes"] else f" of {row['episodes']}"),
            _share(row, "exactly_once"),
            str(row["duplicate_count"]),
            _share(row, "unresolved"),
            _share(row, "overclaim"),
            _number(row["steps"], "{:.1f}"),
            _number(row["elapsed_s"], "{:,.0f} s"),
            _number(row["nominal"], "{:.1%}").rstrip("%"),
            _number(row["recovery"], "{:.1%}").rstrip("%"),
        )
    console.print(table)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _share(row: Mapping[str, Any], name: str) -> str:
    if row[name] is None:
        return ""
    low, high = row["ci"][name]
    return f"{100 * row[name]:.1f} [dim]{100 * low:.0f}..{100 * high:.0f}[/dim]"
