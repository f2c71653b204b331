"""Solving one contract: what is looked up by every decision, and what an episode is worth."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from exactlyonce_env import kernel, rules
from exactlyonce_env.compiled import Array, Record, compiled
from exactlyonce_env.permission import NO_KEY, next_payload
from exactlyonce_env.records import N_MODES
from exactlyonce_env.vocabulary import Action, Mode, OriginalKey, Readback, Start
from policies.bayes.beliefs import believe, is_live, unresolved_attempts
from policies.bayes.reading_times import plan_reads
from policies.bayes.records import (
    KEYED,
    MAX_LEVEL,
    N_LEVELS,
    N_OPERATOR,
    TIMEOUT,
    Answer,
    Children,
    Game,
    Lookup,
    Room,
    no_children,
)
from policies.bayes.scene import operator_states
from policies.bayes.solving import solve
from policies.bayes.sums import mode_shares

READ = int(Action.READ)
WAIT = int(Action.WAIT)
RETRY = int(Action.RETRY)
KEYED_RETRY = int(Action.KEYED_RETRY)
ESCALATE = int(Action.ESCALATE)
KEY_SENT = int(OriginalKey.SENT)
START_FAULT = int(Start.FAULT)
NO_READBACK = int(Readback.NONE)
AUTHORITATIVE = int(Readback.AUTHORITATIVE)
EPS = 1e-9
MAX_READS = 384
MANY_STEPS = 40
M_TIMEOUT_PRE = int(Mode.TIMEOUT_PRE)
M_HTTP500_PRE = int(Mode.HTTP500_PRE)
M_PARTIAL = int(Mode.PARTIAL_BATCH)
M_RATE_LIMITED = int(Mode.RATE_LIMITED)
OPEN_MODES = (M_TIMEOUT_PRE, M_HTTP500_PRE)

V_BASE, V_NEXT, V_CHILD = 3, 4, 5
"""Places in the room's scratch views that the solver of a contract uses."""


class Effort(NamedTuple):
    """How finely a contract is solved."""

    n_reads: int  # moments of reading in a decision with one unresolved attempt
    n_coarse: int  # the same with two or more
    n_rows: int  # ages at which a re-issue is solved exactly
    n_children: int  # moments of reading in those
    close: float = 2e-4  # moments are doubled until an episode's value changes by less


class Solved(NamedTuple):
    """What the decisions under one contract look up; see `policies.bayes.records.Lookup`.

    ``first`` is as ``opened``, for the original; ``children`` are by the original's response
    (timeout, HTTP 500) and by whether it carried a key.
    """

    value: float
    steps: int  # that the best play may take, where there is no limit to them
    n_reads: int  # moments of reading that a decision has to consider
    free: bool
    fresh: Array  # (n_items + 1, N_OPERATOR, N_LEVELS, K + 1)
    opened: Array  # (n_items + 1, 2, 2, N_OPERATOR, N_LEVELS, K + 1)
    first: Array  # (2, 2, N_OPERATOR, N_LEVELS, K + 1)
    children: dict[tuple[int, int], Children]


@compiled
def _act(
    game: Game,
    room: Room,
    view: Record,
    truth: Record,
    action: int,
    seconds: float,
    mode: int,
    n_commit: int,
) -> None:
    """Take an action in a made-up world, in which nothing that is sent is ever late."""
    contract = game.contexts[truth.context].contract
    kernel.act_fated(
        game.contexts,
        view,
        truth,
        action,
        seconds,
        mode,
        contract.latency_s,
        math.inf,
        np.int64(n_commit),
        True,
        room.terms,
    )
    view.n_steps = 0
    view.ending = 0


@compiled
def _begin(game: Game, view: Record, truth: Record, mode: int, n_commit: int) -> None:
    """Open a made-up world whose original meets ``mode``."""
    index = game.members[0]
    contract = game.contexts[index].contract
    kernel.begin_fated(
        game.contexts,
        index,
        view,
        truth,
        mode,
        contract.latency_s,
        math.inf,
        np.int64(n_commit),
        True,
    )
    truth.operator_answers = True


@compiled
def _begin_fresh(game: Game, room: Room, view: Record, truth: Record, missing: int) -> bool:
    """Make the view of a client that knows ``missing`` items absent, with nothing in flight.

    Returns whether such a view exists.
    """
    contract = game.contexts[game.members[0]].contract
    starts_sent = contract.start == START_FAULT
    done = contract.n_items - missing
    original, retry = mode_shares(game, True), mode_shares(game, False)
    _begin(game, view, truth, M_RATE_LIMITED, 0)
    if done == 0:
        if not starts_sent:
            _act(game, room, view, truth, RETRY, 0.0, M_RATE_LIMITED, 0)
        return True
    if contract.readback == NO_READBACK:
        return False
    if original[M_PARTIAL] > 0.0:
        _begin(game, view, truth, M_PARTIAL, done)
        if not starts_sent:
            _act(game, room, view, truth, RETRY, 0.0, M_PARTIAL, done)
    elif retry[M_PARTIAL] > 0.0 and contract.max_attempts > 1:
        if not starts_sent:
            _act(game, room, view, truth, RETRY, 0.0, M_RATE_LIMITED, 0)
        _act(game, room, view, truth, RETRY, 0.0, M_PARTIAL, done)
    else:
        return False
    lag_s = 0.0
    if contract.readback == rules.EVENTUAL:
        for m in range(len(game.members)):
            lag_s = max(lag_s, game.contexts[game.members[m]].law.lag_s)
    _act(game, room, view, truth, WAIT, lag_s + contract.latency_s, 0, 0)
    _act(game, room, view, truth, READ, 0.0, 0, 0)
    return rules.count_items(view.shown) == done


def solve_fresh(
    game: Game, room: Room, effort: Effort, n_steps: int, free: bool, lowest: int, passes: int
) -> tuple[Array, Array]:
    """`Solved.fresh` and `Solved.opened`, each in terms of the other, ``passes`` times."""
    contract = game.contexts[game.members[0]]["contract"]
    retry = mode_shares(game, False)
    n_items, hows = int(contract["n_items"]), 2 if contract["accepts_key"] else 1
    guess = 0.8 * float(contract["costs"]["success"])
    fresh = np.full((n_items + 1, N_OPERATOR, N_LEVELS, n_steps + 1), guess)
    opened = np.full((n_items + 1, 2, 2, N_OPERATOR, N_LEVELS, n_steps + 1), guess)
    none = no_children(n_steps)
    if free:
        fresh[..., 0] = opened[..., 0] = 3
    view, truth = room.seen[V_BASE], room.truth[V_BASE]
    after, then = room.seen[V_NEXT], room.truth[V_NEXT]
    for turn in range(passes + 1):
        for missing in range(1, n_items + 1):
            if not _begin_fresh(game, room, view, truth, missing):
                if missing < n_items:
                    fresh[missing] = 0.0  # no client ever knows this
                continue
            lookup = Lookup(fresh, opened[missing], none)
            fresh[missing] = solve(game, room, view, 4, lookup, None, free, lowest).values
            if turn == passes:
                continue
            for how in range(hows):
                action = KEYED_RETRY if how == KEYED else RETRY
                for response in range(2):
                    if not answers_with(retry, rules.R_TIMEOUT + response):
                        continue
                    room.seen[V_NEXT] = view
                    room.truth[V_NEXT] = truth
                    if not kernel.sends(contract_of(game), after, action):
                        continue
                    _act(game, room, after, then, action, 0.0, OPEN_MODES[response], 0)
                    opened[missing, how, response] = solve(
                        game, room, after, effort.n_children, lookup, None, free, lowest
                    ).values
    return fresh, opened


def contract_of(game: Game) -> Record:
    """The contract, as a record."""
    return game.contexts[game.members[0]].contract


def answers_with(shares: Array, response: int) -> bool:
    """Whether one of the modes (N_MODES,) that have a share answers so."""
    return any(shares[m] > 0.0 and rules.response_of(m) == response for m in range(N_MODES))


@compiled
def choose_rows(game: Game, room: Room, view: Record, n_reads: int, n_rows: int) -> Array:
    """Times of reading [s] after which a re-issue is solved: where belief or clock move."""
    reads = plan_reads(game, view, n_reads, False)
    n = believe(game, room, view, reads, 1, len(room.hypotheses), 0)
    weight = np.zeros(len(reads) + 1)
    for h in range(n):
        weight[room.hypotheses[h].shown_by] += room.hypotheses[h].weight
    total = 0.0
    for k in range(len(reads)):
        total += weight[k]
    origin_s = view.clock_s - 1.0
    span = max(math.log((reads[-1] - origin_s) / (reads[0] - origin_s)), EPS)
    chosen = np.zeros(len(reads), np.bool_)
    passed = 0.0
    last = -1
    for k in range(len(reads)):
        passed += weight[k]
        place = 0.5 * passed / total if total > 0.0 else 0.0
        place += 0.5 * math.log((reads[k] - origin_s) / (reads[0] - origin_s)) / span
        step = int(place * (n_rows // 2))
        if step > last or weight[k] * n_rows > 0.5 * total:
            chosen[k] = True
            if k > 0:
                chosen[k - 1] = True  # both sides of a jump
            last = step
    chosen[len(reads) - 1] = True
    return reads[np.nonzero(chosen)[0]]


def _solve_children(
    game: Game, room: Room, effort: Effort, free: bool, lowest: int, fresh: Array, opened: Array
) -> Children:
    """Solve the re-issues that may follow the view in place V_BASE of the room."""
    contract = contract_of(game)
    n_steps = fresh.shape[3] - 1
    none = no_children(n_steps)
    retry = mode_shares(game, False)
    view, truth = room.seen[V_BASE], room.truth[V_BASE]
    after, then = room.seen[V_NEXT], room.truth[V_NEXT]
    child, happened = room.seen[V_CHILD], room.truth[V_CHILD]
    responses = [r for r in range(2) if answers_with(retry, rules.R_TIMEOUT + r)]
    if contract.accepts_key and view.attempts[0].key != NO_KEY and TIMEOUT not in responses:
        responses.append(TIMEOUT)  # coalesced with an original that takes long
    if not responses or view.n_attempts >= contract.max_attempts:
        return none
    looks = contract.readback != NO_READBACK and contract.readback != AUTHORITATIVE
    reads = [0.0]
    if looks:
        reads = choose_rows(game, room, view, effort.n_reads, effort.n_rows).tolist()
    hows = 2 if contract.accepts_key else 1
    ages_s = np.zeros(len(reads) + 1)
    values = np.zeros((len(reads) + 1, hows, 2, N_OPERATOR, N_LEVELS, n_steps + 1))
    sent_s = float(view.attempts[int(view.n_attempts) - 1].sent_s)
    for g in range(len(ages_s)):
        room.seen[V_NEXT] = view
        room.truth[V_NEXT] = truth
        if g > 0 and looks:
            _act(game, room, after, then, WAIT, reads[g - 1] - after.clock_s, 0, 0)
            _act(game, room, after, then, READ, 0.0, 0, 0)
        elif g > 0:
            _act(game, room, after, then, ESCALATE, 0.0, 0, 0)
        ages_s[g] = max(after.clock_s - sent_s, 1e-3)
        missing = rules.count_items(next_payload(after, contract, NO_KEY))
        lookup = Lookup(fresh, opened[missing], none)
        for how in range(hows):
            for response in responses:
                room.seen[V_CHILD] = after
                room.truth[V_CHILD] = then
                action = KEYED_RETRY if how == KEYED else RETRY
                _act(game, room, child, happened, action, 0.0, OPEN_MODES[response], 0)
                values[g, how, response] = solve(
                    game, room, child, effort.n_children, lookup, None, free, lowest
                ).values
    return Children(ages_s, values)


def solve_contract(
    game: Game, room: Room, effort: Effort, n_steps: int, free: bool, last: bool, passes: int = 2
) -> Solved:
    """Solve everything that the decisions under one contract look up, and the episode itself.

    ``last``: for the last attempts of many, which few episodes come to, and for nothing else.
    """
    contract = contract_of(game)
    plenty = int(contract.max_attempts) > MAX_LEVEL + 2
    lowest = MAX_LEVEL if plenty and not last else 0
    fresh, opened = solve_fresh(game, room, effort, n_steps, free, lowest, passes)
    n_items = int(contract.n_items)
    shares = mode_shares(game, True)
    first = np.zeros((2, 2, N_OPERATOR, N_LEVELS, n_steps + 1))
    none = no_children(n_steps)
    children: dict[tuple[int, int], Children] = {}
    view, truth = room.seen[V_BASE], room.truth[V_BASE]
    starts_sent = contract.start == START_FAULT
    keys = [int(contract.original_key == KEY_SENT)]
    if not starts_sent:
        keys = [0, 1] if contract.accepts_key else [0]
    total, steps, n_reads = 0.0, 0, effort.n_reads
    if last:
        return Solved(total, steps, n_reads, free, fresh, opened, first, children)
    for response in range(2):
        if not answers_with(shares, rules.R_TIMEOUT + response):
            continue
        for key in keys:
            _begin(game, view, truth, OPEN_MODES[response], n_items)
            if not starts_sent:
                action = KEYED_RETRY if key == KEYED else RETRY
                _act(game, room, view, truth, action, 0.0, OPEN_MODES[response], 0)
            found = _solve_children(game, room, effort, free, lowest, fresh, opened)
            children[response, key] = found
            lookup = Lookup(fresh, opened[n_items], found)
            answer, fine = _refined(game, room, view, effort, lookup, free, lowest)
            n_reads = max(n_reads, fine)
            first[key, response] = answer.values
            if starts_sent:
                value, needed = _of_root(contract, view, answer)
                total += answer.weight * value
                steps = max(steps, needed)
    if not starts_sent:
        _begin(game, view, truth, M_RATE_LIMITED, n_items)
        answer = solve(game, room, view, 4, Lookup(fresh, first, none), None, free, lowest)
        total, steps = _of_root(contract, view, answer)
    acknowledged = False
    for mode in range(N_MODES if starts_sent else 0):
        response = rules.response_of(mode)
        if rules.is_unknown(response) or shares[mode] <= 0.0:
            continue
        if response == rules.R_SUCCESS and acknowledged:
            continue  # one view for all that are acknowledged
        acknowledged |= response == rules.R_SUCCESS
        _begin(game, view, truth, mode, n_items)
        answer = solve(
            game, room, view, 8, Lookup(fresh, opened[n_items], none), None, free, lowest
        )
        weight = answer.weight if response == rules.R_SUCCESS else shares[mode]
        value, needed = _of_root(contract, view, answer)
        total += weight * value
        steps = max(steps, needed)
    return Solved(total, steps, n_reads, free, fresh, opened, first, children)


def _refined(
    game: Game,
    room: Room,
    view: Record,
    effort: Effort,
    lookup: Lookup,
    free: bool,
    lowest: int,
) -> tuple[Answer, int]:
    """The view's answer on a grid that is fine enough, and its number of moments."""
    contract = contract_of(game)
    n_reads = effort.n_reads
    answer = solve(game, room, view, n_reads, lookup, None, free, lowest)
    limit = int(contract.max_steps)
    while free and n_reads < MAX_READS:
        finer = solve(game, room, view, 2 * n_reads, lookup, None, free, lowest)
        value, needed = _of_root(contract, view, finer)
        if needed > limit > MANY_STEPS:
            break  # many steps, but not without end: no more reads than they allow
        change = value - _of_root(contract, view, answer)[0]
        answer = finer
        if abs(change) < effort.close:
            break
        n_reads *= 2
    return answer, n_reads


def _of_root(contract: Record, view: Record, answer: Answer) -> tuple[float, int]:
    """The value where all steps and attempts are left and nobody was asked, and the steps."""
    level = min(int(contract.max_attempts - view.n_attempts), MAX_LEVEL)
    o = int(np.argmax(operator_states(contract, view)))
    return float(answer.values[o, level, -1]), int(answer.values[o, level, 0])


def decide(game: Game, room: Room, effort: Effort, view: Record, solved: Solved) -> Answer:
    """What each action is worth from ``view``, a view of this contract.

    Where the contract was solved without a limit to the steps, ``values[..., 0]`` says how many may
    be needed.
    """
    contract = contract_of(game)
    o = int(np.argmax(operator_states(contract, view)))
    attempts = max(int(contract.max_attempts - view.n_attempts), 0)
    level = min(attempts, MAX_LEVEL)
    k = int(contract.max_steps - view.n_steps)
    n_open, original = survey_view(view)
    missing = rules.count_items(next_payload(view, contract, NO_KEY))
    opened = solved.first if view.n_attempts == 0 else solved.opened[missing]
    found = no_children(solved.fresh.shape[3] - 1)
    plenty = attempts > MAX_LEVEL
    if n_open == 1 and original:
        attempt = view.attempts[0]
        key = int(attempt.key != NO_KEY)
        found = solved.children.get((attempt.response - rules.R_TIMEOUT, key), found)
    lookup = Lookup(solved.fresh, opened, found)
    return solve(
        game,
        room,
        view,
        solved.n_reads if n_open <= 1 else effort.n_coarse,
        lookup,
        (o, level, k),
        solved.free,
        MAX_LEVEL if plenty else 0,
    )


@compiled
def survey_view(view: Record) -> tuple[int, bool]:
    """Number of unresolved attempts, and whether the original is all that can have an effect."""
    alone = view.n_attempts > 0 and is_live(view.attempts[0]) and view.shown == 0
    for j in range(1, view.n_attempts):
        alone &= not is_live(view.attempts[j])
    return unresolved_attempts(view), alone
