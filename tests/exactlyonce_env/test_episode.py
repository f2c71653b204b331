"""Replaying one world: steps, ledger, outcome, and the one-decision table."""

from __future__ import annotations

import doctest
import json
import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exactlyonce_env import episode, kernel
from exactlyonce_env.actions import MAX_WAIT_S
from exactlyonce_env.episode import ACTION_WORDS, Replay, parse_action, replay, split_actions
from exactlyonce_env.errors import UserError
from exactlyonce_env.ledger import Effect, fortunes, ledger, measures, settled, world_dict
from exactlyonce_env.plan import Plan
from exactlyonce_env.presets import load_plan
from exactlyonce_env.records import MEASURES, N_TERMS, OUTCOME, TRUTH, VIEW
from exactlyonce_env.settlement import write_outcome
from exactlyonce_env.vocabulary import TERM_NAMES, Action, Mode


def one_mode(mode: str, start: str = "fault", **contract: Any) -> Plan:
    """A preset whose original always meets ``mode`` and whose further attempts are fine."""
    faults = {"original": {mode: 1.0}, "late_fixed_s": 90.0, "queued_share": 0.0}
    return load_plan({"start": start, "contract": contract, "faults": faults})


# --- action words ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "action", "seconds"),
    [
        ("read", Action.READ, 0.0),
        ("wait:60", Action.WAIT, 60.0),
        ("wait:0", Action.WAIT, 0.0),
        ("wait:0.25", Action.WAIT, 0.25),
        (" wait:1e3 ", Action.WAIT, 1000.0),
        (f"wait:{MAX_WAIT_S}", Action.WAIT, MAX_WAIT_S),
        ("retry", Action.RETRY, 0.0),
        ("keyed_retry", Action.KEYED_RETRY, 0.0),
        ("escalate", Action.ESCALATE, 0.0),
        ("finish", Action.FINISH, 0.0),
        ("finish_uncertain", Action.FINISH_UNCERTAIN, 0.0),
    ],
)
def test_action_words(word: str, action: Action, seconds: float) -> None:
    assert parse_action(word) == (action, seconds)


@pytest.mark.parametrize(
    "word", ["", "Read", "reed", "wait", "wait:", "wait:x", "wait:-1", "wait:nan", "wait:inf"]
)
def test_unknown_words_and_seconds_are_refused(word: str) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*$") as refused:
        parse_action(word)
    assert repr(word) in str(refused.value)


def test_too_long_a_wait_is_refused() -> None:
    with pytest.raises(UserError, match="from 0 to 604800"):
        parse_action(f"wait:{MAX_WAIT_S + 1}")
    with pytest.raises(UserError, match="read:3"):
        parse_action("read:3")
    with pytest.raises(UserError, match="not a word"):
        parse_action(3)  # type: ignore[arg-type]


def test_a_misspelt_action_is_guessed_and_all_words_are_listed() -> None:
    with pytest.raises(UserError) as refused:
        parse_action("keyed_rety")
    assert "did you mean keyed_retry?" in str(refused.value)
    assert all(word in str(refused.value) for word in ACTION_WORDS)


def test_actions_come_as_text_or_as_a_sequence() -> None:
    assert split_actions("read, wait:60") == ["read", "wait:60"]
    assert split_actions(["read", "wait:60"]) == ["read", "wait:60"]
    assert split_actions("") == []
    with pytest.raises(UserError, match="unknown action ''"):
        replay(load_plan("late-fixed"), 0, 0, "read,,read")


# --- steps ----------------------------------------------------------------------------------------


def test_the_first_step_stands_before_any_action() -> None:
    told = replay(load_plan("late-fixed"), 0, 0, "")
    (step,) = told.steps
    assert (step.action, step.clock_s, step.permitted, step.reward) == (None, 30.0, None, 0.0)
    assert set(step.reward_terms) == set(TERM_NAMES)
    assert (told.ended, told.ending) == (False, None)


def test_each_step_tells_its_action_clock_and_terms() -> None:
    told = replay(one_mode("timeout_late"), 0, 0, "read,wait:70.5,read,finish")
    assert [step.action for step in told.steps] == [None, "read", "wait:70.5", "read", "finish"]
    assert [step.clock_s for step in told.steps] == [30.0, 31.0, 101.5, 102.5, 102.5]
    shown = [step.view.last_report for step in told.steps[1:]]
    assert [report and report.items_shown for report in shown] == [(), (), (0,), (0,)]
    assert told.steps[1].reward_terms["read"] == -0.002
    assert told.steps[1].reward_terms["time"] == pytest.approx(-0.12 / 3600)
    assert told.steps[2].reward_terms["time"] == pytest.approx(-0.12 * 70.5 / 3600)
    assert told.steps[4].reward_terms["success"] == 1.0
    assert told.reward == pytest.approx(1.0 - 2 * 0.002 - 0.12 * 72.5 / 3600)
    assert told.ending == "claimed"


def test_only_a_re_issue_is_permitted_or_not() -> None:
    told = replay(one_mode("timeout_post"), 0, 0, "read,retry,keyed_retry,finish")
    assert [step.permitted for step in told.steps] == [None, None, False, None, None]
    first = replay(one_mode("http500_pre", "send"), 0, 0, "retry,read,retry,finish")
    assert [step.permitted for step in first.steps] == [None, None, None, True, None]


def test_an_action_after_the_end_is_refused() -> None:
    plan = load_plan("late-fixed")
    with pytest.raises(UserError, match=r"action 2 \(read\) comes after the end .* claimed"):
        replay(plan, 0, 0, "finish,read")
    with pytest.raises(UserError, match="used up the budget of calls"):
        replay(load_plan("first-decision"), 0, 0, "read,read")


def test_an_unknown_seed_or_world_is_refused() -> None:
    plan = load_plan("late-fixed")
    with pytest.raises(UserError, match=r"world id must lie in 0\.\."):
        replay(plan, 0, -1, "")
    with pytest.raises(UserError, match=r"seed must lie in 0\.\."):
        replay(plan, 2**64, 0, "")


def test_all_actions_are_read_before_the_first_is_taken() -> None:
    with pytest.raises(UserError, match="unknown action 'jump'"):
        replay(load_plan("late-fixed"), 0, 0, "finish,jump")


# --- ledger and outcome ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "effects"),
    [
        ("timeout_pre", []),
        ("timeout_post", [Effect(1.0, 0, 0, False)]),
        ("timeout_late", [Effect(90.0, 0, 0, False)]),
        ("http500_pre", []),
        ("http500_post", [Effect(1.0, 0, 0, False)]),
        ("ok", [Effect(1.0, 0, 0, False)]),
        ("redelivery", [Effect(1.0, 0, 0, False), Effect(3.0, 0, 0, True)]),
        ("rate_limited", []),
        ("unavailable", []),
        ("outage", []),
        ("schema_drift", []),
    ],
)
def test_the_ledger_of_each_mode(mode: str, effects: list[Effect]) -> None:
    told = replay(one_mode(mode), 0, 0, "finish")
    assert list(told.ledger) == effects
    assert told.outcome["duplicates"] == max(len(effects) - 1, 0)
    assert told.outcome["omissions"] == (not effects)
    assert told.outcome["exactly_once"] == (len(effects) == 1)
    assert told.outcome["overclaim"] == (len(effects) != 1)


def test_settlement_comes_after_the_last_action() -> None:
    told = replay(one_mode("timeout_late"), 0, 0, "retry,finish_uncertain")
    assert told.steps[-1].clock_s == 31.0
    assert list(told.ledger) == [Effect(31.0, 1, 0, False), Effect(90.0, 0, 0, False)]
    assert (told.outcome["duplicates"], told.outcome["unresolved"]) == (1, True)


def test_a_batch_is_entered_item_by_item() -> None:
    plan = one_mode("partial_batch", n_items=4)
    told = replay(plan, 0, 3, "read,retry,finish")
    committed = plan.worlds(0, [3])[0].fates[0].n_commit
    assert 1 <= committed <= 3
    assert [effect.item for effect in told.ledger] == [0, 1, 2, 3]
    assert [effect.attempt for effect in told.ledger] == [0] * committed + [1] * (4 - committed)
    assert told.outcome["exactly_once"]


def test_executing_an_idempotent_write_again_is_no_effect() -> None:
    told = replay(one_mode("timeout_late", idempotent=True), 0, 0, "retry,finish")
    assert list(told.ledger) == [Effect(31.0, 1, 0, False)]
    assert told.outcome["exactly_once"]
    twice = replay(one_mode("redelivery", idempotent=True), 0, 0, "retry,finish")
    assert list(twice.ledger) == [Effect(1.0, 0, 0, False)]


def test_a_suppressed_attempt_has_no_entry() -> None:
    plan = one_mode("timeout_post", accepts_key=True, original_key="sent")
    told = replay(plan, 0, 0, "keyed_retry,finish")
    assert list(told.ledger) == [Effect(1.0, 0, 0, False)]
    assert [attempt.items_suppressed for attempt in told.attempts] == [(), (0,)]
    assert [attempt.items_executed for attempt in told.attempts] == [(0,), ()]
    assert told.steps[1].permitted


def test_what_became_of_a_request_in_transit() -> None:
    plan = one_mode("timeout_late", accepts_key=True, original_key="sent")
    late = replay(plan, 0, 0, "keyed_retry,finish").attempts[0]
    assert (late.mode, late.arrival_s, late.execution_s) == ("timeout_late", 90.0, None)
    assert (late.items_executed, late.items_suppressed) == ((), (0,))
    lost = replay(one_mode("timeout_pre"), 0, 0, "finish").attempts[0]
    assert (lost.arrival_s, lost.execution_s) == (None, None)


def test_actions_that_stop_early_leave_the_client_walking_away() -> None:
    told = replay(one_mode("timeout_late"), 0, 0, "read")
    assert not told.ended
    assert list(told.ledger) == [Effect(90.0, 0, 0, False)]
    assert told.outcome["exactly_once"]
    assert told.outcome["unresolved"]
    assert not told.outcome["resolved_exact"]
    assert told.reward == sum(told.steps[1].reward_terms[name] for name in ("time", "read"))


def test_a_refused_request_has_no_copy_either() -> None:
    # The key of the first request outlives the refusal, but not the time of the copy.
    contract = {
        "readback": "authoritative",
        "accepts_key": True,
        "original_key": "sent",
        "key_retention_s": 33.0,
        "in_flight_same_key": "conflict",
    }
    faults = {
        "original": {"timeout_late": 1.0},
        "retry": {"redelivery": 1.0},
        "retry_fault_rate": 1.0,
        "late_fixed_s": 300.0,
        "queued_share": 1.0,
        "copy_delay_s": 5.0,
    }
    told = replay(load_plan({"contract": contract, "faults": faults}), 0, 0, "keyed_retry,finish")
    assert told.steps[1].view.attempts[1].response == "conflict"
    assert list(told.ledger) == [Effect(300.0, 0, 0, False)]


@settings(max_examples=25)
@given(
    st.sampled_from(["late-tail", "native", "keys-everywhere", "stale-tail"]),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**63 - 1),
    st.lists(
        st.sampled_from(["read", "retry", "keyed_retry", "escalate"])
        | st.floats(0.0, MAX_WAIT_S).map(lambda seconds: f"wait:{seconds}"),
        max_size=8,
    ),
    st.sampled_from(["finish", "finish_uncertain"]),
)
def test_a_replay_is_what_the_kernel_does(
    preset: str, seed: int, world: int, actions: list[str], end: str
) -> None:
    plan = load_plan(preset)
    told = replay(plan, seed, world, [*actions, end])
    seen, truth, terms = np.zeros(1, VIEW), np.zeros(1, TRUTH), np.zeros(N_TERMS)
    key = np.uint64(seed)
    kernel.begin(plan.contexts, plan.context_cdf, plan.table, key, world, seen[0], truth[0])
    total = 0.0
    for word, step in zip([*actions, end], told.steps[1:], strict=True):
        kind, seconds = parse_action(word)
        reward = kernel.act(plan.contexts, plan.table, seen[0], truth[0], int(kind), seconds, terms)
        assert step.reward == reward
        assert step.clock_s == seen[0].clock_s
        assert list(step.reward_terms.values()) == terms.tolist()
        total += reward
    assert told.reward == total
    outcome = np.zeros(1, OUTCOME)
    contract = plan.contexts[truth[0].context].contract
    write_outcome(contract, seen[0], truth[0], outcome[0])
    assert {name: float(outcome[0][name]) for name in MEASURES} == told.outcome
    denied = sum(step.permitted is False for step in told.steps)
    assert told.outcome["false_retry_permissions"] == denied
    counted = [sum(e.item == j for e in told.ledger) for j in range(int(contract.n_items))]
    assert told.outcome["duplicates"] == sum(max(count - 1, 0) for count in counted)
    assert told.outcome["omissions"] == counted.count(0)
    assert list(told.ledger) == sorted(told.ledger)


def test_the_json_of_a_replay() -> None:
    told = replay(load_plan("native"), 0, 4, "retry,read,retry,finish")
    again = json.loads(json.dumps(told.to_dict(), allow_nan=False))
    assert set(again) == {
        "preset",
        "seed",
        "world",
        "context",
        "ended",
        "ending",
        "steps",
        "attempts",
        "ledger",
        "outcome",
        "reward",
    }
    assert again["steps"][0]["action"] is None
    for step in again["steps"]:
        assert set(step) == {"action", "clock_s", "view", "reward_terms", "permitted"}
        assert set(step["view"]) == {"text", "fields"}
        assert set(step["reward_terms"]) == set(TERM_NAMES)
    assert list(again["outcome"]) == list(MEASURES)
    assert again["ledger"] == [asdict(effect) for effect in told.ledger]
    terms = [term for step in again["steps"] for term in step["reward_terms"].values()]
    assert all(math.copysign(1.0, term) == 1.0 for term in terms if term == 0.0)


def test_the_functions_leave_the_truth_as_it_is() -> None:
    plan = one_mode("timeout_late")
    seen, truth = np.zeros(1, VIEW), np.zeros(1, TRUTH)
    kernel.begin(plan.contexts, plan.context_cdf, plan.table, np.uint64(0), 0, seen[0], truth[0])
    before = truth.tobytes()
    final = settled(plan.contexts[0], seen[0], truth[0])
    assert truth.tobytes() == before
    assert truth[0].attempts[0].in_transit
    assert not final.attempts[0].in_transit
    context = plan.contexts[0]
    assert len(ledger(context, seen[0], final)) == len(fortunes(context, seen[0], final)) == 1
    assert measures(context.contract, seen[0], final)["exactly_once"] is True


# --- drawn worlds as data -------------------------------------------------------------------------


def test_a_world_as_data() -> None:
    plan = load_plan("stale-tail")
    record = plan.worlds(3, [5])[0]
    told = json.loads(json.dumps(world_dict(plan, record), allow_nan=False))
    assert (told["id"], told["seed"], told["start"]) == (5, 3, "fault")
    assert told["context"] == plan.situations[record.context].name
    assert told["contract"] == plan.situations[record.context].contract.model_dump(mode="json")
    assert 30 <= told["contract"]["lag_s"] <= 120
    assert told["costs"]["success"] == 1.0
    assert len(told["attempts"]) == told["contract"]["max_attempts"] == 6
    assert (told["retry_after_s"], told["outage_s"]) == (5.0, 120.0)
    assert told["operator_answers"] is True


def test_a_hidden_lag_is_told_with_its_mark() -> None:
    contract = {"readback": "eventual", "lag_s": 77.0, "lag_documented": False}
    plan = load_plan({"contract": contract})
    told = world_dict(plan, plan.worlds(0, [0])[0])
    assert (told["contract"]["lag_s"], told["contract"]["lag_documented"]) == (77.0, False)


@pytest.mark.parametrize(
    ("mode", "fate"),
    [
        ("ok", {"commit_delay_s": 1.0, "copy_delay_s": None, "items": 1}),
        ("timeout_pre", {"commit_delay_s": None, "copy_delay_s": None, "items": 0}),
        ("timeout_late", {"commit_delay_s": 90.0, "copy_delay_s": None, "items": 1}),
        ("redelivery", {"commit_delay_s": 1.0, "copy_delay_s": 2.0, "items": 1}),
        ("rate_limited", {"commit_delay_s": None, "copy_delay_s": None, "items": 0}),
    ],
)
def test_a_fate_as_data(mode: str, fate: dict[str, Any]) -> None:
    plan = one_mode(mode)
    told = world_dict(plan, plan.worlds(0, [0])[0])["attempts"]
    assert told[0] == {"mode": mode, "queued": False, **fate}
    assert [attempt["mode"] for attempt in told[1:]] == ["ok"] * 5


@pytest.mark.parametrize("preset", ["late-tail", "native", "keys-everywhere", "contextual"])
def test_a_replay_meets_the_fates_that_the_world_tells(preset: str) -> None:
    plan = load_plan(preset)
    for world in range(20):
        told = replay(plan, 1, world, "retry,wait:86400,retry,finish")
        fates = world_dict(plan, plan.worlds(1, [world])[0])["attempts"]
        for fortune in told.attempts:
            assert fortune.mode in (fates[fortune.attempt]["mode"], "outage")
            if fortune.execution_s is not None:
                sent_s = told.steps[-1].view.attempts[fortune.attempt].sent_s
                delay_s = fates[fortune.attempt]["commit_delay_s"]
                assert fortune.execution_s == sent_s + delay_s


# --- the one-decision probe -----------------------------------------------------------------------

KEY_CONDITIONS = ("key omitted", "key valid", "key changed")
TABLE = {
    "unprotected dispatch": (3, 2, 0, 0, 1, 1),
    "same valid key": (0, 0, 0, 0, 3, 3),
    "wait / unresolved": (0, 0, 1, 3, 2, 0),
    "stop": (0, 0, 1, 0, 2, 2),
}
COLUMNS = (
    "false_retry_permissions",
    "duplicates",
    "omissions",
    "unresolved",
    "exactly_once",
    "resolved_exact",
)
CELLS = [
    *(("unprotected dispatch", "retry", condition) for condition in KEY_CONDITIONS),
    ("unprotected dispatch", "keyed_retry", "key omitted"),
    ("unprotected dispatch", "keyed_retry", "key changed"),
    ("same valid key", "keyed_retry", "key valid"),
    *(
        ("wait / unresolved", action, condition)
        for action in ("wait:60", "finish_uncertain", "read")
        for condition in KEY_CONDITIONS
    ),
    *(("stop", "finish", condition) for condition in KEY_CONDITIONS),
]


@pytest.fixture(scope="module")
def probe_worlds() -> dict[tuple[str, Mode], int]:
    """One world of first-decision for each key condition and hidden outcome."""
    plan = load_plan("first-decision")
    found: dict[tuple[str, Mode], int] = {}
    for record in plan.worlds(0, range(200)):
        context = str(plan.situations[record.context].name)
        found.setdefault((context, Mode(int(record.fates[0].mode))), int(record.world))
    return found


@pytest.mark.parametrize(("row", "action", "condition"), CELLS)
def test_the_one_decision_table(
    probe_worlds: dict[tuple[str, Mode], int], row: str, action: str, condition: str
) -> None:
    plan = load_plan("first-decision")
    hidden = (Mode.TIMEOUT_PRE, Mode.TIMEOUT_LATE, Mode.TIMEOUT_POST)
    told: list[Replay] = [replay(plan, 0, probe_worlds[condition, mode], action) for mode in hidden]
    assert all(one.ended for one in told)
    assert tuple(sum(int(one.outcome[c]) for one in told) for c in COLUMNS) == TABLE[row]
    # One transcript: the three worlds look the same before the decision.
    assert len({one.steps[0].view.tobytes() for one in told}) == 1


def test_the_examples_in_the_docstrings() -> None:
    found = doctest.testmod(episode)
    assert found.attempted > 0
    assert found.failed == 0
