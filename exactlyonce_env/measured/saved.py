"""A measured delay on disk: its law, the report that came with it, and where it comes from."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from exactlyonce_env.delay_steps import Empirical
from exactlyonce_env.errors import UserError, invalid

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
        try:
            handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        except OSError as error:
            raise UserError(f"cannot write {str(target)!r}: {error.strerror}") from None
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(content, file, allow_nan=False)
                file.write("\n")
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(name, 0o666 & ~mask)  # mkstemp lets the owner alone read
            os.replace(name, target)
        except OSError as error:
            Path(name).unlink(missing_ok=True)
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
