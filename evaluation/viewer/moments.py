"""What happened in an episode, beside what the client saw of it: the right side of the page.

A world has a clock.  A contract case has none: its requests are counted, and its ledger says what
they did.  A decision of the probe was taken in three hidden worlds at once, and is replayed in
each.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evaluation.probe.designs import Cell, Variant
from evaluation.probe.replay import WORLDS, expand, same_key_of
from evaluation.viewer.short import outcomes_of
from exactlyonce_env.errors import UserError
from exactlyonce_env.replay_words import timeline

__all__ = ["Moment", "moments_of"]

Moment = dict[str, Any]
"""A row: ``time_s`` [s], None where there is no clock, and then ``label``; ``seen``, ``happened``,
``again`` (something that must not be), and ``link``, as in the conversation.  A row with a
``heading`` begins another world; its ``outcomes`` say how that one ended."""

NUMBER = re.compile(r"^#(\d+) ")
BY_CALL = re.compile(r" by call #(\d+)\b")
AGAIN = re.compile(r", a DUPLICATE$|takes effect again$")

HIDDEN = {
    "timeout_pre": "the request was lost",
    "timeout_late": "the request executes late",
    "timeout_post": "it was executed, and the read-back does not show it yet",
}
"""The probe's hidden worlds in words."""

assert tuple(HIDDEN) == WORLDS

REPLY = ("state", "result", "reference", "write_access", "approval", "absence", "reason", "detail")
"""Fields of a service's answer that are told, in this order."""


def moments_of(document: Mapping[str, Any], talk: Sequence[Mapping[str, Any]]) -> list[Moment]:
    """What the client saw and what happened, in order.

    Parameters
    ----------
    document
        The episode, as the store keeps it.
    talk
        Its conversation.
    """
    if document["kind"] == "case":
        return list(_case_moments(document))
    if document["kind"] == "probe":
        return list(_probe_moments(document))
    return list(_clock_moments(document, talk))


def _clock_moments(
    document: Mapping[str, Any], talk: Sequence[Mapping[str, Any]]
) -> Iterator[Moment]:
    clocks = [entry["time_s"] for entry in talk if entry["role"] == "view"]
    for row in document["timeline"]:
        seen, happened = row["seen"], row["happened"]
        if document["kind"] == "agent":
            number = NUMBER.match(seen) or BY_CALL.search(happened)
            link = int(number[1]) if number else None
        else:
            link = max(bisect_right(clocks, row["time_s"]) - 1, 0) if clocks else None
        again = AGAIN.search(happened) is not None
        yield _moment(row["time_s"], seen, happened, again=again, link=link)


def _moment(time_s: float | None, seen: str, happened: str, **more: Any) -> Moment:
    return {
        "time_s": time_s,
        "seen": seen,
        "happened": happened,
        "again": False,
        "link": None,
        **more,
    }


# --- contract cases -------------------------------------------------------------------------------


def _case_moments(document: Mapping[str, Any]) -> Iterator[Moment]:
    """The requests, each with what it did; before and after them, what the services did."""
    calls, ledger = document["calls"], document["ledger"]
    doubled = _doubled(ledger, (document.get("observed") or {}).get("duplicates", 0))
    at: dict[int | None, list[int]] = {}
    for n, effect in enumerate(ledger):
        if effect["cause"] != "before":
            at.setdefault(_caller(effect, calls), []).append(n)

    def told(n: int, label: str, link: int | None) -> Moment:
        again = n in doubled
        words = _effect_words(ledger[n]) + (", a DUPLICATE" if again else "")
        return _moment(None, "", words, again=again, link=link, label=label)

    for n, effect in enumerate(ledger):
        if effect["cause"] == "before":
            yield told(n, "before the task", None)
    for k, call in enumerate(calls):
        label = f"request {k}"
        yield _moment(None, f"#{k} {call['tool']}: {_reply_words(call)}", "", link=k, label=label)
        if call["violation"]:
            words = f"this was not permitted: {call['violation']}"
            yield _moment(None, "", words, again=True, link=k, label=label)
        for n in at.get(k, ()):
            yield told(n, label, k)
    for n in at.get(None, ()):
        yield told(n, "after the end", None)


def _caller(effect: Mapping[str, Any], calls: Sequence[Mapping[str, Any]]) -> int | None:
    """The request that an effect came of; None: it came without one."""
    tool = {"client": "create_operation", "service": "recover_operation"}[effect["cause"]]
    for k, call in enumerate(calls):
        reply = call["reply"]
        told = (reply.get("state"), reply.get("reference"))
        if call["tool"] == tool and told == ("committed", effect["reference"]):
            return k
    return None


def _doubled(ledger: Sequence[Mapping[str, Any]], duplicates: int) -> set[int]:
    """Which effects the grading counts as duplicates: the last ones that repeat another."""
    same = [(effect["target"], effect["payload"]) for effect in ledger]
    repeats = [
        n for n, effect in enumerate(ledger) if effect["cause"] != "before" and same[n] in same[:n]
    ]
    return set(repeats[len(repeats) - duplicates :]) if duplicates else set()


def _effect_words(effect: Mapping[str, Any]) -> str:
    where = "/".join(map(str, effect["target"].values()))
    known = f", reference {effect['reference']}" if effect["reference"] else ", no record is kept"
    return f"{effect['operation_id']} is executed at {where}{known}"


def _reply_words(call: Mapping[str, Any]) -> str:
    reply = call["reply"]
    words = [str(call["error"]).replace("_", " ")] if call["error"] else []
    words += [f"{name.replace('_', ' ')} {reply[name]}" for name in REPLY if reply.get(name)]
    return ", ".join(words) or "an answer"


# --- the probe ------------------------------------------------------------------------------------


def _probe_moments(document: Mapping[str, Any]) -> Iterator[Moment]:
    """The decision in each of the hidden worlds."""
    action, levels = document["action"], dict(document["cell"])
    if action is None:
        return
    try:
        cell = Cell(task=levels.pop("task"), variant=Variant(**levels))
        found = expand(cell.variant, action, same_key_of(cell, document["idempotency_key"]))
    except (KeyError, TypeError, UserError):
        yield _heading("The decision cannot be replayed: another version recorded it", [])
        return
    for mode, told in zip(WORLDS, found.told, strict=True):
        ended = {"kind": "policy", "status": "returned", "fault": mode, "outcome": told.outcome}
        yield _heading(f"Where {HIDDEN[mode]}", outcomes_of(ended))
        decided_s = told.steps[-2].clock_s
        for row in timeline(told):
            again = AGAIN.search(row.happened) is not None
            link = 0 if row.time_s >= decided_s else None
            yield _moment(row.time_s, row.seen, row.happened, again=again, link=link)


def _heading(words: str, outcomes: Sequence[str]) -> Moment:
    return _moment(None, "", "", heading=words, outcomes=list(outcomes))
