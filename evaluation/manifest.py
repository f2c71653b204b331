"""What a written result says about itself, so that it can be checked and made again.

A manifest names the code, the preset in full, the seed, the worlds and the policies behind a
result. It carries no host name and no folder of the machine that wrote it.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from evaluation.world_ranges import WorldRange, format_ranges, merge_ranges, subtract_ranges
from exactlyonce_env.errors import UserError
from exactlyonce_env.files import write_atomically
from exactlyonce_env.versions import version_of

FORMAT = "exactlyonce-manifest/1"
DISTRIBUTION = "exactlyonce-env"
LIBRARIES = ("numpy", "numba", "scipy", "gymnasium")

Status = Literal["running", "complete", "interrupted", "failed"]

_SECRET_OPTION = re.compile(r"^--?\S*(?:api-?key|token|secret|password)$", re.IGNORECASE)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^,\s]*")
_FOLDERS = re.compile(r"(?:(?<![A-Za-z0-9])[A-Za-z]:(?=[\\/]))?[^=,:\\/]*[\\/](?:[^=,:\\/]*[\\/])*")
_WHOLE_PATH = re.compile(r"^(?:[\\/~]|\.{1,2}[\\/]|[A-Za-z]:[\\/])")


@dataclass(frozen=True, slots=True)
class Invocation:
    """One earlier command that wrote into the same run."""

    command: tuple[str, ...]
    started_utc: str  # ISO 8601, whole seconds
    ended_utc: str | None  # null: it never came to its end
    status: Status


@dataclass(frozen=True, slots=True)
class Manifest:
    """The record that stands beside a result; `new_manifest` fills it in.

    `config_sha256` is over the canonical JSON of `config`; `worlds_sha256` over that of the
    configuration, the seed and the world ids together: equal exactly when two results are about
    the same worlds.
    """

    package_version: str
    versions: Mapping[str, str]  # python and the libraries that decide the numbers
    platform: Mapping[str, str]  # system, machine, python implementation
    preset: str
    config: Mapping[str, Any]  # the preset in full, as JSON values
    config_sha256: str
    seed: int
    worlds: tuple[WorldRange, ...]  # sorted, disjoint, half-open
    worlds_sha256: str
    policies: tuple[str, ...]
    command: tuple[str, ...]  # as given, folders stripped
    started_utc: str  # ISO 8601, whole seconds
    ended_utc: str | None = None
    status: Status = "running"
    earlier: tuple[Invocation, ...] = ()  # commands this one resumed or extended


def new_manifest(
    *,
    preset: str,
    config: Mapping[str, Any],
    seed: int,
    worlds: Iterable[WorldRange],
    policies: Sequence[str],
    command: Sequence[str],
) -> Manifest:
    """Make the manifest of a result that is being started now, with status `running`.

    `config` is the full preset as a JSON-able mapping, `worlds` half-open ranges of world ids,
    `command` the command line as a list of arguments.

    Raises UserError when the configuration holds something JSON cannot carry or a range is empty.
    """
    plain = json.loads(canonical_json(config))
    ranges = merge_ranges(worlds)
    return Manifest(
        package_version=version_of(DISTRIBUTION),
        versions={
            "python": platform.python_version(),
            **{library: version_of(library) for library in LIBRARIES},
        },
        platform={
            "system": platform.system(),
            "machine": platform.machine(),
            "python_implementation": platform.python_implementation(),
        },
        preset=preset,
        config=plain,
        config_sha256=sha256_of(plain),
        seed=seed,
        worlds=ranges,
        worlds_sha256=worlds_hash(plain, seed, ranges),
        policies=tuple(dict.fromkeys(policies)),
        command=strip_command(command),
        started_utc=_now_utc(),
    )


def ended(manifest: Manifest, status: Status) -> Manifest:
    """Return the manifest with its end time (now) and its final status."""
    return replace(manifest, ended_utc=_now_utc(), status=status)


def continue_manifest(existing: Manifest, new: Manifest, folder: Path) -> Manifest:
    """Make the manifest of a run in `folder` that a new command goes on with.

    Code version, configuration and seed must be the same and no world may be dropped. Policies add
    up. Worlds may grow when all policies of the run are asked for again, so that a finished run
    always has every world for every policy. The earlier command is kept in `earlier`.

    Raises UserError saying what does not fit.
    """
    advice = "choose another folder"
    if existing.package_version != new.package_version:
        raise UserError(
            f"{folder} was written by version {existing.package_version}, this is "
            f"{new.package_version}: {advice}"
        )
    if existing.config_sha256 != new.config_sha256:
        what = _first_difference(existing.config, new.config)
        raise UserError(
            f"{folder} holds a run of preset {existing.preset!r} with another configuration "
            f"({what}): {advice}"
        )
    if existing.seed != new.seed:
        raise UserError(f"{folder} holds a run with seed {existing.seed}, not {new.seed}: {advice}")
    if subtract_ranges(existing.worlds, new.worlds):
        raise UserError(
            f"{folder} holds worlds {format_ranges(existing.worlds)}, asked for "
            f"{format_ranges(new.worlds)}: ask for at least those or {advice}"
        )
    left_out = [policy for policy in existing.policies if policy not in new.policies]
    if left_out and existing.worlds != new.worlds:
        raise UserError(
            f"{folder} also holds policy {left_out[0]!r}: new worlds need all its policies, "
            f"{', '.join(existing.policies)}"
        )
    before = _invocation(existing)
    if before.status == "running":  # its process ended without a word
        before = replace(before, status="interrupted")
    return replace(
        new,
        policies=tuple(dict.fromkeys((*existing.policies, *new.policies))),
        earlier=(*existing.earlier, before),
    )


def canonical_json(value: Any) -> str:
    """Write JSON with sorted keys, no spaces, ASCII only: equal values, equal bytes.

    Raises UserError for what JSON cannot carry: NaN, infinities, other types.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"a configuration must hold JSON values only: {error}") from error


def sha256_of(value: Any) -> str:
    """Hash the canonical JSON of a value: SHA-256 in hex."""
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()


def worlds_hash(config: Mapping[str, Any], seed: int, worlds: Iterable[WorldRange]) -> str:
    """Hash worlds so that two results share the hash exactly when they share the worlds.

    SHA-256 in hex over the canonical JSON of `{config, seed, worlds}`, where the ids stand as
    sorted disjoint half-open ranges, of which every set of ids has just one form.
    """
    ranges = [list(pair) for pair in merge_ranges(worlds)]
    return sha256_of({"config": config, "seed": seed, "worlds": ranges})


def strip_command(command: Sequence[str]) -> tuple[str, ...]:
    """Strip a command line of the folders of the machine, of URLs and of secrets.

    Of a path the file name stays, of a URL `<url>`, of the value of an option that names a key,
    token, secret or password `<hidden>`.
    """
    stripped: list[str] = []
    hide_next = False
    for argument in command:
        option, equals, value = argument.partition("=")
        if hide_next:
            stripped.append("<hidden>")
        elif equals and _SECRET_OPTION.match(option):
            stripped.append(f"{option}=<hidden>")
        elif equals and option.startswith("-"):
            stripped.append(f"{option}={_strip_paths(value)}")
        else:
            stripped.append(_strip_paths(argument))
        hide_next = not hide_next and not equals and bool(_SECRET_OPTION.match(argument))
    return tuple(stripped)


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Write a manifest as indented JSON in one step.

    Raises UserError when the file cannot be written.
    """
    text = json.dumps({"format": FORMAT, **asdict(manifest)}, indent=2, allow_nan=False) + "\n"
    try:
        write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def read_manifest(path: Path) -> Manifest:
    """Read a manifest and check that its hashes fit its contents.

    Raises UserError when the file is missing, is no manifest of this format, lacks a field, or was
    changed by hand.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    found = document.get("format") if isinstance(document, dict) else None
    if found != FORMAT:
        raise UserError(f"{path} is not a manifest of format {FORMAT!r}, it says {found!r}")
    missing = [field.name for field in fields(Manifest) if field.name not in document]
    if missing:
        raise UserError(f"{path} lacks the field {missing[0]!r}")
    try:
        manifest = _from_document(document)
        intact = (
            sha256_of(manifest.config) == manifest.config_sha256
            and worlds_hash(manifest.config, manifest.seed, manifest.worlds)
            == manifest.worlds_sha256
        )
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise UserError(f"{path} has a malformed field: {error}") from error
    if not intact:
        raise UserError(f"{path} was changed: its hash does not fit its config, seed and worlds")
    return manifest


def _from_document(document: Mapping[str, Any]) -> Manifest:
    values = {field.name: document[field.name] for field in fields(Manifest)}
    if values["status"] not in get_args(Status):
        raise ValueError(f"status {values['status']!r}, want one of {get_args(Status)}")
    values["worlds"] = tuple((int(start), int(stop)) for start, stop in values["worlds"])
    values["policies"] = tuple(values["policies"])
    values["command"] = tuple(values["command"])
    values["earlier"] = tuple(
        Invocation(**{**entry, "command": tuple(entry["command"])}) for entry in values["earlier"]
    )
    return Manifest(**values)


def _invocation(manifest: Manifest) -> Invocation:
    return Invocation(manifest.command, manifest.started_utc, manifest.ended_utc, manifest.status)


def _first_difference(one: Any, other: Any, path: str = "") -> str:
    """Where two JSON values first differ, as `field.field: this, now that`."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            if one.get(key) != other.get(key):
                name = f"{path}.{key}" if path else key
                return _first_difference(one.get(key), other.get(key), name)
    texts = [text if len(text) <= 40 else text[:37] + "..." for text in (repr(one), repr(other))]
    return f"{path}: {texts[0]}, now {texts[1]}"


def _strip_paths(text: str) -> str:
    text = _URL.sub("<url>", text)
    if _WHOLE_PATH.match(text):
        return re.split(r"[\\/]", text.rstrip("\\/"))[-1]
    return _FOLDERS.sub("", text.rstrip("\\/"))


def _now_utc() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
