"""Arithmetic of waiting: no rounding error makes a client early, or wait twice."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from exactlyonce_env.actions import MAX_WAIT_S
from exactlyonce_env.records import VIEW
from exactlyonce_env.vocabulary import Action
from policies.moves import shows_from_s, wait_until

times_s = st.floats(0.0, 1e6, allow_subnormal=False)


@given(clock_s=times_s, span_s=st.floats(1e-6, MAX_WAIT_S / 2))
@example(clock_s=0.1 + 0.2, span_s=1.0000000000000002)
def test_one_wait_reaches_the_due_time_and_hardly_passes_it(clock_s: float, span_s: float) -> None:
    due_s = clock_s + span_s
    if due_s == clock_s:
        return
    seen = np.zeros(1, dtype=VIEW)
    seen[0].clock_s = clock_s
    action, seconds = wait_until(seen[0], due_s)
    assert action == Action.WAIT
    assert due_s <= clock_s + seconds <= math.nextafter(due_s, math.inf)


def test_rounding_really_falls_short_somewhere() -> None:
    """Without its correction the wait above would be a sliver too short for some times."""
    rng = np.random.default_rng(0)
    due_s = rng.uniform(1.0, 1e4, 100_000)
    clock_s = due_s * rng.uniform(0.0, 1e-3, 100_000)
    short = np.flatnonzero(clock_s + (due_s - clock_s) < due_s)
    assert len(short)
    seen = np.zeros(1, dtype=VIEW)
    for i in short:
        seen[0].clock_s = clock_s[i]
        assert clock_s[i] + wait_until(seen[0], due_s[i])[1] >= due_s[i]


def test_a_wait_is_never_longer_than_one_action_allows() -> None:
    assert wait_until(np.zeros(1, dtype=VIEW)[0], 1e9) == (Action.WAIT, MAX_WAIT_S)


@given(commit_s=times_s, lag_s=times_s)
def test_a_read_at_the_time_of_showing_reaches_back_to_the_commit(
    commit_s: float, lag_s: float
) -> None:
    at_s = shows_from_s(commit_s, lag_s)
    assert at_s - lag_s >= commit_s
    assert at_s <= math.nextafter(commit_s + lag_s, math.inf)
