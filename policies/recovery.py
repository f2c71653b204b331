"""The recovery driver: it does a sandbox task's happy path, and a policy handles what goes wrong.

A policy sees the kernel view of the one operation whose outcome is open, exactly as in the
single-operation world, and what it decides is carried out by tool calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from exactlyonce_env.sandbox.carrying_out import (
    FIRST_SENDS,
    Caller,
    first_arguments,
    key_of,
    perform,
)
from exactlyonce_env.sandbox.session import Session
from exactlyonce_env.vocabulary import Action
from policies.base import PlannedPolicy, Policy, PrivilegedPolicy, TruthBatch, ViewBatch

if TYPE_CHECKING:
    from exactlyonce_env.sandbox.operations import Operation
    from exactlyonce_env.sandbox.tasks import Step

__all__ = [
    "FIRST_SENDS",
    "Caller",
    "Decider",
    "Recovery",
    "decide_one",
    "decider_for",
    "key_of",
    "run_task",
]

Decider = Policy | PrivilegedPolicy


def decider_for(policy: Decider | PlannedPolicy, session: Session) -> Decider:
    """The policy for the session's worlds."""
    return policy.for_plan(session.plan) if isinstance(policy, PlannedPolicy) else policy


def decide_one(policy: Decider, batch: ViewBatch, truths: TruthBatch) -> tuple[Action, float]:
    """What a policy does about the one view of a batch: an action, and seconds to wait.

    The truth reaches a privileged policy only.
    """
    seen = (batch, truths) if isinstance(policy, PrivilegedPolicy) else (batch,)
    found = policy.act(*seen)
    return Action(int(found.kinds[0])), float(found.seconds[0])


class Recovery:
    """Handles one write whose outcome is open.

    Parameters
    ----------
    session
        The episode; of its operations only the view is handed to the policy, and the truth to a
        privileged one.
    caller
        What tools are called through; the session itself where there is no wrapper.
    policy
        Who decides.
    """

    def __init__(self, session: Session, caller: Caller, policy: Decider) -> None:
        self.session, self.caller, self.policy = session, caller, policy

    def decide(self, operation: Operation) -> tuple[Action, float]:
        """What the policy does about the operation now: an action, and seconds to wait."""
        operation.settle_clock(self.session.now_s)
        contexts = self._contexts(operation)
        truth = operation.truth.copy()
        truth["context"] = operation.context
        batch = ViewBatch(operation.seen.copy(), contexts["contract"])
        return decide_one(self.policy, batch, TruthBatch(truth, contexts))

    def _contexts(self, operation: Operation) -> npt.NDArray[Any]:
        """The plan's contexts; that of a batch has as many items as the batch."""
        contexts = self.session.plan.contexts
        if operation.contract["n_items"] != contexts["contract"]["n_items"][operation.context]:
            contexts = contexts.copy()
            for context in (operation.context, operation.seen["context"][0]):
                contexts["contract"]["n_items"][context] = operation.contract["n_items"]
        return contexts

    def resolve(self, operation: Operation, arguments: Mapping[str, Any]) -> bool:
        """Go on until the write is acknowledged or the policy ends it; whether it is sure.

        ``arguments`` are those of the first send.
        """
        while not self.session.ended:
            action, seconds = self.decide(operation)
            if action == Action.FINISH:
                return True
            if action == Action.FINISH_UNCERTAIN:
                return False
            if self.perform(operation, arguments, action, seconds):
                return True
        return False

    def perform(
        self, operation: Operation, arguments: Mapping[str, Any], action: Action, seconds: float
    ) -> bool:
        """Carry an action out by tool calls; whether it sent the write and was acknowledged."""
        return perform(self.session, self.caller, operation, arguments, action, seconds)


def run_task(
    session: Session,
    policy: Decider | PlannedPolicy,
    *,
    caller: Caller | None = None,
    first_send: str = "keyed",
) -> None:
    """Do the session's task to its end under a policy.

    Parameters
    ----------
    session
        A new episode.
    policy
        Who handles what goes wrong.
    caller
        What tools are called through; None: the session.
    first_send
        ``keyed`` attaches a key to the first send where the contract takes one.
    """
    through = caller or session
    recovery = Recovery(session, through, decider_for(policy, session))
    uncertain = [
        step.name
        for step in session.task.steps
        if not session.ended and not _do(recovery, step, first_send)
    ]
    if not session.ended:
        sure = not uncertain
        through.call(
            "finish",
            {
                "status": "completed" if sure else "uncertain",
                "summary": "done" if sure else f"not certain: {', '.join(uncertain)}",
                "uncertain_operations": uncertain,
            },
        )


def _do(recovery: Recovery, step: Step, first_send: str) -> bool:
    """One step of the happy path; whether its outcome is certain."""
    session = recovery.session
    arguments = first_arguments(session, step, first_send)
    reply = recovery.caller.call(step.tool, arguments)
    if not reply.error:
        return True
    operation = session.operation(step.tool, arguments)
    return operation is not None and recovery.resolve(operation, arguments)
