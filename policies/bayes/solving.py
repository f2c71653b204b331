"""The value of a view and of each action from it: belief, sums over it, dynamic programme."""

from __future__ import annotations

import math

import numpy as np

from exactlyonce_env.actions import MAX_WAIT_S, WAITS_S
from exactlyonce_env.compiled import Array, Record
from policies.bayes.beliefs import believe
from policies.bayes.programme import N_ACTIONS, programme
from policies.bayes.reading_times import plan_reads
from policies.bayes.records import (
    Q_FINISH,
    Q_FIRST_WAIT,
    Q_UNCERTAIN,
    Answer,
    Game,
    Lookup,
    Room,
    Scene,
)
from policies.bayes.scene import prepare, survey
from policies.bayes.sums import sum_up, try_keyed

LIMIT = 1500
"""Hypotheses of one hidden law, at most, where several attempts are unresolved."""

TRIALS = 4000
"""Keyed sendings, about, that are tried out for one view."""


def solve(
    game: Game,
    room: Room,
    view: Record,
    n_reads: int,
    lookup: Lookup,
    wanted: tuple[int, int, int] | None,
    free: bool,
    lowest: int = 0,
) -> Answer:
    """What the view is worth, and each action from it.

    ``n_reads`` is about the number of moments at which a read is considered.  ``wanted`` are the
    state of the operator, the attempts left (at most MAX_LEVEL) and the steps left for which the
    actions are valued; None: only the view is valued, for all of them.  ``free`` and ``lowest``:
    see `programme`.
    """
    ready_s, open_attempts = survey(game, view)
    if ready_s > 0.0:
        return _after_outage(game, room, view, n_reads, lookup, wanted, free, lowest, ready_s)
    # In compiled parts: in one, the compiler would optimise all that they call once more.
    reads = plan_reads(game, view, n_reads, wanted is not None)
    n = _believe(game, room, view, reads, open_attempts)
    contract = game.contexts[game.members[0]].contract
    states, sent, partial, known, lacking, settled = sum_up(game, room, view, len(reads), n)
    if contract.accepts_key:
        every = max(n * len(reads) // (TRIALS if open_attempts < 2 else TRIALS // 4), 1)
        try_keyed(game, room, view, reads, n, every, sent, states)
    nodes = prepare(game, view, reads, known, settled, states, lookup.children.ages_s)
    return programme(
        Scene(contract, nodes[0], states, sent, partial, lacking, lookup),
        view,
        wanted if wanted is not None else (-1, -1, -1),
        free,
        lowest,
    )


def _believe(game: Game, room: Room, view: Record, reads: Array, open_attempts: int) -> int:
    """`believe`, as finely as there is room for."""
    capacity = len(room.hypotheses)
    limit = LIMIT if open_attempts > 1 else capacity
    coarse, sharp = 1, 0
    while True:
        n = believe(game, room, view, reads, coarse, limit, sharp)
        if n >= 0:
            return n
        if coarse < len(reads):
            coarse += max(coarse // 2, 1)
        elif limit < capacity:
            limit = min(4 * limit, capacity)
        else:
            sharp += 1


def _after_outage(
    game: Game,
    room: Room,
    view: Record,
    n_reads: int,
    lookup: Lookup,
    wanted: tuple[int, int, int] | None,
    free: bool,
    lowest: int,
    ready_s: float,
) -> Answer:
    """`solve` within a known outage: end the episode, or wait for the outage to end."""
    later = view.copy()
    later.clock_s = view.clock_s + ready_s
    if wanted is not None:
        wanted = (wanted[0], wanted[1], max(wanted[2] - 1, 0))
    answer = solve(game, room, later, n_reads, lookup, wanted, free, lowest)
    idle = answer.idle
    second = float(game.contexts[game.members[0]].contract.costs.time_per_hour) / 3600.0
    values = answer.values.copy()
    if free:
        values[:, :, 0] += 1.0
        values[:, :, 1] = np.maximum(answer.values[:, :, 1] - second * ready_s, max(idle))
    else:
        values[:, :, 1:] = np.maximum(answer.values[:, :, :-1] - second * ready_s, max(idle))
    best = max(answer.actions.max(), answer.best_wait)
    actions = np.full(N_ACTIONS, -math.inf)
    actions[Q_FINISH], actions[Q_UNCERTAIN] = idle
    wait_s = min(ready_s, MAX_WAIT_S)
    for w, seconds in enumerate(WAITS_S):
        spent_s = max(seconds, ready_s)
        actions[Q_FIRST_WAIT + w] = best - second * spent_s
    return Answer(answer.weight, values, actions, wait_s, best - second * ready_s, idle)
