"""`exactlyonce train`: a policy that learns a preset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from exactlyonce_env.cli.options import (
    ConfigFile,
    Delays,
    PresetName,
    measured_plan,
    named_folder,
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

    from exactlyonce_env.plan import Plan
    from training.imitation import Labeller
    from training.settings import Settings

NEEDED = ("torch", "stable_baselines3", "sb3_contrib", "tensorboard")
"""What the extra `train` brings."""

RunFolder = Annotated[
    Path,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Folder of the run; the same command resumes an interrupted one.",
        parser=named_folder,
    ),
]
SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--settings",
        metavar="FILE",
        help="YAML, TOML or JSON that overrides the algorithm's settings.",
    ),
]


def train(
    preset: PresetName,
    out: RunFolder,
    algo: Annotated[
        str,
        typer.Option(
            "--algo", metavar="NAME", help="ppo, maskable-ppo, recurrent-ppo (slow) or dqn."
        ),
    ] = "maskable-ppo",
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            metavar="N",
            help="Steps of single worlds; default as configured, after imitation 0.",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="S", help="Of weights, exploration and worlds.")
    ] = 0,
    imitate: Annotated[
        int,
        typer.Option("--imitate", metavar="N", help="First learn from bayes-optimal in N worlds."),
    ] = 0,
    worlds: Annotated[
        int, typer.Option("--worlds", metavar="N", help="Held-out worlds of the last evaluation.")
    ] = 20_000,
    settings_file: SettingsFile = None,
    config: ConfigFile = None,
    delays: Delays = None,
    json_target: JsonTarget = None,
) -> None:
    """Train a policy with Stable-Baselines3 and evaluate it on held-out worlds.

    Training meets worlds from id 2^40 on, evaluation the first ones of seed 0, so the two never
    share one. The folder receives checkpoint.npz, which `evaluate --policies learned:DIR` takes,
    checkpoints on the way, TensorBoard logs and a manifest. Ctrl-C or SIGTERM saves the run at the
    end of the rollout; the same command goes on with it. --config and --delays change the preset,
    --settings the algorithm: training/configs shows what can be set.
    """
    require_extra()
    from training.run import train as run_training
    from training.settings import settings

    positive_worlds(worlds)
    if not 0 <= imitate <= 10**9:
        raise UserError(f"--imitate must lie in 0..1000000000, not {imitate}")
    plan, warnings = measured_plan(preset, config, delays)
    chosen = settings(algo, plan.preset.name, settings_file)
    console = human_console(json_target)
    for warning in warnings:
        console.print(f"warning: {warning}", markup=False)
    if steps is None:
        steps = 0 if imitate else chosen.steps
    with _progress(steps) as progress:
        result = run_training(
            plan,
            algo,
            chosen,
            steps=steps,
            seed=seed,
            out=out,
            imitate_worlds=imitate,
            labeller=teacher(plan, chosen) if imitate else None,
            worlds=worlds,
            command=bare_command(),
            progress=progress,
        )
    _print(console, result, out)
    if json_target is not None:
        write_json(result, json_target)


def require_extra() -> None:
    """Refuse, in a line that says what to install, where the extra `train` is missing."""
    missing = missing_extra()
    if missing is not None:
        raise UserError(
            f"training needs {missing}, which is not installed: "
            "pip install 'exactlyonce-env[train]'"
        )


def missing_extra() -> str | None:
    """The first package of the extra `train` that is not installed."""
    return next((name for name in NEEDED if find_spec(name) is None), None)


def teacher(plan: Plan, chosen: Settings) -> Labeller:
    """The exact optimum as a teacher."""
    from policies.bayes import q_values
    from training.settings import ImitationSettings, PpoSettings

    phase = chosen.imitation if isinstance(chosen, PpoSettings) else ImitationSettings()
    return lambda batch: q_values(plan, batch.views, phase.step_price)


def bare_command() -> list[str]:
    """The command line without folders of this machine."""
    from evaluation.manifest import strip_command

    return list(strip_command(typed_command()))


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int, str], None]]:
    """A bar on stderr while the policy learns, where somebody can watch."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:<26}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=progress_console(), transient=True) as bar:
        task = bar.add_task("starting", total=total)

        def report(done: int, text: str) -> None:
            bar.update(task, description=text, completed=min(done, total))

        yield report


def _print(console: Console, result: dict[str, Any], out: Path) -> None:
    held_out = result["held_out"]
    error = held_out["standard_error"]
    half = "" if error is None else f" ± {1.96 * error:.4f}"
    learned = []
    if result["imitated_worlds"]:
        learned.append(f"imitation in {result['imitated_worlds']:,} worlds")
    if result["steps"]:
        learned.append(
            f"{result['steps']:,} steps ({100 * result['env_share']:.1f} % of the time in the "
            "environment)"
        )
    console.print(
        f"{result['preset']}, {result['algorithm']}, seed {result['seed']}: "
        f"{' and '.join(learned)} in {result['train_s']:.0f} s",
        markup=False,
    )
    console.print(
        f"mean reward in {held_out['worlds']:,} held-out worlds of seed {held_out['seed']}: "
        f"{held_out['reward']:.4f}{half}",
        markup=False,
    )
    console.print(f"the network is in {out / result['checkpoint']}", markup=False)
