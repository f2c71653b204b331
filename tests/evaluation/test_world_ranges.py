from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.world_ranges import format_ranges, merge_ranges, subtract_ranges
from exactlyonce_env.errors import UserError

ranges = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 12)).map(lambda r: (r[0], r[0] + r[1])), max_size=8
)


def _ids(pairs) -> set[int]:
    return {world for start, stop in pairs for world in range(start, stop)}


def test_touching_and_overlapping_ranges_become_one() -> None:
    assert merge_ranges([(10, 12), (0, 3), (3, 5), (4, 7)]) == ((0, 7), (10, 12))


def test_subtraction_cuts_holes() -> None:
    assert subtract_ranges([(0, 10)], [(2, 4), (8, 12)]) == ((0, 2), (4, 8))


def test_ranges_print_as_they_are_typed() -> None:
    assert format_ranges([(0, 100), (200, 300)]) == "0:100,200:300"


@given(ranges, ranges)
def test_ranges_behave_as_sets_of_ids(one, other) -> None:
    merged, left = merge_ranges(one), subtract_ranges(one, other)
    assert _ids(merged) == _ids(one)
    assert all(first[1] < second[0] for first, second in pairwise(merged))
    assert _ids(left) == _ids(one) - _ids(other)
    assert merge_ranges(left) == left


@pytest.mark.parametrize("bad", [(3, 3), (4, 3), (-1, 3)])
def test_a_range_that_holds_nothing_is_refused(bad: tuple[int, int]) -> None:
    with pytest.raises(UserError, match="are no range"):
        merge_ranges([bad])
