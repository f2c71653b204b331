"""What a service does with a call that writes: refuses it, or sends it through the kernel.

Keys that were used with other arguments, records that must exist, outages and the traits of
`Options` stand here; what a request then does is decided by the kernel, through
`exactlyonce_env.sandbox.operations`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from exactlyonce_env import rules
from exactlyonce_env.plan import Plan
from exactlyonce_env.sandbox.contracts import CALL_S, KEYED
from exactlyonce_env.sandbox.injection import Injector
from exactlyonce_env.sandbox.operations import (
    NEVER_S,
    Fate,
    Operation,
    fault_fate,
    ordinary_fate,
)
from exactlyonce_env.sandbox.options import Options
from exactlyonce_env.sandbox.records import Records, canonical
from exactlyonce_env.sandbox.replies import Reply, come_back, failed, ok, unavailable
from exactlyonce_env.sandbox.tools import BATCH, KEY, PATHS, TOOLS, Path, path_of
from exactlyonce_env.view_building import item_list
from exactlyonce_env.vocabulary import Mode, Response

__all__ = ["Boundary", "Written"]

REFUSED = Fate(int(Mode.SCHEMA_DRIFT), math.inf, math.inf, 0, False)
"""Fate of a request that the service refuses for good."""

NEEDS = {
    "billing/refund": ("charge", "charge_id"),
    "tickets/comment": ("ticket", "ticket_id"),
    "tickets/status": ("ticket", "ticket_id"),
}
"""Kind of record that a write needs to exist, and the argument that names it."""


class Written(NamedTuple):
    """What came of a call that writes."""

    reply: Reply
    clock_s: float  # when the reply was there [s]
    intent: tuple[Any, ...] | None  # of a write that was sent
    focal: bool  # whether the fault met it


class Boundary:
    """The services' side of every write of an episode.

    Parameters
    ----------
    plan
        The contracts as the kernel has them.
    contracts
        Fields of the contract by path.
    options
        Traits of the services.
    records
        What the services hold.
    injector
        The fault.
    """

    def __init__(
        self,
        plan: Plan,
        contracts: Mapping[str, Mapping[str, Any]],
        options: Options,
        records: Records,
        injector: Injector,
    ) -> None:
        self.plan, self.contracts, self.options = plan, contracts, options
        self.records, self.injector = records, injector
        self._context_of = {s.name: k for k, s in enumerate(plan.situations)}
        self._outage_s: dict[str, float] = {}
        self._failed: set[tuple[str, str]] = set()
        self._item_failure = options.item_failures

    def outage_until(self, service: str) -> float:
        """When the service is back [s]; the past where it is not down."""
        return self._outage_s.get(service, NEVER_S)

    def write(self, now_s: float, name: str, arguments: dict[str, Any]) -> Written:
        """Take a call of a writing tool whose arguments are valid, at a time [s]."""
        path = path_of(name, arguments)
        key = arguments.get(KEY)
        service = TOOLS[name].service
        intent = path.intent_of(arguments)
        refusal = self._refusal(now_s, path, arguments, key, intent)
        if refusal is not None:
            return _not_sent(now_s, refusal)
        operation = self.records.operations.get(intent)
        first = operation is None
        if operation is None:
            context = path.name + (KEYED if key is not None else "")
            operation = Operation(self.plan, self._context_of[context], intent, now_s)
            self.records.operations[intent] = operation
        items = 1
        if path.name == BATCH:
            try:
                items = operation.batch_of([canonical(row) for row in arguments["rows"]])
            except ValueError as error:
                if first:
                    del self.records.operations[intent]
                return _not_sent(now_s, failed(400, str(error)))
        fate, sent_items, focal, refused = self._fate(now_s, operation, path, arguments, items)
        until_s = self.outage_until(service)
        response = operation.send(
            now_s, self._told_apart(key, arguments), sent_items, fate, arguments, until_s
        )
        if operation.outage_until_s > self.outage_until(service):
            self._outage_s[service] = operation.outage_until_s
        if key is not None and response == Response.SERVER_ERROR:
            self._failed.add((service, key))
        clock_s = operation.clock_s
        if response == Response.SUCCESS:
            reply = ok(self._acknowledged(clock_s, operation, path, arguments, items, sent_items))
        else:
            reply = self._told(clock_s, response, operation, service, refused)
        return Written(reply, clock_s, intent, focal)

    def _refusal(
        self,
        now_s: float,
        path: Path,
        arguments: Mapping[str, Any],
        key: str | None,
        intent: tuple[Any, ...],
    ) -> Reply | None:
        """What the service would refuse whatever happens; the fault stays armed then."""
        on, field = NEEDS.get(path.name, ("", ""))
        if on and self.records.find(on, arguments[field], now_s) is None:
            return failed(404, f"no {on} {arguments[field]}")
        if key is None:
            return None
        if not self.contracts[path.name].get("accepts_key"):
            where = path.name.split("/")[1]
            return failed(400, f"{where} takes no idempotency_key")
        owner = self._owner(now_s, TOOLS[path.tool].service, key)
        mismatch = self.options.key_mismatch
        if owner in (None, (intent, _parameters(arguments))) or mismatch == "ignore":
            return None
        status = 409 if mismatch == "conflict" else 422
        return failed(status, "this idempotency_key was used with other arguments")

    def _owner(self, now_s: float, service: str, key: str) -> tuple[tuple[Any, ...], str] | None:
        """The write, and its parameters, whose record of the key the service holds now."""
        for intent, operation in self.records.operations.items():
            if TOOLS[PATHS[intent[0]].tool].service == service:
                sending = operation.keeper(key, now_s)
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
        now_s: float,
        operation: Operation,
        path: Path,
        arguments: Mapping[str, Any],
        items: int,
    ) -> tuple[Fate, int, bool, str]:
        """What becomes of this sending.

        Its fate, the items that it really carries, whether it is the focal one, and what the
        service says where it refuses it for good.
        """
        ordinary = ordinary_fate(items, CALL_S)
        key, service = arguments.get(KEY), TOOLS[path.tool].service
        if now_s < self.outage_until(service):
            return ordinary, items, False, ""
        if self.options.unique and self._exists(now_s, path, arguments):
            return REFUSED, items, False, "HTTP 409: it exists already"
        if self.options.cached_failures and key is not None and (service, key) in self._failed:
            return REFUSED._replace(mode=int(Mode.HTTP500_PRE)), items, False, ""
        focal = self.injector.meets(path, arguments)
        if focal and self.injector.armed:
            mode, told = self.injector.fire(path.tool)
            return fault_fate(operation, mode, self.injector.seed), items, True, told
        if self._item_failure and path.name == BATCH and items.bit_count() > 1:
            self._item_failure = False
            kept = rules.first_items(items, max(items.bit_count() // 2, 1))
            return ordinary_fate(kept, CALL_S), kept, focal, ""
        return ordinary, items, focal, ""

    def _exists(self, now_s: float, path: Path, arguments: Mapping[str, Any]) -> bool:
        """Whether a record with the same intent fields stands; of a table, one of the rows."""
        held = self.records.held(path.kind, now_s)
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

    def _told(
        self, now_s: float, response: Response, operation: Operation, service: str, refused: str
    ) -> Reply:
        """What the client is told of a write that was not acknowledged."""
        untrue = " The request was not processed." if self.options.misleading_errors else ""
        if response == Response.TIMEOUT:
            return Reply(f"Timeout: no response within 30 s.{untrue}", True, 0)
        if response == Response.SERVER_ERROR:
            return Reply(f"HTTP 500: internal server error.{untrue}", True, 500)
        retry_after_s = float(operation.contexts["law"]["retry_after_s"][0])
        if response == Response.RATE_LIMITED:
            return come_back(429, "too many requests", retry_after_s)
        if response == Response.UNAVAILABLE:
            until_s = self.outage_until(service)
            return unavailable(until_s - now_s if until_s > now_s else retry_after_s)
        if response == Response.CONFLICT:
            return failed(409, "a request with this idempotency_key is still in progress")
        return Reply(refused, True, int(refused[5:8]))

    def _acknowledged(
        self,
        now_s: float,
        operation: Operation,
        path: Path,
        arguments: Mapping[str, Any],
        items: int,
        sent_items: int,
    ) -> dict[str, Any]:
        """The answer to a write that went well: the record that holds, new or earlier."""
        effects = [e for e in operation.effects(now_s) if not e.copy]
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


def _not_sent(now_s: float, refusal: Reply) -> Written:
    return Written(refusal, now_s + CALL_S, None, False)


def _parameters(arguments: Mapping[str, Any]) -> str:
    return canonical({k: v for k, v in arguments.items() if k != KEY})
