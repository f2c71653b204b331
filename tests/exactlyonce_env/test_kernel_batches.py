"""Batches and their keys, item by item; and the proposition about repeating one key.

Latency 1 s, client time-out 30 s; a partial original has committed its first items at 1 s.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from exactlyonce_env.presets import load_plan

from .worldbench import Episode, play, run

KEYED = {"accepts_key": True, "original_key": "sent", "key_retention_s": None}


def keyed(modes: str, actions: str, **options: Any) -> Episode:
    return run(modes, actions, **{**KEYED, **options})


def kept(episode: Episode) -> int:
    """How many items the partial original committed."""
    return len([e for e in episode.ledger if e.attempt == 0])


@pytest.mark.parametrize("read", ["", "read "])
def test_a_keyed_batch_resumes_where_it_stopped(read: str) -> None:
    """The key repeats its payload, read or not; the service executes only the rest."""
    world = keyed("partial_batch ok", f"{read}keyed_retry finish", n_items=4)
    k = kept(world)
    assert 1 <= k <= 3
    assert world.payloads == [0b1111, 0b1111]
    assert [e.item for e in world.ledger if e.attempt == 1] == list(range(k, 4))
    assert world.measure("exactly_once") == 1
    assert world.false_permissions == 0


def test_records_cover_item_by_item() -> None:
    """Items committed at 1 s are covered to 100 s, the resumed ones from their own attempt on."""
    world = keyed(
        "partial_batch ok ok",
        "wait:50 keyed_retry wait:60 keyed_retry finish",
        n_items=4,
        key_retention_s=100,
    )
    #      1 s    51 s: the rest    112 s: the first ones again
    k = kept(world)
    assert [e.item for e in world.ledger if e.attempt == 1] == list(range(k, 4))
    assert [(e.time_s, e.item) for e in world.ledger if e.attempt == 2] == [
        (113.0, item) for item in range(k)
    ]
    assert world.false_permissions == 1


def test_a_key_binds_its_payload_at_the_first_use() -> None:
    """First use after a read that showed the first items: later uses repeat just the rest."""
    world = run(
        "partial_batch timeout_post ok",
        "read keyed_retry wait:5 read keyed_retry finish",
        n_items=4,
        accepts_key=True,
    )
    first, *rest = world.payloads
    assert first == 0b1111
    assert rest[0] == rest[1] == 0b1111 & ~((1 << kept(world)) - 1)
    assert world.views[4]["shown"] == 0b1111
    assert world.measure("exactly_once") == 1


def test_a_plain_retry_sends_what_the_last_read_did_not_show() -> None:
    nothing_read = run("partial_batch ok", "retry finish", n_items=4)
    assert nothing_read.payloads == [0b1111, 0b1111]
    some_shown = run("partial_batch ok", "read retry finish", n_items=4)
    assert some_shown.payloads[1] == 0b1111 & ~some_shown.views[1]["shown"]
    nothing_shown = run("http500_pre ok", "read retry finish", n_items=4)
    assert nothing_shown.payloads == [0b1111, 0b1111]
    all_shown = run("http500_post ok", "read retry finish", n_items=4)
    assert all_shown.payloads == [0b1111, 0b1111]
    assert all_shown.measure("duplicates") == 4


def test_the_last_read_counts_even_if_it_is_a_stale_one() -> None:
    """Lag 60 s: the operator saw the first items at 21 s, the read at 21 s shows none of them."""
    world = run(
        "partial_batch ok",
        "escalate read retry finish",
        n_items=4,
        readback="eventual",
        lag_s=60,
        operator_delay_s=20,
    )
    assert world.views[1]["shown"] != 0
    assert world.views[2]["shown"] == 0
    assert world.payloads == [0b1111, 0b1111]
    assert world.measure("duplicates") == kept(world)


def test_partial_commits_the_first_of_the_items_sent() -> None:
    plan = load_plan(
        {
            "name": "bench",
            "contract": {"n_items": 5},
            "faults": {
                "original": {"partial_batch": 1},
                "retry": {"partial_batch": 1},
                "retry_fault_rate": 1,
            },
        }
    )
    fates = plan.worlds(0, range(200))["fates"]["n_commit"]
    k = int(np.argmax((fates[:, 0] == 2) & (fates[:, 1] == 1)))
    world = play(plan, ["read", "retry", "finish"], world=k)
    assert [(e.time_s, e.item) for e in world.ledger] == [(1.0, 0), (1.0, 1), (3.0, 2)]
    assert world.measure("omissions") == 2


# The proposition --------------------------------------------------------------------------------


@pytest.mark.parametrize("in_flight", ["coalesce", "conflict"])
@pytest.mark.parametrize("n_items", [1, 4])
def test_repeating_the_same_key_until_acknowledged_is_exactly_once(
    in_flight: str, n_items: int
) -> None:
    """In every outcome state, whatever happens to the re-issues; Retry-After is obeyed."""
    plan = load_plan(
        {
            "name": "bench",
            "contract": {
                **KEYED,
                "in_flight_same_key": in_flight,
                "n_items": n_items,
                "max_attempts": 8,
            },
            "faults": {"retry_fault_rate": 0.6},
        }
    )
    acknowledged = 0
    modes = set()
    for k in range(400):
        actions: list[str] = []
        world = play(plan, actions, world=k)
        while world.responses[-1] != "success" and len(world.responses) < 8:
            left_s = max(0.0, float(world.view["retry_at_s"]) - world.clocks[-1])
            actions += [f"wait:{left_s}", "keyed_retry"]
            world = play(plan, actions, world=k)
        world = play(plan, [*actions, "finish"], world=k)
        assert world.measure("duplicates") == 0
        assert world.false_permissions == 0
        if world.responses[-1] == "success":
            acknowledged += 1
            modes.add(int(world.truth["attempts"][0]["mode"]))
            assert world.measure("resolved_exact") == 1
    assert acknowledged > 350
    assert len(modes) == (11 if n_items == 1 else 12)
