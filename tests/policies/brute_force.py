"""The best policy by full expansion: every action at every view, every fate of every attempt.

Nothing is assumed about the shape of the optimum. A node is what a client can know: its view and,
because a client remembers, the hypotheses that its whole history leaves. The limits must be small,
and times should be multiples of 1/8 s, so that sums of them are exact.

Waiting is finite too. Between two decisions only "has it happened by now" can change, so an
action is worth delaying only until one of the instants of `write_instants`, and two waits in a row
are one. `solve` takes more instants, with which a test can try that none is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from exactlyonce_env import rules
from exactlyonce_env.actions import MAX_WAIT_S
from exactlyonce_env.compiled import Array, Record, compiled
from exactlyonce_env.kernel import (
    ESCALATE,
    FINISH,
    FINISH_UNCERTAIN,
    KEYED_RETRY,
    READ,
    RETRY,
    WAIT,
)
from exactlyonce_env.plan import Plan
from exactlyonce_env.vocabulary import Authority, OperatorStatus, Response
from policies.base import ActionBatch, Policy, ViewBatch

from .fate_tree import Belief, Choice, Expansion, Step, beliefs

JUST_AFTER_S = 1.0 / 1024.0
"""Added to an instant that must be passed, not merely reached."""
SAME = 1e-12
"""An action must be better than another by this much to be preferred to it."""
N_INSTANTS = 4096


@compiled
def _note(out: Array, n: int, now_s: float, at_s: float) -> int:
    if now_s < at_s <= now_s + MAX_WAIT_S and n < len(out):
        out[n] = at_s
        return n + 1
    return n


@compiled
def write_instants(
    contexts: Array,
    seen: Array,
    truths: Array,
    retry_delays_s: Array,
    merging: bool,
    out: Array,
) -> int:
    """Write the instants from which on some action would meet something else; returns how many.

    These are lower ends only: to act as late as possible before an upper end teaches nothing that
    acting at the last lower end before it does not, and costs time. With ``merging`` also the
    instants a call earlier, from which that call itself carries the client to the instant, which
    spares a wait where the call budget is short.
    """
    view = seen[0]
    now_s = view.clock_s
    n = 0
    for i in range(len(truths)):
        truth = truths[i]
        context = contexts[truth.context]
        contract = context.contract
        law = context.law
        lag_s = law.lag_s if contract.readback == rules.EVENTUAL else 0.0
        n = _note(out, n, now_s, truth.outage_until_s)
        for j in range(view.n_attempts):
            happened = truth.attempts[j]
            if happened.effect == 0 and not happened.in_transit:
                continue
            at_s = happened.execution_s
            for copy in range(2):
                if copy == 1:
                    if not happened.copy_due and happened.copy_effect == 0:
                        break
                    at_s += law.copy_delay_s
                n = _note(out, n, now_s, at_s + lag_s)  # a read shows it
                n = _note(out, n, now_s, at_s - contract.operator_delay_s)  # the report shows it
            if view.attempts[j].key == 0 or not contract.accepts_key:
                continue
            at_s = happened.execution_s
            n = _note(out, n, now_s, at_s)  # no same-key call meets it in progress any more
            n = _note(
                out, n, now_s, at_s - contract.client_timeout_s
            )  # such a call lasts till then
            n = _note(out, n, now_s, happened.arrival_s + contract.key_retention_s)
            if happened.in_transit:  # a record made from then on still lives when it arrives
                for k in range(len(retry_delays_s)):
                    delay_s = contract.key_retention_s + retry_delays_s[k]
                    n = _note(out, n, now_s, at_s - delay_s + JUST_AFTER_S)
    if merging:
        contract = contexts[view.context].contract
        for k in range(n):
            n = _note(out, n, now_s, out[k] - contract.latency_s)
            n = _note(out, n, now_s, out[k] - contract.client_timeout_s)
            n = _note(out, n, now_s, out[k] - contract.operator_delay_s)
    return n


@dataclass(eq=False)
class Solution:
    """The optimum of a plan and how it is played."""

    expansion: Expansion
    value: float = 0.0
    classes: dict[int, float] = field(default_factory=dict)  # by the context that views name
    chances: dict[int, float] = field(default_factory=dict)
    best: dict[tuple[bytes, bool], tuple[Choice, float]] = field(default_factory=dict)

    @property
    def n_nodes(self) -> int:
        """How many information states were solved."""
        return len(self.best)

    def choice(self, belief: Belief, waited: bool) -> tuple[Choice, float]:
        """Best choice at a node that the optimal policy reaches, and its value (conditional)."""
        return self.best[belief.key(), waited]

    def walk(self) -> Iterator[tuple[int, Belief, Choice, float]]:
        """(depth, belief, choice, value) of every node that the optimal policy reaches."""

        def down(
            depth: int, belief: Belief, waited: bool
        ) -> Iterator[tuple[int, Belief, Choice, float]]:
            choice, value = self.choice(belief, waited)
            yield depth, belief, choice, value
            for after in self.expansion.step(belief, choice).after:
                yield from down(depth + 1, after, choice.kind == WAIT)

        for _, belief in self.expansion.roots():
            yield from down(0, belief, False)

    def views(self) -> dict[bytes, set[Choice]]:
        """The choices at every view that the optimal policy reaches.

        Two at one view mean that a client with a memory knows more than its last view tells.
        """
        found: dict[bytes, set[Choice]] = {}
        for _, belief, choice, _ in self.walk():
            found.setdefault(belief.view.tobytes(), set()).add(choice)
        return found

    def tree(self) -> str:
        """The optimal policy, a line for each node: chance, time, what was seen, what is done."""
        return "\n".join(
            f"{'  ' * depth}{belief.chance:.4f} t={belief.view['clock_s'][0]:g} "
            f"[{seen_text(belief.view[0])}] {choice} -> {value:.5f}"
            for depth, belief, choice, value in self.walk()
        )


def seen_text(view: Record) -> str:
    """What tells a node from its siblings."""
    sent = [
        f"{Response(int(a['response'])).name.lower()}@{float(a['sent_s']):g}"
        for a in view["attempts"][: int(view["n_attempts"])]
    ]
    if view["read_at_s"] >= 0.0:
        sent.append(f"shown {int(view['shown']):b}@{float(view['read_at_s']):g}")
    authority = view["attempts"]["authority"][: int(view["n_attempts"])]
    if authority.any():
        sent.append("/".join(Authority(int(a)).name.lower() for a in authority))
    if view["n_escalations"]:
        sent.append(f"operator {OperatorStatus(int(view['operator_status'])).name.lower()}")
    return ", ".join(sent)


class Search:
    """Values of beliefs by memoised recursion."""

    def __init__(self, plan: Plan, instants_s: Sequence[float], merging: bool) -> None:
        self.solution = Solution(Expansion(plan))
        self.expansion = self.solution.expansion
        self.extra_s = np.array(instants_s, dtype=np.float64)
        self.merging = merging
        delays_s = self.expansion.further.rows["delay_s"]
        self.retry_delays_s = np.unique(np.append(delays_s[np.isfinite(delays_s)], 0.0))

    def value(self, belief: Belief, waited: bool) -> float:
        """Best expected reward from ``belief`` on, given that it is reached."""
        key = belief.key(), waited
        if key not in self.solution.best:
            self.solution.best[key] = self._solve(belief, waited)
        return self.solution.best[key][1]

    def _solve(self, belief: Belief, waited: bool) -> tuple[Choice, float]:
        best, best_value = Choice(FINISH), -np.inf
        for choice in self._choices(belief, waited):
            step = self.expansion.step(belief, choice)
            if step.bound <= best_value * belief.chance:
                continue
            if choice.kind in (READ, ESCALATE) and _taught_nothing(belief, step):
                continue
            value = step.reward
            for after in step.after:
                value += after.chance * self.value(after, choice.kind == WAIT)
            value /= belief.chance
            if value > best_value + SAME:
                best, best_value = choice, value
        return best, best_value

    def _choices(self, belief: Belief, waited: bool) -> Iterator[Choice]:
        """Every choice but those that another one certainly equals or beats."""
        view = belief.view[0]
        contract = self.expansion.plan.contexts[int(view["context"])]["contract"]
        yield Choice(FINISH)
        yield Choice(FINISH_UNCERTAIN)
        if view["n_attempts"] < contract["max_attempts"]:  # else a client error
            yield Choice(RETRY)
            if contract["accepts_key"]:
                yield Choice(KEYED_RETRY)
        if view["n_steps"] + 1 >= contract["max_steps"]:
            return  # whatever else is done now ends the episode as FINISH_UNCERTAIN does, for more
        if contract["readback"] >= rules.STRONG:  # else an error that teaches nothing
            yield Choice(READ)
        yield Choice(ESCALATE)
        if waited:
            return  # two waits in a row are one
        now_s = float(view["clock_s"])
        for at_s in self._instants(belief):
            if now_s < at_s <= now_s + MAX_WAIT_S:
                yield Choice(WAIT, float(at_s) - now_s)

    def _instants(self, belief: Belief) -> Array:
        """When a wait from ``belief`` may end, ascending [s]."""
        out = np.zeros(N_INSTANTS)
        contexts = self.expansion.plan.contexts
        n = write_instants(
            contexts, belief.view, belief.truths, self.retry_delays_s, self.merging, out
        )
        assert n < N_INSTANTS, "too many hypotheses for the room"
        return np.union1d(out[:n], self.extra_s)


def _taught_nothing(belief: Belief, step: Step) -> bool:
    """Whether a report told all hypotheses the same, and what the client had been told before.

    Then a wait of the same length leaves the client as wise and as able, for no price.
    """
    return len(step.after) == 1 and int(step.after[0].view["shown"][0]) == int(
        belief.view["shown"][0]
    )


def solve(plan: Plan, *, instants_s: Sequence[float] = (), merging: bool = False) -> Solution:
    """The best policy that sees only views, and remembers them.

    ``instants_s`` are more times [s] to which it may wait; ``merging`` as in `write_instants`.
    """
    search = Search(plan, instants_s, merging)
    solution = search.solution
    for context, belief in search.expansion.roots():
        earned = belief.chance * search.value(belief, False)
        solution.classes[context] = solution.classes.get(context, 0.0) + earned
        solution.chances[context] = solution.chances.get(context, 0.0) + belief.chance
    solution.value = sum(solution.classes.values())
    for context, chance in solution.chances.items():
        solution.classes[context] /= chance
    return solution


def exact_value(plan: Plan, policy: Policy) -> float:
    """Expected total reward of a policy, over every fate that its actions can meet."""
    expansion = Expansion(plan)
    total = 0.0
    level = [belief for _, belief in expansion.roots()]
    while level:
        views = np.concatenate([belief.view for belief in level])
        actions = policy.act(ViewBatch(views, plan.contracts))
        rows = []
        for k, belief in enumerate(level):
            choice = Choice(int(actions.kinds[k]), float(actions.seconds[k]))
            step = expansion.step(belief, choice)
            total += step.reward
            rows += step.after
        level = []
        if rows:
            level = beliefs(
                np.concatenate([np.repeat(row.view, len(row.truths)) for row in rows]),
                np.concatenate([row.truths for row in rows]),
                np.concatenate([row.weights for row in rows]),
            )
    return total


class Lookup(Policy):
    """Plays a solution by its views."""

    def __init__(self, solution: Solution) -> None:
        self.choices = solution.views()

    def act(self, batch: ViewBatch) -> ActionBatch:
        actions = ActionBatch.empty(len(batch))
        for k in range(len(batch)):
            (choice,) = self.choices[batch.views[k].tobytes()]
            actions.kinds[k], actions.seconds[k] = choice.kind, choice.seconds
        return actions
