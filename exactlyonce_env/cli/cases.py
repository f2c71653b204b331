"""`exactlyonce cases`: small recoveries with tools, graded by four observations side by side."""

from __future__ import annotations

import os
import sys
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
    Repeats,
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
from exactlyonce_env.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from evaluation.cases.data import Case
    from evaluation.cases.policies import Policy
    from evaluation.cases.run import CaseModel
    from evaluation.llm.models import ModelOptions

KIND = "cases"
"""Kind of a run in its manifest."""

LONGEST_ANSWER = 10_000_000
"""Largest file of a trajectory [bytes]."""


def cases(
    policies: Annotated[
        str | None,
        typer.Option(
            "--policies",
            metavar="A,B,...",
            help="careful, always-retry, always-defer, blind-create, reconnect-only, any-record, "
            "fence-answer, llm:MODEL; default all scripted ones.",
        ),
    ] = None,
    answer: Annotated[
        str | None,
        typer.Option(
            "--answer",
            metavar="FILE",
            help='Grade a trajectory: {"calls": [{"tool": ..., "arguments": {...}}], '
            '"answer": TEXT}; - is stdin. Needs --case.',
        ),
    ] = None,
    case: Annotated[
        str | None,
        typer.Option(
            "--case",
            metavar="ID",
            help="The case of --answer; with --policies: only these (A,B,...); alone: print it.",
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option("--protocol", metavar="HOW", help="Models: chat or responses [chat]."),
    ] = None,
    base_url: BaseUrl = None,
    concurrency: Concurrency = None,
    repeats: Repeats = None,
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
    """Play the 24 contract cases: recover an operation with five tools, and report what is true.

    Six families: running operation, lost acknowledgement, unknown outcome, legitimate new
    operation, authorisation change, target binding change. Business effects, final delivery,
    authorisation and binding, and recovery are observed side by side; strict is all four, and
    stands beside the same with the format set aside. Trajectories with known results check the
    grading at every run. Episodes to which the provider gave no answer are missing: counted, never
    scored. With --out RUN every call is kept, and the same command goes on there.
    """
    asked = {
        "--protocol": protocol,
        "--base-url": base_url,
        "--concurrency": concurrency,
        "--repeats": repeats,
        "--temperature": temperature,
        "--answer-tokens": answer_tokens,
        "--timeout": timeout,
        "--retries": retries,
        "--sockets": sockets,
        "--price": price,
        "--max-usd": max_usd,
        "--max-tokens": max_tokens,
    }
    if answer is not None or (case is not None and policies is None):
        stray = asked | {"--policies": policies, "--out": out}
        what = "--answer" if answer is not None else "--case alone"
        for option, value in stray.items():
            if value is not None:
                raise UserError(f"{option} has no meaning with {what}")
    if answer is not None:
        _grade(answer, case, json_target)
    elif case is not None and policies is None:
        _show(case, json_target)
    else:
        _play(policies, case, asked, out, json_target)


def _play(
    policies: str | None,
    case: str | None,
    asked: Mapping[str, Any],
    out: Path | None,
    json_target: str | None,
) -> None:
    """Run the policies, and print what came of it."""
    from evaluation.cases.data import all_cases, case_named
    from evaluation.cases.policies import POLICIES
    from evaluation.cases.prompts import CASES_VERSION
    from evaluation.cases.run import CaseModel
    from evaluation.cases.summary import case_rows
    from evaluation.cases.trajectories import calibration_rows

    chosen = all_cases()
    if case is not None:
        chosen = tuple(case_named(name) for name in dict.fromkeys(split_list(case, "--case")))
    specs = list(POLICIES) if policies is None else split_list(policies, "--policies")
    subjects = _subjects(specs, asked)
    options = model_options(asked)
    lock = _locked(out)
    documents, stopped = _documents(subjects, chosen, options, out)
    result = {
        "version": CASES_VERSION,
        "cases": [one.to_dict() for one in chosen],
        "calibration": calibration_rows(chosen),
        "rows": [row | stopped.get(row["policy"], {}) for row in case_rows(documents)],
    }
    console = human_console(json_target)
    _print(console, result)
    if out is not None:
        _keep(out, subjects, chosen, result)
        console.print(f"transcripts, manifest and summary are in {out}", markup=False)
    elif any(isinstance(subject, CaseModel) for subject in subjects):
        console.print("note: nothing is kept; with --out RUN every call is")
    if lock is not None:
        lock.release()
    if json_target is not None:
        write_json(result, json_target)


def _subjects(specs: Sequence[str], asked: Mapping[str, Any]) -> list[Policy | CaseModel]:
    """Who plays, each by its name."""
    from evaluation.cases.run import CaseModel, case_policy
    from policies.llm.asking import Settings

    given = {"base_url": os.environ.get("OPENAI_BASE_URL") or None, **given_settings(asked)}
    protocol = asked["--protocol"] or "chat"
    subjects = [case_policy(spec, Settings(**given), protocol) for spec in specs]
    names = [subject.spec for subject in subjects]
    twice = next((name for k, name in enumerate(names) if name in names[:k]), None)
    if twice is not None:
        raise UserError(f"policy {twice!r} is named twice")
    if not any(isinstance(subject, CaseModel) for subject in subjects):
        stray = next((option for option, value in asked.items() if value is not None), None)
        if stray is not None:
            raise UserError(f"{stray} is an option of language models; name one, llm:MODEL")
    return subjects


def _locked(out: Path | None) -> Any:
    """Take the folder, unless it holds another kind of run, whose manifest would be lost."""
    if out is None:
        return None
    from evaluation.manifest import read_manifest
    from evaluation.run_folder import FolderLock, manifest_path

    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file, want a folder for the run")
    path = manifest_path(out)
    if path.exists() and read_manifest(path).config.get("kind") != KIND:
        raise UserError(f"{out} holds a run that is none of cases: choose another folder")
    out.mkdir(parents=True, exist_ok=True)
    return FolderLock(out)


def _documents(
    subjects: Sequence[Policy | CaseModel],
    chosen: Sequence[Case],
    options: ModelOptions,
    out: Path | None,
) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """The document of every planned episode, and for each model what ended its run early."""
    from evaluation.cases.run import CaseModel, place_of, run_model, run_scripted
    from evaluation.llm.store import open_store

    documents: list[dict[str, Any]] = []
    stopped: dict[str, dict[str, Any]] = {}
    for subject in subjects:
        if isinstance(subject, CaseModel):
            with _progress(subject.spec, len(chosen) * options.repeats) as done:
                found, why = run_model(subject, chosen, out, options, done)
            if why:
                stopped[subject.spec] = {"stopped": why}
        else:
            found = run_scripted(subject, chosen)
            if out is not None:
                with open_store(out) as store:
                    for one, document in zip(chosen, found, strict=True):
                        store.finish(place_of(subject.spec, one, 0), document)
        documents += found
    return documents, stopped


@contextmanager
def _progress(spec: str, total: int) -> Iterator[Any]:
    counts = {"strict": 0, "missing": 0}
    with progress_bar(total, begin=spec) as advance:

        def done(document: Mapping[str, Any]) -> None:
            if document["status"] == "missing":
                counts["missing"] += 1
            else:
                counts["strict"] += document["observed"]["strict"]
            advance(f"{spec}: {counts['strict']} strict, {counts['missing']} missing", 1)

        yield done


HEADINGS: dict[str, str] = {
    "strict": "strict",
    "format_set_aside": "format set aside",
    "business_effects": "business effects",
    "final_delivery": "final delivery",
    "authorisation_binding": "authorisation",
    "recovery": "recovery",
}
"""Scores as tables name them."""

INTERVALS = ("strict", "format_set_aside")
"""Scores that tables print with their intervals."""


def _print(console: Console, result: Mapping[str, Any]) -> None:
    """The rows, and whether the calibration holds, for people."""
    if console.quiet:
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title=f"contract cases: {len(result['cases'])}",
        title_justify="left",
        caption="counts of n; scores with 95 % Wilson intervals and, in brackets, the mean over "
        "families of equal weight, %. strict: all four observations",
        caption_justify="left",
    )
    table.add_column("policy", no_wrap=True)
    for heading in ("n", *HEADINGS.values()):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in result["rows"]:
        n = f"{row['n']}" + (f" +{row['missing']} missing" if row["missing"] else "")
        table.add_row(escape(row["policy"]), n, *(_cell(row, name) for name in HEADINGS))
    console.print(table)
    rows = result["calibration"]
    wrong = [row for row in rows if row["expected_faults"] != row["observed_faults"]]
    console.print(
        f"calibration: {len(rows) - len(wrong)} of {len(rows)} trajectories come out as expected"
    )
    for row in result["rows"]:
        for warning in row["warnings"]:
            console.print(f"{row['policy']}: {warning}", markup=False, soft_wrap=True)
        for reason, number in row["missing_reasons"].items():
            console.print(f"missing, {row['policy']}: {number} x {reason}", markup=False)
        if row.get("stopped"):
            console.print(
                f"the budget {row['stopped']} ended {row['policy']}; the same command with a "
                "higher one goes on",
                markup=False,
            )


def _cell(row: Mapping[str, Any], name: str) -> str:
    if name not in INTERVALS or not row["n"]:
        return str(row[name])
    low, high = (100 * end for end in row["ci"][name])
    return f"{row[name]} [{low:.0f}, {high:.0f}] ({100 * row['family_means'][name]:.0f})"


def _keep(
    out: Path,
    subjects: Sequence[Policy | CaseModel],
    chosen: Sequence[Case],
    result: Mapping[str, Any],
) -> None:
    """The manifest and the summary beside the transcripts."""
    from evaluation.cases.run import CaseModel
    from evaluation.manifest import ended, new_manifest, write_manifest

    config = {
        "kind": KIND,
        "version": result["version"],
        "cases": [one.id for one in chosen],
        "models": {one.spec: one.way() for one in subjects if isinstance(one, CaseModel)},
    }
    manifest = new_manifest(
        preset="cases",
        config=config,
        seed=0,
        worlds=[],
        policies=[one.spec for one in subjects],
        command=typed_command(),
    )
    write_manifest(ended(manifest, "complete"), out / "manifest.json")
    write_json(result, str(out / "summary.json"))


def _grade(answer: str, case: str | None, json_target: str | None) -> None:
    """Grade a trajectory by hand."""
    from evaluation.cases.data import case_named
    from evaluation.cases.grading import OBSERVATIONS
    from evaluation.cases.trajectories import play, read_trajectory

    if case is None:
        raise UserError("--answer needs --case ID; `exactlyonce cases` plays all and lists them")
    trajectory = read_trajectory(_text_of(answer), "stdin" if answer == "-" else answer)
    world, found = play(case_named(case), trajectory)
    console = human_console(json_target)
    for one in world.log:
        outcome = one.error or str(one.reply.get("state", "answered"))
        console.print(f"{one.number + 1}. {one.tool_word}: {outcome}", markup=False)
    for name in OBSERVATIONS:
        console.print(f"{HEADINGS[name]}: {'holds' if found.holds(name) else 'fails'}")
        for fault in found.faults[name]:
            console.print(f"  {fault}", markup=False, soft_wrap=True)
    console.print(
        f"strict: {'pass' if found.holds('strict') else 'fail'}; with the format set aside: "
        f"{'pass' if found.holds('format_set_aside') else 'fail'}"
    )
    if json_target is not None:
        result = {
            **world.case.to_dict(),
            **found.to_dict(),
            "calls": [one.to_dict() for one in world.log],
            "ledger": [effect.to_dict() for effect in world.ledger],
        }
        write_json(result, json_target)


def _text_of(answer: str) -> str:
    """The text of a file, or of stdin."""
    name = "stdin" if answer == "-" else answer
    try:
        if answer == "-":
            data = sys.stdin.buffer.read(LONGEST_ANSWER + 1)
        else:
            with Path(answer).open("rb") as file:
                data = file.read(LONGEST_ANSWER + 1)
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{name} is no UTF-8 text") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{name} cannot be read: {reason}") from None
    if len(data) > LONGEST_ANSWER:
        raise UserError(f"{name} is larger than {LONGEST_ANSWER:,} bytes")
    return text


def _show(case: str, json_target: str | None) -> None:
    """Print what a model is told of a case, word for word."""
    from evaluation.cases.data import case_named
    from evaluation.cases.prompts import CASES_VERSION, system_text, task_text
    from evaluation.cases.tools import tools_of

    chosen = case_named(case)
    console = human_console(json_target)
    for role, text in (("system", system_text()), ("user", task_text(chosen))):
        console.print(f"--- {role}, {chosen.id}, version {CASES_VERSION} ---", markup=False)
        console.print(text, markup=False, soft_wrap=True)
    for tool in tools_of(chosen.domain):
        console.print(f"--- {tool.name} ---", markup=False)
        console.print(tool.description, markup=False, soft_wrap=True)
    if json_target is not None:
        result = {
            **chosen.to_dict(),
            "version": CASES_VERSION,
            "system": system_text(),
            "user": task_text(chosen),
            "tools": [
                {"name": t.name, "description": t.description, "input_schema": t.input_schema}
                for t in tools_of(chosen.domain)
            ],
        }
        write_json(result, json_target)
