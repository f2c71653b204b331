"""The columns of a stored episode, declared once, and their way between NumPy and Arrow.

Arrays cross over by their buffers. `pyarrow.array(ndarray)` and `to_numpy()` would do the same but
import pandas on first use, half a second that a run of a few seconds need not spend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from exactlyonce_env.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["bool", "int32", "int64", "float64", "label"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the store: its name, type, unit and meaning."""

    name: str
    kind: Kind
    unit: str
    meaning: str


MEASURES: tuple[Column, ...] = (
    Column("task_success", "bool", "", "every item stands and nothing unrelated is damaged"),
    Column("exactly_once", "bool", "", "task success and every item executed exactly once"),
    Column("duplicates", "int32", "executions", "executions beyond the first, undone or not"),
    Column("residual_duplicates", "int32", "effects", "effects beyond the first that stand"),
    Column("omissions", "int32", "items", "items without a standing effect"),
    Column("unresolved", "bool", "", "the episode ended without a claim of completion"),
    Column("resolved_exact", "bool", "", "exactly once and not unresolved"),
    Column("overclaim", "bool", "", "claimed completion without success or with a duplicate"),
    Column("false_retry_permissions", "int32", "re-issues", "re-issues that were not permitted"),
    Column("elapsed_s", "float64", "s", "time from t = 0 to the last action's end"),
    Column("reads", "int32", "actions", "read-backs"),
    Column("waits", "int32", "actions", "waits"),
    Column("reissues", "int32", "actions", "re-issues of the operation"),
    Column("escalations", "int32", "actions", "questions to the operator"),
    Column("operator_s", "float64", "s", "time spent waiting for the operator"),
    Column("steps", "int32", "actions", "actions of the episode"),
    Column("reward", "float64", "", "sum of all reward terms"),
    Column("cost", "float64", "", "cost for constrained RL: duplicates at the end"),
)
COLUMNS: tuple[Column, ...] = (
    Column("policy", "label", "", "the policy's spec string"),
    Column("world", "int64", "", "world id"),
    *MEASURES,
    Column("context", "int32", "", "index of the context in the preset's catalogue"),
    Column("mode", "label", "", "fault mode of the original attempt"),
)
COLUMN_NAMES: tuple[str, ...] = tuple(column.name for column in COLUMNS)
MEASURE_NAMES: tuple[str, ...] = tuple(column.name for column in MEASURES)

_KINDS: dict[str, Kind] = {column.name: column.kind for column in COLUMNS}
_DTYPES: dict[Kind, type[np.generic]] = {
    "bool": np.bool_,
    "int32": np.int32,
    "int64": np.int64,
    "float64": np.float64,
}
_ARROW_DTYPES: dict[str, type[np.generic]] = {
    "bool": np.bool_,
    "int32": np.int32,
    "int64": np.int64,
    "double": np.float64,
}
_PLAIN: dict[Kind, str] = {
    "bool": "0 or 1",
    "int32": "32-bit integer",
    "int64": "64-bit integer",
    "float64": "finite number",
}


def episode_schema() -> pa.Schema:
    """Return the Arrow schema of a part, in the order of `COLUMNS`."""
    import pyarrow as pa

    types = {
        "bool": pa.bool_(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "float64": pa.float64(),
        "label": pa.dictionary(pa.int32(), pa.string()),
    }
    return pa.schema([pa.field(c.name, types[c.kind], nullable=False) for c in COLUMNS])


def episode_table(policy: str, columns: Mapping[str, NDArray[Any]] | NDArray[Any]) -> pa.Table:
    """Make the Arrow table of one policy's episodes, sorted by world.

    `columns` is a mapping of names to (n,) arrays, or one (n,) structured array, with every column
    of `COLUMNS` but `policy`. Integers and bools may come in any width that holds 0/1 or the value.

    Raises UserError for a missing or unknown column, unequal lengths, or a value that its column
    cannot carry.
    """
    import pyarrow as pa

    given = _by_name(columns)
    _check_names(given)
    values = {name: _conform(name, given[name]) for name in given}
    lengths = {name: array.size for name, array in values.items()}
    if len(set(lengths.values())) != 1 or lengths["world"] == 0:
        raise UserError(f"columns need one value per episode and one episode, got {lengths}")
    order = np.argsort(values["world"], kind="stable")
    arrays = [_label_array(np.zeros(order.size, np.int32), [policy])]
    arrays += [_to_arrow(name, values[name][order]) for name in COLUMN_NAMES[1:]]
    return pa.Table.from_arrays(arrays, schema=episode_schema())


def to_numpy(column: pa.ChunkedArray) -> NDArray[Any]:
    """Return an Arrow column of a run as (n,) NumPy values; labels come as `str` arrays."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        chunks = [_labels_to_numpy(chunk) for chunk in column.chunks]
        return np.concatenate(chunks) if chunks else np.empty(0, dtype=np.str_)
    dtype = _ARROW_DTYPES[str(column.type)]
    chunks = [_buffer_to_numpy(chunk, dtype) for chunk in column.chunks]
    return np.concatenate(chunks) if chunks else np.empty(0, dtype=dtype)


def _by_name(columns: Mapping[str, NDArray[Any]] | NDArray[Any]) -> dict[str, NDArray[Any]]:
    if isinstance(columns, np.ndarray):
        if columns.dtype.names is None:
            raise UserError(f"episodes must be a structured array, got dtype {columns.dtype}")
        return {name: columns[name] for name in columns.dtype.names}
    return {name: np.asarray(values) for name, values in columns.items()}


def _check_names(given: Mapping[str, Any]) -> None:
    wanted = COLUMN_NAMES[1:]
    missing = [name for name in wanted if name not in given]
    if missing:
        raise UserError(f"episodes lack the column {missing[0]!r}")
    unknown = [name for name in given if name not in wanted]
    if unknown:
        raise UserError(f"episodes have no column {unknown[0]!r}, known: {', '.join(wanted)}")


def _conform(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Values in the dtype of their column, refused where that would change them."""
    kind = _KINDS[name]
    if values.ndim != 1:
        raise UserError(f"column {name!r} must be one-dimensional, got shape {values.shape}")
    if kind == "label":
        texts = values.dtype.kind == "U" or (
            values.dtype.kind == "O" and all(isinstance(value, str) for value in values)
        )
        if not texts:
            raise UserError(f"column {name!r} must hold strings, got {values.dtype}")
        return values.astype(np.str_)
    if values.dtype.kind not in "biuf":
        raise UserError(f"column {name!r} must hold numbers, got {values.dtype}")
    with np.errstate(invalid="ignore"):
        stored = values.astype(_DTYPES[kind])
    changed = stored != values
    if kind == "float64":
        changed = ~np.isfinite(stored)
    if changed.any():
        bad = values[np.argmax(changed)]
        raise UserError(f"column {name!r} holds {bad}, which is no {_PLAIN[kind]}")
    return stored


def _to_arrow(name: str, values: NDArray[Any]) -> pa.Array:
    import pyarrow as pa

    kind = _KINDS[name]
    if kind == "label":
        names, first, codes = np.unique(values, return_index=True, return_inverse=True)
        # Labels are numbered as they first appear, so that cutting a run into other parts and
        # joining them again gives the same dictionary.
        rank = np.argsort(first, kind="stable")
        position = np.empty(rank.size, dtype=np.int32)
        position[rank] = np.arange(rank.size, dtype=np.int32)
        return _label_array(position[codes], names[rank].tolist())
    if kind == "bool":
        data = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), values.size, [None, pa.py_buffer(data)])
    type_ = episode_schema().field(name).type
    return pa.Array.from_buffers(type_, values.size, [None, pa.py_buffer(values)])


def _label_array(codes: NDArray[np.int32], labels: list[str]) -> pa.DictionaryArray:
    import pyarrow as pa

    encoded = [label.encode("utf-8") for label in labels]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    dictionary = pa.Array.from_buffers(
        pa.string(), len(labels), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    )
    return pa.DictionaryArray.from_buffers(
        pa.dictionary(pa.int32(), pa.string()),
        codes.size,
        [None, pa.py_buffer(codes)],
        dictionary,
    )


def _labels_to_numpy(chunk: pa.DictionaryArray) -> NDArray[np.str_]:
    labels = np.array(chunk.dictionary.to_pylist(), dtype=np.str_)
    codes: NDArray[np.int32] = _buffer_to_numpy(chunk.indices, np.int32)
    return labels[codes]


def _buffer_to_numpy(array: pa.Array, dtype: type[np.generic]) -> NDArray[Any]:
    data, start, stop = array.buffers()[1], array.offset, array.offset + len(array)
    if dtype is np.bool_:
        bits = np.unpackbits(np.frombuffer(data, np.uint8), count=stop, bitorder="little")
        return bits[start:].astype(np.bool_)
    return np.frombuffer(data, dtype)[start:stop]
