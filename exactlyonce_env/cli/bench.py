"""`exactlyonce bench`: how fast this machine steps, beside a peer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from exactlyonce_env.cli.output import JsonTarget, human_console, progress_console, write_json
from exactlyonce_env.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console


def bench(
    rounds: Annotated[int, typer.Option("--rounds", metavar="N", help="Interleaved rounds.")] = 5,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", help="Seconds for each figure and round.")
    ] = 0.5,
    json_target: JsonTarget = None,
) -> None:
    """Measure steps per second beside Gymnasium's CartPole, interleaved in the same run.

    Medians over the rounds: the single environment and CartPole made the same way (both unwrapped),
    the native vector environments of both at several batch sizes with random actions and autoreset,
    and whole episodes of a scripted policy in the compiled loop.
    """
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
