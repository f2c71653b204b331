"""The probe's designs and prompts: sizes, exact crossing, and what a prompt may differ in."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import pytest

from evaluation.probe.designs import DESIGNS, LEVELS, TASKS, Cell, Variant, design_of
from evaluation.probe.prompts import (
    ACTIONS,
    CASES,
    answer_schema,
    codes_of,
    menu_of,
    messages_for,
)
from exactlyonce_env.errors import UserError

SIZES = {
    "key-control": (240, 48, 5),
    "counterbalance": (320, 160, 2),
    "cue-control": (256, 64, 4),
    "supplied-key": (80, 16, 5),
    "canonical-block": (256, 32, 8),
}

CROSSED: dict[str, dict[str, int]] = {
    "key-control": {"label": 2, "semantics": 2, "key": 3, "task": 4},
    "counterbalance": {"label": 2, "task": 4, "format": 20},
    "cue-control": {"label": 4, "task": 4, "order": 4},
    "supplied-key": {"label": 2, "original": 2, "task": 4},
    "canonical-block": {"label": 2, "task": 4, "order": 4},
}


def test_planned_sizes() -> None:
    found = {name: (d.planned, len(d.cells), d.draws) for name, d in DESIGNS.items()}
    assert found == SIZES
    assert {name: len(list(d.units())) for name, d in DESIGNS.items()} == {
        name: size[0] for name, size in SIZES.items()
    }


@pytest.mark.parametrize("name", DESIGNS)
def test_factors_are_exactly_crossed(name: str) -> None:
    rows = []
    for cell in DESIGNS[name].cells:
        levels = cell.to_dict()
        levels["format"] = (levels["actions"], levels["mapping"], levels["order"])
        rows.append(levels)
    factors = CROSSED[name]
    assert {f: len({row[f] for row in rows}) for f in factors} == factors
    counts = Counter(tuple(row[f] for f in factors) for row in rows)
    levels_of = [sorted({row[f] for row in rows}, key=str) for f in factors]
    assert set(counts) == set(product(*levels_of))
    assert set(counts.values()) == {1}


def test_levels_of_the_designs() -> None:
    assert {c.variant.label for c in DESIGNS["cue-control"].cells} == set(LEVELS["label"])
    conditions = Counter(c.variant.condition for c in DESIGNS["key-control"].cells)
    assert conditions == {
        ("omitted", "omitted"): 16,
        ("valid", "sent"): 16,
        ("changed", "sent"): 16,
    }
    assert Counter(c.variant.condition for c in DESIGNS["supplied-key"].cells) == {
        ("supplied", "omitted"): 8,
        ("supplied", "sent"): 8,
    }
    with pytest.raises(UserError, match="did you mean cue-control"):
        design_of("cue-controls")


@pytest.mark.parametrize(
    ("levels", "wrong"),
    [
        ({"label": "strong"}, "unknown label 'strong'"),
        ({"key": "valid"}, "key valid does not go with"),
        ({"key": "omitted", "original": "sent"}, "key omitted does not go with"),
        ({"actions": "coded"}, "a mapping belongs to coded actions"),
        ({"mapping": 1}, "a mapping belongs to coded actions"),
        ({"order": 4}, "unknown order 4"),
        ({"order": True}, "unknown order True"),
        (
            {"key": "valid", "original": "sent", "actions": "coded", "mapping": 0},
            "codes stand for the four actions",
        ),
    ],
)
def test_levels_that_do_not_go_together(levels: dict[str, Any], wrong: str) -> None:
    with pytest.raises(UserError, match=wrong):
        Variant(**levels)


def test_menus_are_cyclic() -> None:
    orders = [list(menu_of(Variant(order=k))) for k in range(4)]
    assert orders == [
        ["retry", "stop", "wait", "unresolved"],
        ["stop", "wait", "unresolved", "retry"],
        ["wait", "unresolved", "retry", "stop"],
        ["unresolved", "retry", "stop", "wait"],
    ]
    assert list(menu_of(Variant(key="omitted"))) == list(ACTIONS)


def test_every_code_stands_for_every_action_and_place_once() -> None:
    coded = [Variant(actions="coded", mapping=m, order=o) for m in range(4) for o in range(4)]
    pairs = Counter(pair for v in coded for pair in codes_of(v).items())
    assert len(pairs) == 16
    assert set(pairs.values()) == {4}
    places = Counter(
        (place, code, action)
        for v in coded
        for place, (code, action) in enumerate(menu_of(v).items())
    )
    assert len(places) == 64
    assert set(places.values()) == {1}


def texts(cell: Cell) -> tuple[str, str]:
    system, user = messages_for(cell)
    return system["content"], user["content"]


def test_prompts_differ_where_their_cells_differ() -> None:
    cells = {cell for design in DESIGNS.values() for cell in design.cells}
    assert len({texts(cell) for cell in cells}) == len(cells)


def test_what_each_factor_changes() -> None:
    plain = texts(Cell(Variant(), "issue"))
    labelled = texts(Cell(Variant("weak"), "issue"))
    assert labelled[0] == plain[0]
    added = "          evidence label of this answer: weak\n"
    assert labelled[1].replace(added, "") == plain[1]
    unstated = texts(Cell(Variant(semantics="unstated"), "issue"))
    assert unstated[0] == plain[0]
    assert "replica" in plain[1]
    assert "replica" not in unstated[1]
    coded = texts(Cell(Variant(actions="coded", mapping=1, order=2), "issue"))
    assert coded[1] == plain[1]
    assert "A means stop, B means wait, C means unresolved and D means retry." in coded[0]
    assert coded[0].index("- C: end here, and report that") < coded[0].index("- D: send")
    assert coded[0].index("- D: send") < coded[0].index("- A: end here, and report the request")
    assert "retry:" not in coded[0]


@pytest.mark.parametrize("task", TASKS)
def test_which_keys_a_prompt_shows(task: str) -> None:
    case = CASES[task]
    shown = {
        condition: [text.count(case.key), text.count(case.other_key)]
        for condition in (
            ("none", "omitted"),
            ("omitted", "omitted"),
            ("valid", "sent"),
            ("changed", "sent"),
            ("supplied", "omitted"),
            ("supplied", "sent"),
        )
        for text in ["".join(texts(Cell(Variant("absent", "stated", *condition), task)))]
    }
    assert shown == {
        ("none", "omitted"): [0, 0],
        ("omitted", "omitted"): [1, 0],
        ("valid", "sent"): [2, 0],
        ("changed", "sent"): [1, 1],
        ("supplied", "omitted"): [0, 0],
        ("supplied", "sent"): [1, 0],
    }


def test_schemas_name_exactly_the_menu() -> None:
    schema = answer_schema(Variant(actions="coded", mapping=2, order=1))
    assert schema["properties"]["action"]["enum"] == ["B", "C", "D", "A"]
    assert schema["required"] == ["action", "rationale"]
    supplied = answer_schema(Variant(key="supplied"))
    assert supplied["required"] == ["action", "rationale", "idempotency_key"]
    assert supplied["additionalProperties"] is False
