"""The shipped presets are what the design says."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from exactlyonce_env.delays import Empirical, Lomax, delays_from_spec
from exactlyonce_env.errors import UserError
from exactlyonce_env.presets import PRESET_NAMES, load_plan
from exactlyonce_env.records import CONTRACT, UNKNOWN
from exactlyonce_env.vocabulary import Mode, Readback

from .worldbench import shipped

SINGLE = [name for name in PRESET_NAMES if name != "contextual"]


# Facts of section 11 ----------------------------------------------------------------------------


def test_names() -> None:
    assert PRESET_NAMES == (
        "late-fixed",
        "late-tail",
        "late-lomax",
        "stale-tail",
        "native",
        "keys-everywhere",
        "first-decision",
        "contextual",
        "empirical",
    )
    for name in PRESET_NAMES:
        assert shipped(name).preset.name == name
        assert shipped(name).preset.description.endswith(".")


def test_starts() -> None:
    starts = {name: shipped(name).preset.start for name in PRESET_NAMES}
    assert {name for name, start in starts.items() if start == "send"} == {
        "native",
        "keys-everywhere",
    }


def test_retries_fail_in_three_presets_only() -> None:
    for name in PRESET_NAMES:
        rates = {situation.faults.retry_fault_rate for situation in shipped(name).situations}
        assert rates == {0.1 if name in ("native", "keys-everywhere", "contextual") else 0.0}


@pytest.mark.parametrize(
    ("name", "third"),
    [
        ("late-fixed", Mode.TIMEOUT_LATE),
        ("late-tail", Mode.TIMEOUT_LATE_TAIL),
        ("late-lomax", Mode.TIMEOUT_LATE_TAIL),
        ("stale-tail", Mode.TIMEOUT_LATE_TAIL),
        ("first-decision", Mode.TIMEOUT_LATE),
        ("empirical", Mode.TIMEOUT_LATE_TAIL),
    ],
)
def test_a_third_each(name: str, third: Mode) -> None:
    expected = np.zeros(13)
    expected[[Mode.TIMEOUT_PRE, Mode.TIMEOUT_POST, third]] = 1 / 3
    for context in shipped(name).contexts:
        shares = np.diff(context["law"]["first_cdf"], prepend=0)
        assert shares == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ["late-fixed", "late-tail", "late-lomax"])
def test_unkeyed_strong_presets(name: str) -> None:
    (situation,) = shipped(name).situations
    assert situation.contract.readback == "strong"
    assert not situation.contract.accepts_key
    assert situation.contract.n_items == 1


def test_delay_laws() -> None:
    assert shipped("late-fixed").situations[0].faults.late_fixed_s == 90
    for name in ("late-tail", "stale-tail", "native", "keys-everywhere"):
        for situation in shipped(name).situations:
            law = situation.faults.late_tail
            assert law.support_s == (40, 7200)
            assert round(law.median_s, 1) == 536.7
            assert [round(float(law.cdf(t)), 4) for t in (60, 300, 900, 3600)] == [
                0.0781,
                0.3880,
                0.5996,
                0.8665,
            ]
    law = shipped("late-lomax").situations[0].faults.late_tail
    assert isinstance(law, Lomax)
    assert (law.c, law.scale) == (0.8, 120)


def test_stale_tail_lags_by_30_to_120_seconds() -> None:
    plan = shipped("stale-tail")
    assert plan.contracts["lag_s"].tolist() == list(range(30, 121))
    assert (plan.contracts["readback"] == Readback.EVENTUAL).all()
    assert not plan.contracts["accepts_key"].any()
    assert plan.context_cdf == pytest.approx(np.arange(1, 92) / 91, rel=1e-12)
    assert plan.context_cdf[-1] == 1


def test_native_has_the_classes_of_the_sandbox() -> None:
    situations = shipped("native").situations
    writes: Counter[str] = Counter()
    readbacks: Counter[str] = Counter()
    for situation in situations:
        contract = situation.contract
        kind = (
            "keyed" if contract.accepts_key else "idempotent" if contract.idempotent else "unkeyed"
        )
        assert not (contract.accepts_key and contract.idempotent)
        writes[kind] += int(situation.weight)
        readbacks[contract.readback] += int(situation.weight)
    assert writes == {"unkeyed": 25, "keyed": 5, "idempotent": 4}
    assert readbacks == {"strong": 22, "eventual": 11, "none": 1}
    lags = {s.name: s.contract.lag_s for s in situations if s.contract.readback == "eventual"}
    assert lags == {"social/weibo": 60, "mail/send": 120}
    batches = [s for s in situations if s.contract.n_items > 1]
    assert [(s.name, s.contract.n_items, s.weight) for s in batches] == [
        ("database/batch_insert", 4, 1)
    ]
    irreversible = {s.name for s in situations if s.contract.irreversible}
    assert irreversible == {"tickets/comment", "mail/send"}


def test_native_and_keys_everywhere_differ_in_the_keys_alone() -> None:
    native, keyed = shipped("native").situations, shipped("keys-everywhere").situations
    assert all(situation.contract.accepts_key for situation in keyed)
    for one, other in zip(native, keyed, strict=True):
        contract = one.contract.model_copy(update={"accepts_key": True})
        assert (one.name, one.weight, one.faults, one.costs) == (
            other.name,
            other.weight,
            other.faults,
            other.costs,
        )
        assert contract == other.contract


@pytest.mark.parametrize("name", ["native", "keys-everywhere"])
def test_a_fifth_of_the_originals_is_fine(name: str) -> None:
    for context in shipped(name).contexts:
        first = np.diff(context["law"]["first_cdf"], prepend=0)
        retry = np.diff(context["law"]["retry_cdf"], prepend=0)
        fitting = 12 if context["contract"]["n_items"] > 1 else 11
        for shares, ok in ((first, 0.2), (retry, 0.9)):
            assert shares[Mode.OK] == pytest.approx(ok)
            faults = shares[1:][shares[1:] > 0]
            assert len(faults) == fitting
            assert faults == pytest.approx(np.full(fitting, (1 - ok) / fitting))


def test_first_decision() -> None:
    plan = shipped("first-decision")
    contracts = plan.contracts
    assert [s.name for s in plan.situations] == ["key omitted", "key valid", "key changed"]
    assert contracts["original_key"].tolist() == [0, 1, 1]
    assert contracts["candidate_key"].tolist() == [0, 0, 1]
    assert contracts["accepts_key"].all()  # a candidate key is shown in every case
    assert (contracts["max_steps"] == 1).all()
    assert contracts["dispatch_claims"].all()
    assert (contracts["costs"]["overclaim"] == 1).all()
    assert (contracts["readback"] == Readback.EVENTUAL).all()
    assert (contracts["lag_s"] > 604800).all()  # beyond the longest single wait
    # Claiming completion blindly: two worlds in three are right. Leaving it open never pays less.
    costs = plan.situations[0].costs
    claim = (2 * costs.success - costs.omission - costs.overclaim) / 3
    leave = (2 * costs.success - costs.omission) / 3 - costs.unresolved
    assert claim <= leave


def test_the_catalogue_of_contextual() -> None:
    train = shipped("contextual")
    test = load_plan("contextual", config={"split": "test"})
    assert (len(train.contexts), len(test.contexts)) == (4096, 1024)
    contracts = {row.tobytes() for row in train.contracts} | {
        row.tobytes() for row in test.contracts
    }
    assert len(contracts) == 4096 + 1024  # all different, none in both
    assert train.context_cdf == pytest.approx(np.arange(1, 4097) / 4096, rel=1e-12)
    names = [situation.name for situation in (*train.situations, *test.situations)]
    assert len(set(names)) == 5120


def test_contextual_covers_what_it_promises_evenly() -> None:
    """All groups of faults, several families and scales; all of it visible."""
    plan = shipped("contextual")
    contracts = plan.contracts
    assert (contracts["start"] == 0).all()
    for mode in set(Mode) - {Mode.PARTIAL_BATCH, Mode.TIMEOUT_LATE, Mode.TIMEOUT_LATE_TAIL}:
        assert (np.diff(plan.contexts["law"]["first_cdf"], prepend=0)[:, mode] > 0).all()
    late = np.diff(plan.contexts["law"]["first_cdf"], prepend=0)[
        :, [Mode.TIMEOUT_LATE, Mode.TIMEOUT_LATE_TAIL]
    ]
    assert (late.sum(axis=1) > 0).all()
    assert len({type(s.faults.late_tail) for s in plan.situations}) >= 5
    medians = [s.faults.late_tail.median_s for s in plan.situations]
    assert min(medians) < 60 < 1200 < max(medians)
    assert (contracts["documented_late_share"] != UNKNOWN).all()
    assert (contracts["documented_delay_s"] != UNKNOWN).all()
    assert (contracts["lag_s"] != UNKNOWN).all()
    assert set(contracts["readback"].tolist()) == {0, 1, 2, 3}
    for name in ("accepts_key", "idempotent", "irreversible", "original_key", "candidate_key"):
        assert set(contracts[name].tolist()) == {0, 1}
    bounded = np.isfinite(contracts["in_flight_bound_s"])
    assert 0.1 < bounded.mean() < 0.9
    # Low discrepancy: each half of the catalogue has each thing as often as the other.
    for name in ("accepts_key", "idempotent"):
        halves = contracts[name].reshape(2, 2048).mean(axis=1)
        assert abs(halves[0] - halves[1]) < 0.01
    prices = {name: contracts["costs"][name] for name in contracts["costs"].dtype.names}
    for name, values in prices.items():
        assert (len(np.unique(values)) > 1000) == (name != "success")


def test_visible_equals_real_in_contextual() -> None:
    """The documented quantiles are those of the law that acts, and bounds hold."""
    plan = shipped("contextual")
    for k in range(0, 4096, 97):
        contract, law = plan.contracts[k], plan.situations[k].faults.late_tail
        assert contract["documented_delay_s"] == pytest.approx(law.quantile([0.1, 0.5, 0.9, 0.99]))
        assert law.support_s[1] <= contract["in_flight_bound_s"]
        assert contract["lag_s"] == plan.contexts[k]["law"]["lag_s"]


def test_empirical_needs_delays_and_says_so() -> None:
    with pytest.raises(UserError, match="delays") as caught:
        load_plan("empirical")
    assert "empirical" in str(caught.value)
    law = {"family": "empirical", "times_s": [1, 60, 900], "cdf": [0.2, 0.5, 1.0]}
    plan = load_plan("empirical", delays=law)
    assert plan.situations[0].faults.late_tail == delays_from_spec(law)
    assert isinstance(plan.situations[0].faults.late_tail, Empirical)
    assert plan.contracts[0]["documented_delay_s"].tolist() == [1, 60, 900, 900]


@pytest.mark.parametrize("name", SINGLE)
def test_other_delays_take_the_place_of_the_tail(name: str) -> None:
    plan = load_plan(name, delays="lomax:c=2,scale=7")
    assert {situation.faults.late_tail for situation in plan.situations} == {Lomax(c=2, scale=7)}


# What is documented -----------------------------------------------------------------------------


def test_documented_figures_by_hand() -> None:
    faults = {
        "original": {
            "timeout_pre": 1,
            "timeout_post": 2,
            "timeout_late": 5,
            "http500_pre": 1,
            "http500_post": 3,
        },
        "late_fixed_s": 44,
        "retry_fault_rate": 0.25,
    }
    told = {"delays": True, "shares": True, "retry_faults": True}
    row = load_plan({"name": "x", "faults": faults, "documented": told}).contracts[0]
    assert row["documented_delay_s"].tolist() == [44] * 4
    assert row["documented_late_share"] == pytest.approx(5 / 8)
    assert row["documented_absent_share"] == pytest.approx(1 / 8)
    assert row["documented_commit_share"] == pytest.approx(3 / 4)
    assert row["documented_retry_fault_rate"] == 0.25
    row = load_plan({"name": "x", "faults": faults}).contracts[0]
    assert row["documented_delay_s"].tolist() == [UNKNOWN] * 4
    for name in ("late_share", "absent_share", "commit_share", "retry_fault_rate"):
        assert row[f"documented_{name}"] == UNKNOWN
    quiet = {"original": {"ok": 1}}
    row = load_plan({"name": "x", "faults": quiet, "documented": told}).contracts[0]
    assert row["documented_late_share"] == row["documented_commit_share"] == UNKNOWN


def test_an_undocumented_lag_acts_but_does_not_show() -> None:
    contract = {"readback": "eventual", "lag_s": 60, "lag_documented": False}
    context = load_plan({"name": "x", "contract": contract}).contexts[0]
    assert context["contract"]["lag_s"] == UNKNOWN
    assert context["law"]["lag_s"] == 60


def test_hidden_things_are_not_in_the_contract() -> None:
    hidden = ("copy", "outage", "queued", "cdf", "tail", "late_fixed", "fate", "mode")
    assert not [name for name in CONTRACT.names if any(word in name for word in hidden)]
