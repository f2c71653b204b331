from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import replace
from datetime import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.manifest import (
    Manifest,
    canonical_json,
    continue_manifest,
    ended,
    new_manifest,
    read_manifest,
    sha256_of,
    strip_command,
    worlds_hash,
    write_manifest,
)
from exactlyonce_env.errors import UserError
from exactlyonce_env.files import write_atomically

CONFIG = {"name": "late-tail", "costs": {"duplicate": 1.0, "omission": 0.5}, "bound_s": None}


def _manifest(**changes) -> Manifest:
    arguments = {
        "preset": "late-tail",
        "config": CONFIG,
        "seed": 7,
        "worlds": [(0, 100)],
        "policies": ["guard", "wait:300"],
        "command": ["exactlyonce", "evaluate", "late-tail", "--out", "run"],
    }
    return new_manifest(**{**arguments, **changes})


def test_canonical_json_is_sorted_compact_ascii() -> None:
    assert canonical_json({"b": [1, 2.5, None], "a": "Δ"}) == '{"a":"\\u0394","b":[1,2.5,null]}'


def test_hashes_are_of_the_documented_text() -> None:
    manifest = _manifest(config={"a": 1}, seed=3, worlds=[(0, 5)])
    config = hashlib.sha256(b'{"a":1}').hexdigest()
    worlds = hashlib.sha256(b'{"config":{"a":1},"seed":3,"worlds":[[0,5]]}').hexdigest()
    assert manifest.config_sha256 == config
    assert manifest.worlds_sha256 == worlds


def test_worlds_hash_knows_ids_and_not_how_they_were_written() -> None:
    same = worlds_hash(CONFIG, 7, [(50, 100), (0, 50)])
    reordered = dict(reversed(CONFIG.items()))
    assert worlds_hash(reordered, 7, [(0, 100)]) == same
    others = [
        worlds_hash(CONFIG, 8, [(0, 100)]),
        worlds_hash(CONFIG, 7, [(0, 101)]),
        worlds_hash({**CONFIG, "bound_s": 1}, 7, [(0, 100)]),
    ]
    assert len({same, *others}) == 4


def test_manifest_says_what_made_it(tmp_path) -> None:
    manifest = _manifest()
    assert set(manifest.versions) == {"python", "numpy", "numba", "scipy", "gymnasium"}
    assert manifest.versions["numpy"] == np.__version__
    assert manifest.versions["python"] == platform.python_version()
    assert set(manifest.platform) == {"system", "machine", "python_implementation"}
    assert (manifest.status, manifest.ended_utc) == ("running", None)
    started = datetime.strptime(manifest.started_utc, "%Y-%m-%dT%H:%M:%SZ")
    assert started.year >= 2024


def test_manifest_comes_back_as_it_was_written(tmp_path) -> None:
    path = tmp_path / "manifest.json"
    manifest = ended(continue_manifest(_manifest(), _manifest(), tmp_path), "complete")
    write_manifest(manifest, path)
    assert read_manifest(path) == manifest
    assert [entry.name for entry in tmp_path.iterdir()] == ["manifest.json"]


def test_manifest_names_neither_host_nor_folder(tmp_path) -> None:
    command = ["/opt/env/bin/exactlyonce", "evaluate", f"--config={tmp_path}/my.yaml"]
    path = tmp_path / "manifest.json"
    write_manifest(_manifest(command=command), path)
    document = json.loads(path.read_text())
    assert document["command"] == ["exactlyonce", "evaluate", "--config=my.yaml"]
    assert str(tmp_path) not in path.read_text()
    assert platform.node() not in document["platform"].values()


@pytest.mark.parametrize(
    ("given_arguments", "kept"),
    [
        (["--out", "/data/runs/one/"], ["--out", "one"]),
        (["--out=../runs/one"], ["--out=one"]),
        (["./tools/run.py", "~/x/delays.csv"], ["run.py", "delays.csv"]),
        ([r"C:\Users\me\delays.csv"], ["delays.csv"]),
        ([r"--delays=C:\Users\me\delays.csv"], ["--delays=delays.csv"]),
        (["guard,learned:/home/me/ppo.zip,wait:300"], ["guard,learned:ppo.zip,wait:300"]),
        (["/home/a,b/c d/e.csv"], ["e.csv"]),
        (["--ids", "0:100,200:300", "-"], ["--ids", "0:100,200:300", "-"]),
        (["--base-url", "http://10.0.0.7:8000/v1"], ["--base-url", "<url>"]),
        (["--api-key", "sk-1", "--seed", "3"], ["--api-key", "<hidden>", "--seed", "3"]),
        (["--token=abc"], ["--token=<hidden>"]),
        (["same-key"], ["same-key"]),
    ],
)
def test_commands_lose_folders_urls_and_secrets(given_arguments, kept) -> None:
    assert strip_command(given_arguments) == tuple(kept)


@given(st.lists(st.text(st.characters(codec="ascii"), max_size=30), max_size=4))
def test_stripped_commands_hold_no_folder_and_stay_stripped(command) -> None:
    once = strip_command(command)
    assert len(once) == len(command)
    assert not any("/" in argument for argument in once)
    assert strip_command(once) == once


def test_continuing_adds_policies_and_worlds_and_keeps_the_earlier_command(tmp_path) -> None:
    first = ended(_manifest(), "interrupted")
    second = _manifest(
        policies=["wait:300", "guard", "rules"], worlds=[(0, 200)], command=["again"]
    )
    merged = continue_manifest(first, second, tmp_path)
    assert merged.policies == ("guard", "wait:300", "rules")
    assert merged.worlds == ((0, 200),)
    assert merged.worlds_sha256 == second.worlds_sha256
    assert merged.status == "running"
    (earlier,) = merged.earlier
    assert (earlier.command, earlier.status) == (first.command, "interrupted")


def test_a_command_that_was_killed_is_kept_as_interrupted(tmp_path) -> None:
    merged = continue_manifest(_manifest(), _manifest(), tmp_path)
    assert (merged.earlier[0].status, merged.earlier[0].ended_utc) == ("interrupted", None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 8}, "seed 7, not 8"),
        ({"worlds": [(0, 50)]}, "holds worlds 0:100, asked for 0:50"),
        ({"worlds": [(50, 200)]}, "holds worlds 0:100, asked for 50:200"),
        ({"worlds": [(0, 200)], "policies": ["guard"]}, "also holds policy 'wait:300'"),
        (
            {"config": {**CONFIG, "costs": {"duplicate": 2.0, "omission": 0.5}}},
            r"preset 'late-tail' with another configuration \(costs.duplicate: 1.0, now 2.0\)",
        ),
        ({"config": {**CONFIG, "extra": 1}}, r"\(extra: None, now 1\)"),
    ],
)
def test_continuing_another_run_is_refused(tmp_path, changes, message: str) -> None:
    with pytest.raises(UserError, match=message) as refusal:
        continue_manifest(_manifest(), _manifest(**changes), tmp_path)
    assert "\n" not in str(refusal.value)


def test_continuing_with_another_version_is_refused(tmp_path) -> None:
    older = replace(_manifest(), package_version="0.0.1")
    with pytest.raises(UserError, match=r"written by version 0\.0\.1"):
        continue_manifest(older, _manifest(), tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, np.float32(1.0), object()])
def test_a_configuration_json_cannot_carry_is_refused(value) -> None:
    with pytest.raises(UserError, match="JSON values only"):
        _manifest(config={"x": value})


def _without(document: dict, key: str) -> dict:
    return {name: value for name, value in document.items() if name != key}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda document: "{", "is not JSON"),
        (lambda document: [], "not a manifest of format"),
        (lambda document: {**document, "format": "other/9"}, "it says 'other/9'"),
        (lambda document: _without(document, "seed"), "lacks the field 'seed'"),
        (lambda document: {**document, "worlds": [[0]]}, "malformed field"),
        (lambda document: {**document, "earlier": [{}]}, "malformed field"),
        (lambda document: {**document, "status": "done"}, "malformed field"),
        (lambda document: {**document, "seed": 8}, "was changed"),
        (lambda document: {**document, "config": {}}, "was changed"),
    ],
)
def test_a_damaged_manifest_is_refused(tmp_path, change, message: str) -> None:
    path = tmp_path / "manifest.json"
    write_manifest(_manifest(), path)
    changed = change(json.loads(path.read_text()))
    path.write_text(changed if isinstance(changed, str) else json.dumps(changed))
    with pytest.raises(UserError, match=message) as refusal:
        read_manifest(path)
    assert "\n" not in str(refusal.value)


def test_a_missing_manifest_is_a_user_error(tmp_path) -> None:
    with pytest.raises(UserError, match="cannot read"):
        read_manifest(tmp_path / "manifest.json")
    with pytest.raises(UserError, match="cannot write"):
        write_manifest(_manifest(), tmp_path / "nowhere" / "manifest.json")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")

    def fail(temporary) -> None:
        temporary.write_text("half")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.txt"]


def test_hash_of_a_value_is_that_of_its_canonical_text() -> None:
    assert sha256_of([]) == hashlib.sha256(b"[]").hexdigest()
