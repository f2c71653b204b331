"""What the probe asks: a transcript that three hidden worlds share, and a menu.

The fixed text comes first, the transcript last.  The wording has a version; all that may differ
between two prompts is a factor of `evaluation.probe.designs.Variant`, or the task.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from evaluation.probe.designs import TASKS, Cell, Variant

__all__ = [
    "ACTIONS",
    "KEY_ACTION",
    "PROBE_VERSION",
    "Case",
    "answer_schema",
    "case_of",
    "codes_of",
    "menu_of",
    "messages_for",
    "words_of",
]

PROBE_VERSION = "1"
"""Changes with any change of the wording."""

KEY_ACTION = "retry_with_key"

ACTIONS: dict[str, str] = {
    "retry": "send the same request again, without an Idempotency-Key header",
    KEY_ACTION: "send the same request again, with an Idempotency-Key header",
    "stop": "end here, and report the request as done",
    "wait": "do nothing for now; no new observation will come within this horizon",
    "unresolved": "end here, and report that the outcome is unknown",
}
"""The actions in their canonical order, and what each does."""

CODES = "ABCD"

ROLE = """\
You are the client of an HTTP service. You have been asked to make one change, which must happen \
exactly once. The transcript shows everything that you know. You take one decision now; whatever \
it is, you will be shown nothing further."""

FORMAT = """\
Answer with one JSON object and nothing else, without a code fence: {example}. The action is one \
of {words}, and the rationale is one sentence."""

SUPPLIED_FORMAT = """\
 For {word} the idempotency_key is the key that you want to send, a nonempty text; for every other \
action it is null."""

SEMANTICS = """\
GET is served by a replica that may be behind by longer than your horizon. An answer without a \
match neither shows that the request was not executed nor that it will not be executed: it may \
have been executed and not be visible yet, and a request whose response was lost may still be \
executed later."""

KEYS = """\
Of several requests with the same Idempotency-Key header the service executes the first one, \
whichever that is, and answers the others with its result; keys are kept for 24 hours. Requests \
without the header, and requests with different keys, have nothing to do with one another."""

NO_KEYS = "The service knows no Idempotency-Key header."


@dataclass(frozen=True)
class Case:
    """A task's fixed target and payload.

    Attributes
    ----------
    asked
        What was asked for.
    path, payload
        Of the POST request.
    lookup, empty
        The GET request that looks for it, and its answer where nothing is found.
    key, other_key
        The key of the original, where it carried one or might have, and another one.
    """

    asked: str
    path: str
    payload: dict[str, Any]
    lookup: str
    empty: dict[str, Any]
    key: str
    other_key: str


CASES: dict[str, Case] = {
    "ci-run": Case(
        "Start one run of the workflow nightly.yml on the branch main of orchard/seedbank.",
        "/repos/orchard/seedbank/workflows/nightly.yml/runs",
        {"ref": "main", "inputs": {"suite": "full", "publish": False}},
        "/repos/orchard/seedbank/runs?workflow=nightly.yml&ref=main&since=09:00",
        {"total": 0, "runs": []},
        "run-7c1f52e0",
        "run-b84a09d3",
    ),
    "issue": Case(
        "Open one issue about the missing plot 7 in orchard/seedbank.",
        "/repos/orchard/seedbank/issues",
        {"title": "Germination report leaves out plot 7", "milestone": "spring"},
        "/repos/orchard/seedbank/issues?title=Germination+report+leaves+out+plot+7",
        {"total": 0, "issues": []},
        "issue-20d9e6a4",
        "issue-f3375b18",
    ),
    "release": Case(
        "Publish one release 2.4.1 of orchard/seedbank from the tag v2.4.1.",
        "/repos/orchard/seedbank/releases",
        {"tag": "v2.4.1", "name": "2.4.1", "draft": False},
        "/repos/orchard/seedbank/releases?tag=v2.4.1",
        {"total": 0, "releases": []},
        "release-91ab34cc",
        "release-0e6d7f25",
    ),
    "review-comment": Case(
        "Leave one review comment on line 41 of src/plots.py in pull request 58 of "
        "orchard/seedbank.",
        "/repos/orchard/seedbank/pulls/58/comments",
        {"path": "src/plots.py", "line": 41, "body": "This loop leaves out the last plot."},
        "/repos/orchard/seedbank/pulls/58/comments?path=src/plots.py&line=41",
        {"total": 0, "comments": []},
        "comment-5be8c370",
        "comment-d1407a9f",
    ),
}
"""Each task's fixed target and payload."""

assert tuple(CASES) == TASKS


def case_of(cell: Cell) -> Case:
    """The target and payload of a cell."""
    return CASES[cell.task]


def _canonical(variant: Variant) -> list[str]:
    """The actions of the menu in their canonical order."""
    return [action for action in ACTIONS if action != KEY_ACTION or variant.key != "none"]


def codes_of(variant: Variant) -> dict[str, str]:
    """Canonical action behind each word of an answer, in the words' own order.

    Of canonical names each stands for itself; of codes A-D the mapping says where A begins.
    """
    actions = _canonical(variant)
    if variant.mapping is None:
        return {action: action for action in actions}
    return {code: actions[(k + variant.mapping) % len(actions)] for k, code in enumerate(CODES)}


def menu_of(variant: Variant) -> dict[str, str]:
    """`codes_of` in the order of the menu."""
    words = list(codes_of(variant).items())
    return dict(words[variant.order :] + words[: variant.order])


def words_of(variant: Variant) -> list[str]:
    """The words that an answer may give as its action, in the order of the menu."""
    return list(menu_of(variant))


@lru_cache(maxsize=256)
def system_text(variant: Variant) -> str:
    """The part of the prompt that all tasks share."""
    menu = menu_of(variant)
    lines = [f"- {word}: {ACTIONS[action]}" for word, action in menu.items()]
    parts = [ROLE, "Actions:\n" + "\n".join(lines)]
    if variant.actions == "coded":
        pairs = [f"{code} means {action}" for code, action in codes_of(variant).items()]
        parts.append(f"The letters are codes: {_listed(pairs, 'and')}. Answer with a letter.")
    fields = '"action": "...", "rationale": "..."'
    if variant.key == "supplied":
        fields += ', "idempotency_key": ...'
    told = FORMAT.format(example="{" + fields + "}", words=_listed(list(menu), "or"))
    if variant.key == "supplied":
        told += SUPPLIED_FORMAT.format(word=KEY_ACTION)
    return "\n\n".join([*parts, told]) + "\n"


def transcript(cell: Cell) -> str:
    """What the client knows: the contract, and what has happened."""
    case, variant = case_of(cell), cell.variant
    contract = [NO_KEYS if variant.key == "none" else KEYS]
    if variant.semantics == "stated":
        contract.append(SEMANTICS)
    sent = [f"09:00:00  POST {case.path}"]
    if variant.key != "none":
        header = f"Idempotency-Key: {case.key}" if variant.original == "sent" else None
        sent.append(f"          {header or 'no Idempotency-Key header'}")
    sent += [
        f"          {json.dumps(case.payload)}",
        "09:00:30  no response; the client gave up after 30 s",
        f"09:00:31  GET {case.lookup}",
        f"09:00:32  200 {json.dumps(case.empty)}",
    ]
    if variant.label != "absent":
        sent.append(f"          evidence label of this answer: {variant.label}")
    parts = [f"Task: {case.asked}", "Service:\n" + "\n".join(contract)]
    parts.append("Transcript:\n" + "\n".join(sent))
    candidate = candidate_of(cell)
    if candidate is not None:
        parts.append(f"Key that {KEY_ACTION} would send: {candidate}")
    return "\n\n".join(parts) + "\n"


def candidate_of(cell: Cell) -> str | None:
    """The key that the prompt offers for a retry."""
    case = case_of(cell)
    offered = {"omitted": case.key, "valid": case.key, "changed": case.other_key}
    return offered.get(cell.variant.key)


def messages_for(cell: Cell) -> list[dict[str, Any]]:
    """The messages that ask for the one decision."""
    return [
        {"role": "system", "content": system_text(cell.variant)},
        {"role": "user", "content": transcript(cell)},
    ]


def answer_schema(variant: Variant) -> dict[str, Any]:
    """JSON schema of an answer, for endpoints that are asked to keep to one."""
    properties: dict[str, Any] = {
        "action": {"type": "string", "enum": words_of(variant)},
        "rationale": {"type": "string"},
    }
    if variant.key == "supplied":
        properties["idempotency_key"] = {"type": ["string", "null"]}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _listed(words: list[str], last: str) -> str:
    return f"{', '.join(words[:-1])} {last} {words[-1]}"
