"""Scripted policies of the probe, and any honest policy of the project through its view.

A scripted policy decides from what the prompt shows; a policy of the line-up decides from the view
of the very world that is replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from evaluation.probe.answers import Decision
from evaluation.probe.designs import Cell
from evaluation.probe.prompts import KEY_ACTION, candidate_of, case_of, codes_of
from evaluation.probe.replay import context_of, plan_of, walk_of
from exactlyonce_env.errors import UserError, did_you_mean
from exactlyonce_env.vocabulary import Action
from policies.base import PlannedPolicy, Policy, ViewBatch
from policies.spec import POLICY_NAMES, parse_policy

__all__ = ["SCRIPTED", "Scripted", "named_policy"]

Rule = Callable[[Cell], Decision]

RETRY = Decision("retry")
WAIT = Decision("wait")
UNRESOLVED = Decision("unresolved")

FRESH_KEY = "key-of-my-own"
"""What a policy sends that supplies a key without looking for the original's."""


@dataclass(frozen=True)
class Scripted:
    """A policy that no model is asked for.

    Attributes
    ----------
    spec
        Its name.
    decide
        The decision about a prompt.
    """

    spec: str
    decide: Rule


def always_retry(cell: Cell) -> Decision:
    """Sends again without a key, whatever is known."""
    return RETRY


def always_defer(cell: Cell) -> Decision:
    """Waits, whatever is known."""
    return WAIT


def same_key_if_valid(cell: Cell) -> Decision:
    """Sends again with the original's key where it carried one and that one can be sent."""
    variant = cell.variant
    if variant.key == "valid":
        return Decision(KEY_ACTION)
    if variant.key == "supplied" and variant.original == "sent":
        return Decision(KEY_ACTION, case_of(cell).key)
    return UNRESOLVED


def any_key_offered(cell: Cell) -> Decision:
    """Sends again with a key wherever that is on the menu, as if any key protected.

    Where it has to supply one, the transcript's, or its own where the transcript shows none.
    """
    variant = cell.variant
    if candidate_of(cell) is not None:
        return Decision(KEY_ACTION)
    if variant.key == "supplied":
        sent = variant.original == "sent"
        return Decision(KEY_ACTION, case_of(cell).key if sent else FRESH_KEY)
    return UNRESOLVED


def label_follower(cell: Cell) -> Decision:
    """Sends again where the empty lookup has no label, or is labelled authoritative."""
    return RETRY if cell.variant.label in ("absent", "authoritative") else UNRESOLVED


RULES: dict[str, Rule] = {
    "always-retry": always_retry,
    "always-defer": always_defer,
    "same-key-if-valid": same_key_if_valid,
    "any-key-offered": any_key_offered,
    "label-follower": label_follower,
}

SCRIPTED: tuple[str, ...] = (*RULES, "bayes-optimal")
"""What is compared when nobody asks for others."""

ACTION_OF: dict[Action, str] = {
    Action.RETRY: "retry",
    Action.KEYED_RETRY: KEY_ACTION,
    Action.FINISH: "stop",
    Action.FINISH_UNCERTAIN: "unresolved",
    Action.WAIT: "wait",
    Action.READ: "wait",
    Action.ESCALATE: "unresolved",
}
"""The probe's word for an action of the kernel: a read shows nothing new here, and who asks the
operator leaves the outcome open."""


def named_policy(spec: str) -> Scripted:
    """A policy by its name: one of the probe's own, or any honest one of the line-up.

    Raises
    ------
    UserError
        For an unknown name, and for one that sees hidden state.
    """
    name = spec.strip()
    if name in RULES:
        return Scripted(name, RULES[name])
    known = (*SCRIPTED, *POLICY_NAMES)
    if name.partition(":")[0].strip() not in known:
        hint = did_you_mean(name, known)
        raise UserError(
            f"unknown policy {name!r}{hint}; choose from {', '.join(SCRIPTED)}, llm:MODEL, or a "
            "policy of `evaluate`"
        )
    policy = parse_policy(name)
    if not isinstance(policy, Policy | PlannedPolicy):
        raise UserError(f"policy {name!r} sees hidden state; the probe asks honest policies only")
    chosen = policy
    actions: dict[str, str] = {}

    def decide(cell: Cell) -> Decision:
        context = context_of(cell.variant)
        if context not in actions:
            actions[context] = _decided(chosen, cell)
        action = actions[context]
        supplies = action == KEY_ACTION and cell.variant.key == "supplied"
        return Decision(action, _supplied(cell) if supplies else None)

    return Scripted(policy.spec, decide)


def _decided(policy: Policy | PlannedPolicy, cell: Cell) -> str:
    """The action of an honest policy in the view behind a prompt."""
    plan = plan_of(context_of(cell.variant))
    made = policy.for_plan(plan) if isinstance(policy, PlannedPolicy) else policy
    seen = walk_of(cell.variant).seen
    actions = made.act(ViewBatch(np.array([seen]), plan.contracts))
    action = ACTION_OF[Action(int(actions.kinds[0]))]
    # A key where none is taken is an error of the client's: nothing is sent.
    return action if action in codes_of(cell.variant).values() else "unresolved"


def _supplied(cell: Cell) -> str:
    """The pinned key: the original's, or a new one where it carried none."""
    return case_of(cell).key if cell.variant.original == "sent" else FRESH_KEY
