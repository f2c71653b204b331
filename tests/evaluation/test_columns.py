from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.columns import (
    COLUMN_NAMES,
    COLUMNS,
    MEASURE_NAMES,
    episode_schema,
    episode_table,
    to_numpy,
)
from exactlyonce_env.errors import UserError

DTYPES = {"bool": np.bool_, "int32": np.int32, "int64": np.int64, "float64": np.float64}


def _columns(worlds, modes=("ok", "timeout_post", "timeout_late")) -> dict[str, np.ndarray]:
    worlds = np.asarray(worlds)
    columns = {c.name: (worlds % 3).astype(DTYPES[c.kind]) for c in COLUMNS if c.kind in DTYPES}
    columns["world"] = worlds
    columns["mode"] = np.array([modes[world % len(modes)] for world in worlds], dtype=object)
    for name in ("task_success", "exactly_once", "unresolved", "resolved_exact", "overclaim"):
        columns[name] = worlds % 2 == 1
    return columns


def test_every_measure_of_an_episode_has_a_column() -> None:
    expected = (
        "task_success exactly_once duplicates residual_duplicates omissions unresolved "
        "resolved_exact overclaim false_retry_permissions elapsed_s reads waits reissues "
        "escalations operator_s steps reward cost"
    )
    assert list(MEASURE_NAMES) == expected.split()
    assert list(COLUMN_NAMES) == ["policy", "world", *expected.split(), "context", "mode"]
    assert episode_schema().names == list(COLUMN_NAMES)


def test_table_equals_one_that_pyarrow_builds() -> None:
    columns = _columns(range(5, 25))
    table = episode_table("wait:300", columns)
    table.validate(full=True)
    expected = pa.table(
        {"policy": ["wait:300"] * 20, **{name: columns[name] for name in COLUMN_NAMES[1:]}}
    )
    plain = [
        column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
        for column in table.columns
    ]
    for name, column in zip(COLUMN_NAMES, plain, strict=True):
        assert column.to_pylist() == expected.column(name).to_pylist(), name


def test_rows_come_out_sorted_by_world() -> None:
    shuffled = episode_table("p", _columns([7, 5, 6]))
    assert shuffled.equals(episode_table("p", _columns([5, 6, 7])))


def test_a_structured_array_is_as_good_as_a_mapping() -> None:
    columns = _columns(range(9))
    columns["mode"] = columns["mode"].astype("U16")
    dtype = [(name, values.dtype) for name, values in columns.items()]
    records = np.empty(9, dtype=dtype)
    for name, values in columns.items():
        records[name] = values
    assert episode_table("p", records).equals(episode_table("p", columns))


def test_narrow_and_wide_numbers_are_taken_where_they_fit() -> None:
    columns = _columns(range(9))
    narrow = {
        **columns,
        "exactly_once": columns["exactly_once"].astype(np.uint8),
        "reads": columns["reads"].astype(np.int8),
        "steps": columns["steps"].astype(np.int64),
        "reward": columns["reward"].astype(np.float32),
        "cost": columns["cost"].astype(np.int32),
    }
    assert episode_table("p", narrow).equals(episode_table("p", columns))


# NumPy's own strings cannot end in a zero character, so labels cannot hold one.
labels = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6)


@given(st.lists(labels, min_size=1, max_size=30), st.integers(0, 40))
def test_values_come_back_from_any_slice(modes: list[str], start: int) -> None:
    columns = _columns(range(40), modes=modes)
    table = episode_table("Δ:ü", columns)
    joined = pa.concat_tables([table.slice(start), table.slice(0, start)])
    order = np.r_[start:40, 0:start]
    for name in COLUMN_NAMES[1:]:
        np.testing.assert_array_equal(to_numpy(joined.column(name)), columns[name][order])
    assert to_numpy(joined.column("policy")).tolist() == ["Δ:ü"] * 40


@given(st.lists(st.sampled_from("abcd"), min_size=2, max_size=30), st.data())
def test_labels_are_numbered_alike_however_the_rows_are_cut(modes, data) -> None:
    cut = data.draw(st.integers(1, len(modes) - 1))
    columns = _columns(range(len(modes)), modes=modes)
    whole = episode_table("p", columns)
    parts = [
        episode_table("p", {name: values[rows] for name, values in columns.items()})
        for rows in (slice(0, cut), slice(cut, None))
    ]
    assert pa.concat_tables(parts).unify_dictionaries().equals(whole)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("exactly_once", np.array([0, 2]), "'exactly_once' holds 2, which is no 0 or 1"),
        ("reads", np.array([0.0, 0.5]), r"'reads' holds 0\.5, which is no 32-bit integer"),
        ("reads", np.array([0, 2**31]), "'reads' holds 2147483648"),
        ("reward", np.array([0.0, np.nan]), "'reward' holds nan, which is no finite number"),
        ("elapsed_s", np.array([0.0, np.inf]), "'elapsed_s' holds inf"),
        ("steps", np.array(["1", "2"]), "'steps' must hold numbers"),
        ("mode", np.array([1, 2]), "'mode' must hold strings"),
        ("mode", np.array(["ok", None], dtype=object), "'mode' must hold strings"),
        ("reads", np.zeros((2, 1)), "'reads' must be one-dimensional"),
        ("reads", np.zeros(3), "one value per episode"),
        ("colour", np.zeros(2), "no column 'colour', known: world, task_success"),
    ],
)
def test_a_value_its_column_cannot_carry_is_refused(name: str, value, message: str) -> None:
    with pytest.raises(UserError, match=message):
        episode_table("p", {**_columns([0, 1]), name: value})


def test_missing_columns_and_empty_parts_are_refused() -> None:
    columns = _columns([0, 1])
    del columns["steps"]
    with pytest.raises(UserError, match="lack the column 'steps'"):
        episode_table("p", columns)
    with pytest.raises(UserError, match="one episode"):
        episode_table("p", _columns(np.array([], dtype=np.int64)))
    with pytest.raises(UserError, match="structured array"):
        episode_table("p", np.zeros(3))
