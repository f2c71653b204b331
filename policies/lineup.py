"""The scripted line-up behind one compiled dispatcher, so that its compile time is paid once.

A line-up policy is a code and a parameter.  `decide` serves the honest ones, from the view alone;
`decide_privileged` serves the oracles and is the only one that is handed the truth.
"""

from __future__ import annotations

from exactlyonce_env.compiled import Array, Record, compiled
from policies.base import ActionBatch, Policy, PrivilegedPolicy, TruthBatch, ViewBatch
from policies.guard import guard
from policies.moves import Move
from policies.oracles import outcome_oracle, state_oracle
from policies.scripted import (
    blind_retry,
    escalate,
    never_retry,
    only_rules,
    same_key,
    sdk_retry,
    verify_retry,
)
from policies.waiting import poll, wait

NEVER_RETRY = 0
BLIND_RETRY = 1
SDK_RETRY = 2
RULES = 3
VERIFY_RETRY = 4
WAIT_DELTA = 5
POLL_DELTA = 6
SAME_KEY = 7
GUARD = 8
ESCALATE = 9
FIRST_ORACLE = 10
STATE_ORACLE = FIRST_ORACLE
OUTCOME_ORACLE = 11

CODES: dict[str, int] = {
    "never-retry": NEVER_RETRY,
    "blind-retry": BLIND_RETRY,
    "sdk-retry": SDK_RETRY,
    "rules": RULES,
    "verify-retry": VERIFY_RETRY,
    "wait": WAIT_DELTA,
    "poll": POLL_DELTA,
    "same-key": SAME_KEY,
    "guard": GUARD,
    "escalate": ESCALATE,
}
"""Codes of the honest policies by name."""

ORACLE_CODES: dict[str, int] = {
    "state-oracle": STATE_ORACLE,
    "outcome-oracle": OUTCOME_ORACLE,
}
"""Codes of the policies that see hidden state."""


@compiled
def decide(code: int, parameter: float, seen: Record, contract: Record) -> Move:
    """The move of the honest line-up policy ``code``, from the view and the visible contract."""
    if code == NEVER_RETRY:
        return never_retry(seen, contract, parameter)
    if code == BLIND_RETRY:
        return blind_retry(seen, contract, parameter)
    if code == SDK_RETRY:
        return sdk_retry(seen, contract, parameter)
    if code == RULES:
        return only_rules(seen, contract, parameter)
    if code == VERIFY_RETRY:
        return verify_retry(seen, contract, parameter)
    if code == WAIT_DELTA:
        return wait(seen, contract, parameter)
    if code == POLL_DELTA:
        return poll(seen, contract, parameter)
    if code == SAME_KEY:
        return same_key(seen, contract, parameter)
    if code == GUARD:
        return guard(seen, contract, parameter)
    if code == ESCALATE:
        return escalate(seen, contract, parameter)
    raise ValueError("unknown line-up code")


@compiled
def decide_privileged(
    code: int, parameter: float, seen: Record, contract: Record, truth: Record, law: Record
) -> Move:
    """The move of the oracle ``code``, which sees truth and hidden law as well.  Privileged."""
    if code == STATE_ORACLE:
        return state_oracle(seen, contract, truth, law, parameter)
    if code == OUTCOME_ORACLE:
        return outcome_oracle(seen, contract, truth, law, parameter)
    raise ValueError("unknown oracle code")


@compiled
def decide_batch(
    code: int, parameter: float, views: Array, contracts: Array, kinds: Array, seconds: Array
) -> None:
    """Write the moves of an honest policy into ``kinds`` (n,) int8 and ``seconds`` (n,) [s]."""
    for i in range(len(views)):
        kinds[i], seconds[i] = decide(code, parameter, views[i], contracts[views[i].context])


@compiled
def decide_privileged_batch(
    code: int,
    parameter: float,
    views: Array,
    contexts: Array,
    truths: Array,
    kinds: Array,
    seconds: Array,
) -> None:
    """Write an oracle's moves into ``kinds`` (n,) int8 and ``seconds`` (n,) [s].  Privileged."""
    for i in range(len(views)):
        context = contexts[truths[i].context]
        kinds[i], seconds[i] = decide_privileged(
            code, parameter, views[i], context.contract, truths[i], context.law
        )


class LineupPolicy(Policy):
    """An honest policy of the line-up.

    Attributes
    ----------
    code
        Its number for the compiled dispatcher.
    parameter
        Its argument, Δ [s] for ``wait`` and ``poll``; 0 for the others.
    """

    def __init__(self, spec: str, code: int, parameter: float = 0.0) -> None:
        self._spec = spec
        self.code = code
        self.parameter = parameter

    @property
    def spec(self) -> str:
        """Canonical name, for instance ``wait:300``."""
        return self._spec

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._spec!r})"

    def act(self, batch: ViewBatch) -> ActionBatch:
        """One decision for each view of the batch."""
        actions = ActionBatch.empty(len(batch))
        decide_batch(
            self.code,
            self.parameter,
            batch.views,
            batch.contracts,
            actions.kinds,
            actions.seconds,
        )
        return actions


class Oracle(PrivilegedPolicy):
    """A line-up policy that sees hidden state.

    Attributes
    ----------
    code
        Its number for the compiled dispatcher.
    parameter
        Unused: 0.
    """

    def __init__(self, spec: str, code: int) -> None:
        self._spec = spec
        self.code = code
        self.parameter = 0.0

    @property
    def spec(self) -> str:
        """Canonical name, for instance ``outcome-oracle``."""
        return self._spec

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._spec!r})"

    def act(self, batch: ViewBatch, truths: TruthBatch) -> ActionBatch:
        """One decision for each view of the batch."""
        actions = ActionBatch.empty(len(batch))
        decide_privileged_batch(
            self.code,
            self.parameter,
            batch.views,
            truths.contexts,
            truths.truths,
            actions.kinds,
            actions.seconds,
        )
        return actions


def lineup_policy(name: str, argument: float | None) -> LineupPolicy:
    """The honest line-up policy ``name`` with its argument [s]."""
    if argument is None:
        return LineupPolicy(name, CODES[name])
    shown = int(argument) if argument == int(argument) else argument
    return LineupPolicy(f"{name}:{shown!r}", CODES[name], argument)


def oracle(name: str, argument: None) -> Oracle:
    """The line-up oracle ``name``."""
    return Oracle(name, ORACLE_CODES[name])
