"""A second thread for large batches.

Compiled loops release the interpreter's lock, so that a helper thread doubles the speed of a large
batch on two cores.  The batch is cut into ranges: the caller takes them from the front, the helper
from the back, and a helper that comes late, on a busy machine, costs nothing but the chance.  All
environments of a process share the helper; it starts with the first large batch and sleeps in
between.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from queue import SimpleQueue

MAX_RANGES = 16


class _Job:
    """One batch: ``run(share, low, high)`` for each range, share 0 the caller's, 1 the helper's."""

    def __init__(self, run: Callable[[int, int, int], None], n: int, least: int) -> None:
        count = max(1, min(MAX_RANGES, n // least))
        cuts = [n * k // count for k in range(count + 1)]
        self._run = run
        self._ranges = deque(pairwise(cuts))
        self._turn = threading.Lock()
        self._closed = False
        self._joined = False
        self._finished = threading.Lock()
        self._error: BaseException | None = None

    def work(self) -> None:
        """Do the caller's share, and return when the whole batch is done."""
        try:
            while self._ranges:
                self._take(0, self._ranges.popleft)
        finally:
            with self._turn:
                self._closed = True
            if self._joined:
                self._finished.acquire()
        if self._error is not None:
            raise self._error

    def help(self) -> None:
        """Do the helper's share, unless the batch is done already."""
        with self._turn:
            if self._closed:
                return
            self._joined = True
            self._finished.acquire()
        try:
            while self._ranges:
                self._take(1, self._ranges.pop)
        except BaseException as error:  # raised where the batch was asked for
            self._error = error
        finally:
            self._finished.release()

    def _take(self, share: int, pop: Callable[[], tuple[int, int]]) -> None:
        try:
            low, high = pop()
        except IndexError:  # the other thread was faster
            return
        self._run(share, low, high)


_jobs: SimpleQueue[_Job] = SimpleQueue()
_owner: int | None = None
_starting = threading.Lock()


def run_shared(run: Callable[[int, int, int], None], n: int, least: int) -> None:
    """Call ``run(share, low, high)`` for ranges that cover 0..n, in two threads."""
    global _jobs, _owner
    if _owner != os.getpid():  # the first batch, or a forked child, which has no threads
        with _starting:
            if _owner != os.getpid():
                _jobs = SimpleQueue()
                threading.Thread(
                    target=_serve, args=(_jobs,), name="exactlyonce-helper", daemon=True
                ).start()
                _owner = os.getpid()
    job = _Job(run, n, least)
    _jobs.put(job)
    job.work()


def _serve(jobs: SimpleQueue[_Job]) -> None:
    while True:
        job = jobs.get()
        job.help()
        del job  # holds no buffer while it sleeps
