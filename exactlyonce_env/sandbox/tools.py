"""The tools of the sandbox as an agent sees them: names, descriptions, schemas, contracts.

What a write promises is taken from the contract variant, so that a description never says anything
that does not hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "BATCH",
    "DOCS",
    "KEY",
    "PATHS",
    "TOOLS",
    "Path",
    "Tool",
    "describe",
    "hints",
    "path_of",
    "paths_of_tool",
    "schema_of",
]

DOCS = ("default", "no-consistency", "explicit")
"""Documentation variants: as is; without words on lag and consistency; with a word on each write
that repeating it repeats its effect."""


KEY = "idempotency_key"
"""The argument that carries a key."""

BATCH = "database/batch_insert"
"""The one path that writes several items at a time."""


@dataclass(frozen=True)
class Tool:
    """One tool.

    Attributes
    ----------
    name
        As agents call it.
    service
        Whose outage it shares; empty for the general tools.
    kind
        ``write``, ``undo``, ``read``, or ``general``.
    text
        What it does, in one or two sentences.
    properties
        JSON schema of each argument, in order.
    optional
        Arguments that may be left out.
    """

    name: str
    service: str
    kind: str
    text: str
    properties: Mapping[str, Mapping[str, Any]]
    optional: tuple[str, ...] = ()


@dataclass(frozen=True)
class Path:
    """One way of writing, with a contract of its own.

    Attributes
    ----------
    name
        As the presets name it, such as ``social/weibo``.
    tool
        The tool that writes so.
    where
        Argument values that single the path out among those of the tool.
    intent
        Arguments that make two calls the same write.
    reader
        The tool that reads it back, and which of the write's arguments it takes.
    read_arguments
        Arguments of the reader, by name, each from an argument of the write.
    undo
        The tool that undoes an effect; empty where nothing does.
    kind
        Kind of record that an effect leaves.
    """

    name: str
    tool: str
    intent: tuple[str, ...]
    kind: str
    reader: str = ""
    read_arguments: Mapping[str, str] = field(default_factory=dict)
    where: Mapping[str, str] = field(default_factory=dict)
    undo: str = ""

    def intent_of(self, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
        """What two calls that are the same write share: the path's name and its intent fields."""
        return (self.name, *(arguments[field] for field in self.intent))

    @property
    def looked_up(self) -> tuple[str, Mapping[str, str]]:
        """The tool that a client tries to read the write back with, and its arguments.

        Where nothing reads it back, the one that would if the path were like its siblings.
        """
        if self.reader:
            return self.reader, self.read_arguments
        return _SIBLINGS_READER

    def covered_by(self, arguments: Mapping[str, Any], sent: Mapping[str, Any]) -> bool:
        """Whether a call of that tool with ``arguments`` is about a write that ``sent`` what."""
        taken = self.looked_up[1].items()
        return all(arguments.get(name, sent[source]) == sent[source] for name, source in taken)


_SIBLINGS_READER: tuple[str, Mapping[str, str]] = ("social_list_posts", {"platform": "platform"})


def _text(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "description": description, **more}


PLATFORMS = ("mastodon", "weibo", "linkedin", "x")
STATUSES = ("open", "in_progress", "resolved", "closed")
ENVIRONMENTS = ("staging", "production")

_PLATFORM = _text("Where to.", enum=list(PLATFORMS))
_KEY = _text("Key of this write; calls with the same key take effect once.", maxLength=200)
_ROW = {"type": "object", "minProperties": 1, "description": "Column names and values."}
_TABLE = _text("Name of the table.")
_TICKET = _text("Id of the ticket.")

TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(
            "social_publish",
            "social",
            "write",
            "Publish a post on one platform.",
            {
                "platform": _PLATFORM,
                "text": _text("Text of the post.", maxLength=5000),
                "idempotency_key": _KEY,
            },
            ("idempotency_key",),
        ),
        Tool(
            "social_list_posts",
            "social",
            "read",
            "List the posts on one platform, oldest first.",
            {
                "platform": _PLATFORM,
                "query": _text("Words that must all occur in a post."),
                "cursor": _text("Where to go on, from the answer before."),
            },
            ("query", "cursor"),
        ),
        Tool(
            "social_delete_post",
            "social",
            "undo",
            "Delete a post.",
            {"post_id": _text("Id of the post.")},
        ),
        Tool(
            "billing_charge",
            "billing",
            "write",
            "Charge a customer.",
            {
                "customer": _text("Id of the customer."),
                "amount": {
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "maximum": 1000000,
                    "description": "Amount in euros.",
                },
                "description": _text("What the charge is for."),
                "idempotency_key": _KEY,
            },
            ("idempotency_key",),
        ),
        Tool(
            "billing_list_charges",
            "billing",
            "read",
            "List charges with their refunds, oldest first.",
            {
                "customer": _text("Only those of this customer."),
                "cursor": _text("Where to go on, from the answer before."),
            },
            ("customer", "cursor"),
        ),
        Tool(
            "billing_refund",
            "billing",
            "write",
            "Refund a charge in full.",
            {"charge_id": _text("Id of the charge."), "idempotency_key": _KEY},
            ("idempotency_key",),
        ),
        Tool(
            "tickets_create",
            "tickets",
            "write",
            "Open a ticket in a project.",
            {
                "project": _text("Short name of the project."),
                "title": _text("Title.", maxLength=300),
                "body": _text("What it is about."),
                "idempotency_key": _KEY,
            },
            ("idempotency_key",),
        ),
        Tool(
            "tickets_list",
            "tickets",
            "read",
            "List the tickets of a project, oldest first.",
            {
                "project": _text("Short name of the project."),
                "cursor": _text("Where to go on, from the answer before."),
            },
            ("cursor",),
        ),
        Tool(
            "tickets_search",
            "tickets",
            "read",
            "Search tickets of all projects by words.",
            {"query": _text("Words that must all occur in a ticket.")},
        ),
        Tool(
            "tickets_get",
            "tickets",
            "read",
            "Show one ticket with its status and comments.",
            {"ticket_id": _TICKET},
        ),
        Tool(
            "tickets_comment",
            "tickets",
            "write",
            "Add a comment to a ticket.",
            {
                "ticket_id": _TICKET,
                "body": _text("Text of the comment."),
                "idempotency_key": _KEY,
            },
            ("idempotency_key",),
        ),
        Tool(
            "tickets_set_status",
            "tickets",
            "write",
            "Set the status of a ticket.",
            {
                "ticket_id": _TICKET,
                "status": _text("New status.", enum=list(STATUSES)),
                "idempotency_key": _KEY,
            },
            ("idempotency_key",),
        ),
        Tool(
            "tickets_delete",
            "tickets",
            "undo",
            "Delete a ticket.",
            {"ticket_id": _TICKET},
        ),
        Tool(
            "mail_send",
            "mail",
            "write",
            "Send an e-mail.",
            {
                "to": _text("Address of the recipient or list.", pattern=r"^[^@\s]+@[^@\s]+$"),
                "subject": _text("Subject.", maxLength=300),
                "body": _text("Text of the mail."),
                "idempotency_key": _KEY,
            },
            ("idempotency_key",),
        ),
        Tool(
            "mail_list_sent",
            "mail",
            "read",
            "List the folder of sent mail, oldest first.",
            {
                "to": _text("Only mail to this address."),
                "cursor": _text("Where to go on, from the answer before."),
            },
            ("to", "cursor"),
        ),
        Tool(
            "db_insert",
            "database",
            "write",
            "Insert one row into a table.",
            {"table": _TABLE, "row": _ROW, "idempotency_key": _KEY},
            ("idempotency_key",),
        ),
        Tool(
            "db_batch_insert",
            "database",
            "write",
            "Insert several rows into a table, one after the other; a failure may leave some.",
            {
                "table": _TABLE,
                "rows": {
                    "type": "array",
                    "items": _ROW,
                    "minItems": 1,
                    "maxItems": 30,
                    "description": "The rows, in order.",
                },
                "idempotency_key": _KEY,
            },
            ("idempotency_key",),
        ),
        Tool(
            "db_upsert",
            "database",
            "write",
            "Set the row of a table that has this key.",
            {
                "table": _TABLE,
                "key": _text("Key of the row."),
                "values": _ROW,
                "idempotency_key": _KEY,
            },
            ("idempotency_key",),
        ),
        Tool(
            "db_query",
            "database",
            "read",
            "Show the rows of a table, oldest first.",
            {
                "table": _TABLE,
                "where": {"type": "object", "description": "Values that columns must have."},
                "cursor": _text("Where to go on, from the answer before."),
            },
            ("where", "cursor"),
        ),
        Tool(
            "db_delete",
            "database",
            "undo",
            "Delete one row by its row id.",
            {"table": _TABLE, "row_id": _text("Row id, as a query shows it.")},
        ),
        Tool(
            "deploy_run",
            "deployments",
            "write",
            "Deploy a version of a service to an environment.",
            {
                "service": _text("Name of the service."),
                "version": _text("Version to deploy."),
                "environment": _text("Where to.", enum=list(ENVIRONMENTS)),
                "idempotency_key": _KEY,
            },
            ("idempotency_key",),
        ),
        Tool(
            "deploy_list_runs",
            "deployments",
            "read",
            "List the deployment runs of a service, oldest first.",
            {
                "service": _text("Name of the service."),
                "cursor": _text("Where to go on, from the answer before."),
            },
            ("cursor",),
        ),
        Tool(
            "deploy_rollback",
            "deployments",
            "undo",
            "Roll one deployment run back.",
            {"run_id": _text("Id of the run.")},
        ),
        Tool(
            "wait",
            "",
            "general",
            "Let time pass before doing anything else.",
            {
                "seconds": {
                    "type": "number",
                    "minimum": 0,
                    "maximum": 86400,
                    "description": "How long.",
                }
            },
        ),
        Tool(
            "escalate_to_human",
            "",
            "general",
            "Ask the operator on duty what became of the writes that ended in an error. An answer "
            "takes 15 minutes.",
            {"question": _text("What you want to know.")},
        ),
        Tool(
            "finish",
            "",
            "general",
            "End the task and report.",
            {
                "status": _text(
                    "completed: all of it is done exactly as asked; uncertain: you do not know; "
                    "failed: it could not be done.",
                    enum=["completed", "uncertain", "failed"],
                ),
                "summary": _text("What was done."),
                "uncertain_operations": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "Writes whose outcome you do not know.",
                },
            },
            ("uncertain_operations",),
        ),
    )
}

_POSTS = {"reader": _SIBLINGS_READER[0], "read_arguments": _SIBLINGS_READER[1]}
_ROWS = {"reader": "db_query", "read_arguments": {"table": "table"}}
_TICKET_ITSELF = {"reader": "tickets_get", "read_arguments": {"ticket_id": "ticket_id"}}

PATHS: dict[str, Path] = {
    path.name: path
    for path in (
        *(
            Path(
                f"social/{platform}",
                "social_publish",
                ("platform",),
                "post",
                where={"platform": platform},
                undo="social_delete_post",
                **({} if platform == "x" else _POSTS),  # type: ignore[arg-type]
            )
            for platform in PLATFORMS
        ),
        Path(
            "billing/charge",
            "billing_charge",
            ("customer", "amount"),
            "charge",
            "billing_list_charges",
            {"customer": "customer"},
            undo="billing_refund",
        ),
        Path("billing/refund", "billing_refund", ("charge_id",), "refund", "billing_list_charges"),
        Path(
            "tickets/create",
            "tickets_create",
            ("project",),
            "ticket",
            "tickets_list",
            {"project": "project"},
            undo="tickets_delete",
        ),
        Path("tickets/comment", "tickets_comment", ("ticket_id",), "comment", **_TICKET_ITSELF),  # type: ignore[arg-type]
        Path(
            "tickets/status",
            "tickets_set_status",
            ("ticket_id", "status"),
            "status",
            **_TICKET_ITSELF,  # type: ignore[arg-type]
        ),
        Path("mail/send", "mail_send", ("to",), "mail", "mail_list_sent", {"to": "to"}),
        Path("database/insert", "db_insert", ("table",), "row", undo="db_delete", **_ROWS),  # type: ignore[arg-type]
        Path(
            BATCH,
            "db_batch_insert",
            ("table",),
            "row",
            undo="db_delete",
            **_ROWS,  # type: ignore[arg-type]
        ),
        Path("database/upsert", "db_upsert", ("table", "key"), "setting", **_ROWS),  # type: ignore[arg-type]
        Path(
            "deployments/run",
            "deploy_run",
            ("service", "environment"),
            "run",
            "deploy_list_runs",
            {"service": "service"},
            undo="deploy_rollback",
        ),
    )
}

_BY_TOOL: dict[str, list[Path]] = {}
for _path in PATHS.values():
    _BY_TOOL.setdefault(_path.tool, []).append(_path)


def path_of(tool: str, arguments: Mapping[str, Any]) -> Path:
    """The path that a valid call of a writing tool takes."""
    paths = _BY_TOOL[tool]
    return next(path for path in paths if all(arguments.get(k) == v for k, v in path.where.items()))


def paths_of_tool(tool: str) -> list[Path]:
    """The paths that a tool may take; none where it does not write."""
    return list(_BY_TOOL.get(tool, ()))


def schema_of(tool: Tool, contracts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """JSON schema of a tool's arguments, under the contracts (by path) of a variant."""
    paths = paths_of_tool(tool.name)
    takes_key = any(contracts[path.name].get("accepts_key") for path in paths)
    properties = {
        name: dict(schema)
        for name, schema in tool.properties.items()
        if name != "idempotency_key" or takes_key
    }
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in tool.optional],
        "additionalProperties": False,
    }


def describe(tool: Tool, contracts: Mapping[str, Mapping[str, Any]], docs: str) -> str:
    """The tool's description in a documentation variant."""
    words = [tool.text]
    paths = paths_of_tool(tool.name)
    keyed = [path for path in paths if contracts[path.name].get("accepts_key")]
    if keyed and len(keyed) == len(paths):
        words.append("With an idempotency_key, calls of the same key take effect once.")
    elif keyed:
        names = ", ".join(path.name.split("/")[1] for path in keyed)
        words.append(f"On {names} an idempotency_key makes calls of the same key take effect once.")
    if docs != "no-consistency":
        words += _consistency(tool, contracts)
    if docs == "explicit" and tool.kind == "write":
        repeated = [path for path in paths if not contracts[path.name].get("idempotent")]
        if repeated:
            words.append("This write is not idempotent: every call that is executed has an effect.")
    return " ".join(words)


def _consistency(tool: Tool, contracts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What a reading tool says of how fresh its answers are."""
    if tool.name == "tickets_search":
        return ["The index follows with a delay of up to 30 s."]
    read = [path for path in PATHS.values() if path.reader == tool.name]
    words = []
    for lag_s in sorted({float(contracts[path.name].get("lag_s", 0.0)) for path in read} - {0.0}):
        names = [p.name.split("/")[1] for p in read if contracts[p.name].get("lag_s") == lag_s]
        late = f"New entries show up to {lag_s:g} s late"
        everywhere = len(names) == len(read)
        words.append(f"{late}." if everywhere else f"{late} on {', '.join(names)}.")
    if read and not words:
        words.append("Answers are up to date.")
    if tool.name == "social_list_posts":
        words.append("Posts on x cannot be listed.")
    return words


def hints(tool: Tool, contracts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The machine-readable contract of a tool: MCP's hints, and what wrappers go by."""
    paths = paths_of_tool(tool.name)
    writes = tool.kind in ("write", "undo")
    idempotent = not writes or (
        bool(paths) and all(contracts[p.name].get("idempotent") for p in paths)
    )
    found: dict[str, Any] = {
        "readOnlyHint": not writes and tool.name != "finish",
        "idempotentHint": idempotent,
        "destructiveHint": tool.kind == "undo",
    }
    if paths:
        found["contracts"] = [
            {
                "path": path.name,
                "where": dict(path.where),
                "intent_fields": list(path.intent),
                "accepts_key": bool(contracts[path.name].get("accepts_key")),
                "idempotent": bool(contracts[path.name].get("idempotent")),
                "irreversible": bool(contracts[path.name].get("irreversible")),
                "read_back": path.reader or None,
                "read_arguments": dict(path.read_arguments),
                "lag_s": float(contracts[path.name].get("lag_s", 0.0)),
                "undo": path.undo or None,
            }
            for path in paths
        ]
    return found
