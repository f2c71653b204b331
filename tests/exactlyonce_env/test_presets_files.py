"""Presets travel through files unchanged, and bad files are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from exactlyonce_env.config import Preset, Situation
from exactlyonce_env.errors import UserError
from exactlyonce_env.plan import Plan
from exactlyonce_env.presets import PRESET_NAMES, load_plan, preset, read_config

from .worldbench import shipped

SINGLE = [name for name in PRESET_NAMES if name != "contextual"]


def bytes_of(plan: Plan) -> tuple[bytes, ...]:
    arrays = (plan.contexts, plan.context_cdf, plan.table, plan.static)
    return tuple(array.tobytes() for array in arrays)


def to_toml(value: Any) -> str:
    """TOML's inline syntax; what is null is left out, as TOML has no word for it."""
    if isinstance(value, dict):
        parts = (f"{json.dumps(k)} = {to_toml(v)}" for k, v in value.items() if v is not None)
        return "{" + ", ".join(parts) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(to_toml(item) for item in value) + "]"
    return json.dumps(value)


def as_toml(fields: dict[str, Any]) -> str:
    lines = (f"{name} = {to_toml(value)}" for name, value in fields.items() if value is not None)
    return "\n".join(lines) + "\n"


WRITERS: dict[str, Callable[[dict[str, Any]], str]] = {
    ".json": json.dumps,
    ".yaml": yaml.safe_dump,
    ".yml": yaml.safe_dump,
    ".toml": as_toml,
}


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("name", SINGLE)
def test_a_printed_preset_comes_back_from_a_file(name: str, suffix: str, tmp_path: Path) -> None:
    plan = shipped(name)
    file = tmp_path / f"my{suffix}"
    file.write_text(WRITERS[suffix](plan.preset.dump()), encoding="utf-8")
    assert bytes_of(load_plan(name, config=file)) == bytes_of(plan)
    assert bytes_of(load_plan(read_config(file))) == bytes_of(plan)


def test_contextual_comes_back_too() -> None:
    printed = json.loads(json.dumps(shipped("contextual").preset.dump()))
    assert preset(printed) == shipped("contextual").preset
    assert preset(printed).dump() == printed


def test_plans_are_cached_by_content() -> None:
    assert load_plan("late-tail") is load_plan(preset("late-tail").dump())
    assert load_plan("late-tail") is not load_plan("late-tail", config={"costs": {"read": 0}})


def test_every_field_of_a_situation_survives(tmp_path: Path) -> None:
    fields = {
        "name": "mine",
        "start": "send",
        "contract": {"accepts_key": True, "key_retention_s": None, "in_flight_bound_s": 1e8},
        "faults": {
            "original": {"ok": 0.1, "timeout_late_tail": 0.7},
            "late_tail": {
                "family": "mixture",
                "components": [
                    {"weight": 0.1, "law": {"family": "fixed", "value_s": 0.1}},
                    {"weight": 0.9, "law": {"family": "uniform", "loc": 1e-3, "scale": 1 / 3}},
                ],
            },
        },
        "variants": [{"weight": 0.1}, {"weight": 2, "name": "b", "costs": {"read": 1e-9}}],
    }
    made = preset(fields)
    for text in (json.dumps(made.dump()), yaml.safe_dump(made.dump())):
        file = tmp_path / ("a.json" if text.startswith("{") else "a.yaml")
        file.write_text(text)
        again = preset(read_config(file))
        assert again == made
        assert bytes_of(load_plan(again)) == bytes_of(load_plan(made))
    assert np.isinf(load_plan(made).contracts["key_retention_s"]).all()


def test_variants_override_the_base() -> None:
    made = preset(
        {
            "name": "mine",
            "costs": {"read": 0.5},
            "variants": [{"contract": {"latency_s": 3}}, {"name": "b", "costs": {"read": 0.25}}],
        }
    )
    one, two = made.situations()
    assert isinstance(one, Situation)
    assert (one.name, one.contract.latency_s, one.costs.read) == ("mine/0", 3, 0.5)
    assert (two.name, two.contract.latency_s, two.costs.read) == ("b", 1, 0.25)
    assert isinstance(made, Preset)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.yaml", "contract: [", ["a.yaml", "YAML"]),
        ("a.toml", "contract = [", ["a.toml", "TOML"]),
        ("a.json", "{", ["a.json", "JSON"]),
        ("a.yaml", "- 1", ["a.yaml", "mapping"]),
        ("a.json", "7", ["a.json", "mapping"]),
        ("a.yaml", "1: 2", ["a.yaml", "mapping"]),
        ("a.ini", "", ["a.ini", "'.ini'", ".yaml", ".toml", ".json"]),
        (
            "a.yaml",
            "contract: {lag_s: -1}",
            ["a.yaml", "contract.lag_s", "greater than or equal to 0"],
        ),
    ],
)
def test_bad_files_are_refused_in_one_line(
    name: str, text: str, words: list[str], tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        load_plan("late-tail", config=file)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'no\.yaml' does not exist"):
        load_plan("late-tail", config=tmp_path / "no.yaml")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"b\.yaml.*UTF-8"):
        load_plan("late-tail", config=tmp_path / "b.yaml")


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("# nothing\n")
    assert bytes_of(load_plan("native", config=tmp_path / "c.yaml")) == bytes_of(shipped("native"))


def test_unknown_presets_are_named_with_the_choices() -> None:
    with pytest.raises(UserError, match="did you mean late-tail") as caught:
        load_plan("late-tale")
    for name in PRESET_NAMES:
        assert name in str(caught.value)


def test_a_field_stated_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text("contract:\n  latency_s: 1\n  latency_s: 2\n")
    with pytest.raises(UserError, match=r"'latency_s' is stated twice in the mapping at line 2"):
        preset("late-tail", config=file)
