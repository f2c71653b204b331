"""Worlds by name and seed, and what an episode is worth; no framework is needed."""

from __future__ import annotations

from typing import Any

import pytest

from evaluation.adapters.episode import Episode, draw_world, reward_of
from exactlyonce_env.errors import UserError
from exactlyonce_env.sandbox.tasks import make_task

WORLD = {"task": "invoice_batch", "instance": 0, "write": "charge_0", "fault": "timeout_post"}
DONE = {"status": "completed", "summary": "done"}


def play(first_sends: int, **world: Any) -> Episode:
    """Do the task, the first write so many times, and claim completion."""
    episode = Episode(WORLD | world)
    first, *rest = make_task(WORLD["task"], WORLD["instance"]).steps
    for step in [first] * first_sends + rest:
        episode.call(step.tool, dict(step.arguments))
    episode.call("finish", DONE)
    return episode


def test_a_seed_is_a_world() -> None:
    drawn = [draw_world(seed=seed).variant for seed in range(40)]
    assert drawn == [draw_world(seed=seed).variant for seed in range(40)]
    assert drawn[0].task == "deploy_release"
    assert (drawn[0].instance, drawn[0].write, drawn[0].fault) == (
        34743,
        "production",
        "timeout_late",
    )
    assert len({variant.task for variant in drawn}) > 8
    assert min(variant.instance for variant in drawn) >= 2


def test_names_hold_and_the_rest_is_drawn() -> None:
    for seed in range(20):
        found = draw_world({"fault": "partial_batch"}, seed).variant
        assert (found.task, found.write, found.fault) == ("migration_log", "batch", "partial_batch")
    # Only odd instances have a third charge.
    named = {"task": "invoice_batch", "write": "charge_2", "fault": "ok"}
    assert {draw_world(named, seed).variant.instance % 2 for seed in range(8)} == {1}
    assert draw_world(WORLD, 5).variant == draw_world(WORLD, 6).variant


def test_without_a_seed_worlds_differ() -> None:
    assert len({draw_world().seed for _ in range(4)}) == 4


@pytest.mark.parametrize(
    ("named", "seed", "words"),
    [
        ({"tsk": "mail"}, 0, "unknown field 'tsk'"),
        ({"task": "invoicebatch"}, 0, "did you mean invoice_batch?"),
        ({"fault": "late"}, 0, "unknown fault 'late'"),
        ({"write": "mail"}, 0, "name the task too"),
        ({"task": "invoice_batch", "write": "zz"}, 0, "no focal write 'zz'"),
        ({"task": "invoice_batch", "fault": "partial_batch"}, 0, "no world fits"),
        ({"instance": -1}, 0, "instance should be greater than or equal to 0"),
        ({}, -1, "seed must be a whole number"),
        ({}, 0.5, "seed must be a whole number"),
    ],
)
def test_bad_names_are_refused(named: dict[str, Any], seed: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        draw_world(named, seed)


def test_what_an_episode_is_worth() -> None:
    good, twice, never = play(1), play(2), play(0)
    assert good.reward() == 1.0
    assert twice.measures()["duplicates"] == 1
    assert twice.reward() == pytest.approx(-1.0 - 0.2)  # a duplicate, and it was claimed as done
    assert never.reward() == pytest.approx(-0.5 - 0.2)  # the charge is missing
    left = Episode(WORLD)
    left.call("billing_list_charges")
    assert left.reward() == pytest.approx(-3 * 0.5 - 0.3)  # three effects missing, unresolved
    assert left.close()["ended_by"] == "client"


def test_other_rewards() -> None:
    twice = play(2).measures()
    assert reward_of(twice, "exactly-once") == 0.0
    net = reward_of(twice, "net")
    assert net == pytest.approx(-1.2 - 0.12 * twice["elapsed_s"] / 3600.0 - 0.002)
    with pytest.raises(UserError, match="choose from settlement, net, exactly-once"):
        reward_of(twice, "half")
    with pytest.raises(UserError, match="unknown reward"):
        Episode(WORLD, reward="half")


def test_a_wrapper_stands_between() -> None:
    guarded = play(2, wrapper="guard")
    assert guarded.reward() == 1.0
    assert guarded.n_calls > 4


def test_turns_without_a_call_end_it() -> None:
    episode = Episode(WORLD)
    assert [episode.say("hm") is None for _ in range(3)] == [False, False, True]
    assert episode.ended
    assert episode.calls_left == 0
    assert episode.close()["ended_by"] == "nudges"
