"""Which `policies`, `training` and `evaluation` are ours.

The three names are common. A user's folder may hold packages of the same names, and both
`python -m` and PYTHONPATH put such folders before the installed packages. The program therefore
binds the three names to the folder that `exactlyonce_env` itself was loaded from.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from exactlyonce_env.errors import UserError

__all__ = ["SIBLINGS", "SiblingFinder", "claim_siblings", "forget_working_directory"]

SIBLINGS = ("policies", "training", "evaluation")
ROOT = Path(__file__).resolve().parents[2]


class SiblingFinder(MetaPathFinder):
    """Finds the three packages beside `exactlyonce_env`, and nothing else."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return the spec of a sibling package, or None for every other module."""
        if fullname not in SIBLINGS:
            return None
        return PathFinder.find_spec(fullname, [str(ROOT)], target)


def claim_siblings() -> None:
    """Make the three names mean this distribution's packages, for the rest of the process.

    Raises
    ------
    UserError
        If one of the names has been imported from somewhere else already.
    """
    for name in SIBLINGS:
        module = sys.modules.get(name)
        if module is not None and not _is_ours(name, module):
            raise UserError(
                f"another package named {name!r} ({_place(module)}) was imported first; "
                f"run exactlyonce in a process of its own, where {name!r} is {ROOT / name}"
            )
    if not any(isinstance(finder, SiblingFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, SiblingFinder())


def forget_working_directory() -> None:
    """Undo what `python -m` does to `sys.path`, unless the package itself lives there.

    The working directory comes first on the path then, so any of the user's folders could stand in
    for a library that a command imports.
    """
    if sys.flags.safe_path or not sys.path:
        return
    first = Path(sys.path[0] or os.curdir).resolve()
    if first == Path.cwd() and first != ROOT:
        del sys.path[0]


def _is_ours(name: str, module: ModuleType) -> bool:
    return any(Path(place).resolve() == ROOT / name for place in getattr(module, "__path__", ()))


def _place(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or next(
        iter(getattr(module, "__path__", ())), "no file"
    )
