"""`exactlyonce bench`: how fast this machine steps, beside a peer, and what training reaches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from exactlyonce_env.cli.options import named_folder, positive_worlds, split_list
from exactlyonce_env.cli.output import JsonTarget, human_console, progress_console, write_json
from exactlyonce_env.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console


def bench(
    rounds: Annotated[int, typer.Option("--rounds", metavar="N", help="Interleaved rounds.")] = 5,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", help="Seconds for each figure and round.")
    ] = 0.5,
    learning: Annotated[
        bool, typer.Option("--learning", help="Measure trained policies instead of speed.")
    ] = False,
    models: Annotated[
        bool,
        typer.Option(
            "--models", help="Measure model calls per second instead, at a fake endpoint."
        ),
    ] = False,
    coverage: Annotated[
        bool,
        typer.Option("--coverage", help="Measure how often each interval holds the truth instead."),
    ] = False,
    repetitions: Annotated[
        int | None,
        typer.Option(
            "--repetitions", metavar="N", help="With --coverage: experiments drawn [1000]."
        ),
    ] = None,
    presets: Annotated[
        str | None,
        typer.Option("--presets", metavar="NAMES", help="With --learning: presets, by commas."),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option("--seeds", metavar="LIST", help="With --learning: training seeds [0,1,2]."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="With --learning: folder of the runs, DIR/PRESET/seed-S; missing ones are trained "
            "there.",
            parser=named_folder,
        ),
    ] = None,
    worlds: Annotated[
        int | None,
        typer.Option(
            "--worlds",
            metavar="N",
            help="With --learning: held-out worlds [20000]; with --models: episodes [1000].",
        ),
    ] = None,
    json_target: JsonTarget = None,
) -> None:
    """Measure steps per second beside Gymnasium's CartPole, interleaved in the same run.

    Medians over the rounds: the single environment and CartPole made the same way (both unwrapped),
    the native vector environments of both at several batch sizes with random actions and autoreset,
    and whole episodes of a scripted policy in the compiled loop.

    With --learning: trained policies in held-out worlds, by preset and training seed, beside the
    best wait:delta and poll:delta and bayes-optimal on the same worlds. gap closed is
    (policy - wait) / (optimum - wait) in mean reward. Of contextual also by slices of its held-out
    contexts, and under delay laws that it does not draw. What is not trained yet is trained first,
    which takes the extra train and some minutes each.

    With --models: calls per second of 200 episodes at a time through the whole stack, every call
    stored, beside the bare SDK at the same fake endpoint; and how memory grows with the rounds.

    With --coverage: how often the intervals of the statistics hold the truth, over a grid of sizes
    and shares; exact where the outcomes can be counted, else drawn --repetitions times.
    """
    if coverage:
        from exactlyonce_env.cli.coverage import coverage as measure_coverage

        asked: dict[str, Any] = {
            "--learning": learning or None,
            "--models": models or None,
            "--seeds": seeds,
        }
        asked |= {"--presets": presets, "--out": out, "--worlds": worlds}
        stray = next((name for name, value in asked.items() if value is not None), None)
        if stray is not None:
            raise UserError(f"--coverage takes --repetitions and --json only, not {stray}")
        measure_coverage(repetitions, json_target)
        return
    if repetitions is not None:
        raise UserError("--repetitions says how much --coverage draws; add --coverage")
    if models:
        if learning:
            raise UserError("--models and --learning measure different things; choose one")
        _models(rounds, worlds, {"--presets": presets, "--seeds": seeds, "--out": out}, json_target)
        return
    if learning:
        _learning(presets, seeds, out, worlds, json_target)
        return
    given = {"--presets": presets, "--seeds": seeds, "--out": out, "--worlds": worlds}
    stray = next((name for name, value in given.items() if value is not None), None)
    if stray is not None:
        raise UserError(f"{stray} says what --learning measures; add --learning")
    if not 1 <= rounds <= 1000:
        raise UserError(f"--rounds must lie in 1..1000, not {rounds}")
    if not 0.01 <= seconds <= 600:
        raise UserError(f"--seconds must lie in 0.01..600, not {seconds:g}")
    from evaluation.bench import bench as measure

    with progress_console().status("compiling") as status:
        result = measure(rounds=rounds, seconds=seconds, progress=status.update)
    if json_target is not None:
        write_json(result, json_target)
    _print(human_console(json_target), result)


def _models(
    rounds: int, worlds: int | None, strays: dict[str, Any], json_target: str | None
) -> None:
    from evaluation.llm.speed import model_speed

    stray = next((name for name, value in strays.items() if value is not None), None)
    if stray is not None:
        raise UserError(f"{stray} says what --learning measures; add --learning")
    if not 1 <= rounds <= 1000:
        raise UserError(f"--rounds must lie in 1..1000, not {rounds}")
    with progress_console().status("starting") as status:
        found = model_speed(
            worlds=1000 if worlds is None else positive_worlds(worlds),
            rounds=rounds,
            progress=status.update,
        )
    console = human_console(json_target)
    console.print(
        f"{found['calls_per_s']:,.0f} model calls/s through the whole stack, "
        f"{found['sdk_calls_per_s']:,.0f} of the bare SDK ({found['ratio']:.2f}); "
        f"{found['episodes_open']} episodes open, {found['sockets']} requests in flight; "
        f"memory grew by {found['memory_growth_mib']:.1f} MiB over {rounds} rounds of "
        f"{found['calls']:,} calls"
    )
    if json_target is not None:
        write_json(found, json_target)


def _learning(
    presets: str | None,
    seeds: str | None,
    out: Path | None,
    worlds: int | None,
    json_target: str | None,
) -> None:
    from exactlyonce_env.cli.learning import PRESETS, SEEDS, WORLDS
    from exactlyonce_env.cli.learning import learning as measure

    if out is None:
        raise UserError("--learning needs --out DIR, the folder of the training runs")
    measure(
        PRESETS if presets is None else _once(split_list(presets, "--presets"), "--presets"),
        SEEDS if seeds is None else _seeds(seeds),
        out,
        WORLDS if worlds is None else positive_worlds(worlds),
        json_target,
    )


def _seeds(text: str) -> list[int]:
    entries = _once(split_list(text, "--seeds"), "--seeds")
    wrong = next((entry for entry in entries if not (entry.isascii() and entry.isdigit())), None)
    if wrong is not None:
        raise UserError(f"--seeds {wrong!r} is not a whole number from 0 on")
    return [int(entry) for entry in entries]


def _once(entries: list[str], what: str) -> list[str]:
    twice = next((entry for k, entry in enumerate(entries) if entry in entries[:k]), None)
    if twice is not None:
        raise UserError(f"{what} names {twice!r} twice")
    return entries


def _print(console: Console, result: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(title="steps per second (median)", title_justify="left")
    for heading, justify in (("", "left"), ("ExactlyOnce", "right"), ("CartPole", "right")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    table.add_column("ratio", justify="right")
    peer = result["gymnasium_cartpole"]
    table.add_row(
        "single",
        _rate(result["single"]),
        _rate(peer["single"]),
        f"{result['ratios']['single']:.1f}",
    )
    for n, figure in result["vector"].items():
        ratio = result["ratios"]["vector"][n]
        table.add_row(f"vector {int(n):,}", _rate(figure), _rate(peer["vector"][n]), f"{ratio:.2f}")
    table.add_row("rollout", _rate(result["rollout"]), "", "")
    console.print(table)
    console.print(f"memory per world: {result['memory_per_world_bytes']:.0f} bytes")


def _rate(steps_per_s: float) -> str:
    scale, unit = (1e6, "M") if steps_per_s >= 1e6 else (1e3, "k")
    return f"{steps_per_s / scale:.2f} {unit}"
