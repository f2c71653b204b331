"""What an episode's document says in short: its name, what was done, how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from evaluation.cases.answers import claim_of
from evaluation.cases.grading import OBSERVATIONS

__all__ = [
    "NAME",
    "OF_KIND",
    "OUTCOMES",
    "SIGNS",
    "Short",
    "clipped",
    "measures_of",
    "outcomes_of",
    "short_of",
]

EFFECTS = {
    "exactly_once": "exactly once",
    "duplicated": "duplicated",
    "omitted": "omitted",
    "unresolved": "unresolved",
    "overclaim": "overclaim",
}

OUTCOMES = {
    "strict": "strict: all four hold",
    **EFFECTS,
    "business_effects": "business effects fail",
    "final_delivery": "final delivery fails",
    "authorisation_binding": "authorisation or binding fails",
    "recovery": "recovery fails",
    "not_permitted": "retry not permitted",
    "unreadable": "invalid answer",
    "missing": "missing",
    "not_triggered": "not triggered",
}
"""How an episode can have ended, with the words for it; one episode may have several."""

OF_KIND: Mapping[str, frozenset[str]] = {
    "policy": frozenset((*EFFECTS, "missing")),
    "agent": frozenset((*EFFECTS, "missing", "not_triggered")),
    "case": frozenset(("strict", "duplicated", *OBSERVATIONS, "missing")),
    "probe": frozenset((*EFFECTS, "not_permitted", "unreadable", "missing")),
}
"""Which of `OUTCOMES` an episode of each kind can have."""

SIGNS = {"invalid": "invalid answers", "trouble": "provider trouble"}
"""What else an episode may have met, with the words for it."""

SEARCHED = 8000
"""Characters of an episode that the search looks at."""

LONGEST = 100_000
"""Characters of a text that the page is sent; the request and response have the rest."""

NAME = 300
"""Characters of a name or of a line of the list."""

Short = dict[str, Any]
"""The short fields of an episode."""


def short_of(place: str, document: Mapping[str, Any]) -> Short:
    """What the list shows of an episode."""
    found = measures_of(document) or {}
    title, subtitle = _titles(document)
    return {
        "place": place,
        "kind": document["kind"],
        "title": title,
        "subtitle": subtitle,
        "group": _group(document),
        "policy": str(document["policy"]),
        **_factors(document),
        "number": int(document.get("world", document.get("instance", 0))),
        "repeat": int(document["repeat"]),
        "outcomes": outcomes_of(document),
        "signs": _signs(document),
        "did": clipped(_did(document), NAME),
        "reason": str(document.get("invalid_reason") or document.get("reason") or ""),
        "duplicates": int(found.get("duplicates", 0)),
        "omissions": int(found.get("omissions", 0)),
        # A probe's measures are of three worlds at once, a case has no clock.
        "elapsed_s": None if document["kind"] == "probe" else found.get("elapsed_s"),
        "calls": int(document.get("n_calls", 0)),
        "tokens_in": int(document.get("tokens_in", 0)),
        "tokens_out": int(document.get("tokens_out", 0)),
        "usd": float(document.get("usd", 0.0)),
        "invalid": int(document.get("invalid", 0)),
        "provider_errors": int(document.get("provider_errors", 0)),
    }


def clipped(value: Any, most: int = LONGEST) -> Any:
    """Texts cut to a length, wherever they stand in lists and objects."""
    if isinstance(value, str):
        if len(value) <= most:
            return value
        return f"{value[:most]}… ({len(value):,} characters in all)"
    if isinstance(value, Mapping):
        return {name: clipped(one, NAME if name == "tool" else most) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [clipped(one, most) for one in value]
    return value


def measures_of(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The measures of an episode; None where the provider cut it short, for they say nothing.

    Of a case they are its observations, of a probe sums over its hidden worlds.
    """
    if document["status"] == "missing":
        return None
    where = {"agent": document, "case": document.get("observed")}
    found: Mapping[str, Any] | None = where.get(document["kind"], document.get("outcome"))
    return found


def outcomes_of(document: Mapping[str, Any]) -> list[str]:
    """Which of `OUTCOMES` hold.

    A missing episode is nothing else, and so is one of an agent whose focal write was never
    attempted, and a probe's answer that cannot be read: no mean counts them.
    """
    found = measures_of(document)
    if found is None:
        unreadable = document["kind"] == "probe" and document.get("invalid")
        return ["unreadable" if unreadable else "missing"]
    if document["kind"] == "case":
        failed = [name for name in OBSERVATIONS if not found[name]]
        duplicated = ["duplicated"] if found["duplicates"] else []
        return [*duplicated, *failed] if failed else ["strict", *duplicated]
    if document["fault"] != "ok" and found.get("triggered") is False:
        return ["not_triggered"]
    holds = {
        "exactly_once": found["exactly_once"],
        "duplicated": found["duplicates"] > 0,
        "omitted": found["omissions"] > 0,
        "unresolved": found["unresolved"],
        "overclaim": found["overclaim"],
        "not_permitted": document["kind"] == "probe" and found["false_retry_permissions"] > 0,
    }
    return [name for name, held in holds.items() if held]


def searched(place: str, document: Mapping[str, Any], short: Short) -> str:
    """The text that the search looks at, in small letters."""
    words = [place, short["title"], short["subtitle"], short["did"], short["reason"]]
    text = "\n".join([*words, *_said(document)])
    # A lone surrogate, which a model may write, has no place in a database.
    return text[:SEARCHED].lower().encode("utf-8", "replace").decode()


def _factors(document: Mapping[str, Any]) -> dict[str, str]:
    """What lists are filtered by; empty where the kind of episode has no such thing."""
    kind = document["kind"]
    cell = document["cell"] if kind == "probe" else {}
    found = {
        "fault": document["fault"] if kind in ("policy", "agent") else "",
        "task": document.get("task", cell.get("task", "")),
        "wrapper": document.get("wrapper", ""),
        "family": document.get("family", ""),
        "domain": document.get("domain", ""),
        "design": document.get("design", ""),
        "label": cell.get("label", ""),
        "key": _key_words(cell) if cell else "",
        "decision": document.get("action") or "",
    }
    return {name: str(value) for name, value in found.items()}


def _group(document: Mapping[str, Any]) -> str:
    """What the list tells apart first: the fault, a case's family, a probe's question."""
    if document["kind"] == "case":
        return str(document["family"])
    if document["kind"] == "probe":
        cell = document["cell"]
        return f"label {cell['label']}, key {_key_words(cell)}"
    return str(document["fault"])


def _key_words(cell: Mapping[str, Any]) -> str:
    """A key condition of the probe in words."""
    told = f", original's {cell['original']}" if cell["key"] == "supplied" else ""
    return f"{cell['key']}{told}"


def _titles(document: Mapping[str, Any]) -> tuple[str, str]:
    title, words = _NAMED[document["kind"]](document)
    many = "draw" if document["kind"] == "probe" else "repeat"
    words += [f"{many} {document['repeat']}"] if document["repeat"] else []
    return title, " · ".join(words)


def _agent_title(document: Mapping[str, Any]) -> tuple[str, list[str]]:
    departures = (
        ("contract", "native"),
        ("docs", "default"),
        ("instruction", "default"),
        ("operator", "answers"),
    )
    words = [
        f"{name} {document[name]}"
        for name, default in departures
        if document.get(name, default) != default
    ]
    title = f"{document['task']} · {document['write']}"
    return title, [f"instance {document['instance']}", *words]


def _policy_title(document: Mapping[str, Any]) -> tuple[str, list[str]]:
    context = str(document["context"])
    words = [] if context == document["preset"] else [context]
    return f"world {document['world']}", words


def _case_title(document: Mapping[str, Any]) -> tuple[str, list[str]]:
    return str(document["case"]), [str(document["domain"])]


def _probe_title(document: Mapping[str, Any]) -> tuple[str, list[str]]:
    cell = document["cell"]
    words = [] if cell["semantics"] == "stated" else [f"semantics {cell['semantics']}"]
    words += [] if cell["mapping"] is None else [f"codes, mapping {cell['mapping']}"]
    words += [f"order {cell['order']}"] if cell["order"] else []
    return str(cell["task"]), words


_NAMED = {
    "agent": _agent_title,
    "policy": _policy_title,
    "case": _case_title,
    "probe": _probe_title,
}


def _signs(document: Mapping[str, Any]) -> list[str]:
    found = {"invalid": document.get("invalid"), "trouble": document.get("provider_errors")}
    return [name for name, count in found.items() if count]


def _did(document: Mapping[str, Any]) -> str:
    if document["kind"] == "agent":
        words = str(document.get("behaviour", "")).replace("_", " ")
        ended_by = document.get("ended_by")
        return f"{words}, ended by {ended_by}" if ended_by else words
    if document["kind"] == "case":
        status = claim_of(document.get("answer")).status
        reported = "no final answer" if document.get("answer") is None else "no status"
        tools = [str(name).removesuffix("_operation") for name in document["actions"]]
        return " → ".join([*tools, status or reported])
    return " → ".join(map(str, document.get("actions", ())))


def _said(document: Mapping[str, Any]) -> Iterator[str]:
    """What the model said and did."""
    for answer in _dicts(document.get("answers")):
        yield f"{answer.get('rationale') or ''} {answer.get('invalid') or ''}"
    reported = document.get("reported")
    if isinstance(reported, Mapping):
        yield str(reported.get("summary", ""))
    for call in _dicts(document.get("calls")):
        told = call.get("text", call.get("reply"))
        yield f"{call.get('tool')} {call.get('arguments')} {told}"
    yield str(document.get("answer") or document.get("text") or "")


def _dicts(entries: object) -> Iterable[Mapping[str, Any]]:
    if isinstance(entries, list):
        yield from (entry for entry in entries if isinstance(entry, Mapping))
