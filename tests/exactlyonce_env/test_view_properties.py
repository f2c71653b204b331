"""What holds for every view of every world: no contradiction, no false permission, no leak."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exactlyonce_env import kernel, permission
from exactlyonce_env.actions import N_ACTIONS, write_mask
from exactlyonce_env.contradiction import find_contradiction
from exactlyonce_env.observation import N_FEATURES, write_observation
from exactlyonce_env.plan import Plan
from exactlyonce_env.presets import load_plan
from exactlyonce_env.records import N_TERMS, TRUTH, VIEW
from exactlyonce_env.view import View
from exactlyonce_env.vocabulary import GROUPS, MODE_NAMES, Action, Mode, Response

Decision = tuple[Action, float]

SECONDS = st.sampled_from([0.0, 0.5, 5.0, 15.0, 60.0, 300.0]) | st.floats(0.0, 2000.0)
DECISIONS: st.SearchStrategy[list[Decision]] = st.lists(
    st.one_of(
        st.tuples(st.just(Action.WAIT), SECONDS),
        st.tuples(
            st.sampled_from(
                [Action.READ, Action.READ, Action.RETRY, Action.KEYED_RETRY, Action.ESCALATE]
            ),
            st.just(0.0),
        ),
    ),
    min_size=1,
    max_size=9,
)


@st.composite
def presets(draw: st.DrawFn) -> dict[str, Any]:
    """A preset of one context in which anything that is possible may happen."""
    readback = draw(st.sampled_from(["none", "strong", "eventual", "eventual", "authoritative"]))
    keyed = draw(st.booleans())
    n_items = draw(st.sampled_from([1, 1, 2, 3]))
    bound_s = draw(st.sampled_from([None, None, 20.0, 100.0, 500.0]))
    latest_s = bound_s or draw(st.sampled_from([60.0, 600.0]))
    modes = [mode for mode in MODE_NAMES if mode != "partial_batch" or n_items > 1]
    weights = dict.fromkeys(draw(st.sets(st.sampled_from(modes), min_size=1)), 1.0)
    contract = {
        "readback": readback,
        "lag_s": draw(st.sampled_from([0.0, 10.0, 70.5])) if readback == "eventual" else 0.0,
        "lag_documented": draw(st.booleans()),
        "accepts_key": keyed,
        "original_key": draw(st.sampled_from(["omitted", "sent"])) if keyed else "omitted",
        "candidate_key": draw(st.sampled_from(["same", "same", "different"])),
        "key_retention_s": draw(st.sampled_from([None, 86400.0, 33.0, 300.0])),
        "in_flight_same_key": draw(st.sampled_from(["coalesce", "conflict"])),
        "idempotent": draw(st.sampled_from([False] * 7 + [True])),
        "n_items": n_items,
        "in_flight_bound_s": bound_s,
        "client_timeout_s": draw(st.sampled_from([30.0, 8.0])),
        "latency_s": draw(st.sampled_from([1.0, 1.0, 0.0, 5.0])),
        "operator_delay_s": draw(st.sampled_from([900.0, 40.0, 0.0])),
        "operator_answer_rate": draw(st.sampled_from([1.0, 0.5, 0.0])),
        "operator_sees_in_flight": draw(st.booleans()),
        "max_attempts": draw(st.sampled_from([3, 6, 8])),
        "max_steps": draw(st.sampled_from([40, 5])),
        "dispatch_claims": draw(st.sampled_from([False] * 5 + [True])),
    }
    faults = {
        "original": weights,
        "retry": weights,
        "retry_fault_rate": draw(st.sampled_from([0.5, 1.0])),
        "late_fixed_s": latest_s * draw(st.sampled_from([0.3, 1.0])),
        "late_tail": {"family": "uniform", "loc": 0.0, "scale": latest_s},
        "queued_share": draw(st.sampled_from([0.0, 0.5, 1.0])),
        "copy_delay_s": draw(st.sampled_from([0.0, 2.0, 50.0])),
        "retry_after_s": draw(st.sampled_from([0.0, 5.0])),
        "outage_s": draw(st.sampled_from([0.0, 20.0, 120.0])),
    }
    start = draw(st.sampled_from(["fault", "send"]))
    return {"start": start, "contract": contract, "faults": faults}


class Walk:
    """One world of a plan, stepped decision by decision."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.seen = np.zeros(1, VIEW)
        self.truth = np.zeros(1, TRUTH)
        self.terms = np.zeros(N_TERMS)

    def begin(self, world: int, seed: int = 0) -> None:
        plan, key = self.plan, np.uint64(seed)
        kernel.begin(
            plan.contexts, plan.context_cdf, plan.table, key, world, self.seen[0], self.truth[0]
        )
        self.context = plan.contexts[self.truth[0].context]
        self.contract = self.context.contract

    def act(self, decision: Decision) -> float:
        action, seconds = decision
        return kernel.act(
            self.plan.contexts,
            self.plan.table,
            self.seen[0],
            self.truth[0],
            int(action),
            seconds,
            self.terms,
        )

    @property
    def ended(self) -> bool:
        return bool(self.seen[0].ending)

    @property
    def view(self) -> View:
        return View.of(self.seen[0], self.contract)

    def hidden_effects(self, payload: int) -> int:
        """Items of the payload with an effect, now or later, of an attempt made so far."""
        effects = 0
        for happened in self.truth[0].attempts[: self.seen[0].n_attempts]:
            effects |= happened.effect | happened.copy_effect
            effects |= happened.wanted if happened.in_transit or happened.copy_due else 0
        return int(effects & payload)

    def unprotected(self, key: int) -> int | None:
        """The payload of a re-issue that evidence alone permits, else None."""
        seen, contract = self.seen[0], self.contract
        if not permission.permitted(seen, contract, key) or contract.idempotent:
            return None
        if not seen.n_attempts or permission.protected(seen, contract, key):
            return None
        return int(permission.next_payload(seen, contract, key))


@settings(max_examples=60)
@given(presets(), DECISIONS, st.integers(0, 2**63 - 1))
def test_no_view_of_the_kernel_is_a_contradiction(
    preset: dict[str, Any], decisions: list[Decision], first: int
) -> None:
    walk = Walk(load_plan(preset))
    for world in range(first, min(first + 3, 2**63)):
        walk.begin(world)
        assert find_contradiction(walk.seen[0], walk.contract) is None
        for decision in decisions:
            if walk.ended:
                break
            walk.act(decision)
            assert find_contradiction(walk.seen[0], walk.contract) is None


@settings(max_examples=100)
@given(presets(), DECISIONS, st.integers(0, 2**32))
def test_a_permitted_unprotected_re_issue_meets_no_effect(
    preset: dict[str, Any], decisions: list[Decision], first: int
) -> None:
    walk = Walk(load_plan(preset))
    for world in range(first, first + 8):
        walk.begin(world)
        for decision in decisions:
            if walk.ended:
                break
            for key in (permission.NO_KEY, permission.candidate_key(walk.contract)):
                payload = walk.unprotected(key)
                if payload is not None:
                    assert not walk.hidden_effects(payload)
            walk.act(decision)


@settings(max_examples=60)
@given(presets(), DECISIONS)
def test_the_view_judges_as_the_kernel_does(
    preset: dict[str, Any], decisions: list[Decision]
) -> None:
    walk = Walk(load_plan(preset))
    walk.begin(0)
    for decision in decisions:
        if walk.ended:
            break
        action, _ = decision
        verdict = None
        if action in (Action.RETRY, Action.KEYED_RETRY):
            verdict = walk.view.permits(action)
        reissues, false_ones = walk.seen[0].n_reissues, walk.truth[0].false_permissions
        errors = walk.seen[0].n_client_errors
        walk.act(decision)
        if verdict is None:
            continue
        if walk.seen[0].n_client_errors > errors:
            assert verdict.rule == "not possible"
        elif walk.seen[0].n_reissues == reissues:
            assert verdict.rule == "first send"
        else:
            assert bool(verdict) == (walk.truth[0].false_permissions == false_ones)


SUPPORTS: dict[str, dict[str, Any]] = {
    "bounded": {"readback": "strong", "in_flight_bound_s": 200.0},
    "lagging": {"readback": "eventual", "lag_s": 40.0, "in_flight_bound_s": 200.0},
    "told": {"readback": "authoritative"},
    "batch": {"readback": "strong", "n_items": 3, "in_flight_bound_s": 200.0},
    "keyed": {"readback": "strong", "accepts_key": True, "in_flight_bound_s": 200.0},
}
LONG_ENOUGH: list[Decision] = [
    (Action.READ, 0.0),
    (Action.RETRY, 0.0),
    (Action.WAIT, 100.0),
    (Action.READ, 0.0),
    (Action.WAIT, 200.0),
    (Action.READ, 0.0),
]


@pytest.mark.parametrize("name", SUPPORTS)
def test_a_permission_holds_in_every_world_that_looks_the_same(name: str) -> None:
    # Worlds are grouped by the bytes of the view; one effect anywhere in a group forbids it all.
    contract = SUPPORTS[name]
    modes = {m: 1.0 for m in MODE_NAMES if m != "partial_batch" or "n_items" in contract}
    tail = {"family": "uniform", "loc": 0.0, "scale": 200.0}
    faults = {"original": modes, "retry": modes, "retry_fault_rate": 0.8, "late_tail": tail}
    walk = Walk(load_plan({"contract": contract, "faults": faults}))
    permitted: dict[bytes, bool] = {}
    harmful: dict[bytes, int] = defaultdict(int)
    size: dict[bytes, int] = defaultdict(int)
    for world in range(2500):
        walk.begin(world)
        for decision in [None, *LONG_ENOUGH]:
            if decision is not None:
                walk.act(decision)
            look = walk.view.tobytes()
            payload = permission.next_payload(walk.seen[0], walk.contract, permission.NO_KEY)
            permitted[look] = walk.unprotected(permission.NO_KEY) is not None
            size[look] += 1
            harmful[look] += bool(walk.hidden_effects(payload))
    shared = [look for look in permitted if permitted[look] and size[look] >= 20]
    assert len(shared) >= 3
    assert [look for look in permitted if permitted[look] and harmful[look]] == []
    # Nor does the rule refuse without a reason: some world of each large group has an effect.
    refused = [look for look in permitted if not permitted[look] and size[look] >= 300]
    assert refused
    assert [look for look in refused if not harmful[look]] == []


# --- no leak --------------------------------------------------------------------------------------

BLIND: st.SearchStrategy[list[Decision]] = st.lists(
    st.one_of(
        st.tuples(st.just(Action.WAIT), SECONDS),
        st.tuples(st.sampled_from([Action.RETRY, Action.ESCALATE]), st.just(0.0)),
    ),
    max_size=5,
)


def surface(walk: Walk, earned: float) -> bytes:
    """Everything that a client or a learner is shown of a running world, as bytes."""
    observation = np.zeros(N_FEATURES, np.float32)
    write_observation(walk.seen[0], walk.plan.contexts, walk.plan.static, observation)
    mask = np.zeros(N_ACTIONS, np.int8)
    write_mask(walk.seen[0], walk.contract, mask)
    view = walk.view
    numbers = (walk.seen[0].clock_s, earned)
    return b"\0".join(
        (
            view.tobytes(),
            view.text.encode(),
            repr(view.fields).encode(),
            observation.tobytes(),
            mask.tobytes(),
            repr(numbers).encode(),
        )
    )


@pytest.mark.parametrize("group", ["acknowledged", "timeout", "server_error"])
@settings(max_examples=15)
@given(decisions=BLIND)
def test_the_modes_of_a_group_look_the_same_until_somebody_looks(
    group: str, decisions: list[Decision]
) -> None:
    # Nothing that reports is called, and the operator never answers.
    modes = GROUPS[group]
    weights = {mode.name.lower(): 1.0 for mode in modes}
    contract = {"readback": "strong", "n_items": 3, "operator_answer_rate": 0.0}
    faults = {"original": weights, "retry": weights, "retry_fault_rate": 1.0, "late_fixed_s": 9.0}
    if group == "acknowledged":
        faults["retry"] = faults["original"] = {"ok": 1.0, "redelivery": 1.0}
        faults["retry_fault_rate"] = 0.5
    walk = Walk(load_plan({"contract": contract, "faults": faults}))
    looks: list[set[bytes]] = [set() for _ in range(len(decisions) + 1)]
    met = set()
    for world in range(24):
        walk.begin(world)
        earned = 0.0
        looks[0].add(surface(walk, earned))
        met.add(Mode(int(walk.truth[0].attempts[0].mode)))
        for k, decision in enumerate(decisions):
            earned += walk.act(decision)
            looks[k + 1].add(surface(walk, earned))
    assert met == set(modes)
    assert [len(look) for look in looks] == [1] * len(looks)


class Model:
    """The visible history of a keyless world, worked out from its fates without the kernel."""

    def __init__(self, plan: Plan, world: int) -> None:
        record = plan.worlds(0, [world])[0]
        self.context = plan.contexts[record.context]
        self.fates = record.fates
        self.answers = bool(record.operator_answers)
        self.full = (1 << int(self.context.contract.n_items)) - 1
        self.clock_s = self.outage_s = 0.0
        self.reported: int | None = None
        self.effects: list[tuple[float, int]] = []
        self.sent = 0
        self.history: list[object] = []

    def send(self) -> None:
        contract, law, fate = self.context.contract, self.context.law, self.fates[self.sent]
        missing = self.full if self.reported is None else self.full & ~self.reported
        payload = missing or self.full
        mode = Mode(int(fate.mode))
        if self.clock_s < self.outage_s:
            mode = Mode.OUTAGE
        elif mode == Mode.OUTAGE:
            self.outage_s = self.clock_s + law.outage_s
        group = next(name for name, modes in GROUPS.items() if mode in modes)
        waits_s = contract.client_timeout_s if group == "timeout" else contract.latency_s
        if mode not in (Mode.TIMEOUT_PRE, Mode.HTTP500_PRE) and group != "explicit":
            items = [j for j in range(30) if payload >> j & 1][: fate.n_commit]
            mask = sum(1 << j for j in items)
            at_s = self.clock_s + fate.commit_delay_s
            self.effects.append((at_s, mask))
            if math.isfinite(fate.copy_delay_s):
                self.effects.append((at_s + fate.copy_delay_s, mask))
        self.clock_s += waits_s
        self.sent += 1
        outage = (mode == Mode.OUTAGE, self.outage_s)
        explicit = mode if mode in (Mode.RATE_LIMITED, Mode.SCHEMA_DRIFT) else None
        refused = mode in (Mode.UNAVAILABLE, Mode.OUTAGE)
        self.history.append(("sent", payload, group, explicit, refused and outage, self.clock_s))

    def look(self, horizon_s: float) -> int:
        return sum(
            1 << j
            for j in range(30)
            if any(at_s <= horizon_s and mask >> j & 1 for at_s, mask in self.effects)
        )

    def act(self, decision: Decision) -> None:
        action, seconds = decision
        contract, law = self.context.contract, self.context.law
        if action == Action.WAIT:
            self.clock_s += seconds
            self.history.append(("waited", seconds))
        elif action == Action.READ:
            if self.clock_s < self.outage_s:
                self.history.append(("outage", self.outage_s))
            elif contract.readback == 0:
                self.history.append("no read-back")
            else:
                lag_s = law.lag_s if contract.readback == 2 else 0.0
                self.reported = self.look(self.clock_s - lag_s)
                self.history.append(("shown", self.reported))
            self.clock_s += contract.latency_s
        elif action == Action.ESCALATE:
            self.clock_s += contract.operator_delay_s
            if self.answers:
                self.reported = self.look(self.clock_s)
            self.history.append(("operator", self.reported if self.answers else None))
        elif self.sent < contract.max_attempts:
            self.send()
        else:
            self.history.append("refused")


PLAIN_DECISIONS: st.SearchStrategy[list[Decision]] = st.lists(
    st.one_of(
        st.tuples(st.just(Action.WAIT), SECONDS),
        st.tuples(
            st.sampled_from([Action.READ, Action.READ, Action.RETRY, Action.ESCALATE]),
            st.just(0.0),
        ),
    ),
    min_size=2,
    max_size=7,
)


@pytest.mark.parametrize("preset", ["late-tail", "stale-tail", "native"])
@settings(max_examples=8)
@given(decisions=PLAIN_DECISIONS)
def test_equal_visible_histories_look_equal_byte_for_byte(
    preset: str, decisions: list[Decision]
) -> None:
    walk = Walk(load_plan(preset))
    looks: dict[object, bytes] = {}
    for world in range(30):
        walk.begin(world)
        model = Model(walk.plan, world)
        earned = 0.0
        if walk.contract.start == 0:
            model.send()
        for decision in decisions:
            model.act(decision)
            earned += walk.act(decision)
        seen = walk.seen[0]
        assert seen.clock_s == model.clock_s
        assert seen.n_attempts == model.sent
        assert (int(seen.shown) if seen.read_at_s >= 0 else None) == model.reported
        history = (walk.contract.tobytes(), tuple(map(repr, model.history)))
        look = surface(walk, earned)
        assert looks.setdefault(history, look) == look


def test_a_timeout_says_nothing_of_its_cause() -> None:
    # All of late-tail's worlds look the same before the first read.
    walk = Walk(load_plan("late-tail"))
    looks, modes = set(), set()
    for world in range(60):
        walk.begin(world)
        looks.add(surface(walk, 0.0))
        modes.add(Mode(int(walk.truth[0].attempts[0].mode)))
        assert walk.seen[0].attempts[0].response == Response.TIMEOUT
    assert len(looks) == 1
    assert modes == {Mode.TIMEOUT_PRE, Mode.TIMEOUT_POST, Mode.TIMEOUT_LATE_TAIL}
