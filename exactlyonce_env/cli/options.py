"""Options that several commands share, so that they mean the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from exactlyonce_env.errors import UserError

if TYPE_CHECKING:
    from exactlyonce_env.delays import Law
    from exactlyonce_env.plan import Plan


def named_folder(text: str) -> Path:
    """Return the folder that ``--out`` names; nothing stands for no folder, not for this one."""
    if not text.strip():
        raise UserError("--out is empty; name a folder for the results, for instance runs/mine")
    return Path(text)


PresetName = Annotated[
    str,
    typer.Argument(metavar="PRESET", help="Preset; `exactlyonce presets` lists them."),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="YAML, TOML or JSON that overrides its fields."),
]
Delays = Annotated[
    str | None,
    typer.Option(
        "--delays",
        metavar="FILE|LAW",
        help="Delays of late writes: a file of `fit --save`, measured data that `fit` reads "
        "without further options, or a law such as lomax:c=0.8,scale=120.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", metavar="S", help="Key of the worlds.")]
Worlds = Annotated[
    int, typer.Option("--worlds", metavar="N", help="Number of worlds, from id 0 on.")
]
OutFolder = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="RUN",
        help="Folder for the results; an interrupted run goes on there.",
        parser=named_folder,
    ),
]


def measured_plan(preset: str, config: Path | None, delays: str | None) -> tuple[Plan, list[str]]:
    """Compile the preset that the options name, with what the fit of ``--delays`` warns of.

    Raises
    ------
    UserError
        For whatever is wrong with any of them.
    """
    from exactlyonce_env.presets import load_plan

    law, warnings = (None, []) if delays is None else chosen_delays(delays)
    return load_plan(preset, config=config, delays=law), warnings


def chosen_plan(preset: str, config: Path | None, delays: str | None) -> Plan:
    """Compile the preset that the options name.

    Raises
    ------
    UserError
        For whatever is wrong with any of them.
    """
    return measured_plan(preset, config, delays)[0]


def chosen_delays(delays: str) -> tuple[Law, list[str]]:
    """Resolve ``--delays``; a file of raw measurements is fitted on the spot.

    The second part is what the fit warns of, such as a unit that was assumed.

    Raises
    ------
    UserError
        For an unknown law, or a file that `fit` cannot read without further options.
    """
    from exactlyonce_env.delays import delays_from_spec
    from exactlyonce_env.measured import load_saved, open_delays
    from exactlyonce_env.measured.saved import is_saved

    if not Path(delays).is_file():
        return delays_from_spec(delays), []
    if is_saved(delays):
        found = load_saved(delays)
    else:
        try:
            found = open_delays(delays)
        except UserError as error:
            raise UserError(
                f"{error} (all of this is told to `exactlyonce fit {delays} --save OUT`; then "
                "give OUT to --delays)"
            ) from None
    return found.law, list(found.fit.get("warnings", ()))


def split_list(text: str, what: str, *, distinct: bool = True) -> list[str]:
    """Split a comma-separated option.

    Raises
    ------
    UserError
        Where an entry is empty, or comes twice though each is to be ``distinct``.
    """
    entries = [entry.strip() for entry in text.split(",")]
    if not all(entries):
        raise UserError(f"{what} {text!r} has an empty entry; separate entries by single commas")
    twice = next((e for k, e in enumerate(entries) if distinct and e in entries[:k]), None)
    if twice is not None:
        raise UserError(f"{what} names {twice!r} twice; name each once")
    return entries


def split_numbers(text: str, what: str, unit: str = "seconds") -> list[float]:
    """Split a comma-separated option into numbers.

    Raises
    ------
    UserError
        Naming the entry that is not a finite number.
    """
    numbers = []
    for entry in split_list(text, what, distinct=False):
        try:
            number = float(entry)
        except ValueError:
            raise UserError(f"{what} {entry!r} is not a number of {unit}") from None
        if number != number or number in (float("inf"), float("-inf")):
            raise UserError(f"{what} {entry!r} is not a finite number of {unit}")
        numbers.append(number)
    return numbers


def positive_worlds(worlds: int) -> int:
    """Return the number of worlds, or refuse it."""
    if not 1 <= worlds <= 10**9:
        raise UserError(f"--worlds must lie in 1..1000000000, not {worlds}")
    return worlds
