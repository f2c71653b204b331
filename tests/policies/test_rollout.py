"""One semantics: fused = batched = interpreted, whatever the order, the split and the contract."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import policies.rollout as rollout_module
import policies.threads as threads_module
from exactlyonce_env.actions import MAX_WAIT_S
from exactlyonce_env.plan import Plan
from exactlyonce_env.presets import PRESET_NAMES, load_plan
from exactlyonce_env.rules import is_unknown
from exactlyonce_env.vocabulary import Action, Authority, OperatorStatus, Readback
from policies.base import (
    ActionBatch,
    AnyPolicy,
    Policy,
    PrivilegedPolicy,
    TruthBatch,
    ViewBatch,
)
from policies.rollout import Episodes, run_batched, run_policy
from policies.spec import parse_policy

from . import rollout_digest
from .episodebench import DECIDING, shipped


def assert_same(a: Episodes, b: Episodes) -> None:
    for name in ("outcomes", "rewards", "contexts", "modes"):
        assert getattr(a, name).tobytes() == getattr(b, name).tobytes(), name


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_fused_and_batched_give_the_same_bytes_and_every_episode_ends(preset: str) -> None:
    plan, ids = shipped(preset), np.arange(400)
    budget = plan.contracts["max_steps"]
    for spec in DECIDING:
        policy = parse_policy(spec)
        fused = run_policy(plan, policy, 5, ids)
        assert_same(fused, run_batched(plan, policy, 5, ids))
        steps = fused.outcomes["steps"]
        assert (steps >= 1).all(), spec
        assert (steps <= budget[fused.contexts]).all(), spec
        assert np.isfinite(fused.rewards).all(), spec


def test_episodes_do_not_depend_on_order_company_or_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan, ids = shipped("contextual"), np.arange(700)
    for spec in ("guard", "poll:900", "outcome-oracle", "clairvoyant"):
        policy = parse_policy(spec)
        whole = run_policy(plan, policy, 2, ids)
        order = np.random.default_rng(0).permutation(ids)
        shuffled = run_policy(plan, policy, 2, order)
        monkeypatch.setattr(rollout_module, "MIN_WORLDS_PER_THREAD", 1)
        monkeypatch.setattr(threads_module.os, "cpu_count", lambda: 3)
        assert_same(run_policy(plan, policy, 2, ids), whole)
        monkeypatch.undo()
        for name in ("outcomes", "rewards", "contexts", "modes"):
            expected = getattr(whole, name)[order]
            assert getattr(shuffled, name).tobytes() == expected.tobytes(), (spec, name)
        alone = run_policy(plan, policy, 2, [123])
        assert alone.outcomes[0].tobytes() == whole.outcomes[123].tobytes()


def test_context_and_mode_are_those_of_the_world() -> None:
    plan = shipped("native")
    worlds = plan.worlds(9, range(300))
    episodes = run_policy(plan, parse_policy("never-retry"), 9, np.arange(300))
    np.testing.assert_array_equal(episodes.contexts, worlds["context"])
    np.testing.assert_array_equal(episodes.modes, worlds["fates"]["mode"][:, 0])


def test_no_worlds_give_no_episodes() -> None:
    for spec in ("guard", "clairvoyant"):
        assert len(run_policy(shipped("late-tail"), parse_policy(spec), 0, [])) == 0


def test_interpreted_policies_do_the_same(run_python) -> None:  # type: ignore[no-untyped-def]
    script = Path(rollout_digest.__file__)
    done = run_python(str(script), env={"NUMBA_DISABLE_JIT": "1"}, timeout_s=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == rollout_digest.digests()


contracts = st.fixed_dictionaries(
    {
        "readback": st.sampled_from(["none", "strong", "eventual", "authoritative"]),
        "accepts_key": st.booleans(),
        "candidate_key": st.sampled_from(["same", "different"]),
        "in_flight_same_key": st.sampled_from(["coalesce", "conflict"]),
        "key_retention_s": st.sampled_from([20.0, 600.0, None]),
        "idempotent": st.booleans(),
        "n_items": st.sampled_from([1, 3]),
        "lag_documented": st.booleans(),
        "operator_answer_rate": st.sampled_from([0.0, 0.5, 1.0]),
        "operator_sees_in_flight": st.booleans(),
        "operator_delay_s": st.sampled_from([0.0, 900.0]),
        "latency_s": st.sampled_from([0.0, 1.0]),
        "max_steps": st.integers(1, 60),
        "max_attempts": st.integers(1, 8),
    }
)


@st.composite
def unruly_plans(draw: st.DrawFn) -> Plan:
    contract: dict[str, Any] = draw(contracts)
    start = draw(st.sampled_from(["fault", "send"]))
    if contract["readback"] == "eventual":
        contract["lag_s"] = draw(st.sampled_from([0.0, 33.3, 500.0]))
    if contract["accepts_key"]:
        contract["original_key"] = draw(st.sampled_from(["omitted", "sent"]))
    return load_plan(
        {
            "name": "unruly",
            "start": start,
            "contract": contract,
            "faults": {"retry_fault_rate": 0.7, "queued_share": 0.5},
        }
    )


class Witness:
    """Watches what a policy does, view by view, and holds it to the rules of conduct."""

    def __init__(self, policy: Policy | PrivilegedPolicy) -> None:
        self.spec = policy.spec
        self.oracle = isinstance(policy, PrivilegedPolicy)

    def check(self, batch: ViewBatch, actions: ActionBatch) -> None:
        for view, contract, kind, seconds in zip(
            batch.views, batch.own_contracts, actions.kinds, actions.seconds, strict=True
        ):
            if kind == Action.WAIT:
                assert 0.0 < seconds <= MAX_WAIT_S
            else:
                assert seconds == 0.0
            if kind == Action.READ:
                assert contract.readback != Readback.NONE
                assert view.clock_s >= view.retry_at_s
            if kind == Action.ESCALATE:
                assert view.operator_status != OperatorStatus.SILENT
            if kind in (Action.RETRY, Action.KEYED_RETRY):
                self.check_send(view, contract, kind)

    def check_send(self, view: np.record, contract: np.record, kind: int) -> None:
        assert view.n_attempts < contract.max_attempts
        assert kind == Action.RETRY or contract.accepts_key
        assert view.clock_s >= view.retry_at_s
        attempts = view.attempts[: view.n_attempts]
        assert not (attempts["authority"] == Authority.PENDING).any() or self.repeats_blindly()
        careful = self.spec.partition(":")[0] in ("verify-retry", "wait", "poll", "guard")
        if careful and view.n_attempts and is_unknown(attempts[-1].response):
            reported = view.read_at_s >= attempts[-1].answered_s
            keyed_replay = self.spec == "guard" and kind == Action.KEYED_RETRY
            assert reported or keyed_replay or contract.idempotent

    def repeats_blindly(self) -> bool:
        """Whether the policy never asks, knows more than the report, or may replay by key."""
        return self.oracle or self.spec in ("blind-retry", "sdk-retry", "same-key", "guard")


class WatchedPolicy(Policy):
    def __init__(self, policy: Policy) -> None:
        self.policy, self.witness = policy, Witness(policy)

    def act(self, batch: ViewBatch) -> ActionBatch:
        actions = self.policy.act(batch)
        self.witness.check(batch, actions)
        return actions


class WatchedOracle(PrivilegedPolicy):
    def __init__(self, policy: PrivilegedPolicy) -> None:
        self.policy, self.witness = policy, Witness(policy)

    def act(self, batch: ViewBatch, truths: TruthBatch) -> ActionBatch:
        actions = self.policy.act(batch, truths)
        self.witness.check(batch, actions)
        return actions


def watched(policy: AnyPolicy) -> WatchedPolicy | WatchedOracle:
    if isinstance(policy, PrivilegedPolicy):
        return WatchedOracle(policy)
    assert isinstance(policy, Policy)
    return WatchedPolicy(policy)


@settings(max_examples=60)
@given(plan=unruly_plans(), seed=st.integers(0, 2**64 - 1))
def test_under_any_contract_policies_keep_the_rules_of_conduct(plan: Plan, seed: int) -> None:
    ids = np.arange(12)
    for spec in DECIDING:
        policy = parse_policy(spec)
        assert_same(
            run_policy(plan, policy, seed, ids), run_batched(plan, watched(policy), seed, ids)
        )


@settings(max_examples=30)
@given(plan=unruly_plans(), seed=st.integers(0, 1000))
def test_no_honest_policy_tells_apart_what_looks_the_same(plan: Plan, seed: int) -> None:
    """Equal views get equal actions, whatever the truth and the company in the batch."""
    seen: dict[bytes, tuple[int, float]] = {}

    class Memory(Policy):
        def __init__(self, policy: Policy) -> None:
            self.policy = policy

        def act(self, batch: ViewBatch) -> ActionBatch:
            actions = self.policy.act(batch)
            for view, kind, seconds in zip(
                batch.views, actions.kinds, actions.seconds, strict=True
            ):
                move = (int(kind), float(seconds))
                assert seen.setdefault(view.tobytes(), move) == move
            return actions

    for spec in DECIDING:
        policy = parse_policy(spec)
        if isinstance(policy, Policy):
            seen.clear()
            run_batched(plan, Memory(policy), seed, np.arange(20))
