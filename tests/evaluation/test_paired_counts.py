"""What missing episodes may have done, against every way in which they may have gone."""

from __future__ import annotations

from itertools import product

import pytest

from evaluation.intervals import paired_share_interval
from evaluation.paired import mcnemar_exact
from evaluation.paired_counts import PairCounts, accounted, count_pairs, envelope
from exactlyonce_env.errors import UserError

PAIRS: list[tuple[bool | None, bool | None]] = [
    *[(True, True)] * 5,
    *[(True, False)] * 2,
    *[(False, True)] * 4,
    *[(False, False)] * 3,
    (True, None),
    (False, None),
    (None, True),
    (None, True),
    (None, False),
    (None, None),
    (None, None),
]


def test_pairs_are_counted_by_what_is_known() -> None:
    found = count_pairs(PAIRS)
    assert found == PairCounts(5, 2, 4, 3, 1, 1, 2, 1, 2)
    assert (found.planned, found.complete, found.missing_a, found.missing_b) == (21, 14, 5, 4)


def test_the_envelope_holds_every_assignment() -> None:
    differences, ps, lows, highs = [], [], [], []
    options = [[(a,) if a is not None else (True, False) for a in pair] for pair in PAIRS]
    choices = [list(product(*option)) for option in options]
    for assignment in product(*choices):
        only_a = sum(a and not b for a, b in assignment)
        only_b = sum(b and not a for a, b in assignment)
        both = sum(a and b for a, b in assignment)
        differences.append((only_b - only_a) / len(assignment))
        ps.append(mcnemar_exact(only_a, only_b))
        counts = (both, only_b, only_a, len(assignment) - both - only_a - only_b)
        interval = paired_share_interval(*counts)
        lows.append(interval.low)
        highs.append(interval.high)
    found = envelope(count_pairs(PAIRS))
    assert found["difference"] == pytest.approx([min(differences), max(differences)])
    assert found["mcnemar_p"] == pytest.approx([min(ps), max(ps)])
    assert found["ci"] == pytest.approx([min(lows), max(highs)])


def test_nothing_missing_is_a_point() -> None:
    pairs = PairCounts(both=10, only_a=1, only_b=6, neither=3)
    found = accounted(pairs)
    assert (found["planned"], found["incomplete"]) == (20, 0)
    own = paired_share_interval(10, 6, 1, 3)
    assert found["envelope"]["difference"] == [own.value, own.value]
    assert found["envelope"]["ci"] == [own.low, own.high]
    assert found["envelope"]["mcnemar_p"] == [mcnemar_exact(1, 6)] * 2


def test_what_cannot_be_said_is_refused() -> None:
    with pytest.raises(UserError, match="no pair"):
        envelope(PairCounts())
    many = accounted(PairCounts(both=1, unknown=3000))
    assert "assignments" in many["envelope"]["why"]
