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
    print_endpoints,
)
from exactlyonce_env.cli.options import OutFolder, split_list
from exactlyonce_env.cli.output import (
    JsonTarget,
    human_console,
    typed_command,
    write_json,
)
from exactlyonce_env.cli.progress import progress_bar

if TYPE_CHECKING:
    from evaluation.llm.agent_run import Agent
    from evaluation.llm.models import ModelOptions
    from evaluation.manifest import Status
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
    planned = {one: agent_cells(one, **factors) for one in agents}
    result: dict[str, Any] = {
        "preset": "sandbox",
        "by": by,
        "protocol": protocol,
        "rows": [],
        "spent": {},
    }
    endpoints: dict[str, None] = {}
    with _folder(out, agents, factors):
        for one, cells in planned.items():
            rows, spent, addresses = _run(one, cells, twins, options, out, by)
            result["rows"] += rows
            result["spent"][one.spec] = spent
            endpoints |= dict.fromkeys(addresses)
        if out is not None:
            others = _others(out, [one.spec for one in agents], by)
            write_json(result | {"rows": others + result["rows"]}, str(out / "summary.json"))
    print_rows(console, result["rows"], by, "agents in the sandbox")
    print_accounts(console, result["rows"], result["spent"], out is not None)
    print_endpoints(console, endpoints)
    if out is not None:
        console.print(f"transcripts, manifest and summary are in {out}", markup=False)
    else:
        console.print("note: nothing is kept; with --out RUN every call is")
    if json_target is not None:
        write_json(result, json_target)


@contextmanager
def _folder(
    out: Path | None, agents: Sequence[Agent], factors: Mapping[str, Any]
) -> Iterator[None]:
    """Hold the run folder, whose manifest says how it ended."""
    if out is None:
        yield
        return
    from evaluation.llm.agent_folder import begin_folder
    from evaluation.manifest import ended, write_manifest
    from evaluation.run_folder import FolderLock, manifest_path, require_run_or_empty

    require_run_or_empty(out)
    out.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(out)
    manifest = None
    try:
        manifest = begin_folder(out, agents, factors, typed_command())
        yield
        write_manifest(ended(manifest, "complete"), manifest_path(out))
    except BaseException as error:
        status: Status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        if manifest is not None:
            write_manifest(ended(manifest, status), manifest_path(out))
        raise
    finally:
        lock.release()


def _run(
    one: Agent,
    cells: Sequence[Cell],
    twins: bool,
    options: ModelOptions,
    out: Path | None,
    by: str,
) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]], list[str]]:
    """Run one agent and account for it: its rows, all its calls by use, and who answered."""
    from evaluation.llm.agent_run import episodes_of, place_of, run_agent
    from evaluation.llm.agent_summary import agent_rows
    from evaluation.llm.calling import Calls
    from evaluation.llm.spending import spending
    from evaluation.llm.store import open_store
    from policies.llm.policy import LLMPolicy

    beside = [c for c in dict.fromkeys(cell.twin for cell in cells) if c not in set(cells)]
    wanted = [*beside, *cells] if twins else list(cells)
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
        return (
            agent_rows(cells, found, documents, by, calls.stopped),
            spending(store, one.spec, twins={place_of(cell) for cell in beside}),
            store.addresses,
        )


def _others(out: Path, here: Sequence[str], by: str) -> list[dict[str, Any]]:
    """The rows of the folder's agents that earlier commands ran."""
    from evaluation.llm.agent_folder import planned_cells
    from evaluation.llm.agent_run import episodes_of
    from evaluation.llm.agent_summary import agent_rows
    from evaluation.llm.store import open_store
    from evaluation.manifest import read_manifest
    from evaluation.run_folder import manifest_path

    rows = []
    with open_store(out, readonly=True) as store:
        for spec, cells in planned_cells(read_manifest(manifest_path(out))).items():
            if spec not in here:
                found, documents = episodes_of(store, [*(c.twin for c in cells), *cells])
                rows += agent_rows(cells, found, documents, by)
    return rows


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
