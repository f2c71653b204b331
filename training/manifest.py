"""What the folder of a training run says about itself, and whether a command fits it."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from exactlyonce_env.errors import UserError
from exactlyonce_env.files import write_atomically
from exactlyonce_env.plan import Plan
from exactlyonce_env.versions import version_of
from training.settings import Settings
from training.vec_env import TRAINING_WORLDS

__all__ = ["check_same_run", "describe", "origin", "read_manifest", "write_manifest"]

FORMAT = "exactlyonce-training/1"
LIBRARIES = ("numpy", "numba", "torch", "stable-baselines3", "sb3-contrib")

_DECIDES = (
    "package_version",
    "versions",
    "preset",
    "config",
    "algorithm",
    "settings",
    "steps",
    "seed",
    "imitate_worlds",
    "held_out",
)
"""Fields that must be the same for a run to go on."""


def describe(
    plan: Plan,
    algorithm: str,
    chosen: Settings,
    *,
    steps: int,
    seed: int,
    imitate_worlds: int,
    worlds: int,
    held_out_seed: int,
    command: Sequence[str],
) -> dict[str, Any]:
    """All that a run is made of, in JSON types, before it starts."""
    config = plan.preset.dump()
    return {
        "format": FORMAT,
        "package_version": version_of("exactlyonce-env"),
        "versions": {"python": platform.python_version(), **{n: version_of(n) for n in LIBRARIES}},
        "preset": plan.preset.name,
        "config": config,
        "config_sha256": hashlib.sha256(_canonical(config)).hexdigest(),
        "algorithm": algorithm,
        "settings": chosen.model_dump(mode="json"),
        "steps": steps,
        "seed": seed,
        "first_training_world": TRAINING_WORLDS,
        "imitate_worlds": imitate_worlds,
        "held_out": {"seed": held_out_seed, "first": 0, "worlds": worlds},
        "command": list(command),
        "started_utc": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def origin(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What of a run's description goes into its checkpoint: nothing that changes with the time."""
    left_out = ("format", "config", "started_utc")
    return {name: value for name, value in asked.items() if name not in left_out}


def read_manifest(path: Path) -> dict[str, Any] | None:
    """The manifest of a run, None if there is none.

    Raises
    ------
    UserError
        If the file is something else.
    """
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise UserError(f"{path} is no manifest of a training run; choose another folder")
    wanted = (*_DECIDES, "started_utc", "status", "result")
    missing = next((name for name in wanted if name not in found), None)
    if missing is not None:
        raise UserError(f"{path} lacks the field {missing!r}; choose another folder")
    return found


def check_same_run(folder: Path, found: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Refuse to go on with a run that was made with other arguments.

    Raises
    ------
    UserError
        Naming the first difference.
    """
    for name in _DECIDES:
        if found[name] != asked[name]:
            what = _difference(found[name], asked[name], name)
            raise UserError(f"{folder} holds a run with {what}; choose another folder")


def write_manifest(
    folder: Path, asked: Mapping[str, Any], status: str, result: Mapping[str, Any] | None = None
) -> None:
    """Write ``manifest.json`` of a run in one step."""
    document = {**asked, "status": status, "result": result}
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    write_atomically(
        folder / "manifest.json", lambda temporary: temporary.write_text(text, encoding="utf-8")
    )


def _difference(old: Any, new: Any, place: str) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            if old.get(key) != new.get(key):
                return _difference(old.get(key), new.get(key), f"{place}.{key}")
    texts = [text if len(text) <= 40 else text[:37] + "..." for text in (repr(old), repr(new))]
    return f"{place} {texts[0]}, not {texts[1]}"


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
