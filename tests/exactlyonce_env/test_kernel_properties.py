"""What holds in every world of every preset, whatever the client does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exactlyonce_env.actions import MAX_WAIT_S
from exactlyonce_env.presets import PRESET_NAMES, load_plan
from exactlyonce_env.records import UNKNOWN
from exactlyonce_env.vocabulary import Authority, Ending, Mode, Readback, Response

from .worldbench import Episode, items_of, play, shipped

ACTION = st.one_of(
    st.sampled_from(["read", "retry", "keyed_retry", "escalate"]),
    st.floats(0, MAX_WAIT_S).map(lambda seconds: f"wait:{seconds!r}"),
    st.sampled_from(["wait:0", "wait:15", "wait:300"]),
)
LAST = st.sampled_from(["finish", "finish_uncertain"])


def played(preset: str, world: int, actions: list[str], last: str) -> Episode:
    """An episode that is cut where its budget ends."""
    plan = shipped(preset)
    steps = int(plan.contracts["max_steps"][play(plan, [], world=world).view["context"]])
    taken: list[str] = []
    for action in [*actions, last][:steps]:
        taken.append(action)
        if (
            plan.contracts["dispatch_claims"].any()
            and play(plan, taken, world=world).view["ending"]
        ):
            break
    return play(plan, taken, world=world)


EPISODES = st.builds(
    played,
    st.sampled_from(PRESET_NAMES),
    st.integers(0, 2**63 - 1),
    st.lists(ACTION, max_size=14),
    LAST,
)


@settings(max_examples=200)
@given(EPISODES)
def test_histories_are_well_formed(world: Episode) -> None:
    assert world.clocks == sorted(world.clocks)
    assert all(math.isfinite(clock) for clock in world.clocks)
    contract = world.plan.contracts[world.view["context"]]
    attempts = world.view["attempts"]
    n = int(world.view["n_attempts"])
    assert n <= contract["max_attempts"]
    sent_s, answered_s = attempts["sent_s"][:n], attempts["answered_s"][:n]
    assert (sent_s <= answered_s).all()
    assert (answered_s <= sent_s + contract["client_timeout_s"]).all()
    assert (answered_s[:-1] <= sent_s[1:]).all()
    assert not attempts[n:].tobytes().strip(b"\0")
    full = (1 << int(contract["n_items"])) - 1
    assert ((attempts["payload"][:n] > 0) & (attempts["payload"][:n] <= full)).all()
    assert (attempts["clear"][:n] & ~attempts["payload"][:n] == 0).all()
    assert (attempts["response"][:n] != Response.NONE).all()
    assert 0 <= world.view["shown"] <= full
    assert world.view["ending"] != Ending.RUNNING
    assert world.view["n_steps"] == len(world.actions) <= contract["max_steps"]
    assert world.false_permissions <= world.measure("reissues") <= max(n - 1, 0) + 1
    assert all(math.isfinite(reward) for reward in world.rewards)


@settings(max_examples=200)
@given(EPISODES)
def test_what_a_read_shows_is_in_the_ledger(world: Episode) -> None:
    contract = world.plan.contracts[world.view["context"]]
    law = world.plan.contexts[world.truth["context"]]["law"]
    lag_s = float(law["lag_s"]) if contract["readback"] == Readback.EVENTUAL else 0.0
    for action, view in zip(world.actions, world.views[1:], strict=True):
        if action == "read" and not view["read_error"]:
            horizon_s = float(view["read_at_s"]) - lag_s
            items = {e.item for e in world.ledger if e.time_s <= horizon_s}
            assert set(items_of(view["shown"])) == items
        if action == "escalate" and view["operator_status"] == 1:
            items = {e.item for e in world.ledger if e.time_s <= view["clock_s"]}
            assert set(items_of(view["shown"])) == items


@settings(max_examples=100)
@given(
    world=st.integers(0, 2**50),
    actions=st.lists(
        st.sampled_from(
            ["read", "read", "wait:15", "wait:300", "retry", "keyed_retry", "escalate"]
        ),
        max_size=12,
    ),
)
def test_authoritative_statuses_keep_their_promise(world: int, actions: list[str]) -> None:
    """Committed: it is in the ledger by then. Not executed: it never will be. Pending: not yet."""
    episode = play(shipped("contextual"), [*actions, "finish"], world=world)
    for action, view in zip(episode.actions, episode.views[1:], strict=True):
        issued_s = float(view["read_at_s"])
        for j in range(int(view["n_attempts"])):
            status = view["attempts"]["authority"][j]
            times = [e.time_s for e in episode.ledger if e.attempt == j and not e.is_copy]
            if status == Authority.COMMITTED:
                assert times
                assert max(times) <= issued_s
            if status == Authority.NOT_EXECUTED:
                assert not times
            if status == Authority.PENDING and action == "read" and not view["read_error"]:
                assert all(t > issued_s for t in times)


@settings(max_examples=200)
@given(EPISODES)
def test_effects_are_the_executions_that_no_key_suppressed(world: Episode) -> None:
    """Settlement conserves: each execution has its effect, or a live record of its own key."""
    contract = world.plan.contracts[world.view["context"]]
    n = int(world.view["n_attempts"])
    truth, seen = world.truth["attempts"], world.view["attempts"]
    retention_s = float(contract["key_retention_s"])
    executions = suppressed = 0
    for j in range(n):
        wanted = set(items_of(truth[j]["wanted"]))
        executions += len(wanted)
        missing = wanted - set(items_of(truth[j]["effect"]))
        if truth[j]["mode"] == Mode.REDELIVERY:
            executions += len(wanted)
            suppressed += len(wanted - set(items_of(truth[j]["copy_effect"])))
        else:
            assert truth[j]["copy_effect"] == 0
        suppressed += len(missing)
        at_s = float(truth[j]["arrival_s"])
        covered = {
            item
            for i in range(n)
            if i != j and seen[j]["key"] and seen[i]["key"] == seen[j]["key"]
            for item in items_of(truth[i]["effect"])
            if truth[i]["arrival_s"] <= at_s < truth[i]["arrival_s"] + retention_s
        }
        assert missing <= covered
        if not contract["accepts_key"] or not seen[j]["key"]:
            assert not missing
        assert not truth[j]["in_transit"]
    assert len(world.ledger) == executions - suppressed
    if contract["idempotent"]:
        assert world.measure("duplicates") == 0
    else:
        items = [effect.item for effect in world.ledger]
        assert world.measure("duplicates") == len(items) - len(set(items))


@given(
    preset=st.sampled_from(["keys-everywhere", "contextual"]),
    world=st.integers(0, 2**40),
    actions=st.lists(
        st.sampled_from(["read", "wait:15", "wait:300", "keyed_retry", "keyed_retry", "escalate"]),
        max_size=14,
    ),
)
def test_the_same_key_never_duplicates_while_its_record_lives(
    preset: str, world: int, actions: list[str]
) -> None:
    plan = shipped(preset)
    contract = plan.contracts[play(plan, [], world=world).view["context"]]
    sent = contract["start"] == 1 or contract["original_key"]
    same = contract["candidate_key"] == 0
    # A day of retention outlives every delay and all of these waits but the longest tails.
    if contract["accepts_key"] and contract["key_retention_s"] >= 86400 and sent and same:
        episode = play(plan, [*actions, "finish"], world=world)
        if not len(episode.ledger) or episode.times[-1] < contract["key_retention_s"]:
            assert episode.measure("duplicates") == 0
            assert episode.false_permissions == 0


@settings(max_examples=60)
@given(
    modes=st.lists(
        st.sampled_from(
            [
                "ok",
                "timeout_pre",
                "timeout_post",
                "timeout_late",
                "timeout_late_tail",
                "http500_pre",
                "http500_post",
                "partial_batch",
                "redelivery",
                "rate_limited",
                "unavailable",
                "outage",
                "schema_drift",
            ]
        ),
        min_size=1,
        max_size=6,
        unique=True,
    ),
    actions=st.lists(st.sampled_from(["wait:15", "wait:300", "keyed_retry"]), max_size=14),
    in_flight=st.sampled_from(["coalesce", "conflict"]),
    scale=st.sampled_from([10.0, 1e7]),
    first_id=st.integers(0, 10**6),
)
def test_a_record_that_lives_for_ever_makes_the_same_key_safe(
    modes: list[str], actions: list[str], in_flight: str, scale: float, first_id: int
) -> None:
    plan = load_plan(
        {
            "name": "bench",
            "contract": {
                "accepts_key": True,
                "original_key": "sent",
                "key_retention_s": None,
                "in_flight_same_key": in_flight,
                "n_items": 3,
                "max_attempts": 8,
            },
            "faults": {
                "original": dict.fromkeys(modes, 1),
                "retry_fault_rate": 0.7,
                "late_tail": {"family": "lomax", "c": 0.8, "scale": scale},
                "copy_delay_s": scale,
            },
        }
    )
    for world in range(first_id, first_id + 6):
        episode = play(plan, [*actions, "finish"], world=world)
        assert episode.measure("duplicates") == 0
        assert episode.false_permissions == 0


HISTORY = ("clock_s", "read_at_s", "shown", "retry_at_s", "read_error", "operator_status")


def visible_history(world: Episode) -> tuple[Any, ...]:
    """What a client could write down itself: service, times, responses, answers to questions."""
    service = world.plan.contracts[world.view["context"]].tobytes()
    told = tuple(tuple(view[name].item() for name in HISTORY) for view in world.views)
    authority = tuple(view["attempts"]["authority"].tobytes() for view in world.views)
    return service, told, authority, tuple(world.responses), tuple(world.answers)


@pytest.mark.parametrize("preset", ["late-tail", "stale-tail", "native", "keys-everywhere"])
def test_no_leak_views_are_functions_of_the_visible_history(preset: str) -> None:
    rng = np.random.default_rng(11)
    names = ["read", "wait:15", "wait:300", "retry", "keyed_retry", "escalate"]
    same = 0
    for _ in range(6):
        actions = [names[k] for k in rng.integers(0, len(names), 4)]
        histories: dict[tuple[Any, ...], bytes] = {}
        for world in range(150):
            episode = play(shipped(preset), actions, world=world)
            told = b"".join(view.tobytes() for view in episode.views)
            same += visible_history(episode) in histories
            assert histories.setdefault(visible_history(episode), told) == told
    assert same > 100


def test_no_leak_an_undocumented_lag_is_not_to_be_told_from_another() -> None:
    """Two worlds that differ in a hidden lag alone look the same, to the byte."""
    plan = load_plan(
        {
            "name": "bench",
            "contract": {"readback": "eventual", "lag_documented": False},
            "lags_s": {"low": 10, "high": 500, "step": 490},
            "faults": {"original": {"timeout_pre": 1}},
        }
    )
    assert plan.contracts["lag_s"].tolist() == [UNKNOWN, UNKNOWN]
    assert plan.contracts[0].tobytes() == plan.contracts[1].tobytes()
    contexts = plan.worlds(0, range(50))["context"].tolist()
    views = {
        play(plan, ["read", "wait:60", "read"], world=contexts.index(c)).view.tobytes()
        for c in (0, 1)
    }
    assert len(views) == 1
