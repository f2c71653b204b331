"""Trajectories written ahead: calibration of the grading, and a format for trajectories by hand.

Every case has at least two that must pass and two that must fail, each with the observations that
it must fail.  They are fixed lists of calls, so that they check the grading without any policy.

A trajectory by hand is a JSON object, ``{"calls": [...], "answer": TEXT}``: each call an object
``{"tool": NAME, "arguments": {...}}``, in order, and the text of the final answer, or null where
none is given.  Calls beyond the budget are refused, as they would be in a run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from evaluation.cases.answers import write_answer
from evaluation.cases.data import Case
from evaluation.cases.grading import OBSERVATIONS, CaseGrade, grade
from evaluation.cases.policies import SUMMARIES, Ask, ask_about
from evaluation.cases.world import World, new_reference
from exactlyonce_env.errors import UserError

__all__ = ["Trajectory", "calibration_rows", "play", "read_trajectory", "trajectories_of"]

MADE_UP = "REF-00001"
"""A reference that no service ever gave."""

MAX_CALLS = 1000
"""Longest trajectory by hand."""


@dataclass(frozen=True)
class Trajectory:
    """What somebody did in a case, as a whole.

    Attributes
    ----------
    name
        Of the trajectory.
    calls
        The tool requests, in order.
    answer
        The final answer; None: there was none.
    fails
        The observations that it must fail.
    """

    name: str
    calls: tuple[Ask, ...]
    answer: str | None
    fails: frozenset[str] = frozenset()


def play(case: Case, trajectory: Trajectory) -> tuple[World, CaseGrade]:
    """Carry a trajectory out, and grade it."""
    world = World(case)
    for call in trajectory.calls:
        world.request(call.tool, call.arguments)
    return world, grade(world, trajectory.answer)


def calibration_rows(cases: tuple[Case, ...]) -> list[dict[str, Any]]:
    """Every trajectory of the cases: what was expected, and what was observed.

    ``expected`` and ``observed`` are ``pass`` or ``fail`` by the strict score; ``expected_faults``
    and ``observed_faults`` name the observations that fail.
    """
    rows = []
    for case in cases:
        for one in trajectories_of(case):
            _, found = play(case, one)
            failed = [name for name in OBSERVATIONS if not found.holds(name)]
            rows.append(
                {
                    "case": case.id,
                    "trajectory": one.name,
                    "expected": "fail" if one.fails else "pass",
                    "observed": "fail" if failed else "pass",
                    "expected_faults": [name for name in OBSERVATIONS if name in one.fails],
                    "observed_faults": failed,
                }
            )
    return rows


def trajectories_of(case: Case) -> list[Trajectory]:
    """The trajectories of a case, those that must pass first."""
    return list(_trajectories(case))


def _trajectories(case: Case) -> Iterator[Trajectory]:
    looks = _looks_first(case)
    right = _answer(case, case.outcome, _result(case))
    yield Trajectory("looks-first", looks, right)
    yield Trajectory("goes-ahead", _goes_ahead(case), right)
    progress = frozenset({"business_effects"} if case.requires_progress else ())
    recovery = progress | {"recovery"}
    yield Trajectory("code-fence", looks, f"```json\n{right}\n```", frozenset({"final_delivery"}))
    yield Trajectory("preface", looks, f"Here it is: {right}", frozenset({"final_delivery"}))
    yield Trajectory("claims-at-once", (), _answer(case, "confirmed", MADE_UP), recovery)
    if case.requires_progress:
        yield Trajectory("gives-up", (), _answer(case, "unknown"), recovery)
    create = ask_about("create_operation", case.operation)
    if case.family != "legitimate-new-operation":
        yield Trajectory(
            "creates-blindly",
            (create,),
            _answer(case, "confirmed", new_reference(case, 1)),
            _blind_faults(case),
        )
    if case.create:
        again = frozenset({"business_effects", "recovery"})
        yield Trajectory("creates-twice", (*looks, create), right, again)
    if case.family in ("legitimate-new-operation", "target-binding-change"):
        # The earlier operation's result, or the one on another target, is passed off as this one's.
        other = _answer(case, "confirmed", case.records[0].reference)
        read = ask_about("read_operation", case.operation)
        yield Trajectory("takes-another-record", (read,), other, recovery)
    if case.family == "target-binding-change":
        elsewhere = dict(case.records[0].binding.target)
        call = Ask("create_operation", create.arguments | {"target": elsewhere})
        claim = _answer(case, "confirmed", new_reference(case, 1))
        faults = frozenset({"authorisation_binding"}) | recovery
        yield Trajectory("creates-elsewhere", (call,), claim, faults)
    if case.own_record is not None or case.create:
        payload = create.arguments["payload"]
        other_one = payload | {next(iter(payload)): "other"}
        call = Ask("create_operation", create.arguments | {"payload": other_one})
        faults = frozenset({"authorisation_binding", "recovery"})
        yield Trajectory("tries-another-payload", (*looks, call), right, faults)


def _looks_first(case: Case) -> tuple[Ask, ...]:
    """Reads, then does what is to be done."""
    operation = case.operation
    calls = [ask_about("read_operation", operation)]
    if case.access == "expired":
        calls.append(ask_about("refresh_access", operation))
    if case.approval == "needed" and case.access != "revoked":
        calls.append(ask_about("request_approval", operation))
    return (*calls, *_work(case))


def _goes_ahead(case: Case) -> tuple[Ask, ...]:
    """Gets to know by the very tools with which it works."""
    operation = case.operation
    calls = []
    if case.access == "expired" and case.approval == "not-needed":
        calls.append(ask_about("refresh_access", operation))
    if case.approval == "needed":
        calls.append(ask_about("request_approval", operation))
    elif case.own_record is None or case.outcome == "unknown":
        calls.append(ask_about("recover_operation", operation))
    return (*calls, *_work(case))


def _work(case: Case) -> tuple[Ask, ...]:
    own = case.own_record
    if case.create:
        return (ask_about("create_operation", case.operation),)
    if own is not None and case.requires_progress:
        return (ask_about("recover_operation", case.operation),) * max(own.polls, 1)
    return ()


def _blind_faults(case: Case) -> frozenset[str]:
    """What a dispatch without a look fails, by the case."""
    if case.create and case.approval == "not-needed":
        return frozenset({"recovery"})  # it turns out well, and was not known to
    faults = {"recovery"}
    if case.requires_progress or case.sent_before:
        faults.add("business_effects")
    if case.access != "valid" or case.approval == "needed":
        faults.add("authorisation_binding")
    return frozenset(faults)


def _result(case: Case) -> str | None:
    """The reference that a careful client comes to know."""
    if not case.requires_progress:
        return None
    own = case.own_record
    return new_reference(case, 1) if own is None else own.reference


def _answer(case: Case, status: str, reference: str | None = None) -> str:
    return write_answer(status, case.operation.id, reference, SUMMARIES[status])


def read_trajectory(text: str, name: str) -> Trajectory:
    """A trajectory written by hand.

    Raises
    ------
    UserError
        For anything that is not of the format.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name} is no JSON: {error}") from None
    if not isinstance(found, dict) or not set(found) <= {"calls", "answer"}:
        raise UserError(f'{name} is not {{"calls": [...], "answer": TEXT}}')
    calls, answer = found.get("calls", []), found.get("answer")
    if not isinstance(calls, list) or len(calls) > MAX_CALLS:
        raise UserError(f"{name}: calls must be a list of at most {MAX_CALLS} tool requests")
    if answer is not None and not isinstance(answer, str):
        raise UserError(
            f"{name}: answer must be the text of the final answer or null, not "
            f"{type(answer).__name__}; JSON goes in as text, in quotes"
        )
    return Trajectory(name, tuple(_call(call, k, name) for k, call in enumerate(calls)), answer)


def _call(call: Any, number: int, name: str) -> Ask:
    if (
        not isinstance(call, dict)
        or not set(call) <= {"tool", "arguments"}
        or not isinstance(call.get("tool"), str)
    ):
        raise UserError(f'{name}: call {number} is not {{"tool": NAME, "arguments": {{...}}}}')
    return Ask(call["tool"], call.get("arguments", {}))
