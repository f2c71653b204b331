"""`exactlyonce probe`: one recovery decision after a timeout, asked for in declared variants."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from exactlyonce_env.cli.models import (
    AnswerTokens,
    BaseUrl,
    Concurrency,
    MaxTokens,
    MaxUsd,
    Price,
    Retries,
    Sockets,
    Temperature,
    Timeout,
    given_settings,
    model_options,
)
from exactlyonce_env.cli.options import OutFolder, split_list
from exactlyonce_env.cli.output import (
    JsonTarget,
    human_console,
    typed_command,
    write_json,
)
from exactlyonce_env.cli.progress import progress_bar
from exactlyonce_env.errors import UserError, unknown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from evaluation.llm.models import ModelOptions
    from evaluation.probe.designs import Design
    from evaluation.probe.policies import Scripted
    from evaluation.probe.responses import Response
    from evaluation.probe.run import Model

CONFORMANCE = "conformance"
"""Word in place of a design: what retry rules of clients do in four schedules."""


def probe(
    design: Annotated[
        str,
        typer.Argument(
            metavar="DESIGN",
            help="key-control, counterbalance, cue-control, supplied-key or canonical-block; "
            "conformance: what retry rules of clients do in four schedules.",
        ),
    ],
    policies: Annotated[
        str | None,
        typer.Option(
            "--policies",
            metavar="A,B,...",
            help="always-retry, always-defer, same-key-if-valid, any-key-offered, label-follower, "
            "bayes-optimal, any honest policy of `evaluate`, llm:MODEL; default the first six.",
        ),
    ] = None,
    show: Annotated[
        int | None,
        typer.Option("--show", metavar="K", help="Print the K-th prompt instead; nothing is run."),
    ] = None,
    answers: Annotated[
        str | None,
        typer.Option("--answers", metavar="HOW", help="Models: text, schema or auto [text]."),
    ] = None,
    base_url: BaseUrl = None,
    concurrency: Concurrency = None,
    temperature: Temperature = None,
    answer_tokens: AnswerTokens = None,
    timeout: Timeout = None,
    retries: Retries = None,
    sockets: Sockets = None,
    price: Price = None,
    max_usd: MaxUsd = None,
    max_tokens: MaxTokens = None,
    out: OutFolder = None,
    json_target: JsonTarget = None,
) -> None:
    """Ask policies for one decision after a timeout, and replay it in three hidden worlds.

    The write was lost, executes late, or is there and does not show: one transcript, a third each.
    Whether a retry is permitted never depends on how it turns out. A design crosses declared
    variants of the question; every share stands on the responses that were planned. An answer that
    is not what was asked for stays invalid, a response that did not come stays missing: neither is
    replaced or scored. RUN/responses.jsonl holds every response; the same command goes on there.
    """
    asked = {
        "--answers": answers,
        "--base-url": base_url,
        "--concurrency": concurrency,
        "--temperature": temperature,
        "--answer-tokens": answer_tokens,
        "--timeout": timeout,
        "--retries": retries,
        "--sockets": sockets,
        "--price": price,
        "--max-usd": max_usd,
        "--max-tokens": max_tokens,
    }
    if design == CONFORMANCE:
        _conformance(policies, asked | {"--show": show, "--out": out}, json_target)
        return
    from evaluation.probe.designs import DESIGN_NAMES, DESIGNS

    if design not in DESIGNS:
        raise unknown("design", design, (*DESIGN_NAMES, CONFORMANCE))
    chosen = DESIGNS[design]
    if show is not None:
        _show(chosen, show, json_target)
        return
    from evaluation.probe.policies import SCRIPTED

    specs = list(SCRIPTED) if policies is None else split_list(policies, "--policies")
    subjects = _subjects(specs, asked)
    options = model_options(asked)
    console = human_console(json_target)
    lock = _locked(out)
    responses, accounts = _answers(subjects, chosen, options, out)
    result = _result(chosen, responses, accounts)
    print_summary(console, result)
    if out is not None:
        _keep(out, chosen, subjects, responses, result)
        console.print(f"responses, manifest and summary are in {out}", markup=False)
    elif accounts:
        console.print("note: nothing is kept; with --out RUN every response is")
    if lock is not None:
        lock.release()
    if json_target is not None:
        write_json(result, json_target)


def _subjects(specs: Sequence[str], asked: Mapping[str, Any]) -> list[Scripted | Model]:
    """Who is asked, each by its name."""
    from evaluation.probe.run import Model, probe_policy
    from policies.llm.asking import Settings

    given = {
        "base_url": os.environ.get("OPENAI_BASE_URL") or None,
        "answers": "text",
        **given_settings(asked),
    }
    subjects = [probe_policy(spec, Settings(**given)) for spec in specs]
    names = [subject.spec for subject in subjects]
    twice = next((name for k, name in enumerate(names) if name in names[:k]), None)
    if twice is not None:
        raise UserError(f"policy {twice!r} is named twice")
    if not any(isinstance(subject, Model) for subject in subjects):
        stray = next((option for option, value in asked.items() if value is not None), None)
        if stray is not None:
            raise UserError(f"{stray} is an option of language models; name one, llm:MODEL")
    return subjects


def _locked(out: Path | None) -> Any:
    if out is None:
        return None
    from evaluation.probe.responses import FILE, read_responses
    from evaluation.run_folder import FolderLock

    out.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(out)
    if (out / FILE).is_file():
        read_responses(out / FILE)  # what cannot be gone on with is refused before anybody is asked
    return lock


def _answers(
    subjects: Sequence[Scripted | Model], design: Design, options: ModelOptions, out: Path | None
) -> tuple[list[Response], list[dict[str, Any]]]:
    """Every planned response, and for each model what it cost."""
    from evaluation.probe.run import Model, run_model, run_scripted

    responses: list[Response] = []
    accounts = []
    for subject in subjects:
        if not isinstance(subject, Model):
            responses += run_scripted(subject, design)
            continue
        with _progress(subject.spec, design.planned) as done:
            found = run_model(subject, design, out, options, done)
        responses += found.responses
        accounts.append(found.account())
    return responses, accounts


def _result(
    design: Design, responses: Sequence[Response], accounts: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    from evaluation.probe.prompts import PROBE_VERSION
    from evaluation.probe.summary import summarise

    return {
        "design": design.name,
        "summary": design.summary,
        "planned_per_policy": design.planned,
        "prompt_version": PROBE_VERSION,
        **summarise(responses),
        "models": list(accounts),
    }


@contextmanager
def _progress(spec: str, total: int) -> Iterator[Any]:
    unscored = 0
    with progress_bar(total, "responses", spec) as advance:

        def done(document: Mapping[str, Any]) -> None:
            nonlocal unscored
            unscored += document["status"] != "returned"
            advance(f"{spec}: {unscored} missing", 1)

        yield done


HEADINGS: dict[str, str] = {
    "planned": "planned",
    "invalid": "invalid",
    "missing": "missing",
    "retries": "retries",
    "protected": "protected",
    "unsupported": "unsupported",
    "unresolved": "unresolved",
}
OUTCOME_HEADINGS: dict[str, str] = {
    "rows": "worlds",
    "false_retry_permissions": "false permissions",
    "duplicates": "duplicates",
    "omissions": "omissions",
    "unresolved": "unresolved",
    "ledger_correct": "ledger correct",
    "resolved_exact": "resolved exact",
}
FIXED = ("planned", "invalid", "missing")
"""Counts that no missing response can change."""


def print_summary(console: Console, result: Mapping[str, Any]) -> None:
    """The totals and the ranges of a summary, for people."""
    if console.quiet:
        return
    print_totals(console, f"{result['design']}: {result['summary']}", result["totals"])
    _print_outcomes(console, result["totals"])
    _print_ranges(console, result["ranges"])
    for account in result.get("models", ()):
        console.print(
            f"{account['policy']}: {account['asked']:,} answers now, "
            f"{account['tokens_in'] + account['tokens_out']:,} tokens and {account['usd']:.2f} USD "
            f"in all, {account['provider_errors']} requests failed",
            markup=False,
        )
        for reason, number in account["reasons"].items():
            console.print(f"not scored, {account['policy']}: {number} x {reason}", markup=False)
        if account["stopped"]:
            console.print(
                f"the budget {account['stopped']} ended {account['policy']}; the same command "
                "with a higher one goes on",
                markup=False,
            )


def print_totals(console: Console, title: str, totals: Sequence[Mapping[str, Any]]) -> None:
    """What was decided, by policy and key condition."""
    from rich.markup import escape

    table = _table(
        title,
        "unsupported: retries that no rule permits; the share is of the planned responses, with "
        "its 95 % interval. +m missing: not scored, invalid ones among them",
    )
    for heading in (*HEADINGS.values(), "unsupported, %"):
        table.add_column(heading, justify="right")
    for row in totals:
        cells = []
        for name in HEADINGS:
            more = f" +{row['missing']} missing" if row["missing"] and name not in FIXED else ""
            cells.append(f"{row[name]:,}{more}")
        shares = [count / row["planned"] for count in row["unsupported_bounds"]]
        low, high = row["ci"]["unsupported"]
        cells.append(f"{_percent(shares)} [{100 * low:.1f}, {100 * high:.1f}]")
        table.add_row(escape(row["policy"]), condition_words(row), *cells)
    console.print(table)
    _print_by_prompts(console, totals)


def _print_by_prompts(console: Console, totals: Sequence[Mapping[str, Any]]) -> None:
    """The same shares, with the draws of one prompt counted by their correlation."""
    shown = [
        (row, found)
        for row in totals
        if "why" not in (found := row["clustered"]["unsupported"])
        and found["effective_n"] < row["planned"]
    ]
    if not shown:
        return
    table = _table(
        "Draws of one prompt are not independent",
        "Wilson 95 % at Kish's effective n; the correlation within prompts is estimated once a "
        "policy, and counts as 1 where its answers never vary",
    )
    for heading in ("planned", "prompts", "correlation", "effective n", "unsupported, %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row, found in shown:
        shares = [count / row["planned"] for count in row["unsupported_bounds"]]
        table.add_row(
            row["policy"],
            condition_words(row),
            f"{row['planned']:,}",
            f"{found['prompts']:,}",
            f"{found['icc']:.2f}",
            f"{found['effective_n']:,.1f}",
            f"{_percent(shares)} [{100 * found['low']:.1f}, {100 * found['high']:.1f}]",
        )
    console.print(table)


def _print_outcomes(console: Console, totals: Sequence[Mapping[str, Any]]) -> None:
    from rich.markup import escape

    table = _table("The decisions replayed", "each scored response in three worlds")
    for heading in OUTCOME_HEADINGS.values():
        table.add_column(heading, justify="right")
    for row in totals:
        cells = [f"{row['outcomes'][name]:,}" for name in OUTCOME_HEADINGS]
        table.add_row(escape(row["policy"]), condition_words(row), *cells)
    console.print(table)


def _print_ranges(console: Console, ranges: Sequence[Mapping[str, Any]]) -> None:
    from rich.markup import escape

    shown = [row for row in ranges if row["min"] != row["max"]]
    if not shown:
        return
    table = _table(
        "Ranges over the variants, % of planned responses",
        "mean: each variant weighs the same; low–high: as the missing responses may have gone. "
        "Where all variants agree there is no row",
    )
    table.add_column("share of", no_wrap=True)
    for heading in ("variants", "min", "max", "mean"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in shown:
        ends = (_percent(row[name]) for name in ("min", "max", "mean"))
        cells = (row["measure"], str(row["variants"]), *ends)
        table.add_row(escape(row["policy"]), condition_words(row), *cells)
    console.print(table)


def _table(title: str, caption: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    for heading in ("policy", "key"):
        table.add_column(heading, no_wrap=True)
    return table


def condition_words(row: Mapping[str, Any]) -> str:
    """The key condition of a row in words."""
    key = str(row["key"])
    return f"{key}, original's {row['original']}" if key == "supplied" else key


def _percent(pair: Sequence[float]) -> str:
    low, high = (f"{100 * share:.1f}" for share in pair)
    return low if low == high else f"{low}–{high}"


def _keep(
    out: Path,
    design: Design,
    subjects: Sequence[Scripted | Model],
    responses: Sequence[Response],
    result: Mapping[str, Any],
) -> None:
    """The responses, the manifest and the summary beside the transcripts."""
    from evaluation.manifest import ended, new_manifest, write_manifest
    from evaluation.probe.prompts import PROBE_VERSION
    from evaluation.probe.replay import PRESET, SEED
    from evaluation.probe.responses import FILE, merge_responses
    from evaluation.probe.run import Model

    merge_responses(out / FILE, responses)
    config = {
        "kind": "probe",
        "design": design.name,
        "crossed": design.summary,
        "prompt_version": PROBE_VERSION,
        "models": {one.spec: one.way() for one in subjects if isinstance(one, Model)},
    }
    manifest = new_manifest(
        preset=PRESET,
        config=config,
        seed=SEED,
        worlds=[],
        policies=[one.spec for one in subjects],
        command=typed_command(),
    )
    write_manifest(ended(manifest, "complete"), out / "manifest.json")
    write_json(result, str(out / "summary.json"))


def _show(design: Design, number: int, json_target: str | None) -> None:
    """Print one prompt word for word."""
    from evaluation.probe.prompts import (
        PROBE_VERSION,
        answer_schema,
        codes_of,
        messages_for,
    )

    cells = design.cells
    if not 0 <= number < len(cells):
        raise UserError(f"--show must lie in 0..{len(cells) - 1}, not {number}")
    cell = cells[number]
    messages = messages_for(cell)
    console = human_console(json_target)
    for message in messages:
        title = f"{message['role']}, {design.name} {number}, version {PROBE_VERSION}"
        console.print(f"--- {title} ---", markup=False)
        console.print(message["content"], markup=False, soft_wrap=True)
    if json_target is not None:
        result = {
            "design": design.name,
            "prompt": number,
            "version": PROBE_VERSION,
            **cell.to_dict(),
            "messages": messages,
            "codes": codes_of(cell.variant),
            "schema": answer_schema(cell.variant),
        }
        write_json(result, json_target)


def _conformance(clients: str | None, stray: Mapping[str, Any], json_target: str | None) -> None:
    """Print the conformance rows."""
    from rich.markup import escape
    from rich.table import Table

    from evaluation.probe.frameworks import CLIENTS, SCHEDULES, conformance_rows

    for option, value in stray.items():
        if value is not None:
            raise UserError(f"{option} has no meaning with conformance")
    names = list(CLIENTS) if clients is None else split_list(clients, "--policies")
    for name in names:
        if name not in CLIENTS:
            raise unknown("client", name, tuple(CLIENTS))
    rows = conformance_rows({name: CLIENTS[name] for name in names})
    table = Table(
        title="Effects by schedule; two attempts at most",
        title_justify="left",
        caption="*: a retry ran and its response returned",
        caption_justify="left",
    )
    table.add_column("client", no_wrap=True)
    for schedule in SCHEDULES:
        table.add_column(schedule, justify="right")
    for name in dict.fromkeys(names):
        mine = [row for row in rows if row["client"] == name]
        table.add_row(
            escape(name), *(f"{r['effects']}{'*' if r['completed'] else ''}" for r in mine)
        )
    human_console(json_target).print(table)
    if json_target is not None:
        write_json({"schedules": list(SCHEDULES), "rows": rows}, json_target)
