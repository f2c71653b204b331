"""`exactlyonce bench --learning`: what training reaches, measured against the exact optimum."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exactlyonce_env.cli.output import JsonTarget, human_console, progress_console, write_json
from exactlyonce_env.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from evaluation.learning import References
    from exactlyonce_env.plan import Plan
    from policies.base import Policy

PRESETS = (
    "late-fixed",
    "late-tail",
    "late-lomax",
    "stale-tail",
    "native",
    "keys-everywhere",
    "contextual",
)
"""What is trained where no preset is named."""
SEEDS = (0, 1, 2)
WORLDS = 20_000

ALGORITHM = "maskable-ppo"
TRAINED_ON: Mapping[str, Mapping[str, Any]] = {"contextual": {"split": "more"}}
"""Edits of the presets for training: with more contexts, but never those that are held out."""

AGREEMENT_WORLDS = 2000
"""Worlds, at most, in which each decision is held against the optimum."""
TRANSFER_WORLDS = 5000
"""Worlds, at most, under each unseen delay law."""

Say = Callable[[str], None]


def learning(
    presets: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    worlds: int,
    json_target: JsonTarget = None,
) -> None:
    """Train what is missing under ``out``, evaluate all of it, and print the tables.

    The run of a preset and a seed is ``out/PRESET/seed-S``; a complete one is taken as it is, and
    then nothing of the extra `train` is needed.

    Raises
    ------
    UserError
        For an unknown preset, a folder that holds another run, or a missing extra.
    """
    from exactlyonce_env.presets import load_plan

    plans = {preset: load_plan(preset, config=TRAINED_ON.get(preset)) for preset in presets}
    with progress_console().status("starting") as status:
        runs = {
            preset: {
                seed: _finished(plan, seed, out / preset / f"seed-{seed}", status.update)
                for seed in seeds
            }
            for preset, plan in plans.items()
        }
        result = measure(runs, worlds, status.update)
        result["speed"] = _speed(plans[presets[0]], status.update)
    if json_target is not None:
        write_json(result, json_target)
    _print(human_console(json_target), result)


def measure(
    runs: Mapping[str, Mapping[int, tuple[Path, Mapping[str, Any]]]], worlds: int, say: Say
) -> dict[str, Any]:
    """Hold trained policies against the references of their presets.

    Parameters
    ----------
    runs
        By preset and training seed: the folder of the run, and ``result`` of its manifest.
    worlds
        Held-out worlds 0..``worlds`` - 1 of seed 0; of ``contextual`` in its held-out contexts.
    say
        Called with what is being done.
    """
    import numpy as np

    from evaluation.learning import CONTEXTUAL, across_seeds, persistence
    from exactlyonce_env.presets import load_plan

    result: dict[str, Any] = {
        "worlds": worlds,
        "rows": [],
        "slices": [],
        "persistence_error_log2": None,
        "persistence": [],
        "agreement": [],
        "transfer": [],
    }
    for preset, by_seed in runs.items():
        contextual = preset == CONTEXTUAL
        plan = load_plan(preset, config={"split": "test"} if contextual else None)
        found = _references(plan, worlds, f"{preset}: ", say)
        policies = {seed: _policy(folder) for seed, (folder, _) in by_seed.items()}
        errors = []
        for seed, policy in policies.items():
            say(f"{preset}, seed {seed}: evaluating")
            trained = by_seed[seed][1]
            errors.append(_evaluate(result, found, preset, seed, policy, trained))
        if contextual:
            (pooled,) = persistence(np.concatenate(errors))
            result["persistence_error_log2"] = pooled["median_log2"]
            result["transfer"] = _transfer(policies, min(worlds, TRANSFER_WORLDS), say)
    result["across_seeds"] = across_seeds(result["rows"])
    return result


def _speed(plan: Plan, say: Say) -> list[dict[str, Any]]:
    """The learner's speed on a preset and on CartPole; empty without the extra `train`."""
    from exactlyonce_env.cli.train import missing_extra

    if missing_extra() is not None:
        return []
    from training.throughput import throughput

    return throughput(plan, progress=say)


def _references(plan: Plan, worlds: int, prefix: str, say: Say) -> References:
    from evaluation.learning import references

    return references(plan, worlds=worlds, progress=lambda text: say(prefix + text))


def _evaluate(
    result: dict[str, Any],
    found: References,
    preset: str,
    seed: int,
    policy: Policy,
    trained: Mapping[str, Any],
) -> Any:
    """Add one trained policy to the result; its persistence errors (n,) are returned."""
    import numpy as np

    from evaluation.learning import (
        CONTEXTUAL,
        agreement,
        first_reissues_s,
        persistence,
        persistence_errors,
        slices,
    )
    from policies.rollout import run_policy

    ids = np.arange(len(found))
    rewards = run_policy(found.plan, policy, found.seed, ids).rewards
    first_s = first_reissues_s(found.plan, policy, found.seed, ids)
    errors = persistence_errors(first_s, found.first_reissue_s)
    patience = persistence(errors, found.modes)
    named = {"preset": preset, "seed": seed}
    result["rows"].append(
        {
            **named,
            "policy": policy.spec,
            **found.gap(rewards).to_dict(),
            "bayes_predicted": found.predicted,
            "persistence_error_log2": patience[0]["median_log2"],
            "train_s": trained["train_s"],
            "env_share": trained["env_share"],
        }
    )
    result["persistence"] += [{**named, **row} for row in patience]
    rows = agreement(found.optimum.solution, policy, found.seed, ids[:AGREEMENT_WORLDS])
    result["agreement"] += [{**named, **row} for row in rows]
    if preset == CONTEXTUAL:
        for part in slices(found):
            gap = found.gap(rewards, part.members).to_dict()
            value = gap.pop("policy_value")
            result["slices"].append(
                {**named, "dimension": part.dimension, "slice": part.name, "value": value, **gap}
            )
    return errors


def _transfer(policies: Mapping[int, Policy], worlds: int, say: Say) -> list[dict[str, Any]]:
    """The policies of `contextual` under delay laws that it does not draw."""
    import numpy as np

    from evaluation.learning import TRANSFER_LAWS, told, transfer_plan
    from exactlyonce_env.delays import dump
    from policies.rollout import run_policy

    rows = []
    for name, law in TRANSFER_LAWS.items():
        plan = transfer_plan(law)
        found = _references(plan, worlds, f"{name}: ", say)
        for seed, policy in policies.items():
            rewards = run_policy(plan, policy, found.seed, np.arange(worlds)).rewards
            gap = found.gap(rewards).to_dict()
            rows.append({"law": name, "seed": seed, **gap, "told": told(plan), "delays": dump(law)})
    return rows


def _policy(folder: Path) -> Policy:
    from policies.learned import learned

    return learned("learned", str(folder))


def _finished(plan: Plan, seed: int, folder: Path, say: Say) -> tuple[Path, dict[str, Any]]:
    """The run of a seed, trained now unless it is complete, and ``result`` of its manifest."""
    found = _read(folder)
    if found is not None:
        for name, wanted in (("config", plan.preset.dump()), ("seed", seed)):
            if found.get(name) != wanted:
                raise UserError(
                    f"{folder} holds a run with another {name} than preset {plan.preset.name}, "
                    f"seed {seed} has; choose another folder"
                )
        if found.get("status") == "complete":
            return folder, found["result"]
    return folder, _train(plan, seed, folder, say)


def _read(folder: Path) -> dict[str, Any] | None:
    path = folder / "manifest.json"
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} is no manifest of a training run; choose another folder")
    return found


def _train(plan: Plan, seed: int, folder: Path, say: Say) -> dict[str, Any]:
    from exactlyonce_env.cli.train import bare_command, require_extra, teacher

    require_extra()
    from training.run import train
    from training.settings import PpoSettings, settings

    name = plan.preset.name
    chosen = settings(ALGORITHM, name)
    assert isinstance(chosen, PpoSettings)
    return train(
        plan,
        ALGORITHM,
        chosen,
        steps=0,
        seed=seed,
        out=folder,
        imitate_worlds=chosen.imitation.worlds,
        labeller=teacher(plan, chosen),
        command=bare_command(),
        progress=lambda done, text: say(f"{name}, seed {seed}: {text}, {done:,} steps"),
    )


def _print(console: Console, result: Mapping[str, Any]) -> None:
    tables = (_rows, _slices, _agreement, _transfers, _speeds)
    for table in (make(result) for make in tables):
        if table.row_count:
            console.print(table)
    _print_across_seeds(console, result["across_seeds"])
    error = result["persistence_error_log2"]
    if error is not None:
        console.print(f"contextual, first re-issue: median |log2(time / optimal time)| {error:.3f}")


def _print_across_seeds(console: Console, found: Mapping[str, Any]) -> None:
    if "why" in found:
        return
    words = {
        "iqm": "interquartile mean",
        "mean": "mean",
        "median": "median",
        "optimality_gap": "short of the optimum by",
    }
    told = ", ".join(
        f"{word} {found[name]['value']:.3f} ({found[name]['low']:.3f} to {found[name]['high']:.3f})"
        for name, word in words.items()
    )
    console.print(
        f"gap closed over {len(found['runs'])} seeds of {len(found['tasks'])} presets: {told}",
        soft_wrap=True,
    )
    profile = found["profile"]
    above = ", ".join(
        f"{at:g}: {100 * share:.0f} %"
        for at, share in zip(profile["thresholds"], profile["shares"], strict=True)
    )
    console.print(f"closed more than {above} of the policies", soft_wrap=True)


def _table(title: str, *headings: str) -> Table:
    """An empty table: names to the left, figures to the right."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for heading in headings:
        names = heading in ("preset", "of", "slice", "law", "learner", "environment")
        table.add_column(heading, justify="left" if names else "right")
    return table


def _rows(result: Mapping[str, Any]) -> Table:
    table = _table(
        f"mean reward in {result['worlds']:,} held-out worlds",
        *("preset", "seed", "policy", "best wait", "best poll", "optimum", "gap closed"),
        *("to optimum", "|log2 time|", "trained s", "env %"),
    )
    for row in result["rows"]:
        error = row["persistence_error_log2"]
        table.add_row(
            row["preset"],
            str(row["seed"]),
            f"{row['policy_value']:.4f}",
            _fixed(row["best_wait"]),
            _fixed(row["best_poll"]),
            f"{row['bayes_value']:.4f}",
            _gap(row),
            f"{row['difference']:+.4f}",
            "" if error is None else f"{error:.2f}",
            f"{row['train_s']:.0f}",
            f"{100 * row['env_share']:.1f}",
        )
    return table


def _slices(result: Mapping[str, Any]) -> Table:
    table = _table(
        "held-out contexts of contextual, by slice",
        *("of", "slice", "seed", "worlds", "policy", "best wait", "optimum", "gap closed"),
        "to optimum",
    )
    for row in result["slices"]:
        table.add_row(
            row["dimension"],
            row["slice"],
            str(row["seed"]),
            f"{row['worlds']:,}",
            f"{row['value']:.4f}",
            _fixed(row["best_wait"]),
            f"{row['bayes_value']:.4f}",
            _gap(row),
            f"{row['difference']:+.4f}",
        )
    return table


def _agreement(result: Mapping[str, Any]) -> Table:
    table = _table(
        "share of decisions within 0.001 of the best, by P(absent) in tenths",
        *("preset", "seed", *(f"{k / 10:.1f}" for k in range(10))),
    )
    cells: dict[tuple[str, int], list[str]] = {}
    for row in result["agreement"]:
        share = "" if row["share"] is None else f"{row['share']:.3f}"
        cells.setdefault((row["preset"], row["seed"]), []).append(share)
    for (preset, seed), shares in cells.items():
        table.add_row(preset, str(seed), *shares)
    return table


def _transfers(result: Mapping[str, Any]) -> Table:
    table = _table(
        "contextual under delay laws it was not trained on; its views tell the quantiles",
        *("law", "10, 50, 90, 99 % s", "bound told", "seed", "policy", "best wait", "optimum"),
        *("gap closed", "to optimum"),
    )
    for row in result["transfer"]:
        told = row["told"]
        table.add_row(
            row["law"],
            ", ".join(f"{at_s:.4g}" for at_s in told["quantiles_s"].values()),
            f"{100 * told['bounded']:.0f} %",
            str(row["seed"]),
            f"{row['policy_value']:.4f}",
            _fixed(row["best_wait"]),
            f"{row['bayes_value']:.4f}",
            _gap(row),
            f"{row['difference']:+.4f}",
        )
    return table


def _speeds(result: Mapping[str, Any]) -> Table:
    table = _table(
        "speed of the learner at the shipped settings, the same network and batch on CartPole",
        *("learner", "environment", "steps/s", "env %"),
    )
    for row in result["speed"]:
        table.add_row(
            row["learner"],
            row["environment"],
            f"{row['steps_per_s']:,.0f}",
            f"{100 * row['env_share']:.1f}",
        )
    return table


def _fixed(best: Mapping[str, Any]) -> str:
    return f"{best['value']:.4f} at {best['delta_s']:g}"


def _gap(row: Mapping[str, Any]) -> str:
    """The share with its interval; nothing where the gap is too narrow to say anything."""
    if row["gap_closed"] is None or row["narrow"]:
        return "narrow"
    low, high = row["gap_closed_ci"]
    interval = "" if low is None else f" [{low:.3f}, {high:.3f}]"
    # rich takes brackets for markup where letters follow, never for numbers.
    return f"{row['gap_closed']:.3f}{interval}"
