"""Errors that tell a user what to mend."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


_SUBJECT = re.compile(r"^\w+ (?=should )")
"""The word for the value itself in pydantic's messages; the field's name takes its place."""


class UserError(ValueError):
    """Bad input from a user: a file, an option, a configuration field or a name.

    The message is one line that names the thing, where it stands, and what would be right.
    The command line prints that line on stderr and exits with code 2.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """The choice that comes nearest to a wrong name, in brackets; nothing where none does."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(choices), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def unknown(what: str, name: str, choices: Collection[str]) -> UserError:
    """The error for a name that is none of the choices."""
    hint = did_you_mean(str(name), choices)
    return UserError(f"unknown {what} {name!r}{hint}; choose from {', '.join(choices)}")


def check_range(what: str, value: float, low: float, high: float) -> None:
    """Refuse a number outside ``low..high``; NaN lies nowhere.

    Raises
    ------
    UserError
        Naming the number and the range.
    """
    if not low <= value <= high:
        raise UserError(f"{what} must lie in {low:,}..{high:,}, not {value:,}")


def invalid(what: str, error: ValidationError, choices: Iterable[str] = ()) -> UserError:
    """Turn a pydantic model's first complaint into one line: field, fault and the value given.

    ``choices`` are the names the model takes; they are listed where a name was unknown or missing.
    """
    first = error.errors(include_url=False, include_context=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    names = ", ".join(choices)
    if first["type"] == "extra_forbidden":
        fault = f"unknown field {field!r}" + (f"; choose from {names}" if names else "")
    elif first["type"] == "missing":
        fault = f"{field} is missing" + (f"; the fields are {names}" if names else "")
    else:
        message = _SUBJECT.sub("", first["msg"].removeprefix("Value error, "))
        given = first["input"]
        shown = f", not {given!r}" if isinstance(given, str | int | float) else ""
        fault = f"{field} {message}{shown}" if field else f"{message}{shown}"
    more = error.error_count() - 1
    return UserError(f"{what}: {fault}" + (f" (and {more} more)" if more else ""))
