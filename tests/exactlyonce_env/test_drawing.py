"""Worlds are pure functions of (preset, seed, world id), and they follow the preset's law."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exactlyonce_env.config import Situation
from exactlyonce_env.errors import UserError
from exactlyonce_env.plan import Plan
from exactlyonce_env.presets import PRESET_NAMES, load_plan
from exactlyonce_env.records import MAX_ATTEMPTS, WORLD
from exactlyonce_env.vocabulary import MODE_NAMES, Mode

from .worldbench import bench, opened, play, shipped

LATE = [Mode.TIMEOUT_LATE, Mode.TIMEOUT_LATE_TAIL]
NOTHING = [
    Mode.TIMEOUT_PRE,
    Mode.HTTP500_PRE,
    Mode.RATE_LIMITED,
    Mode.UNAVAILABLE,
    Mode.OUTAGE,
    Mode.SCHEMA_DRIFT,
]


# Pure functions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_world_123456_is_the_same_alone_and_in_any_batch(preset: str) -> None:
    plan = shipped(preset)
    alone = plan.worlds(7, [123456])[0]
    assert alone["world"] == 123456
    assert plan.worlds(7, range(123400, 123500))[56].tobytes() == alone.tobytes()
    assert plan.worlds(7, range(123500, 123400, -1))[44].tobytes() == alone.tobytes()
    assert plan.worlds(7, [123456] * 3)[2].tobytes() == alone.tobytes()
    assert plan.worlds(8, [123456])[0]["fates"].tobytes() != alone["fates"].tobytes()


@given(
    preset=st.sampled_from([name for name in PRESET_NAMES if name != "contextual"]),
    seed=st.integers(0, 2**64 - 1),
    ids=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=12),
    order=st.randoms(use_true_random=False),
)
def test_batches_orders_and_repetitions_do_not_matter(
    preset: str, seed: int, ids: list[int], order: Any
) -> None:
    plan = shipped(preset)
    whole = {k: world.tobytes() for k, world in zip(ids, plan.worlds(seed, ids), strict=True)}
    shuffled = [*ids, *ids]
    order.shuffle(shuffled)
    for k in shuffled:
        assert plan.worlds(seed, [k])[0].tobytes() == whole[k]


@pytest.mark.parametrize("preset", ["late-tail", "native", "contextual"])
def test_the_kernel_meets_the_worlds_as_they_are_written_out(preset: str) -> None:
    """Context, operator and the fate of each attempt, drawn one at a time as the client sends."""
    plan = shipped(preset)
    for world in plan.worlds(3, range(40)):
        view, truth = opened(plan, int(world["world"]), seed=3)
        assert truth["context"] == world["context"]
        assert plan.contracts[view["context"]] == plan.contracts[world["context"]]
        assert truth["operator_answers"] == world["operator_answers"]
        contract = plan.contracts[world["context"]]
        if contract["max_steps"] < 20:
            continue
        episode = play(
            plan,
            ["wait:200", "retry"] * int(contract["max_attempts"]),
            world=int(world["world"]),
            seed=3,
        )
        n = int(episode.view["n_attempts"])
        assert n == contract["max_attempts"]
        happened = episode.truth["attempts"]["mode"][:n]
        assert happened.tolist() == world["fates"]["mode"][:n].tolist()
        for j in range(n):
            if happened[j] in LATE:
                due_s = float(
                    episode.view["attempts"]["sent_s"][j] + world["fates"]["commit_delay_s"][j]
                )
                assert float(episode.truth["attempts"]["execution_s"][j]) == due_s


def test_attempts_beyond_the_limit_have_no_fate() -> None:
    plan = bench("timeout_post", "timeout_late", max_attempts=3)
    fates = plan.worlds(0, range(20))["fates"]
    assert not fates[:, 3:].tobytes().strip(b"\0")
    assert fates.shape == (20, MAX_ATTEMPTS)
    assert (fates["mode"][:, 1:3] == Mode.TIMEOUT_LATE).all()


def test_seeds_and_ids_out_of_range_are_refused() -> None:
    plan = shipped("late-tail")
    assert plan.worlds(2**64 - 1, [2**63 - 1]).shape == (1,)
    assert plan.worlds(0, []).shape == (0,)
    for seed, world, message in [
        (-1, 0, "seed must lie in 0..18446744073709551615, not -1"),
        (2**64, 0, "seed must lie in"),
        (0, -1, "world id must lie in 0..9223372036854775807, not -1"),
        (0, 2**63, "world id must lie in"),
        (0.5, 0, "seed must be an integer, not 0.5"),
        (0, "7", "world id must be an integer, not '7'"),
        (True, 0, "seed must be an integer, not True"),
    ]:
        with pytest.raises(UserError, match=message.replace(".", r"\.")):
            plan.worlds(seed, [world])  # type: ignore[arg-type, list-item]


GOLDEN = {
    "late-fixed": "a5be56fb8573da06ce2674487c1a61219802f7d970caed6d97df86f8a70b1aba",
    "late-tail": "5c91a904eb1d41719ecb20170bf088359a44748046fd6eba035ad7d47ea48973",
    "late-lomax": "7f9aa28d3322da4f076580adcdb638c1eed38d419ef1abc5af4047bee07ec1ec",
    "stale-tail": "35ab73d69f7a5a43cf02f152f8493740f53dd970c7d1a6ecfce88acb7bf97358",
    "native": "7cf3a6f93dac6a27ad4d40e91124a7c0f76c33fea15d85d0e78e0b2485988976",
    "keys-everywhere": "7cf3a6f93dac6a27ad4d40e91124a7c0f76c33fea15d85d0e78e0b2485988976",
    "first-decision": "bed979588933fd90504e55d4b2000e1be19fbdf06a4a8cd2a14d2f1a0528fff6",
    "contextual": "7e51c1eb85b90f55e2201bdb5189159d7892f9790208f92b242382d092970350",
    "empirical": "7f9aa28d3322da4f076580adcdb638c1eed38d419ef1abc5af4047bee07ec1ec",
}


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_golden_worlds(preset: str) -> None:
    """Ids 0 to 999 of seed 0, to the byte: a change here is a new version of the preset."""
    worlds = shipped(preset).worlds(0, range(1000))
    assert worlds.dtype == WORLD
    assert hashlib.sha256(worlds.tobytes()).hexdigest() == GOLDEN[preset]


# The law ----------------------------------------------------------------------------------------

N = 30000


@pytest.fixture(scope="module")
def drawn() -> dict[str, np.ndarray]:
    """Many worlds of the presets with few contexts."""
    names = [name for name in PRESET_NAMES if name not in ("contextual", "empirical")]
    return {name: shipped(name).worlds(20261, range(N)) for name in names}


def agrees(counts: np.ndarray, shares: np.ndarray) -> bool:
    """Whether counts look like draws from ``shares``, and nothing of share 0 was drawn."""
    from scipy import stats

    possible = shares > 0
    if counts[~possible].any():
        return False
    if possible.sum() == 1:
        return True
    expected = shares[possible] / shares.sum() * counts.sum()
    return bool(stats.chisquare(counts[possible], expected).pvalue > 1e-3)


def test_agreement_is_a_test_that_can_fail() -> None:
    assert agrees(np.array([500, 500, 0]), np.array([0.5, 0.5, 0]))
    assert not agrees(np.array([600, 400, 0]), np.array([0.5, 0.5, 0]))
    assert not agrees(np.array([500, 499, 1]), np.array([0.5, 0.5, 0]))


@pytest.mark.parametrize(
    "preset", [n for n in PRESET_NAMES if n not in ("contextual", "empirical")]
)
def test_contexts_come_as_often_as_their_weights_say(
    preset: str, drawn: dict[str, np.ndarray]
) -> None:
    situations = shipped(preset).situations
    weights = np.array([situation.weight for situation in situations])
    counts = np.bincount(drawn[preset]["context"], minlength=len(situations))
    assert agrees(counts, weights)


def shares_by_hand(situation: Situation, original: bool) -> np.ndarray:
    """Shares of `native`: 20 % fine originals, 90 % fine retries, the other modes equally."""
    ok = 0.2 if original else 0.9
    faults = 12 if situation.contract.n_items > 1 else 11
    shares = np.full(13, (1 - ok) / faults)
    shares[Mode.OK] = ok
    if faults == 11:
        shares[Mode.PARTIAL_BATCH] = 0
    return shares


@pytest.mark.parametrize("preset", ["native", "keys-everywhere"])
def test_modes_of_native_follow_its_shares(preset: str, drawn: dict[str, np.ndarray]) -> None:
    worlds = drawn[preset]
    for c, situation in enumerate(shipped(preset).situations):
        modes = worlds["fates"]["mode"][worlds["context"] == c]
        first = np.bincount(modes[:, 0], minlength=13)
        later = np.bincount(modes[:, 1:6].ravel(), minlength=13)
        assert agrees(first, shares_by_hand(situation, True)), situation.name
        assert agrees(later, shares_by_hand(situation, False)), situation.name


@pytest.mark.parametrize(
    ("preset", "third"),
    [
        ("late-fixed", "timeout_late"),
        ("late-tail", "timeout_late_tail"),
        ("late-lomax", "timeout_late_tail"),
        ("stale-tail", "timeout_late_tail"),
        ("first-decision", "timeout_late"),
    ],
)
def test_a_third_each(preset: str, third: str, drawn: dict[str, np.ndarray]) -> None:
    shares = np.zeros(13)
    for mode in ("timeout_pre", "timeout_post", third):
        shares[MODE_NAMES.index(mode)] = 1 / 3
    modes = drawn[preset]["fates"]["mode"]
    assert agrees(np.bincount(modes[:, 0], minlength=13), shares)
    assert not modes[:, 1:].any()  # re-issues are fine in these presets


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_late_requests_are_queued_as_often_as_told(share: float) -> None:
    fates = bench("timeout_late", "timeout_late_tail", faults={"queued_share": share}).worlds(
        1, range(4000)
    )["fates"]
    for j in (0, 1):
        queued = int(fates["queued"][:, j].sum())
        assert agrees(np.array([queued, 4000 - queued]), np.array([share, 1 - share]))
    assert (
        not bench("timeout_post", faults={"queued_share": 1})
        .worlds(0, range(50))["fates"]["queued"]
        .any()
    )


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_operators_answer_as_often_as_told(rate: float) -> None:
    answers = bench("ok", operator_answer_rate=rate).worlds(2, range(4000))["operator_answers"]
    assert agrees(np.bincount(answers, minlength=2), np.array([1 - rate, rate]))


def test_partial_batches_keep_each_number_of_items_equally_often() -> None:
    fates = bench("partial_batch", n_items=5).worlds(0, range(40000))["fates"]
    counts = np.bincount(fates["n_commit"][:, 0], minlength=6)
    assert agrees(counts, np.array([0, 1, 1, 1, 1, 0]))


def test_the_numbers_of_each_mode() -> None:
    """What is drawn for a mode, and that nothing is drawn for the others."""
    worlds = load_plan(
        {
            "name": "bench",
            "contract": {"n_items": 3, "latency_s": 2.5},
            "faults": {"original_ok_share": 0.1, "copy_delay_s": 7, "late_fixed_s": 44},
        }
    ).worlds(4, range(3000))
    fates = worlds["fates"][:, 0]
    for mode in Mode:
        mine = fates[fates["mode"] == mode]
        assert len(mine) > 100
        if mode in NOTHING:
            assert np.isinf(mine["commit_delay_s"]).all()
            assert not mine["n_commit"].any()
        elif mode == Mode.TIMEOUT_LATE:
            assert (mine["commit_delay_s"] == 44).all()
        elif mode == Mode.TIMEOUT_LATE_TAIL:
            assert len(np.unique(mine["commit_delay_s"])) == len(mine)
        else:
            assert (mine["commit_delay_s"] == 2.5).all()
        if mode not in NOTHING and mode != Mode.PARTIAL_BATCH:
            assert (mine["n_commit"] == 3).all()
        assert np.isfinite(mine["copy_delay_s"]).all() == (mode == Mode.REDELIVERY)
        if mode == Mode.REDELIVERY:
            assert (mine["copy_delay_s"] == 7).all()
        if mode not in LATE:
            assert not mine["queued"].any()


LAWS: dict[str, dict[str, Any]] = {
    "uniform": {"family": "uniform", "loc": 5, "scale": 50},
    "loguniform": {"family": "loguniform", "a": 40, "b": 7200},
    "expon": {"family": "expon", "scale": 80},
    "weibull": {"family": "weibull_min", "c": 0.7, "scale": 80},
    "lognorm": {"family": "lognorm", "s": 1.2, "scale": 80},
    "pareto": {"family": "pareto", "b": 0.9, "scale": 30},
    "lomax": {"family": "lomax", "c": 0.8, "scale": 120},
    "mixture": {
        "family": "mixture",
        "components": [
            {"weight": 0.7, "law": {"family": "expon", "scale": 20}},
            {"weight": 0.3, "law": {"family": "uniform", "loc": 100, "scale": 10}},
        ],
    },
}


@pytest.mark.parametrize("family", LAWS)
def test_tail_delays_follow_their_law(family: str) -> None:
    from scipy import stats

    plan = bench("timeout_late_tail", "timeout_late_tail", faults={"late_tail": LAWS[family]})
    delays = plan.worlds(5, range(5000))["fates"]["commit_delay_s"]
    law = plan.situations[0].faults.late_tail
    assert stats.kstest(delays[:, 0], law.cdf).pvalue > 1e-3
    assert stats.kstest(delays[:, 1], law.cdf).pvalue > 1e-3
    assert abs(stats.spearmanr(delays[:, 0], delays[:, 1]).statistic) < 4 / np.sqrt(5000)


def test_a_measured_law_draws_its_own_steps() -> None:
    law = {"family": "empirical", "times_s": [10, 20, 400], "cdf": [0.5, 0.75, 0.9]}
    plan = bench("timeout_late_tail", faults={"late_tail": law})
    delays = plan.worlds(6, range(8000))["fates"]["commit_delay_s"][:, 0]
    values, counts = np.unique(delays, return_counts=True)
    assert values.tolist() == [10, 20, 400, 1e8]  # a tenth never landed while it was watched
    assert agrees(counts, np.array([0.5, 0.25, 0.15, 0.1]))


def test_modes_do_not_depend_on_delays_or_contexts(drawn: dict[str, np.ndarray]) -> None:
    from scipy import stats

    worlds = drawn["stale-tail"]
    late = worlds["fates"]["mode"][:, 0] == Mode.TIMEOUT_LATE_TAIL
    table = np.stack(
        [np.bincount(worlds["context"][late == flag], minlength=91) for flag in (0, 1)]
    )
    assert stats.chi2_contingency(table).pvalue > 1e-3
    delays = worlds["fates"]["commit_delay_s"][late, 0]
    assert stats.kstest(delays, "loguniform", args=(40, 7200)).pvalue > 1e-3
    queued = worlds["fates"]["queued"][late, 0] != 0
    assert stats.ks_2samp(delays[queued], delays[~queued]).pvalue > 1e-3


def test_a_plan_is_read_only_and_copies_share_it() -> None:
    import copy

    plan: Plan = shipped("late-tail")
    for array in (plan.contexts, plan.context_cdf, plan.table, plan.static, plan.contracts):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = array
    assert copy.deepcopy(plan) is plan
