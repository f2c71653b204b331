from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.label_placement import Box, Wanted, place_labels

FRAME = Box(0.0, 0.0, 400.0, 300.0)
NO_STROKES = np.empty((0, 2))


def _box(placed, size) -> Box:
    x, y = placed.centre
    return Box(x - size[0] / 2, y - size[1] / 2, x + size[0] / 2, y + size[1] / 2)


def _marker(x: float, y: float) -> Box:
    return Box(x - 3, y - 3, x + 3, y + 3)


def test_boxes_measure_overlap_and_distance() -> None:
    box = Box(0, 0, 10, 4)
    assert box.overlap(Box(8, 2, 20, 20)) == 4.0
    assert box.overlap(Box(10, 0, 20, 4)) == 0.0
    assert box.outside(Box(5, 0, 20, 4)) == 20.0
    assert box.distance((13.0, 8.0)) == 5.0
    assert box.distance((5.0, 1.0)) == 0.0
    assert box.count_inside(np.array([[1.0, 1.0], [11.0, 1.0], [1.0, 5.0]])) == 1


def test_a_label_with_room_sits_close_by_without_a_leader() -> None:
    (placed,) = place_labels([Wanted((200, 150), (40, 10))], [_marker(200, 150)], NO_STROKES, FRAME)
    assert not placed.leader
    assert _box(placed, (40, 10)).distance((200, 150)) < 10.0


@pytest.mark.parametrize("anchor", [(1, 1), (399, 1), (1, 299), (399, 299)])
def test_a_label_in_a_corner_stays_inside(anchor) -> None:
    (placed,) = place_labels([Wanted(anchor, (60, 12))], [_marker(*anchor)], NO_STROKES, FRAME)
    assert _box(placed, (60, 12)).outside(FRAME) == pytest.approx(0.0)


@given(
    st.lists(st.tuples(st.integers(1, 7), st.integers(1, 9)), min_size=1, max_size=8, unique=True)
)
def test_labels_cover_neither_markers_nor_each_other(cells) -> None:
    anchors = [(50.0 * x, 30.0 * y) for x, y in cells]
    size = (30.0, 9.0)
    markers = [_marker(*anchor) for anchor in anchors]
    placed = place_labels([Wanted(a, size) for a in anchors], markers, NO_STROKES, FRAME)
    boxes = [_box(label, size) for label in placed]
    for index, box in enumerate(boxes):
        assert all(box.overlap(marker) == 0.0 for marker in markers)
        assert all(box.overlap(other) == 0.0 for other in boxes[:index])
        own = box.distance(anchors[index])
        assert all(own < box.distance(other) for other in anchors if other != anchors[index])


def test_a_label_steps_off_a_line() -> None:
    strokes = np.column_stack([np.linspace(0, 400, 200), np.full(200, 156.0)])
    wanted = [Wanted((200, 150), (40, 10))]
    (free,) = place_labels(wanted, [_marker(200, 150)], NO_STROKES, FRAME)
    (moved,) = place_labels(wanted, [_marker(200, 150)], strokes, FRAME)
    assert _box(free, (40, 10)).count_inside(strokes) > 0
    assert _box(moved, (40, 10)).count_inside(strokes) == 0


def test_only_optional_labels_are_left_out_where_there_is_no_room() -> None:
    wall = [Box(150, 100, 250, 200)]
    needed, optional = place_labels(
        [Wanted((200, 150), (40, 10)), Wanted((200, 150), (40, 10), optional=True)],
        wall,
        NO_STROKES,
        FRAME,
    )
    assert needed is not None
    assert needed.leader
    assert optional is None
