"""The conversation of an episode, put together from its requests and answers.

Whatever a provider sent is taken as it comes: text that is no text is written out as JSON, and
fields of the wrong shape are passed over.  Nothing here is markup; the page shows it as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from policies.llm.asking import tokens_of

__all__ = ["Entry", "talk_of"]

Entry = dict[str, Any]
"""One thing that was said or done.

``role`` is ``system``, ``task``, ``view``, ``nudge``, ``model``, ``call``, ``result``, ``trouble``
or ``note``; ``link`` ties it to the rows of the timeline that have the same one.
"""

CLOCK = re.compile(r"^- clock: ([0-9.]+) s$", re.MULTILINE)
"""Where a view says how late it is [s]."""

HISTORY = re.compile(r"^History:$", re.MULTILINE)
WENT = ("began_s", "ended_s", "status", "focal", "violation", "again")
"""What the log says of a call, beside its error."""

REASONING = ("reasoning_content", "reasoning")
"""Fields in which servers send what a model thought."""


def talk_of(
    document: Mapping[str, Any],
    calls: Sequence[Mapping[str, Any]],
    trouble: Sequence[Mapping[str, Any]],
) -> list[Entry]:
    """The conversation of an episode in order.

    Parameters
    ----------
    document
        The episode, as the store keeps it.
    calls, trouble
        Its calls and the provider's failures, as the store gives them.
    """
    talk = _Talk(document)
    if document["kind"] == "case" and not calls and not trouble:
        talk.scripted()
        return talk.entries
    left = list(trouble)
    for index, call in enumerate(calls):
        talk.hear(call["body"], first=index == 0)
        while left and left[0]["step"] <= call["step"]:
            talk.add("trouble", **_trouble(left.pop(0)))
        talk.answer(index, call)
    talk.end()
    for entry in left:
        talk.add("trouble", **_trouble(entry))
    return talk.entries


class _Talk:
    """Gathers the entries of one episode."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.entries: list[Entry] = []
        self._acts = document["kind"] in ("agent", "case")
        self._document = document
        self._heard: list[Any] = []
        self._views = 0
        self._view = ""
        self._answers = {a["step"]: a for a in document.get("answers", ())}
        self._asked: dict[str, Entry] = {}  # calls of tools by id that have no result yet
        done = document.get("calls", ()) if self._acts else ()
        # What a wrapper did of its own accord cannot be told from what the model asked for.
        self._wrapped = document.get("wrapper", "none") != "none"
        self._done: Sequence[Mapping[str, Any]] = done
        self._n_calls = 0

    def add(self, role: str, **fields: Any) -> Entry:
        """Add an entry."""
        entry = {"role": role, **fields}
        self.entries.append(entry)
        return entry

    # -- requests ---------------------------------------------------------------------------------

    def hear(self, body: Mapping[str, Any], first: bool) -> None:
        """Add what a request holds beyond the one before."""
        history = body.get("messages", body.get("input"))
        history = history if isinstance(history, list) else []
        kept = 0
        while kept < min(len(self._heard), len(history)) and history[kept] == self._heard[kept]:
            kept += 1
        if kept == len(history) and not self._acts:
            kept -= 1  # the same question again
        for place in range(max(kept, 0), len(history)):
            message = history[place]
            if isinstance(message, Mapping):
                self._hear_one(place, message, body, first)
        self._heard = history

    def _hear_one(
        self, place: int, message: Mapping[str, Any], body: Mapping[str, Any], first: bool
    ) -> None:
        role, kind = message.get("role"), message.get("type")
        text = _text(message.get("content"))
        if role in ("system", "developer"):
            self.add("system", text=text, tools=list(_tools(body)))
        elif role == "tool" or kind == "function_call_output":
            id_ = message.get("tool_call_id", message.get("call_id"))
            self._result(str(id_), _text(message.get("output")) if role is None else text)
        elif role == "user" and place > 1:
            self.add("nudge", text=text)
        elif role == "user" and self._document["kind"] != "policy":
            self.add("task", text=text)
        elif role == "user":
            self._look(text)
        elif first and text:  # else it repeats an answer
            self.add("model", text=text)

    def _look(self, text: str) -> None:
        """Add a view, with the lines that the last one did not have."""
        known = set(self._view.splitlines())
        new = [line for line in text.splitlines() if line not in known]
        clock = CLOCK.findall(text)
        split = HISTORY.search(text)
        self.add(
            "view",
            text=text,
            # What stays the same during an episode stands before the history.
            fixed=text[: split.start()] if split else "",
            new="\n".join(new) if self._view else text[split.start() :] if split else text,
            again=bool(self._view),
            time_s=float(clock[-1]) if clock else 0.0,
            link=self._views,
        )
        self._view = text
        self._views += 1

    def _result(self, id_: str, text: str) -> None:
        call = self._asked.pop(id_, {})
        known = {name: call[name] for name in ("tool", "link", "error", "ended_s") if name in call}
        self.add("result", text=text, **known)

    # -- answers ----------------------------------------------------------------------------------

    def answer(self, index: int, call: Mapping[str, Any]) -> None:
        """Add what came back."""
        response = call["response"] if isinstance(call["response"], Mapping) else {}
        message, asked, end = _said(response)
        tokens = tokens_of(dict(response))
        entry = self.add(
            "model",
            text=_text(message.get("content")) or _text(message.get("refusal")),
            reasoning=next((_text(message[r]) for r in REASONING if message.get(r)), ""),
            step=call["step"],
            call=index,
            end=end,
            tokens_in=tokens[0],
            tokens_out=tokens[1],
            usd=call["usd"],
            seconds=call["seconds"],
            at_utc=call["at_utc"],
        )
        entry["empty"] = not (entry["text"] or asked)
        if self._acts:
            for id_, name, arguments in asked:
                self._ask(id_, name, arguments)
            return
        entry["link"] = max(self._views - 1, 0)
        entry["text"] = entry["text"] or next((text for _, _, text in asked), "")
        entry["answer"] = self._answers.get(call["step"])
        if entry["answer"] and self._document.get("idempotency_key") is not None:
            entry["answer"] |= {"key": self._document["idempotency_key"]}
        entry["scores"] = _scores(response)

    def _ask(self, id_: str, name: str, arguments: str) -> None:
        """Add a call of a tool, with what is known of how it went."""
        entry = self.add("call", tool=name, text=_indented(arguments))
        if not self._wrapped:
            number = self._n_calls
            self._n_calls += 1
            entry["done"] = number < len(self._done)
            if entry["done"]:
                went = self._done[number]
                told = {name: went[name] for name in WENT if name in went}
                entry |= {"link": number, "error": bool(went["error"]), **told}
        self._asked[id_] = entry

    def scripted(self) -> None:
        """Add what a script did, whom nobody asked anything."""
        self.add("note", text="A script played this; no model was asked.")
        for number, went in enumerate(self._done):
            self._ask(str(number), went["tool"], json.dumps(went["arguments"]))
            self._tell_rest()
        if self._document["answer"] is not None:
            self.add("model", text=self._document["answer"])
        self._tell_end()

    def end(self) -> None:
        """Add what no further request tells."""
        self._tell_rest()
        self._tell_end()

    def _tell_rest(self) -> None:
        """Add the results that no request told the model."""
        for entry in self._asked.values():
            if "link" in entry:
                went = self._done[entry["link"]]
            elif self._wrapped and self._done and self._done[-1]["tool"] == entry["tool"]:
                went = self._done[-1]
            else:
                continue
            told = {"tool": entry["tool"], "error": bool(went["error"])}
            told |= {"ended_s": went["ended_s"]} if "ended_s" in went else {}
            text = went["text"] if "text" in went else json.dumps(went["reply"])
            self.add("result", text=text, link=entry.get("link"), **told)
        self._asked.clear()

    def _tell_end(self) -> None:
        """Add how the episode ends, where the last answer does not say it."""
        document = self._document
        if document["status"] == "returned" and document.get("answer", "") is None:
            self.add("note", text="The turns are used up, and no final answer was given.")
        actions, answers = document.get("actions", ()), document.get("answers", ())
        if answers and answers[-1].get("invalid") and list(actions[-1:]) == ["finish_uncertain"]:
            self.add("note", text="After this the episode ends as finish_uncertain.")


def _trouble(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": entry["kind"], "text": entry["message"], "at_utc": entry["at_utc"]}


def _said(
    response: Mapping[str, Any],
) -> tuple[Mapping[str, Any], list[tuple[str, str, str]], str]:
    """The message of an answer, its calls of tools (id, name, arguments), and why it ended."""
    if isinstance(response.get("output"), list):
        return _said_in_items(response)
    choice = _first(response.get("choices"))
    message = choice.get("message")
    message = message if isinstance(message, Mapping) else {}
    asked = []
    for k, call in enumerate(_mappings(message.get("tool_calls"))):
        function = call.get("function")
        if isinstance(function, Mapping):
            arguments = _text(function.get("arguments"))
            asked.append((str(call.get("id") or k), _text(function.get("name")), arguments))
    return message, asked, _text(choice.get("finish_reason"))


def _said_in_items(
    response: Mapping[str, Any],
) -> tuple[Mapping[str, Any], list[tuple[str, str, str]], str]:
    """The same of the responses protocol."""
    texts, thought, asked = [], [], []
    for k, item in enumerate(_mappings(response["output"])):
        if item.get("type") == "message":
            texts.append(_text(item.get("content")))
        elif item.get("type") == "reasoning":
            thought += [_text(item.get("summary")), _text(item.get("content"))]
        elif item.get("type") == "function_call":
            id_ = str(item.get("call_id") or k)
            asked.append((id_, _text(item.get("name")), _text(item.get("arguments"))))
    message = {"content": "\n".join(texts), "reasoning": "\n".join(filter(None, thought))}
    return message, asked, _text(response.get("status"))


def _scores(response: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Log-probabilities of options, or of the first token, from the likeliest on."""
    choice = _first(response.get("choices"))
    given = choice.get("option_logprobs")
    if isinstance(given, Mapping):
        pairs = list(given.items())
    else:
        logprobs = choice.get("logprobs")
        tokens = logprobs.get("content") if isinstance(logprobs, Mapping) else None
        top = _mappings(_first(tokens).get("top_logprobs"))
        pairs = [(entry.get("token"), entry.get("logprob")) for entry in top]
    scores = [(_text(name), float(x)) for name, x in pairs if isinstance(x, int | float)]
    return sorted(scores, key=lambda pair: -pair[1])


def _tools(body: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Names and descriptions of the tools on offer."""
    for tool in _mappings(body.get("tools")):
        inner = tool.get("function")
        offered = inner if isinstance(inner, Mapping) else tool
        yield {name: _text(offered.get(name)) for name in ("name", "description")}


def _text(content: object) -> str:
    """Content as text: parts are joined, anything else is written out."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, Mapping) for part in content):
        return "\n".join(_text(part.get("text", part.get("refusal", part))) for part in content)
    return json.dumps(content, ensure_ascii=False)


def _indented(arguments: str) -> str:
    """Arguments with a line for each, where they are JSON."""
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return json.dumps(found, indent=2, ensure_ascii=False) if found else arguments


def _first(entries: object) -> Mapping[str, Any]:
    return next(iter(_mappings(entries)), {})


def _mappings(entries: object) -> list[Mapping[str, Any]]:
    return [e for e in entries if isinstance(e, Mapping)] if isinstance(entries, list) else []
