"""A contract test for presets and policies of your own: does it smoke?

`check_preset` runs random actions (or a policy) in drawn worlds and checks what every preset must
hold.  It raises on the first violation with the command that replays it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from exactlyonce_env import kernel, permission, rules
from exactlyonce_env.actions import MAX_WAIT_S, N_ACTIONS, write_mask
from exactlyonce_env.compiled import Record
from exactlyonce_env.contradiction import ContradictionError
from exactlyonce_env.episode import parse_action, replay
from exactlyonce_env.errors import UserError
from exactlyonce_env.ledger import fortunes, ledger, measures, settled
from exactlyonce_env.observation import N_FEATURES, observation_bounds, write_observation
from exactlyonce_env.plan import Plan, checked_seed
from exactlyonce_env.presets import DelaysLike, PresetLike, load_plan
from exactlyonce_env.records import N_TERMS, TRUTH, VIEW
from exactlyonce_env.view import View
from exactlyonce_env.vocabulary import Mode

Policy = Callable[[View], str]
"""A policy under test: a view in, an action word such as ``wait:60`` out."""

WORLDS_EACH = 16  # worlds that share one random action sequence, so that histories can coincide


class PresetCheckError(AssertionError):
    """A preset or policy breaks what all must hold; the message ends with a replaying command."""


@dataclass(frozen=True)
class CheckSummary:
    """What `check_preset` looked at.

    Attributes
    ----------
    preset
        The preset's name.
    worlds, steps, reissues
        How many worlds, actions and re-issues were run.
    permitted
        How many of the re-issues were permitted.
    histories, shared
        Distinct visible histories, and how many of them several worlds shared.
    """

    preset: str
    worlds: int
    steps: int
    reissues: int
    permitted: int
    histories: int
    shared: int


def check_preset(
    source: PresetLike,
    *,
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    delays: DelaysLike | None = None,
    policy: Policy | None = None,
    worlds: int = 128,
    seed: int = 0,
    max_actions: int = 10,
) -> CheckSummary:
    """Run worlds of a preset and check what must hold in each.

    Checked are: worlds do not depend on the batch they are drawn in; a reward is the sum of its
    terms; worlds with the same visible history have the same view, observation, mask and reward (no
    leak); no view contradicts its contract; a permitted, unprotected re-issue meets no effect, now
    or later; after settlement the effects are the executions that no key suppressed, and the
    measures count them; a replay gives the same again.  With a policy also: it answers equal views
    with equal, valid actions.

    Parameters
    ----------
    source, config, delays
        The preset, as `load_plan` takes it.
    policy
        Called with a `View`, returns an action word; random actions otherwise.
    worlds
        Number of worlds, from id 0 on.
    seed
        Key of the worlds and of the random actions.
    max_actions
        Random actions before the episode is finished.

    Raises
    ------
    PresetCheckError
        On the first violation.
    UserError
        For a bad preset, seed or number.

    Examples
    --------
    >>> check_preset("late-fixed", worlds=8).worlds
    8
    """
    plan = load_plan(source, config=config, delays=delays)
    for name, number in (("worlds", worlds), ("max_actions", max_actions)):
        if type(number) is not int or number < 1:
            raise UserError(f"check_preset: {name} must be an integer >= 1, not {number!r}")
    check = _Check(plan, checked_seed(seed), policy, _command(source, config, delays))
    check.drawing(worlds)
    generator = np.random.Generator(np.random.PCG64(seed))
    actions: list[str] = []
    for world in range(worlds):
        if world % WORLDS_EACH == 0:
            actions = _random_actions(generator, max_actions)
        check.episode(world, actions)
    return check.summary(worlds)


def _command(source: PresetLike, config: object, delays: object) -> str:
    """The replaying command up to the preset; FILE stands for what was no file."""
    if not isinstance(source, str):
        # A whole preset takes the place of every field of the named one.
        source, config = "late-tail", "FILE"
    options = ""
    for name, value in (("config", config), ("delays", delays)):
        if value is not None:
            options += f" --{name} {value if isinstance(value, str | os.PathLike) else 'FILE'}"
    return f"exactlyonce replay {source}{options}"


def _random_actions(generator: np.random.Generator, count: int) -> list[str]:
    words = ("read", "retry", "keyed_retry", "escalate", "wait")
    actions = []
    for word in generator.choice(words, size=count, p=(0.3, 0.2, 0.15, 0.05, 0.3)):
        seconds = min(round(float(np.exp(generator.uniform(0.0, math.log(1e5)))), 3), MAX_WAIT_S)
        actions.append(f"wait:{seconds}" if word == "wait" else str(word))
    return [*actions, str(generator.choice(("finish", "finish_uncertain")))]


class _Check:
    """One run of `check_preset`."""

    def __init__(self, plan: Plan, seed: int, policy: Policy | None, replaying: str) -> None:
        self.plan = plan
        self.seed = seed
        self.policy = policy
        self.replaying = replaying
        self.seen = np.zeros(1, dtype=VIEW)
        self.truth = np.zeros(1, dtype=TRUTH)
        self.terms = np.zeros(N_TERMS)
        self.low, self.high = observation_bounds()
        self.world = 0
        self.taken: list[str] = []
        self.steps = self.reissues = self.permitted = 0
        self.histories: dict[tuple[object, ...], tuple[bytes, int, str]] = {}
        self.shared: set[tuple[object, ...]] = set()
        self.checked: set[bytes] = set()
        self.answers: dict[bytes, str] = {}

    def summary(self, worlds: int) -> CheckSummary:
        return CheckSummary(
            self.plan.preset.name,
            worlds,
            self.steps,
            self.reissues,
            self.permitted,
            len(self.histories),
            len(self.shared),
        )

    def command(self, world: int | None = None, actions: str | None = None) -> str:
        world = self.world if world is None else world
        actions = ",".join(self.taken) if actions is None else actions
        return f"{self.replaying} --seed {self.seed} --world {world} --actions '{actions}'"

    def fail(self, what: str, *others: str) -> None:
        commands = "\n".join(f"replay with: {c}" for c in (self.command(), *others))
        raise PresetCheckError(f"preset {self.plan.preset.name}: {what}\n{commands}")

    def require(self, holds: object, what: str) -> None:
        if not holds:
            self.fail(what)

    # --- drawing ----------------------------------------------------------------------------------

    def drawing(self, worlds: int) -> None:
        """Worlds are the same alone, in a batch and in another order."""
        ids = range(worlds)
        batch = self.plan.worlds(self.seed, ids)
        turned = self.plan.worlds(self.seed, reversed(ids))[::-1]
        for k in ids:
            self.world = k
            alone = self.plan.worlds(self.seed, [k])[0]
            same = batch[k].tobytes() == alone.tobytes() == turned[k].tobytes()
            self.require(same, "a world depends on the batch that it is drawn in")
        self.drawn = batch

    # --- stepping ---------------------------------------------------------------------------------

    def episode(self, world: int, actions: list[str]) -> None:
        """Run one world to its end, checking each step and the settlement."""
        plan, seen, truth = self.plan, self.seen[0], self.truth[0]
        self.world, self.taken = world, []
        key = np.uint64(self.seed)
        kernel.begin(plan.contexts, plan.context_cdf, plan.table, key, world, seen, truth)
        self.context = plan.contexts[truth.context]
        self.contract = self.context.contract
        history: tuple[object, ...] = (self.contract.tobytes(),)
        earned = 0.0
        while True:
            history = (*history, self._disclosed())
            self._look(history, earned)
            if seen.ending:
                break
            word = actions[len(self.taken)] if self.policy is None else self._asked()
            earned += self._act(word)
            history = (*history, word)
        self._settlement(earned)

    def _act(self, word: str) -> float:
        seen, truth = self.seen[0], self.truth[0]
        kind, seconds = parse_action(word)
        clock_s, reissues = float(seen.clock_s), int(seen.n_reissues)
        false_ones = int(truth.false_permissions)
        self.taken.append(word)
        reward = kernel.act(
            self.plan.contexts, self.plan.table, seen, truth, int(kind), seconds, self.terms
        )
        self.steps += 1
        if seen.n_reissues > reissues:
            self.reissues += 1
            self.permitted += int(truth.false_permissions == false_ones)
        total = 0.0
        for term in self.terms:
            total += float(term)
        self.require(
            math.isfinite(reward) and reward == total, "the terms do not sum to the reward"
        )
        self.require(seen.clock_s >= clock_s, "the clock went back")
        return float(reward)

    def _asked(self) -> str:
        """The policy's action, checked."""
        view = View.of(self.seen[0], self.contract)
        assert self.policy is not None
        word = self.policy(view)
        try:
            parse_action(word)
        except ValueError as error:
            self.fail(f"the policy answered {word!r}: {error}")
        known = self.answers.setdefault(view.tobytes(), word)
        self.require(
            known == word, f"the policy answered one view with {known!r} and with {word!r}"
        )
        return word

    # --- what the client sees ---------------------------------------------------------------------

    def _disclosed(self) -> tuple[object, ...]:
        """What the last answer told: new facts only, none of the view's own bookkeeping."""
        seen = self.seen[0]
        attempts = tuple(
            (int(a.response), float(a.answered_s), int(a.authority))
            for a in seen.attempts[: seen.n_attempts]
        )
        report = (float(seen.read_at_s), int(seen.shown), int(seen.read_error))
        operator = (int(seen.operator_status), float(seen.operator_at_s))
        return attempts, report, operator, float(seen.retry_at_s), int(seen.ending)

    def _look(self, history: tuple[object, ...], earned: float) -> None:
        """Check the view, its numbers and its verdicts at this moment."""
        seen = self.seen[0]
        view = View.of(seen, self.contract).tobytes()
        if view not in self.checked:
            self.checked.add(view)
            try:
                View.of(seen, self.contract).check()
            except ContradictionError as error:
                self.fail(str(error))
        observation = np.zeros(N_FEATURES, dtype=np.float32)
        write_observation(seen, self.plan.contexts, self.plan.static, observation)
        mask = np.zeros(N_ACTIONS, dtype=np.int8)
        write_mask(seen, self.contract, mask)
        inside = np.all((observation >= self.low) & (observation <= self.high))
        self.require(inside, "the observation leaves its bounds")
        self._permissions()
        shown = b"".join((view, observation.tobytes(), mask.tobytes()))
        # At the end the reward tells the outcome, as it must.
        shown += b"" if seen.ending else np.float64(earned).tobytes()
        known, world, actions = self.histories.setdefault(
            history, (shown, self.world, ",".join(self.taken))
        )
        if world != self.world:
            self.shared.add(history)
        if known != shown:
            self.fail(
                f"worlds {world} and {self.world} share a visible history, but not the view",
                self.command(world, actions),
            )

    def _permissions(self) -> None:
        """A permitted, unprotected re-issue meets no effect of the items re-sent, now or later."""
        seen, contract = self.seen[0], self.contract
        if seen.n_attempts == 0 or contract.idempotent:
            return
        for key in {permission.NO_KEY, int(permission.candidate_key(contract))}:
            if not permission.permitted(seen, contract, key):
                continue
            if permission.protected(seen, contract, key):
                continue
            payload = permission.next_payload(seen, contract, key)
            for j in range(int(seen.n_attempts)):
                happened = self.truth[0].attempts[j]
                coming = happened.in_transit or happened.copy_due
                future = happened.wanted if coming else 0
                effects = (happened.effect | happened.copy_effect | future) & payload
                self.require(not effects, f"a re-issue is permitted, but attempt {j} has an effect")

    # --- what really happened ---------------------------------------------------------------------

    def _settlement(self, earned: float) -> None:
        """Effects are the executions that no key suppressed, and the measures count them."""
        seen, contract = self.seen[0], self.contract
        final = settled(self.context, seen, self.truth[0])
        for fortune in fortunes(self.context, seen, final):
            self._conserved(fortune.attempt, final)
        effects = ledger(self.context, seen, final)
        counts = [sum(e.item == item for e in effects) for item in range(int(contract.n_items))]
        outcome = measures(contract, seen, final)
        exact = all(count == 1 for count in counts)
        self.require(
            outcome["duplicates"] == sum(max(count - 1, 0) for count in counts)
            and outcome["omissions"] == counts.count(0)
            and outcome["exactly_once"] == exact
            and outcome["task_success"] == all(counts),
            "the measures do not count the effects of the ledger",
        )
        again = replay(self.plan, self.seed, self.world, self.taken)
        same = again.outcome == outcome and again.ledger == effects and again.reward == earned
        self.require(same, "a replay of the same actions ends otherwise")

    def _conserved(self, j: int, final: Record) -> None:
        """Attempt ``j`` executes what its fate says, less what a live record of its key covers."""
        sent, happened = self.seen[0].attempts[j], final.attempts[j]
        fate = self.drawn[self.world].fates[j]
        in_outage = happened.mode == Mode.OUTAGE
        self.require(in_outage or happened.mode == fate.mode, f"attempt {j} meets another fate")
        commits = rules.commits(happened.mode) and not in_outage
        wanted = rules.first_items(int(sent.payload), int(fate.n_commit)) if commits else 0
        self.require(
            happened.wanted == wanted, f"attempt {j} executes other items than its fate says"
        )
        suppressed = int(wanted & ~happened.effect)
        copies = math.isfinite(fate.copy_delay_s) and bool(happened.effect)
        stray = happened.copy_effect and not copies
        self.require(not stray, f"attempt {j} has a copy, but no execution that it could follow")
        if not sent.key or not self.contract.accepts_key:
            self.require(not suppressed, f"attempt {j} lost an effect without a key")
            return
        covered = self._covered(j, final)
        lost = suppressed & ~covered
        self.require(not lost, f"attempt {j} lost an effect that no record covers")
        doubled = happened.effect & covered
        self.require(not doubled, f"attempt {j} had an effect that its key forbids")

    def _covered(self, j: int, final: Record) -> int:
        """Items that the records of its key answer when attempt ``j`` arrives."""
        seen, contract = self.seen[0], self.contract
        at_s, covered = final.attempts[j].arrival_s, 0
        for i in range(int(seen.n_attempts)):
            if i == j or seen.attempts[i].key != seen.attempts[j].key:
                continue
            other = final.attempts[i]
            copied_s = other.execution_s + self.context.law.copy_delay_s
            for arrival_s, executed in (
                (other.arrival_s, int(other.effect)),
                (copied_s, int(other.copy_effect)),
            ):
                if rules.record_alive(arrival_s, contract.key_retention_s, at_s):
                    covered |= executed
                    if contract.in_flight_same_key and executed and other.execution_s > at_s:
                        return -1  # a conflict refuses the whole request
        return covered
