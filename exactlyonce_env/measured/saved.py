"""A measured delay on disk: its law, the report that came with it, and where it comes from."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from exactlyonce_env.delay_steps import Empirical
from exactlyonce_env.errors import UserError, invalid
from exactlyonce_env.files import write_atomically

FORMAT = "exactlyonce-delays"
VERSION = 1


@dataclass(frozen=True)
class SavedDelays:
    """A measured law with the report of its fit and the manifest of its source."""

    law: Empirical
    fit: dict[str, Any]
    manifest: dict[str, Any]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a JSON file that `load_saved` reads; complete or not at all.

        Raises
        ------
        UserError
            If the place cannot be written to.
        """
        content = {
            "format": FORMAT,
            "version": VERSION,
            "manifest": self.manifest,
            "fit": self.fit,
            "law": self.law.model_dump(mode="json", by_alias=True, exclude_none=True),
        }
        target = Path(path)
        text = json.dumps(content, allow_nan=False) + "\n"
        try:
            write_atomically(target, lambda file: file.write_text(text, encoding="utf-8"))
        except OSError as error:
            raise UserError(f"cannot write {str(target)!r}: {error.strerror}") from None
        return target


def is_saved(path: str | os.PathLike[str]) -> bool:
    """Whether a file looks like one that `SavedDelays.save` wrote."""
    try:
        with open(path, "rb") as file:
            return f'"{FORMAT}"'.encode() in file.read(64)
    except OSError:
        return False


def load_saved(path: str | os.PathLike[str]) -> SavedDelays:
    """Read a measured delay that `SavedDelays.save` wrote.

    Raises
    ------
    UserError
        If the file is missing, is no saved delay, or is damaged.
    """
    name = os.fspath(path)
    if not Path(name).is_file():
        raise UserError(f"delay file {name!r} does not exist")
    if not is_saved(name):
        raise UserError(
            f"{name!r} is no saved delay; make one of it with `exactlyonce fit {name} --save "
            "delays.json`"
        )
    try:
        content = json.loads(Path(name).read_text(encoding="utf-8"))
        version = content["version"]
        law, fit, manifest = content["law"], dict(content["fit"]), dict(content["manifest"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{name!r} is a damaged saved delay: {error}") from None
    if version != VERSION:
        raise UserError(f"{name!r} has version {version!r}; this package reads version {VERSION}")
    try:
        return SavedDelays(Empirical.model_validate(law), fit, manifest)
    except ValidationError as error:
        raise invalid(f"{name!r} is a damaged saved delay", error) from None
