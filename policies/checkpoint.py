"""Checkpoints of learned policies: weights, names and a manifest in one file that cannot run code.

The file is an ``.npz`` archive, not compressed, of

- ``manifest.json``: the format, the activation, the names of features and actions, the manifest;
- ``layer_0.weight.npy``, ``layer_0.bias.npy``, ``layer_1.weight.npy``, ...: float32 arrays.

`load_checkpoint` trusts nothing in it: names, sizes, types and shapes are checked before an array
is made, nothing is unpickled or unpacked to disk, and memory stays within a few times `MAX_BYTES`.
"""

from __future__ import annotations

import io
import json
import math
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from exactlyonce_env.errors import UserError
from exactlyonce_env.files import write_atomically

__all__ = ["Checkpoint", "load_checkpoint", "save_checkpoint"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
Activation: TypeAlias = Literal["tanh", "relu"]

FORMAT = "exactlyonce-checkpoint"
VERSION = 1

MAX_LAYERS = 16
MAX_WIDTH = 4096
MAX_NAME = 80  # characters of a feature's or an action's name
MAX_BYTES = 64 << 20  # of the file
MAX_MANIFEST_BYTES = 1 << 20
MAX_DIRECTORY_BYTES = 1 << 14  # of the archive's table of members
MAX_MEMBERS = 1 + 2 * MAX_LAYERS

_MANIFEST = "manifest.json"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time a zip file can name
_END = b"PK\x05\x06"  # the record that closes a zip file, 22 bytes long
_END_BYTES = 22
_ZIP64_LOCATOR = b"PK\x06\x07"  # stands 20 bytes before it, where sizes go beyond 4 GiB
_FLOAT32 = np.dtype("<f4")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A feed-forward network that scores the discrete actions, and where it comes from.

    Attributes
    ----------
    layers
        From input to output, each a weight (out, in) and a bias (out,), float32; they are copied
        and made read-only. The last layer gives one score for each action.
    activation
        ``tanh`` or ``relu``, between layers; the last layer is linear.
    features
        Names of the observation's entries that it was trained on, in order.
    actions
        Names of the discrete actions, in order.
    manifest
        Preset, algorithm, seed, steps, command, versions, measured values, ...: JSON's types.

    Raises
    ------
    UserError
        For anything that does not fit together, is not finite or exceeds the limits.
    """

    layers: tuple[tuple[FloatArray, FloatArray], ...]
    activation: Activation
    features: tuple[str, ...]
    actions: tuple[str, ...]
    manifest: dict[str, Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", _checked_names("feature", self.features))
        object.__setattr__(self, "actions", _checked_names("action", self.actions))
        object.__setattr__(self, "manifest", _checked_manifest(self.manifest))
        if self.activation not in get_args(Activation):
            choices = " or ".join(get_args(Activation))
            raise UserError(f"the activation must be {choices}, not {self.activation!r}")
        if not 1 <= len(self.layers) <= MAX_LAYERS:
            raise UserError(f"there must be 1 to {MAX_LAYERS} layers, not {len(self.layers)}")
        inputs, checked = len(self.features), []
        for k, (weight, bias) in enumerate(self.layers):
            last = k == len(self.layers) - 1
            checked.append(_checked_layer(k, weight, bias, inputs, last, len(self.actions)))
            inputs = len(bias)
        object.__setattr__(self, "layers", tuple(checked))

    @property
    def n_parameters(self) -> int:
        """Number of weights and biases."""
        return sum(weight.size + bias.size for weight, bias in self.layers)


def save_checkpoint(path: str | os.PathLike[str], checkpoint: Checkpoint) -> Path:
    """Write a checkpoint; the file appears whole or not at all.

    The same content gives the same bytes, whenever, wherever and with whichever zlib it is written.

    Raises
    ------
    UserError
        If the name does not end in ``.npz``, or nothing can be written there.
    """
    target = Path(path)
    if target.suffix != ".npz":
        raise UserError(f"{str(target)!r}: the name of a checkpoint ends in .npz")
    members = {_MANIFEST: _header(checkpoint)}
    for k, (weight, bias) in enumerate(checkpoint.layers):
        members[f"layer_{k}.weight.npy"] = _npy(weight)
        members[f"layer_{k}.bias.npy"] = _npy(bias)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as writer:
        for name, content in members.items():
            member = zipfile.ZipInfo(name, _EPOCH)
            member.create_system = 3  # Unix everywhere
            member.external_attr = 0o644 << 16
            writer.writestr(member, content)
    data = archive.getvalue()
    if len(data) > MAX_BYTES:
        raise UserError(f"{str(target)!r} would have {len(data)} bytes; {MAX_BYTES} are allowed")
    try:
        write_atomically(target, lambda neighbour: neighbour.write_bytes(data))
    except OSError as error:
        raise UserError(f"{str(target)!r} cannot be written: {error.strerror}") from error
    return target


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint from anybody: it can be refused, but not run code or exhaust the memory.

    Raises
    ------
    UserError
        In one line, for a file that is missing, unreadable or no sound checkpoint.
    """
    source = Path(path)
    data = _bytes_of(source)
    try:
        members = _members(data)
        header = _parsed_header(members.pop(_MANIFEST))
        layers = _layers(members)
        return Checkpoint(layers=layers, **header)
    except UserError as error:
        raise UserError(f"{str(source)!r} is no sound checkpoint: {error}") from None


def _bytes_of(source: Path) -> bytes:
    """The whole file, unless it is too large or no file at all."""
    try:
        if not source.is_file():  # a pipe would block, a device never end
            what = "is not a file" if source.exists() else "does not exist"
            raise UserError(f"the checkpoint {str(source)!r} {what}; name a file that `train` made")
        with source.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(size + 1) if size <= MAX_BYTES else b""
    except (OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"the checkpoint {str(source)!r} cannot be read: {reason}") from error
    if max(size, len(data)) > MAX_BYTES:
        raise UserError(
            f"{str(source)!r} is no sound checkpoint: it has more than {MAX_BYTES} bytes"
        )
    return data


def _members(data: bytes) -> dict[str, bytes]:
    """The members of the archive by name, the manifest among them."""
    _check_directory(data)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            found = archive.infolist()
            _check_members(found, len(data))
            return {member.filename: archive.read(member) for member in found}
    except UserError:
        raise
    except (zipfile.BadZipFile, EOFError, NotImplementedError, OSError, RuntimeError) as error:
        raise UserError(f"the archive is damaged: {error}") from error
    except (LookupError, OverflowError, ValueError) as error:
        raise UserError(f"the archive is damaged: {error}") from error


def _check_directory(data: bytes) -> None:
    """Refuse a table of members that would cost memory, before `zipfile` reads it."""
    end = data[-_END_BYTES:]
    if len(end) < _END_BYTES or not end.startswith(_END):
        raise UserError(
            "it does not end as an .npz archive does; it is cut off or of another kind "
            "(models of Stable-Baselines3 and PyTorch are not read: they can run code)"
        )
    if data[-_END_BYTES - 20 :].startswith(_ZIP64_LOCATOR):
        raise UserError("archives in the zip64 form are not read")
    n_members = int.from_bytes(end[10:12], "little")
    n_bytes = int.from_bytes(end[12:16], "little")
    if n_members > MAX_MEMBERS or n_bytes > MAX_DIRECTORY_BYTES:
        raise UserError(f"the archive has {n_members} members; at most {MAX_MEMBERS} are allowed")


def _check_members(found: Sequence[zipfile.ZipInfo], n_bytes: int) -> None:
    names = [member.filename for member in found]
    n_layers = sum(name.endswith(".weight.npy") for name in names)
    wanted = [_MANIFEST]
    for k in range(n_layers):
        wanted += [f"layer_{k}.weight.npy", f"layer_{k}.bias.npy"]
    missing = [name for name in wanted if name not in names]
    if missing:
        raise UserError(f"the member {missing[0]!r} is missing")
    extra = [name for k, name in enumerate(names) if name not in wanted or name in names[:k]]
    if extra:
        raise UserError(f"the member {extra[0]!r} does not belong into a checkpoint")
    for member in found:
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
            raise UserError(f"the member {member.filename!r} is compressed or encrypted")
        if member.file_size != member.compress_size:
            raise UserError(f"the member {member.filename!r} states two sizes")
    # Nothing is compressed, so more than the file holds means members that share bytes.
    if sum(member.file_size for member in found) > n_bytes:
        raise UserError("the members overlap")


def _header(checkpoint: Checkpoint) -> bytes:
    content = {
        "format": FORMAT,
        "version": VERSION,
        "activation": checkpoint.activation,
        "features": list(checkpoint.features),
        "actions": list(checkpoint.actions),
        "manifest": checkpoint.manifest,
    }
    text = json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n"
    if len(text) > MAX_MANIFEST_BYTES:
        raise UserError(
            f"the manifest has {len(text)} bytes with the names; {MAX_MANIFEST_BYTES} are allowed"
        )
    return text.encode("ascii")


def _parsed_header(data: bytes) -> dict[str, Any]:
    """The fields of a checkpoint other than its layers; `Checkpoint` checks what they hold."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise UserError(
            f"{_MANIFEST} has {len(data)} bytes; at most {MAX_MANIFEST_BYTES} are allowed"
        )
    try:
        content = json.loads(data.decode("utf-8"), parse_constant=_no_constant)
    except (RecursionError, ValueError) as error:
        raise UserError(f"{_MANIFEST} is not JSON: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f'{_MANIFEST} does not say "format": "{FORMAT}"')
    if content.get("version") != VERSION:
        raise UserError(
            f"it has version {content.get('version')!r} of the format; this program reads "
            f"version {VERSION}"
        )
    fields = {}
    for name, kind in (
        ("activation", str),
        ("features", list),
        ("actions", list),
        ("manifest", dict),
    ):
        if not isinstance(content.get(name), kind):
            raise UserError(f"{_MANIFEST}: {name!r} is missing or of a wrong type")
        fields[name] = content[name]
    return fields


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def _layers(members: dict[str, bytes]) -> tuple[tuple[FloatArray, FloatArray], ...]:
    return tuple(
        (
            _array(f"layer_{k}.weight.npy", members[f"layer_{k}.weight.npy"], 2),
            _array(f"layer_{k}.bias.npy", members[f"layer_{k}.bias.npy"], 1),
        )
        for k in range(len(members) // 2)
    )


def _npy(array: FloatArray) -> bytes:
    content = io.BytesIO()
    np.lib.format.write_array(
        content, np.asarray(array, dtype=_FLOAT32), version=(1, 0), allow_pickle=False
    )
    return content.getvalue()


def _array(name: str, data: bytes, n_dimensions: int) -> FloatArray:
    """The float32 array of a ``.npy`` member, whose header is checked before anything is made."""
    stream = io.BytesIO(data)
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise UserError(f"{name} has another version of the .npy format than 1.0")
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(stream)
    except UserError:
        raise
    except Exception as error:  # whatever a malformed header makes of the parser
        raise UserError(f"{name} is no .npy array: {type(error).__name__}") from error
    if dtype != _FLOAT32 or fortran_order:
        raise UserError(f"{name} must hold little-endian float32 in C order, not {dtype}")
    if len(shape) != n_dimensions or not all(1 <= size <= MAX_WIDTH for size in shape):
        raise UserError(
            f"{name} has the shape {shape}; {n_dimensions} sizes of 1 to {MAX_WIDTH} are allowed"
        )
    start = stream.tell()
    if len(data) - start != math.prod(shape) * _FLOAT32.itemsize:
        raise UserError(f"{name} has {len(data) - start} bytes, which do not fill {shape} float32")
    return np.frombuffer(data, dtype=_FLOAT32, offset=start).astype(np.float32).reshape(shape)


def _checked_layer(
    k: int, weight: FloatArray, bias: FloatArray, inputs: int, last: bool, n_actions: int
) -> tuple[FloatArray, FloatArray]:
    """Copies of one layer's arrays, read-only."""
    if weight.dtype != np.float32 or bias.dtype != np.float32:
        raise UserError(
            f"layer {k}: weight and bias must be float32, not {weight.dtype} and {bias.dtype}"
        )
    outputs = len(bias) if bias.ndim == 1 else 0
    if not 1 <= outputs <= MAX_WIDTH:
        raise UserError(f"layer {k}: the bias must have the shape (1 to {MAX_WIDTH},)")
    if weight.shape != (outputs, inputs):
        raise UserError(
            f"layer {k}: the weight has the shape {weight.shape}; with {inputs} inputs and "
            f"{outputs} biases it must be ({outputs}, {inputs})"
        )
    if last and outputs != n_actions:
        raise UserError(f"layer {k} gives {outputs} scores for {n_actions} actions")
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise UserError(f"layer {k} has a weight or bias that is not finite")
    kept = (weight.copy(order="C"), bias.copy())
    for array in kept:
        array.setflags(write=False)
    return kept


def _checked_names(what: str, names: Sequence[Any]) -> tuple[str, ...]:
    if not 1 <= len(names) <= MAX_WIDTH:
        raise UserError(f"there must be 1 to {MAX_WIDTH} {what} names")
    for name in names:
        if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name) <= MAX_NAME:
            raise UserError(
                f"a {what} name must be a printable text of 1 to {MAX_NAME} characters, "
                f"not {repr(name)[: MAX_NAME + 20]}"
            )
    if len(set(names)) != len(names):
        twice = next(name for k, name in enumerate(names) if name in names[:k])
        raise UserError(f"the {what} {twice!r} is named twice")
    return tuple(names)


def _checked_manifest(manifest: dict[str, Any]) -> dict[str, Any]:
    """A deep copy in JSON's types."""
    if not isinstance(manifest, dict):
        raise UserError(f"the manifest must be a mapping, not {type(manifest).__name__}")
    try:
        copy = json.loads(json.dumps(manifest, allow_nan=False))
    except (RecursionError, TypeError, ValueError) as error:
        raise UserError(f"the manifest has something that JSON lacks: {error}") from error
    kept: dict[str, Any] = copy
    return kept
