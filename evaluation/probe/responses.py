"""Recorded responses as lines of JSON: what `probe` writes and `probe-report` reads.

One object a line, in UTF-8.  A line is one planned response, or ``count`` of them that agree in
everything that the line states, so that published counts can be written down too.

=================  =================================================================================
field              meaning
=================  =================================================================================
policy             who answered; required
status             ``valid``, ``invalid`` or ``missing``; required.  Invalid and missing responses
                   are never replaced and never scored
action             ``retry``, ``retry_with_key``, ``stop``, ``wait`` or ``unresolved``; required of
                   a valid response, null or left out otherwise
label              ``absent`` (default), ``weak``, ``unverified`` or ``authoritative``
semantics          ``stated`` (default) or ``unstated``
key                ``none`` (default), ``omitted``, ``valid``, ``changed`` or ``supplied``
original           whether the original's key was ``sent`` or ``omitted``; by default as ``key``
                   says, and required where that is ``supplied``
actions            ``canonical`` (default) or ``coded``
mapping            0-3 with codes, else null (default)
order              0-3, default 0
task               any word; default ``any``
design             any word; default ``foreign``
draw               number of the draw, default 0
count              how many responses the line stands for, default 1
same_key           of ``retry_with_key`` with ``key: supplied``: whether the key supplied is the
                   original's; required there, null (default) elsewhere
idempotency_key    the key that was supplied, or null (default)
text               the answer word for word, or null (default); where it is there, it must read as
                   the line says
reason             why a response is invalid or missing; default empty
version            version of the prompts, or null (default)
=================  =================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evaluation.probe.answers import InvalidAnswerError, parse_decision
from evaluation.probe.designs import FACTORS, Cell, Variant
from evaluation.probe.prompts import ACTIONS, CASES, KEY_ACTION, codes_of
from evaluation.probe.replay import same_key_of
from exactlyonce_env.errors import UserError, unknown
from exactlyonce_env.files import write_atomically

__all__ = [
    "ANY_TASK",
    "FILE",
    "STATUSES",
    "Response",
    "merge_responses",
    "read_responses",
    "write_responses",
]

FILE = "responses.jsonl"
"""Name of the file in a run folder."""

STATUSES = ("valid", "invalid", "missing")

ANY_TASK = "any"
FOREIGN = "foreign"

SENT_WITH = ("valid", "changed")
"""Key conditions in which the original carried a key by definition."""


@dataclass(frozen=True)
class Response:
    """A planned response, or ``count`` of them that are alike; see the module.

    Attributes
    ----------
    policy, design
        Who answered, in which design.
    cell
        The prompt: levels of all factors, and the task.
    status, action
        One of `STATUSES`, and the canonical action of a valid one.
    draw, count
        Number of the draw, and how many responses this stands for.
    same_key, idempotency_key
        Of a supplied key.
    text, reason
        The answer word for word, and what is wrong or why there is none.
    version
        Of the prompts.
    """

    policy: str
    design: str
    cell: Cell
    status: str
    action: str | None = None
    draw: int = 0
    count: int = 1
    same_key: bool | None = None
    idempotency_key: str | None = None
    text: str | None = None
    reason: str = ""
    version: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The line's object."""
        found = asdict(self)
        del found["cell"]
        return {"policy": found.pop("policy"), "design": found.pop("design")} | (
            self.cell.to_dict() | found
        )


DEFAULTS: dict[str, Any] = {
    "design": FOREIGN,
    "task": ANY_TASK,
    "label": "absent",
    "semantics": "stated",
    "key": "none",
    "original": None,
    "actions": "canonical",
    "mapping": None,
    "order": 0,
    "action": None,
    "draw": 0,
    "count": 1,
    "same_key": None,
    "idempotency_key": None,
    "text": None,
    "reason": "",
    "version": None,
}
REQUIRED = ("policy", "status")

TYPES: dict[str, tuple[type, ...]] = {
    "policy": (str,),
    "status": (str,),
    "design": (str,),
    "task": (str,),
    "label": (str,),
    "semantics": (str,),
    "key": (str,),
    "original": (str, type(None)),
    "actions": (str,),
    "mapping": (int, type(None)),
    "order": (int,),
    "action": (str, type(None)),
    "draw": (int,),
    "count": (int,),
    "same_key": (bool, type(None)),
    "idempotency_key": (str, type(None)),
    "text": (str, type(None)),
    "reason": (str,),
    "version": (str, type(None)),
}
"""Types of each field's value in a line."""


def write_responses(path: Path, responses: Iterable[Response]) -> None:
    """Write a file of responses in one step.

    Raises
    ------
    UserError
        Where it cannot be written.
    """
    text = "".join(json.dumps(one.to_dict()) + "\n" for one in responses)
    try:
        write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path.name} cannot be written: {error.strerror}") from None


def merge_responses(path: Path, responses: Sequence[Response]) -> None:
    """Write responses into a file that may hold those of other policies and designs.

    Raises
    ------
    UserError
        Where it cannot be read or written.
    """
    new = {(one.policy, one.design) for one in responses}
    old = read_responses(path) if path.is_file() else []
    kept = [one for one in old if (one.policy, one.design) not in new]
    write_responses(path, [*kept, *responses])


def read_responses(path: Path) -> list[Response]:
    """The responses of a file.

    Raises
    ------
    UserError
        Naming the line and what is wrong with it.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise UserError(f"{path.name} is not UTF-8 text") from None
    except OSError as error:
        raise UserError(f"{path.name} cannot be read: {error.strerror}") from None
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(_response(line))
        except UserError as error:
            raise UserError(f"{path.name}, line {number}: {error}") from None
    if not found:
        raise UserError(f"{path.name} holds no responses")
    return found


def _response(line: str) -> Response:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        raise UserError("it is not JSON") from None
    if not isinstance(entry, dict):
        raise UserError("it is not a JSON object")
    fields = _checked(entry)
    if fields["original"] is None:
        if fields["key"] == "supplied":
            raise UserError("key supplied needs original: sent or omitted")
        fields["original"] = "sent" if fields["key"] in SENT_WITH else "omitted"
    variant = Variant(**{name: fields.pop(name) for name in FACTORS})
    response = Response(cell=Cell(variant, fields.pop("task")), **fields)
    return _with_key(_agreeing(response))


def _checked(entry: Mapping[str, Any]) -> dict[str, Any]:
    for name in REQUIRED:
        if name not in entry:
            raise UserError(f"the field {name!r} is missing")
    for name, value in entry.items():
        if name not in TYPES:
            raise unknown("field", name, tuple(TYPES))
        # True is an int to Python, and no number to anybody else.
        wrong = isinstance(value, bool) and bool not in TYPES[name]
        if wrong or not isinstance(value, TYPES[name]):
            raise UserError(f"{name} cannot be {value!r}")
    fields = DEFAULTS | dict(entry)
    for name in ("policy", "design", "task"):
        if not fields[name].strip():
            raise UserError(f"{name} is empty")
    if fields["status"] not in STATUSES:
        raise unknown("status", fields["status"], STATUSES)
    if fields["count"] < 1 or fields["draw"] < 0:
        raise UserError("count must be at least 1, and draw at least 0")
    return fields


def _agreeing(response: Response) -> Response:
    """Check that status, action and text say the same."""
    variant, action = response.cell.variant, response.action
    if response.status != "valid":
        if action is not None:
            raise UserError(f"a response that is {response.status} has no action")
        if response.idempotency_key is not None or response.same_key is not None:
            raise UserError(f"a response that is {response.status} has no key")
    elif action not in ACTIONS:
        raise unknown("action", str(action), tuple(ACTIONS))
    elif action not in codes_of(variant).values():
        raise UserError(f"{action} is not on the menu where key is {variant.key}")
    if response.text is None:
        return response
    if response.status == "missing":
        raise UserError("a missing response has no text")
    try:
        decision = parse_decision(response.text, variant)
    except InvalidAnswerError as error:
        if response.status == "valid":
            raise UserError(f"the text is no valid answer: {error}") from None
        return response
    if response.status == "invalid":
        raise UserError("the text is a valid answer, but status says invalid")
    if (decision.action, decision.idempotency_key) != (action, response.idempotency_key):
        raise UserError(f"the text answers {decision.action}, but action says {action}")
    return response


def _with_key(response: Response) -> Response:
    """Check what is said of a supplied key, and fill in what follows."""
    supplies = response.action == KEY_ACTION and response.cell.variant.key == "supplied"
    if not supplies:
        if response.same_key is not None or response.idempotency_key is not None:
            raise UserError("same_key and idempotency_key belong to a key that was supplied")
        return response
    same = response.same_key
    if response.cell.task in CASES and response.idempotency_key is not None:
        known = same_key_of(response.cell, response.idempotency_key)
        if same is not None and same != known:
            raise UserError(f"same_key says {same}, but the idempotency_key says {known}")
        same = known
    if same is None:
        raise UserError("retry_with_key with a supplied key needs same_key: true or false")
    if same and response.cell.variant.original == "omitted":
        raise UserError("same_key is true, but the original carried no key")
    return Response(**{**_fields(response), "same_key": same})


def _fields(response: Response) -> dict[str, Any]:
    return {name: getattr(response, name) for name in response.__dataclass_fields__}
