"""Statistics against published or independently computed values, and at their edges."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import combinations, product
from typing import Any

import pytest

from evaluation.statistics.exact_tests import Stratum, stratified_exact, tost_paired
from evaluation.statistics.power import plan_pairs, power_of
from evaluation.statistics.ranks import kendall_tau_b
from evaluation.statistics.shares import (
    Arm,
    clopper_pearson,
    effective_n,
    mover_interaction,
    newcombe,
    wilson,
)
from exactlyonce_env.errors import UserError


def percent(*shares: float) -> tuple[float, ...]:
    return tuple(round(100 * share, 2) for share in shares)


def test_published_clopper_pearson_limits() -> None:
    none = clopper_pearson(0, 80)
    assert percent(none.low, none.high) == (0.0, 4.51)
    assert percent(clopper_pearson(0, 80, 0.9).high) == (3.68,)  # one-sided 95 %: 1 - .05^(1/80)
    some = clopper_pearson(55, 80)
    assert percent(some.low, some.high) == (57.41, 78.65)
    assert clopper_pearson(80, 80).high == 1.0


def test_published_newcombe_difference() -> None:
    found = newcombe(Arm(124, 128), Arm(115, 128))
    assert percent(found.smallest, found.low, found.high) == (7.03, 0.83, 13.75)
    assert found.smallest == found.largest


def test_newcombe_1998_table_ii() -> None:
    # Newcombe (1998), Stat. Med. 17:873-890, table II, method 10: examples (a), (b), (g), (h).
    for (a, m, b, n), low, high in (
        ((56, 70, 48, 80), 0.0524, 0.3339),
        ((9, 10, 3, 10), 0.1705, 0.8090),
        ((10, 10, 0, 20), 0.6791, 1.0),
        ((10, 10, 0, 10), 0.6075, 1.0),
    ):
        found = newcombe(Arm(a, m), Arm(b, n))
        assert (round(found.low, 4), round(found.high, 4)) == (low, high)


def test_an_envelope_holds_every_assignment() -> None:
    found = newcombe(Arm(30, 40, 3), Arm(20, 40, 2))
    every = [newcombe(Arm(30 + i, 40), Arm(20 + j, 40)) for i in range(4) for j in range(3)]
    assert found.smallest == min(e.smallest for e in every) == 0.2
    assert found.largest == max(e.largest for e in every)
    assert found.low == min(e.low for e in every)
    assert found.high == max(e.high for e in every)


def test_wilson_on_the_effective_size() -> None:
    plain, size = wilson(81, 263)
    # Newcombe (1998), Stat. Med. 17:857-872, table I, method 3.
    assert (round(plain.low, 4), round(plain.high, 4), size) == (0.2553, 0.3662, 263)
    nothing, _ = wilson(0, 20)
    assert (nothing.low, round(nothing.high, 4)) == (0.0, 0.1611)
    every, _ = wilson(20, 20)
    assert (round(every.low, 4), every.high) == (0.8389, 1.0)
    clustered, size = wilson(30, 100, icc=0.1, mean_cluster_size=11)
    assert size == effective_n(100, 0.1, 11) == 50.0
    half, _ = wilson(15, 50)
    assert clustered.low == pytest.approx(half.low)
    assert clustered.high == pytest.approx(half.high)
    for bad in ({"icc": 0.1}, {"icc": 2.0, "mean_cluster_size": 3}, {"mean_cluster_size": 3}):
        with pytest.raises(UserError, match="icc"):
            wilson(1, 10, **bad)
    with pytest.raises(UserError, match="impossible"):
        wilson(1, 10, icc=-0.5, mean_cluster_size=3)


def by_hand(pairs: list[tuple[int, int]]) -> tuple[float, float, float]:
    """MOVER from Wilson limits of another library function."""
    signs = (1, -1, -1, 1)
    limits = [wilson(k, n)[0] for k, n in pairs]
    shares = [k / n for k, n in pairs]
    theta = sum(s * p for s, p in zip(signs, shares, strict=True))
    down = up = 0.0
    for s, p, w in zip(signs, shares, limits, strict=True):
        below, above = p - w.low, w.high - p
        down += (below if s > 0 else above) ** 2
        up += (above if s > 0 else below) ** 2
    return theta, theta - math.sqrt(down), theta + math.sqrt(up)


def test_the_interaction_is_square_and_add() -> None:
    coded = {"unlabeled": Arm(10, 40), "labeled": Arm(25, 40)}
    canonical = {"unlabeled": Arm(12, 40), "labeled": Arm(13, 44)}
    found = mover_interaction(coded, canonical)
    expected = by_hand([(25, 40), (10, 40), (13, 44), (12, 40)])
    assert (found.smallest, found.low, found.high) == pytest.approx(expected)
    # p is the level at which the interval just reaches zero.
    edge = mover_interaction(coded, canonical, 1.0 - found.p_low)
    assert edge.low == pytest.approx(0.0, abs=1e-9)
    assert found.p_low == found.p_high
    assert 0.0 < found.p_low < 0.05


def test_the_interaction_over_assignments() -> None:
    coded = {"unlabeled": Arm(10, 40, 1), "labeled": Arm(25, 40, 2)}
    canonical = {"unlabeled": Arm(12, 40), "labeled": Arm(13, 40, 1)}
    found = mover_interaction(coded, canonical)
    every = []
    for i, j, k in product(range(2), range(3), range(2)):
        made = mover_interaction(
            {"unlabeled": Arm(10 + i, 40), "labeled": Arm(25 + j, 40)},
            {"unlabeled": Arm(12, 40), "labeled": Arm(13 + k, 40)},
        )
        every.append((made.smallest, made.low, made.high, made.p_low))
    differences, lows, highs, ps = zip(*every, strict=True)
    assert (found.smallest, found.largest) == (min(differences), max(differences))
    assert (found.low, found.high) == (min(lows), max(highs))
    assert (found.p_low, found.p_high) == (min(ps), max(ps))


def test_no_interaction_has_p_one() -> None:
    same = {"unlabeled": Arm(10, 40), "labeled": Arm(20, 40)}
    assert mover_interaction(same, same).p_low == 1.0


def enumerated(strata: list[tuple[int, int, int, int]]) -> float:
    """The conditional test by counting every arrangement of the events."""
    sums: dict[int, int] = {0: 1}
    for k1, n1, k2, n2 in strata:
        own: dict[int, int] = {}
        for events in combinations(range(n1 + n2), k1 + k2):
            first = sum(e < n1 for e in events)
            own[first] = own.get(first, 0) + 1
        joined: dict[int, int] = {}
        for (s, a), (t, b) in product(sums.items(), own.items()):
            joined[s + t] = joined.get(s + t, 0) + a * b
        sums = joined
    total = sum(sums.values())
    seen = sum(k1 for k1, *_ in strata)
    lower = sum(w for s, w in sums.items() if s <= seen) / total
    upper = sum(w for s, w in sums.items() if s >= seen) / total
    return min(1.0, 2 * min(lower, upper))


@pytest.mark.parametrize(
    "strata",
    [
        [(3, 10, 7, 9)],
        [(3, 6, 1, 8)],
        [(4, 5, 0, 7), (2, 6, 3, 5)],
        [(0, 4, 0, 5), (4, 4, 1, 5), (2, 3, 0, 6)],
    ],
)
def test_the_stratified_test_counts_arrangements(strata: list[tuple[int, int, int, int]]) -> None:
    assert stratified_exact([Stratum(*s) for s in strata]) == pytest.approx(enumerated(strata))


def test_one_stratum_of_unequal_arms_is_not_the_minimum_likelihood_test() -> None:
    from scipy.stats import fisher_exact

    ours = stratified_exact([Stratum(3, 6, 1, 8)])
    assert ours != pytest.approx(fisher_exact([[3, 3], [1, 7]]).pvalue)
    one_sided = fisher_exact([[3, 3], [1, 7]], alternative="greater").pvalue
    assert ours == pytest.approx(min(1.0, 2 * one_sided))


def test_no_event_anywhere_is_no_evidence() -> None:
    assert stratified_exact([Stratum(0, 10, 0, 20)]) == 1.0
    assert stratified_exact([Stratum(10, 10, 20, 20)]) == 1.0
    with pytest.raises(UserError, match="empty"):
        stratified_exact([])


def test_equivalence_by_hand() -> None:
    found = tost_paired(5, 3, 100, 0.1)
    error = math.sqrt((8 - 4 / 100) / 100**2)
    assert found.difference == 0.02
    assert found.low == pytest.approx(0.02 - 1.6448536 * error)
    assert found.high == pytest.approx(0.02 + 1.6448536 * error)
    assert found.p == pytest.approx(0.5 * math.erfc((0.1 - 0.02) / error / math.sqrt(2)))
    # Equivalent at 5 % exactly where the 90 % interval lies within the margin.
    assert (found.p < 0.05) == (found.low > -0.1 and found.high < 0.1)
    still = tost_paired(0, 0, 50, 0.05)
    assert (still.p, still.low, still.high) == (0.0, 0.0, 0.0)
    for b, c, n, margin in ((5, 6, 10, 0.1), (1, 1, 10, 0.0), (1, 1, 10, 1.0), (-1, 0, 10, 0.1)):
        with pytest.raises(UserError):
            tost_paired(b, c, n, margin)


def test_tau_b_by_hand() -> None:
    # Pairs: 4 concordant, 1 discordant, 1 tied in x: (4 - 1) / sqrt(5 * 6).
    found = kendall_tau_b([1, 2, 2, 4], [1, 3, 2, 4])
    assert found.low == found.high == pytest.approx(5 / math.sqrt(5 * 6))
    assert kendall_tau_b([1, 2, 3], [3, 2, 1]).low == pytest.approx(-1.0)


def test_tau_b_over_completions() -> None:
    found = kendall_tau_b([1, 2, 3], [1, 2, 3], [2, 0, 0], [0, 0, 1])
    every = [kendall_tau_b([1 + i, 2, 3], [1, 2, 3 + j]).low for i in range(3) for j in range(2)]
    assert (found.low, found.high) == (min(every), max(every))
    assert found.undefined == 0
    tied = kendall_tau_b([1, 2], [1, 2], [1, 0])
    assert (tied.low, tied.undefined) == (1.0, 1)
    with pytest.raises(UserError, match="all ties"):
        kendall_tau_b([1, 1], [1, 2])
    with pytest.raises(UserError, match="completions"):
        kendall_tau_b([1, 2, 3], [1, 2, 3], [1000, 1000, 1000])


def test_power_is_exact_where_it_can_be_counted() -> None:
    # 6 pairs, all discordant, all in favour with probability 1: significant (p = 2/64).
    assert power_of(0.0, 1.0, pairs=6).power == pytest.approx(1.0)
    assert power_of(0.0, 1.0, pairs=5).power == 0.0  # p = 2/32 at best
    # b of 6 is binomial(6, .75): significant at 0 and 6 only.
    found = power_of(0.25, 0.5, 1.0, pairs=6)
    assert found.power == pytest.approx(0.75**6 + 0.25**6)


def test_the_plan_holds_its_power() -> None:
    found = plan_pairs(0.3, 0.05, 0.1)
    assert found.power >= 0.8
    for more in range(0, 60, 7):
        assert power_of(0.3, 0.05, 0.1, pairs=found.pairs + more).power > 0.79
    assert power_of(0.3, 0.05, 0.1, pairs=int(found.pairs * 0.9)).power < 0.8
    # Independent policies differ more often, and need more worlds.
    assert plan_pairs(0.3, 0.05).discordance == pytest.approx(0.3 * 0.65 + 0.35 * 0.7)
    assert plan_pairs(0.3, 0.05).pairs > found.pairs
    for bad in ((0.3, 0.0, None), (0.9, 0.2, None), (0.3, 0.05, 0.01), (-0.1, 0.2, None)):
        with pytest.raises(UserError):
            plan_pairs(*bad)


# --- on the command line --------------------------------------------------------------------------


@pytest.fixture
def stats(printed: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    import io

    def run(method: str, given: object) -> Any:
        monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(given)))
        return json.loads(printed("stats", method, "--input", "-", "--json", "-"))

    return run


@pytest.mark.parametrize(
    ("method", "given", "found"),
    [
        ("clopper-pearson", {"count": 0, "n": 80}, {"low": 0.0, "high": 0.045064}),
        (
            "newcombe",
            {"count1": 124, "n1": 128, "count2": 115, "n2": 128},
            {"difference": [0.070313, 0.070313], "low": 0.008271, "high": 0.137526},
        ),
        ("mcnemar", {"b": 1, "c": 8}, {"p": 0.039063}),
        ("holm", {"p": [0.01, 0.04, 0.03]}, {"adjusted": [0.03, 0.06, 0.06]}),
        ("kendall-tau-b", {"x": [1, 2, 3], "y": [1, 3, 2]}, {"low": 1 / 3, "high": 1 / 3}),
        ("icc", {"values": [0, 0, 1, 1], "clusters": ["a", "a", "b", "b"]}, {"icc": 1.0}),
        (
            "total-variation",
            {"first": ["a"] * 8, "second": ["b"] * 8},
            {"distance": 1.0, "p": 2 / 256, "pairs": 8},
        ),
        (
            "first-actions",
            {"runs": [[["read", "read"], ["read", "retry"]]]},
            {"across": 0.5, "within": 0.5, "pairs_across": 4, "pairs_within": 2},
        ),
        (
            "performance-profile",
            {"scores": [[1, 1], [1, 1]], "thresholds": [0, 1], "resamples": 10},
            {"thresholds": [0, 1], "shares": [1, 0], "low": [1, 0], "high": [1, 0]},
        ),
        (
            "improvement",
            {"x": [[3, 3]], "y": [[1, 1], [2, 2]], "resamples": 10},
            {"value": 1, "low": 1, "high": 1, "runs": 1, "tasks": 2},
        ),
        (
            "stratified-exact",
            {"strata": [{"count1": 3, "n1": 6, "count2": 1, "n2": 8}]},
            {"p": enumerated([(3, 6, 1, 8)])},
        ),
    ],
)
def test_json_in_json_out(stats: Any, method: str, given: Any, found: dict[str, Any]) -> None:
    def near(one: Any, other: Any) -> bool:
        if isinstance(one, list):
            return all(near(a, b) for a, b in zip(one, other, strict=True))
        return abs(one - other) < 1e-6

    told = stats(method, given)
    assert sorted(told) == sorted(found)
    assert all(near(told[name], value) for name, value in found.items())
    assert stats(method, [given, given]) == [told, told]


def test_models_and_measures_of_lists(stats: Any) -> None:
    success, arm = [1] * 30 + [0] * 10 + [1] * 10 + [0] * 30, ["a"] * 40 + ["b"] * 40
    clusters = [k % 8 for k in range(80)]
    odds = 2 * math.log(10 / 30)
    found = stats("gee", {"success": success, "factors": {"arm": arm}, "clusters": clusters})
    assert [effect["name"] for effect in found["effects"]] == ["intercept", "arm=b"]
    assert found["effects"][1]["value"] == pytest.approx(odds, abs=1e-6)
    given = {"success": success, "factors": {"arm": arm}, "tasks": clusters, "instances": clusters}
    mixed = stats("mixed-model", given)
    assert mixed["effects"][1]["value"] == pytest.approx(odds, abs=0.3)
    assert mixed["effects"][1]["p"] is None
    shares = stats("shapley", {"success": success, "factors": {"arm": arm}})
    assert shares["shares"]["arm"] == shares["pseudo_r2"] == pytest.approx(0.1887, abs=1e-4)
    drawn = {"values": success, "clusters": clusters, "resamples": 50, "seed": 3}
    assert stats("cluster-bootstrap", drawn)["value"] == 0.5
    seeds = stats("seeds", {"scores": [[0.5, 1.5], [0.7, 1.1]], "target": 1, "resamples": 50})
    assert seeds["optimality_gap"]["value"] == pytest.approx((0.5 + 0.3) / 4)
    assert seeds["iqm"]["value"] == pytest.approx((0.7 + 1.1) / 2)


WRONG = (
    '"x"',
    "-1",
    "1.5",
    "1e400",
    "NaN",
    "true",
    "null",
    "[]",
    "[[1], [2, 3], {}]",
    "{}",
    "1" + "0" * 400,
)


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("clopper-pearson", ("count", "n")),
        ("wilson", ("count", "n")),
        ("newcombe", ("count1", "n1", "count2", "n2")),
        ("mover-interaction", ("coded", "canonical")),
        ("stratified-exact", ("strata",)),
        ("mcnemar", ("b", "c")),
        ("holm", ("p",)),
        ("kendall-tau-b", ("x", "y")),
        ("tost-paired", ("b", "c", "n", "margin")),
        ("icc", ("values", "clusters")),
        ("gee", ("success", "factors", "clusters")),
        ("shapley", ("success", "factors")),
        ("first-actions", ("runs",)),
        ("total-variation", ("first", "second")),
        ("seeds", ("scores",)),
        ("improvement", ("x", "y")),
    ],
)
def test_nothing_that_is_wrong_ends_in_a_traceback(
    refusal: Callable[..., str], tmp_path: Any, method: str, fields: tuple[str, ...]
) -> None:
    path = tmp_path / "in.json"
    for wrong in WRONG:
        if (method, wrong) == ("holm", "[]"):
            continue  # of no p-values there are no adjusted ones
        path.write_text("{" + ", ".join(f'"{name}": {wrong}' for name in fields) + "}")
        assert len(refusal("stats", method, "--input", str(path))) < 400
    path.write_text("[" * 5000)
    assert "not JSON" in refusal("stats", method, "--input", str(path))


@pytest.mark.parametrize(
    ("method", "text", "words"),
    [
        ("mode", "{}", "unknown method 'mode'"),
        ("mcnemar", "{", "not JSON"),
        ("mcnemar", "3", "must be an object with b, c"),
        ("mcnemar", '{"b": 1}', "c is missing"),
        ("mcnemar", '{"b": 1, "c": 2, "d": 3}', "unknown field 'd'"),
        ("mcnemar", '{"b": 1.5, "c": 2}', "b must be a whole number"),
        ("wilson", '{"count": NaN, "n": 3}', "NaN"),
        ("wilson", '{"count": "1", "n": 3}', "whole number"),
        ("wilson", '{"count": 4, "n": 3}', "exceeds n"),
        ("wilson", '{"count": 0, "n": 0}', "at least 1"),
        ("wilson", '{"count": true, "n": 3}', "whole number"),
        ("clopper-pearson", '{"count": 1, "n": 3, "confidence": 95}', "confidence must lie"),
        ("newcombe", '{"count1":1,"n1":2,"missing1":2,"count2":1,"n2":2}', "exceeds n"),
        ("holm", '{"p": 3}', "must be a list"),
        ("holm", '{"p": [2]}', r"\[0, 1\]"),
        ("mover-interaction", '{"coded": {}, "canonical": {}}', "unlabeled is missing"),
        ("stratified-exact", '{"strata": [3]}', "must be an object"),
        ("kendall-tau-b", '{"x": [1], "y": [2]}', "two or more"),
        ("tost-paired", '{"b": 1, "c": 1, "n": 9, "margin": "x"}', "margin must be a number"),
        ("wilson", '[{"count": 1, "n": 3}, {"count": 4, "n": 3}]', "entry 2"),
    ],
)
def test_bad_input_is_one_line(
    refusal: Callable[..., str], tmp_path: Any, method: str, text: str, words: str
) -> None:
    path = tmp_path / "in.json"
    path.write_text(text)
    import re

    assert re.search(words, refusal("stats", method, "--input", str(path)))
