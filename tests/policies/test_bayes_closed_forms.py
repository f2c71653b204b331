"""`bayes-optimal` against the closed forms of optimal stopping.

The world in which they hold: a timeout hides an absent original or a late one (share q), the
read-back is strong, calls take no time, reads and re-issues are free, a re-issue always works and
giving up never pays. A policy is then a moment Δ of the re-issue, and loses

    J(Δ) = c_w [q ∫₀^Δ S + (1 - q) Δ] + c_d q S(Δ),    c_d = success + duplicate + overclaim,

against a success that costs nothing, if it could look at every instant. The call budget allows a
few hundred looks: `finite_loss` is what a fixed schedule of so many loses, and the optimum lies
between the two. The client gives up on the original after 1 ms, so t = 0 is the first decision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from scipy.integrate import cumulative_trapezoid

from exactlyonce_env import kernel
from exactlyonce_env.delays import Law, delays_from_spec
from exactlyonce_env.plan import Plan
from exactlyonce_env.presets import load_plan
from exactlyonce_env.records import N_TERMS, TRUTH, VIEW
from exactlyonce_env.vocabulary import Action, Mode
from policies.base import ViewBatch
from policies.bayes import BayesOptimal, bayes_value

MAX_STEPS = 640
"""Two calls a look, and two to re-issue and to finish."""
GRID_ERROR = 1e-3
"""Tolerance in value [reward]."""
FREE_READS = 3e-3
"""What it costs that reads for nothing are planned on a grid of a few hundred moments."""
PLAYED_ERROR = 2e-3
"""Tolerance in the loss of the Δ that is played: the grid's, and that of looking now and then."""
RATE_ERROR = 0.25
"""The policy may be late or early where gain and price of waiting differ by less than this share;
that costs less than `GRID_ERROR`, as J is flat there."""
OVERCLAIM = 0.2
HOUR_S = 3600.0


@dataclass(frozen=True)
class Stopping:
    """One problem of optimal stopping."""

    law: str
    q: float
    time_per_hour: float
    duplicate: float = 1.0

    @property
    def delays(self) -> Law:
        return delays_from_spec(self.law)

    @property
    def c_w(self) -> float:
        """Price of waiting [reward/s]."""
        return self.time_per_hour / HOUR_S

    @property
    def c_d(self) -> float:
        """Whole loss of a duplicate against a success."""
        return 1.0 + self.duplicate + OVERCLAIM

    @cache  # noqa: B019 - a handful of problems that live as long as the module
    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Δ [s] and J(Δ), with every instant at which S jumps or ends."""
        low_s, high_s = self.delays.support_s
        ends = [at_s for at_s in (low_s, high_s) if math.isfinite(at_s)]
        just_before = [np.nextafter(at_s, 0.0) for at_s in ends]
        delta_s = np.unique(
            np.concatenate([[0.0], np.geomspace(1e-3, 1e5, 400_001), ends, just_before])
        )
        late = self.delays.survival(delta_s)
        waited = self.q * cumulative_trapezoid(late, delta_s, initial=0.0)
        loss = self.c_w * (waited + (1.0 - self.q) * delta_s) + self.c_d * self.q * late
        return delta_s, loss

    @property
    def best(self) -> tuple[float, float]:
        """(Δ*, J(Δ*))."""
        delta_s, loss = self.curve()
        k = int(loss.argmin())
        return float(delta_s[k]), float(loss[k])

    def loss(self, delta_s: float) -> float:
        """J(Δ)."""
        return float(np.interp(delta_s, *self.curve()))

    @property
    def finite_loss(self) -> float:
        """Loss of looking at Δ* (k/K)², k = 1 .. K, and then re-issuing."""
        best_s, _ = self.best
        looks = (MAX_STEPS - 2) // 2
        seen_s = best_s * (np.arange(1, looks + 1) / looks) ** 2
        lands = np.diff(self.delays.cdf(seen_s), prepend=0.0)
        late = float(self.delays.survival(best_s))
        waited_s = self.q * (lands @ seen_s + late * best_s) + (1.0 - self.q) * best_s
        return float(self.c_w * waited_s + self.c_d * self.q * late)

    def gain(self, t_s: float) -> float:
        """c_d π(t) h(t): what a second of waiting saves [reward/s]."""
        late = self.q * float(self.delays.survival(t_s))
        return self.c_d * late / (late + 1.0 - self.q) * float(self.delays.hazard(t_s))

    @cache  # noqa: B019
    def plan(self) -> Plan:
        """The world of this problem."""
        return load_plan(
            {
                "name": "stopping",
                "contract": {
                    "latency_s": 0,
                    "client_timeout_s": 0.001,
                    "max_steps": MAX_STEPS,
                    "max_attempts": 2,
                    "operator_answer_rate": 0,
                },
                "costs": {
                    "duplicate": self.duplicate,
                    "overclaim": OVERCLAIM,
                    "omission": 1e4,
                    "unresolved": 1e3,
                    "time_per_hour": self.time_per_hour,
                    "read": 0,
                    "reissue": 0,
                    "escalation": 10,
                },
                "faults": {
                    "original": {"timeout_pre": 1.0 - self.q, "timeout_late_tail": self.q},
                    "late_tail": self.law,
                },
            }
        )


EXPONENTIAL = "expon:scale=300"
LOMAX = "lomax:c=0.8,scale=120"
LOG_UNIFORM = "loguniform:a=40,b=7200"
FIXED = "fixed:90"

FALLING_HAZARD = [
    Stopping(EXPONENTIAL, 0.5, 0.12),
    Stopping(EXPONENTIAL, 0.5, 1.0),
    Stopping(EXPONENTIAL, 0.5, 1.0, duplicate=5.0),
    Stopping(EXPONENTIAL, 0.9, 4.0),
    Stopping(EXPONENTIAL, 0.5, 40.0),  # at once
    Stopping(LOMAX, 0.5, 0.12),
    Stopping(LOMAX, 0.5, 1.0),
    Stopping(LOMAX, 0.9, 1.0),
    Stopping(LOMAX, 0.99, 4.0),
    Stopping(LOMAX, 0.5, 10.0),
    Stopping(LOMAX, 0.5, 100.0),  # at once
]
OTHERS = [
    Stopping(LOG_UNIFORM, 0.5, 0.12),  # to the end
    Stopping(LOG_UNIFORM, 0.9, 0.5),  # to the end
    Stopping(LOG_UNIFORM, 0.5, 1.0),  # while the hazard falls
    Stopping(LOG_UNIFORM, 0.5, 4.0),
    Stopping(LOG_UNIFORM, 0.5, 20.0),  # at once
    Stopping(FIXED, 0.5, 1.0),  # to the one instant
    Stopping(FIXED, 0.5, 100.0),  # at once
]
ALL = FALLING_HAZARD + OTHERS


def named(problem: Stopping) -> str:
    return f"{problem.law}-q{problem.q:g}-t{problem.time_per_hour:g}-d{problem.duplicate:g}"


@cache
@cache
def path(problem: Stopping) -> list[tuple[float, Action]]:
    """(clock [s], action) of the policy in a world in which the original is absent."""
    plan = problem.plan()
    policy = BayesOptimal(plan)
    modes = plan.worlds(0, range(2000))["fates"]["mode"][:, 0]
    world = int(np.flatnonzero(modes == Mode.TIMEOUT_PRE)[0])
    seen, truth, terms = np.zeros(1, VIEW), np.zeros(1, TRUTH), np.zeros(N_TERMS)
    kernel.begin(
        plan.contexts, plan.context_cdf, plan.table, np.uint64(0), world, seen[0], truth[0]
    )
    moves = []
    while seen[0].ending == 0:
        actions = policy.act(ViewBatch(seen.copy(), plan.contracts))
        kind, seconds = int(actions.kinds[0]), float(actions.seconds[0])
        moves.append((float(seen[0].clock_s), Action(kind)))
        kernel.act(plan.contexts, plan.table, seen[0], truth[0], kind, seconds, terms)
    return moves


def reissued_at_s(problem: Stopping) -> float:
    return next(at_s for at_s, action in path(problem) if action == Action.RETRY)


@pytest.mark.parametrize("problem", [p for p in FALLING_HAZARD if p.law == EXPONENTIAL], ids=named)
def test_exponential_delta(problem):
    """The curve agrees with Δ* = ln[q (c_d λ - c_w) / ((1 - q) c_w)] / λ, floored at 0."""
    rate, q = 1.0 / 300.0, problem.q
    odds = q * (problem.c_d * rate - problem.c_w) / ((1.0 - q) * problem.c_w)
    delta_s = max(0.0, math.log(odds) / rate) if odds > 0.0 else 0.0
    assert problem.best[0] == pytest.approx(delta_s, rel=1e-3)


@pytest.mark.parametrize("time_per_hour", [1.0, 10.0, 40.0, 100.0])
def test_lomax_delta(time_per_hour):
    """With q = 1 the curve agrees with Δ* = max(0, α c_d / c_w - s)."""
    problem = Stopping(LOMAX, 1.0, time_per_hour)
    delta_s = max(0.0, 0.8 * problem.c_d / problem.c_w - 120.0)
    assert problem.best[0] == pytest.approx(delta_s, rel=1e-3)


def test_log_uniform_waits_to_the_end_or_stops_early():
    """The hazard falls until b/e and rises from there, so no stop lies between."""
    ends = [problem.best[0] for problem in OTHERS if problem.law == LOG_UNIFORM]
    assert ends[:2] == [7200.0, 7200.0]
    assert 40.0 < ends[3] < ends[2] < 7200.0 / math.e
    assert ends[4] == 0.0


@pytest.mark.parametrize("problem", ALL, ids=named)
def test_value(problem):
    """Between the loss of a schedule that the budget allows and that of looking all the time."""
    value = bayes_value(problem.plan()).value
    assert value <= 1.0 - problem.best[1] + GRID_ERROR
    assert value >= 1.0 - problem.finite_loss - GRID_ERROR - FREE_READS
    assert problem.finite_loss - problem.best[1] < 2e-3  # the two ends pin the value down


@pytest.mark.parametrize("problem", ALL, ids=named)
def test_reissue_time(problem):
    """The Δ that is played loses hardly more than Δ*, and lies beside it wherever J has a dip."""
    delta_s = reissued_at_s(problem)
    assert problem.loss(delta_s) <= problem.best[1] + PLAYED_ERROR
    good_s, loss = problem.curve()
    good_s = good_s[loss <= problem.best[1] + PLAYED_ERROR]
    assert good_s[0] - 1.0 <= delta_s <= good_s[-1] + 1.0


@pytest.mark.parametrize("problem", FALLING_HAZARD, ids=named)
def test_waits_while_waiting_pays(problem):
    """Where π h falls: no re-issue while c_d π h > c_w, and no wait from where it is less."""
    for at_s, action in path(problem):
        if action == Action.RETRY:
            assert problem.gain(at_s) <= problem.c_w * (1.0 + RATE_ERROR)
        elif action == Action.WAIT:
            assert problem.gain(at_s) >= problem.c_w * (1.0 - RATE_ERROR)


@pytest.mark.parametrize("problem", ALL, ids=named)
def test_never_gives_up_nor_asks(problem):
    actions = [action for _, action in path(problem)]
    assert actions[-2:] == [Action.RETRY, Action.FINISH]
    assert set(actions[:-2]) <= {Action.WAIT, Action.READ}
