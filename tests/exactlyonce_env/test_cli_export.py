"""`exactlyonce export`: the ONNX file, what it says of itself, and what is refused."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from exactlyonce_env.actions import ACTION_NAMES
from exactlyonce_env.cli import main
from exactlyonce_env.errors import UserError
from exactlyonce_env.observation import FEATURES
from policies.checkpoint import Checkpoint, save_checkpoint
from policies.learned import LearnedPolicy

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

Refusal = Callable[..., str]


def network(activation: str = "tanh") -> Checkpoint:
    generator = np.random.Generator(np.random.Philox(4))
    sizes = (len(FEATURES), 32, 16, len(ACTION_NAMES))
    layers = tuple(
        (
            (generator.normal(size=(m, k)) / np.sqrt(k)).astype(np.float32),
            generator.normal(size=m).astype(np.float32),
        )
        for k, m in pairwise(sizes)
    )
    names = tuple(feature.name for feature in FEATURES)
    manifest = {"preset": "late-tail", "seed": 1}
    return Checkpoint(layers, activation, names, ACTION_NAMES, manifest)  # type: ignore[arg-type]


@pytest.fixture
def spec(tmp_path: Path) -> str:
    return f"learned:{save_checkpoint(tmp_path / 'net.npz', network())}"


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Refusal:
    """The one line of a command that refuses its input."""

    def run(*args: str) -> str:
        assert main(["export", *args]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        (line,) = captured.err.splitlines()
        return line

    return run


def test_the_model_says_what_it_is(
    spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "policy.onnx"
    assert main(["export", spec, "--onnx", str(out), "--json", "-"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert captured.err == ""
    assert report["bytes"] == out.stat().st_size
    assert report["features"] == [feature.name for feature in FEATURES]
    assert report["actions"] == list(ACTION_NAMES)
    assert report["comparison"]["observations"] == 4096
    assert report["comparison"]["equal_actions"] + report["comparison"]["near_ties"] == 4096
    assert report["comparison"]["max_score_difference"] < 1e-4
    model = onnx.load(out)
    onnx.checker.check_model(model, full_check=True)
    said = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
    assert said == {
        "features": report["features"],
        "actions": report["actions"],
        "manifest": {"preset": "late-tail", "seed": 1},
    }


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_another_runtime_takes_the_same_actions(
    tmp_path: Path, activation: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from exactlyonce_env.envs.vector import RecoveryVectorEnv
    from policies.base import ViewBatch

    checkpoint = network(activation)
    path, out = save_checkpoint(tmp_path / "net.npz", checkpoint), tmp_path / "net.onnx"
    assert main(["export", f"learned:{path}", "--onnx", str(out)]) == 0
    assert "mask (N, 11) bool" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    assert [(value.name, value.type, value.shape) for value in session.get_inputs()] == [
        ("observation", "tensor(float)", ["N", 77]),
        ("mask", "tensor(bool)", ["N", 11]),
    ]
    env = RecoveryVectorEnv(num_envs=64, preset="native")
    observations, info = env.reset(seed=0)
    policy = LearnedPolicy("learned:net", checkpoint)
    for _ in range(5):
        mask = info["action_mask"].astype(bool)
        scores, actions = session.run(None, {"observation": observations, "mask": mask})
        batch = ViewBatch(np.array([env.records(i)[0] for i in range(64)]), env.plan.contracts)
        own = policy.scores(batch)
        assert scores == pytest.approx(own, abs=1e-5)
        assert actions.tolist() == np.where(mask, own, -np.inf).argmax(axis=1).tolist()
        observations, _, _, _, info = env.step(actions)


def test_the_same_checkpoint_gives_the_same_file(spec: str, tmp_path: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        assert main(["export", spec, "--onnx", str(tmp_path / name)]) == 0
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_an_existing_model_is_replaced_whole(spec: str, tmp_path: Path) -> None:
    out = tmp_path / "a.onnx"
    out.write_bytes(b"old")
    assert main(["export", spec, "--onnx", str(out)]) == 0
    onnx.load(out)
    assert {file.name for file in tmp_path.iterdir()} == {"a.onnx", "net.npz"}


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("guard", "policy 'guard' has no network to export"),
        ("learned:no-such", "neither a shipped name nor a path"),
        ("lerned:x", "unknown policy 'lerned' (did you mean learned?)"),
    ],
)
def test_a_policy_without_a_network_is_refused(
    refusal: Refusal, tmp_path: Path, policy: str, said: str
) -> None:
    assert said in refusal(policy, "--onnx", str(tmp_path / "a.onnx"))
    assert list(tmp_path.iterdir()) == []


def test_a_bad_place_is_refused(refusal: Refusal, spec: str, tmp_path: Path) -> None:
    (tmp_path / "folder.onnx").mkdir()
    assert "must name a file that ends in .onnx" in refusal(spec, "--onnx", str(tmp_path / "a.txt"))
    assert "must name a file" in refusal(spec, "--onnx", str(tmp_path / "folder.onnx"))
    assert "must name a file" in refusal(spec, "--onnx", "")
    assert "there is no folder" in refusal(spec, "--onnx", str(tmp_path / "no" / "a.onnx"))
    assert "missing option '--onnx'" in refusal(spec)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
def test_a_closed_folder_is_refused(refusal: Refusal, spec: str, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    assert "permission denied" in refusal(spec, "--onnx", str(closed / "a.onnx"))


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_without_the_extra_one_line_says_how_to_get_it(
    refusal: Refusal, spec: str, tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    line = refusal(spec, "--onnx", str(tmp_path / "a.onnx"))
    assert f"needs the package {package}: pip install 'exactlyonce-env[export]'" in line
    assert not (tmp_path / "a.onnx").exists()


def test_a_model_that_disagrees_is_not_kept() -> None:
    from policies.onnx_model import compare, to_onnx

    policy = LearnedPolicy("learned:net", network())
    model = to_onnx(LearnedPolicy("learned:other", network("relu")))
    with pytest.raises(UserError, match="does not agree with learned:net"):
        compare(policy, model.SerializeToString())
