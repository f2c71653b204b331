"""Writing an answer token by token: freely, from a menu, or within a pattern.

Every way of writing is a generator: it yields what the model is to be fed and is sent the
log-probabilities, so that one thread can write many answers in the same passes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import regex  # type: ignore[import-untyped]
from tokenizers import Tokenizer
from torch import Tensor

from policies.llm.local_engine import CHUNK, Context, Feed, Tree
from policies.llm.local_schema import choices_of, pattern_of

__all__ = ["Free", "OutOfTokensError", "Passes", "Sampling", "Words", "Writer", "menu_tree"]

T = TypeVar("T")
Passes = Generator[Feed, Tensor, T]

END = "<|im_end|>"
ENDS = (END, "<|endoftext|>")


class OutOfTokensError(Exception):
    """The answer has reached its longest length."""


class Words:
    """A tokenizer with what writing needs of it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        ids = [tokenizer.token_to_id(word) for word in ENDS]
        self.ends = frozenset(id_ for id_ in ids if id_ is not None)
        self.end = int(tokenizer.token_to_id(END))

    def encode(self, text: str) -> list[int]:
        """Tokens of a text; none of them is a special one."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def special(self, name: str) -> int:
        """A special token."""
        return int(self.tokenizer.token_to_id(name))

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=False))

    @cached_property
    def pieces(self) -> list[str]:
        """Text of each token; empty for special ones and for parts of a character."""
        n = self.tokenizer.get_vocab_size()
        texts = self.tokenizer.decode_batch([[k] for k in range(n)], skip_special_tokens=True)
        return ["" if "\ufffd" in text else text for text in texts]


@dataclass
class Sampling:
    """How the next token follows from log-probabilities.

    Attributes
    ----------
    temperature
        0: the likeliest.
    top_p
        Share of the probability from which a token is drawn.
    seed
        Makes the draws repeatable; None: it does not.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    _random: np.random.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def ranked(self, logprobs: npt.NDArray[np.float64]) -> Iterator[int]:
        """Tokens in the order in which they are taken: the first that is allowed is the draw.

        Gumbel noise makes a draw of the maximum, also among those that are allowed.
        """
        scores = logprobs
        if self.temperature > 0.0:
            scores = logprobs / self.temperature
            if self.top_p < 1.0:
                scores = _nucleus(scores, self.top_p)
            scores = scores + self._random.gumbel(size=len(scores))
        yield int(np.argmax(scores))
        yield from np.argsort(-scores, kind="stable")[1:].tolist()


def _nucleus(scores: npt.NDArray[np.float64], top_p: float) -> npt.NDArray[np.float64]:
    """The scores with those outside the likeliest ``top_p`` far below all others."""
    order = np.argsort(-scores, kind="stable")
    shares = np.exp(scores[order] - scores[order[0]])
    before = np.cumsum(shares) - shares
    dropped = scores.copy()
    dropped[order[before >= top_p * shares.sum()]] -= 1e6
    return dropped


def menu_tree(rows: Sequence[Sequence[int]]) -> tuple[Tree, list[list[tuple[int, int]]]]:
    """The tokens of several continuations as one tree, without their last ones.

    Returns
    -------
    The tree, and for each continuation the (place, token) pairs whose log-probabilities make up its
    own: place 0 is the end of the context, place k + 1 the k-th token of the tree.
    """
    places: dict[tuple[int, ...], int] = {(): 0}
    tokens: list[int] = []
    parents: list[int] = []
    pairs = []
    for row in rows:
        steps = []
        for k, token in enumerate(row):
            before = tuple(row[:k])
            if before not in places:
                tokens.append(before[-1])
                parents.append(places[before[:-1]] - 1)
                places[before] = len(tokens)
            steps.append((places[before], token))
        pairs.append(steps)
    return Tree(tuple(tokens), tuple(parents)), pairs


@dataclass
class Free:
    """A free text.

    Attributes
    ----------
    text, finish
        The text, and ``stop`` or ``length``.
    tokens
        The tokens in order, each with its log-probability and those of the likeliest others, as
        the protocol tells them; only where they were asked for.
    """

    text: str = ""
    finish: str = "stop"
    tokens: list[dict[str, Any]] = field(default_factory=list)


class Writer:
    """Writes one answer.

    Parameters
    ----------
    words
        The tokenizer.
    context
        Holds the beginning of the prompt, as far as it was known.
    prompt
        Tokens of the whole prompt.
    sampling
        How tokens are chosen.
    longest
        Most tokens of the answer.
    read
        Called with the context once the prompt has been read.
    """

    def __init__(
        self,
        words: Words,
        context: Context,
        prompt: Sequence[int],
        sampling: Sampling,
        longest: int,
        read: Callable[[Context], None] = lambda context: None,
    ) -> None:
        self.words, self.context, self.sampling, self.longest = words, context, sampling, longest
        self.text = ""
        self.written = 0
        self._pending = list(prompt[len(context) :])
        self._read: Callable[[Context], None] | None = read

    def force(self, text: str) -> None:
        """Write a given text."""
        self._append(self.words.encode(text))
        self.text += text

    def _append(self, tokens: Sequence[int]) -> None:
        self._pending += tokens
        self.written += len(tokens)

    def _rows(self, tree: Tree = Tree()) -> Passes[Tensor]:  # noqa: B008
        """Feed what is pending; log-probabilities at its end and after each token of a tree."""
        while len(self._pending) > CHUNK:
            yield Feed(self.context, self._pending[:CHUNK])
            del self._pending[:CHUNK]
        chain = self._pending or [self.context.tokens.pop()]
        self._pending = []
        want = range(len(chain) - 1, len(chain) + len(tree.tokens))
        rows = yield Feed(self.context, chain, tree, want)
        if self._read is not None:
            self._read(self.context)
            self._read = None
        return rows

    def _next(self) -> Passes[npt.NDArray[np.float64]]:
        """Log-probabilities of the next token."""
        if self.written >= self.longest:
            raise OutOfTokensError
        rows = yield from self._rows()
        found: npt.NDArray[np.float64] = rows[0].numpy().astype(np.float64)
        return found

    def score(
        self, lead: str, options: Sequence[str], ending: str | None
    ) -> Passes[tuple[list[float], int]]:
        """Log-probability of each option after ``lead``, which is written.

        Parameters
        ----------
        lead, options
            What is given, and what may follow.
        ending
            What shows that an option is complete, and is part of it; None: the end of the turn.

        Returns
        -------
        The log-probabilities, and how many tokens of ``lead`` are written; the few that could merge
        with the first token of an option are not, and count as part of every option.
        """
        end = [self.words.end] if ending is None else []
        rows = [self.words.encode(lead + option + (ending or "")) + end for option in options]
        n = _common([*rows, *(self.words.encode(lead + option) for option in options)])
        self._append(rows[0][:n])
        self.text += lead
        tree, pairs = menu_tree([row[n:] for row in rows])
        found = yield from self._rows(tree)
        scores = []
        for steps in pairs:
            places, tokens = zip(*steps, strict=True)
            scores.append(float(found[list(places), list(tokens)].double().sum()))
        return scores, n

    def choose(self, lead: str, options: Sequence[str], ending: str | None) -> Passes[int]:
        """Write ``lead`` and the likeliest option, or a drawn one; which it is."""
        scores, n = yield from self.score(lead, options, ending)
        chosen = next(self.sampling.ranked(np.array(scores)))
        self._append(self.words.encode(lead + options[chosen])[n:])
        self.text += options[chosen]
        return chosen

    def free(self, stops: Sequence[str] = (), n_top: int | None = None) -> Passes[Free]:
        """Write until the end of the turn, a stop text or the longest length.

        ``n_top``: how many of the likeliest tokens are told at each place; None: not even the
        token's own log-probability.
        """
        found, tokens = Free(), []
        try:
            while True:
                logprobs = yield from self._next()
                token = next(self.sampling.ranked(logprobs))
                if token in self.words.ends:
                    break
                tokens.append(token)
                self._append([token])
                if n_top is not None:
                    found.tokens.append(self._told(logprobs, token, n_top))
                text = self.words.decode(tokens)
                places = [place for place in map(text.find, stops) if place >= 0]
                if places:
                    found.text = text[: min(places)]
                    self.text += found.text
                    return found
        except OutOfTokensError:
            found.finish = "length"
        found.text = self.words.decode(tokens)
        self.text += found.text
        return found

    def _told(self, logprobs: npt.NDArray[np.float64], token: int, n_top: int) -> dict[str, Any]:
        """A token with its log-probability and those of the likeliest ones."""

        def told(id_: int) -> dict[str, Any]:
            text = self.words.decode([id_])
            return {
                "token": text,
                "logprob": round(float(logprobs[id_]), 4),
                "bytes": list(text.encode()),
            }

        top = np.argsort(-logprobs, kind="stable")[:n_top].tolist()
        return told(token) | {"top_logprobs": [told(id_) for id_ in top]}

    def match(self, lead: str, pattern: str, *, open_ended: bool) -> Passes[str]:
        """Write ``lead`` and a text that matches a pattern; that text.

        ``open_ended``: whether more may follow when the pattern is matched, as with numbers; they
        end where the model wants to go on with something else.
        """
        self.force(lead)
        whole = regex.compile(rf"({pattern})(?:[,}}\]\s].*)?", regex.DOTALL)
        text = ""
        while True:
            logprobs = yield from self._next()
            token, found = self._first_fit(logprobs, whole, text)
            piece = self.words.pieces[token]
            if found and (not open_ended or len(found[1]) < len(text + piece)):
                # The token may reach beyond the value; only the value's part of it is written.
                rest = found[1][len(text) :]
                self._append([token] if rest == piece else self.words.encode(rest))
                self.text += rest
                return str(found[1])
            self._append([token])
            self.text += piece
            text += piece

    def _first_fit(
        self, logprobs: npt.NDArray[np.float64], whole: Any, text: str
    ) -> tuple[int, Any]:
        """The first token after which a text can still match, and the match if it is whole."""
        for token in self.sampling.ranked(logprobs):
            piece = self.words.pieces[token]
            if not piece:
                continue
            found = whole.fullmatch(text + piece, partial=True)
            if found:
                return token, None if found.partial else found
        raise OutOfTokensError  # nothing fits any more

    def value(self, schema: Any, lead: str = "", ending: str = "}") -> Passes[None]:
        """Write ``lead`` and a JSON value of a schema; ``ending`` is likely to come next.

        Raises
        ------
        UnsupportedSchemaError
            Where the schema cannot be kept to.
        """
        pattern = pattern_of(schema)
        choices = choices_of(schema)
        if choices:
            yield from self.choose(lead, choices, ending)
        elif schema.get("type") == "object":
            fields = list(schema.get("properties", {}).items())
            lead += "{"
            for k, (name, sub) in enumerate(fields):
                lead += ("" if k == 0 else ", ") + json.dumps(name) + ": "
                yield from self.value(sub, lead, "," if k < len(fields) - 1 else "}")
                lead = ""
            self.force(lead + "}")
        else:
            yield from self.match(lead, pattern, open_ended=_open_ended(schema))

    def json_object(self, lead: str) -> Passes[Free]:
        """Write ``lead``, a brace, and on until the brace is closed or the turn ends; from it."""
        self.force(lead + "{")
        found, tokens = Free("{"), []
        try:
            while True:
                logprobs = yield from self._next()
                token = next(self.sampling.ranked(logprobs))
                if token in self.words.ends:
                    return found
                tokens.append(token)
                self._append([token])
                found.text = "{" + self.words.decode(tokens)
                end = _end_of_object(found.text)
                if end is not None:
                    found.text = found.text[:end]
                    return found
        except OutOfTokensError:
            found.finish = "length"
        return found


def _end_of_object(text: str) -> int | None:
    """Where the brace that opens a text is closed, JSON or not; None: it is not."""
    depth, quoted, k = 0, False, 0
    while k < len(text):
        letter = text[k]
        if quoted and letter == "\\":
            k += 1
        elif letter == '"':
            quoted = not quoted
        elif not quoted and letter in "{}":
            depth += 1 if letter == "{" else -1
            if depth == 0:
                return k + 1
        k += 1
    return None


def _open_ended(schema: Any) -> bool:
    kinds = schema.get("type", ["number"])
    return bool({"number", "integer"} & set([kinds] if isinstance(kinds, str) else kinds))


def _common(rows: Sequence[Sequence[int]]) -> int:
    """How many tokens all rows have in common from the start."""
    n = 0
    while all(len(row) > n and row[n] == rows[0][n] for row in rows):
        n += 1
    return n
