"""The twelve tasks: what is focal, what the happy path leads to, and that nothing is random."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from exactlyonce_env.errors import UserError
from exactlyonce_env.sandbox.contracts import CONTRACTS, paths_of
from exactlyonce_env.sandbox.session import Session
from exactlyonce_env.sandbox.tasks import TASKS, make_task

from .sandboxbench import drive, exact, focal_writes

MANY = (0, 1, 2, 3, 17, 10**9)


def classes(instance: int) -> Counter[str]:
    native = paths_of("native")
    found: Counter[str] = Counter()
    for name, _, write in focal_writes([instance]):
        contract = native[make_task(name, instance).write(write).path]
        if contract.get("idempotent"):
            found["idempotent"] += 1
        else:
            found["keyable" if contract.get("accepts_key") else "unkeyed"] += 1
        found["unreadable"] += contract.get("readback") == "none"
    return found


def test_the_classes_of_the_34_focal_writes() -> None:
    assert classes(0) == {"unkeyed": 25, "keyable": 5, "idempotent": 4, "unreadable": 1}


@pytest.mark.parametrize(("instance", "count"), [(0, 34), (1, 35)])
def test_number_of_focal_writes(instance: int, count: int) -> None:
    assert len(TASKS) == 12
    assert len(list(focal_writes([instance]))) == count


def test_eleven_non_idempotent_write_paths_two_of_them_with_a_key() -> None:
    repeatable = [c for c in paths_of("native").values() if not c.get("idempotent")]
    # batch insert is the table's other way of the one insert path
    assert len(repeatable) == 11
    assert sum(bool(c.get("accepts_key")) for c in repeatable) == 2


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("first_send", ["keyed", "plain"])
def test_the_happy_path_is_exactly_once(contract: str, first_send: str) -> None:
    runs = drive("never-retry", "ok", instances=MANY, contract=contract, first_send=first_send)
    assert exact(runs) == len(runs)
    for run in runs:
        grade = run.grade
        assert grade.resolved_exact
        assert grade.triggered
        assert not any(reply.error for reply in run.replies)
        assert (grade.collateral, grade.unrequested, grade.reissues, grade.overclaim) == (
            *(0, 0, 0),
            False,
        )


def test_the_same_episode_has_the_same_bytes() -> None:
    def record(fault: str) -> list[list[object]]:
        return [
            [(call.tool, call.ended_s, call.reply) for call in run.session.calls]
            for run in drive("guard", fault, instances=(3,))
        ]

    for fault in ("timeout_late_tail", "redelivery"):
        assert record(fault) == record(fault)


def test_instances_differ_and_are_named_by_their_number_alone() -> None:
    for name in TASKS:
        texts = {make_task(name, k).text() for k in range(8)}
        assert len(texts) > 4
        assert make_task(name, 5) == make_task(name, 5)


def test_the_instruction_states_every_target() -> None:
    """What a write must say to count stands in the instruction."""
    for name, instance in itertools.product(TASKS, MANY):
        task = make_task(name, instance)
        for required in task.required:
            said = [str(value) for value in required.intent]
            if required.path == "billing/charge":
                said[1] = f"{required.intent[1]:.2f}"
            assert all(word in task.instruction for word in said), (name, required)


def test_the_cue_is_one_sentence() -> None:
    task = make_task("cross_post")
    assert task.text().startswith(task.text("no-cue"))
    assert "exactly once" in task.text()
    assert "exactly once" not in task.text("no-cue")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"task": "cross_pst"}, "did you mean cross_post"),
        ({"task": "cross_post", "write": "post_y"}, "0 post_x, 1 post_mastodon"),
        ({"task": "cross_post", "write": 2}, "no focal write '2'"),
        ({"task": "cross_post", "instance": -1}, "0..1000000000"),
        ({"task": "cross_post", "instance": True}, "whole number"),
        ({"task": "cross_post", "fault": "timeout"}, "unknown fault 'timeout'"),
        ({"task": "cross_post", "fault": "partial_batch"}, "is none"),
        ({"task": "cross_post", "contract": "keys"}, "unknown contract 'keys'"),
        ({"task": "cross_post", "docs": "none"}, "unknown docs"),
        ({"task": "cross_post", "operator": "gone"}, "unknown operator"),
        ({"task": "cross_post", "options": {"pages": 3}}, "unknown field 'pages'"),
        ({"task": "cross_post", "options": {"page_size": -1}}, "page_size"),
    ],
)
def test_wrong_names_are_told(fields: dict[str, object], words: str) -> None:
    with pytest.raises(UserError) as caught:
        Session(**fields)  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_focal_writes_by_name_or_number() -> None:
    by_name = Session("cross_post", write="post_mastodon")
    by_number = Session("cross_post", write=1)
    assert by_name.focal == by_number.focal
    assert Session("cross_post").focal.name == "post_x"
