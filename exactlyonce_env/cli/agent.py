"""`exactlyonce agent`: a language model does the tasks of the sandbox with tool calls."""

from __future__ import annotations

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
    print_accounts,
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
    from evaluation.llm.agent_run import Agent
    from evaluation.llm.models import ModelOptions
    from evaluation.sandbox import Cell


def agent(
    model: Annotated[
        str, typer.Option("--model", metavar="NAME", help="The endpoint's name of it, or local.")
    ],
    tasks: Annotated[
        str | None, typer.Option("--tasks", metavar="A,B,...", help="Tasks; default all twelve.")
    ] = None,
    faults: Annotated[
        str | None,
        typer.Option("--faults", metavar="A,B,...", help="Fault modes; default all twelve."),
    ] = None,
    wrappers: Annotated[
        str, typer.Option("--wrappers", metavar="A,B,...", help="Wrappers around the tools.")
    ] = "none",
    prompts: Annotated[
        str,
        typer.Option("--prompts", "--prompt", metavar="A,B,...", help="vanilla, aware, reflect."),
    ] = "vanilla",
    contracts: Annotated[
        str, typer.Option("--contract", metavar="A,B", help="native, keys-everywhere or both.")
    ] = "native",
    docs: Annotated[
        str, typer.Option("--docs", metavar="A,B,...", help="default, no-consistency, explicit.")
    ] = "default",
    instruction: Annotated[
        str, typer.Option("--instruction", metavar="HOW", help="default or no-cue.")
    ] = "default",
    operator: Annotated[
        str, typer.Option("--operator", metavar="HOW", help="answers or silent.")
    ] = "answers",
    instances: Annotated[
        str, typer.Option("--instances", metavar="LIST", help="Instances, such as 0,1 or 0:60.")
    ] = "0",
    writes: Annotated[
        str | None,
        typer.Option("--writes", metavar="A,B,...", help="Focal writes; default all of a task."),
    ] = None,
    protocol: Annotated[
        str, typer.Option("--protocol", metavar="HOW", help="chat or responses.")
    ] = "chat",
    twins: Annotated[
        bool,
        typer.Option("--twins/--no-twins", help="Run each task without a fault as well."),
    ] = True,
    by: Annotated[
        str, typer.Option("--by", metavar="WHAT", help="A row per policy, or per focal write.")
    ] = "policy",
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
    """Run a language model as an agent: whole tasks of the sandbox, with tool calls.

    Each focal write of each task meets each fault; every episode has a twin without the fault, so
    that nominal competence and recovery are told apart. The ledger grades, never a model. Every
    call is kept in RUN as it happens; the same command goes on there and pays for none twice.
    Episodes to which the provider gave no answer are missing: counted, never scored.
    """
    from evaluation.llm.agent_run import Agent, agent_cells
    from evaluation.sandbox import BY, check_names
    from exactlyonce_env.cli.sandbox_runs import parse_instances, print_rows
    from exactlyonce_env.sandbox.contracts import FAULTS
    from exactlyonce_env.sandbox.tasks import TASKS
    from policies.llm.asking import Settings

    check_names(("--by", (by,), BY))
    asked = {
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
    options = model_options(asked)
    settings = Settings(**given_settings(asked))
    agents = [
        Agent(model, condition, protocol, settings)
        for condition in split_list(prompts, "--prompts")
    ]
    factors: dict[str, Any] = {
        "wrappers": split_list(wrappers, "--wrappers"),
        "contracts": split_list(contracts, "--contract"),
        "faults": FAULTS[1:] if faults is None else split_list(faults, "--faults"),
        "tasks": tuple(TASKS) if tasks is None else split_list(tasks, "--tasks"),
        "instances": parse_instances(instances),
        "writes": None if writes is None else split_list(writes, "--writes"),
        "docs": split_list(docs, "--docs"),
        "instruction": instruction,
        "operator": operator,
        "repeats": options.repeats,
    }
    console = human_console(json_target)
    rows: list[dict[str, Any]] = []
    planned = {one: agent_cells(one, **factors) for one in agents}
    lock = None
    if out is not None:
        from evaluation.run_folder import FolderLock

        _refuse_other_run(out)
        out.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(out)
    for one, cells in planned.items():
        wanted = list(dict.fromkeys([*(c.twin for c in cells), *cells])) if twins else cells
        rows += _rows(one, cells, wanted, options, out, by)
    result = {"preset": "sandbox", "by": by, "protocol": protocol, "rows": rows}
    print_rows(console, rows, by, "agents in the sandbox")
    print_accounts(console, rows)
    if out is not None:
        _keep(out, result, agents, factors)
        console.print(f"transcripts, manifest and summary are in {out}", markup=False)
    else:
        console.print("note: nothing is kept; with --out RUN every call is")
    if lock is not None:
        lock.release()
    if json_target is not None:
        write_json(result, json_target)


def _refuse_other_run(out: Path) -> None:
    """Refuse a file, and the folder of another kind of run, whose manifest would be lost."""
    from evaluation.manifest import read_manifest
    from evaluation.run_folder import manifest_path

    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file, want a folder for the run")
    path = manifest_path(out)
    if path.exists() and read_manifest(path).config.get("kind") != "agent":
        raise UserError(f"{out} holds a run that is none of agents: choose another folder")


def _rows(
    one: Agent,
    cells: Sequence[Cell],
    wanted: Sequence[Cell],
    options: ModelOptions,
    out: Path | None,
    by: str,
) -> list[dict[str, Any]]:
    """Run one agent and account for it."""
    from evaluation.llm.agent_run import episodes_of, run_agent
    from evaluation.llm.agent_summary import agent_rows
    from evaluation.llm.calling import Calls
    from evaluation.llm.store import open_store
    from policies.llm.policy import LLMPolicy

    endpoint = LLMPolicy(one.model, settings=one.settings).connect()
    with open_store(out, secrets=getattr(endpoint, "secrets", ())) as store:
        store.same_way(one.spec, one.way())
        calls = Calls(
            endpoint,
            store,
            patience=options.patience,
            prices=options.prices,
            limits=options.limits,
        )
        with _progress(len(wanted)) as done:
            run_agent(one, wanted, calls, concurrency=options.concurrency, done=done)
        found, documents = episodes_of(store, wanted)
        return agent_rows(cells, found, documents, by, calls.stopped)


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    counts = {"returned": 0, "exact": 0, "missing": 0}
    with progress_bar(total) as advance:

        def done(document: Mapping[str, Any]) -> None:
            counts[document["status"]] += 1
            if document["status"] == "returned":
                counts["exact"] += bool(document["exactly_once"])
            share = counts["exact"] / max(counts["returned"], 1)
            advance(f"{document['policy']}: {share:.0%} exact, {counts['missing']} missing", 1)

        yield done


def _keep(
    out: Path, result: Mapping[str, Any], agents: Sequence[Agent], factors: Mapping[str, Any]
) -> None:
    """The manifest and the summary beside the transcripts."""
    from evaluation.manifest import ended, new_manifest, write_manifest

    config = {"kind": "agent", **factors, "agents": [one.way() for one in agents]}
    manifest = new_manifest(
        preset="sandbox",
        config=config,
        seed=0,
        worlds=[(k, k + 1) for k in factors["instances"]],
        policies=[one.spec for one in agents],
        command=typed_command(),
    )
    write_manifest(ended(manifest, "complete"), out / "manifest.json")
    write_json(result, str(out / "summary.json"))
