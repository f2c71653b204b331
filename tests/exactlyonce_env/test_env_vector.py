"""The native vector environment equals Gymnasium's own one over single environments."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space

from exactlyonce_env import RecoveryEnv, RecoveryVectorEnv, UserError, load_plan
from exactlyonce_env.actions import ACTION_NAMES, MAX_WAIT_S, N_ACTIONS
from exactlyonce_env.envs import worlds
from exactlyonce_env.observation import N_FEATURES
from exactlyonce_env.plan import MAX_SEED
from exactlyonce_env.vocabulary import TERM_NAMES

ID = "ExactlyOnce/LateTail-v0"
READ, RETRY, FINISH = (ACTION_NAMES.index(name) for name in ("read", "retry", "finish"))
MODES = list(AutoresetMode)


def native(env_id: str = ID, n: int = 4, **keywords: Any) -> RecoveryVectorEnv:
    envs = gymnasium.make_vec(
        env_id, num_envs=n, vectorization_mode="vector_entry_point", **keywords
    )
    assert isinstance(envs, RecoveryVectorEnv)
    return envs


def sync(env_id: str, n: int, mode: AutoresetMode, **keywords: Any) -> SyncVectorEnv:
    envs = gymnasium.make_vec(
        env_id,
        num_envs=n,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": mode},
        **keywords,
    )
    assert isinstance(envs, SyncVectorEnv)
    return envs


def same(first: Any, second: Any, path: str = "") -> None:
    """The same types, keys, shapes and bits, all the way down."""
    assert type(first) is type(second), path
    if isinstance(first, dict):
        assert first.keys() == second.keys(), path
        for key in first:
            same(first[key], second[key], f"{path}/{key}")
    elif isinstance(first, np.ndarray) and first.dtype != object:
        assert (first.dtype, first.shape) == (second.dtype, second.shape), path
        assert first.tobytes() == second.tobytes(), path
    elif isinstance(first, np.ndarray | list | tuple):
        assert len(first) == len(second), path
        for k, (a, b) in enumerate(zip(first, second, strict=True)):
            same(a, b, f"{path}[{k}]")
    else:
        assert first == second, path


# Equal to the sync one, bit for bit ------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("env_id", "keywords"),
    [
        (ID, {}),
        (ID, {"reward_terms": False}),
        ("ExactlyOnce/Native-v0", {"action_mode": "parametric"}),
        ("ExactlyOnce/Native-v0", {"reveal": True}),
        ("ExactlyOnce/StaleTail-v0", {"costs": {"read": 0.0, "time_per_hour": 0.0}}),
        ("ExactlyOnce/FirstDecision-v0", {}),
        ("ExactlyOnce/KeysEverywhere-v0", {"contract": {"max_steps": 4}}),
        ("ExactlyOnce/Recovery-v0", {}),
    ],
)
def test_it_equals_the_sync_one(env_id: str, keywords: dict[str, Any], mode: AutoresetMode) -> None:
    n = 5
    theirs = sync(env_id, n, mode, **keywords)
    ours = native(env_id, n, autoreset_mode=mode, **keywords)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.single_observation_space == theirs.single_observation_space
    assert ours.single_action_space == theirs.single_action_space
    assert ours.metadata == theirs.metadata
    same(theirs.reset(seed=21), ours.reset(seed=21))
    theirs.action_space.seed(4)
    ended = 0
    for step in range(50):
        actions = theirs.action_space.sample()
        expected = theirs.step(actions)
        same(expected, ours.step(actions))
        over = expected[2]
        ended += int(over.sum())
        if mode is AutoresetMode.DISABLED and over.any():
            same(
                theirs.reset(options={"reset_mask": over.copy()}),
                ours.reset(options={"reset_mask": over.copy()}),
            )
        if step == 20:
            same(theirs.reset(), ours.reset())
        if step == 30:
            same(theirs.reset(options={"world": 9}), ours.reset(options={"world": 9}))
        if step == 40:
            seeds = [3, None, 2**40, None, 0]
            same(theirs.reset(seed=list(seeds)), ours.reset(seed=list(seeds)))
    assert ended > 5


@pytest.mark.parametrize("mode", MODES)
def test_a_mask_with_seeds_and_a_world(mode: AutoresetMode) -> None:
    theirs, ours = sync(ID, 4, mode), native(ID, 4, autoreset_mode=mode)
    same(theirs.reset(seed=1), ours.reset(seed=1))
    actions = np.array([FINISH, READ, READ, FINISH])
    same(theirs.step(actions), ours.step(actions))
    for seed, world in ((None, None), (40, None), (None, 6), ([9, 9, None, 9], 3)):
        mask = np.array([True, True, False, True])
        options: dict[str, Any] = {"reset_mask": mask}
        if world is not None:
            options["world"] = world
        same(
            theirs.reset(seed=seed, options=dict(options)),
            ours.reset(seed=seed, options=dict(options)),
        )
        assert mask.tolist() == [True, True, False, True]
    same(theirs.step(np.full(4, READ)), ours.step(np.full(4, READ)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("render_mode", ["ansi", "rgb_array"])
def test_frames_equal_the_sync_ones(mode: AutoresetMode, render_mode: str) -> None:
    theirs = sync(ID, 2, mode, render_mode=render_mode)
    ours = native(ID, 2, autoreset_mode=mode, render_mode=render_mode)
    theirs.reset(seed=5)
    ours.reset(seed=5)
    same(theirs.render(), ours.render())
    for actions in ([READ, RETRY], [FINISH, READ]):
        theirs.step(np.array(actions))
        ours.step(np.array(actions))
        same(theirs.render(), ours.render())
    if mode is AutoresetMode.NEXT_STEP:
        theirs.step(np.array([READ, READ]))
        ours.step(np.array([READ, READ]))
        same(theirs.render(), ours.render())
    assert ours.render_mode == theirs.render_mode == render_mode


def test_it_is_the_default_of_make_vec() -> None:
    assert isinstance(gymnasium.make_vec(ID, num_envs=2), RecoveryVectorEnv)


def test_two_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 2 * worlds.SPLIT_AT
    split = native("ExactlyOnce/Native-v0", n)
    monkeypatch.setattr(worlds, "SPLIT_AT", n + 1)
    alone = native("ExactlyOnce/Native-v0", n)
    calls = [(envs.reset(seed=7), envs) for envs in (split, alone)]
    same(calls[0][0], calls[1][0])
    rng = np.random.default_rng(1)
    for _ in range(12):
        actions = rng.integers(N_ACTIONS, size=n)
        monkeypatch.setattr(worlds, "SPLIT_AT", n // 2)
        first = split.step(actions)
        monkeypatch.setattr(worlds, "SPLIT_AT", n + 1)
        same(first, alone.step(actions))


def test_a_world_is_the_same_alone_and_in_a_batch() -> None:
    batch = native("ExactlyOnce/Native-v0", 50)
    observations, _ = batch.reset(seed=100)
    for i in (0, 17, 49):
        alone, _ = RecoveryEnv("native").reset(seed=100 + i)
        assert alone.tobytes() == observations[i].tobytes()


# Autoreset -------------------------------------------------------------------------------------


def test_next_step_ignores_the_action_after_an_end() -> None:
    envs = native(n=2)
    envs.reset(seed=0)
    _, rewards, terminations, _, _ = envs.step(np.array([FINISH, READ]))
    assert terminations.tolist() == [True, False]
    assert rewards[0] != 0
    observations, rewards, terminations, truncations, infos = envs.step(np.array([FINISH, READ]))
    assert not terminations.any()
    assert not truncations.any()
    assert rewards[0] == 0
    assert infos["cost"].tolist() == [0.0, 0.0]
    assert envs.get_attr("world_id") == (1, 0)
    single = RecoveryEnv("late-tail")
    single.reset(seed=0)
    assert observations[0].tobytes() == single.reset()[0].tobytes()


def test_same_step_keeps_the_final_observation() -> None:
    envs = native(n=3, autoreset_mode="SameStep")
    envs.reset(seed=0)
    *_, infos = envs.step(np.array([READ, READ, READ]))
    assert "final_obs" not in infos
    _, rewards, _, _, infos = envs.step(np.array([RETRY, FINISH, READ]))
    assert infos["_final_obs"].tolist() == infos["_final_info"].tolist() == [False, True, False]
    single = RecoveryEnv("late-tail")
    single.reset(seed=1)
    single.step(READ)
    last, reward, _, _, info = single.step(FINISH)
    assert infos["final_obs"][1].tobytes() == last.tobytes()
    assert infos["final_obs"][0] is None
    assert rewards[1] == reward
    told = infos["final_info"]
    assert told["is_success"][1] == info["is_success"]
    assert {k: told["reward_terms"][k][1] for k in TERM_NAMES} == info["reward_terms"]


def test_disabled_wants_a_reset() -> None:
    envs = native(n=3, autoreset_mode=AutoresetMode.DISABLED)
    envs.reset(seed=0)
    _, _, terminations, _, _ = envs.step(np.array([READ, FINISH, FINISH]))
    with pytest.raises(ResetNeeded, match="2 episodes are over, that of world 1 first"):
        envs.step(np.array([READ, READ, READ]))
    assert envs.get_attr("world_id") == (0, 0, 0)
    envs.reset(options={"reset_mask": terminations})
    assert envs.get_attr("world_id") == (0, 1, 1)
    envs.step(np.array([READ, READ, READ]))
    assert [env.view.seen.n_steps for env in envs.envs] == [2, 1, 1]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("NextStep", AutoresetMode.NEXT_STEP),
        ("same_step", AutoresetMode.SAME_STEP),
        ("DISABLED", AutoresetMode.DISABLED),
        (AutoresetMode.SAME_STEP, AutoresetMode.SAME_STEP),
    ],
)
def test_modes_by_any_name(given: Any, meant: AutoresetMode) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert native(autoreset_mode=given).metadata["autoreset_mode"] is meant
    assert RecoveryVectorEnv.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP


# Buffers and infos -----------------------------------------------------------------------------


def arrays_in(told: Any) -> list[np.ndarray[Any, Any]]:
    if isinstance(told, np.ndarray):
        return [told]
    values = told.values() if isinstance(told, dict) else told if isinstance(told, tuple) else ()
    return [array for value in values for array in arrays_in(value)]


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_shared_between_calls(mode: AutoresetMode) -> None:
    envs = native(n=3, autoreset_mode=mode)
    calls = [envs.reset(seed=0)]
    for action in (READ, RETRY, FINISH):
        calls.append(envs.step(np.full(3, action)))
    kept = copy.deepcopy(calls)
    calls.append(envs.reset())
    for k, first in enumerate(calls):
        for second in calls[k + 1 :]:
            for a in arrays_in(first):
                assert not any(np.shares_memory(a, b) for b in arrays_in(second))
    same(kept, calls[:-1])


def test_without_copies_the_arrays_are_reused() -> None:
    reusing, fresh = native(copy=False), native()
    first, _ = reusing.reset(seed=0)
    fresh.reset(seed=0)
    for action in (READ, RETRY, FINISH, READ):
        told, expected = reusing.step(np.full(4, action)), fresh.step(np.full(4, action))
        same(told, expected)
        assert np.shares_memory(first, told[0])


@pytest.mark.parametrize("mode", MODES)
def test_every_key_has_its_mask(mode: AutoresetMode) -> None:
    envs = native("ExactlyOnce/Native-v0", 3, autoreset_mode=mode, reveal=True)

    def check(infos: dict[str, Any], told: list[bool]) -> None:
        keys = [key for key in infos if not key.startswith("_")]
        assert sorted(infos) == sorted([*keys, *(f"_{key}" for key in keys)])
        for key in keys:
            assert infos[f"_{key}"].dtype == np.bool_
            if not key.startswith("final"):
                assert infos[f"_{key}"].tolist() == told
            if isinstance(infos[key], dict):
                check(infos[key], infos[f"_{key}"].tolist())

    check(envs.reset(seed=0)[1], [True] * 3)
    check(envs.step(np.array([RETRY, FINISH, READ]))[4], [True] * 3)
    mask = np.array([False, True, False])
    check(envs.reset(options={"reset_mask": mask})[1], mask.tolist())


def test_shapes_and_types() -> None:
    envs = native(n=6)
    envs.reset(seed=0)
    observations, rewards, terminations, truncations, infos = envs.step(np.full(6, RETRY))
    assert (observations.shape, observations.dtype) == ((6, N_FEATURES), np.float32)
    assert observations in envs.observation_space
    assert (rewards.shape, rewards.dtype) == ((6,), np.float64)
    assert terminations.dtype == truncations.dtype == np.bool_
    assert (infos["action_mask"].shape, infos["action_mask"].dtype) == ((6, N_ACTIONS), np.int8)
    assert sum(infos["reward_terms"][name] for name in TERM_NAMES).tolist() == rewards.tolist()
    masks = envs.action_masks()
    assert (masks.shape, masks.dtype) == ((6, N_ACTIONS), np.bool_)
    assert (masks == infos["action_mask"]).all()


def test_a_world_takes_less_than_a_kibibyte() -> None:
    """State and all that a step returns, infos included; batched spaces are made on demand."""
    n = 20_000
    native(n=1).reset(seed=0)
    tracemalloc.start()
    envs = native(n=n, reward_terms=False)
    kept: Any = envs.reset(seed=0)
    kept = envs.step(np.zeros(n, np.int64))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    assert held / n < 1024
    assert envs.observation_space == batch_space(envs.single_observation_space, n)


# Bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "actions",
    [
        [0, 1],
        [[0, 1, 2, 3]],
        [0.0, 1.0, 2.0, 3.0],
        [0, 1, 2, N_ACTIONS],
        [0, 1, 2, -1],
        3,
        None,
        "read",
        [[0], [1, 2], [3], [4]],
        [True, False, True, False],
    ],
)
def test_bad_actions_move_no_world(actions: Any) -> None:
    envs = native()
    envs.reset(seed=0)
    with pytest.raises(UserError, match="actions must"):
        envs.step(actions)
    assert [env.view.seen.n_steps for env in envs.envs] == [0] * 4


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_any_kind_of_integers_are_actions(dtype: Any) -> None:
    envs, again = native(), native()
    envs.reset(seed=0)
    again.reset(seed=0)
    actions = np.arange(8, dtype=dtype)[::2]
    same(envs.step(actions), again.step(actions.tolist()))


@pytest.mark.parametrize(
    ("actions", "named"),
    [
        (np.zeros(2, np.int64), "parametric actions are a mapping"),
        ({"kind": [1, 1]}, "parametric actions are a mapping"),
        (
            {"kind": [1, 7], "seconds": [1.0, 1.0]},
            r"actions must lie in 0\.\.6; world 1 was given 7",
        ),
        ({"kind": [1, 1.5], "seconds": [1.0, 1.0]}, "kind must be 2 integers"),
        ({"kind": [1, 1], "seconds": [1.0]}, "seconds must be 2 numbers"),
        ({"kind": [1, 1], "seconds": ["a", "b"]}, "seconds must be 2 numbers"),
        ({"kind": [1, 1], "seconds": [1.0, np.nan]}, "world 1 was given nan"),
        ({"kind": [1, 1], "seconds": [-1.0, 0.0]}, "world 0 was given -1.0"),
        ({"kind": [1, 1], "seconds": [0.0, MAX_WAIT_S + 1]}, "world 1 was given 604801.0"),
    ],
)
def test_bad_parametric_actions_move_no_world(actions: Any, named: str) -> None:
    envs = native(n=2, action_mode="parametric")
    envs.reset(seed=0)
    with pytest.raises(UserError, match=named):
        envs.step(actions)
    assert [env.view.seen.n_steps for env in envs.envs] == [0, 0]


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"seed": -1}, UserError, "seed must lie in 0"),
        ({"seed": MAX_SEED}, UserError, "the last of 3 worlds would pass"),
        ({"seed": 0.5}, UserError, "seed must be an integer"),
        ({"seed": [1, 2]}, UserError, "a list of seeds needs 3 of them, one a world, not 2"),
        ({"seed": [1, 2, -3]}, UserError, "seed must lie in 0"),
        ({"seed": "abc"}, UserError, "seed must be an integer"),
        ({"options": {"word": 1}}, UserError, "choose from world, reset_mask"),
        ({"options": {"world": -1}}, UserError, "world id must lie in 0"),
        ({"options": {"reset_mask": [True, False, True]}}, TypeError, "boolean array of shape"),
        ({"options": {"reset_mask": np.ones(3)}}, TypeError, "boolean array of shape"),
        ({"options": {"reset_mask": np.ones(2, bool)}}, UserError, r"shape \(2,\) with 2 True"),
        ({"options": {"reset_mask": np.zeros(3, bool)}}, UserError, "with 0 True"),
    ],
)
def test_bad_resets_change_nothing(
    arguments: dict[str, Any], error: type[Exception], named: str
) -> None:
    envs = native(n=3)
    envs.reset(seed=5)
    with pytest.raises(error, match=named):
        envs.reset(**arguments)
    assert envs.get_attr("world_seed") == (5, 6, 7)
    envs.reset()
    assert envs.get_attr("world_id") == (1, 1, 1)


def test_nothing_works_before_the_first_reset() -> None:
    envs = native(n=2)
    for use in (
        lambda: envs.step(np.zeros(2, np.int64)),
        envs.action_masks,
        lambda: envs.reset(options={"reset_mask": np.ones(2, bool)}),
        lambda: envs.get_attr("world_id"),
    ):
        with pytest.raises(ResetNeeded, match="reset"):
            use()


@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        ({"num_envs": 0}, "num_envs must be a whole number above 0, not 0"),
        ({"num_envs": 2.0}, "num_envs must be a whole number"),
        ({"autoreset_mode": "later"}, "NextStep, SameStep, Disabled"),
        ({"action_mode": "continuous"}, "action_mode must be one of"),
        ({"render_mode": "human"}, "render_mode must be one of"),
    ],
)
def test_bad_keywords_name_the_choices(keywords: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        RecoveryVectorEnv("late-tail", **keywords)


def test_large_seeds() -> None:
    envs = native(n=3)
    envs.reset(seed=np.uint64(MAX_SEED - 2))
    assert envs.get_attr("world_seed") == (MAX_SEED - 2, MAX_SEED - 1, MAX_SEED)
    envs.reset(seed=[0, None, MAX_SEED])
    assert envs.get_attr("world_seed") == (0, MAX_SEED - 1, MAX_SEED)
    assert envs.get_attr("world_id") == (0, 1, 0)


def test_without_seeds_all_differ() -> None:
    first, second = native(n=8), native(n=8)
    first.reset()
    second.reset()
    seeds = first.get_attr("world_seed") + second.get_attr("world_seed")
    assert len(set(seeds)) == 16
    known = native(n=2)
    known.np_random = np.random.default_rng(4)
    known.reset()
    drawn = np.random.default_rng(4).integers(2**64, size=2, dtype=np.uint64)
    assert known.get_attr("world_seed") == tuple(drawn.tolist())


# Reaching the worlds ---------------------------------------------------------------------------


def test_attributes_and_methods_of_the_worlds() -> None:
    envs = native(n=3, render_mode="ansi")
    envs.reset(seed=4)
    assert envs.get_attr("render_mode") == ("ansi",) * 3
    assert envs.get_attr("world_seed") == (4, 5, 6)
    assert envs.get_attr("action_space") == (envs.single_action_space,) * 3
    assert envs.get_attr("observation_space") == (envs.single_observation_space,) * 3
    masks = envs.call("action_masks")
    assert len(masks) == 3
    assert (np.array(masks) == envs.action_masks()).all()
    assert (envs.envs[1].action_masks() == masks[1]).all()
    assert envs.call("render") == envs.render()
    views = envs.get_attr("view")
    assert views[0].clock_s == 30.0
    assert envs.envs[0].unwrapped is envs.envs[0]
    with pytest.raises(AttributeError, match="has no attribute 'gravity'"):
        envs.get_attr("gravity")


def test_attributes_can_be_set() -> None:
    envs = native(n=3)
    envs.set_attr("label", "all")
    assert envs.get_attr("label") == ("all",) * 3
    envs.set_attr("label", ["a", "b", "c"])
    assert envs.get_attr("label") == ("a", "b", "c")
    with pytest.raises(UserError, match="label needs 3 values, one a world, not 2"):
        envs.set_attr("label", ["a", "b"])
    with pytest.raises(UserError, match="render_mode is one for all worlds"):
        envs.set_attr("render_mode", "ansi")


def test_rendering_without_a_mode_warns() -> None:
    envs = native(n=2)
    envs.reset(seed=0)
    with pytest.warns(UserWarning, match="without a render mode"):
        assert envs.render() is None
    assert envs.frame(0) is None


def test_closing_twice_is_fine() -> None:
    envs = native()
    envs.reset(seed=0)
    envs.close()
    envs.close()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
@pytest.mark.parametrize("keywords", [{}, {"autoreset_mode": "Disabled"}, {"copy": False}])
def test_copies_in_the_middle_go_on_alike(copied: Any, keywords: dict[str, Any]) -> None:
    envs = native("ExactlyOnce/StaleTail-v0", 3, **keywords)
    fresh = copied(envs)
    same(envs.reset(seed=3), fresh.reset(seed=3))
    envs.step(np.array([READ, FINISH, RETRY]))
    if keywords.get("autoreset_mode"):
        envs.reset(options={"reset_mask": np.array([False, True, False])})
    twin = copied(envs)
    for actions in ([READ, RETRY, READ], [RETRY, READ, READ]):
        same(envs.step(np.array(actions)), twin.step(np.array(actions)))
    same(envs.reset(), twin.reset())


def test_a_subclass_or_a_plan_gives_the_worlds() -> None:
    class Fixed(RecoveryVectorEnv):
        """Always late-fixed."""

        def make_plan(self, preset: Any, **keywords: Any) -> Any:
            return load_plan("late-fixed")

    assert Fixed("native", num_envs=2).plan.preset.name == "late-fixed"
    plan = load_plan("late-lomax")
    assert RecoveryVectorEnv(plan=plan, num_envs=2).plan is plan


def test_gymnasium_wrappers_work() -> None:
    from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics

    envs = DictInfoToList(RecordEpisodeStatistics(native(n=2)))
    envs.reset(seed=0)
    *_, infos = envs.step(np.array([FINISH, READ]))
    assert infos[0]["episode"]["l"] == 1
    assert infos[0]["reward_terms"].keys() == set(TERM_NAMES)
    assert "episode" not in infos[1]
