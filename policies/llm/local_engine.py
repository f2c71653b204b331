"""Running a Llama model for many requests at once, each with a context of its own.

One pass takes the new tokens of all requests in one row, without padding: the linear layers see
them together, attention sees each request's own context.  So nothing is computed in vain, and a
context that begins like an earlier one starts from a copy of its keys and values.

Besides a chain of tokens that stays, a request may have a tree of tokens looked at: all options of
a menu in one pass, each token seeing the context and its own ancestors only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

__all__ = ["CHUNK", "Context", "Engine", "Feed", "Tree", "common"]

CHUNK = 512
"""Tokens that one request feeds in one pass at most."""

ROOM = 64
"""Tokens by which the room of a context grows at least."""

MAX_CACHED_TOKENS = 16_384
"""Tokens of earlier prompts whose keys and values are kept: 46 kB each for the local model."""

ATTENTION = "exactlyonce_ragged"


@dataclass(frozen=True)
class Tree:
    """Tokens that are looked at beyond a context and not kept.

    Attributes
    ----------
    tokens
        Parents before children.
    parents
        Index of each token's parent; -1: the end of the context.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()

    @property
    def depths(self) -> list[int]:
        """How far each token lies beyond the context, from 0."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return depths


class Context:
    """The tokens that a request has fed so far, with their keys and values.

    Parameters
    ----------
    engine
        What runs it.
    room
        Tokens to have room for from the start.
    """

    def __init__(self, engine: Engine, room: int) -> None:
        self.tokens: list[int] = []
        self.store = engine.empty_store(room)  # (layers, 2, heads, tokens, head size)

    def __len__(self) -> int:
        return len(self.tokens)

    def make_room(self, n: int) -> None:
        """Room for ``n`` tokens in all."""
        have = self.store.shape[3]
        if n > have:
            grown = self.store.new_empty(
                (*self.store.shape[:3], max(n + ROOM, have + have // 4), self.store.shape[4])
            )
            grown[:, :, :, : len(self)] = self.store[:, :, :, : len(self)]
            self.store = grown


@dataclass(frozen=True)
class Feed:
    """What one request puts into one pass.

    Attributes
    ----------
    context
        Its context.
    chain
        Tokens that the context gains.
    tree
        Tokens beyond them, looked at only.
    want
        Positions in chain and tree, one after the other, after which the next token's
        log-probabilities are wanted.
    """

    context: Context
    chain: Sequence[int]
    tree: Tree = Tree()
    want: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.chain) + len(self.tree.tokens)


@dataclass(frozen=True)
class _Part:
    """A request's place in the row of a pass."""

    feed: Feed
    begin: int
    end: int
    past: int
    mask: Tensor | None


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    scaling: float,
    parts: Sequence[_Part],
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of each request to its own context; (1, heads, row, size) in, (1, row, …) out."""
    heads, row, size = query.shape[1:]
    kv_heads = key.shape[1]
    found = query.new_empty((1, row, heads, size))
    for part in parts:
        n, total = part.end - part.begin, part.past + part.end - part.begin
        keys, values = part.feed.context.store[module.layer_idx]
        keys[:, part.past : total] = key[0, :, part.begin : part.end]
        values[:, part.past : total] = value[0, :, part.begin : part.end]
        # Query heads that share keys are laid one after the other, so that no key is copied.
        asked = query[0, :, part.begin : part.end].reshape(1, kv_heads, -1, size)
        seen = scaled_dot_product_attention(
            asked,
            keys[None, :, :total],
            values[None, :, :total],
            attn_mask=part.mask,
            scale=scaling,
        )
        found[0, part.begin : part.end] = seen.reshape(heads, n, size).transpose(0, 1)
    return found, None


AttentionInterface.register(ATTENTION, _attend)


class Engine:
    """A ``LlamaForCausalLM`` that runs passes over many contexts.

    Parameters
    ----------
    model
        The model; its way of attention is changed.
    cached_tokens
        How many tokens of earlier prompts are kept.

    Not thread-safe: one thread runs all passes.
    """

    def __init__(self, model: Any, cached_tokens: int = MAX_CACHED_TOKENS) -> None:
        self.model = model.eval()
        self.model.config._attn_implementation = ATTENTION
        self.longest = int(model.config.max_position_embeddings)
        self._cached_tokens = cached_tokens
        # Least recently used first.
        self._cached: list[tuple[npt.NDArray[np.int64], Tensor]] = []

    def empty_store(self, room: int) -> Tensor:
        """Room for keys and values."""
        config = self.model.config
        size = config.head_dim or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, 2, config.num_key_value_heads, room, size)
        return torch.empty(shape, dtype=torch.float32)

    def cached_length(self, prompt: Sequence[int]) -> int:
        """Tokens of a prompt that need not be computed."""
        return self._longest_cached(prompt)[0]

    def open(self, prompt: Sequence[int], room: int) -> Context:
        """A context that holds as much of a prompt as is known already, never all of it."""
        context = Context(self, room)
        n, at = self._longest_cached(prompt)
        if n:
            entry = self._cached.pop(at)
            self._cached.append(entry)
            context.store[:, :, :, :n] = entry[1][:, :, :, :n]
            context.tokens = list(prompt[:n])
        return context

    def keep(self, context: Context) -> None:
        """Remember the keys and values of a context as it stands."""
        tokens = np.asarray(context.tokens, dtype=np.int64)
        self._cached = [entry for entry in self._cached if common(entry[0], tokens) < len(entry[0])]
        self._cached.append((tokens, context.store))
        total = 0
        for k in range(len(self._cached) - 1, -1, -1):
            total += len(self._cached[k][0])
            if total > self._cached_tokens and k < len(self._cached) - 1:
                del self._cached[: k + 1]
                break

    def _longest_cached(self, prompt: Sequence[int]) -> tuple[int, int]:
        """Length of the longest known beginning, and which entry holds it."""
        asked = np.asarray(prompt[:-1], dtype=np.int64)
        lengths = [common(tokens, asked) for tokens, _ in self._cached]
        if not lengths:
            return 0, -1
        best = max(lengths)
        return best, len(lengths) - 1 - lengths[::-1].index(best)

    @torch.inference_mode()
    def run(self, feeds: Sequence[Feed]) -> list[Tensor]:
        """One pass; for each request the log-probabilities that it wants, (positions, words).

        Each context gains its chain.
        """
        parts: list[_Part] = []
        tokens: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        for feed in feeds:
            past, begin, n = len(feed.context), len(tokens), len(feed.chain)
            feed.context.make_room(past + len(feed))
            tokens += [*feed.chain, *feed.tree.tokens]
            positions += range(past, past + n)
            positions += [past + n + depth for depth in feed.tree.depths]
            wanted += [begin + k for k in feed.want]
            parts.append(_Part(feed, begin, len(tokens), past, self._mask(feed, past)))
        hidden = self.model.model(
            input_ids=torch.tensor([tokens]),
            position_ids=torch.tensor([positions]),
            use_cache=False,
            parts=parts,
        ).last_hidden_state[0]
        logits = self.model.lm_head(hidden[wanted]).float()
        for feed in feeds:
            feed.context.tokens += feed.chain
        found = torch.log_softmax(logits, dim=-1)
        return list(torch.split(found, [len(feed.want) for feed in feeds]))

    def _mask(self, feed: Feed, past: int) -> Tensor | None:
        """What each new token sees, to be added to its scores; None: everything."""
        n, n_tree = len(feed.chain), len(feed.tree.tokens)
        if n == 1 and not n_tree:
            return None
        seen = torch.ones((n + n_tree, past + n + n_tree), dtype=torch.bool).tril(past)
        for k, parent in enumerate(feed.tree.parents):
            row = seen[n + k]
            row[past + n :] = False if parent < 0 else seen[n + parent, past + n :]
            row[past + n + k] = True
        added = torch.zeros(seen.shape).masked_fill_(~seen, -torch.inf)
        config = self.model.config
        return added.repeat(config.num_attention_heads // config.num_key_value_heads, 1)


def common(one: npt.ArrayLike, other: npt.ArrayLike) -> int:
    """How many tokens two rows have in common from the start."""
    first, second = np.asarray(one), np.asarray(other)
    n = min(len(first), len(second))
    differ = np.flatnonzero(first[:n] != second[:n])
    return int(differ[0]) if len(differ) else n
