"""The tables of the documentation page, written from the code's own tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from inspect import cleandoc

from exactlyonce_env.actions import ACTION_NAMES
from exactlyonce_env.observation import FEATURES, N_FEATURES, Feature

MEANINGS: dict[str, str] = {
    "read": "asks the service what it has; the answer takes `latency_s`",
    "retry": "sends the next attempt, without a key, for the items that the last report left out",
    "keyed_retry": "the same with the candidate key",
    "escalate": "asks the operator, who after `operator_delay_s` reports the ledger or is silent",
    "finish": "claims completion and ends the episode",
    "finish_uncertain": "ends the episode without that claim",
}
_NUMBERED = re.compile(r"^(.*_)(\d+)$")


def observation_table() -> str:
    """Every feature of the observation; a run such as ``response_0`` to ``response_7`` is a row."""
    rows: list[tuple[str, ...]] = [("index", "name", "unit", "min", "max", "meaning")]
    k = 0
    while k < len(FEATURES):
        last = _run(k)
        rows.append(_row(k, last))
        k = last + 1
    return _table(rows)


def action_table() -> str:
    """The discrete actions with their meanings."""
    rows: list[tuple[str, ...]] = [("index", "name", "what it does")]
    rows += [(str(k), name, _meaning(name)) for k, name in enumerate(ACTION_NAMES)]
    return _table(rows)


def filled(page: str | None) -> str:
    """A documentation page with its tables; empty where Python strips docstrings."""
    parts = {
        "{action_table}": action_table(),
        "{observation_table}": observation_table(),
        "{n_features}": str(N_FEATURES),
    }
    text = cleandoc(page or "")
    for mark, part in parts.items():
        text = text.replace(mark, part)
    return text


def _meaning(action: str) -> str:
    name, _, seconds = action.partition(":")
    return f"lets {seconds} s pass" if seconds else MEANINGS[name]


def _run(first: int) -> int:
    """The last feature of the numbered run that starts at ``first``."""
    last = first
    start = _NUMBERED.match(FEATURES[first].name)
    while start is not None and last + 1 < len(FEATURES):
        following = _NUMBERED.match(FEATURES[last + 1].name)
        if following is None or following[1] != start[1]:
            break
        last += 1
    return last


def _row(first: int, last: int) -> tuple[str, ...]:
    feature: Feature = FEATURES[first]
    index, name, meaning = str(first), feature.name, feature.meaning
    if last > first:
        index = f"{first} to {last}"
        name = f"{feature.name} to {FEATURES[last].name}"
        meaning = meaning.replace("attempt 0", "attempt j")
    return index, name, feature.unit, f"{feature.low:g}", f"{feature.high:g}", meaning


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    rule = "|" + " --- |" * len(rows[0])
    return "\n".join([head, rule, *body])
