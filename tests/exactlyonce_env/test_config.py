"""Presets as data: ranges, names and impossible combinations are refused in one line."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from exactlyonce_env import catalogue
from exactlyonce_env.config import Contract, Costs, Documented, Faults, LagRange, Preset
from exactlyonce_env.errors import UserError
from exactlyonce_env.presets import load_plan, preset
from exactlyonce_env.vocabulary import MODE_NAMES


def complaint(config: dict[str, Any], base: str = "late-tail") -> str:
    """The one line that refuses ``config``."""
    with pytest.raises(UserError) as caught:
        load_plan(base, config=config)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"preset {base}: ")
    return message


INF, NAN = float("inf"), float("nan")
# section: field: (too small, too large, what the line says of the range)
RANGES: dict[str, dict[str, list[tuple[Any, str]]]] = {
    "contract": {
        "lag_s": [(-1, "greater than or equal to 0"), (2e9, "less than or equal to 1000000000")],
        "key_retention_s": [(0, "greater than 0"), (2e9, "less than or equal to 1000000000")],
        "n_items": [
            (0, "greater than or equal to 1"),
            (31, "less than or equal to 30"),
            (1.5, "integer"),
        ],
        "in_flight_bound_s": [(0, "greater than 0"), (2e9, "less than or equal to 1000000000")],
        "client_timeout_s": [(0, "greater than 0"), (86401, "less than or equal to 86400")],
        "latency_s": [(-0.5, "greater than or equal to 0"), (86401, "less than or equal to 86400")],
        "operator_delay_s": [
            (-1, "greater than or equal to 0"),
            (2e7, "less than or equal to 10000000"),
        ],
        "operator_answer_rate": [
            (-0.1, "greater than or equal to 0"),
            (1.1, "less than or equal to 1"),
        ],
        "max_steps": [(0, "greater than or equal to 1"), (10**6, "less than or equal to 100000")],
        "max_attempts": [(0, "greater than or equal to 1"), (9, "less than or equal to 8")],
    },
    "costs": {
        name: [(-0.1, "greater than or equal to 0"), (2e6, "less than or equal to 1000000")]
        for name in Costs.model_fields
    },
    "faults": {
        "original_ok_share": [
            (-0.1, "greater than or equal to 0"),
            (1.1, "less than or equal to 1"),
        ],
        "retry_fault_rate": [
            (-0.1, "greater than or equal to 0"),
            (1.1, "less than or equal to 1"),
        ],
        "late_fixed_s": [
            (-1, "greater than or equal to 0"),
            (2e8, "less than or equal to 100000000"),
        ],
        "queued_share": [(-0.1, "greater than or equal to 0"), (1.1, "less than or equal to 1")],
        "copy_delay_s": [
            (-1, "greater than or equal to 0"),
            (2e8, "less than or equal to 100000000"),
        ],
        "retry_after_s": [
            (-1, "greater than or equal to 0"),
            (86401, "less than or equal to 86400"),
        ],
        "outage_s": [(-1, "greater than or equal to 0"), (2e7, "less than or equal to 10000000")],
    },
    "lags_s": {
        "low": [(-1, "greater than or equal to 0"), (2e9, "less than or equal to 1000000000")],
        "high": [(-1, "greater than or equal to 0"), (2e9, "less than or equal to 1000000000")],
        "step": [(0, "greater than 0"), (2e9, "less than or equal to 1000000000")],
    },
}
OPEN_ENDED = ("key_retention_s", "in_flight_bound_s")
CASES = [
    (section, field, value, wanted)
    for section, fields in RANGES.items()
    for field, values in fields.items()
    for value, wanted in [*values, (NAN, "finite"), (INF, "finite"), ("much", "number")]
    if not (field in OPEN_ENDED and value == INF)
]


def test_the_table_of_ranges_is_complete() -> None:
    models = {"contract": Contract, "costs": Costs, "faults": Faults, "lags_s": LagRange}
    for section, model in models.items():
        numbers = {
            name
            for name, field in model.model_fields.items()
            if {int, float} & {field.annotation, *get_args(field.annotation)}
        }
        assert set(RANGES[section]) == numbers


@pytest.mark.parametrize("field", OPEN_ENDED)
def test_infinity_means_none_where_null_does(field: str) -> None:
    """TOML has no null."""
    assert getattr(preset("late-tail", config={"contract": {field: INF}}).contract, field) is None


@pytest.mark.parametrize(("section", "field", "value", "wanted"), CASES)
def test_numbers_out_of_range(section: str, field: str, value: Any, wanted: str) -> None:
    base = {"low": 1, "high": 2} if section == "lags_s" else {}
    message = complaint({section: {**base, field: value}}, "stale-tail")
    assert f"{section}.{field} " in message
    if field in ("n_items", "max_steps", "max_attempts") and wanted in ("finite", "number"):
        wanted = "integer" if value == "much" else "finite number"
    assert wanted in message
    assert repr(value) in message


@pytest.mark.parametrize(
    ("section", "field", "choices"),
    [
        ("contract", "readback", ["none", "strong", "eventual", "authoritative"]),
        ("contract", "in_flight_same_key", ["coalesce", "conflict"]),
        ("contract", "original_key", ["omitted", "sent"]),
        ("contract", "candidate_key", ["same", "different"]),
        ("", "start", ["fault", "send"]),
        ("", "split", ["train", "test"]),
        ("", "catalogue", ["contextual"]),
    ],
)
def test_names_outside_a_closed_set(section: str, field: str, choices: list[str]) -> None:
    message = complaint({section: {field: "perhaps"}} if section else {field: "perhaps"})
    assert f"{section}.{field}".strip(".") in message
    assert "'perhaps'" in message
    for choice in choices:
        assert f"'{choice}'" in message


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ("contract", name)
        for name in (
            "lag_documented",
            "accepts_key",
            "idempotent",
            "irreversible",
            "operator_sees_in_flight",
            "dispatch_claims",
        )
    ]
    + [("documented", name) for name in Documented.model_fields],
)
def test_flags_are_booleans(section: str, field: str) -> None:
    assert f"{section}.{field} should be a valid boolean" in complaint({section: {field: "maybe"}})


@pytest.mark.parametrize(
    ("config", "field", "choices"),
    [
        ({"colour": 1}, "colour", ["contract", "costs", "faults", "variants"]),
        ({"contract": {"colour": 1}}, "contract.colour", ["readback", "lag_s", "accepts_key"]),
        ({"costs": {"colour": 1}}, "costs.colour", ["success", "time_per_hour"]),
        ({"faults": {"colour": 1}}, "faults.colour", ["original", "retry_fault_rate"]),
        ({"documented": {"colour": 1}}, "documented.colour", ["delays", "shares"]),
        ({"lags_s": {"low": 1, "high": 2, "colour": 1}}, "lags_s.colour", ["low", "high", "step"]),
        ({"variants": [{"colour": 1}]}, "variants.0.colour", ["weight", "contract"]),
        ({"variants": [{"contract": {"colour": 1}}]}, "contract.colour", ["readback", "lag_s"]),
    ],
)
def test_unknown_fields_are_named_with_the_choices(
    config: dict[str, Any], field: str, choices: list[str]
) -> None:
    message = complaint(config)
    assert f"unknown field {field!r}" in message
    for choice in choices:
        assert choice in message


IMPOSSIBLE = [
    ({"contract": {"lag_s": 60}}, ["lag_s=60", "readback=eventual"]),
    ({"contract": {"readback": "authoritative", "lag_s": 1}}, ["lag_s=1", "readback=eventual"]),
    ({"contract": {"original_key": "sent"}}, ["original_key=sent", "accepts_key=true"]),
    ({"contract": {"latency_s": 30}}, ["latency_s=30", "client_timeout_s=30"]),
    ({"contract": {"client_timeout_s": 0.5}}, ["latency_s=1", "client_timeout_s=0.5"]),
    # A documented bound must be true.
    ({"contract": {"in_flight_bound_s": 7199}}, ["in_flight_bound_s=7199", "late_tail", "7200"]),
    (
        {
            "contract": {"in_flight_bound_s": 100},
            "faults": {"original": {"timeout_late": 1}, "late_fixed_s": 101},
        },
        ["in_flight_bound_s=100", "late_fixed_s", "101"],
    ),
    (
        {
            "contract": {"in_flight_bound_s": 1e6},
            "faults": {"late_tail": {"family": "lomax", "c": 2, "scale": 1}},
        },
        ["in_flight_bound_s=1e+06", "late_tail", "inf"],
    ),
    (
        {
            "contract": {"in_flight_bound_s": 80},
            "faults": {
                "original": {"ok": 1},
                "retry_fault_rate": 0.1,
                "late_tail": {"family": "fixed", "value_s": 1},
            },
        },
        ["in_flight_bound_s=80", "late_fixed_s", "90"],
    ),
    (
        {"contract": {"in_flight_bound_s": 0.5}, "faults": {"original": {"ok": 1}}},
        ["in_flight_bound_s=0.5", "latency_s=1"],
    ),
    ({"faults": {"original": {"partial_batch": 1}}}, ["partial_batch", "n_items"]),
    (
        {"faults": {"retry": {"partial_batch": 1}, "retry_fault_rate": 0.5}},
        ["faults.retry", "partial_batch", "n_items"],
    ),
    ({"faults": {"original": {"timeout": 1}}}, ["faults.original", "'timeout'", *MODE_NAMES]),
    ({"faults": {"retry": {"timeout": 1}}}, ["faults.retry", "'timeout'", *MODE_NAMES]),
    ({"faults": {"original": {"ok": -1}}}, ["faults.original", "ok", ">= 0", "-1"]),
    ({"faults": {"original": {"ok": 0}}}, ["faults.original", "above 0"]),
    ({"faults": {"original": {}}}, ["faults.original", "above 0"]),
    ({"faults": {"original": {"ok": NAN}}}, ["faults.original", "finite"]),
    ({"lags_s": {"low": 3, "high": 1}}, ["lags_s", "high=1", "low=3"]),
    (
        {"contract": {"readback": "eventual"}, "lags_s": {"low": 0, "high": 1e6}},
        ["lags_s", "step=1", "10,000"],
    ),
    ({"lags_s": {"low": 1, "high": 2}}, ["variants.0", "lag_s=1", "readback=eventual"]),
    (
        {"variants": [{}, {"contract": {"lag_s": 5}}]},
        ["variants.1", "lag_s=5", "readback=eventual"],
    ),
    ({"variants": [{"weight": 0}]}, ["variants.0.weight", "greater than 0"]),
    ({"variants": [{"weight": -1}]}, ["variants.0.weight", "greater than 0"]),
    ({"variants": 3}, ["variants"]),
    ({"contract": 5}, ["contract", "5"]),
    ({"contract": None}, ["contract"]),
]


@pytest.mark.parametrize(("config", "words"), IMPOSSIBLE)
def test_impossible_combinations(config: dict[str, Any], words: list[str]) -> None:
    message = complaint(config)
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"faults": {"original": "all"}}, ["faults.original ", "'fit'", "'all'"]),
        (
            {"faults": {"late_tail": {"family": "gauss"}}},
            ["faults.late_tail", "'gauss'", "lomax", "loguniform"],
        ),
        ({"faults": {"late_tail": {"family": "lomax"}}}, ["faults.late_tail", "c is missing"]),
        (
            {"faults": {"late_tail": {"family": "lomax", "c": -1}}},
            ["faults.late_tail", "c ", "greater than 0"],
        ),
        ({"faults": {"late_tail": 90}}, ["faults.late_tail", "family", "90"]),
    ],
)
def test_complaints_speak_the_user_s_language(config: dict[str, Any], words: list[str]) -> None:
    """They name the field and the choices, and nothing of the machinery behind."""
    message = complaint(config)
    for word in words:
        assert word in message
    for machinery in ("literal[", "discriminator", "_family()", "tag"):
        assert machinery not in message


@pytest.mark.parametrize(
    "config",
    [
        {"contract": {"in_flight_bound_s": 7200}},
        {"contract": {"lag_s": 0}},
        {"contract": {"readback": "eventual", "lag_s": 0}},
        {"contract": {"readback": "eventual", "lag_s": 60, "lag_documented": False}},
        {"contract": {"key_retention_s": None}},
        {"contract": {"latency_s": 0, "n_items": 30, "max_attempts": 8, "max_steps": 1}},
        {
            "contract": {"in_flight_bound_s": 1},
            "faults": {"original": {"ok": 1, "timeout_late": 0}},
        },
        {"faults": {"original": {"partial_batch": 0, "ok": 1}}},
        {"faults": {"original": {"partial_batch": 1}}, "contract": {"n_items": 2}},
        {"costs": dict.fromkeys(Costs.model_fields, 0)},
        {"lags_s": {"low": 60, "high": 60}, "contract": {"readback": "eventual"}},
    ],
)
def test_the_edges_of_the_ranges_are_possible(config: dict[str, Any]) -> None:
    assert len(load_plan("late-tail", config=config).contexts) == 1


def test_the_words_and_defaults_of_the_design() -> None:
    contract = Contract()
    assert (contract.client_timeout_s, contract.latency_s, contract.operator_delay_s) == (
        30,
        1,
        900,
    )
    assert (contract.max_steps, contract.max_attempts) == (40, 6)
    assert contract.in_flight_bound_s is None
    assert contract.lag_documented
    assert tuple(Costs().model_dump().values()) == (1, 1, 0.5, 0.3, 0.2, 0.12, 0.002, 0.002, 0.15)
    assert tuple(Costs.model_fields) == (
        "success",
        "duplicate",
        "omission",
        "unresolved",
        "overclaim",
        "time_per_hour",
        "read",
        "reissue",
        "escalation",
    )
    faults = Faults()
    assert (faults.late_fixed_s, faults.outage_s, faults.retry_fault_rate) == (90, 120, 0)
    assert round(faults.late_tail.median_s, 1) == 536.7


def test_shares_of_modes() -> None:
    """`fit`: the faults that fit the write, equally; an ok share takes its part off the top."""
    single = Faults().shares("original", 1)
    assert single == [0, *[1 / 11] * 6, 0, *[1 / 11] * 5]
    batch = Faults(original_ok_share=0.4).shares("original", 4)
    assert batch == pytest.approx([0.4, *[0.05] * 12])
    weighed = Faults(original={"timeout_pre": 3, "ok": 1}).shares("original", 1)
    assert weighed[:2] == [0.25, 0.75]
    retries = Faults(retry={"timeout_pre": 3, "ok": 1}, retry_fault_rate=0.2).shares("retry", 1)
    assert retries[:2] == pytest.approx([0.8, 0.2])
    assert Faults().shares("retry", 4) == [1, *[0] * 12]


def test_overrides_are_merged_section_by_section() -> None:
    base = preset("late-tail")
    changed = preset("late-tail", config={"contract": {"latency_s": 2}, "costs": {"read": 0.5}})
    assert changed.contract == base.contract.model_copy(update={"latency_s": 2.0})
    assert changed.costs == base.costs.model_copy(update={"read": 0.5})
    assert changed.faults == base.faults
    weights = preset("late-tail", config={"faults": {"original": {"ok": 1}}}).faults.original
    assert weights == {"ok": 1}
    law = preset("late-tail", config={"faults": {"late_tail": {"family": "fixed", "value_s": 3}}})
    assert law.faults.late_tail.support_s == (3, 3)


@pytest.mark.parametrize(
    ("name", "config", "delays"),
    [
        ("contextual", {"contract": {"readback": "none"}}, None),
        ("contextual", {"costs": {"duplicate": 100.0}}, None),
        ("contextual", {"costs": {"success": 3.0}}, None),
        ("contextual", {"costs": {"duplicate": 1.0}}, None),
        ("contextual", {"contract": {"readback": "strong"}}, None),
        ("contextual", {"faults": {"retry_fault_rate": 0.0}}, None),
        ("contextual", {}, "fixed:77"),
        ("stale-tail", {"contract": {"lag_s": 5}}, None),
        ("late-tail", {"faults": {"retry": {"timeout_pre": 1}}}, None),
    ],
)
def test_no_override_is_dropped_without_a_word(
    name: str, config: dict[str, Any], delays: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It changes the worlds, or it is refused."""
    monkeypatch.setattr(catalogue, "N_TRAIN", 16)
    monkeypatch.setattr(catalogue, "N_TEST", 0)
    cut = {"name": f"{name}-16"}  # so that no cached plan is met or left
    before = load_plan(name, config=cut)
    try:
        after = load_plan(name, config={**cut, **config}, delays=delays)
    except UserError:
        return
    assert (after.contexts.tobytes(), after.table.tobytes()) != (
        before.contexts.tobytes(),
        before.table.tobytes(),
    )


def test_a_preset_is_frozen() -> None:
    made = preset("late-tail")
    with pytest.raises(ValueError, match="frozen"):
        made.name = "other"  # type: ignore[misc]
    assert isinstance(made, Preset)
