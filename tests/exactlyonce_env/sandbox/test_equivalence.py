"""Worlds that differ in what the agent cannot know look the same, over the whole tool surface.

The same calls are made in the worlds of a group of faults.  Until a call could show the effect that
one of them has and another has not, every reply, every time and every view has the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exactlyonce_env.sandbox.contracts import CONTRACTS, paths_of
from exactlyonce_env.sandbox.services import SEARCH_LAG_S
from exactlyonce_env.sandbox.session import Reply, Session
from exactlyonce_env.sandbox.tasks import TASKS, make_task
from exactlyonce_env.sandbox.tools import DOCS, PATHS, TOOLS

from .sandboxbench import ARGUMENTS, BATCH, one_write

GROUPS = {
    "timeout": ("timeout_pre", "timeout_post", "timeout_late", "timeout_late_tail"),
    "server error": ("http500_pre", "http500_post"),
    "server error of a batch": ("http500_pre", "http500_post", "partial_batch"),
    "acknowledged": ("ok", "redelivery"),
}

Move = tuple[str, Mapping[str, Any]]

WAITS = (0.0, 1.0, 5.0, 25.0, 30.0, 55.0, 60.0, 89.0, 90.0, 300.0, 1e4)


def moves_of(task: str, instance: int) -> st.SearchStrategy[list[Move]]:
    """Calls that an agent might make in a task: its steps, again, keyed; reads; waits; nonsense."""
    made = make_task(task, instance) if task in TASKS else one_write(task)
    calls: list[Move] = []
    for step in made.steps:
        calls.append((step.tool, step.arguments))
        calls.append((step.tool, {**step.arguments, "idempotency_key": "k"}))
        path = PATHS[step.path]
        if path.reader:
            takes = {a: step.arguments[b] for a, b in path.read_arguments.items()}
            calls += [(path.reader, takes)] * 2
        if path.undo:
            names = TOOLS[path.undo].properties
            calls.append((path.undo, dict.fromkeys(names, "post-123456")))
        if step.path == BATCH:
            calls.append((step.tool, {**step.arguments, "rows": step.arguments["rows"][2:]}))
    calls += [
        ("tickets_search", {"query": "a"}),
        ("tickets_list", {"project": "OPS"}),
        ("billing_list_charges", {}),
        ("mail_list_sent", {}),
        ("social_list_posts", {"platform": "x"}),
        ("db_query", {"table": "audit", "where": {"event": "hotfix"}}),
        ("social_publish", {"platform": "mastodon"}),
        ("no_such_tool", {}),
        ("escalate_to_human", {"question": "?"}),
    ]
    waits: list[Move] = [("wait", {"seconds": seconds}) for seconds in WAITS]
    return st.lists(st.sampled_from(calls) | st.sampled_from(waits), max_size=14)


def divergence_s(sessions: list[Session]) -> float:
    """When the first effect comes that some of the worlds have and others have not [s]."""
    ledgers = []
    for session in sessions:
        session.settle()
        met = next((call for call in session.calls if call.focal), None)
        operation = met and session.operation(met.tool, met.arguments)
        ledgers.append({tuple(e) for e in operation.effects(math.inf)} if operation else set())
    shared = set.intersection(*ledgers)
    return min((effect[0] for ledger in ledgers for effect in ledger - shared), default=math.inf)


def may_differ(session: Session, number: int, hidden_s: float) -> bool:
    """Whether the call of that number may show an effect that happens at ``hidden_s``."""
    call = session.calls[number]
    focal = session.focal
    kind = TOOLS[call.tool].kind if call.tool in TOOLS else ""
    if call.tool == "escalate_to_human":
        return call.ended_s >= hidden_s
    if kind == "read":
        lag_s = float(session.contracts[focal.path].get("lag_s", 0.0))
        extra_s = SEARCH_LAG_S if call.tool == "tickets_search" else 0.0
        return call.began_s - lag_s - extra_s >= hidden_s
    # A key that comes back may be answered from what the service remembers of it.
    again = call.intent is not None and call.intent[0] == focal.path and not call.focal
    return again and "idempotency_key" in call.arguments


def compare(make: Any, faults: tuple[str, ...], moves: list[Move]) -> int:
    """Play the moves in all worlds; how many calls looked the same."""
    sessions: list[Session] = [make(fault) for fault in faults]
    replies: list[list[Reply]] = []
    views: list[list[list[bytes]]] = []
    for session in sessions:
        replies.append([])
        views.append([])
        for name, arguments in moves:
            replies[-1].append(session.call(name, dict(arguments)))
            operations = session.records.operations.values()
            views[-1].append([operation.seen.tobytes() for operation in operations])
    hidden_s = divergence_s(sessions)
    first = sessions[0]
    for number in range(len(first.calls)):
        if any(may_differ(session, number, hidden_s) for session in sessions):
            return number
        for k, session in enumerate(sessions[1:], 1):
            one, other = first.calls[number], session.calls[number]
            assert replies[k][number] == replies[0][number], (number, one.tool)
            assert (other.began_s, other.ended_s) == (one.began_s, one.ended_s)
            assert views[k][number] == views[0][number], (number, one.tool)
    return len(first.calls)


@pytest.mark.parametrize("group", GROUPS)
@settings(max_examples=100)
@given(data=st.data())
def test_hidden_outcomes_look_the_same_until_they_show(group: str, data: st.DataObject) -> None:
    if group == "server error of a batch":
        task, write = "migration_log", "batch"
    else:
        task = data.draw(st.sampled_from(sorted(TASKS)))
        write = data.draw(st.sampled_from(make_task(task).focal))
    variant = {
        "contract": data.draw(st.sampled_from(CONTRACTS)),
        "docs": data.draw(st.sampled_from(DOCS)),
        "operator": data.draw(st.sampled_from(["answers", "silent"])),
        "options": {"misleading_errors": data.draw(st.booleans())},
    }
    step = next(step for step in make_task(task).steps if step.name == write)
    moves = [(step.tool, step.arguments), *data.draw(moves_of(task, 0))]

    def make(fault: str) -> Session:
        return Session(task, write=write, fault=fault, **variant)

    compare(make, GROUPS[group], moves)


@pytest.mark.parametrize("path", sorted(ARGUMENTS))
@settings(max_examples=20)
@given(data=st.data())
def test_every_path_keeps_its_secret(path: str, data: st.DataObject) -> None:
    first: Move = (PATHS[path].tool, ARGUMENTS[path])
    moves = [first, *data.draw(moves_of(path, 0))]
    groups = [group for group in GROUPS if group != "server error of a batch" or path == BATCH]
    group = data.draw(st.sampled_from(groups))
    compare(lambda fault: Session(one_write(path), fault=fault), GROUPS[group], moves)


@pytest.mark.parametrize("path", sorted(ARGUMENTS))
def test_the_effect_shows_at_commit_plus_lag_and_not_before(path: str) -> None:
    contract = paths_of("native")[path]
    lag_s = float(contract.get("lag_s", 0.0))
    if contract.get("readback") == "none":
        return
    reader = PATHS[path].reader
    takes = {a: ARGUMENTS[path][b] for a, b in PATHS[path].read_arguments.items()}
    for early_s, shown in ((0.0, True), (0.5, False)):
        worlds = []
        for fault in ("timeout_pre", "timeout_late"):
            session = Session(one_write(path), fault=fault)
            session.call(PATHS[path].tool, ARGUMENTS[path])
            session.call("wait", {"seconds": 90.0 + lag_s - 30.0 - early_s})
            worlds.append(session.call(reader, takes).text)
        assert (worlds[0] != worlds[1]) == shown


def test_the_operator_sees_the_effect_at_once() -> None:
    told = []
    for seconds, found in ((0.0, 1), (60.0, 1)):
        session = Session(one_write("mail/send"), fault="timeout_late")
        session.call("mail_send", ARGUMENTS["mail/send"])
        session.call("wait", {"seconds": seconds})
        told.append(session.call("escalate_to_human", {"question": "?"}).text)
        assert f'"found": {found}' in told[-1]
    early = Session(one_write("mail/send"), fault="timeout_late_tail", tail="fixed:5000")
    early.call("mail_send", ARGUMENTS["mail/send"])
    assert '"found": 0' in early.call("escalate_to_human", {"question": "?"}).text
    early.call("wait", {"seconds": 5000.0 - 30.0 - 900.0 - 900.0})
    assert '"found": 1' in early.call("escalate_to_human", {"question": "?"}).text


def test_the_search_index_follows_later_than_the_list() -> None:
    session = Session(one_write("tickets/create"))
    session.call("tickets_create", ARGUMENTS["tickets/create"])
    assert "Slow pages" in session.call("tickets_list", {"project": "WEB"}).text
    assert "Slow pages" not in session.call("tickets_search", {"query": "slow"}).text
    session.call("wait", {"seconds": 20})
    assert "Slow pages" in session.call("tickets_search", {"query": "slow"}).text
