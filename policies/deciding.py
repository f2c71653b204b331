"""One decision for one client, for those who have a `View` instead of a batch of records."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from exactlyonce_env.errors import UserError
from exactlyonce_env.view import View
from exactlyonce_env.vocabulary import Action
from policies.base import AnyPolicy, Policy, ViewBatch

__all__ = ["Decision", "decide"]


class Decision(NamedTuple):
    """What to do next.

    Attributes
    ----------
    action
        ``read``, ``wait``, ``retry``, ``keyed_retry``, ``escalate``, ``finish`` or
        ``finish_uncertain``.
    seconds
        How long to wait [s]; 0 for every other action.
    """

    action: str
    seconds: float


def decide(policy: AnyPolicy, view: View) -> Decision:
    """What ``policy`` does in ``view``; ``finish_uncertain`` where the call budget is used up.

    Raises
    ------
    UserError
        For a policy that sees hidden state: outside a simulated world nobody can hand it any. For a
        view whose episode the client itself has ended.
    """
    if not isinstance(policy, Policy):
        raise UserError(f"policy {policy.spec!r} sees hidden state, which no real client has")
    if view.ending == "exhausted":
        return Decision("finish_uncertain", 0.0)
    if view.ending != "running":
        raise UserError(f"there is nothing left to decide: the client has ended ({view.ending})")
    actions = policy.act(ViewBatch(np.array([view.seen]), np.array([view.contract])))
    kind = Action(int(actions.kinds[0]))
    seconds = float(actions.seconds[0]) if kind == Action.WAIT else 0.0
    return Decision(kind.name.lower(), seconds)
