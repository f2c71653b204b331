"""Settlement and grading: every request in flight completes, then the ledger is read."""

from __future__ import annotations

import math

from exactlyonce_env import rules
from exactlyonce_env.compiled import Array, Record, compiled
from exactlyonce_env.vocabulary import Ending, Term
from exactlyonce_env.world_state import arrive_until

CLAIMED = int(Ending.CLAIMED)
T_SUCCESS = int(Term.SUCCESS)
T_DUPLICATE = int(Term.DUPLICATE)
T_OMISSION = int(Term.OMISSION)
T_UNRESOLVED = int(Term.UNRESOLVED)
T_OVERCLAIM = int(Term.OVERCLAIM)


@compiled
def settle(context: Record, seen: Record, truth: Record) -> None:
    """Let every request and copy still under way arrive."""
    arrive_until(context, seen, truth, math.inf)


@compiled
def tally(seen: Record, truth: Record) -> tuple[int, int]:
    """(mask of the items that were executed, number of executions of all items together)."""
    executed = 0
    total = 0
    for j in range(seen.n_attempts):
        happened = truth.attempts[j]
        executed |= happened.effect | happened.copy_effect
        total += rules.count_items(happened.effect) + rules.count_items(happened.copy_effect)
    return executed, total


@compiled
def count_effects(contract: Record, seen: Record, truth: Record) -> tuple[int, int]:
    """(duplicate effects, items without an effect) after settlement."""
    executed, total = tally(seen, truth)
    return excess(contract, executed, total)


@compiled
def excess(contract: Record, executed: int, total: int) -> tuple[int, int]:
    """(duplicate effects, items without an effect) of a `tally`.

    Executing an idempotent write again is not a second effect.
    """
    distinct = rules.count_items(executed)
    duplicates = 0 if contract.idempotent else total - distinct
    return duplicates, contract.n_items - distinct


@compiled
def settlement_terms(contract: Record, seen: Record, truth: Record, terms: Array) -> None:
    """Write the settlement value of an ended episode into ``terms`` (9,)."""
    duplicates, omissions = count_effects(contract, seen, truth)
    write_settlement(contract.costs, duplicates, omissions, seen.ending == CLAIMED, terms)


@compiled
def write_settlement(
    costs: Record, duplicates: int, omissions: int, claimed: bool, terms: Array
) -> None:
    """Write what so many duplicates and omissions are worth, by claim, into ``terms`` (9,)."""
    if omissions == 0 and duplicates == 0:
        terms[T_SUCCESS] = costs.success
    elif claimed:
        terms[T_OVERCLAIM] = -costs.overclaim
    terms[T_DUPLICATE] = -costs.duplicate * duplicates
    terms[T_OMISSION] = -costs.omission * omissions
    if not claimed:
        terms[T_UNRESOLVED] = -costs.unresolved


@compiled
def write_outcome(contract: Record, seen: Record, truth: Record, outcome: Record) -> None:
    """Write the measures of an ended episode into the `OUTCOME` record ``outcome``."""
    duplicates, omissions = count_effects(contract, seen, truth)
    success = omissions == 0
    exactly_once = success and duplicates == 0
    unresolved = seen.ending != CLAIMED
    outcome.elapsed_s = seen.clock_s
    outcome.operator_s = seen.n_escalations * contract.operator_delay_s
    outcome.duplicates = duplicates
    outcome.residual_duplicates = (
        duplicates  # a single operation has no action that undoes an effect
    )
    outcome.omissions = omissions
    outcome.false_retry_permissions = truth.false_permissions
    outcome.reads = seen.n_reads
    outcome.waits = seen.n_waits
    outcome.reissues = seen.n_reissues
    outcome.escalations = seen.n_escalations
    outcome.steps = seen.n_steps
    outcome.task_success = success
    outcome.exactly_once = exactly_once
    outcome.unresolved = unresolved
    outcome.resolved_exact = exactly_once and not unresolved
    outcome.overclaim = not unresolved and not exactly_once
