"""`exactlyonce presets`, `worlds` and `replay`: looking at worlds one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from exactlyonce_env.cli.options import ConfigFile, Delays, PresetName, Seed, chosen_plan
from exactlyonce_env.cli.output import JsonTarget, human_console, write_json
from exactlyonce_env.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

MAX_WORLDS = 1_000_000
"""Most worlds that one call writes out."""

Ids = Annotated[
    str,
    typer.Option(
        "--ids", metavar="A:B|I,J,...", help="World ids: a range without its end, or a list."
    ),
]
World = Annotated[int, typer.Option("--world", metavar="K", help="Id of the world.")]
Actions = Annotated[
    str,
    typer.Option(
        "--actions",
        metavar="A,B,...",
        help="What the client does: read, wait:SECONDS, retry, keyed_retry, escalate, finish, "
        "finish_uncertain. Without them, what it sees first.",
    ),
]


def presets(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Preset to print in full.")
    ] = None,
    config: ConfigFile = None,
    delays: Delays = None,
    json_target: JsonTarget = None,
) -> None:
    """List the presets, or print one to copy and edit.

    With NAME the whole preset is printed as YAML: save it, edit it, and pass it back with --config.
    What --config and --delays would make of it is printed as well.
    """
    console = human_console(json_target)
    if name is None:
        if config is not None or delays is not None:
            raise UserError(
                "--config and --delays change one preset; name it: exactlyonce presets NAME"
            )
        rows = [_summary(known) for known in _names()]
        _print_presets(console, rows)
        result: Any = rows
    else:
        result = _whole(name, config, delays)
        console.print(_yaml(result), end="", markup=False, soft_wrap=True)
    if json_target is not None:
        write_json(result, json_target)


def worlds(
    preset: PresetName,
    ids: Ids = "0:10",
    seed: Seed = 0,
    config: ConfigFile = None,
    delays: Delays = None,
    json_target: JsonTarget = None,
) -> None:
    """Print drawn worlds, hidden fates included.

    Privileged: a world tells what no client can know. The fate of every attempt that a policy could
    make is fixed when the world is drawn, so all policies meet the same world. Delays run from
    sending, those of copies from execution.
    """
    from exactlyonce_env.ledger import world_dict

    wanted = parse_ids(ids)
    plan = chosen_plan(preset, config, delays)
    rows = [world_dict(plan, record) for record in plan.worlds(seed, wanted)]
    console = human_console(json_target)
    if not console.quiet:
        from exactlyonce_env.cli.world_tables import worlds_table

        console.print(worlds_table(plan.preset.name, seed, rows))
    if json_target is not None:
        write_json(rows, json_target, indent=2 if len(rows) <= 1000 else None)


def replay(
    preset: PresetName,
    world: World,
    actions: Actions = "",
    seed: Seed = 0,
    config: ConfigFile = None,
    delays: Delays = None,
    json_target: JsonTarget = None,
) -> None:
    """Step one world through given actions, and tell what really happened.

    Shows what the client saw after each action, the parts of the reward, whether each re-issue was
    permitted, and then, privileged, the effects that the ledger holds and the measures. Where the
    actions end before the episode does, the outcome is that of a client that walks away.
    """
    from exactlyonce_env.episode import replay as run_replay

    told = run_replay(chosen_plan(preset, config, delays), seed, world, actions)
    console = human_console(json_target)
    if not console.quiet:
        from exactlyonce_env.cli.world_tables import replay_tables

        console.print(*replay_tables(told), sep="\n")
    if json_target is not None:
        write_json(told.to_dict(), json_target)


def parse_ids(text: str) -> list[int]:
    """World ids from ``A:B`` (without B), from a list, or from a list of both.

    Raises
    ------
    UserError
        For anything else, an empty range, a negative id and more than `MAX_WORLDS` worlds.
    """
    wanted: list[int] = []
    for entry in text.split(","):
        first, colon, stop = entry.strip().partition(":")
        numbers = (first, stop) if colon else (first,)
        if not all(number.isascii() and number.isdigit() for number in numbers):
            raise UserError(f"--ids {text!r}: {entry!r} is no id or range, want 0:100 or 7,3,5")
        low, high = int(first), int(stop) if colon else int(first) + 1
        if high <= low:
            raise UserError(
                f"--ids {text!r}: the range {entry.strip()} is empty, want 0:100 or 7,3,5"
            )
        if len(wanted) + high - low > MAX_WORLDS:
            raise UserError(
                f"--ids {text!r}: more than {MAX_WORLDS:,} worlds; ask for fewer at a time"
            )
        wanted.extend(range(low, high))
    return wanted


def _names() -> tuple[str, ...]:
    from exactlyonce_env.presets import PRESET_NAMES

    return PRESET_NAMES


def _summary(name: str) -> dict[str, Any]:
    from exactlyonce_env.presets import NEEDS_DELAYS, shipped_fields
    from exactlyonce_env.registration import ENV_IDS

    fields = shipped_fields(name)
    return {
        "name": name,
        "env_ids": [env_id for env_id, preset in ENV_IDS.items() if preset == name],
        "start": fields.get("start", "fault"),
        "description": fields.get("description", ""),
        "needs_delays": name == NEEDS_DELAYS,
    }


def _whole(name: str, config: Path | None, delays: str | None) -> dict[str, Any]:
    """The full preset; one that waits for the user's delays is printed without any."""
    from exactlyonce_env.presets import NEEDS_DELAYS, preset, read_config

    faults = {} if config is None else read_config(config).get("faults")
    own_delays = isinstance(faults, dict) and "late_tail" in faults
    if name != NEEDS_DELAYS or delays is not None or own_delays:
        return preset(name, config=config, delays=delays).dump()
    fields = preset(name, config=config, delays="fixed:value_s=1").dump()
    del fields["faults"]["late_tail"]
    return fields


def _yaml(fields: dict[str, Any]) -> str:
    import yaml

    text: str = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=100)
    return text


def _print_presets(console: Console, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(
        title="Presets",
        caption="exactlyonce presets NAME prints one to save, edit and pass back with --config",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("preset", no_wrap=True)
    table.add_column("starts", no_wrap=True)
    table.add_column("environment id", no_wrap=True)
    table.add_column("worlds")
    for row in rows:
        start = "after the fault" if row["start"] == "fault" else "before sending"
        table.add_row(row["name"], start, "\n".join(row["env_ids"]), row["description"])
    console.print(table)
