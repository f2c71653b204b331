"""One episode of the sandbox: an agent's tool calls in, answers out.

The session owns the clock, the budget of calls and the fault; what a write does is decided by the
kernel, through `exactlyonce_env.sandbox.operations`.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from exactlyonce_env import rules
from exactlyonce_env.errors import UserError
from exactlyonce_env.sandbox.contracts import CALL_S, FAULTS, KEYED, paths_of, sandbox_plan
from exactlyonce_env.sandbox.operations import (
    NEVER_S,
    Fate,
    Operation,
    fault_fate,
    ordinary_fate,
)
from exactlyonce_env.sandbox.options import Options, make_options
from exactlyonce_env.sandbox.records import Records, canonical
from exactlyonce_env.sandbox.schemas import checker
from exactlyonce_env.sandbox.services import READS, UNDOES, NotThereError, Reader
from exactlyonce_env.sandbox.tools import (
    BATCH,
    DOCS,
    KEY,
    PATHS,
    TOOLS,
    Path,
    describe,
    hints,
    path_of,
    schema_of,
)
from exactlyonce_env.view_building import item_list
from exactlyonce_env.vocabulary import Ending, Mode, Response

if TYPE_CHECKING:
    from exactlyonce_env.sandbox.tasks import FocalWrite, Task

__all__ = ["MAX_CALLS", "Call", "Reply", "Session", "ToolInfo"]

MAX_CALLS = 40
"""Tool calls of an episode."""

NUDGES = 2
"""Turns without a tool call that are answered; the next one ends the episode."""

OPERATORS = ("answers", "silent")
UNAVAILABLE = "service unavailable"
STALE_S = 300.0
REFUSED = Fate(int(Mode.SCHEMA_DRIFT), math.inf, math.inf, 0, False)
"""Fate of a request that the service refuses for good."""

NEEDS = {
    "billing/refund": ("charge", "charge_id"),
    "tickets/comment": ("ticket", "ticket_id"),
    "tickets/status": ("ticket", "ticket_id"),
}
"""Kind of record that a write needs to exist, and the argument that names it."""

RENAMED = {
    "text": "content",
    "description": "memo",
    "charge_id": "charge",
    "title": "subject",
    "body": "content",
    "status": "state",
    "row": "record",
    "rows": "records",
    "values": "record",
    "version": "release",
}
"""What a drifted schema calls a field."""


@dataclass(frozen=True, slots=True)
class ToolInfo:
    """A tool as it is offered: MCP's fields."""

    name: str
    description: str
    input_schema: dict[str, Any]
    annotations: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a call.

    Attributes
    ----------
    text
        JSON where the call succeeded, else the error's text.
    error
        Whether it is an error.
    status
        As HTTP has it; 0 where no response came.
    retry_after_s
        What the service asked to wait [s].
    ended
        Whether the episode is over.
    """

    text: str
    error: bool
    status: int
    retry_after_s: float = 0.0
    ended: bool = False


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
        self._context_of = {s.name: k for k, s in enumerate(self.plan.situations)}
        self.focal: FocalWrite = self.task.write(write)
        if fault == "partial_batch" and self.focal.path != BATCH:
            raise UserError(
                f"partial_batch fits a batch; {self.task.name}'s {self.focal.name} is none"
            )
        self.seed = zlib.crc32(
            f"{self.task.name}/{self.instance}/{self.focal.name}/{fault}".encode()
        )
        self.armed = fault != "ok"
        self.triggered = False
        """Whether the focal write was attempted."""
        self._matches_left = self.focal.nth
        seeded = self.task.seeded
        if self.options.stranger:
            seeded = self.task.with_stranger(self.focal)
        self.records = Records(seeded, f"{self.task.name}/{self.instance}")
        self.now_s = 0.0
        self.operator_s = 0.0
        self.calls: list[Call] = []
        self.max_calls = max_calls
        self.nudges = 0
        self.ending = Ending.RUNNING
        self.finished: Mapping[str, Any] = {}
        """What ``finish`` was told."""
        self.instructions = self.task.text(instruction)
        self._outage_s: dict[str, float] = {}
        self._drifted: set[str] = set()
        self._failed: set[tuple[str, str]] = set()
        self._item_failure = self.options.item_failures
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
            given = self._in_old_words(name, given)
            fault = checker(self.contract, name)(given)
            if fault is not None:
                reply = self._error(400, fault)
            elif tool.kind == "write":
                reply, intent, focal = self._write(name, given)
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
        given = self._in_old_words(name, given)
        if checker(self.contract, name)(given) is not None:
            return None
        return path_of(name, given).intent_of(given), given

    # -- calls ------------------------------------------------------------------------------------

    def _ok(self, data: Any) -> Reply:
        return Reply(canonical(data), False, 200)

    def _error(self, status: int, text: str) -> Reply:
        self.now_s += CALL_S
        return Reply(f"HTTP {status}: {text}", True, status)

    def _in_old_words(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        """After a schema drift the new name of the field means the same as the old one."""
        if name in self._drifted:
            old = self._drifting_field(name)
            if RENAMED[old] in given and old not in given:
                given[old] = given.pop(RENAMED[old])
        return given

    @staticmethod
    def _drifting_field(name: str) -> str:
        return next(field for field in TOOLS[name].properties if field in RENAMED)

    def _outage_until(self, service: str) -> float:
        return self._outage_s.get(service, NEVER_S)

    def _unavailable(self, until_s: float) -> Reply:
        return _come_back(503, UNAVAILABLE, until_s - self.now_s)

    def _write(
        self, name: str, arguments: dict[str, Any]
    ) -> tuple[Reply, tuple[Any, ...] | None, bool]:
        path = path_of(name, arguments)
        key = arguments.get(KEY)
        service = TOOLS[name].service
        intent = path.intent_of(arguments)
        refusal = self._refusal(path, arguments, key, intent)
        if refusal is not None:
            return refusal, None, False
        operation = self.records.operations.get(intent)
        first = operation is None
        if operation is None:
            context = path.name + (KEYED if key is not None else "")
            operation = Operation(self.plan, self._context_of[context], intent, self.now_s)
            self.records.operations[intent] = operation
        items = 1
        if path.name == BATCH:
            try:
                items = operation.batch_of([canonical(row) for row in arguments["rows"]])
            except ValueError as error:
                if first:
                    del self.records.operations[intent]
                return self._error(400, str(error)), None, False
        fate, sent_items, focal, refused = self._fate(operation, path, arguments, key, items)
        until_s = self._outage_until(service)
        response = operation.send(
            self.now_s,
            self._told_apart(key, arguments),
            sent_items,
            fate,
            arguments,
            until_s,
        )
        if operation.outage_until_s > self._outage_until(service):
            self._outage_s[service] = operation.outage_until_s
        if key is not None and response == Response.SERVER_ERROR:
            self._failed.add((service, key))
        self.now_s = operation.clock_s
        reply = self._reply_to(response, operation, path, arguments, items, sent_items, refused)
        return reply, intent, focal

    def _refusal(
        self,
        path: Path,
        arguments: Mapping[str, Any],
        key: str | None,
        intent: tuple[Any, ...],
    ) -> Reply | None:
        """What the service would refuse whatever happens; the fault stays armed then."""
        on, field = NEEDS.get(path.name, ("", ""))
        if on and self.records.find(on, arguments[field], self.now_s) is None:
            return self._error(404, f"no {on} {arguments[field]}")
        if key is None:
            return None
        if not self.contracts[path.name].get("accepts_key"):
            where = path.name.split("/")[1]
            return self._error(400, f"{where} takes no idempotency_key")
        owner = self._owner(TOOLS[path.tool].service, key)
        mismatch = self.options.key_mismatch
        if owner in (None, (intent, _parameters(arguments))) or mismatch == "ignore":
            return None
        status = 409 if mismatch == "conflict" else 422
        return self._error(status, "this idempotency_key was used with other arguments")

    def _owner(self, service: str, key: str) -> tuple[tuple[Any, ...], str] | None:
        """The write, and its parameters, whose record of the key the service holds now."""
        for intent, operation in self.records.operations.items():
            if TOOLS[PATHS[intent[0]].tool].service == service:
                sending = operation.keeper(key, self.now_s)
                if sending is not None:
                    return intent, _parameters(operation.arguments[sending])
        return None

    def _told_apart(self, key: str | None, arguments: Mapping[str, Any]) -> str | None:
        """The key as the service tells it apart: it may go with the arguments."""
        if key is None or self.options.key_mismatch != "ignore":
            return key
        return f"{key} {_parameters(arguments)}"

    def _fate(
        self,
        operation: Operation,
        path: Path,
        arguments: Mapping[str, Any],
        key: str | None,
        items: int,
    ) -> tuple[Fate, int, bool, str]:
        """What becomes of this sending.

        Its fate, the items that it really carries, whether it is the focal one, and what the
        service says where it refuses it for good.
        """
        ordinary = ordinary_fate(items, CALL_S)
        service = TOOLS[path.tool].service
        if self.now_s < self._outage_until(service):
            return ordinary, items, False, ""
        if self.options.unique and self._exists(path, arguments):
            return REFUSED, items, False, "HTTP 409: it exists already"
        if self.options.cached_failures and key is not None and (service, key) in self._failed:
            return REFUSED._replace(mode=int(Mode.HTTP500_PRE)), items, False, ""
        focal = self._is_focal(path, arguments)
        if focal and self.armed:
            self.armed = False
            mode = Mode(FAULTS.index(self.fault))
            told = ""
            if mode == Mode.SCHEMA_DRIFT:
                self._drifted.add(path.tool)
                field = self._drifting_field(path.tool)
                told = f"HTTP 422: field {field!r} is now called {RENAMED[field]!r}"
            return fault_fate(operation, mode, self.seed), items, True, told
        if self._item_failure and path.name == BATCH and items.bit_count() > 1:
            self._item_failure = False
            kept = rules.first_items(items, max(items.bit_count() // 2, 1))
            return ordinary_fate(kept, CALL_S), kept, focal, ""
        return ordinary, items, focal, ""

    def _is_focal(self, path: Path, arguments: Mapping[str, Any]) -> bool:
        """Whether this call is the n-th one that matches the focal write."""
        focal = self.focal
        if path.name != focal.path or self._matches_left <= 0:
            return False
        if any(arguments.get(field) != value for field, value in focal.where.items()):
            return False
        self._matches_left -= 1
        if self._matches_left == 0:
            self.triggered = True
            return True
        return False

    def _exists(self, path: Path, arguments: Mapping[str, Any]) -> bool:
        """Whether a record with the same intent fields stands; of a table, one of the rows."""
        held = self.records.held(path.kind, self.now_s)
        if path.kind == "row":
            rows = arguments["rows"] if "rows" in arguments else [arguments["row"]]
            return any(
                record.fields["table"] == arguments["table"] and record.fields["row"] in rows
                for record in held
            )
        return any(
            all(record.fields.get(field) == arguments[field] for field in path.intent)
            for record in held
        )

    def _reply_to(
        self,
        response: Response,
        operation: Operation,
        path: Path,
        arguments: Mapping[str, Any],
        items: int,
        sent_items: int,
        refused: str,
    ) -> Reply:
        if response == Response.SUCCESS:
            return self._ok(self._acknowledged(operation, path, arguments, items, sent_items))
        untrue = " The request was not processed." if self.options.misleading_errors else ""
        if response == Response.TIMEOUT:
            return Reply(f"Timeout: no response within 30 s.{untrue}", True, 0)
        if response == Response.SERVER_ERROR:
            return Reply(f"HTTP 500: internal server error.{untrue}", True, 500)
        retry_after_s = float(operation.contexts["law"]["retry_after_s"][0])
        if response == Response.RATE_LIMITED:
            return _come_back(429, "too many requests", retry_after_s)
        if response == Response.UNAVAILABLE:
            until_s = self._outage_until(TOOLS[path.tool].service)
            if until_s > self.now_s:
                return self._unavailable(until_s)
            return _come_back(503, UNAVAILABLE, retry_after_s)
        if response == Response.CONFLICT:
            return Reply(
                "HTTP 409: a request with this idempotency_key is still in progress", True, 409
            )
        return Reply(refused, True, int(refused[5:8]))

    def _acknowledged(
        self,
        operation: Operation,
        path: Path,
        arguments: Mapping[str, Any],
        items: int,
        sent_items: int,
    ) -> dict[str, Any]:
        """The answer to a write that went well: the record that holds, new or earlier."""
        effects = [e for e in operation.effects(self.now_s) if not e.copy]
        latest = len(operation.arguments) - 1
        own = [e for e in effects if e.sending == latest]
        key = arguments.get(KEY)
        if not own and key is not None:
            ours = [e for e in effects if operation.arguments[e.sending].get(KEY) == key]
            said = _parameters(arguments)
            own = [e for e in ours if _parameters(operation.arguments[e.sending]) == said] or ours
        if path.name == BATCH:
            return self._batch_answer(operation, effects, items, sent_items)
        if path.kind in ("status", "setting", "refund"):
            return {"ok": True} | {field: arguments[field] for field in path.intent}
        name = {"mail": "mail_id", "row": "row_id"}.get(path.kind, f"{path.kind}_id")
        if not own:
            return {"ok": True}
        return {"ok": True, name: self.records.id_of(operation, own[0], path.kind)}

    def _batch_answer(
        self, operation: Operation, effects: list[Any], items: int, sent_items: int
    ) -> dict[str, Any]:
        latest = len(operation.arguments) - 1
        key = operation.arguments[latest].get(KEY)
        ids: dict[int, str] = {}
        for effect in sorted(effects, key=lambda effect: effect.sending != latest):
            own = effect.sending == latest
            replayed = key == operation.arguments[effect.sending].get(KEY)
            if own or (key is not None and replayed):
                ids.setdefault(effect.item, self.records.id_of(operation, effect, "row"))
        asked, written = item_list(items), set(item_list(sent_items))
        answer: dict[str, Any] = {
            "ok": items == sent_items,
            "row_ids": [ids[i] for i in asked if i in ids and i in written],
        }
        if items != sent_items:
            answer["failed"] = [
                {"index": n, "error": "row could not be written"}
                for n, i in enumerate(asked)
                if i not in written
            ]
        return answer

    def _read(self, name: str, arguments: Mapping[str, Any]) -> Reply:
        service = TOOLS[name].service
        until_s = self._outage_until(service)
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
            reply = self._ok(READS[name](reader, arguments))
        except NotThereError as missing:
            reply = Reply(f"HTTP 404: {missing}", True, 404)
        if self.now_s < until_s:
            reply = self._unavailable(until_s)
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
        until_s = self._outage_until(TOOLS[name].service)
        if self.now_s < until_s:
            reply = self._unavailable(until_s)
            self.now_s += CALL_S
            return reply
        kind, field = UNDOES[name]
        record = self.records.find(kind, arguments[field], self.now_s)
        if record is None:
            return self._error(404, f"no {kind} {arguments[field]}")
        self.records.removed[record.id] = self.now_s
        self.now_s += CALL_S
        return self._ok({"ok": True, field: record.id})

    def _wait(self, seconds: float) -> Reply:
        until_s = self.now_s + seconds
        for operation in self.open_operations:
            operation.wait(until_s)
        self.now_s = until_s
        return self._ok({"waited_s": seconds})

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
            return self._ok({"answer": None, "note": "nobody answered"})
        return self._ok({"answer": [self._report(op) for op in asked], "at_s": self.now_s})

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


def _come_back(status: int, words: str, seconds: float) -> Reply:
    """An error that asks to wait [s]."""
    text = f"HTTP {status}: {words}. Retry-After: {math.ceil(seconds)} s"
    return Reply(text, True, status, seconds)


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


def _parameters(arguments: Mapping[str, Any]) -> str:
    return canonical({k: v for k, v in arguments.items() if k != KEY})
