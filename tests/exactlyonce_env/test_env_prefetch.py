"""Prefetching has no effect but on speed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from exactlyonce_env.envs.lean import lean
from exactlyonce_env.envs.prefetch import prefetch
from exactlyonce_env.records import VIEW


@lean
def compiled_prefetch(rows: Any, i: int, lines: int) -> None:
    prefetch(rows, i, lines)


@pytest.mark.parametrize("function", [prefetch, compiled_prefetch])
def test_prefetching_changes_nothing(function: Callable[..., None]) -> None:
    records = np.ones(3, VIEW)
    before = records.tobytes()
    for i in range(3):
        function(records, i, 3)
    function(records, 2, 1000)  # beyond the end of the array: a wish, not an access
    assert records.tobytes() == before
