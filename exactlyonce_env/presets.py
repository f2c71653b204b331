"""Finding presets by name, overriding them from a file, and compiling them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from exactlyonce_env.config import Preset, make_preset, merged
from exactlyonce_env.delays import Law, delays_from_spec, dump
from exactlyonce_env.errors import UserError, unknown
from exactlyonce_env.plan import Plan, compile_preset

PRESET_NAMES: tuple[str, ...] = (
    "late-fixed",
    "late-tail",
    "late-lomax",
    "stale-tail",
    "native",
    "keys-everywhere",
    "first-decision",
    "contextual",
    "empirical",
)

NEEDS_DELAYS = "empirical"

PresetLike = str | Mapping[str, Any] | Preset
DelaysLike = Law | Mapping[str, Any] | str | os.PathLike[str]


def preset(
    source: PresetLike,
    *,
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    delays: DelaysLike | None = None,
) -> Preset:
    """A validated preset.

    Parameters
    ----------
    source
        A preset's name, a mapping such as ``exactlyonce presets NAME --json -`` prints, or a
        `Preset`.
    config
        Overrides: a mapping, or the path of a YAML, TOML or JSON file.
    delays
        Law of the late writes in place of the preset's own: anything that
        `exactlyonce_env.delays.delays_from_spec` takes.

    Raises
    ------
    UserError
        For an unknown name, an unknown field, a value out of range, an unreadable file, or
        ``empirical`` without ``delays``.
    """
    if isinstance(source, Preset):
        fields = source.dump()
    elif isinstance(source, str):
        fields = _shipped(source)
    elif isinstance(source, Mapping):
        fields = dict(source)
    else:
        raise UserError(
            f"a preset is a name, a mapping of its fields or a Preset, not {type(source).__name__}"
        )
    label = str(fields.get("name", "custom"))
    where = f"preset {label}"
    if config is not None:
        override = dict(config) if isinstance(config, Mapping) else read_config(config)
        fields = merged(fields, override)
        if not isinstance(config, Mapping):
            where = f"{Path(config).name}, over preset {label}"
    if delays is not None:
        law = delays_from_spec(delays)
        fields = merged(fields, {"faults": {"late_tail": dump(law)}})
    elif fields.get("name") == NEEDS_DELAYS and "late_tail" not in (fields.get("faults") or {}):
        raise UserError(
            "preset empirical needs delays: a file saved by `exactlyonce fit FILE --save`, "
            "or a law such as lomax:c=0.8,scale=120"
        )
    return make_preset(fields, where)


def load_plan(
    source: PresetLike,
    *,
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    delays: DelaysLike | None = None,
) -> Plan:
    """Compile a preset, with the arguments and errors of `preset`; plans are cached by content."""
    chosen = preset(source, config=config, delays=delays)
    return _compiled(json.dumps(chosen.dump(), sort_keys=True))


@lru_cache(maxsize=16)
def _compiled(canonical: str) -> Plan:
    return compile_preset(Preset.model_validate_json(canonical))


def shipped_fields(name: str) -> dict[str, Any]:
    """The fields of a shipped preset as its file states them."""
    return dict(_shipped(name))


def _shipped(name: str) -> dict[str, Any]:
    if name not in PRESET_NAMES:
        raise unknown("preset", name, PRESET_NAMES)
    text = (files("exactlyonce_env") / "preset_data" / f"{name}.yaml").read_text(encoding="utf-8")
    return _parse(text, ".yaml", f"preset {name}")


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read overrides from a YAML, TOML or JSON file.

    Raises
    ------
    UserError
        For a missing file, another suffix, a syntax error or a top level that is no mapping.
    """
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"config must be a mapping or a file, not {type(path).__name__}")
    file = Path(path)
    if file.is_dir():
        raise UserError(f"config {file.name!r} is a folder; name a .yaml, .toml or .json file")
    if not file.is_file():
        raise UserError(f"config file {file.name!r} does not exist")
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"config file {file.name!r} cannot be read as UTF-8 text: {error}"
        ) from None
    return _parse(text, file.suffix.lower(), f"config file {file.name!r}")


def _parse_yaml(text: str, what: str) -> Any:
    """Safe YAML in which no field may be stated twice: the last one would win in silence."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            repeated = next((key for k, key in enumerate(keys) if key in keys[:k]), None)
            if repeated is not None:
                line = node.start_mark.line + 1
                raise UserError(
                    f"{what}: {repeated!r} is stated twice in the mapping at line {line}"
                )
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise UserError(f"{what} is not valid YAML: {error}") from None


def _parse(text: str, suffix: str, what: str) -> dict[str, Any]:
    if suffix in (".yaml", ".yml"):
        fields = _parse_yaml(text, what)
    elif suffix == ".toml":
        import tomllib

        try:
            fields = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"{what} is not valid TOML: {error}") from None
    elif suffix == ".json":
        try:
            fields = json.loads(text)
        except json.JSONDecodeError as error:
            raise UserError(f"{what} is not valid JSON: {error}") from None
    else:
        raise UserError(f"{what}: unknown format {suffix!r}; use .yaml, .toml or .json")
    if fields is None:
        fields = {}
    if not isinstance(fields, dict) or not all(isinstance(key, str) for key in fields):
        raise UserError(f"{what} must hold a mapping of field names at its top level")
    return fields
