"""Dividing work among threads; compiled code releases the interpreter's lock while it runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def in_threads(n: int, run: Callable[[slice], None], least: int = 64) -> None:
    """Run the parts of ``range(n)`` side by side, at least ``least`` of them in each."""
    parts = min(os.cpu_count() or 1, n // least)
    if parts < 2:
        run(slice(0, n))
        return
    edges = [n * k // parts for k in range(parts + 1)]
    with ThreadPoolExecutor(parts) as pool:
        list(pool.map(run, [slice(edges[k], edges[k + 1]) for k in range(parts)]))
