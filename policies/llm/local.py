"""The local model: answers requests of the OpenAI protocol inside this process, without a network.

One thread runs the model.  It takes all requests that wait, up to a limit, and lets each take its
steps in common passes; requests that begin alike share what has been computed for the beginning.

Beyond the protocol a request may hold ``options``, texts of which the likeliest is wanted, and
``option_prefix``, with which the answer begins; the choice of the answer then holds
``option_logprobs``.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from policies.llm.endpoint import CHAT, ProviderError
from policies.llm.local_request import Ask, read_request
from policies.llm.local_weights import (
    MODEL_NAME,
    Loaded,
    cache_folder,
    find_weights,
    load,
    require_runtime,
)

if TYPE_CHECKING:
    from policies.llm.local_engine import Context, Engine, Feed
    from policies.llm.local_writing import Passes, Words

__all__ = ["LocalModel", "local_endpoint"]

MAX_BATCH = 16
"""Requests in one pass at most."""

LINGER_S = 0.003
"""How long the thread waits for company of a first request [s]."""

ALIKE = 64
"""A request waits for another that is being read if they share so many tokens more."""

MAX_REMEMBERED = 8192
"""Answers without chance that are kept, so that equal requests get equal ones at once."""


@lru_cache(maxsize=2)
def local_endpoint(
    *, threads: int | None = None, cache: Path | None = None, max_batch: int = MAX_BATCH
) -> LocalModel:
    """The local model, loaded once in a process.

    Parameters
    ----------
    threads
        Threads of the linear algebra; None: ``OMP_NUM_THREADS``, else one a processor.
    cache
        Where the unpacked weights are kept; None: in the user's cache folder.
    max_batch
        Requests in one pass at most.

    Raises
    ------
    UserError
        Where the runtime or the weights are not installed, or cannot be unpacked.
    """
    require_runtime()
    if "torch" not in sys.modules:
        # Threads that wait in a loop for each other make a pass ten times as long where another
        # program needs a processor; this is read when the library is loaded.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    loaded = load(find_weights(), cache or cache_folder())
    return LocalModel(loaded, name=MODEL_NAME, threads=threads, max_batch=max_batch)


class LocalModel:
    """An endpoint that is a model in this process.

    Parameters
    ----------
    loaded
        The model and its tokenizer, which knows ``<|im_start|>`` and ``<|im_end|>``.
    name
        What it is called in answers.
    threads
        Threads of the linear algebra; None: ``OMP_NUM_THREADS``, else one a processor.
    max_batch
        Requests in one pass at most.
    """

    def __init__(
        self,
        loaded: Loaded,
        *,
        name: str = "local",
        threads: int | None = None,
        max_batch: int = MAX_BATCH,
    ) -> None:
        from policies.llm.local_engine import Engine
        from policies.llm.local_writing import Words

        self.name = name
        self._desk = _Desk(
            Engine(loaded.model), Words(loaded.tokenizer), name, threads or _processors(), max_batch
        )
        self._thread = threading.Thread(target=self._desk.work, name="local-model", daemon=True)
        self._thread.start()
        # Torch must not be in the middle of a pass when the interpreter goes.
        self._finalizer = weakref.finalize(self, _stop, self._desk, self._thread)

    @property
    def passes(self) -> int:
        """Passes of the model so far."""
        return self._desk.passes

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request.

        Raises
        ------
        ProviderError
            ``http_404`` for another path, ``http_400`` for a request that cannot be carried out,
            among them a prompt that is longer than the model's window.
        """
        return await asyncio.wrap_future(self._submit(path, body))

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """As `post`, for callers outside an event loop."""
        return self._submit(path, body).result()

    async def score(
        self,
        messages: Sequence[Mapping[str, Any]],
        continuations: Sequence[str],
        beginning: str = "",
    ) -> list[float]:
        """Log-probability of each continuation of a conversation, to four decimals.

        Parameters
        ----------
        messages
            As in a request.
        continuations
            Distinct texts.
        beginning
            With which the answer begins in any case; if it opens a string of a JSON object, a
            continuation counts as far as the string's end, else as far as the end of the turn.
        """
        body = {
            "messages": list(messages),
            "options": list(continuations),
            "option_prefix": beginning,
        }
        found = (await self.post(CHAT, body))["choices"][0]["option_logprobs"]
        return [found[text] for text in continuations]

    def close(self) -> None:
        """Stop the thread; requests that still wait fail."""
        self._finalizer()

    def _submit(self, path: str, body: dict[str, Any]) -> Future[dict[str, Any]]:
        if path != CHAT:
            raise ProviderError(
                "http_404", f"the local model answers {CHAT} only, not {path}", False, fatal=True
            )
        job = _Job(body)
        self._desk.put(job)
        return job.answer


@dataclass(eq=False)
class _Job:
    """A request on its way.

    Attributes
    ----------
    body, answer
        What was asked, and where the answer goes.
    ask
        The request, once it is read.
    context, passes, feed
        Its tokens so far, what writes its answer, and what that wants from the next pass.
    twins
        Equal requests that get the same answer.
    """

    body: dict[str, Any]
    answer: Future[dict[str, Any]] = field(default_factory=Future)
    ask: Ask | None = None
    context: Context | None = None
    passes: Passes[dict[str, Any]] | None = None
    feed: Feed | None = None
    key: str = ""
    twins: list[_Job] = field(default_factory=list)

    def resolve(self, found: dict[str, Any]) -> None:
        """Give the answer to this job alone."""
        self.answer.set_result(found)

    def fail(self, error: BaseException) -> None:
        """Say why there is none, to the twins as well."""
        for job in (self, *self.twins):
            job.answer.set_exception(error)


class _Desk:
    """What the model's thread works on."""

    def __init__(
        self, engine: Engine, words: Words, name: str, threads: int, max_batch: int
    ) -> None:
        self.engine, self.words, self.name = engine, words, name
        self.threads, self.max_batch = threads, max_batch
        self.passes = 0
        self._arrivals: SimpleQueue[_Job | None] = SimpleQueue()
        self._closed = False
        self._door = threading.Lock()
        self._waiting: list[_Job] = []
        self._active: list[_Job] = []
        self._remembered: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._numbers = itertools.count()

    def put(self, job: _Job) -> None:
        """Hand in a job.

        Raises
        ------
        RuntimeError
            After the end.
        """
        with self._door:
            if self._closed:
                raise RuntimeError("the local model is closed")
            self._arrivals.put(job)

    def close(self) -> None:
        """Let the thread end after the pass under way."""
        with self._door:
            self._closed = True
            self._arrivals.put(None)

    def work(self) -> None:
        """Work until closed."""
        import torch

        torch.set_num_threads(self.threads)
        try:
            while not self._closed:
                self._receive()
                self._admit()
                if self._active:
                    self._pass()
        finally:
            self.close()
            rest = [*self._active, *self._waiting]
            while not self._arrivals.empty():
                late = self._arrivals.get()
                if late is not None and late.answer.set_running_or_notify_cancel():
                    rest.append(late)
            for job in rest:
                job.fail(ProviderError("connection", "the local model was closed", False))

    def _receive(self) -> None:
        """Take what has arrived; wait where there is nothing else to do."""
        idle = not (self._active or self._waiting)
        timeout_s = None if idle else 0.0
        while len(self._active) + len(self._waiting) < 4 * self.max_batch:
            try:
                job = self._arrivals.get(block=timeout_s != 0.0, timeout=timeout_s or None)
            except Empty:
                return
            if job is None:
                return
            if job.answer.set_running_or_notify_cancel():
                self._read(job)
            if idle:
                timeout_s = LINGER_S

    def _read(self, job: _Job) -> None:
        """Put a job in the queue, unless its answer is known or on its way."""
        try:
            job.ask = read_request(job.body, self.words, self.engine.longest)
        except Exception as error:  # whatever it is, it concerns this job alone
            job.fail(error)
            return
        if job.ask.repeatable:
            job.key = _key(job.ask)
            known = self._remembered.get(job.key)
            if known is not None:
                self._remembered.move_to_end(job.key)
                job.resolve(self._named(known))
                return
            for other in (*self._active, *self._waiting):
                if other.key == job.key:
                    other.twins.append(job)
                    return
        self._waiting.append(job)

    def _admit(self) -> None:
        """Begin with waiting jobs, but not with one that may soon start from another's prompt."""
        still: list[_Job] = []
        for job in self._waiting:
            assert job.ask is not None
            if len(self._active) >= self.max_batch or self._better_later(job):
                still.append(job)
                continue
            job.context = self.engine.open(job.ask.prompt, len(job.ask.prompt) + job.ask.room)
            job.passes = job.ask.answer(self.words, job.context, self.engine.keep)
            self._active.append(job)
            self._advance(job, None)
        self._waiting = still

    def _better_later(self, job: _Job) -> bool:
        from policies.llm.local_engine import common

        assert job.ask is not None
        known = self.engine.cached_length(job.ask.prompt)
        for other in self._active:
            assert other.ask is not None and other.context is not None  # noqa: PT018
            reading = len(other.context) < len(other.ask.prompt)
            if reading and common(job.ask.prompt, other.ask.prompt) >= known + ALIKE:
                return True
        return False

    def _pass(self) -> None:
        """One pass for all active jobs."""
        jobs = list(self._active)
        try:
            found = self.engine.run([job.feed for job in jobs if job.feed is not None])
        except Exception as error:  # the thread must survive, and say what happened
            for job in jobs:
                job.fail(error)
            self._active.clear()
            return
        self.passes += 1
        for job, rows in zip(jobs, found, strict=True):
            self._advance(job, rows)

    def _advance(self, job: _Job, rows: Any) -> None:
        """Let a job take its next step, up to what it wants from the next pass."""
        assert job.passes is not None
        try:
            job.feed = job.passes.send(rows)
            return
        except StopIteration as end:
            answer: dict[str, Any] = end.value
            if job.key:
                self._remembered[job.key] = answer
                if len(self._remembered) > MAX_REMEMBERED:
                    self._remembered.popitem(last=False)
            for each in (job, *job.twins):
                each.resolve(self._named(answer))
        except Exception as error:  # whatever it is, it concerns this job alone
            job.fail(error)
        self._active.remove(job)

    def _named(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """An answer with what is not the model's."""
        copy: dict[str, Any] = json.loads(json.dumps(answer))
        return {
            "id": f"chatcmpl-{next(self._numbers)}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self.name,
            **copy,
        }


def _key(ask: Ask) -> str:
    """What the answer to a request depends on."""
    return hashlib.sha256(json.dumps(asdict(ask)).encode()).hexdigest()


def _processors() -> int:
    told = os.environ.get("OMP_NUM_THREADS", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _stop(desk: _Desk, thread: threading.Thread) -> None:
    desk.close()
    thread.join(timeout=60)
