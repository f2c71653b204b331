"""`exactlyonce bounds` and `exactlyonce explain`: what can be earned at all, and how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from exactlyonce_env.cli.options import (
    ConfigFile,
    Delays,
    OutFolder,
    PresetName,
    Seed,
    Worlds,
    chosen_plan,
    measured_plan,
    positive_worlds,
)
from exactlyonce_env.cli.output import (
    JsonTarget,
    human_console,
    progress_console,
    typed_command,
    write_json,
)
from exactlyonce_env.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from evaluation.bounds import Bounds
    from evaluation.intervals import Estimate
    from exactlyonce_env.plan import Plan
    from policies.bayes.explanation import Explanation, Insight, Moment

MAX_ROWS = 24
"""Contracts that are listed one by one; of more the quantiles are shown."""
LEVELS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)

VALUE_NAMES: dict[str, str] = {
    "read": "read",
    "wait": "wait",
    "retry": "retry",
    "keyed_retry": "keyed retry",
    "escalate": "escalate",
    "finish": "finish",
    "finish_uncertain": "finish uncertain",
}


def named_plots(text: str) -> Path:
    """Return the folder that ``--plot`` names; nothing stands for no folder, not for this one."""
    if not text.strip():
        raise UserError("--plot is empty; name a folder for the plots, for instance runs/plots")
    return Path(text)


Plots = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        metavar="DIR",
        help="Draw the persistence curve and the decision map there, as PNG, SVG and JSON.",
        parser=named_plots,
    ),
]
ContextName = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME|N",
        help="Context that is drawn, by name or number; default the likeliest.",
    ),
]


def bounds(
    preset: PresetName,
    worlds: Worlds = 20000,
    seed: Seed = 0,
    config: ConfigFile = None,
    delays: Delays = None,
    plot: Plots = None,
    context: ContextName = None,
    out: OutFolder = None,
    json_target: JsonTarget = None,
) -> None:
    """Compute what the best honest policy earns, beside the other bounds.

    bayes-optimal is solved exactly from the preset's own distribution, and then played on the same
    worlds as the clairvoyant bound, the outcome oracle and wait:delta and poll:delta over a fine
    grid. Says how far prediction and simulation are apart; where contracts vary, also by contract
    (in full in the JSON). With --out the episodes, a manifest and bounds.json are kept.

    --plot draws, for one context, how long the optimum holds out before it re-issues as the ratio
    of duplicate to time cost varies, one line for each family of delays, and a map of its decisions
    over elapsed time and that ratio.
    """
    from evaluation.bounds import bounds as compute

    count = positive_worlds(worlds)
    plan, warnings = measured_plan(preset, config, delays)
    if context is not None and plot is None:
        raise UserError("--context names what --plot draws; add --plot DIR")
    chosen = 0
    if plot is not None:
        chosen = _drawn_context(plan, context)
        _make_folder(plot)
    with progress_console().status("starting") as status:
        found = compute(
            plan,
            worlds=count,
            seed=seed,
            out=out,
            command=typed_command(),
            progress=lambda policy, _: status.update(policy),
        )
        result = {**found.to_dict(), "warnings": warnings}
        if plot is not None:
            result["plots"] = _draw(plan, chosen, plot, status.update)
    console = human_console(json_target)
    _print_bounds(console, found)
    for warning in warnings:
        console.print(f"warning: {warning}", markup=False)
    if plot is not None:
        console.print(f"{', '.join(result['plots'])} are in {plot}", markup=False)
    if out is not None:
        write_json(result, str(out / "bounds.json"))
        console.print(f"episodes, manifest and bounds.json are in {out}", markup=False)
    if json_target is not None:
        write_json(result, json_target)


def explain(
    preset: PresetName,
    world: Annotated[int, typer.Option("--world", metavar="K", help="Id of the world.")],
    policy: Annotated[
        str, typer.Option("--policy", metavar="SPEC", help="Who plays, such as wait:300.")
    ] = "bayes-optimal",
    seed: Seed = 0,
    config: ConfigFile = None,
    delays: Delays = None,
    json_target: JsonTarget = None,
) -> None:
    """Replay one world and say what could be believed and what was best at every step.

    After each step: what the client saw, the posterior over the outcome states of the operation,
    the value of each action (the expected sum of all rewards to come), what the optimum does and
    why, and the regret of what the policy does instead. In the end, privileged, the ledger. The
    states, by the ledger of that moment: absent (nothing executed, nothing coming), committed, late
    (nothing yet, but coming), partial (some items only) and duplicated (some item twice, or certain
    to be).
    """
    from policies.bayes.explanation import explain as run_explain
    from policies.spec import parse_policy

    chosen = parse_policy(policy)
    plan = chosen_plan(preset, config, delays)
    with progress_console().status("solving"):
        found = run_explain(plan, chosen, seed, world)
    result = found.to_dict()
    shown = _seen_words(found)
    for step, words in zip(result["steps"], shown, strict=True):
        step["seen"] = words
    console = human_console(json_target)
    if not console.quiet:
        _print_explanation(console, found, shown)
    if json_target is not None:
        write_json(result, json_target)


def _drawn_context(plan: Plan, name: str | None) -> int:
    """Find the context to draw, and refuse one that cannot be drawn before any work is done."""
    from evaluation.persistence import choose_context, require_drawable

    chosen = choose_context(plan, name)
    require_drawable(plan, chosen)
    return chosen


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--plot {str(folder)!r} cannot be a folder: {error.strerror}") from error


def _draw(plan: Plan, context: int, folder: Path, report: Callable[[str], None]) -> list[str]:
    """Draw both plots, and write the numbers behind them; returns the files' names."""
    from evaluation.persistence import N_MOMENTS, RATIOS_H, decision_map, persistence
    from evaluation.persistence_plots import plot_decision_map, plot_persistence

    report("persistence curve")
    curves = persistence(plan, context, RATIOS_H)
    written = plot_persistence(curves, folder / "persistence")
    report("decision map")
    decisions = decision_map(plan, context, RATIOS_H, N_MOMENTS)
    written += plot_decision_map(decisions, folder / "decision-map")
    for name, numbers in (("persistence", curves), ("decision-map", decisions)):
        written.append(folder / f"{name}.json")
        write_json(numbers.to_dict(), str(written[-1]))
    return [path.name for path in written]


def _print_bounds(console: Console, found: Bounds) -> None:
    from rich.table import Table

    run = found.evaluation
    name, worlds = run.plan.preset.name, run.worlds[1] - run.worlds[0]
    title = f"{name}: what can be earned, {worlds:,} worlds, seed {run.seed}"
    table = Table(title=title, title_justify="left", min_width=len(title))
    table.add_column("", no_wrap=True)
    table.add_column("reward", justify="right")
    table.add_row("clairvoyant*", _reward(found.clairvoyant))
    table.add_row("outcome-oracle*", _reward(found.outcome_oracle))
    exact = f"{found.bayes_value:.4f} [dim]±{found.bayes_error_bound:.4f}[/dim]"
    table.add_row("[bold]bayes-optimal, exact[/bold]", exact)
    table.add_row("bayes-optimal, simulated", _reward(found.bayes_simulated))
    for family, best in (("poll", found.best_poll), ("wait", found.best_wait)):
        table.add_row(f"best {family}: {best.delta_s:g} s", _reward(best.reward))
    console.print(table)
    console.print(
        "mean reward of an episode ± half of the 95 % interval; exact: ± how far the true optimum "
        "may lie from it; * sees hidden state",
        markup=False,
    )
    difference = found.bayes_simulated.value - found.bayes_value
    console.print(
        f"simulated less exact: {difference:+.2g}, {found.standard_errors:+.1f} standard errors"
        + ("" if found.agrees else ": more than 3, so chance alone hardly explains it"),
        markup=False,
    )
    if len(found.contexts) > MAX_ROWS:
        _print_quantiles(console, found)
    elif found.contexts:
        _print_contracts(console, found)


def _reward(estimate: Estimate) -> str:
    low, high = estimate.ci
    half = "" if low is None or high is None else f" [dim]±{(high - low) / 2:.4f}[/dim]"
    return f"{estimate.value:.4f}{half}"


def _print_contracts(console: Console, found: Bounds) -> None:
    from rich.table import Table

    table = Table(title="By contract", title_justify="left")
    table.add_column("contract")
    for heading in ("weight %", "worlds", "exact", "simulated", "best wait", "its reward"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in found.contexts:
        others = f" and {len(row.names) - 1} more" if len(row.names) > 1 else ""
        cells = [row.names[0] + others, f"{100 * row.weight:.1f}", f"{row.worlds:,}"]
        cells.append(f"{row.bayes_value:.4f}")
        cells.append("" if row.simulated is None else _reward(row.simulated))
        if row.best_wait is None:
            cells += ["", ""]
        else:
            cells += [f"{row.best_wait.delta_s:g} s", _reward(row.best_wait.reward)]
        table.add_row(*cells)
    console.print(table)


def _print_quantiles(console: Console, found: Bounds) -> None:
    import numpy as np
    from rich.table import Table

    values = np.array([row.bayes_value for row in found.contexts])
    weights = np.array([row.weight for row in found.contexts])
    order = np.argsort(values)
    share = np.cumsum(weights[order]) / weights.sum()
    title = f"{len(values):,} contracts: quantiles of the exact value (--json has them all)"
    table = Table(title=title, title_justify="left", min_width=len(title))
    for level in LEVELS:
        name = {0.0: "least", 0.5: "median", 1.0: "greatest"}.get(level, f"{100 * level:g} %")
        table.add_column(name, justify="right")
    places = np.minimum(np.searchsorted(share, LEVELS), len(values) - 1)
    table.add_row(*(f"{values[order[place]]:.4f}" for place in places))
    console.print(table)


def _seen_words(found: Explanation) -> list[str]:
    """What each step showed the client."""
    from exactlyonce_env.replay_words import step_words

    steps = found.told.steps
    shown = (step_words(step, steps[k - 1].view if k else None) for k, step in enumerate(steps))
    return [words or "nothing new" for words in shown]


def _print_explanation(console: Console, found: Explanation, shown: Sequence[str]) -> None:
    from exactlyonce_env.cli.world_tables import replay_tables

    told = found.told
    context = f", context {told.context}" if told.context != told.preset else ""
    marked = found.policy + ("*" if found.privileged else "")
    console.print(
        f"{told.preset}: seed {told.seed}, world {told.world}{context}, played by {marked}",
        markup=False,
        style="bold",
    )
    for k, (step, moment) in enumerate(zip(told.steps, found.moments, strict=True)):
        console.print(f"\n{k}  at {_seconds(step.clock_s)}  {shown[k]}", markup=False, style="bold")
        _print_moment(console, found, moment)
    console.print(
        f"\nreward {told.reward:.4f}; regret of all decisions {found.regret:.4f}\n", markup=False
    )
    _, *end = replay_tables(told)
    console.print(*end, sep="\n")


def _print_moment(console: Console, found: Explanation, moment: Moment) -> None:
    if moment.posterior is None:
        console.print("   belief   nothing that the preset allows fits this view", markup=False)
    else:
        parts = [
            f"{name} {100 * p:.1f} %"
            for name, p in moment.posterior._asdict().items()
            if p > 0.0 or name in ("absent", "committed", "late")
        ]
        console.print("   belief   " + "   ".join(parts), markup=False)
    if moment.insight is None:
        return
    console.print("   values   " + _values(moment.insight))
    console.print(f"   optimum  {moment.insight.why}", markup=False, soft_wrap=True)
    if found.policy != "bayes-optimal" and moment.action is not None:
        console.print(f"   {_judged(moment)}", markup=False)


def _values(insight: Insight) -> str:
    best = insight.best.action.name.lower()
    parts = []
    for name, label in VALUE_NAMES.items():
        value = insight.values[name]
        if value is None:
            continue
        until = f" until {_seconds(insight.until_s)}" if name == "wait" and insight.until_s else ""
        text = f"{label}{until} {value:.4f}"
        parts.append(f"[bold]{text}[/bold]" if name == best else text)
    return "   ".join(parts)


def _judged(moment: Moment) -> str:
    assert moment.action is not None
    name, _, seconds = moment.action.partition(":")
    action = f"wait {_seconds(float(seconds))}" if seconds else VALUE_NAMES[name]
    if moment.value is None or moment.regret is None:
        return f"policy   {action}: not valued"
    return f"policy   {action}: worth {moment.value:.4f}, regret {moment.regret:.4f}"


def _seconds(seconds: float) -> str:
    from exactlyonce_env.view_text import number_text

    return f"{number_text(seconds, 1)} s"
