"""Learned policies: exact scores, masks, names, and the same action whatever the batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exactlyonce_env.actions import ACTION_NAMES, KINDS, SECONDS, write_mask
from exactlyonce_env.envs.vector import RecoveryVectorEnv
from exactlyonce_env.errors import UserError
from exactlyonce_env.observation import FEATURES as TABLE
from exactlyonce_env.presets import load_plan
from exactlyonce_env.view import Attempt, Report, View
from exactlyonce_env.vocabulary import Action
from policies import learned as module
from policies.base import ViewBatch
from policies.checkpoint import Checkpoint, save_checkpoint
from policies.deciding import decide
from policies.learned import LearnedPolicy, shipped_names
from policies.network import Network, best_allowed, tanh
from policies.rollout import run_policy
from policies.spec import parse_policy

from .toy_network import ACTIONS, FEATURES, patient_reader, random_network

SENT = [Attempt(0.0, 30.0, "timeout")]


def two_by_hand(activation: str) -> Network:
    """Hidden units x - 2y + 0.5 and 3x + y - 1; scores a - b and 2b + 1."""
    first = np.array([[1, -2], [3, 1]], np.float32), np.array([0.5, -1], np.float32)
    second = np.array([[1, -1], [0, 2]], np.float32), np.array([0, 1], np.float32)
    return Network(
        Checkpoint((first, second), activation, FEATURES, ("read", "finish"), {})  # type: ignore[arg-type]
    )


# --- the network ----------------------------------------------------------------------------------


def test_a_small_network_by_hand() -> None:
    given = np.array([[0.25, -0.5], [1, 1]], np.float32)
    # hidden: 1.75, -0.75 and -0.5, 3
    assert two_by_hand("relu").scores(given).tolist() == [[1.75, 1.0], [-3.0, 7.0]]
    a, b = np.tanh([1.75, -0.5]), np.tanh([-0.75, 3.0])
    assert two_by_hand("tanh").scores(given) == pytest.approx(np.stack([a - b, 2 * b + 1], 1))


def test_one_layer_is_linear() -> None:
    layer = np.array([[2, -1]], np.float32), np.array([0.25], np.float32)
    network = Network(Checkpoint((layer,), "tanh", FEATURES, ("finish",), {}))
    assert network.scores(np.array([[3, 1]], np.float32)).tolist() == [[5.25]]


def test_the_tangent_is_that_of_the_library() -> None:
    x = np.linspace(-12, 12, 4801).astype(np.float32)
    own = np.array([tanh(value) for value in x])
    assert np.abs(own - np.tanh(x.astype(float))).max() < 3e-7
    assert tanh(np.float32(0)) == 0
    assert tanh(np.float32(1e30)) == 1
    assert tanh(np.float32(-1e30)) == -1


def test_the_best_of_those_allowed_the_first_of_equals() -> None:
    nan = math.nan
    scores = np.array([[1, 3, 2], [1, 3, 2], [2, 2, 2], [nan, 1, nan], [nan, nan, 0]], np.float32)
    mask = np.array([[1, 1, 1], [1, 0, 1], [0, 1, 1], [0, 1, 1], [0, 1, 0]], np.int8)
    best = np.empty(5, np.int64)
    best_allowed(scores, mask, best)
    assert best.tolist() == [1, 2, 1, 1, 1]


@pytest.mark.parametrize(
    ("hidden", "activation"), [((64, 64), "tanh"), ((33,), "relu"), ((), "tanh")]
)
def test_the_scores_of_a_row_depend_on_nothing_else(hidden: Any, activation: str) -> None:
    network = Network(random_network(*hidden, activation=activation))
    generator = np.random.Generator(np.random.Philox(1))
    given = generator.uniform(-1, 1, (257, len(TABLE))).astype(np.float32)
    whole = network.scores(given)
    for n in (1, 2, 3, 7, 64, 256):
        parts = [network.scores(given[k : k + n]) for k in range(0, len(given), n)]
        assert np.concatenate(parts).tobytes() == whole.tobytes()
    assert network.scores(given[::-1])[::-1].tobytes() == whole.tobytes()
    assert network.scores(np.asfortranarray(given)).tobytes() == whole.tobytes()


def test_single_precision_is_near_double() -> None:
    checkpoint = random_network(64, 64)
    given = np.random.default_rng(2).uniform(-1, 1, (100, len(TABLE)))
    values = given
    for k, (weight, bias) in enumerate(checkpoint.layers):
        values = values @ weight.T.astype(float) + bias
        values = np.tanh(values) if k < 2 else values
    assert Network(checkpoint).scores(given.astype(np.float32)) == pytest.approx(values, abs=2e-5)


# --- observation, mask and action -----------------------------------------------------------------


@pytest.fixture(scope="module")
def batch() -> ViewBatch:
    """Views in the middle of episodes under many contracts."""
    return walked("contextual", 300)[0]


def walked(preset: str, n: int) -> tuple[ViewBatch, np.ndarray, np.ndarray]:
    """Views of a vector environment after random steps, with its observations and masks."""
    env = RecoveryVectorEnv(num_envs=n, preset=preset)
    observations, info = env.reset(seed=5)
    generator = np.random.Generator(np.random.Philox(3))
    for _ in range(4):
        observations, _, _, _, info = env.step(generator.integers(0, 9, n))
    views = np.array([env.records(i)[0] for i in range(n)])
    return ViewBatch(views, env.plan.contracts), observations, info["action_mask"]


@pytest.mark.parametrize("preset", ["contextual", "native", "late-tail"])
@pytest.mark.parametrize("n", [3, 200])
def test_it_sees_what_the_environment_shows(preset: str, n: int) -> None:
    views, observations, masks = walked(preset, n)
    policy = LearnedPolicy("learned:toy", random_network(8))
    assert policy.observe(views).tobytes() == observations.astype(np.float32).tobytes()
    assert np.array_equal(policy.masks(views), masks)


def test_it_never_takes_an_impossible_action(batch: ViewBatch) -> None:
    refused = 0
    for seed in range(5):
        policy = LearnedPolicy("learned:toy", random_network(16, seed=seed))
        actions, scores, choices = policy.act(batch), policy.scores(batch), policy.choices(batch)
        row = np.zeros(len(ACTION_NAMES), np.int8)
        for i, view in enumerate(batch.views):
            write_mask(view, batch.contracts[view.context], row)
            assert (choices[i] <= row).all()
            allowed = np.where(choices[i] == 1, scores[i], -np.inf)
            best = int(allowed.argmax())
            refused += best != int(scores[i].argmax())
            assert (actions.kinds[i], actions.seconds[i]) == (KINDS[best], SECONDS[best])
    assert refused > 20  # the masks did matter


def test_the_action_does_not_depend_on_the_batch(batch: ViewBatch) -> None:
    policy = LearnedPolicy("learned:toy", random_network(64, 64))
    whole = policy.act(batch)
    assert len(set(whole.kinds.tolist())) > 2
    for n in (1, 13):
        for k in range(0, len(batch), n):
            part = policy.act(ViewBatch(batch.views[k : k + n], batch.contracts))
            assert part.kinds.tolist() == whole.kinds[k : k + n].tolist()
            assert part.seconds.tolist() == whole.seconds[k : k + n].tolist()


def test_an_empty_batch_has_no_actions(batch: ViewBatch) -> None:
    policy = LearnedPolicy("learned:toy", random_network(4))
    assert len(policy.act(ViewBatch(batch.views[:0], batch.contracts)).kinds) == 0


def test_the_rollout_does_not_depend_on_how_it_is_split() -> None:
    plan, policy = load_plan("native"), LearnedPolicy("learned:toy", random_network(16, seed=2))
    whole = run_policy(plan, policy, 0, range(300))
    parts = [run_policy(plan, policy, 0, range(k, k + 75)) for k in range(0, 300, 75)]
    assert np.concatenate([part.rewards for part in parts]).tobytes() == whole.rewards.tobytes()


def test_a_policy_by_hand_does_what_it_was_made_for() -> None:
    policy = LearnedPolicy("learned:toy", patient_reader())
    contract = load_plan("late-tail").contracts[0]
    told = [View(contract, SENT)]
    told += [View(contract, SENT, reports=[Report(30.0)], clock_s=clock_s) for clock_s in (31, 91)]
    told += [View(contract, SENT, reports=[Report(91.0, (0,))])]
    assert [decide(policy, view) for view in told] == [
        ("read", 0.0),
        ("wait", 60.0),
        ("read", 0.0),
        ("finish", 0.0),
    ]


def test_a_policy_serves_every_preset() -> None:
    policy = LearnedPolicy("learned:toy", patient_reader(actions=(*ACTIONS, "finish_uncertain")))
    for preset in ("late-tail", "stale-tail", "first-decision", "contextual"):
        outcomes = run_policy(load_plan(preset), policy, 0, range(50)).outcomes
        assert (outcomes["steps"] > 0).all()


# --- names ----------------------------------------------------------------------------------------


def test_features_and_actions_are_matched_by_name(batch: ViewBatch) -> None:
    plain = LearnedPolicy("a", patient_reader())
    turned = LearnedPolicy("b", patient_reader(FEATURES[::-1], ACTIONS[::-1]))
    assert turned.observe(batch).tolist() == plain.observe(batch)[:, ::-1].tolist()
    assert turned.act(batch).kinds.tolist() == plain.act(batch).kinds.tolist()
    assert turned.act(batch).seconds.tolist() == plain.act(batch).seconds.tolist()


def test_a_later_feature_does_no_harm(batch: ViewBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = random_network(16)
    before = LearnedPolicy("a", checkpoint).act(batch)
    names = module.FEATURE_NAMES
    monkeypatch.setattr(module, "FEATURE_NAMES", (*names, "added_later"))
    after = LearnedPolicy("a", checkpoint).act(batch)
    assert after.kinds.tolist() == before.kinds.tolist()
    fewer = Checkpoint(
        ((checkpoint.layers[0][0][:, :-1], checkpoint.layers[0][1]), checkpoint.layers[1]),
        "tanh",
        checkpoint.features[:-1],
        checkpoint.actions,
        {},
    )
    assert LearnedPolicy("b", fewer).observe(batch).shape == (len(batch), len(names) - 1)


def test_what_this_version_does_not_have_is_named() -> None:
    with pytest.raises(
        UserError, match=r"'read_aged', which this version does not have .*read_age"
    ):
        LearnedPolicy("a", patient_reader_named(features=("read_complete", "read_aged")))
    with pytest.raises(UserError, match="the action 'wait:61'"):
        LearnedPolicy("a", patient_reader_named(actions=("finish", "read", "wait:61")))
    with pytest.raises(UserError, match="none of the actions finish, finish_uncertain"):
        LearnedPolicy("a", patient_reader_named(actions=("retry", "read", "wait:60")))


def patient_reader_named(**names: tuple[str, ...]) -> Checkpoint:
    return replace(patient_reader(), **names)


# --- specs ----------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return save_checkpoint(tmp_path / "mine.npz", patient_reader())


def test_a_path_becomes_a_policy_whose_spec_names_the_content(file: Path) -> None:
    policy = parse_policy(f"learned:{file}")
    assert isinstance(policy, LearnedPolicy)
    assert not policy.privileged
    path, _, digest = policy.spec.removeprefix("learned:").rpartition("@")
    assert path == str(file)
    assert len(digest) == 8
    assert parse_policy(policy.spec).spec == policy.spec
    save_checkpoint(file, random_network(4))
    with pytest.raises(UserError, match=f"has changed: its digest is .*, not {digest}"):
        parse_policy(policy.spec)


def test_the_digest_is_that_of_what_decides(file: Path) -> None:
    spec = parse_policy(f"learned:{file}").spec
    save_checkpoint(file, replace(patient_reader(), manifest={"other": 1}))
    assert parse_policy(f"learned:{file}").spec == spec
    save_checkpoint(file, replace(patient_reader(), activation="tanh"))
    assert parse_policy(f"learned:{file}").spec != spec


def test_the_folder_of_a_run_is_its_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no checkpoint\.npz"):
        parse_policy(f"learned:{tmp_path}")
    save_checkpoint(tmp_path / "checkpoint.npz", patient_reader())
    assert f"{tmp_path}/checkpoint.npz@" in parse_policy(f"learned:{tmp_path}").spec


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package `policies` that ships two checkpoints."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for name in ("contextual", "late-tail"):
        save_checkpoint(folder / f"{name}.npz", patient_reader())
    monkeypatch.setattr(module, "files", lambda package: tmp_path)
    module._shipped.cache_clear()
    yield folder
    module._shipped.cache_clear()


def test_shipped_checkpoints_go_by_name(shipped: Path) -> None:
    assert shipped_names() == ("contextual", "late-tail", "recovery")
    for name in shipped_names():
        assert parse_policy(f"learned:{name}").spec == f"learned:{name}"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("learned", "needs a name or a path, .* shipped: contextual, late-tail, recovery"),
        ("learned:", "needs a name or a path"),
        ("learned:recvery", "did you mean recovery.*shipped: contextual, late-tail, recovery"),
        ("learned:nowhere/at.npz", "neither a shipped name nor a path"),
    ],
)
def test_a_bad_spec_is_one_line(shipped: Path, spec: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as raised:
        parse_policy(spec)
    assert "\n" not in str(raised.value)


def test_a_checkpoint_that_does_not_fit_names_its_path(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "old.npz", patient_reader_named(features=("a", "b")))
    with pytest.raises(UserError, match=r"policy learned:.*old.npz: the checkpoint needs"):
        parse_policy(f"learned:{path}")


def test_without_checkpoints_the_error_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "files", lambda package: tmp_path)
    assert shipped_names() == ()
    with pytest.raises(UserError, match="no checkpoint ships with this version"):
        parse_policy("learned:recovery")


# --- one client -----------------------------------------------------------------------------------


def test_a_decision_needs_an_honest_policy_and_an_open_episode() -> None:
    contract = load_plan("late-tail").contracts[0]
    with pytest.raises(UserError, match="'state-oracle' sees hidden state"):
        decide(parse_policy("state-oracle"), View(contract, SENT))
    with pytest.raises(UserError, match="nothing left to decide"):
        decide(parse_policy("guard"), View(contract, SENT, ending="claimed"))
    spent = View(contract, SENT, ending="exhausted")
    assert decide(parse_policy("guard"), spent) == ("finish_uncertain", 0.0)


def test_a_decision_is_that_of_the_batch(batch: ViewBatch) -> None:
    for policy in (parse_policy("wait:300"), LearnedPolicy("learned:toy", random_network(16))):
        actions = policy.act(batch)
        for i in range(40):
            if batch.views[i].ending:
                continue
            view = View.of(batch.views[i], batch.contracts[batch.views[i].context])
            found = decide(policy, view)
            assert found.action == Action(int(actions.kinds[i])).name.lower()
            waits = found.action == "wait"
            assert found.seconds == (actions.seconds[i] if waits else 0)


def test_it_does_not_idle_until_the_calls_run_out():
    """A network that always likes a short wait best, and reading next, still comes to an end."""
    plan = load_plan("late-tail")
    policy = LearnedPolicy("learned:toy", random_network(8))
    views = walked("late-tail", 3)[0].views.copy()
    views["n_steps"] = [19, 20, 20]
    views["reads_since_attempt"] = 1
    views["read_at_s"] = views["clock_s"] - [1.0, 1.0, 16.0]
    choices = policy.choices(ViewBatch(views, plan.contracts))
    names = policy.checkpoint.actions
    read, wait_15, wait_60, wait_300 = (
        choices[:, names.index(name)].tolist()
        for name in ("read", "wait:15", "wait:60", "wait:300")
    )
    assert read == [0, 0, 1]
    assert wait_15 == wait_60 == [1, 0, 0]
    assert wait_300 == [1, 1, 1]
