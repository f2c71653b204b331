"""What commands print: strict JSON for programs, tables for people, never both on one stream."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from exactlyonce_env.errors import UserError
from exactlyonce_env.files import write_atomically

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "JsonTarget",
    "human_console",
    "progress_console",
    "to_jsonable",
    "typed_command",
    "write_json",
]

STDOUT = "-"
PIPE_WIDTH = 160  # columns of a table that goes to a file or a pipe, where nothing says how wide


def check_target(target: str | None) -> str | None:
    """Return the target of `--json`, or refuse it before any work is done.

    Raises
    ------
    UserError
        If nothing can be written there.
    """
    if target is None or target == STDOUT:
        return target
    path = Path(target)
    if not target or path.is_dir():
        raise UserError(f"--json {target!r} is not a file name; give a path, or - for stdout")
    if not path.parent.is_dir():
        raise UserError(f"--json {target!r}: there is no folder {str(path.parent)!r}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"--json {target!r} cannot be written: permission denied")
    return target


JsonTarget = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="PATH",
        callback=check_target,
        help="Write the result as JSON to PATH; '-' is stdout, and then nothing else goes there.",
    ),
]
"""The `--json` option of every command: ``json_target: JsonTarget = None``."""


def write_json(obj: object, target: str, *, indent: int | None = 2) -> None:
    """Write a result as strict JSON.

    A file appears whole or not at all: the text goes to a neighbour that then takes the name.

    Parameters
    ----------
    obj
        Anything that :func:`to_jsonable` takes.
    target
        A path, or ``-`` for stdout.
    indent
        Spaces a level; None for one compact line, which large results should use.

    Raises
    ------
    UserError
        If the target cannot be written.
    TypeError
        If `obj` holds something that has no JSON form.
    """
    text = json.dumps(to_jsonable(obj), indent=indent, allow_nan=False) + "\n"
    if target == STDOUT:
        sys.stdout.write(text)
        return
    # A link keeps pointing where it points; what it points at is replaced.
    path = Path(os.path.realpath(target))
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")  # a device or a pipe
        else:
            write_atomically(path, lambda neighbour: _write_through(neighbour, text))
    except OSError as error:
        raise UserError(f"--json {target!r} cannot be written: {error.strerror}") from error


def to_jsonable(obj: object) -> Any:
    """Return `obj` as plain dicts, lists, strings, numbers, booleans and None.

    Numbers that JSON lacks (NaN and the infinities) become None. NumPy scalars, arrays and records,
    dataclasses, pydantic models, enumerations, paths, sets (sorted) and mappings with scalar keys
    are converted.

    Raises
    ------
    TypeError
        If something has no JSON form.
    """
    if obj is None or isinstance(obj, bool):
        return obj
    if isinstance(obj, Enum):
        return to_jsonable(obj.value)
    if isinstance(obj, str):
        return str(obj)
    if isinstance(obj, int):
        return int(obj)
    if isinstance(obj, float):
        return float(obj) if math.isfinite(obj) else None
    if isinstance(obj, Mapping):
        return {_key(key): to_jsonable(value) for key, value in obj.items()}
    if isinstance(obj, list | tuple):
        return [to_jsonable(item) for item in obj]
    if isinstance(obj, set | frozenset):
        return [to_jsonable(item) for item in sorted(obj)]
    if isinstance(obj, Path):
        return str(obj)
    if is_dataclass(obj) and not isinstance(obj, type):
        return {field.name: to_jsonable(getattr(obj, field.name)) for field in fields(obj)}
    if hasattr(obj, "model_dump"):
        return to_jsonable(obj.model_dump(mode="python"))
    return _from_numpy(obj)


def human_console(json_target: str | None = None) -> Console:
    """Return the console for tables and remarks; a silent one when stdout belongs to the JSON."""
    from rich.console import Console

    return Console(
        quiet=json_target == STDOUT,
        width=_width(sys.stdout.isatty()),
        highlight=False,
        emoji=False,
    )


def progress_console() -> Console:
    """Return the console for progress bars: stderr, and only where somebody can watch."""
    from rich.console import Console

    return Console(stderr=True, quiet=not sys.stderr.isatty(), emoji=False)


def _width(is_terminal: bool) -> int | None:
    return None if is_terminal or "COLUMNS" in os.environ else PIPE_WIDTH


def _key(key: object) -> str:
    plain = to_jsonable(key)
    if not isinstance(plain, str | int | float) or isinstance(plain, bool):
        raise TypeError(f"{key!r} cannot be a key in JSON")
    return str(plain)


def _from_numpy(obj: object) -> Any:
    import numpy as np

    if isinstance(obj, np.void):
        if obj.dtype.names is None:
            raise TypeError(f"raw bytes {obj!r} have no JSON form")
        return {name: to_jsonable(obj[name]) for name in obj.dtype.names}
    if isinstance(obj, np.ndarray) and obj.ndim > 0:
        return [to_jsonable(item) for item in (obj if obj.dtype.names else obj.tolist())]
    if isinstance(obj, np.generic | np.ndarray):
        item = obj.item()
        if not isinstance(item, np.generic):
            return to_jsonable(item)
    raise TypeError(f"{type(obj).__name__} has no JSON form: {obj!r}")


def _write_through(path: Path, text: str) -> None:
    """Write a text and wait until it is on the disk."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def typed_command() -> list[str]:
    """The command line as it was typed, for a manifest."""
    return ["exactlyonce", *sys.argv[1:]]
