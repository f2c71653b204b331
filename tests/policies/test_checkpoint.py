"""Checkpoints: what is written comes back, and a hostile file is refused in one line."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exactlyonce_env.errors import UserError
from policies import checkpoint as module
from policies.checkpoint import MAX_BYTES, Checkpoint, load_checkpoint, save_checkpoint

MANIFEST = {"preset": "late-tail", "seed": 3, "values": [0.5, None, True], "command": "train …"}
Members = dict[str, bytes]


def small(**changes: Any) -> Checkpoint:
    """Two features, three hidden units, two actions."""
    fields: dict[str, Any] = {
        "layers": (
            (np.array([[1, 2], [3, 4], [5, 6]], np.float32), np.array([0.5, -1, 0], np.float32)),
            (np.array([[1, 0, -1], [0, 1, 0]], np.float32), np.array([0.25, 0], np.float32)),
        ),
        "activation": "tanh",
        "features": ("elapsed", "read_shown"),
        "actions": ("read", "finish"),
        "manifest": MANIFEST,
    }
    return Checkpoint(**{**fields, **changes})


def layers(*shapes: tuple[int, int]) -> tuple[tuple[Any, Any], ...]:
    return tuple(
        (np.zeros(shape, dtype=np.float32), np.zeros(shape[0], dtype=np.float32))
        for shape in shapes
    )


@pytest.fixture
def members(tmp_path: Path) -> Members:
    """The members of a sound file, to be tampered with."""
    with zipfile.ZipFile(save_checkpoint(tmp_path / "sound.npz", small())) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture
def refusal(tmp_path: Path) -> Callable[[bytes], str]:
    """The one line that refuses a file of these bytes."""

    def refuse(data: bytes) -> str:
        path = tmp_path / "given.npz"
        path.write_bytes(data)
        with pytest.raises(UserError) as raised:
            load_checkpoint(path)
        assert "\n" not in str(raised.value)
        assert "given.npz" in str(raised.value)
        return str(raised.value)

    return refuse


def packed(members: Members, compression: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def npy(array: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, array, **options)
    return out.getvalue()


def header(members: Members, **changes: Any) -> bytes:
    return json.dumps({**json.loads(members["manifest.json"]), **changes}).encode()


# --- writing and reading back ---------------------------------------------------------------------


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    saved = small()
    path = save_checkpoint(tmp_path / "a.npz", saved)
    loaded = load_checkpoint(path)
    assert path == tmp_path / "a.npz"
    for pair, again in zip(saved.layers, loaded.layers, strict=True):
        for array, copy in zip(pair, again, strict=True):
            assert copy.dtype == np.float32
            assert copy.tobytes() == array.tobytes()
            assert not copy.flags.writeable
    assert loaded.activation == "tanh"
    assert loaded.features == ("elapsed", "read_shown")
    assert loaded.actions == ("read", "finish")
    assert loaded.manifest == MANIFEST
    assert loaded.n_parameters == 6 + 3 + 6 + 2


def test_the_same_content_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = save_checkpoint(tmp_path / "a.npz", small()).read_bytes()
    monkeypatch.setattr(time, "time", lambda: 2e9)
    turned = dict(reversed(MANIFEST.items()))
    fortran = tuple((np.asfortranarray(weight), bias) for weight, bias in small().layers)
    other = save_checkpoint(tmp_path / "b.npz", small(manifest=turned, layers=fortran))
    assert other.read_bytes() == first
    assert save_checkpoint(tmp_path / "c.npz", load_checkpoint(other)).read_bytes() == first


def test_numpy_opens_the_file_too(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "a.npz", small())
    with np.load(path, allow_pickle=False) as arrays:
        assert np.array_equal(arrays["layer_0.weight"], small().layers[0][0])
        assert json.loads(arrays["manifest.json"])["manifest"] == MANIFEST


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_checkpoint(tmp_path / "a.npz", small())
    before = path.read_bytes()
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    with pytest.raises(UserError, match="100 are allowed"):
        save_checkpoint(path, small())
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.parametrize("name", ["a.zip", "a", "missing/a.npz"])
def test_a_place_that_cannot_take_it_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=name):
        save_checkpoint(tmp_path / name, small())
    assert list(tmp_path.iterdir()) == []


def test_the_arrays_are_copies() -> None:
    weight, bias = np.ones((1, 1), np.float32), np.ones(1, np.float32)
    manifest = {"values": [1]}
    kept = Checkpoint(((weight, bias),), "relu", ("elapsed",), ("finish",), manifest)
    weight[:] = 2
    manifest["values"].append(2)
    assert kept.layers[0][0][0, 0] == 1
    assert kept.manifest == {"values": [1]}


# --- what does not fit together -------------------------------------------------------------------

ONE = np.ones((2, 2), np.float32)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layers": ()}, "1 to 16 layers, not 0"),
        ({"layers": layers(*[(2, 2)] * 17)}, "not 17"),
        ({"layers": layers((3, 3), (2, 3))}, r"with 2 inputs and 3 biases it must be \(3, 2\)"),
        ({"layers": layers((3, 2), (2, 4))}, r"layer 1: the weight has the shape \(2, 4\)"),
        ({"layers": layers((3, 2), (3, 3))}, "layer 1 gives 3 scores for 2 actions"),
        ({"layers": ((ONE, np.ones((2, 1), np.float32)),)}, "the bias must have the shape"),
        ({"layers": ((ONE, np.ones(3, np.float32)),)}, "must be"),
        ({"layers": ((ONE[0], ONE[0]),)}, r"the weight has the shape \(2,\)"),
        ({"layers": ((ONE.astype(float), ONE[0]),)}, "must be float32, not float64"),
        ({"layers": ((ONE * np.nan, ONE[0]),)}, "layer 0 has a weight or bias that is not finite"),
        ({"layers": ((ONE, ONE[0] * np.inf),)}, "not finite"),
        ({"activation": "gelu"}, "must be tanh or relu, not 'gelu'"),
        ({"features": ("elapsed", "elapsed")}, "'elapsed' is named twice"),
        ({"features": ()}, "1 to 4096 feature names"),
        ({"features": ("elapsed", 3)}, "printable text of 1 to 80 characters, not 3"),
        ({"features": ("elapsed", "a\nb")}, "printable"),
        ({"actions": ("read", "x" * 81)}, "an? action name must be"),
        ({"manifest": []}, "must be a mapping, not list"),
        ({"manifest": {"value": float("nan")}}, "something that JSON lacks"),
        ({"manifest": {"value": {1, 2}}}, "something that JSON lacks"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        small(**changes)


# --- files from strangers -------------------------------------------------------------------------


class Trap:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def test_pickles_are_never_opened(
    tmp_path: Path, members: Members, refusal: Callable[[bytes], str]
) -> None:
    mark = tmp_path / "mark"
    trap = np.array([Trap(mark)], dtype=object)
    assert "of another kind" in refusal(pickle.dumps(Trap(mark)))
    weight = {**members, "layer_0.weight.npy": npy(trap, allow_pickle=True)}
    assert "must hold little-endian float32" in refusal(packed(weight))
    assert "not JSON" in refusal(packed({**members, "manifest.json": pickle.dumps(Trap(mark))}))
    saved = io.BytesIO()
    np.savez(saved, weight=trap)
    assert "'manifest.json' is missing" in refusal(saved.getvalue())
    assert not mark.exists()
    pickle.loads(pickle.dumps(Trap(mark)))  # the trap itself works
    assert mark.exists()


def test_every_cut_is_noticed(members: Members, refusal: Callable[[bytes], str]) -> None:
    data = packed(members)
    for end in range(0, len(data), 7):
        assert "no sound checkpoint" in refusal(data[:end])
    refusal(data[1:])
    refusal(data + b"x")


def test_a_changed_byte_changes_nothing_or_is_noticed(tmp_path: Path, members: Members) -> None:
    data = packed(members)
    sound = save_checkpoint(tmp_path / "sound.npz", small()).read_bytes()
    path, again, refused = tmp_path / "flipped.npz", tmp_path / "again.npz", 0
    for position in range(0, len(data), 3):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x5A]) + data[position + 1 :])
        try:
            loaded = load_checkpoint(path)
        except UserError:
            refused += 1
        else:
            assert save_checkpoint(again, loaded).read_bytes() == sound
    assert refused > 0.7 * len(data) / 3  # the rest are dates, permissions and the like


@pytest.mark.parametrize(
    "name", ["extra.npy", "../evil.npy", "/etc/evil", "layer_9.bias.npy", "layer_2.weight.npy"]
)
def test_another_member_is_refused(
    members: Members, refusal: Callable[[bytes], str], tmp_path: Path, name: str
) -> None:
    line = refusal(packed({**members, name: b""}))
    assert "does not belong" in line or "is missing" in line
    assert {file.name for file in tmp_path.iterdir()} == {"sound.npz", "given.npz"}


def test_a_member_that_is_a_link_is_refused(
    members: Members, refusal: Callable[[bytes], str]
) -> None:
    out = io.BytesIO(packed(members))
    with zipfile.ZipFile(out, "a") as archive:
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    assert "'link' does not belong" in refusal(out.getvalue())


def test_a_member_that_stands_there_twice_is_refused(
    members: Members, refusal: Callable[[bytes], str]
) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("manifest.json", b"{}")
    assert "'manifest.json' does not belong" in refusal(out.getvalue())


@pytest.mark.parametrize("name", ["manifest.json", "layer_0.weight.npy", "layer_1.bias.npy"])
def test_a_missing_member_is_named(
    members: Members, refusal: Callable[[bytes], str], name: str
) -> None:
    del members[name]
    line = refusal(packed(members))
    assert "is missing" in line or "does not belong" in line
    assert name.partition(".")[0] in line


def test_a_bomb_does_not_go_off(members: Members, refusal: Callable[[bytes], str]) -> None:
    bomb = packed({**members, "manifest.json": bytes(100 << 20)}, zipfile.ZIP_DEFLATED)
    assert len(bomb) < 1 << 20
    tracemalloc.start()
    line = refusal(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "compressed" in line
    assert peak < 8 << 20


def test_members_that_share_bytes_are_refused(
    members: Members, refusal: Callable[[bytes], str]
) -> None:
    """Every entry of the table of members states the same large size."""
    data = bytearray(packed({**members, "manifest.json": b" " * 100_000}))
    at = data.index(b"PK\x01\x02")
    while data[at : at + 4] == b"PK\x01\x02":
        struct.pack_into("<II", data, at + 20, 90_000, 90_000)
        name, extra, comment = struct.unpack_from("<HHH", data, at + 28)
        at += 46 + name + extra + comment
    assert "overlap" in refusal(bytes(data))


def test_a_long_table_of_members_is_refused_unread(refusal: Callable[[bytes], str]) -> None:
    crowd = packed({f"member_{k}": b"" for k in range(20_000)})
    tracemalloc.start()
    line = refusal(crowd)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "20000 members; at most 33" in line
    assert peak < 2 * len(crowd)


def test_zip64_is_refused(members: Members, refusal: Callable[[bytes], str]) -> None:
    data = packed(members)
    assert "zip64" in refusal(data[:-22] + b"PK\x06\x07" + bytes(16) + data[-22:])


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.npz"
    with path.open("wb") as file:
        file.truncate(100 * MAX_BYTES)  # sparse
    tracemalloc.start()
    with pytest.raises(UserError, match=f"more than {MAX_BYTES} bytes"):
        load_checkpoint(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b" " * ((1 << 20) + 1), "at most 1048576 are allowed"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"{}", "does not say"),
        (b"[]", "does not say"),
        (b'{"format": "exactlyonce-checkpoint", "version": NaN}', "NaN is no number"),
        (b'{"format": "exactlyonce-checkpoint", "version": 2}', "version 2 of the format"),
        (b'{"format": "exactlyonce-checkpoint", "version": 1}', "'activation' is missing"),
        (b'{"format": "exactlyonce-checkpoint", "version": ' + b"9" * 5000 + b"}", "not JSON"),
    ],
)
def test_a_bad_manifest_is_refused(
    members: Members, refusal: Callable[[bytes], str], content: bytes, said: str
) -> None:
    assert said in refusal(packed({**members, "manifest.json": content}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"features": "ab"}, "'features' is missing or of a wrong type"),
        ({"features": [["elapsed"], "b"]}, "printable text"),
        ({"features": ["elapsed"]}, "with 1 inputs"),
        ({"actions": ["read"]}, "2 scores for 1 actions"),
        ({"activation": "sigmoid"}, "tanh or relu"),
        ({"manifest": None}, "'manifest' is missing or of a wrong type"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(
    members: Members, refusal: Callable[[bytes], str], changes: dict[str, Any], said: str
) -> None:
    assert said in refusal(packed({**members, "manifest.json": header(members, **changes)}))


def lying(shape: str, dtype: str = "<f4") -> bytes:
    """An array whose header states what its bytes do not hold."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    padded = text.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded.encode() + bytes(24)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (npy(np.zeros((3, 2))), "must hold little-endian float32 in C order, not float64"),
        (npy(np.zeros((3, 2), ">f4")), "not >f4"),
        (npy(np.asfortranarray(np.zeros((3, 2), np.float32))), "C order"),
        (npy(np.zeros((3, 3), np.float32)), "with 2 inputs and 3 biases it must be (3, 2)"),
        (npy(np.zeros(6, np.float32)), "2 sizes of 1 to 4096"),
        (npy(np.full((3, 2), np.nan, np.float32)), "not finite"),
        (npy(np.zeros((3, 2), np.float32), version=(2, 0)), "another version"),
        (npy(np.zeros((3, 2), np.float32))[:-1], "do not fill (3, 2) float32"),
        (npy(np.zeros((3, 2), np.float32)) + b"x", "do not fill"),
        (lying("(4096, 4096)"), "do not fill"),
        (lying("(99999999999, 99999999999)"), "2 sizes of 1 to 4096"),
        (lying("(-3, -2)"), "2 sizes of 1 to 4096"),
        (lying("(3, True)"), "do not fill (3, True)"),
        (lying("(3, 2.0)"), "is no .npy array"),
        (lying("__import__('os')"), "is no .npy array"),
        (lying("(3, 2)", "|O"), "must hold little-endian float32"),
        (b"", "is no .npy array"),
        (b"\x93NUMPY\x01\x00\xff\xff", "is no .npy array"),
    ],
)
def test_an_array_that_lies_is_refused(
    members: Members, refusal: Callable[[bytes], str], content: bytes, said: str
) -> None:
    assert said in refusal(packed({**members, "layer_0.weight.npy": content}))


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "loop.npz").symlink_to(tmp_path / "loop.npz")
    for name, said in (
        ("none.npz", "does not exist"),
        (".", "is not a file"),
        ("pipe.npz", "is not a file"),
        ("loop.npz", "does not exist|cannot be read"),
        ("a\0b.npz", "does not exist|cannot be read"),
    ):
        with pytest.raises(UserError, match=said):
            load_checkpoint(tmp_path / name)


def test_a_link_to_a_checkpoint_is_followed(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "a.npz", small())
    (tmp_path / "b.npz").symlink_to("a.npz")
    assert load_checkpoint(tmp_path / "b.npz").manifest == MANIFEST
