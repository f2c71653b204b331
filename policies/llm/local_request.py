"""Requests of the chat-completions protocol, read for the local model, and the answers to them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from policies.llm.endpoint import ProviderError
from policies.llm.local_schema import UnsupportedSchemaError, pattern_of

if TYPE_CHECKING:
    from policies.llm.local_engine import Context
    from policies.llm.local_writing import Passes, Words

__all__ = ["Ask", "Tool", "read_request"]

DEFAULT_TOKENS = 256
"""Longest answer where the request says nothing."""

MAX_TOP_LOGPROBS = 20
MAX_OPTIONS = 256
MAX_STOPS = 4

DECIMALS = 4
"""Of log-probabilities: what does not depend on the batch in which they were computed."""

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

# What SmolLM2's own template says where no system text is given.
DEFAULT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


@dataclass(frozen=True)
class Tool:
    """A tool on offer.

    Attributes
    ----------
    name, description
        As the request has them.
    parameters
        JSON schema of its arguments.
    strict
        Whether the arguments must keep to it.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool

    @property
    def told(self) -> str:
        """A line about it: name, arguments, description."""
        properties = self.parameters.get("properties")
        names = ", ".join(properties) if isinstance(properties, Mapping) else ""
        return f"- {self.name}({names}): {self.description}".rstrip(": ")


@dataclass(frozen=True)
class Ask:
    """A request that can be carried out.

    Attributes
    ----------
    prompt
        Tokens as far as the opened turn of the assistant.
    options, beginning
        Texts of which the likeliest is wanted, and what stands before each.
    temperature, top_p, seed
        How tokens are drawn.
    longest
        Most tokens of the answer.
    stops
        Texts that end the answer.
    n_top
        Likeliest tokens told at each place; None: no log-probabilities.
    schema
        JSON schema of the answer.
    tools
        Tools of which one is called.
    n_messages
        Messages of the conversation so far.
    """

    prompt: list[int]
    options: tuple[str, ...] = ()
    beginning: str = ""
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    longest: int = DEFAULT_TOKENS
    stops: tuple[str, ...] = ()
    n_top: int | None = None
    schema: Mapping[str, Any] | None = None
    tools: tuple[Tool, ...] = ()
    n_messages: int = 0

    @property
    def repeatable(self) -> bool:
        """Whether an equal request has the same answer."""
        return bool(self.options) or self.temperature == 0.0 or self.seed is not None

    @property
    def room(self) -> int:
        """Tokens that the context will need beyond the prompt, at first."""
        return 8 * len(self.options) + 64

    def answer(
        self, words: Words, context: Context, read: Callable[[Context], None]
    ) -> Passes[dict[str, Any]]:
        """Write the answer.

        Returns
        -------
        The answer without its number and time.
        """
        from policies.llm.local_writing import Free, OutOfTokensError, Sampling, Writer

        sampling = Sampling(self.temperature, self.top_p, self.seed)
        writer = Writer(words, context, self.prompt, sampling, self.longest, read)
        choice: dict[str, Any] = {"index": 0}
        message: dict[str, Any] = {"role": "assistant", "content": None}
        finish = "stop"
        if self.options:
            closing = self._closing
            scores, _ = yield from writer.score(self.beginning, self.options, closing)
            logprobs = [round(score, DECIMALS) for score in scores]
            best = self.options[logprobs.index(max(logprobs))]
            message["content"] = self.beginning + best + ("" if closing is None else '"}')
            choice["option_logprobs"] = dict(zip(self.options, logprobs, strict=True))
        elif self.tools:
            call, finish = yield from self._call(writer)
            message["tool_calls"] = [call]
        elif self.schema is not None:
            try:
                yield from writer.value(self.schema)
            except OutOfTokensError:
                finish = "length"
            message["content"] = writer.text
        else:
            free: Free = yield from writer.free(self.stops, self.n_top)
            message["content"], finish = free.text, free.finish
            if self.n_top is not None:
                choice["logprobs"] = {"content": free.tokens, "refusal": None}
        choice |= {"message": message, "finish_reason": finish}
        n = len(self.prompt)
        return {
            "choices": [choice],
            "usage": {
                "prompt_tokens": n,
                "completion_tokens": writer.written,
                "total_tokens": n + writer.written,
            },
        }

    @property
    def _closing(self) -> str | None:
        """What ends an option: a quote, if the beginning opens a text of a JSON object."""
        opens = self.beginning.startswith("{") and self.beginning.endswith('"')
        return '",' if opens else None

    def _call(self, writer: Any) -> Passes[tuple[dict[str, Any], str]]:
        """Write a tool call; the call, and why it ended."""
        from policies.llm.local_writing import OutOfTokensError

        lead = '{"name": '
        names = [json.dumps(tool.name) for tool in self.tools]
        if len(names) > 1:
            tool = self.tools[(yield from writer.choose(lead, names, ","))]
            lead = ', "arguments": '
        else:
            tool, lead = self.tools[0], f'{lead}{names[0]}, "arguments": '
        finish = "tool_calls"
        if tool.strict:
            begin = len(writer.text) + len(lead)
            try:
                yield from writer.value(tool.parameters, lead)
            except OutOfTokensError:
                finish = "length"
            arguments = writer.text[begin:]
        elif not tool.parameters.get("properties"):
            writer.force(lead + "{}}")
            arguments = "{}"
        else:
            found = yield from writer.json_object(lead)
            arguments, finish = found.text, "tool_calls" if found.finish == "stop" else "length"
        return {
            "id": f"call_{self.n_messages}",
            "type": "function",
            "function": {"name": tool.name, "arguments": arguments},
        }, finish


def read_request(body: Mapping[str, Any], words: Words, window: int) -> Ask:
    """A request, checked.

    Parameters
    ----------
    body
        The JSON object.
    words
        The tokenizer.
    window
        Most tokens of prompt and answer together.

    Raises
    ------
    ProviderError
        ``http_400`` for what cannot be carried out.
    """
    for name in ("stream", "audio", "functions"):
        if body.get(name):
            raise _refused(f"the local model has no {name!r}")
    if body.get("n") not in (None, 1):
        raise _refused("the local model gives one answer: n must be 1")
    tools = _tools(body)
    messages = _messages(body.get("messages"))
    prompt = _prompt(messages, tools, words)
    options, beginning = _options(body)
    longest = _number(body, ("max_completion_tokens", "max_tokens"), DEFAULT_TOKENS, least=1)
    seed = body.get("seed")
    if seed is not None and not (isinstance(seed, int) and not isinstance(seed, bool)):
        raise _refused("seed must be a whole number")
    tree_size = sum(len(words.encode(option)) + 8 for option in options)
    room = window - len(prompt) - (tree_size + len(words.encode(beginning)) if options else 0)
    if room < 1:
        raise _refused(
            f"the prompt has {len(prompt)} tokens; the model's maximum context length is {window} "
            "(context_length_exceeded)"
        )
    return Ask(
        prompt=prompt,
        options=options,
        beginning=beginning,
        temperature=float(_number(body, ("temperature",), 0.0, least=0)),
        top_p=float(_number(body, ("top_p",), 1.0, least=0)),
        seed=None if seed is None else abs(seed),
        longest=min(int(longest), room),
        stops=_stops(body.get("stop")),
        n_top=int(_number(body, ("top_logprobs",), 0, most=MAX_TOP_LOGPROBS))
        if body.get("logprobs")
        else None,
        schema=_schema(body.get("response_format")),
        tools=tools,
        n_messages=len(messages),
    )


def _refused(message: str) -> ProviderError:
    return ProviderError("http_400", message, retry=False)


def _number(
    body: Mapping[str, Any],
    names: Sequence[str],
    default: float,
    *,
    least: float = 0,
    most: float = 1e9,
) -> float:
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _refused(f"{name} must be a number")
        if not least <= value <= most:
            raise _refused(f"{name} must lie in {least:g}..{most:g}")
        return value
    return default


def _messages(found: Any) -> list[tuple[str, str]]:
    """Roles and texts."""
    if not (isinstance(found, list) and found and all(isinstance(m, Mapping) for m in found)):
        raise _refused("messages must be a list of messages")
    messages = []
    for message in found:
        role = message.get("role")
        text = _text(message.get("content"))
        if role == "tool":
            role, text = "user", f"Tool result:\n{text}"
        elif role not in ROLES:
            raise _refused(f"there is no role {role!r}")
        for call in message.get("tool_calls") or ():
            text += ("\n" if text else "") + _call_text(call)
        messages.append((ROLES[role], text))
    return messages


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        parts = [text for text in texts if isinstance(text, str)]
        if len(parts) == len(content):
            return "".join(parts)
    raise _refused("content must be text")


def _call_text(call: Any) -> str:
    """A call as the model is asked to write it."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise _refused("a tool call needs a function")
    name = json.dumps(function.get("name"))
    return f'{{"name": {name}, "arguments": {function.get("arguments", "{}")}}}'


def _tools(body: Mapping[str, Any]) -> tuple[Tool, ...]:
    """The tools that may be called."""
    tools = []
    for entry in body.get("tools") or ():
        function = entry.get("function") if isinstance(entry, Mapping) else None
        if not (isinstance(function, Mapping) and isinstance(function.get("name"), str)):
            raise _refused("a tool needs a function with a name")
        parameters = function.get("parameters") or {}
        if not isinstance(parameters, Mapping):
            raise _refused("the parameters of a tool must be a schema")
        strict = bool(function.get("strict"))
        if strict:
            _check_schema(parameters)
        description = str(function.get("description") or "")
        tools.append(Tool(function["name"], description, parameters, strict))
    wanted = body.get("tool_choice")
    if wanted == "none":
        return ()
    if isinstance(wanted, Mapping):
        function = wanted.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        tools = [tool for tool in tools if tool.name == name]
        if not tools:
            raise _refused(f"tool_choice names no tool on offer: {name!r}")
    return tuple(tools)


def _prompt(messages: Sequence[tuple[str, str]], tools: Sequence[Tool], words: Words) -> list[int]:
    """Tokens of a conversation, as far as the opened turn of the assistant."""
    turns = list(messages)
    if turns[0][0] != "system":
        turns.insert(0, ("system", DEFAULT_SYSTEM))
    if tools:
        role, text = turns[0]
        turns[0] = (role, f"{text.rstrip()}\n\n{_told(tools)}")
    start, end, newline = words.special("<|im_start|>"), words.end, words.encode("\n")
    tokens: list[int] = []
    for role, text in turns:
        tokens += [start, *words.encode(f"{role}\n{text}"), end, *newline]
    return [*tokens, start, *words.encode("assistant\n")]


def _told(tools: Sequence[Tool]) -> str:
    return (
        "Tools:\n"
        + "\n".join(tool.told for tool in tools)
        + "\nAnswer with one JSON object and nothing else, like this: "
        '{"name": "TOOL", "arguments": {"ARGUMENT": "VALUE"}}'
    )


def _options(body: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    options, beginning = body.get("options"), body.get("option_prefix", "")
    if options is None:
        return (), ""
    if not (
        isinstance(options, list)
        and 0 < len(options) <= MAX_OPTIONS
        and all(isinstance(option, str) and option for option in options)
        and len(set(options)) == len(options)
    ):
        raise _refused(f"options must be 1 to {MAX_OPTIONS} distinct texts")
    if not isinstance(beginning, str):
        raise _refused("option_prefix must be text")
    return tuple(options), beginning


def _stops(found: Any) -> tuple[str, ...]:
    stops = [found] if isinstance(found, str) else found or []
    if not (
        isinstance(stops, list)
        and len(stops) <= MAX_STOPS
        and all(isinstance(stop, str) and stop for stop in stops)
    ):
        raise _refused(f"stop must be up to {MAX_STOPS} texts")
    return tuple(stops)


def _schema(found: Any) -> Mapping[str, Any] | None:
    """The schema that the answer must keep to."""
    kind = found.get("type") if isinstance(found, Mapping) else found
    if kind in (None, "text"):
        return None
    if kind != "json_schema":
        raise _refused(f"the local model has no response_format {kind!r}; use json_schema")
    inner = found.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, Mapping) else None
    if not (isinstance(schema, Mapping) and schema.get("type") == "object"):
        raise _refused("response_format needs json_schema.schema of an object")
    _check_schema(schema)
    return schema


def _check_schema(schema: Mapping[str, Any]) -> None:
    try:
        pattern_of(schema)
    except (UnsupportedSchemaError, TypeError, ValueError, AttributeError) as error:
        raise _refused(f"the schema cannot be kept to: {error}") from None
