"""`exactlyonce evaluate` and `exactlyonce sweep`: policies on the same worlds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from exactlyonce_env.cli.models import (
    Answers,
    AnswerTokens,
    BaseUrl,
    Belief,
    Concurrency,
    Labels,
    MaxTokens,
    MaxUsd,
    Menu,
    Price,
    PromptNames,
    Repeats,
    Retries,
    Scoring,
    Sockets,
    Temperature,
    Timeout,
    model_options,
    print_accounts,
    print_beliefs,
    print_endpoints,
    with_variants,
)
from exactlyonce_env.cli.options import (
    ConfigFile,
    Delays,
    OutFolder,
    PresetName,
    Seed,
    Worlds,
    measured_plan,
    positive_worlds,
    split_list,
    split_numbers,
)
from exactlyonce_env.cli.output import (
    JsonTarget,
    human_console,
    typed_command,
    write_json,
)
from exactlyonce_env.cli.progress import progress_bar

if TYPE_CHECKING:
    from rich.console import Console

    from evaluation.runner import Evaluation
    from evaluation.sweep import Sweep
    from exactlyonce_env.plan import Plan

Policies = Annotated[
    str | None,
    typer.Option(
        "--policies",
        metavar="A,B,...",
        help="Policies by spec, such as guard,wait:300; default all.",
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option(
        "--baseline", metavar="A", help="Policy that the others are compared with, paired."
    ),
]
SweptPreset = Annotated[
    str | None,
    typer.Argument(metavar="[PRESET]", help="Preset; default empirical, which needs --delays."),
]
Deltas = Annotated[
    str | None,
    typer.Option(
        "--deltas", metavar="S,S,...", help="Waiting bounds in seconds; default a grid to 2 h."
    ),
]


SANDBOX = "sandbox"
"""What takes the place of a preset where the tasks of the sandbox are run."""

_SANDBOX_PANEL = "Options of evaluate sandbox"


def _sandbox(flag: str, metavar: str, text: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=text, rich_help_panel=_SANDBOX_PANEL)


SandboxFaults = Annotated[
    str | None, _sandbox("--faults", "A,B,...", "Fault modes, ok for none; default all twelve.")
]
SandboxContracts = Annotated[
    str | None,
    _sandbox("--contract", "A,B", "native, keys-everywhere or both [native]."),
]
SandboxWrappers = Annotated[
    str | None,
    _sandbox("--wrapper", "A,B,...", "Wrappers around the tools, such as guard [none]."),
]
SandboxTasks = Annotated[str | None, _sandbox("--tasks", "A,B,...", "Tasks; default all twelve.")]
SandboxInstances = Annotated[
    str | None,
    _sandbox("--instances", "LIST", "Instances, such as 0,1 or 0:60 [0]."),
]
SandboxFirstSend = Annotated[
    str | None,
    _sandbox("--first-send", "HOW", "keyed (where a key is taken) or plain [keyed]."),
]
SandboxOperator = Annotated[
    str | None, _sandbox("--operator", "HOW", "answers or silent [answers].")
]
SandboxBy = Annotated[
    str | None, _sandbox("--by", "WHAT", "A row per policy, or per focal write [policy].")
]


def _refuse_strays(given: Mapping[str, Any], where: str) -> None:
    """Refuse options that say nothing here."""
    from exactlyonce_env.errors import UserError

    stray = next((name for name, value in given.items() if value is not None), None)
    if stray is not None:
        raise UserError(f"{stray} is an option of {where}")


def evaluate(
    preset: PresetName,
    policies: Policies = None,
    worlds: Worlds = 20000,
    seed: Seed = 0,
    baseline: Baseline = None,
    with_sweep: Annotated[
        bool, typer.Option("--sweep", help="Sweep the waiting bound too, and plot the frontier.")
    ] = False,
    config: ConfigFile = None,
    delays: Delays = None,
    faults: SandboxFaults = None,
    contract: SandboxContracts = None,
    wrapper: SandboxWrappers = None,
    tasks: SandboxTasks = None,
    instances: SandboxInstances = None,
    first_send: SandboxFirstSend = None,
    operator: SandboxOperator = None,
    by: SandboxBy = None,
    base_url: BaseUrl = None,
    concurrency: Concurrency = None,
    repeats: Repeats = None,
    prompt: PromptNames = None,
    menu: Menu = None,
    labels: Labels = None,
    belief: Belief = None,
    scoring: Scoring = None,
    answers: Answers = None,
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
    """Compare policies on literally the same worlds.

    Prints a row for each policy: shares and means with 95 % intervals, regret to the clairvoyant
    bound, and, with a baseline, paired differences. With --out the episodes are kept as parquet
    beside a manifest; the same command resumes an interrupted run.

    `evaluate sandbox` runs the tasks of the sandbox instead, each focal write with each fault,
    under the recovery driver: it does the happy path and hands what goes wrong to the policy. Every
    episode has a twin without the fault: nominal is the share of twins that were exactly once,
    recovery that of the episodes whose twin was.

    llm:MODEL asks a language model for every decision, at --base-url with the key in
    OPENAI_API_KEY; llm:local is a small one that runs here. Every call is kept in RUN as it
    happens, and the same command pays for none of them twice.
    """
    asking = {
        "--base-url": base_url,
        "--concurrency": concurrency,
        "--repeats": repeats,
        "--prompt": prompt,
        "--menu": menu,
        "--labels": labels,
        "--belief": belief or None,
        "--scoring": scoring,
        "--answers": answers,
        "--temperature": temperature,
        "--answer-tokens": answer_tokens,
        "--timeout": timeout,
        "--retries": retries,
        "--sockets": sockets,
        "--price": price,
        "--max-usd": max_usd,
        "--max-tokens": max_tokens,
    }
    asked = {
        "--faults": faults,
        "--contract": contract,
        "--wrapper": wrapper,
        "--tasks": tasks,
        "--instances": instances,
        "--first-send": first_send,
        "--operator": operator,
        "--by": by,
    }
    if preset == SANDBOX:
        from exactlyonce_env.cli.sandbox_runs import DEFAULT, evaluate_sandbox

        strays = {"--config": config, "--delays": delays, "--baseline": baseline}
        _refuse_strays(strays, "worlds of a preset")
        _refuse_strays({"--belief": belief or None}, "worlds of a preset")
        chosen_here = DEFAULT if policies is None else split_list(policies, "--policies")
        evaluate_sandbox(
            with_variants(chosen_here, asking), asked, model_options(asking), out, json_target
        )
        return
    _refuse_strays(asked, f"`evaluate {SANDBOX}`")
    from evaluation.runner import evaluate as run_evaluation
    from evaluation.runner import resolve_policies
    from evaluation.summary import summarise
    from evaluation.sweep import beyond_notes
    from policies.llm.policy import LOCAL
    from policies.spec import LINEUP

    chosen = list(LINEUP) if policies is None else split_list(policies, "--policies")
    count = positive_worlds(worlds)
    chosen_policies = with_variants(chosen, asking)
    specs = list(resolve_policies(chosen_policies))
    for one in chosen_policies:
        if not isinstance(one, str) and one.model != LOCAL:
            one.connect()  # what is amiss is told before anything is run
    models = model_options(asking) if any(s.startswith("llm:") for s in specs) else None
    if baseline is not None:
        from policies.spec import parse_policy

        baseline = parse_policy(baseline).spec
    _check_baseline(baseline, specs)
    plan, warnings = measured_plan(preset, config, delays)
    with progress_bar(len(specs) * count) as progress:
        found = run_evaluation(
            plan,
            chosen_policies,
            worlds=count,
            seed=seed,
            out=out,
            command=typed_command(),
            progress=progress,
            models=models,
        )
    result: dict[str, Any] = {
        "preset": plan.preset.name,
        "seed": seed,
        "worlds": count,
        "baseline": baseline,
        "rows": summarise(found, baseline),
        "notes": beyond_notes(plan, specs),
        "warnings": warnings,
    }
    if belief:
        _add_beliefs(result["rows"], found)
    console = human_console(json_target)
    _print_rows(console, plan, result)
    result["spent"] = {spec: account.spent for spec, account in found.accounts.items()}
    print_accounts(console, result["rows"], result["spent"], out is not None)
    print_endpoints(
        console, {url: None for account in found.accounts.values() for url in account.addresses}
    )
    if belief:
        print_beliefs(console, result["rows"])
    _print_remarks(console, result)
    if models is not None and out is None:
        console.print("note: nothing of the models is kept; with --out RUN every call is")
    if with_sweep:
        result["sweep"] = _sweep(plan, None, count, seed, out and out / "sweep", out, console)
    if belief and out is not None:
        from evaluation.llm.belief_plot import plot_beliefs

        drawn = plot_beliefs(result["rows"], out / "beliefs", plan.preset.name)
        if drawn:
            console.print("beliefs: " + " and ".join(str(path) for path in drawn))
    if out is not None:
        write_json(result, str(out / "summary.json"))
        console.print(f"episodes, manifest and summary are in {out}", markup=False)
    if json_target is not None:
        write_json(result, json_target)


def _add_beliefs(rows: Sequence[dict[str, Any]], found: Evaluation) -> None:
    """Hold what was believed, and what was decided, against the exact posteriors."""
    from evaluation.llm.belief import (
        MAX_WORLDS,
        Exact,
        actions_of,
        belief_row,
        decision_curve,
    )
    from policies.llm.policy import LLMPolicy

    exact = Exact(found.plan, found.seed)
    first, stop = found.worlds
    worlds = range(first, min(stop, first + MAX_WORLDS))
    for row in rows:
        policy = found.policies[row["policy"]]
        if isinstance(policy, LLMPolicy):
            documents = list(found.accounts[row["policy"]].documents)
            row["belief"] = belief_row(exact, documents)
            played = ((d["world"], d["actions"]) for d in documents if d["world"] in worlds)
            row["decisions"] = decision_curve(exact, played)
        else:
            row["belief"] = None
            row["decisions"] = decision_curve(
                exact, actions_of(found.plan, policy, found.seed, worlds)
            )


def sweep(
    preset: SweptPreset = None,
    deltas: Deltas = None,
    worlds: Worlds = 20000,
    seed: Seed = 0,
    config: ConfigFile = None,
    delays: Delays = None,
    out: OutFolder = None,
    json_target: JsonTarget = None,
) -> None:
    """Find the waiting bound: what each delta gains and costs.

    Runs wait:delta and poll:delta over a grid on the same worlds and names the delta with the
    highest mean reward. With --delays FILE the delays are your own measured ones; a delta beyond
    the last observation is refused. With --out the episodes, the rows and the frontier plot (PNG
    and SVG) are kept.
    """
    plan, warnings = measured_plan(preset or "empirical", config, delays)
    grid = None if deltas is None else split_numbers(deltas, "--deltas")
    console = human_console(json_target)
    result = _sweep(plan, grid, positive_worlds(worlds), seed, out, out, console, warnings)
    if json_target is not None:
        write_json(result, json_target)


def _sweep(
    plan: Plan,
    deltas_s: Sequence[float] | None,
    worlds: int,
    seed: int,
    out: Path | None,
    plots: Path | None,
    console: Console,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    from evaluation.sweep import COMPANIONS, FAMILIES, default_deltas_s
    from evaluation.sweep import sweep as run_sweep

    grid = default_deltas_s(plan) if deltas_s is None else deltas_s
    with progress_bar((len(grid) * len(FAMILIES) + len(COMPANIONS)) * worlds) as progress:
        found = run_sweep(
            plan,
            grid,
            worlds=worlds,
            seed=seed,
            out=out,
            command=typed_command(),
            progress=progress,
        )
    best = {family: _best_row(found, family) for family in FAMILIES}
    result = {
        "preset": plan.preset.name,
        "seed": seed,
        "worlds": worlds,
        "rows": found.rows,
        "best_delta_s": found.best["wait"].delta_s,
        "best": best,
        "with_key": found.with_key,
        "notes": found.notes,
        "warnings": list(warnings),
    }
    _print_sweep(console, plan, found)
    _print_remarks(console, result)
    if plots is not None:
        from evaluation.frontier import plot_frontier

        title = f"{plan.preset.name}: {worlds:,} worlds, seed {seed}"
        written = plot_frontier(found.points, found.bounds, plots / "frontier", title=title)
        console.print("frontier: " + " and ".join(str(path) for path in written))
        write_json(result, str(plots / "sweep.json"))
    return result


def _best_row(found: Sweep, family: str) -> dict[str, Any]:
    best = found.best[family]
    return {"delta_s": best.delta_s, "reward": best.reward, "interval_s": [best.low_s, best.high_s]}


def _check_baseline(baseline: str | None, specs: Sequence[str]) -> None:
    from exactlyonce_env.errors import UserError

    if baseline is not None and baseline not in specs:
        raise UserError(f"--baseline {baseline!r} is not among --policies {', '.join(specs)}")


SIGNIFICANT = 0.05
CAPTION = "shares of episodes; ± half of the 95 % interval; * sees hidden state"
CAPTION_VERSUS = (
    "; last column: exactly once against the baseline in percentage points, ° where the exact "
    "McNemar test (Holm) does not tell them apart at 5 %"
)


def _print_rows(console: Console, plan: Plan, result: Mapping[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title=f"{plan.preset.name}: {result['worlds']:,} worlds, seed {result['seed']}",
        caption=CAPTION + (CAPTION_VERSUS if result["baseline"] is not None else ""),
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("policy", no_wrap=True)
    for heading in ("exactly once", "duplicated", "not permitted", "overclaimed", "unresolved"):
        table.add_column(f"{heading} %", justify="right")
    for heading in ("mean time", "reward", "regret"):
        table.add_column(heading, justify="right")
    if result["baseline"] is not None:
        table.add_column(escape(f"vs {result['baseline']}"), justify="right")
    for row in result["rows"]:
        cells = [escape(row["policy"]) + ("*" if row["privileged"] else "")]
        cells += [
            _share(row, name)
            for name in (
                "exactly_once",
                "duplicate_rate",
                "false_retry_permission_rate",
                "overclaim_rate",
                "unresolved",
            )
        ]
        if not row["episodes"]:
            table.add_row(*cells)
            continue
        cells += [_seconds(row["elapsed_s"]), _number(row, "reward"), _number(row, "regret")]
        if result["baseline"] is not None:
            cells.append(_versus(row))
        table.add_row(*cells)
    console.print(table)


def _share(row: Mapping[str, Any], name: str) -> str:
    if row[name] is None:
        return "–"
    low, high = row["ci"][name]
    if low is None:
        return f"{100 * row[name]:.1f}"
    return f"{100 * row[name]:.1f} [dim]±{50 * (high - low):.1f}[/dim]"


def _number(row: Mapping[str, Any], name: str) -> str:
    low, high = row["ci"][name]
    half = "" if low is None else f" [dim]±{(high - low) / 2:.3f}[/dim]"
    return f"{row[name]:.3f}{half}"


def _versus(row: Mapping[str, Any]) -> str:
    found = row.get("versus")
    if found is None:
        return "baseline"
    low, high = found["ci"]["exactly_once"]
    sign = "°" if found["mcnemar"]["p_holm"] >= SIGNIFICANT else ""
    return f"{100 * found['exactly_once']:+.1f} [dim]±{50 * (high - low):.1f}[/dim]{sign}"


def _seconds(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds < 1000 else f"{seconds:,.0f} s"


def _print_sweep(console: Console, plan: Plan, found: Sweep) -> None:
    from rich.table import Table

    measured = any(row["landed"] is not None for row in found.rows)
    table = Table(title=f"{plan.preset.name}: the waiting bound", title_justify="left")
    table.add_column("policy", no_wrap=True)
    if measured:
        table.add_column("landed by then %", justify="right")
    for heading in ("exactly once %", "duplicated %", "mean time", "reward"):
        table.add_column(heading, justify="right")
    best = {(b.family, b.delta_s) for b in found.best.values()}
    for row in found.rows:
        is_best = (row["family"], row["delta_s"]) in best
        name = f"[bold]{row['policy']} (best)[/bold]" if is_best else row["policy"]
        cells = [name]
        if row["exactly_once"] is None:
            table.add_row(*cells, *([""] if measured else []), row["note"], "", "", "")
            continue
        if measured:
            cells.append(_landed(row["landed"]))
        cells += [_share(row, "exactly_once"), _share(row, "duplicate_rate")]
        cells += [_seconds(row["elapsed_s"]), _number(row, "reward")]
        table.add_row(*cells)
    console.print(table)
    for b in found.best.values():
        console.print(
            f"best {b.family}: {b.delta_s:g} s (reward {b.reward:.3f}); the data do not tell it "
            f"from {b.low_s:g} to {b.high_s:g} s"
        )
    keyed = found.with_key
    console.print(
        f"with an idempotency key in place of waiting: exactly once "
        f"{_share(keyed, 'exactly_once')} %, reward {_number(keyed, 'reward')}"
    )


def _print_remarks(console: Console, result: Mapping[str, Any]) -> None:
    for note in result["notes"]:
        console.print(f"note: {note}", markup=False)
    for warning in result["warnings"]:
        console.print(f"warning: {warning}", markup=False)


def _landed(landed: Mapping[str, Any] | None) -> str:
    if landed is None:
        return ""
    if landed["value"] is None:  # delayed entry: so short a delay cannot show
        return "not seen"
    text = f"{100 * landed['value']:.1f}"
    if landed["low"] is not None:
        text += f" [dim]{100 * landed['low']:.1f}–{100 * landed['high']:.1f}[/dim]"
    return text
