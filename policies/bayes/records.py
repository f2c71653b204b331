"""The arrays of the exact bound, declared once, and the numbers that index them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from exactlyonce_env.compiled import Array, Record
from exactlyonce_env.records import N_TERMS, TRUTH, VIEW

MAX_LIVE = 8
"""Attempts of a view that can still matter, at most."""

MAX_FATES = 512
"""Fates of one attempt that are told apart, at most."""

MAX_LEVEL = 2
"""Attempts left, at most, that the programme tells apart; more count as without limit."""

N_LEVELS = MAX_LEVEL + 1
MAY_ANSWER, ANSWERS, NEVER_ANSWERS = 0, 1, 2
N_OPERATOR = 3
"""What is known of the operator: nothing, that he answers, that he does not."""

PLAIN, KEYED, DELAYED = 0, 1, 2
TIMEOUT, ERROR = 0, 1
"""The two responses that leave the outcome of a sending open."""

Q_READ, Q_RETRY, Q_KEYED, Q_ESCALATE, Q_FINISH, Q_UNCERTAIN = 0, 1, 2, 3, 4, 5
Q_FIRST_WAIT = 6
"""Order of `Answer.actions`; the discrete waits come last."""


def _record(fields: list[tuple[object, ...]]) -> np.dtype[np.record]:
    dtype: Any = np.dtype((np.record, fields))
    return dtype


FATE_CASE = _record(
    [
        ("probability", "f8"),
        ("delay_s", "f8"),  # [s] from sending to execution
        ("copy_delay_s", "f8"),  # [s] from execution to the copy's; infinity: no copy
        ("n_commit", "i8"),
        ("mode", "i8"),
        ("queued", "i8"),
    ]
)
"""One fate that an attempt may have met, as `exactlyonce_env.kernel.send` takes it."""

HYPOTHESIS = _record(
    [
        ("truth", TRUTH),  # now
        ("weight", "f8"),  # probability, not normalised
        ("claimed", "f8"),  # settlement if completion is claimed now
        ("unclaimed", "f8"),  # settlement if it is not
        ("executions", "i8"),  # of all items together, in the end
        ("shown_by", "i8"),  # number of the first read that brings news; n_reads: none does
        ("reported_by", "i8"),  # the same for an operator's report, which has no lag
        ("executed", "i4"),  # items executed in the end
        ("news", "i4"),  # items that the first news shows
        ("effects", "i4"),  # attempts that execute something, as bits in the order of sending
        ("member", "i4"),  # which hidden law
    ]
)
"""A hidden history that fits the view, and what follows from it.  Privileged."""

STATE = _record(
    [
        # Sums over the hypotheses that are still possible: weight and settlements.
        ("weight", "f8"),
        ("claimed", "f8"),
        ("unclaimed", "f8"),
        ("news_claimed", "f8"),  # those whose news will be the whole operation
        ("news_unclaimed", "f8"),
        ("report_weight", "f8"),  # the same three if the operator reports instead of a read
        ("report_claimed", "f8"),
        ("report_unclaimed", "f8"),
        ("after_s", "f8"),  # [s] clock of the state, from the view's
        ("row_share", "f8"),  # how far to the next row of the children
        ("row", "i8"),  # where among the children a re-issue from here lies
        ("report_state", "i8"),  # number of reads up to the operator's answer
        ("quiet_state", "i8"),  # state that a report without news leads to
        ("read_state", "i8"),  # of a state after a report: the read that shows as much
    ]
)
"""State 0 is the view itself; state i > 0 that of having made read i - 1 and seen nothing new.

Behind a lag as many more follow, for reports of the operator in place of reads.
"""

SENT = _record(
    [
        ("claimed", "f8"),  # settlement after an acknowledgement
        ("unclaimed", "f8"),
        ("refused_claimed", "f8"),  # settlement after a 409
        ("refused_unclaimed", "f8"),
        ("delay_s", "f8"),  # weight times seconds until these two answers
        ("open_weight", "f8", (2,)),  # weight of a timeout and of an HTTP 500
        ("alone_weight", "f8", (2,)),  # of which: no earlier attempt has an effect
        ("beside", "f8", (2,)),  # settlement, claimed, of the others
        ("open_unclaimed", "f8", (2,)),  # settlement if the episode ends with that response
        ("once_best", "f8"),  # settlement of all if it executes once, claimed or not
        ("once_claimed", "f8"),
        ("once_unclaimed", "f8"),
    ]
)
"""What a sending from a state leads to, summed over the hypotheses.

(3, n_states): plain and keyed in each state, and keyed in state 0 at the clock of each state.
"""

NODE = _record(
    [
        ("second", "f8"),  # cost of a second
        ("step_price", "f8"),  # as in `Game`
        ("rejected", "f8"),  # P(a sending is refused explicitly, outages aside)
        ("outage", "f8"),  # P(it meets an outage)
        ("outage_s", "f8"),
        ("known_best", "f8"),  # settlement once it is known what becomes of every attempt
        ("known_unclaimed", "f8"),
        ("endless", "i8"),  # whether the highest level of attempts left outlasts a re-issue
        ("first", "i8"),  # whether the next sending is the original
        ("settled", "i8"),  # whether nothing is left to learn of what was executed
        ("free", "i8"),  # whether the steps are without limit
        ("expires", "i8"),  # whether a key's record may run out too early
        ("n_items", "i8"),
        ("n_states", "i8"),  # that are reached by reads; those behind them by reports
        ("absent", "f8", (2,)),  # P(no effect | timeout), P(no effect | HTTP 500)
    ]
)
"""What the states of one view have in common."""


class Game(NamedTuple):
    """The worlds that a client with one contract may be in."""

    contexts: Array  # (C,) CONTEXT
    table: Array  # the arena of delay laws
    members: Array  # (L,) int64, contexts with this contract
    shares: Array  # (L,) float64, their probabilities given the contract
    step_price: float = 0.0  # what reads and discrete waits cost beside their costs; for teaching


class Room(NamedTuple):
    """Scratch space of one solver."""

    seen: Array  # (MAX_LIVE + 2,) VIEW
    truth: Array  # (MAX_LIVE + 2,) TRUTH
    cases: Array  # (MAX_LIVE, MAX_FATES) FATE_CASE
    hypotheses: Array  # (capacity,) HYPOTHESIS
    terms: Array  # (N_TERMS,)


class Children(NamedTuple):
    """Solved values of re-issuing, by the age of the unresolved attempt that it follows.

    ``values[g, how, response]`` (n_ages, 2, 2, N_OPERATOR, N_LEVELS, K + 1) is the value to go,
    after a response that leaves the outcome open, per unit of probability of that response, with
    so many attempts and steps left.  Age 0 is that of a re-issue without any report; the others
    follow a report that showed nothing.
    """

    ages_s: Array  # (n_ages,) [s] at the re-issue; empty: none were solved
    values: Array


class Lookup(NamedTuple):
    """What the programme of one view looks up.

    ``fresh[m]`` (n_items + 1, N_OPERATOR, N_LEVELS, K + 1) is the value to go where m items are
    missing and nothing is in flight; ``opened[how, response]`` (2, 2, N_OPERATOR, N_LEVELS, K + 1)
    that after a sending whose outcome is open, where no earlier attempt can have an effect.
    """

    fresh: Array
    opened: Array
    children: Children


class Scene(NamedTuple):
    """What the moves of one view are valued from."""

    contract: Record
    node: Record  # NODE
    states: Array  # (n_states,) STATE
    sent: Array  # (3, n_states) SENT
    partial: Array  # (2, n_items + 1, n_states), weight of news of so many items: read, reported
    lacking: Array  # (n_items + 1,) weight of so many items missing in the end
    lookup: Lookup


class Tables(NamedTuple):
    """What is filled in; the first three are (slots, N_OPERATOR, N_LEVELS, n_states).

    ``now`` is the best of what can be done at once in a state, as from then; ``later`` the best of
    reading later, as from the view's clock; ``target`` the state that this leads to.  ``need[0]``
    and ``need[1]`` (2, N_OPERATOR, N_LEVELS, n_states) are the steps that may be needed at once,
    and in the better of both.
    """

    now: Array
    later: Array
    target: Array
    need: Array


class Left(NamedTuple):
    """What is left after one step, and after two.

    ``operator`` is what is known of him, ``level`` the attempts left before the step, ``slot`` and
    ``steps`` belong to one step fewer, ``next_slot`` and ``next_steps`` to two.
    """

    operator: int
    level: int
    slot: int
    steps: int
    next_slot: int
    next_steps: int


class Answer(NamedTuple):
    """What a view is worth.

    ``values`` (N_OPERATOR, N_LEVELS, K + 1): value to go per unit of weight, by what is known of
    the operator, attempts left and steps left.  ``actions`` (11,): value of each action, in the
    order of ``Q_READ`` to ``Q_UNCERTAIN``, then the discrete waits; -inf where it is impossible.
    ``best_wait_s`` and ``best_wait``: the best wait [s], and its value.  ``idle``: settlement if
    completion is claimed now, and if it is not.
    """

    weight: float
    values: Array
    actions: Array
    best_wait_s: float
    best_wait: float
    idle: tuple[float, float]


def make_room(capacity: int = 40000) -> Room:
    """Scratch space for one thread."""
    return Room(
        np.zeros(MAX_LIVE + 2, VIEW),
        np.zeros(MAX_LIVE + 2, TRUTH),
        np.zeros((MAX_LIVE, MAX_FATES), FATE_CASE),
        np.zeros(capacity, HYPOTHESIS),
        np.zeros(N_TERMS),
    )


def no_children(n_steps: int) -> Children:
    """An empty table."""
    return Children(np.zeros(0), np.zeros((0, 2, 2, N_OPERATOR, N_LEVELS, n_steps + 1)))
