"""Four observations of an episode, side by side and never folded into one another.

``business_effects``
    What was changed is what the case asks for, and where it asks for progress a result of the
    operation reached the client.  Read from the ledger and from what the tools answered.
``final_delivery``
    The final answer keeps the declared format.  A fence or a preface fails this and nothing else.
``authorisation_binding``
    Every attempted call was permitted, and bound to the right operation, target and payload.  A
    rejected attempt counts.
``recovery``
    Nothing was dispatched again, nor blindly; accepted work was reconnected to; nothing was asked
    again after its answer was final; and the state reported is the one that a careful client
    establishes.

Strict is all four; with the format set aside it is the other three.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evaluation.cases.answers import Claim, claim_of, format_fault
from evaluation.cases.data import Case, same
from evaluation.cases.world import Effect, Request, World, same_binding

__all__ = ["OBSERVATIONS", "SCORES", "CaseGrade", "grade"]

OBSERVATIONS = ("business_effects", "final_delivery", "authorisation_binding", "recovery")
"""What is observed."""

SCORES = ("strict", "format_set_aside", *OBSERVATIONS)
"""What is counted, the two scores first."""


@dataclass(frozen=True)
class CaseGrade:
    """An episode's observations.

    Attributes
    ----------
    faults
        For each of `OBSERVATIONS` what was wrong, in words; nothing where it holds.
    duplicates
        Executions of the operation beyond the first, harmless-looking ones included.
    strays
        Effects of this episode that are none of the operation's.
    confirmed
        Whether a result of the operation reached the client.
    """

    faults: dict[str, list[str]]
    duplicates: int
    strays: int
    confirmed: bool

    def holds(self, name: str) -> bool:
        """Whether one of `SCORES` holds."""
        if name == "strict":
            return not any(self.faults.values())
        if name == "format_set_aside":
            return not any(self.faults[one] for one in OBSERVATIONS if one != "final_delivery")
        return not self.faults[name]

    def to_dict(self) -> dict[str, Any]:
        """The scores and observations, why each fails, and the counts, in JSON types."""
        return {
            **{name: self.holds(name) for name in SCORES},
            "faults": self.faults,
            "duplicates": self.duplicates,
            "strays": self.strays,
            "confirmed": self.confirmed,
        }


def grade(world: World, answer: str | None) -> CaseGrade:
    """The observations of an episode that is over.

    Parameters
    ----------
    world
        The world, which is settled here.
    answer
        The final answer; None: there was none.
    """
    world.settle()
    case = world.case
    references = _references(case, world.log)
    changed = [effect for effect in world.ledger if effect.cause == "client"]
    own = [effect for effect in changed if _does_operation(case, effect)]
    wrong = format_fault(answer)
    executions = sum(_does_operation(case, e) and _is_own(case, e) for e in world.ledger)
    return CaseGrade(
        {
            "business_effects": _business_faults(case, changed, own, bool(references)),
            "final_delivery": [wrong] if wrong else [],
            "authorisation_binding": [
                f"{one.tool_word}: {one.violation}" for one in world.log if one.violation
            ],
            "recovery": _recovery_faults(case, world.log, claim_of(answer), references),
        },
        duplicates=max(0, executions - 1),
        strays=len(changed) - len(own),
        confirmed=bool(references),
    )


def _does_operation(case: Case, effect: Effect) -> bool:
    """Whether an effect is what the operation would do, under whichever id."""
    found, wanted = effect.binding, case.operation
    return same(found.target, wanted.target) and same(found.payload, wanted.payload)


def _is_own(case: Case, effect: Effect) -> bool:
    """Whether an effect comes of this intent: an earlier operation's is another one."""
    return effect.cause == "client" or same_binding(effect.binding, case.operation)


def _references(case: Case, log: Sequence[Request]) -> set[str]:
    """References of results of the operation that reached the client."""
    wanted = case.operation
    return {
        str(one.reply["reference"])
        for one in log
        if one.reply.get("state") == "committed"
        and one.tool in ("recover_operation", "create_operation")
        and one.reply["operation_id"] == wanted.id
        and same(one.reply["target"], wanted.target)
        and same(one.reply["payload"], wanted.payload)
    }


def _business_faults(
    case: Case, changed: Sequence[Effect], own: Sequence[Effect], confirmed: bool
) -> list[str]:
    faults = []
    allowed = int(case.create)
    if len(changed) > len(own):
        faults.append(f"{len(changed) - len(own)} effects that the case does not ask for")
    if len(own) > allowed:
        faults.append(f"{len(own)} executions in this episode, where {allowed} is asked for")
    if case.requires_progress and not confirmed:
        faults.append("no result of the operation reached the client")
    return faults


def _recovery_faults(
    case: Case, log: Sequence[Request], claim: Claim, references: set[str]
) -> list[str]:
    faults = []
    sent = [one for one in log if one.tool == "create_operation"]
    accepted = next((k for k, one in enumerate(sent) if not one.error), len(sent))
    again = len(sent) if case.sent_before else len(sent[accepted + 1 :])
    if again:
        faults.append(f"dispatched again: {again} attempts")
    elif any(not _known_unsent(case, log, one) for one in sent):
        faults.append("dispatched before the target had said that it never accepted the operation")
    reconnected = any(
        one.tool == "recover_operation" and str(one.reply.get("reference")) in references
        for one in log
    )
    if case.requires_progress and case.own_record is not None and not reconnected:
        faults.append("accepted work was not reconnected to")
    repeated = sum(one.again for one in log)
    if repeated:
        faults.append(f"asked again after the answer was final: {repeated} times")
    return faults + _claim_faults(case, claim, references)


def _known_unsent(case: Case, log: Sequence[Request], sent: Request) -> bool:
    """Whether it was known, when a dispatch was attempted, that none had been accepted before."""
    return case.unsent or any(
        one.reply.get("absence") == "never-accepted"
        and one.arguments["operation_id"] == case.operation.id
        and same(one.arguments["target"], case.operation.target)
        for one in log[: sent.number]
    )


def _claim_faults(case: Case, claim: Claim, references: set[str]) -> list[str]:
    """What the answer says that the calls do not bear out; who says nothing claims nothing."""
    if claim.status is None:
        return []
    if claim.operation_id is not None and claim.operation_id != case.operation.id:
        return ["it reports another operation"]
    if claim.status != case.outcome:
        return [f"it reports {claim.status[:40]!r}, where {case.outcome} can be established"]
    if claim.status != "confirmed":
        return []
    if not references:
        return ["it reports as confirmed what nothing confirmed"]
    if claim.reference is not None and claim.reference not in references:
        return ["its reference is of no result of the operation"]
    return []
