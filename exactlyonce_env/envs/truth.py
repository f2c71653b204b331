"""What is hidden, in plain data.  Privileged: handed out with ``reveal=True`` only."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from exactlyonce_env.compiled import Record
from exactlyonce_env.ledger import ledger, measures, settled, world_dict

if TYPE_CHECKING:
    from exactlyonce_env.plan import Plan


def truth_info(plan: Plan, seen: Record, truth: Record) -> dict[str, Any]:
    """The hidden side of one running world, as ``info["truth"]`` shows it.

    Parameters
    ----------
    plan
        The plan that the world was drawn from.
    seen, truth
        Its `VIEW` and `TRUTH` records; not changed.

    Returns
    -------
    dict
        ``seed``, ``world``, ``context`` (its name), ``original_mode``, ``operator_answers``,
        ``attempts`` (the fate of each one that could be made, sent or not), ``ledger`` and
        ``outcome`` (the sixteen measures).  The last two stand as they will once every request in
        flight has completed; an entry of the ledger later than the clock is still to come.
    """
    context = plan.contexts[truth.context]
    after = settled(context, seen, truth)
    world = world_dict(plan, plan.worlds(int(truth.seed), [int(truth.world)])[0])
    return {
        "seed": np.uint64(truth.seed),
        "world": world["id"],
        "context": world["context"],
        "original_mode": world["attempts"][0]["mode"],
        "operator_answers": world["operator_answers"],
        "attempts": world["attempts"],
        "ledger": [asdict(effect) for effect in ledger(context, seen, after)],
        "outcome": measures(context.contract, seen, after),
    }
