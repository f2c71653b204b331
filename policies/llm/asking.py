"""One decision as a request and its answer, for every way in which an endpoint can be asked."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from exactlyonce_env.compiled import Record
from exactlyonce_env.errors import check_range, unknown
from policies.llm.answers import Answer, InvalidAnswerError, action_of, parse_answer
from policies.llm.prompts import (
    Variant,
    allowed,
    answer_schema,
    lettered,
    letters_of,
    messages_for,
    options_of,
)

__all__ = ["ANSWERS", "Question", "Settings", "chat_text", "tokens_of"]

ANSWERS = ("auto", "schema", "tools", "text")
"""How an answer is asked for: by JSON schema, by a tool call, or in words alone; ``auto`` tries."""

TOOL = "choose"
"""The tool whose call is an answer."""

MAX_ANSWER_TOKENS = 10**7
MAX_TIMEOUT_S = 86_400.0
MAX_SOCKETS = 1000
"""As many connections as the SDK keeps open at most."""

MAX_TEMPERATURE = 100.0
TOP_LOGPROBS = 20
OPTION_PREFIX = '{"action": "'


@dataclass(frozen=True)
class Settings:
    """How a model is asked.

    Attributes
    ----------
    base_url
        The endpoint's address; None: ``OPENAI_BASE_URL``, else OpenAI's.
    answers
        One of `ANSWERS`.
    temperature
        None: the provider's own.
    max_tokens
        Longest answer.
    timeout_s
        How long one answer may take [s].
    sockets
        Requests in flight at the same time.

    Raises
    ------
    UserError
        For an unknown word, or a number out of range.
    """

    base_url: str | None = None
    answers: str = "auto"
    temperature: float | None = None
    max_tokens: int = 512
    timeout_s: float = 120.0
    sockets: int = 64

    def __post_init__(self) -> None:
        if self.answers not in ANSWERS:
            raise unknown("--answers", self.answers, ANSWERS)
        check_range("--answer-tokens", self.max_tokens, 1, MAX_ANSWER_TOKENS)
        check_range("--timeout", self.timeout_s, 0.001, MAX_TIMEOUT_S)
        check_range("--sockets", self.sockets, 1, MAX_SOCKETS)
        if self.temperature is not None:
            check_range("--temperature", self.temperature, 0.0, MAX_TEMPERATURE)

    def limits(self, tokens: int | None = None) -> dict[str, Any]:
        """The fields of a request that limit and heat the answer."""
        # Hosted models know only the newer name, servers of one's own often only the older.
        name = "max_tokens" if self.base_url else "max_completion_tokens"
        fields: dict[str, Any] = {name: tokens or self.max_tokens}
        if self.temperature is not None:
            fields["temperature"] = self.temperature
        return fields


@dataclass(frozen=True)
class Question:
    """What is asked about one view.

    Attributes
    ----------
    seen, contract
        A `VIEW` record of a running episode and its `CONTRACT` record.
    variant
        The prompt's factors.
    answers
        ``schema``, ``tools`` or ``text``; of likelihoods ``options`` or ``letters``.
    complaints
        Invalid answers to this very question, each with what was wrong.
    """

    seen: Record
    contract: Record
    variant: Variant
    answers: str
    complaints: Sequence[tuple[str, str]] = ()

    @cached_property
    def words(self) -> list[str]:
        """The actions allowed, in the menu's order."""
        return allowed(self.seen, self.contract, self.variant.order)

    def body(self, model: str, settings: Settings) -> dict[str, Any]:
        """The request to ``/chat/completions``."""
        words = self.words
        messages = messages_for(self.seen, self.contract, words, self.variant, self.complaints)
        body: dict[str, Any] = {"model": model, "messages": messages}
        if self.answers == "options":
            return body | {"options": options_of(words), "option_prefix": OPTION_PREFIX}
        if self.answers == "letters":
            messages[-1]["content"] += "\n" + lettered(options_of(words))
            return body | {
                **settings.limits(1),
                "logprobs": True,
                "top_logprobs": TOP_LOGPROBS,
                "temperature": 0,
            }
        body |= settings.limits()
        if self.answers == "schema":
            body["response_format"] = schema_format(answer_schema(words, self.variant))
        elif self.answers == "tools":
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": TOOL,
                        "description": "Choose the next action.",
                        "parameters": answer_schema(words, self.variant),
                    },
                }
            ]
            body["tool_choice"] = {"type": "function", "function": {"name": TOOL}}
        return body

    def read(self, response: dict[str, Any]) -> Answer:
        """The answer in a response.

        Raises
        ------
        InvalidAnswerError
            Naming what is wrong with it.
        """
        words = self.words
        if self.answers in ("options", "letters"):
            word, action, seconds = action_of(self._likeliest(response), words)
            return Answer(word, action, seconds, "")
        return parse_answer(self.text(response), words, self.variant)

    def text(self, response: dict[str, Any]) -> str:
        """What the model wrote, for the transcript and for a complaint."""
        if self.answers == "tools":
            calls = _message(response).get("tool_calls")
            if isinstance(calls, list) and calls:
                function = calls[0].get("function") if isinstance(calls[0], dict) else None
                if isinstance(function, dict) and function.get("name") == TOOL:
                    arguments = function.get("arguments", "")
                    return arguments if isinstance(arguments, str) else json.dumps(arguments)
        return chat_text(response)

    def _likeliest(self, response: dict[str, Any]) -> str:
        scores = self.likelihoods(response)
        best = max(scores.values(), default=-math.inf)
        if not math.isfinite(best):
            raise InvalidAnswerError("no option has a probability")
        return next(option for option, score in scores.items() if score == best)

    def likelihoods(self, response: dict[str, Any]) -> dict[str, float]:
        """Log-probability of each option, in the menu's order."""
        options = options_of(self.words)
        choice = _choice(response)
        if self.answers == "options":
            found = choice.get("option_logprobs")
            given = found if isinstance(found, dict) else {}
            return {option: _number(given.get(option)) for option in options}
        scores = dict.fromkeys(options, -math.inf)
        letters = letters_of(options)
        for entry in _top_logprobs(choice):
            option = letters.get(str(entry.get("token", "")).strip())
            if option is not None:
                scores[option] = max(scores[option], _number(entry.get("logprob")))
        return scores


def schema_format(schema: dict[str, Any], name: str = "answer") -> dict[str, Any]:
    """The field that asks for structured output."""
    return {
        "type": "json_schema",
        "json_schema": {"name": name, "strict": True, "schema": schema},
    }


PROBE_WORD = "blue"
PROBE_SCHEMA = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": [PROBE_WORD]}},
    "required": ["colour"],
    "additionalProperties": False,
}


def probe_body(model: str, settings: Settings) -> dict[str, Any]:
    """A request that only an endpoint which enforces schemas answers by the schema."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": "Say hello to me in one plain sentence."}],
        "response_format": schema_format(PROBE_SCHEMA, "probe"),
        **settings.limits(),
    }


def enforces_schema(response: dict[str, Any]) -> bool:
    """Whether the answer to `probe_body` keeps to the schema."""
    try:
        return bool(json.loads(chat_text(response)) == {"colour": PROBE_WORD})
    except (ValueError, RecursionError):
        return False


def chat_text(response: dict[str, Any]) -> str:
    """The text of a chat completion; empty where there is none."""
    content = _message(response).get("content")
    return content if isinstance(content, str) else ""


def tokens_of(response: dict[str, Any]) -> tuple[int, int]:
    """Tokens read and written, by the response's own account; 0 where it has none."""
    usage = response.get("usage")
    if not isinstance(usage, dict):
        return 0, 0
    read = usage.get("prompt_tokens", usage.get("input_tokens", 0))
    written = usage.get("completion_tokens", usage.get("output_tokens", 0))
    return _whole(read), _whole(written)


MAX_TOKENS = 10**12
"""More than any answer uses; a database holds the sum of a million of them."""


def _whole(value: Any) -> int:
    """A count that a provider tells, or 0 for what is none."""
    number = _number(value)
    return int(min(number, MAX_TOKENS)) if number > 0.0 else 0


def _number(value: Any) -> float:
    """A number that a provider tells; minus infinity for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return -math.inf
    try:
        number = float(value)
    except OverflowError:
        return math.inf
    return -math.inf if math.isnan(number) else number


def _choice(response: dict[str, Any]) -> dict[str, Any]:
    choices = response.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    return {}


def _message(response: dict[str, Any]) -> dict[str, Any]:
    message = _choice(response).get("message")
    return message if isinstance(message, dict) else {}


def _top_logprobs(choice: dict[str, Any]) -> list[dict[str, Any]]:
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not (isinstance(content, list) and content and isinstance(content[0], dict)):
        return []
    top = content[0].get("top_logprobs")
    entries = top if isinstance(top, list) else []
    return [entry for entry in [*entries, content[0]] if isinstance(entry, dict)]
