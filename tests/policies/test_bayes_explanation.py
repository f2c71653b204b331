"""What the optimum believes, values and holds out for: closed forms first."""

from __future__ import annotations

import math

import numpy as np
import pytest

from exactlyonce_env import kernel
from exactlyonce_env.errors import UserError
from exactlyonce_env.presets import load_plan
from exactlyonce_env.records import CONTEXT, N_TERMS, TRUTH, VIEW
from exactlyonce_env.view_text import number_text, seconds_text
from exactlyonce_env.vocabulary import Action, Mode
from policies.base import ActionBatch, Policy
from policies.bayes import bayes_value
from policies.bayes.explanation import Posterior, belief, explain, insight, posterior_of, word_of
from policies.bayes.quiet import hold_out, quiet_view
from policies.bayes.records import HYPOTHESIS
from policies.bayes.solution import solution_of
from policies.spec import parse_policy

LATENCY_S = 1.0


def fields(**parts):
    return {"name": "custom", **parts}


def played(plan, steps, mode=Mode.TIMEOUT_PRE, n_items=1):
    """The view (1,) after ``steps``, words of actions, where every sending meets ``mode``."""
    seen, truth, terms = np.zeros(1, VIEW), np.zeros(1, TRUTH), np.zeros(N_TERMS)
    fate = (int(mode), LATENCY_S, math.inf, np.int64(n_items), True)
    kernel.begin_fated(plan.contexts, 0, seen[0], truth[0], *fate)
    fate = (int(Mode.OK), LATENCY_S, math.inf, np.int64(n_items), True)
    for word in steps:
        name, _, seconds = word.partition(":")
        kind = int(Action[name.upper()])
        kernel.act_fated(
            plan.contexts, seen[0], truth[0], kind, float(seconds or 0.0), *fate, terms
        )
    return seen


def believed(plan, *args, **kwargs):
    return belief(solution_of(plan), played(plan, *args, **kwargs)[0])


# --- the posterior --------------------------------------------------------------------------------


@pytest.mark.parametrize("wait_s", [0.0, 100.0, 470.0, 3000.0, 7169.0])
def test_not_visible_by_m(wait_s):
    """p_a / (p_a + p_late S(m - sent)), and what landed since the read counts as committed."""
    plan = load_plan("late-tail")
    law = plan.situations[0].faults.late_tail
    looked_s = 30.0 + wait_s
    found = believed(plan, [f"wait:{wait_s}", "read"])
    late, later = law.survival(looked_s), law.survival(looked_s + LATENCY_S)
    expected = Posterior(1.0, float(late - later), float(later), 0.0, 0.0)
    total = 1.0 + float(late)
    assert found == pytest.approx([p / total for p in expected], abs=1e-9)


def test_before_any_read_time_moves_late_to_committed():
    plan = load_plan("late-tail")
    late = float(plan.situations[0].faults.late_tail.survival(1030.0))
    found = believed(plan, ["wait:1000"])
    assert found == pytest.approx([1 / 3, (2 - late) / 3, late / 3, 0.0, 0.0], abs=1e-9)


def test_behind_a_lag_a_read_looks_back():
    lag_s = 45.0
    plan = load_plan("stale-tail", config={"lags_s": None, "contract": {"lag_s": lag_s}})
    law = plan.situations[0].faults.late_tail
    found = believed(plan, ["wait:570", "read"])
    late, later = law.survival(600.0 - lag_s), law.survival(600.0 + LATENCY_S)
    total = 1.0 + float(late)
    expected = [1.0, float(late - later), float(later), 0.0, 0.0]
    assert found == pytest.approx([p / total for p in expected], abs=1e-9)


def test_a_hidden_lag_is_averaged_over():
    """An original that committed at 1 s shows 61 s later, or 901 s later."""
    plan = load_plan(
        fields(
            contract={"readback": "eventual", "lag_documented": False},
            faults={"original": {"timeout_pre": 1, "timeout_post": 1}},
            variants=[{"contract": {"lag_s": 60.0}}, {"contract": {"lag_s": 900.0}}],
        )
    )
    assert believed(plan, ["wait:70", "read"]) == pytest.approx([2 / 3, 1 / 3, 0, 0, 0])
    assert believed(plan, ["wait:900", "read"]) == pytest.approx([1, 0, 0, 0, 0])


def test_a_reissue_beside_a_late_write_duplicates_it():
    plan = load_plan("late-tail")
    late = float(plan.situations[0].faults.late_tail.survival(300.0))
    found = believed(plan, ["wait:270", "read", "retry"])
    expected = [0.0, 1.0 / (1.0 + late), 0.0, 0.0, late / (1.0 + late)]
    assert found == pytest.approx(expected, abs=1e-9)


def test_a_batch_may_be_partial():
    plan = load_plan(
        fields(
            contract={"n_items": 3},
            faults={"original": {"http500_pre": 1, "http500_post": 1, "partial_batch": 2}},
        )
    )
    seen = played(plan, [], mode=Mode.HTTP500_PRE, n_items=3)
    found = belief(solution_of(plan), seen[0])
    assert found == pytest.approx([0.25, 0.25, 0.0, 0.5, 0.0])
    shown = played(plan, ["read"], mode=Mode.PARTIAL_BATCH, n_items=1)
    assert belief(solution_of(plan), shown[0]) == pytest.approx([0.0, 0.0, 0.0, 1.0, 0.0])


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_redelivered_copy_is_certain_before_it_comes(idempotent):
    plan = load_plan(
        fields(
            contract={"idempotent": idempotent},
            faults={"original": {"ok": 3, "redelivery": 1}, "copy_delay_s": 500.0},
        )
    )
    found = believed(plan, [], mode=Mode.OK)
    twice = 0.0 if idempotent else 0.25
    assert found == pytest.approx([0.0, 1.0 - twice, 0.0, 0.0, twice])


def test_nothing_sent_is_absent():
    plan = load_plan(fields(start="send", faults={"original": {"ok": 1, "timeout_post": 1}}))
    assert believed(plan, []) == (1.0, 0.0, 0.0, 0.0, 0.0)


def test_states_follow_the_ledger_of_the_moment():
    """One history of each state, told apart by what is executed by 100 s."""
    contexts = np.zeros(1, CONTEXT)
    contexts["contract"]["n_items"] = 2
    contexts["law"]["copy_delay_s"] = 50.0
    histories = [  # (effect, execution_s, copy's effect, executed in the end, executions)
        (0, 1.0, 0, 0, 0),
        (3, 100.0, 0, 3, 2),
        (3, 100.5, 0, 3, 2),
        (1, 1.0, 0, 1, 1),
        (3, 60.0, 3, 3, 4),
    ]
    found = np.zeros(len(histories), HYPOTHESIS)
    found["weight"] = [0.1, 0.2, 0.3, 0.4, 1.0]
    attempts = found["truth"]["attempts"]
    for k, (effect, at_s, copied, executed, executions) in enumerate(histories):
        attempts[k, 0] = (0.0, at_s, effect, effect, copied, 0, 0, 0, 0)
        found[k]["executed"], found[k]["executions"] = executed, executions
    attempts[:, 1]["effect"] = 3  # left over by another view; not counted
    assert posterior_of(found, contexts, 1, 100.0) == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.5])
    assert posterior_of(found[:0], contexts, 1, 100.0) is None


# --- values and reasons ---------------------------------------------------------------------------


def world_of(plan, mode):
    modes = plan.worlds(0, range(200))["fates"]["mode"][:, 0]
    return int(np.flatnonzero(modes == mode)[0])


def test_the_optimum_has_no_regret_and_says_why():
    plan = load_plan("late-tail")
    found = explain(plan, parse_policy("bayes-optimal"), 0, world_of(plan, Mode.TIMEOUT_PRE))
    assert found.regret == 0.0
    assert len(found.moments) == len(found.told.steps)
    first, last = found.moments[0], found.moments[-1]
    assert first.insight.best.value == pytest.approx(bayes_value(plan).value, abs=1e-3)
    assert (last.insight, last.action, last.regret) == (None, None, None)
    assert last.posterior == (0.0, 1.0, 0.0, 0.0, 0.0)
    for moment, step in zip(found.moments, found.told.steps[1:], strict=False):
        assert moment.action == step.action == moment.insight.best.word
        assert moment.insight.why.startswith(moment.insight.why[0].upper())
        assert f"probability {number_text(moment.posterior.absent, 3)}." in moment.insight.why
    reissue = next(m for m in found.moments if m.action == "retry")
    assert reissue.posterior.absent == pytest.approx(1.0, abs=1e-6)
    assert reissue.insight.why.startswith("A plain re-issue is worth 0.998")
    waits = [m.insight for m in found.moments if m.action and m.action.startswith("wait")]
    assert all(f"ing until {seconds_text(w.until_s)} is worth" in w.why for w in waits)


def test_a_wait_of_any_length_is_valued():
    """Waiting too long costs the time by which it is too long, where nothing else changes."""
    plan = load_plan("late-fixed")

    class Slow(Policy):
        def __init__(self, seconds):
            self.seconds = seconds

        def act(self, batch):
            waits = batch.views["n_waits"] == 0
            absent = (batch.views["n_reads"] > 0) & (batch.views["shown"] == 0)
            actions = ActionBatch.empty(len(batch))
            actions.kinds[absent] = Action.RETRY
            done = (batch.views["shown"] == 1) | (batch.views["n_attempts"] > 1)
            actions.kinds[done] = Action.FINISH
            actions.kinds[waits], actions.seconds[waits] = Action.WAIT, self.seconds
            return actions

    second = 0.12 / 3600.0
    world = world_of(plan, Mode.TIMEOUT_PRE)
    for seconds, lost in ((60.0, 0.0), (1060.0, 1000.0 * second)):
        found = explain(plan, Slow(seconds), 0, world)
        assert found.policy == "Slow"
        assert found.moments[0].regret == pytest.approx(lost, abs=1e-6)
        assert found.regret == pytest.approx(lost, abs=1e-6)


def test_an_early_reissue_is_regretted():
    """At 31 s absent and late are equally likely: a re-issue earns 0.998 - 2.2 / 2 - a second."""
    plan = load_plan("late-tail")
    found = explain(plan, parse_policy("verify-retry"), 0, world_of(plan, Mode.TIMEOUT_PRE))
    moment = next(m for m in found.moments if m.action == "retry")
    value = 0.5 * 1.0 + 0.5 * -1.2 - 0.002 - 0.12 / 3600.0
    assert moment.value == pytest.approx(value, abs=1e-9)
    assert moment.regret == pytest.approx(moment.insight.best.value - value)
    assert moment.regret > 0.5


def test_what_teaches_nothing_costs_what_it_costs():
    """A keyed retry where no key is taken, and a read where there is no read-back."""
    plan = load_plan(fields(contract={"readback": "none"}, faults={"original": {"timeout_pre": 1}}))

    class Odd(Policy):
        def act(self, batch):
            actions = ActionBatch.empty(len(batch))
            order = (Action.KEYED_RETRY, Action.READ, Action.FINISH_UNCERTAIN)
            actions.kinds[:] = [order[int(v)] for v in batch.views["n_steps"]]
            return actions

    keyed, read, _, _ = explain(plan, Odd(), 0, 0).moments
    assert keyed.insight.values["keyed_retry"] is None
    assert keyed.regret == pytest.approx(0.0, abs=1e-9)
    assert read.insight.values["read"] is None
    assert read.regret == pytest.approx(0.002 + 0.12 / 3600.0, abs=1e-6)


def test_oracles_can_be_explained_and_bounds_cannot():
    plan = load_plan("late-fixed")
    found = explain(plan, parse_policy("outcome-oracle"), 0, 0)
    assert found.privileged
    assert found.to_dict()["policy"] == "outcome-oracle"
    with pytest.raises(UserError, match="'clairvoyant' is a bound"):
        explain(plan, parse_policy("clairvoyant"), 0, 0)
    with pytest.raises(UserError, match="world id"):
        explain(plan, parse_policy("guard"), 0, -1)


def test_words_keep_every_bit():
    assert word_of(Action.WAIT, 1 / 3) == f"wait:{1 / 3!r}"
    assert word_of(Action.KEYED_RETRY, 0.0) == "keyed_retry"


def test_a_first_send_is_called_one():
    plan = load_plan(fields(start="send", faults={"original": {"ok": 1, "timeout_post": 1}}))
    seen = played(plan, [])
    found = insight(solution_of(plan), seen[0], None)
    assert found.best.action == Action.RETRY
    assert found.why.startswith("Sending without a key is worth")
    assert "absent" not in found.why


# --- holding out ----------------------------------------------------------------------------------


def test_a_fixed_delay_is_waited_for():
    """Sent at 0, landed at 90, read at 90: a re-issue as soon as that read is answered."""
    action, elapsed_s = hold_out(load_plan("late-fixed"), 0)
    assert action == Action.RETRY
    assert 90.0 <= elapsed_s - LATENCY_S < 90.001


def test_the_log_uniform_tail_is_waited_out():
    action, elapsed_s = hold_out(load_plan("late-tail"), 0)
    assert action == Action.RETRY
    assert elapsed_s == pytest.approx(7201.0, abs=0.01)


def test_a_client_that_cannot_look_asks():
    plan = load_plan("late-fixed", config={"contract": {"readback": "none"}})
    action, elapsed_s = hold_out(plan, 0)
    assert action == Action.RETRY
    assert elapsed_s == pytest.approx(930.0)


def test_where_time_is_dear_nobody_holds_out():
    plan = load_plan("late-tail", config={"costs": {"time_per_hour": 60.0}})
    assert hold_out(plan, 0) == (Action.FINISH, 30.0)


def test_the_path_may_start_before_the_first_send():
    plan = load_plan(
        fields(start="send", faults={"original": {"timeout_pre": 1, "timeout_late": 1}})
    )
    action, elapsed_s = hold_out(plan, 0)
    assert action == Action.RETRY
    assert 90.0 <= elapsed_s - LATENCY_S < 90.001


def test_a_quiet_view_has_just_read():
    plan = load_plan("late-tail")
    seen = quiet_view(plan, 0, 500.0)[0]
    assert (seen.clock_s, seen.read_at_s, seen.shown, seen.n_reads) == (500.0, 499.0, 0, 1)
    assert quiet_view(plan, 0, 0.0)[0].clock_s == 31.0


def test_without_an_open_outcome_there_is_no_path():
    plan = load_plan(fields(faults={"original": {"rate_limited": 1}}))
    with pytest.raises(UserError, match="nothing is left open"):
        hold_out(plan, 0)
    with pytest.raises(UserError, match="max_steps 1"):
        quiet_view(load_plan("first-decision"), 0, 100.0)
