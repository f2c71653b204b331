"""A task of one write is the single-operation world: same views, ledger and outcome, byte by byte.

Both are played with the same policy: the kernel from a plan whose original meets the fault, the
sandbox by tool calls through the recovery driver.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from exactlyonce_env.batch import act_batch, begin_batch, grade_batch
from exactlyonce_env.plan import Plan
from exactlyonce_env.records import N_TERMS, OUTCOME, TRUTH, VIEW
from exactlyonce_env.sandbox.contracts import CONTRACTS, FAULTS, KEYED, paths_of, sandbox_plan
from exactlyonce_env.sandbox.grading import grade
from exactlyonce_env.sandbox.session import Session
from exactlyonce_env.vocabulary import Ending, Mode
from policies.base import PrivilegedPolicy, TruthBatch, ViewBatch
from policies.recovery import run_task
from policies.spec import parse_policy

from .sandboxbench import ARGUMENTS, BATCH, one_write

POLICIES = (
    *("never-retry", "blind-retry", "sdk-retry", "rules", "verify-retry", "wait:60", "wait:300"),
    *("poll:300", "same-key", "guard", "escalate", "state-oracle", "outcome-oracle"),
)
MEASURES = (
    *("task_success", "exactly_once", "duplicates", "residual_duplicates", "omissions"),
    *("unresolved", "resolved_exact", "overclaim", "false_retry_permissions"),
    *("elapsed_s", "operator_s", "reads", "waits", "reissues", "escalations"),
)

# An effect: when [s], from which attempt, of which item, and whether a copy had it.
Ledger = list[tuple[float, int, int, bool]]


class Played(NamedTuple):
    view: bytes
    ledger: Ledger
    measures: dict[str, Any]


def point_mass(plan: Plan, context: int, mode: Mode) -> Plan:
    """The worlds of one context whose original meets ``mode``."""
    contexts, chances = plan.contexts.copy(), np.zeros(len(plan.contexts))
    contexts["law"]["first_cdf"] = mode <= np.arange(len(Mode))
    chances[context:] = 1.0
    for array in (contexts, chances):
        array.setflags(write=False)
    return dataclasses.replace(plan, contexts=contexts, context_cdf=chances)


def kernel_ledger(plan: Plan, view: Any, truth: Any) -> Ledger:
    copy_delay_s = float(plan.contexts["law"]["copy_delay_s"][truth["context"]])
    ledger = []
    for j, happened in enumerate(truth["attempts"][: view["n_attempts"]]):
        at_s = float(happened["execution_s"])
        for item in range(30):
            if happened["effect"] >> item & 1:
                ledger.append((at_s, j, item, False))
            if happened["copy_effect"] >> item & 1:
                ledger.append((at_s + copy_delay_s, j, item, True))
    return sorted(ledger)


def play_kernel(plan: Plan, policy: Any, seed: int) -> Played:
    seen, truths, outcomes = (np.zeros(1, dtype=t) for t in (VIEW, TRUTH, OUTCOME))
    terms, rewards, world = np.zeros(N_TERMS), np.zeros(1), np.zeros(1, dtype=np.int64)
    begin_batch(plan.contexts, plan.context_cdf, plan.table, np.uint64(seed), world, seen, truths)
    contracts = np.ascontiguousarray(plan.contracts)
    while True:
        before = seen.tobytes()
        batch = ViewBatch(seen.copy(), contracts)
        if isinstance(policy, PrivilegedPolicy):
            taken = policy.act(batch, TruthBatch(truths.copy(), plan.contexts))
        else:
            taken = policy.act(batch)
        act_batch(
            plan.contexts,
            plan.table,
            seen,
            truths,
            world,
            taken.kinds,
            taken.seconds,
            terms,
            rewards,
        )
        if seen["ending"][0] != Ending.RUNNING:
            break
    grade_batch(plan.contexts, seen, truths, outcomes)
    measures = {name: outcomes[name][0].item() for name in MEASURES}
    return Played(before, kernel_ledger(plan, seen[0], truths[0]), measures)


def play_sandbox(session: Session, policy: Any, first_send: str) -> Played:
    run_task(session, policy, first_send=first_send)
    (operation,) = session.records.operations.values()
    view = operation.seen.tobytes()
    graded = grade(session).to_dict()
    assert operation.outcome()["duplicates"] == graded["duplicates"]
    return Played(
        view,
        [tuple(effect) for effect in operation.effects(math.inf)],
        {name: graded[name] for name in MEASURES},
    )


def check(
    path: str, fault: str, spec: str, *, contract: str, keyed: bool, instance: int, operator: str
) -> None:
    task = one_write(path, instance)
    # The kernel's 40 steps begin after the original, which is a call of the sandbox's.
    session = Session(task, fault=fault, contract=contract, operator=operator, max_calls=41)
    first_send = "keyed" if keyed else "plain"
    takes = keyed and paths_of(contract)[path].get("accepts_key")
    plan = sandbox_plan(contract, answers=operator == "answers")
    names = [situation.name for situation in plan.situations]
    context = names.index(path + (KEYED if takes else ""))
    policy: Any = parse_policy(spec)
    kernel = play_kernel(point_mass(plan, context, Mode[fault.upper()]), policy, session.seed)
    sandbox = play_sandbox(session, policy, first_send)
    assert sandbox.measures == kernel.measures
    assert sorted(sandbox.ledger) == kernel.ledger
    # A session's clock stands where the driver finishes; nothing moved it since the last action.
    if session.ending != Ending.EXHAUSTED:  # else the last action was one that moved it
        assert sandbox.view == kernel.view


@pytest.mark.parametrize("spec", POLICIES)
@pytest.mark.parametrize("fault", FAULTS)
def test_each_policy_meets_each_fault_as_in_the_kernel(fault: str, spec: str) -> None:
    """One path of each class: keyed, lagging, strong, unreadable, idempotent, a batch."""
    paths = ("billing/charge", "mail/send", "tickets/comment", "social/x", "database/upsert", BATCH)
    for path in (BATCH,) if fault == "partial_batch" else paths:
        instance = next(k for k in range(99) if splits_in_half(path, fault, k))
        check(
            path, fault, spec, contract="native", keyed=True, instance=instance, operator="answers"
        )


def splits_in_half(path: str, fault: str, instance: int) -> bool:
    """Whether a kernel's partial batch commits half of the items, as the sandbox's always do."""
    if fault != "partial_batch":
        return True
    session = Session(one_write(path, instance), fault=fault)
    plan = sandbox_plan("native")
    context = [situation.name for situation in plan.situations].index(path)
    worlds = point_mass(plan, context, Mode.PARTIAL_BATCH).worlds(session.seed, [0])
    return int(worlds["fates"]["n_commit"][0, 0]) == 2


@settings(max_examples=300)
@given(
    path=st.sampled_from(sorted(ARGUMENTS)),
    fault=st.sampled_from(FAULTS),
    spec=st.sampled_from(POLICIES),
    contract=st.sampled_from(CONTRACTS),
    keyed=st.booleans(),
    instance=st.integers(0, 10**6),
    operator=st.sampled_from(["answers", "silent"]),
)
def test_one_write_in_any_world(
    path: str, fault: str, spec: str, contract: str, keyed: bool, instance: int, operator: str
) -> None:
    if fault == "partial_batch":
        path = BATCH
        assume(splits_in_half(path, fault, instance))
    check(path, fault, spec, contract=contract, keyed=keyed, instance=instance, operator=operator)
