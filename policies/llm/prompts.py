"""What a model is told: the declared prompt variants, one request for one view.

The fixed text comes first and the history last, so that prefixes can be cached.  Everything that
may differ between two runs is a word of the variant, and the version names the wording itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np

from exactlyonce_env.actions import ACTION_NAMES, MAX_WAIT_S, WAITS_S, write_mask
from exactlyonce_env.compiled import Record
from exactlyonce_env.errors import UserError
from exactlyonce_env.view_text import view_text

__all__ = [
    "NUDGES",
    "PROMPT_VERSION",
    "Variant",
    "allowed",
    "answer_schema",
    "letters_of",
    "messages_for",
    "system_text",
]

PROMPT_VERSION = "1"
"""Changes with any change of the wording."""

NUDGES = 2
"""Invalid answers of an episode that are asked anew; one more ends it as ``finish_uncertain``."""

REPEATED = 2000
"""Characters of an invalid answer that are repeated to the model."""

WAIT_WORD = "wait:SECONDS"

SECONDS_PATTERN = r"[0-9]+(\.[0-9]+)?"
"""How the seconds of a wait are written."""

EXPLAINED: dict[str, str] = {
    "read": "look at the service's read-back",
    WAIT_WORD: f"let time pass; any number from 0 to {MAX_WAIT_S:g}, for instance "
    + ", ".join(f"wait:{seconds:g}" for seconds in WAITS_S),
    "retry": "send the write (again) without an idempotency key",
    "keyed_retry": "send the write (again) with the idempotency key that the service section names",
    "escalate": "ask a human operator",
    "finish": "end, and claim that the operation is complete",
    "finish_uncertain": "end without that claim, naming the operation uncertain",
}
"""The actions in their given order, and what each does."""

STATES = ("absent", "committed", "in_flight")
"""What a belief is about, in order."""

ROLE = """\
You are the client of a service. One operation must take effect exactly once. You see the contract \
of the service, what things cost, and all that has happened so far. Choose the next action. Each \
action takes effect before you are asked again, until you end the operation or your calls are used \
up. The score is the sum of the costs as they arise and of what the service's own ledger says in \
the end, after every request still under way has arrived."""

RULES = """\
Rules of reliable clients:
- A timeout or an HTTP 500 does not say whether the write took effect: it may be absent, \
committed, or still in flight and take effect later, whatever you do meanwhile.
- A read that shows nothing does not prove that nothing will come while a request may be in \
flight, or while the read lags behind.
- Repeating a write is safe only if executing it again changes nothing, if every earlier attempt \
carried the same idempotency key and its record still lives, or if it is certain that no earlier \
attempt has had an effect or will have one.
- How long to wait before a repeat depends on how late writes usually land, on what a duplicate \
costs, and on what time costs.
- Respect Retry-After. Ask the operator where reads cannot tell. Never claim what you do not \
know."""

BELIEF = """\
State as well what you believe of the operation at this moment: "absent" is the probability that \
nothing has taken effect and nothing will; "committed" that it has fully taken effect by now; \
"in_flight" that it has not yet, but something will still take effect. They sum to 1."""


@dataclass(frozen=True)
class Variant:
    """The declared factors of a prompt; the first choice of each is the default.

    Attributes
    ----------
    condition
        ``vanilla``, or ``aware`` with the rules of reliable clients.
    order
        Order of the menu: ``given`` or ``reversed``.
    labels
        Whether the menu says what each action does, beside its name.
    belief
        Whether the model states what it believes too.
    scoring
        ``sampled``: the model writes its answer. ``likelihood``: the action that the model finds
        likeliest among those allowed, from log-probabilities.
    """

    condition: str = "vanilla"
    order: str = "given"
    labels: bool = True
    belief: bool = False
    scoring: str = "sampled"

    def __post_init__(self) -> None:
        if self.belief and self.scoring == "likelihood":
            raise UserError("a belief is written out, so it needs --scoring sampled")

    @property
    def words(self) -> tuple[str, ...]:
        """The words that say where the variant departs from the default."""
        return tuple(
            word
            for word, (name, value) in WORDS.items()
            if getattr(self, name) == value and getattr(DEFAULT, name) != value
        )


WORDS: dict[str, tuple[str, Any]] = {
    "aware": ("condition", "aware"),
    "reversed": ("order", "reversed"),
    "nolabels": ("labels", False),
    "belief": ("belief", True),
    "sampled": ("scoring", "sampled"),
    "likelihood": ("scoring", "likelihood"),
}
"""Each word of a spec such as ``llm:gpt-x+aware+reversed``: a field and its value."""

DEFAULT = Variant()


def split_spec(argument: str, default: Variant = DEFAULT) -> tuple[str, Variant]:
    """A model's name and its variant from ``MODEL+aware+…``.

    Only the words at the end count, so that a name may hold a plus sign.
    """
    changes: dict[str, Any] = {}
    model = argument
    while "+" in model:
        rest, _, word = model.rpartition("+")
        if word not in WORDS or not rest:
            break
        name, value = WORDS[word]
        changes.setdefault(name, value)
        model = rest
    return model, replace(default, **changes)


def allowed(seen: Record, contract: Record, order: str = "given") -> list[str]:
    """The words of the actions that are not answered with an error, in the menu's order.

    All waits count as the one word ``wait:SECONDS``.
    """
    mask = np.zeros(len(ACTION_NAMES), dtype=np.int8)
    write_mask(seen, contract, mask)
    words: list[str] = []
    for name, possible in zip(ACTION_NAMES, mask, strict=True):
        word = WAIT_WORD if name.startswith("wait:") else name
        if possible and word not in words:
            words.append(word)
    return words[::-1] if order == "reversed" else words


def options_of(words: Sequence[str]) -> list[str]:
    """The words with the discrete waits in place of ``wait:SECONDS``."""
    found: list[str] = []
    for word in words:
        waits = [f"wait:{seconds:g}" for seconds in WAITS_S]
        found += waits if word == WAIT_WORD else [word]
    return found


def letters_of(options: Sequence[str]) -> dict[str, str]:
    """A letter for each option, in order."""
    return {chr(ord("A") + k): option for k, option in enumerate(options)}


@lru_cache(maxsize=64)
def system_text(variant: Variant) -> str:
    """The fixed part of the prompt."""
    words = list(EXPLAINED)
    if variant.order == "reversed":
        words.reverse()
    parts = [ROLE]
    if variant.condition == "aware":
        parts.append(RULES)
    menu = [f"- {word}: {EXPLAINED[word]}" if variant.labels else f"- {word}" for word in words]
    parts.append("Actions:\n" + "\n".join(menu))
    if variant.scoring == "likelihood":
        parts.append("Answer with the action alone.")
    else:
        parts.append(_format(variant))
    return "\n\n".join(parts) + "\n"


def _format(variant: Variant) -> str:
    example = '{"action": "...", "rationale": "..."}'
    if variant.belief:
        example = (
            '{"action": "...", "rationale": "...", '
            '"belief": {"absent": 0.0, "committed": 0.0, "in_flight": 0.0}}'
        )
    told = (
        f"Answer with one JSON object and nothing else, without a code fence: {example}. The "
        "action is one of the words above that is allowed now; the rationale is one sentence."
    )
    return f"{told}\n{BELIEF}" if variant.belief else told


def view_message(seen: Record, contract: Record, words: Sequence[str]) -> str:
    """The part that changes: the view, and what is allowed now."""
    return f"{view_text(seen, contract)}\nAllowed now: {', '.join(words)}\n"


def messages_for(
    seen: Record,
    contract: Record,
    words: Sequence[str],
    variant: Variant,
    complaints: Sequence[tuple[str, str]] = (),
) -> list[dict[str, Any]]:
    """The messages that ask for one decision.

    Parameters
    ----------
    seen, contract
        A `VIEW` record and its `CONTRACT` record.
    words
        The actions allowed, as `allowed` gives them.
    variant
        The prompt's factors.
    complaints
        Invalid answers to this very question, each with what was wrong.
    """
    asked = view_message(seen, contract, words)
    messages = [
        {"role": "system", "content": system_text(variant)},
        {"role": "user", "content": asked},
    ]
    for answer, wrong in complaints:
        messages.append({"role": "assistant", "content": answer[:REPEATED] or "(no text)"})
        messages.append(
            {
                "role": "user",
                "content": f"This answer is invalid: {wrong}. Answer with one JSON object as told.",
            }
        )
    return messages


def lettered(options: Sequence[str]) -> str:
    """The options by letter, for endpoints that give log-probabilities of single tokens."""
    lines = [f"{letter}. {option}" for letter, option in letters_of(options).items()]
    return "Options:\n" + "\n".join(lines) + "\nAnswer with the letter of one option alone.\n"


def answer_schema(words: Sequence[str], variant: Variant) -> dict[str, Any]:
    """JSON schema of an answer, as structured output takes it."""
    plain = [word for word in words if word != WAIT_WORD]
    pattern = "|".join(plain + ([f"wait:{SECONDS_PATTERN}"] if WAIT_WORD in words else []))
    properties: dict[str, Any] = {
        "action": {"type": "string", "pattern": f"^({pattern})$"},
        "rationale": {"type": "string"},
    }
    if variant.belief:
        properties["belief"] = {
            "type": "object",
            "properties": {state: {"type": "number"} for state in STATES},
            "required": list(STATES),
            "additionalProperties": False,
        }
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def describe(variant: Variant) -> dict[str, Any]:
    """The variant in JSON types, for manifests."""
    return {field.name: getattr(variant, field.name) for field in fields(Variant)} | {
        "version": PROMPT_VERSION
    }
