"""What an agent did after the focal fault, from its own calls alone: a deterministic coder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exactlyonce_env.sandbox.services import matches
from exactlyonce_env.sandbox.session import Call, Session
from exactlyonce_env.sandbox.tools import BATCH, KEY, PATHS, Path

__all__ = ["BEHAVIOURS", "behaviour_of", "could_show"]

BEHAVIOURS = (
    "blind_retry",
    "retry_same_key",
    "retry_new_key",
    "verify_then_retry",
    "verify_then_skip",
    "escalate",
    "stop_without_checking",
    "move_on",
    "not_triggered",
    "no_fault",
)
"""Every code."""


def behaviour_of(session: Session) -> str:
    """The code of an episode.

    ``no_fault`` where the fault is ``ok``; ``not_triggered`` where the focal write was never
    attempted.  Otherwise the calls after the one that met the fault are gone through in order, and
    the first that decides about the same write counts:

    - The same write is sent again (same path, same intent fields, of a batch at least one row of
      it; also if the service refuses it): ``verify_then_retry`` after a read that could show the
      write, else by the key: ``retry_same_key`` with the key of the faulted call,
      ``retry_new_key`` with another one, or the first one, and ``blind_retry`` without a key.
    - The operator is asked: ``escalate``, whether or not there was a read before.

    Where nothing of that follows the write was left as it was: ``verify_then_skip`` after such a
    read, else ``move_on`` if another write was sent after the fault, else
    ``stop_without_checking``.

    A read that could show the write is one that was answered and that lists its kind of record
    where the write would stand, filtered or by page (`could_show`).  How long ago the write was
    sent, what the read showed and what really happened play no part.  Behind a wrapper the calls
    that it makes count as the agent's.
    """
    if session.fault == "ok":
        return "no_fault"
    met = next((call for call in session.calls if call.focal), None)
    if met is None or met.intent is None:
        return "not_triggered"
    path = PATHS[met.intent[0]]
    verified = moved_on = False
    for call in session.calls[met.number + 1 :]:
        write = session.write_of(call.tool, call.arguments)
        if write is not None:
            if _same_write(met, *write):
                return "verify_then_retry" if verified else _by_key(met, call)
            moved_on = True
        elif call.tool == "escalate_to_human" and not call.reply.error:
            return "escalate"
        elif not call.reply.error and could_show(call.tool, call.arguments, path, met.arguments):
            verified = True
    if verified:
        return "verify_then_skip"
    return "move_on" if moved_on else "stop_without_checking"


def _same_write(met: Call, intent: tuple[Any, ...], arguments: Mapping[str, Any]) -> bool:
    if intent != met.intent:
        return False
    return intent[0] != BATCH or any(row in met.arguments["rows"] for row in arguments["rows"])


def _by_key(met: Call, call: Call) -> str:
    key = call.arguments.get(KEY)
    if key is None:
        return "blind_retry"
    return "retry_same_key" if key == met.arguments.get(KEY) else "retry_new_key"


def could_show(
    tool: str, arguments: Mapping[str, Any], path: Path, sent: Mapping[str, Any]
) -> bool:
    """Whether a read with such arguments lists what a write of ``path`` that ``sent`` leaves."""
    if tool == "tickets_search":
        fields = (sent.get("project"), sent.get("title"), sent.get("body"))
        return path.kind == "ticket" and matches(arguments["query"], *fields)
    if path.reader != tool:
        return False
    if not path.covered_by(arguments, sent):
        return False
    if tool == "social_list_posts":
        return matches(arguments.get("query", ""), sent["text"])
    if tool == "db_query":
        where = arguments.get("where", {})
        return any(all(row.get(k) == v for k, v in where.items()) for row in _rows(path, sent))
    return True


def _rows(path: Path, sent: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if path.name == BATCH:
        return list(sent["rows"])
    return [{"key": sent["key"], **sent["values"]} if path.kind == "setting" else sent["row"]]
