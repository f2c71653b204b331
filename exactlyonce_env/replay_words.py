"""A replay in words: what each step showed the client, and what happened beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from exactlyonce_env.episode import Replay, Step
from exactlyonce_env.ledger import Fortune
from exactlyonce_env.view import Attempt, View

__all__ = ["Moment", "step_words", "timeline"]


class Moment(NamedTuple):
    """Something that happened, at one end or the other.

    Attributes
    ----------
    time_s
        When [s].
    rank
        Order among the moments of one time.
    seen, happened
        What the client did or saw, and what really happened; one of the two is empty.
    """

    time_s: float
    rank: float
    seen: str
    happened: str


def timeline(told: Replay) -> list[Moment]:
    """What the client saw beside what really happened, in order of time.  Privileged."""
    moments = [*_client_moments(told), *_service_moments(told)]
    return sorted(moments, key=lambda moment: moment[:2])


def step_words(step: Step, before: View | None) -> str:
    """What one step showed the client."""
    view = step.view
    parts = []
    known = _number_sent(before)
    for j, attempt in _sent_since(view, known):
        parts.append(f"attempt {j}{_key(attempt)}: {attempt.response.replace('_', ' ')}")
    if before is not None:
        counts = ("n_client_errors", "n_reads", "n_escalations")
        error, read, asked = (bool(view.seen[name] > before.seen[name]) for name in counts)
        if error:
            parts.append("an error: nothing can be sent like this")
        if read and view.read_error != "none":
            parts.append("no read-back" if view.read_error == "no_readback" else "503: an outage")
        elif asked and view.operator == "silent":
            parts.append("no answer")
        elif read or asked:
            parts.append(_report(view))
    elif not parts:
        parts.append("nothing was sent yet")
    if view.ending != "running":
        parts.append(f"the episode ends: {view.ending}")
    return "; ".join(parts)


def _number_sent(view: View | None) -> int:
    return 0 if view is None else int(view.seen.n_attempts)


def _sent_since(view: View, known: int) -> Iterator[tuple[int, Attempt]]:
    """The attempts from number ``known`` on, with their numbers."""
    if _number_sent(view) > known:
        yield from enumerate(view.attempts[known:], start=known)


def _key(attempt: Attempt) -> str:
    return {"none": "", "pinned": " (pinned key)", "other": " (another key)"}[attempt.key]


def _report(view: View) -> str:
    report = view.last_report
    assert report is not None
    n_items = int(view.contract.n_items)
    if not report.items_shown:
        shown = "no effect shows"
    elif len(report.items_shown) == n_items:
        shown = "the effect shows" if n_items == 1 else "all effects show"
    else:
        shown = "items " + ", ".join(map(str, report.items_shown)) + " show"
    told = [a.authority.replace("_", " ") for a in view.attempts]
    if all(word == "unknown" for word in told):
        return shown
    return shown + "; " + ", ".join(f"attempt {j}: {word}" for j, word in enumerate(told))


def _client_moments(told: Replay) -> Iterator[Moment]:
    """Decision k begins at rank 2k and is answered at rank 2k + 1."""
    for k, step in enumerate(told.steps):
        before = told.steps[k - 1] if k else None
        known = _number_sent(None if before is None else before.view)
        for j, attempt in _sent_since(step.view, known):
            response = attempt.response.replace("_", " ")
            yield Moment(attempt.sent_s, 2 * k, f"sends attempt {j}{_key(attempt)}", "")
            yield Moment(attempt.answered_s, 2 * k + 1, f"attempt {j}: {response}", "")
        kind = (step.action or "").partition(":")[0]
        if before is None:
            continue
        seen = step_words(step, before.view)
        if kind == "read":
            yield Moment(before.clock_s, 2 * k, f"reads: {seen}", "")
        elif kind == "escalate":
            yield Moment(before.clock_s, 2 * k, "asks the operator", "")
            yield Moment(step.clock_s, 2 * k + 1, f"operator: {seen}", "")
        elif kind == "finish":
            yield Moment(step.clock_s, 2 * k, "claims completion", "")
        elif kind == "finish_uncertain":
            yield Moment(step.clock_s, 2 * k, "names the operation uncertain", "")
        elif kind != "wait" and _number_sent(step.view) == known:
            yield Moment(step.clock_s, 2 * k, f"{kind}: {seen}", "")
    last = 2 * len(told.steps)
    if told.ending == "claimed" and told.steps[-1].action != "finish":
        yield Moment(told.steps[-1].clock_s, last, "the acknowledgement claims completion", "")
    if told.ending == "exhausted":
        yield Moment(told.steps[-1].clock_s, last, "the budget of calls is used up", "")
    if not told.ended:
        yield Moment(told.steps[-1].clock_s, last, "(no further action)", "")


def _service_moments(told: Replay) -> Iterator[Moment]:
    sent = [
        (attempt.sent_s, 2 * k + 0.2)
        for k, step in enumerate(told.steps)
        for _, attempt in _sent_since(
            step.view, _number_sent(told.steps[k - 1].view if k else None)
        )
    ]
    executed: set[int] = set()
    for effect in told.ledger:
        again = " again" if effect.item in executed else ""
        executed.add(effect.item)
        item = f"item {effect.item}: " if told.steps[0].view.contract.n_items > 1 else ""
        source = "the copy of attempt" if effect.copy else "attempt"
        sent_s, rank = sent[effect.attempt]
        # A commit at the very instant of an answer counts as visible, so it stands before it.
        rank = rank + 0.2 if effect.time_s == sent_s else -1
        yield Moment(
            effect.time_s, rank, "", f"{item}{source} {effect.attempt} takes effect{again}"
        )
    for fortune, moment in zip(told.attempts, sent, strict=True):
        yield from _fortune_moments(fortune, *moment)


def _fortune_moments(fortune: Fortune, sent_s: float, rank: float) -> Iterator[Moment]:
    name = f"attempt {fortune.attempt} ({fortune.mode})"
    at_s = sent_s if fortune.arrival_s is None else fortune.arrival_s
    if at_s > sent_s:
        yield Moment(sent_s, rank, "", f"{name} stays in transit")
        yield Moment(at_s, -2, "", f"attempt {fortune.attempt} arrives")
        rank = -2
    elif fortune.arrival_s is None:
        yield Moment(at_s, rank, "", f"{name} is lost on the way")
    elif not fortune.items_executed and not fortune.items_suppressed:
        yield Moment(at_s, rank, "", f"{name} arrives and has no effect")
    else:
        late = fortune.mode.startswith("timeout_late")
        yield Moment(at_s, rank, "", f"{name} arrives" + (" and stays in process" if late else ""))
    if fortune.items_suppressed:
        found = "finds its key in use: no new effect"
        if fortune.items_executed:
            found = "resumes the batch where its key stopped"
        yield Moment(at_s, rank + 0.1, "", f"attempt {fortune.attempt} {found}")
