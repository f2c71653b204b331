"""What the reading and the undoing tools of the six services do.

Each function takes the episode's `Reader` and the valid arguments of a call and returns JSON data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exactlyonce_env.sandbox.records import Held, Records

__all__ = ["READS", "UNDOES", "NotThereError", "Reader", "matches"]

SEARCH_LAG_S = 30.0
"""How far the tickets' search index is behind [s]."""


class NotThereError(Exception):
    """The service answers 404 with this text."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A look at the services at one moment.

    Attributes
    ----------
    records
        All records.
    now_s
        When the call was issued [s].
    lag_of
        Visibility lag by path [s].
    stale_s
        Additional lag of the replica that answers this read [s].
    page_size
        Entries of a page; 0: no pages.
    """

    records: Records
    now_s: float
    lag_of: Mapping[str, float]
    stale_s: float = 0.0
    page_size: int = 0

    def held(self, kind: str, lag_s: float = 0.0) -> list[Held]:
        """Records of a kind that this read shows."""
        return self.records.held(kind, self.now_s, self.lag_of, lag_s + self.stale_s)

    def page(
        self, name: str, entries: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The entries as an answer; a page of them where there are pages."""
        if not self.page_size:
            return {name: list(entries)}
        cursor = str(arguments.get("cursor", "0"))
        start = int(cursor) if re.fullmatch("[0-9]{1,9}", cursor) else -1
        if not 0 <= start <= len(entries):
            raise NotThereError(f"unknown cursor {cursor!r}")
        end = start + self.page_size
        answer: dict[str, Any] = {name: list(entries[start:end])}
        if end < len(entries):
            answer["next_cursor"] = str(end)
        return answer


Handler = Callable[[Reader, Mapping[str, Any]], dict[str, Any]]


def _stamp(record: Held) -> dict[str, Any]:
    return {"created_at_s": round(max(record.at_s, 0.0), 3)} if record.operation else {}


def _entry(record: Held, *names: str, **more: Any) -> dict[str, Any]:
    """A record as lists show it: its id under the first name, then some of its fields."""
    id_name, *fields = names
    shown = {id_name: record.id} | {name: record.fields[name] for name in fields}
    return shown | more | _stamp(record)


def matches(query: str, *fields: Any) -> bool:
    """Whether every term of the query occurs in the fields."""
    text = " ".join(str(field) for field in fields).casefold()
    return all(term in text for term in query.casefold().split())


def _list_posts(reader: Reader, arguments: Mapping[str, Any]) -> dict[str, Any]:
    if arguments["platform"] == "x":
        raise NotThereError("x offers no way to list posts")
    query = arguments.get("query", "")
    return reader.page(
        "posts",
        [
            _entry(r, "post_id", "platform", "text")
            for r in reader.held("post")
            if r.fields["platform"] == arguments["platform"] and matches(query, r.fields["text"])
        ],
        arguments,
    )


def _list_charges(reader: Reader, arguments: Mapping[str, Any]) -> dict[str, Any]:
    refunded = {r.fields["charge_id"] for r in reader.held("refund")}
    customer = arguments.get("customer")
    return reader.page(
        "charges",
        [
            _entry(r, "charge_id", "customer", "amount", "description", refunded=r.id in refunded)
            for r in reader.held("charge")
            if customer in (None, r.fields["customer"])
        ],
        arguments,
    )


def _ticket(reader: Reader, record: Held, whole: bool, lag_s: float = 0.0) -> dict[str, Any]:
    status = record.fields.get("status", "open")
    for change in reader.held("status", lag_s):
        if change.fields["ticket_id"] == record.id:
            status = change.fields["status"]
    found = {
        "ticket_id": record.id,
        "project": record.fields["project"],
        "title": record.fields["title"],
        "status": status,
    }
    if whole:
        found["body"] = record.fields["body"]
        found["comments"] = [
            _entry(r, "comment_id", "body")
            for r in reader.held("comment", lag_s)
            if r.fields["ticket_id"] == record.id
        ]
    return found | _stamp(record)


def _list_tickets(reader: Reader, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return reader.page(
        "tickets",
        [
            _ticket(reader, r, whole=False)
            for r in reader.held("ticket")
            if r.fields["project"] == arguments["project"]
        ],
        arguments,
    )


def _search_tickets(reader: Reader, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "tickets": [
            _ticket(reader, r, whole=False, lag_s=SEARCH_LAG_S)
            for r in reader.held("ticket", SEARCH_LAG_S)
            if matches(arguments["query"], r.fields["project"], r.fields["title"], r.fields["body"])
        ]
    }


def _get_ticket(reader: Reader, arguments: Mapping[str, Any]) -> dict[str, Any]:
    for record in reader.held("ticket"):
        if record.id == arguments["ticket_id"]:
            return _ticket(reader, record, whole=True)
    raise NotThereError(f"no ticket {arguments['ticket_id']}")


def _list_sent(reader: Reader, arguments: Mapping[str, Any]) -> dict[str, Any]:
    to = arguments.get("to")
    return reader.page(
        "mails",
        [
            _entry(r, "mail_id", "to", "subject", "body")
            for r in reader.held("mail")
            if to in (None, r.fields["to"])
        ],
        arguments,
    )


def _query(reader: Reader, arguments: Mapping[str, Any]) -> dict[str, Any]:
    table, where = arguments["table"], arguments.get("where", {})
    settings: dict[str, Held] = {}
    for record in reader.held("setting"):
        if record.fields["table"] == table:
            settings[record.fields["key"]] = record
    rows = [
        ({"row_id": r.id, **r.fields["row"]}, r)
        for r in reader.held("row")
        if r.fields["table"] == table
    ]
    rows += [
        ({"row_id": f"{table}:{key}", "key": key, **r.fields["values"]}, r)
        for key, r in settings.items()
    ]
    rows.sort(key=lambda row: row[1].at_s)
    return reader.page(
        "rows",
        [row for row, _ in rows if all(row.get(k) == v for k, v in where.items())],
        arguments,
    )


def _list_runs(reader: Reader, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return reader.page(
        "runs",
        [
            _entry(r, "run_id", "service", "version", "environment")
            for r in reader.held("run")
            if r.fields["service"] == arguments["service"]
        ],
        arguments,
    )


READS: dict[str, Handler] = {
    "social_list_posts": _list_posts,
    "billing_list_charges": _list_charges,
    "tickets_list": _list_tickets,
    "tickets_search": _search_tickets,
    "tickets_get": _get_ticket,
    "mail_list_sent": _list_sent,
    "db_query": _query,
    "deploy_list_runs": _list_runs,
}
"""What each reading tool answers."""

UNDOES: dict[str, tuple[str, str]] = {
    "social_delete_post": ("post", "post_id"),
    "tickets_delete": ("ticket", "ticket_id"),
    "db_delete": ("row", "row_id"),
    "deploy_rollback": ("run", "run_id"),
}
"""Kind of record that each undoing tool removes, and the argument that names it."""
