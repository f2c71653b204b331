"""One episode of the sandbox: an agent's tool calls in, answers out.

The session owns the clock and the budget of calls, and answers reads, waits and the operator.  The
services' side of a write stands in `exactlyonce_env.sandbox.boundary`, the fault in
`exactlyonce_env.sandbox.injection`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from exactlyonce_env.errors import UserError
from exactlyonce_env.sandbox.boundary import Boundary, Written
from exactlyonce_env.sandbox.contracts import CALL_S, FAULTS, paths_of, sandbox_plan
from exactlyonce_env.sandbox.injection import Injector
from exactlyonce_env.sandbox.operations import Operation
from exactlyonce_env.sandbox.options import Options, make_options
from exactlyonce_env.sandbox.records import Records, canonical
from exactlyonce_env.sandbox.replies import Reply, failed, ok, unavailable
from exactlyonce_env.sandbox.schemas import checker
from exactlyonce_env.sandbox.services import READS, UNDOES, NotThereError, Reader
from exactlyonce_env.sandbox.tools import (
    BATCH,
    DOCS,
    PATHS,
    TOOLS,
    describe,
    hints,
    path_of,
    schema_of,
)
from exactlyonce_env.vocabulary import Ending

if TYPE_CHECKING:
    from exactlyonce_env.sandbox.tasks import FocalWrite, Task

__all__ = ["MAX_CALLS", "Call", "Reply", "Session", "ToolInfo"]

MAX_CALLS = 40
"""Tool calls of an episode."""

NUDGES = 2
"""Turns without a tool call that are answered; the next one ends the episode."""

OPERATORS = ("answers", "silent")
STALE_S = 300.0


@dataclass(frozen=True, slots=True)
class ToolInfo:
    """A tool as it is offered: MCP's fields."""

    name: str
    description: str
    input_schema: dict[str, Any]
    annotations: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One call as it went."""

    number: int
    tool: str
    arguments: Mapping[str, Any]
    began_s: float
    ended_s: float
    reply: Reply
    intent: tuple[Any, ...] | None  # of a write that was sent
    focal: bool  # whether the fault met it


class Session:
    """An episode.

    Parameters
    ----------
    task
        A task's name or a `Task`.
    instance
        Which seeded instance of it, from 0 on.
    write
        The focal write that the fault attaches to, by name or number; None: the first.
    fault
        ``ok`` or one of the twelve fault modes.
    contract, docs, instruction, operator
        Variants: see `CONTRACTS`, `DOCS`, ``default`` or ``no-cue``, ``answers`` or ``silent``.
    options
        Traits of the services, see `Options`.
    tail
        A delay law in place of the reference tail.

    Raises
    ------
    UserError
        For an unknown name, and for ``partial_batch`` at a write that is no batch.
    """

    def __init__(
        self,
        task: str | Task,
        *,
        instance: int = 0,
        write: str | int | None = None,
        fault: str = "ok",
        contract: str = "native",
        docs: str = "default",
        instruction: str = "default",
        operator: str = "answers",
        options: Mapping[str, Any] | Options | None = None,
        tail: str | None = None,
        max_calls: int = MAX_CALLS,
    ) -> None:
        from exactlyonce_env.sandbox.tasks import make_task

        for name, value, choices in (
            ("fault", fault, FAULTS),
            ("docs", docs, DOCS),
            ("instruction", instruction, ("default", "no-cue")),
            ("operator", operator, OPERATORS),
        ):
            if value not in choices:
                raise UserError(f"unknown {name} {value!r}; choose from {', '.join(choices)}")
        self.task = make_task(task, instance) if isinstance(task, str) else task
        self.instance = self.task.instance
        self.contract, self.docs, self.operator, self.fault = contract, docs, operator, fault
        self.options = make_options(options)
        self.contracts = paths_of(contract)
        overrides: dict[str, Any] = {}
        if self.options.key_retention_s is not None:
            overrides["key_retention_s"] = self.options.key_retention_s
        if self.options.in_flight_same_key != "coalesce":
            overrides["in_flight_same_key"] = self.options.in_flight_same_key
        self.plan = sandbox_plan(
            contract, answers=operator == "answers", overrides=overrides, tail=tail
        )
        self.focal: FocalWrite = self.task.write(write)
        self.injector = Injector(self.task, self.focal, fault)
        seeded = self.task.seeded
        if self.options.stranger:
            seeded = self.task.with_stranger(self.focal)
        self.records = Records(seeded, f"{self.task.name}/{self.instance}")
        self.boundary = Boundary(
            self.plan, self.contracts, self.options, self.records, self.injector
        )
        self.now_s = 0.0
        self.operator_s = 0.0
        self.calls: list[Call] = []
        self.max_calls = max_calls
        self.nudges = 0
        self.ending = Ending.RUNNING
        self.finished: Mapping[str, Any] = {}
        """What ``finish`` was told."""
        self.instructions = self.task.text(instruction)
        self._reads = 0
        self._lag_of = {
            name: float(fields.get("lag_s", 0.0)) for name, fields in self.contracts.items()
        }

    # -- what the agent sees ----------------------------------------------------------------------

    @property
    def tools(self) -> list[ToolInfo]:
        """The tools on offer."""
        return [
            ToolInfo(
                tool.name,
                describe(tool, self.contracts, self.docs),
                schema_of(tool, self.contracts),
                hints(tool, self.contracts),
            )
            for tool in TOOLS.values()
        ]

    @property
    def triggered(self) -> bool:
        """Whether the focal write was attempted."""
        return self.injector.triggered

    @property
    def armed(self) -> bool:
        """Whether the fault is still to come."""
        return self.injector.armed

    @property
    def seed(self) -> int:
        """Of the fault's draws."""
        return self.injector.seed

    @property
    def ended(self) -> bool:
        """Whether the episode is over."""
        return self.ending != Ending.RUNNING

    def call(self, name: str, arguments: Any = None) -> Reply:
        """Call a tool.  Whatever is wrong with a call is told in the reply, never raised."""
        if self.ended:
            return Reply("The task has ended; no further calls are taken.", True, 410, ended=True)
        began_s = self.now_s
        given, name = _as_json(arguments), _as_text(name)
        intent, focal = None, False
        tool = TOOLS.get(name)
        if tool is None:
            reply = self._error(404, f"there is no tool {name!r}")
        elif given is None:
            reply = self._error(400, "arguments must be a JSON object")
        else:
            given = self.injector.in_old_words(name, given)
            fault = checker(self.contract, name)(given)
            if fault is not None:
                reply = self._error(400, fault)
            elif tool.kind == "write":
                reply, _, intent, focal = self._write(name, given)
            elif tool.kind == "read":
                reply = self._read(name, given)
            elif tool.kind == "undo":
                reply = self._undo(name, given)
            elif name == "wait":
                reply = self._wait(float(given["seconds"]))
            elif name == "escalate_to_human":
                reply = self._ask()
            else:
                reply = self._finish(given)
        reply = self._counted(reply)
        self.calls.append(
            Call(len(self.calls), name, given or {}, began_s, self.now_s, reply, intent, focal)
        )
        return reply

    def _counted(self, reply: Reply) -> Reply:
        """The reply, marked where the budget of calls or the episode has come to its end."""
        if not self.ended and len(self.calls) + 1 >= self.max_calls:
            self.ending = Ending.EXHAUSTED
        return replace(reply, ended=True) if self.ended else reply

    def say(self, text: str) -> str | None:
        """A turn of the agent without a tool call; the nudge it gets, or None where it ends all."""
        if self.ended:
            return None
        self.nudges += 1
        if self.nudges > NUDGES:
            self.ending = Ending.EXHAUSTED
            return None
        return "Go on with the task by calling a tool; call finish when you are done."

    def operation(self, tool: str, arguments: Mapping[str, Any]) -> Operation | None:
        """The operation that a valid call of a writing tool belongs to, if it was ever sent."""
        return self.records.operations.get(path_of(tool, arguments).intent_of(arguments))

    def write_of(self, name: str, arguments: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The intent and the arguments of a call that writes; None of any other or invalid call."""
        tool, given = TOOLS.get(str(name)), _as_json(arguments)
        if tool is None or tool.kind != "write" or given is None:
            return None
        given = self.injector.in_old_words(name, given)
        if checker(self.contract, name)(given) is not None:
            return None
        return path_of(name, given).intent_of(given), given

    # -- calls ------------------------------------------------------------------------------------

    def _error(self, status: int, text: str) -> Reply:
        self.now_s += CALL_S
        return failed(status, text)

    def _write(self, name: str, given: dict[str, Any]) -> Written:
        done = self.boundary.write(self.now_s, name, given)
        self.now_s = done.clock_s
        return done

    def _read(self, name: str, arguments: Mapping[str, Any]) -> Reply:
        service = TOOLS[name].service
        until_s = self.boundary.outage_until(service)
        self._reads += 1
        every = self.options.stale_every
        stale = every > 0 and self._reads % every == 0
        covered = [] if stale else self._covered(name, arguments)
        reader = Reader(
            self.records,
            self.now_s,
            self._lag_of,
            STALE_S if stale else 0.0,
            self.options.page_size,
        )
        try:
            reply = ok(READS[name](reader, arguments))
        except NotThereError as missing:
            reply = Reply(f"HTTP 404: {missing}", True, 404)
        if self.now_s < until_s:
            reply = unavailable(until_s - self.now_s)
        elif "next_cursor" in reply.text:
            covered = []  # one page is not the list
        for operation in covered:
            operation.read(self.now_s, until_s)
        self.now_s += CALL_S
        return reply

    def _covered(self, name: str, arguments: Mapping[str, Any]) -> list[Operation]:
        """The operations whose effects this read would show."""
        if any(field in arguments for field in ("query", "where", "cursor")):
            return []
        return [
            operation
            for intent, operation in self.records.operations.items()
            if PATHS[intent[0]].looked_up[0] == name
            and PATHS[intent[0]].covered_by(arguments, operation.arguments[0])
        ]

    def _undo(self, name: str, arguments: Mapping[str, Any]) -> Reply:
        until_s = self.boundary.outage_until(TOOLS[name].service)
        if self.now_s < until_s:
            reply = unavailable(until_s - self.now_s)
            self.now_s += CALL_S
            return reply
        kind, field = UNDOES[name]
        record = self.records.find(kind, arguments[field], self.now_s)
        if record is None:
            return self._error(404, f"no {kind} {arguments[field]}")
        self.records.removed[record.id] = self.now_s
        self.now_s += CALL_S
        return ok({"ok": True, field: record.id})

    def _wait(self, seconds: float) -> Reply:
        until_s = self.now_s + seconds
        for operation in self.open_operations:
            operation.wait(until_s)
        self.now_s = until_s
        return ok({"waited_s": seconds})

    @property
    def open_operations(self) -> list[Operation]:
        """Those whose latest sending was not acknowledged."""
        return [op for op in self.records.operations.values() if op.is_open]

    def _ask(self) -> Reply:
        asked = self.open_operations
        delay_s = float(self.plan.contracts["operator_delay_s"][0])
        for operation in asked:
            operation.ask(self.now_s)
        self.now_s += delay_s
        self.operator_s += delay_s
        if self.operator == "silent":
            return ok({"answer": None, "note": "nobody answered"})
        return ok({"answer": [self._report(op) for op in asked], "at_s": self.now_s})

    def _report(self, operation: Operation) -> dict[str, Any]:
        """What the operator says of one write."""
        path = PATHS[operation.intent[0]]
        effects = operation.effects(self.now_s, self.now_s)
        if operation.contract["idempotent"]:
            effects = effects[:1]
        found: dict[str, Any] = {
            "write": path.tool,
            **dict(zip(path.intent, operation.intent[1:], strict=True)),
            "found": len(effects),
        }
        if path.name == BATCH:
            found["rows_found"] = sorted({effect.item for effect in effects})
        return found

    def _finish(self, arguments: Mapping[str, Any]) -> Reply:
        self.finished = arguments
        sure = arguments["status"] == "completed" and not arguments.get("uncertain_operations")
        self.ending = Ending.CLAIMED if sure else Ending.UNCERTAIN
        return Reply(canonical({"ok": True}), False, 200, ended=True)

    def settle(self) -> None:
        """Let every request under way arrive; the grader calls it once the episode is over."""
        for operation in self.records.operations.values():
            operation.settle()


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def _as_json(arguments: Any) -> dict[str, Any] | None:
    """The arguments of a call in JSON types, a copy; None where they are no JSON object."""
    if arguments is None:
        return {}
    try:
        text = _ENCODER.encode(dict(arguments) if isinstance(arguments, Mapping) else None)
        text.encode()
        given = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None
    return given if isinstance(given, dict) else None


def _as_text(name: Any) -> str:
    """A tool's name as text that can be written out."""
    return str(name).encode(errors="replace").decode()
