"""The single environment: Gymnasium's and Stable-Baselines3's conventions, and its kernel."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env, data_equivalence
from hypothesis import given, settings
from hypothesis import strategies as st

from exactlyonce_env import RecoveryEnv, UserError, kernel
from exactlyonce_env.actions import ACTION_NAMES, KINDS, MAX_WAIT_S, N_ACTIONS, SECONDS, write_mask
from exactlyonce_env.config import Preset
from exactlyonce_env.observation import FEATURES, N_FEATURES, write_observation
from exactlyonce_env.plan import MAX_SEED, MAX_WORLD, Plan
from exactlyonce_env.presets import load_plan
from exactlyonce_env.records import N_TERMS, TRUTH, VIEW
from exactlyonce_env.registration import ENV_IDS
from exactlyonce_env.settlement import count_effects
from exactlyonce_env.view import View
from exactlyonce_env.vocabulary import TERM_NAMES, Action

READ, WAIT, RETRY, KEYED, ESCALATE, FINISH, UNCERTAIN = (
    ACTION_NAMES.index(name)
    for name in (
        "read",
        "wait:60",
        "retry",
        "keyed_retry",
        "escalate",
        "finish",
        "finish_uncertain",
    )
)
KEYS = ["action_mask", "cost", "cost_duplicates", "is_success", "reward_terms"]
MADE = [env_id for env_id in ENV_IDS if "Empirical" not in env_id]


def make(env_id: str = "ExactlyOnce/LateTail-v0", **keywords: Any) -> RecoveryEnv:
    env = gymnasium.make(env_id, **keywords).unwrapped
    assert isinstance(env, RecoveryEnv)
    return env


@pytest.fixture
def env() -> RecoveryEnv:
    return make()


@pytest.fixture
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


# The checkers ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_warning")
@pytest.mark.parametrize("action_mode", ["discrete", "parametric"])
@pytest.mark.parametrize("env_id", MADE)
def test_gymnasium_has_no_complaint(env_id: str, action_mode: str) -> None:
    rendered = env_id == "ExactlyOnce/Native-v0"
    check_env(make(env_id, action_mode=action_mode), skip_render_check=not rendered)


@pytest.mark.usefixtures("no_warning")
@pytest.mark.parametrize("keywords", [{"reveal": True}, {"reward_terms": False}])
def test_gymnasium_has_no_complaint_about_other_infos(keywords: dict[str, bool]) -> None:
    check_env(make("ExactlyOnce/Native-v0", **keywords), skip_render_check=True)


@pytest.mark.usefixtures("no_warning")
@pytest.mark.parametrize("env_id", MADE)
def test_stable_baselines3_has_no_complaint(env_id: str) -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    checker.check_env(make(env_id), warn=True, skip_render_check=True)


@pytest.mark.parametrize("env_id", MADE)
def test_spaces(env_id: str) -> None:
    env = make(env_id)
    assert env.action_space == gymnasium.spaces.Discrete(N_ACTIONS)
    box = env.observation_space
    assert (box.shape, box.dtype) == ((N_FEATURES,), np.float32)
    assert np.isfinite(box.low).all()
    assert np.isfinite(box.high).all()
    wide = make(env_id, action_mode="parametric").action_space
    assert wide["kind"] == gymnasium.spaces.Discrete(len(Action))
    assert wide["seconds"] == gymnasium.spaces.Box(0.0, MAX_WAIT_S, (), np.float64)


# What is returned ------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", MADE)
def test_types_keys_and_spaces_at_every_step(env_id: str) -> None:
    env = make(env_id)
    rng = np.random.default_rng(0)
    observation, info = env.reset(seed=1)
    for _ in range(200):
        assert list(info) == KEYS
        assert observation in env.observation_space
        assert observation.flags.owndata
        mask = info["action_mask"]
        assert (mask.dtype, mask.shape) == (np.int8, (N_ACTIONS,))
        assert (mask == env.action_masks()).all()
        assert list(info["reward_terms"]) == list(TERM_NAMES)
        assert {type(value) for value in info["reward_terms"].values()} == {float}
        assert type(info["cost"]) is type(info["cost_duplicates"]) is float
        assert type(info["is_success"]) is bool
        action = rng.integers(N_ACTIONS)
        observation, reward, terminated, truncated, info = env.step(action)
        assert (type(reward), type(terminated)) == (float, bool)
        assert truncated is False
        if terminated:
            observation, info = env.reset()


@settings(max_examples=60)
@given(
    st.sampled_from(["late-tail", "native", "keys-everywhere", "first-decision"]),
    st.integers(0, MAX_SEED),
    st.integers(0, MAX_WORLD - 1),
    st.lists(st.integers(0, N_ACTIONS - 1), min_size=1, max_size=12),
)
def test_the_terms_add_up_to_the_reward_to_the_last_bit(
    preset: str, seed: int, world: int, actions: list[int]
) -> None:
    env = RecoveryEnv(preset)
    env.reset(seed=seed, options={"world": world})
    for action in actions:
        _, reward, terminated, _, info = env.step(action)
        total = 0.0
        for name in TERM_NAMES:
            total += info["reward_terms"][name]
        assert total == reward
        assert info["cost"] == 0.0 or terminated
        if terminated:
            break


def test_the_cost_is_the_number_of_duplicates() -> None:
    env = make("ExactlyOnce/LateFixed-v0", reveal=True)
    found = set()
    for _ in range(30):
        env.reset(seed=0 if not found else None)
        env.step(RETRY)
        *_, info = env.step(FINISH)
        outcome = info["truth"]["outcome"]
        assert info["cost"] == info["cost_duplicates"] == outcome["duplicates"]
        assert info["is_success"] == outcome["exactly_once"]
        found.add(info["cost"])
    assert found == {0.0, 1.0}


def test_nothing_returned_is_shared_between_calls(env: RecoveryEnv) -> None:
    calls = [env.reset(seed=0)]
    for action in (READ, WAIT, RETRY, FINISH):
        observation, _, _, _, info = env.step(action)
        calls.append((observation, info))
    kept = copy.deepcopy(calls)
    calls.append(env.reset())
    arrays = [array for observation, info in calls for array in (observation, info["action_mask"])]
    for k, first in enumerate(arrays):
        for second in arrays[k + 1 :]:
            assert not np.shares_memory(first, second)
    dictionaries = [d for _, info in calls for d in (info, info["reward_terms"])]
    assert len({id(d) for d in dictionaries}) == len(dictionaries)
    for before, after in zip(kept, calls[:-1], strict=True):
        assert data_equivalence(before, after, exact=True)
    calls[0][0][:] = 7  # nor does writing into one reach the environment
    calls[0][1]["action_mask"][:] = 0
    assert env.reset(seed=0)[0].tobytes() == kept[0][0].tobytes()


def test_hidden_truth_is_told_only_on_demand() -> None:
    assert list(make().reset(seed=0)[1]) == KEYS
    env = make("ExactlyOnce/Native-v0", reveal=True)
    _, info = env.reset(seed=5)
    assert list(info) == [*KEYS, "truth"]
    world = env.plan.worlds(5, [0])[0]
    truth = info["truth"]
    assert (truth["seed"], truth["world"], truth["ledger"]) == (5, 0, [])
    assert len(truth["attempts"]) == 6
    assert truth["original_mode"] == truth["attempts"][0]["mode"]
    assert truth["operator_answers"] == bool(world["operator_answers"])
    assert truth["outcome"]["omissions"] == env.plan.contracts[world["context"]]["n_items"]
    *_, info = env.step(RETRY)
    assert list(info) == [*KEYS, "truth"]


def test_the_truth_changes_nothing() -> None:
    """Revealing looks ahead on copies: the same actions lead to the same bytes."""
    told, quiet = make(reveal=True), make()
    told.reset(seed=9)
    quiet.reset(seed=9)
    for action in (READ, WAIT, RETRY, READ, FINISH):
        first, second = told.step(action), quiet.step(action)
        del first[4]["truth"]
        assert data_equivalence(first, second, exact=True)


# Seeds and worlds ------------------------------------------------------------------------------


def test_seeds_count_worlds(env: RecoveryEnv) -> None:
    env.reset(seed=11)
    assert (env.world_seed, env.world_id) == (11, 0)
    for k in (1, 2):
        env.reset()
        assert (env.world_seed, env.world_id) == (11, k)
    env.reset(options={"world": 77})
    assert (env.world_seed, env.world_id) == (11, 77)
    env.reset()
    assert (env.world_seed, env.world_id) == (11, 78)
    env.reset(seed=3, options={"world": np.int64(5)})
    assert (env.world_seed, env.world_id) == (3, 5)
    env.reset(seed=np.int32(4), options={})
    assert (env.world_seed, env.world_id) == (4, 0)
    env.reset(seed=MAX_SEED, options={"world": MAX_WORLD})
    assert (env.world_seed, env.world_id) == (MAX_SEED, MAX_WORLD)
    with pytest.raises(UserError, match="world id"):
        env.reset()  # there is no next one


def test_without_a_seed_the_first_reset_draws_one() -> None:
    first, second = make(), make()
    first.reset()
    second.reset()
    assert first.world_seed != second.world_seed
    assert (first.world_id, second.world_id) == (0, 0)
    known = make()
    known.np_random = np.random.default_rng(8)
    known.reset()
    assert known.world_seed == np.random.default_rng(8).integers(2**64, dtype=np.uint64)
    first.reset(seed=2)
    assert first.world_seed == 2


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"seed": -1}, "seed must lie in 0"),
        ({"seed": MAX_SEED + 1}, "seed must lie in 0"),
        ({"seed": 1.5}, "seed must be an integer"),
        ({"seed": True}, "seed must be an integer"),
        ({"seed": "7"}, "seed must be an integer"),
        ({"options": {"world": -1}}, "world id must lie in 0"),
        ({"options": {"world": MAX_WORLD + 1}}, "world id must lie in 0"),
        ({"options": {"world": 0.5}}, "world id must be an integer"),
        ({"options": {"wolrd": 1}}, "unknown reset option 'wolrd'; choose from world"),
        ({"options": [("world", 1)]}, "reset options must be a mapping"),
    ],
)
def test_bad_resets_are_refused_and_change_nothing(
    env: RecoveryEnv, arguments: dict[str, Any], named: str
) -> None:
    env.reset(seed=1)
    with pytest.raises(UserError, match=named):
        env.reset(**arguments)
    assert (env.world_seed, env.world_id) == (1, 0)
    env.reset()
    assert env.world_id == 1


# The kernel behind it --------------------------------------------------------------------------


class Bare:
    """The kernel's own functions, called one by one."""

    def __init__(self, plan: Plan, seed: int, world: int) -> None:
        self.plan = plan
        self.seen, self.truth = np.zeros(1, VIEW), np.zeros(1, TRUTH)
        key = np.uint64(seed)
        kernel.begin(
            plan.contexts, plan.context_cdf, plan.table, key, world, self.seen[0], self.truth[0]
        )

    @property
    def contract(self) -> Any:
        return self.plan.contracts[self.seen[0].context]

    def looks(self) -> tuple[bytes, bytes]:
        observation, mask = np.zeros(N_FEATURES, np.float32), np.zeros(N_ACTIONS, np.int8)
        write_observation(self.seen[0], self.plan.contexts, self.plan.static, observation)
        write_mask(self.seen[0], self.contract, mask)
        return observation.tobytes(), mask.tobytes()

    def act(self, kind: int, seconds: float) -> tuple[float, bool, float, list[float]]:
        terms = np.zeros(N_TERMS)
        reward = kernel.act(
            self.plan.contexts, self.plan.table, self.seen[0], self.truth[0], kind, seconds, terms
        )
        ended = bool(self.seen[0].ending)
        cost = count_effects(self.contract, self.seen[0], self.truth[0])[0] if ended else 0
        return float(reward), ended, float(cost), terms.tolist()


@pytest.mark.parametrize("preset", ["late-tail", "native", "keys-everywhere", "stale-tail"])
def test_it_equals_the_kernel_bit_for_bit(preset: str) -> None:
    env = RecoveryEnv(preset)
    rng = np.random.default_rng(3)
    for world in range(25):
        bare = Bare(env.plan, 6, world)
        observation, info = env.reset(seed=6 if world == 0 else None)
        ended = False
        while not ended:
            assert (observation.tobytes(), info["action_mask"].tobytes()) == bare.looks()
            action = int(rng.integers(N_ACTIONS))
            observation, reward, ended, _, info = env.step(action)
            told = bare.act(int(KINDS[action]), float(SECONDS[action]))
            assert told == (reward, ended, info["cost"], list(info["reward_terms"].values()))
        assert (observation.tobytes(), info["action_mask"].tobytes()) == bare.looks()


def test_parametric_actions_reach_the_kernel() -> None:
    env = make(action_mode="parametric")
    bare = Bare(env.plan, 2, 0)
    env.reset(seed=2)
    for kind, seconds in [(Action.READ, 5.0), (Action.WAIT, 123.456), (Action.WAIT, 0.0)]:
        action = {"kind": np.int64(kind), "seconds": np.array(seconds)}
        observation, reward, *_ = env.step(action)
        assert reward == bare.act(int(kind), seconds)[0]
        assert observation.tobytes() == bare.looks()[0]
    assert env.view.clock_s == pytest.approx(30 + 1 + 123.456)


def test_both_action_modes_agree() -> None:
    discrete, parametric = make(), make(action_mode="parametric")
    discrete.reset(seed=8)
    parametric.reset(seed=8)
    for action in (READ, WAIT, ESCALATE, RETRY, FINISH):
        wide = {"kind": int(KINDS[action]), "seconds": float(SECONDS[action])}
        assert data_equivalence(discrete.step(action), parametric.step(wide), exact=True)


# Actions ---------------------------------------------------------------------------------------


def test_a_refused_action_is_an_outcome(env: RecoveryEnv) -> None:
    """No key is taken here: an error answers, one step is used up, and the clock stands still."""
    _, info = env.reset(seed=0)
    assert info["action_mask"][KEYED] == 0
    assert not env.action_masks()[KEYED]
    before = env.view
    _, reward, terminated, _, info = env.step(KEYED)
    assert (reward, terminated) == (0.0, False)
    assert set(info["reward_terms"].values()) == {0.0}
    assert env.view.clock_s == before.clock_s
    assert (env.view.seen.n_client_errors, env.view.seen.n_steps) == (1, 1)


def test_masks_are_boolean_and_follow_the_contract() -> None:
    blind = RecoveryEnv("late-tail", contract={"readback": "none", "max_attempts": 1})
    blind.reset(seed=0)
    masks = blind.action_masks()
    assert masks.dtype == np.bool_
    refused = {name for name, allowed in zip(ACTION_NAMES, masks, strict=True) if not allowed}
    assert refused == {"read", "retry", "keyed_retry"}
    assert blind.action_space.sample(mask=blind.reset()[1]["action_mask"]) not in (READ, RETRY)
    masks[:] = False
    assert blind.action_masks().any()


@pytest.mark.parametrize("action", [-1, N_ACTIONS, 2.0, "read", None, np.array([1, 2]), np.nan])
def test_actions_outside_the_space_are_refused(env: RecoveryEnv, action: Any) -> None:
    env.reset(seed=0)
    with pytest.raises(
        UserError, match=r"action must be an integer in 0\.\.10 \(0 read, 1 wait:15"
    ):
        env.step(action)
    assert env.view.seen.n_steps == 0


@pytest.mark.parametrize("action", [3, np.int64(3), np.int8(3), np.array(3), np.uint8(3)])
def test_any_kind_of_integer_is_an_action(env: RecoveryEnv, action: Any) -> None:
    env.reset(seed=0)
    env.step(action)
    assert env.view.clock_s == 330.0


@pytest.mark.parametrize(
    ("action", "named"),
    [
        (3, "a parametric action is a mapping"),
        ({"kind": 1}, "a parametric action is a mapping"),
        ({"kind": 1, "seconds": 2.0, "more": 3}, "a parametric action is a mapping"),
        ({"kind": 7, "seconds": 2.0}, r"kind must be an integer in 0\.\.6 \(0 read, 1 wait"),
        ({"kind": -1, "seconds": 2.0}, "kind must be an integer"),
        ({"kind": 1.0, "seconds": 2.0}, "kind must be an integer"),
        ({"kind": 1, "seconds": -0.5}, "seconds must lie in"),
        ({"kind": 1, "seconds": MAX_WAIT_S * 1.01}, "seconds must lie in"),
        ({"kind": 1, "seconds": float("nan")}, "seconds must lie in"),
        ({"kind": 1, "seconds": "soon"}, "seconds must lie in"),
        ({"kind": 1, "seconds": np.array([1.0, 2.0])}, "seconds must lie in"),
    ],
)
def test_parametric_actions_outside_the_space_are_refused(action: Any, named: str) -> None:
    env = make(action_mode="parametric")
    env.reset(seed=0)
    with pytest.raises(UserError, match=named):
        env.step(action)
    assert env.view.seen.n_steps == 0


# Life of an episode ----------------------------------------------------------------------------


def test_nothing_works_before_the_first_reset(env: RecoveryEnv) -> None:
    for use in (
        lambda: env.step(READ),
        env.action_masks,
        lambda: env.view,
        lambda: env.world_id,
        lambda: env.world_seed,
    ):
        with pytest.raises(ResetNeeded, match="reset"):
            use()


@pytest.mark.parametrize("action", [FINISH, UNCERTAIN])
def test_nothing_steps_after_the_end(env: RecoveryEnv, action: int) -> None:
    env.reset(seed=0)
    assert env.step(action)[2]
    with pytest.raises(ResetNeeded, match="reset"):
        env.step(READ)
    env.reset()
    env.step(READ)


def test_the_budget_terminates_and_never_truncates() -> None:
    env = RecoveryEnv("late-tail", contract={"max_steps": 5})
    env.reset(seed=0)
    flags = [env.step(READ)[2:4] for _ in range(5)]
    assert flags == [(False, False)] * 4 + [(True, False)]


def test_wrapped_misuse_is_told_by_gymnasium() -> None:
    wrapped = gymnasium.make("ExactlyOnce/LateTail-v0")
    with pytest.raises(ResetNeeded):
        wrapped.step(0)


def test_closing_twice_is_fine(env: RecoveryEnv) -> None:
    env.reset(seed=0)
    env.close()
    env.close()


def same_future(first: RecoveryEnv, second: RecoveryEnv) -> None:
    for action in (WAIT, READ, RETRY, FINISH):
        assert data_equivalence(first.step(action), second.step(action), exact=True)
    assert data_equivalence(first.reset(), second.reset(), exact=True)
    assert (first.world_seed, first.world_id) == (second.world_seed, second.world_id)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
@pytest.mark.parametrize("keywords", [{}, {"reveal": True}, {"render_mode": "rgb_array"}])
def test_copies_in_the_middle_of_an_episode_go_on_alike(copied: Any, keywords: Any) -> None:
    env = make("ExactlyOnce/StaleTail-v0", **keywords)
    env.reset(seed=12)
    env.step(READ)
    twin = copied(env)
    if keywords.get("render_mode"):
        assert (twin.render() == env.render()).all()
    same_future(env, twin)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_copies_are_independent(copied: Any) -> None:
    env = make()
    env.reset(seed=12)
    twin = copied(env)
    twin.step(FINISH)
    assert env.view.seen.n_steps == 0
    fresh = copied(make())  # never reset
    assert data_equivalence(fresh.reset(seed=1), make().reset(seed=1), exact=True)


def test_a_deep_copy_shares_the_plan(env: RecoveryEnv) -> None:
    assert copy.deepcopy(env).plan is env.plan


# Worlds of one's own ---------------------------------------------------------------------------


def test_a_subclass_draws_its_own_worlds() -> None:
    class Fixed(RecoveryEnv):
        """Always late-fixed, whatever is asked for."""

        def make_plan(self, preset: Any, **keywords: Any) -> Plan:
            return load_plan("late-fixed")

    env = Fixed("native", costs={"duplicate": 9.0})
    env.reset(seed=0)
    assert env.plan.preset.name == "late-fixed"
    assert env.view.contract.costs.duplicate == 1.0


def test_a_plan_or_a_preset_object_may_be_given() -> None:
    plan = load_plan("late-lomax")
    assert RecoveryEnv(plan=plan).plan is plan
    mine = Preset(name="mine", contract={"readback": "authoritative"})
    assert RecoveryEnv(mine).plan.preset.name == "mine"
    with pytest.raises(UserError, match="plan stands in place of costs, variants"):
        RecoveryEnv(plan=plan, costs={"read": 1.0}, variants=[])
    with pytest.raises(UserError, match="plan must be an exactlyonce_env"):
        RecoveryEnv(plan="late-tail")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        ({"action_mode": "continuous"}, "action_mode must be one of discrete, parametric"),
        ({"render_mode": "ascii"}, "render_mode must be one of None, ansi, rgb_array"),
        ({"preset": "late-tale"}, "did you mean late-tail"),
        ({"preset": {"contract": {"readbak": "none"}}}, "readbak"),
    ],
)
def test_bad_keywords_name_the_choices(keywords: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        RecoveryEnv(**{"preset": "late-tail", **keywords})


def test_the_view_is_the_one_that_policies_receive(env: RecoveryEnv) -> None:
    env.reset(seed=3)
    env.step(READ)
    view = env.view
    assert isinstance(view, View)
    assert view == View.of(env._cell["seen"][0], env.plan.contracts[0])


@settings(max_examples=40)
@given(
    st.sampled_from(["native", "keys-everywhere", "contextual"]),
    st.integers(0, 10**6),
    st.lists(st.integers(0, 8), max_size=9),
)
def test_the_mask_can_be_read_off_the_observation(
    preset: str, world: int, actions: list[int]
) -> None:
    """So that a policy which takes no mask, a recurrent one say, still knows what is refused."""
    env = RecoveryEnv(preset)
    observation, info = env.reset(seed=3, options={"world": world})
    for action in actions:
        observation, _, terminated, _, info = env.step(action)
        if terminated:
            break
    told = dict(zip((feature.name for feature in FEATURES), observation.tolist(), strict=True))
    expected = np.ones(N_ACTIONS, np.int8)
    expected[READ] = told["readback_none"] == 0
    expected[RETRY] = told["attempts_left"] > 0
    expected[KEYED] = told["attempts_left"] > 0 and told["accepts_key"] == 1
    assert info["action_mask"].tolist() == expected.tolist()


def test_masks_reach_through_gymnasiums_wrappers() -> None:
    wrapped = gymnasium.make("ExactlyOnce/LateTail-v0", disable_env_checker=False)
    wrapped.reset(seed=0)
    masks = wrapped.get_wrapper_attr("action_masks")()
    assert (masks == wrapped.unwrapped.action_masks()).all()
