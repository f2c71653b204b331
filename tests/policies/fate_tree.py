"""Beliefs moved by the real kernel under every fate that an attempt can meet.

It works where the fates are finitely many. A belief is a view and the hypotheses that a history
leaves, each a `TRUTH` record with a weight; rows that end in equal views are one belief.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from exactlyonce_env import quantiles, rules
from exactlyonce_env.compiled import Array, Record, compiled
from exactlyonce_env.kernel import RUNNING, WAIT, act_fated, begin_fated, sends
from exactlyonce_env.plan import Plan
from exactlyonce_env.records import N_TERMS, TRUTH, VIEW
from exactlyonce_env.settlement import count_effects
from exactlyonce_env.vocabulary import Action, Mode, Start

FATE = np.dtype(
    [
        ("mode", "i8"),
        ("delay_s", "f8"),
        ("copy_delay_s", "f8"),
        ("n_commit", "i8"),
        ("queued", "i8"),
        ("weight", "f8"),
    ]
)
Fates = list[tuple[int, float, float, int, int, float]]


def atoms(table: Array, offset: int) -> list[tuple[float, float]]:
    """(delay [s], probability) of a law without a continuous part, as the sampler draws it."""
    family = int(table[offset])
    if family == quantiles.FIXED:
        return [(float(table[offset + 1]), 1.0)]
    if family == quantiles.EMPIRICAL:
        n = int(table[offset + 1])
        times, cdf = table[offset + 2 : offset + 2 + n], table[offset + 2 + n : offset + 2 + 2 * n]
        found = list(zip(times.tolist(), np.diff(cdf, prepend=0.0).tolist(), strict=True))
        beyond = 1.0 - float(cdf[-1])
        return [*found, (quantiles.BEYOND_S, beyond)] if beyond > 1e-12 else found
    if family == quantiles.MIXTURE:
        n = int(table[offset + 1])
        shares = np.diff(table[offset + 2 : offset + 2 + n], prepend=0.0)
        return [
            (delay_s, float(share) * p)
            for k, share in enumerate(shares)
            for delay_s, p in atoms(table, int(table[offset + 2 + n + k]))
        ]
    raise ValueError(f"law of family {family} has infinitely many delays")


def fates_of(plan: Plan, index: int, first: bool) -> Fates:
    """Every fate of an attempt in context ``index`` with its probability, as `draw_fate` draws."""
    contract, law = plan.contexts[index]["contract"], plan.contexts[index]["law"]
    latency_s, n_items = float(contract["latency_s"]), int(contract["n_items"])
    found: Fates = []
    shares = np.diff(law["first_cdf" if first else "retry_cdf"], prepend=0.0)
    for mode, share in zip(Mode, shares, strict=True):
        if share <= 0.0:
            continue
        if not rules.commits(int(mode)):
            found.append((int(mode), np.inf, np.inf, 0, 0, share))
        elif rules.is_late(int(mode)):
            delays = [(float(law["late_fixed_s"]), 1.0)]
            if mode == Mode.TIMEOUT_LATE_TAIL:
                delays = atoms(plan.table, int(law["tail_offset"]))
            for delay_s, p in delays:
                for queued, part in ((1, law["queued_share"]), (0, 1.0 - law["queued_share"])):
                    if part > 0.0:
                        weight = share * p * part
                        found.append((int(mode), delay_s, np.inf, n_items, queued, weight))
        elif mode == Mode.PARTIAL_BATCH:
            for k in range(1, n_items):
                found.append((int(mode), latency_s, np.inf, k, 0, share / (n_items - 1)))
        else:
            copy_s = float(law["copy_delay_s"]) if mode == Mode.REDELIVERY else np.inf
            found.append((int(mode), latency_s, copy_s, n_items, 0, share))
    return found


class FateTable:
    """The fates of all contexts in one array; those of context c are rows start[c] : stop[c]."""

    def __init__(self, plan: Plan, first: bool) -> None:
        each = [fates_of(plan, index, first) for index in range(len(plan.contexts))]
        fates = [row for rows in each for row in rows]
        self.rows = np.array(fates, dtype=FATE).view(np.recarray)
        self.stop = np.cumsum([len(rows) for rows in each])
        self.start = self.stop - [len(rows) for rows in each]
        self.longest = max(len(rows) for rows in each)


@compiled
def forget(truth: Record, n_attempts: int) -> None:
    """Clear what no rule looks at any more, so that hypotheses with one future are one.

    That is the name of the fault, and the times of an attempt that never has an effect.
    """
    truth.false_permissions = 0
    for j in range(n_attempts):
        happened = truth.attempts[j]
        happened.mode = 0
        if (
            not happened.in_transit
            and not happened.copy_due
            and happened.effect == 0
            and happened.copy_effect == 0
        ):
            happened.arrival_s = 0.0
            happened.execution_s = 0.0
            happened.wanted = 0


@compiled
def ceiling(contract: Record, seen: Record, truth: Record) -> float:
    """No future of this hypothesis settles for more."""
    costs = contract.costs
    duplicates, _ = count_effects(contract, seen, truth)
    if duplicates == 0:
        return costs.success
    return -costs.duplicate * duplicates - min(costs.overclaim, costs.unresolved)


@compiled
def expand(
    contexts: Array,
    seen: Array,
    truths: Array,
    action: int,
    seconds: float,
    fates: Array,
    start: Array,
    stop: Array,
    out_seen: Array,
    out_truth: Array,
    out_parent: Array,
    out_numbers: Array,
) -> int:
    """Take ``action`` in the view ``seen`` (1,) under each of the hypotheses ``truths`` (n,).

    Row k of the outputs is one hypothesis under one fate: its view and truth, the number of the
    hypothesis, and (share of the fate, reward, ceiling of what may follow). Returns how many.
    """
    terms = np.zeros(N_TERMS)
    k = 0
    for i in range(len(truths)):
        index = np.int64(truths[i].context)
        contract = contexts[index].contract
        low, high = 0, 1
        sending = sends(contract, seen[0], action)
        if sending:
            low, high = start[index], stop[index]
        for f in range(low, high):
            out_seen[k] = seen[0]
            out_truth[k] = truths[i]
            view = out_seen[k]
            truth = out_truth[k]
            fate = fates[f]
            reward = act_fated(
                contexts,
                view,
                truth,
                action,
                seconds,
                fate.mode,
                fate.delay_s,
                fate.copy_delay_s,
                fate.n_commit,
                fate.queued != 0,
                terms,
            )
            forget(truth, view.n_attempts)
            out_parent[k] = i
            out_numbers[k, 0] = fate.weight if sending else 1.0
            out_numbers[k, 1] = reward
            out_numbers[k, 2] = ceiling(contract, view, truth) if view.ending == RUNNING else 0.0
            k += 1
    return k


@compiled
def open_worlds(
    contexts: Array, index: int, fates: Array, start: int, stop: int, seen: Array, truths: Array
) -> None:
    """Open context ``index`` under the fates ``start`` .. ``stop`` of the original."""
    for f in range(start, stop):
        fate = fates[f]
        begin_fated(
            contexts,
            index,
            seen[f - start],
            truths[f - start],
            fate.mode,
            fate.delay_s,
            fate.copy_delay_s,
            fate.n_commit,
            fate.queued != 0,
        )
        forget(truths[f - start], seen[f - start].n_attempts)


@dataclass(frozen=True, eq=False)
class Belief:
    """What a client can know: ``view`` (1,) VIEW and ``truths`` (n,) TRUTH of ``weights`` (n,).

    The weights are joint probabilities with the history; they sum to the chance of being here.
    """

    view: Array
    truths: Array
    weights: Array

    @cached_property
    def chance(self) -> float:
        """Probability of this node."""
        return float(self.weights.sum())

    def key(self) -> bytes:
        """Bytes that two nodes share only if the same future lies before both.

        Counters, responses and conclusions are left out: no rule of the dynamics reads them, and
        what they taught is in the hypotheses.
        """
        view = self.view.copy()
        for name in (
            "decided_from_s",
            "retry_at_s",
            "operator_at_s",
            "n_reads",
            "reads_since_attempt",
            "n_waits",
            "n_reissues",
            "n_escalations",
            "n_client_errors",
            "ever_shown",
            "read_error",
            "operator_status",
        ):
            view[name] = 0
        view["read_at_s"] = view["read_at_s"] >= 0.0
        for name in ("answered_s", "clear", "response", "authority"):
            view["attempts"][name] = 0
        shares = np.round(self.weights / self.chance, 10)
        return view.tobytes() + self.truths.tobytes() + shares.tobytes()


def beliefs(views: Array, truths: Array, weights: Array) -> list[Belief]:
    """Rows (n,) sorted into one belief for each view, equal hypotheses added up."""
    nodes: dict[bytes, tuple[int, dict[bytes, tuple[int, float]]]] = {}
    for k in range(len(views)):
        _, hypotheses = nodes.setdefault(views[k].tobytes(), (k, {}))
        truth = truths[k].tobytes()
        row, weight = hypotheses.get(truth, (k, 0.0))
        hypotheses[truth] = row, weight + float(weights[k])
    found = []
    for first, hypotheses in nodes.values():
        rows = [hypotheses[truth] for truth in sorted(hypotheses)]
        found.append(
            Belief(
                views[first : first + 1].copy(),
                truths[[row for row, _ in rows]].copy(),
                np.array([weight for _, weight in rows]),
            )
        )
    return found


@dataclass(frozen=True)
class Choice:
    """One decision; ``seconds`` counts for WAIT only."""

    kind: int
    seconds: float = 0.0

    def __str__(self) -> str:
        name = Action(self.kind).name.lower()
        return f"{name}:{self.seconds:g}" if self.kind == WAIT else name


@dataclass(frozen=True, eq=False)
class Step:
    """What a choice leads to: joint expectation of its reward, a bound, and the nodes after it."""

    reward: float  # sum of weight x reward
    bound: float  # nothing that begins with this choice earns more, times the node's chance
    after: list[Belief]


class Expansion:
    """The kernel over beliefs of one plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.first, self.further = FateTable(plan, True), FateTable(plan, False)
        self._room(64)

    def _room(self, n: int) -> None:
        self.seen, self.truths = np.zeros(n, VIEW), np.zeros(n, TRUTH)
        self.parent, self.numbers = np.zeros(n, np.int64), np.zeros((n, 3))

    def roots(self) -> list[tuple[int, Belief]]:
        """(context that its views name, belief) of every view that an episode can open with."""
        plan = self.plan
        chances = np.diff(plan.context_cdf, prepend=0.0)
        opened: dict[int, tuple[list[Array], list[Array], list[Array]]] = {}
        for index in range(len(plan.contexts)):
            contract, law = plan.contexts[index]["contract"], plan.contexts[index]["law"]
            low, high = int(self.first.start[index]), int(self.first.stop[index])
            weights = self.first.rows["weight"][low:high] * chances[index]
            if contract["start"] != Start.FAULT:
                high = low + 1  # nothing is sent yet: the fate handed in is not looked at
                weights = chances[index : index + 1]
            views, truths = np.zeros(high - low, VIEW), np.zeros(high - low, TRUTH)
            open_worlds(plan.contexts, index, self.first.rows, low, high, views, truths)
            rate = float(contract["operator_answer_rate"])
            for answers, share in ((1, rate), (0, 1.0 - rate)):
                if share > 0.0:
                    happened = truths.copy()
                    happened["operator_answers"] = answers
                    parts = opened.setdefault(int(law["shown_as"]), ([], [], []))
                    for part, rows in zip(parts, (views, happened, weights * share), strict=True):
                        part.append(rows)
        return [
            (context, belief)
            for context, parts in opened.items()
            for belief in beliefs(*(np.concatenate(part) for part in parts))
        ]

    def step(self, belief: Belief, choice: Choice) -> Step:
        """Take ``choice`` at ``belief``."""
        fates = self.first if belief.view["n_attempts"][0] == 0 else self.further
        room = len(belief.truths) * fates.longest
        if room > len(self.seen):
            self._room(2 * room)
        n = expand(
            self.plan.contexts,
            belief.view,
            belief.truths,
            choice.kind,
            choice.seconds,
            fates.rows,
            fates.start,
            fates.stop,
            self.seen,
            self.truths,
            self.parent,
            self.numbers,
        )
        weights = belief.weights[self.parent[:n]] * self.numbers[:n, 0]
        reward = float(weights @ self.numbers[:n, 1])
        bound = reward + float(weights @ self.numbers[:n, 2])
        running = np.flatnonzero(self.seen["ending"][:n] == RUNNING)
        after = (
            beliefs(self.seen[running], self.truths[running], weights[running])
            if len(running)
            else []
        )
        return Step(reward, bound, after)
