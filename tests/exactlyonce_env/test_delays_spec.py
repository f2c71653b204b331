"""Delay laws written as text, mappings and files, and the errors for each mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from exactlyonce_env.delays import (
    DelayLaw,
    Empirical,
    Exponential,
    Fixed,
    Law,
    LogNormal,
    LogUniform,
    Lomax,
    Mixture,
    Weibull,
    delays_from_spec,
    dump,
)
from exactlyonce_env.errors import UserError
from exactlyonce_env.measured.saved import SavedDelays

STEPS = Empirical(times_s=(1.0, 2.0), cdf=(0.5, 0.75), n=4, censored=1, last_observed_s=9.0)


@pytest.mark.parametrize(
    ("text", "law"),
    [
        ("lomax:c=0.8,scale=120", Lomax(c=0.8, scale=120.0)),
        ("loguniform:a=40,b=7200", LogUniform(a=40.0, b=7200.0)),
        ("loguniform: b=7.2e3, a=40", LogUniform(a=40.0, b=7200.0)),
        ("fixed:value_s=90", Fixed(value_s=90.0)),
        ("fixed:90", Fixed(value_s=90.0)),
        ("exponential:scale=60", Exponential(scale=60.0)),
        ("expon", Exponential(scale=1.0)),
        ("weibull:c=2,loc=1", Weibull(c=2.0, loc=1.0)),
        ("lognormal:s=1,scale=3", LogNormal(s=1.0, scale=3.0)),
    ],
)
def test_text(text: str, law: Law) -> None:
    assert delays_from_spec(text) == law


def test_mappings_and_laws() -> None:
    mapping = {
        "family": "mixture",
        "components": [
            {"weight": 0.4, "law": {"family": "fixed", "value_s": 90}},
            {"weight": 0.6, "law": {"family": "exponential", "scale": 60}},
        ],
    }
    law = delays_from_spec(mapping)
    assert isinstance(law, Mixture)
    assert law.components[1].law == Exponential(scale=60.0)
    assert delays_from_spec(law) is law
    assert delays_from_spec(dump(law)) == law
    assert delays_from_spec(json.loads(json.dumps(dump(STEPS)))) == STEPS
    assert dump(STEPS)["cdf"] == [0.5, 0.75]


def test_a_law_is_a_field_of_other_models() -> None:
    adapter: TypeAdapter[Law] = TypeAdapter(DelayLaw)
    assert adapter.validate_python({"family": "weibull", "c": 2}) == Weibull(c=2.0)
    assert adapter.validate_json(adapter.dump_json(STEPS)) == STEPS


def test_a_saved_file(tmp_path: Path) -> None:
    path = SavedDelays(STEPS, {"n": 4}, {"source": "x.csv"}).save(tmp_path / "delays.json")
    assert delays_from_spec(str(path)) == STEPS
    assert delays_from_spec(path) == STEPS


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("lomx:c=1", ["unknown delay 'lomx:c=1'", "did you mean lomax?", "loguniform"]),
        ("somewhere/else.json", ["'somewhere/else.json' does not exist"]),
        ("delays.json", ["'delays.json' does not exist"]),
        ("lomax:scale=2", ["c is missing", "the fields are", "scale"]),
        ("lomax:c=-1", ["c should be greater than 0", "-1"]),
        ("lomax:c=nan", ["c should be a finite number"]),
        ("lomax:c=much", ["c must be a number, not 'much'"]),
        ("lomax:c=1,c=2", ["c is given twice"]),
        ("lomax:0.8", ["'0.8' must read name=value"]),
        ("expon:scale=1,shape=2", ["unknown field 'shape'", "loc, scale"]),
        ("fixed:value_s=-1", ["value_s should be greater than or equal to 0"]),
        ("loguniform:a=5,b=5", ["a must be less than b"]),
        ("mixture:a", ["give it as a mapping", "components"]),
        ({"scale": 2.0}, ["has no family", "choose from fixed, uniform"]),
        ({"family": "gamma"}, ["unknown family 'gamma'", "weibull_min"]),
        ({"family": "mixture", "components": []}, ["components should have at least 1 item"]),
        (
            {
                "family": "mixture",
                "components": [{"weight": 0.5, "law": {"family": "expon"}}],
            },
            ["the weights must sum to 1, not 0.5"],
        ),
        (
            {
                "family": "mixture",
                "components": [{"weight": 1.0, "law": {"family": "expon", "scale": 0}}],
            },
            ["components.0.law.expon.scale should be greater than 0"],
        ),
        ({"family": "empirical", "times_s": [2, 1], "cdf": [0.1, 0.2]}, ["strictly ascending"]),
        ({"family": "empirical", "times_s": [1, 2], "cdf": [0.1]}, ["2 values and cdf 1"]),
        ({"family": "empirical", "times_s": [1, 2], "cdf": [0.5, 1.2]}, ["at most 1"]),
        (
            {"family": "empirical", "times_s": [1], "cdf": [1], "cdf_low": [0.1, 0.2]},
            ["cdf_low has 2 values"],
        ),
        (
            {"family": "empirical", "times_s": [5], "cdf": [1], "last_observed_s": 4},
            ["last_observed_s must not lie before"],
        ),
        (
            {"family": "empirical", "times_s": [5], "cdf": [1], "n": 1, "censored": 2},
            ["censored=2 must not exceed n=1"],
        ),
    ],
)
def test_mistakes_are_named_in_one_line(spec: str | dict[str, object], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        delays_from_spec(spec)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_a_raw_file_is_no_saved_delay(tmp_path: Path) -> None:
    raw = tmp_path / "raw.csv"
    raw.write_text("1\n2\n3\n")
    with pytest.raises(UserError, match="no saved delay; make one of it with `exactlyonce fit"):
        delays_from_spec(str(raw))


def test_a_damaged_saved_file_is_named(tmp_path: Path) -> None:
    path = SavedDelays(STEPS, {}, {}).save(tmp_path / "delays.json")
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    with pytest.raises(UserError, match=r"delays\.json.* damaged"):
        delays_from_spec(path)
    path.write_text(text.replace('"version": 1', '"version": 7'))
    with pytest.raises(UserError, match="version 7"):
        delays_from_spec(path)
    path.write_text(text.replace("0.75", "1.75"))
    with pytest.raises(UserError, match="at most 1"):
        delays_from_spec(path)
