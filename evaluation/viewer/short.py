"""What an episode's document says in short: its name, what was done, how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

__all__ = ["OUTCOMES", "SIGNS", "Short", "measures_of", "outcomes_of", "short_of"]

OUTCOMES = {
    "exactly_once": "exactly once",
    "duplicated": "duplicated",
    "omitted": "omitted",
    "unresolved": "unresolved",
    "overclaim": "overclaim",
    "missing": "missing",
    "not_triggered": "not triggered",
}
"""How an episode can have ended, with the words for it; one episode may have several."""

SIGNS = {"invalid": "invalid answers", "trouble": "provider trouble"}
"""What else an episode may have met, with the words for it."""

SEARCHED = 8000
"""Characters of an episode that the search looks at."""

Short = dict[str, Any]
"""The short fields of an episode."""


def short_of(place: str, document: Mapping[str, Any]) -> Short:
    """What the list shows of an episode."""
    found = measures_of(document) or {}
    title, subtitle = _titles(document)
    return {
        "place": place,
        "title": title,
        "subtitle": subtitle,
        "policy": str(document["policy"]),
        "fault": str(document["fault"]),
        "task": str(document.get("task", "")),
        "wrapper": str(document.get("wrapper", "")),
        "number": int(document.get("world", document.get("instance", 0))),
        "repeat": int(document["repeat"]),
        "outcomes": outcomes_of(document),
        "signs": _signs(document),
        "did": _did(document),
        "reason": str(document.get("reason") or ""),
        "duplicates": int(found.get("duplicates", 0)),
        "omissions": int(found.get("omissions", 0)),
        "elapsed_s": found.get("elapsed_s"),
        "calls": int(document.get("n_calls", 0)),
        "tokens_in": int(document.get("tokens_in", 0)),
        "tokens_out": int(document.get("tokens_out", 0)),
        "usd": float(document.get("usd", 0.0)),
        "invalid": int(document.get("invalid", 0)),
        "provider_errors": int(document.get("provider_errors", 0)),
    }


def measures_of(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The measures of an episode; None where the provider cut it short, for they say nothing."""
    if document["status"] == "missing":
        return None
    return document if document["kind"] == "agent" else document.get("outcome")


def outcomes_of(document: Mapping[str, Any]) -> list[str]:
    """Which of `OUTCOMES` hold.

    A missing episode is nothing else, and so is one of an agent whose focal write was never
    attempted: no mean counts them.
    """
    found = measures_of(document)
    if found is None:
        return ["missing"]
    if document["fault"] != "ok" and found.get("triggered") is False:
        return ["not_triggered"]
    holds = {
        "exactly_once": found["exactly_once"],
        "duplicated": found["duplicates"] > 0,
        "omitted": found["omissions"] > 0,
        "unresolved": found["unresolved"],
        "overclaim": found["overclaim"],
    }
    return [name for name, held in holds.items() if held]


def searched(place: str, document: Mapping[str, Any], short: Short) -> str:
    """The text that the search looks at, in small letters."""
    words = [place, short["title"], short["subtitle"], short["did"], short["reason"]]
    text = "\n".join([*words, *_said(document)])
    # A lone surrogate, which a model may write, has no place in a database.
    return text[:SEARCHED].lower().encode("utf-8", "replace").decode()


def _titles(document: Mapping[str, Any]) -> tuple[str, str]:
    if document["kind"] == "agent":
        title = f"{document['task']} · {document['write']}"
        words = [f"instance {document['instance']}"]
        departures = (
            ("contract", "native"),
            ("docs", "default"),
            ("instruction", "default"),
            ("operator", "answers"),
        )
        words += [
            f"{name} {document[name]}"
            for name, default in departures
            if document.get(name, default) != default
        ]
    else:
        title, context = f"world {document['world']}", str(document["context"])
        words = [] if context == document["preset"] else [context]
    words += [f"repeat {document['repeat']}"] if document["repeat"] else []
    return title, " · ".join(words)


def _signs(document: Mapping[str, Any]) -> list[str]:
    found = {"invalid": document.get("invalid"), "trouble": document.get("provider_errors")}
    return [name for name, count in found.items() if count]


def _did(document: Mapping[str, Any]) -> str:
    if document["kind"] == "agent":
        words = str(document.get("behaviour", "")).replace("_", " ")
        ended_by = document.get("ended_by")
        return f"{words}, ended by {ended_by}" if ended_by else words
    return " → ".join(map(str, document.get("actions", ())))


def _said(document: Mapping[str, Any]) -> Iterator[str]:
    """What the model said and did."""
    for answer in _dicts(document.get("answers")):
        yield f"{answer.get('rationale') or ''} {answer.get('invalid') or ''}"
    reported = document.get("reported")
    if isinstance(reported, Mapping):
        yield str(reported.get("summary", ""))
    for call in _dicts(document.get("calls")):
        yield f"{call.get('tool')} {call.get('arguments')} {call.get('text')}"


def _dicts(entries: object) -> Iterable[Mapping[str, Any]]:
    if isinstance(entries, list):
        yield from (entry for entry in entries if isinstance(entry, Mapping))
