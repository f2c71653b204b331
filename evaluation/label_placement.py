"""Where the labels of a scatter plot go, so that they hide neither points nor each other."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ANGLES_DEG = (45, 315, 135, 225, 0, 180, 90, 270, 22, 338, 158, 202)  # preferred first
GAPS = (7.0, 13.0, 21.0, 31.0, 43.0, 57.0, 73.0)  # from the anchor to the label's edge [pt]
LEADER_GAP = 13.0  # farther labels get a line to their point [pt]
SAME_SPOT = 3.0  # points nearer than this look like one [pt]


@dataclass(frozen=True, slots=True)
class Box:
    """An upright rectangle [pt]."""

    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: Box) -> float:
        """Area that both cover [pt^2]."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(0.0, width) * max(0.0, height)

    def outside(self, frame: Box) -> float:
        """Area of this box that lies outside the frame [pt^2]."""
        return (self.right - self.left) * (self.top - self.bottom) - self.overlap(frame)

    def count_inside(self, points: NDArray[np.float64]) -> int:
        """Count the points that lie inside; `points` is (k, 2) [pt]."""
        if points.size == 0:
            return 0
        x, y = points[:, 0], points[:, 1]
        inside = (x > self.left) & (x < self.right) & (y > self.bottom) & (y < self.top)
        return int(np.count_nonzero(inside))

    def distance(self, point: tuple[float, float]) -> float:
        """Distance from a point to this box, 0 inside [pt]."""
        across = max(self.left - point[0], 0.0, point[0] - self.right)
        up = max(self.bottom - point[1], 0.0, point[1] - self.top)
        return math.hypot(across, up)

    @property
    def centre(self) -> tuple[float, float]:
        """Middle of the box [pt]."""
        return (self.left + self.right) / 2.0, (self.bottom + self.top) / 2.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """A label to place beside its point."""

    anchor: tuple[float, float]  # the point [pt]
    size: tuple[float, float]  # width and height of the text [pt]
    optional: bool = False  # may be left out where there is no room


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a label goes."""

    centre: tuple[float, float]  # [pt]
    leader: bool  # far enough from its point to need a line


def place_labels(
    wanted: list[Wanted], obstacles: list[Box], strokes: NDArray[np.float64], frame: Box
) -> list[Placed | None]:
    """Place labels one by one, each where it covers least; None for an optional one without room.

    `obstacles` are boxes that no label should cover (markers, fixed text), `strokes` (k, 2) points
    along the drawn lines, which a label may cross at a small price. A label shuns places nearer to
    another obstacle than to its own point, where it would be misread. Earlier labels choose first.
    """
    taken = list(obstacles)
    result: list[Placed | None] = []
    for label in wanted:
        others = [
            obstacle.centre
            for obstacle in obstacles
            if math.dist(obstacle.centre, label.anchor) > SAME_SPOT
        ]
        best: tuple[float, bool, Placed, Box] | None = None
        for gap in GAPS:
            for preference, angle in enumerate(ANGLES_DEG):
                centre = _centre(label, math.radians(angle), gap)
                box = _box_at(centre, label.size)
                blocked = sum(box.overlap(other) for other in taken) + box.outside(frame)
                crossed = box.count_inside(strokes)
                own = box.distance(label.anchor)
                misread = sum(box.distance(other) <= own + SAME_SPOT for other in others)
                cost = 10.0 * blocked + 4.0 * (crossed + misread) + 0.6 * gap + 0.2 * preference
                if best is None or cost < best[0]:
                    placed = Placed(centre, leader=gap > LEADER_GAP)
                    best = (cost, blocked > 0.0 or misread > 0, placed, box)
        assert best is not None
        _, crowded, placed, box = best
        if label.optional and (crowded or placed.leader):
            result.append(None)
            continue
        taken.append(box)
        result.append(placed)
    return result


def _centre(label: Wanted, angle: float, gap: float) -> tuple[float, float]:
    """Centre of the label whose edge is `gap` from the anchor in the direction of the angle."""
    across, up = math.cos(angle), math.sin(angle)
    width, height = label.size
    return (
        label.anchor[0] + across * gap + _sign(across) * width / 2.0,
        label.anchor[1] + up * gap + _sign(up) * height / 2.0,
    )


def _sign(value: float) -> float:
    """Give -1, 0 or 1; directions that are upright or level but for rounding count as 0."""
    return 0.0 if abs(value) < 1e-9 else math.copysign(1.0, value)


def _box_at(centre: tuple[float, float], size: tuple[float, float]) -> Box:
    half_width, half_height = size[0] / 2.0, size[1] / 2.0
    return Box(
        centre[0] - half_width,
        centre[1] - half_height,
        centre[0] + half_width,
        centre[1] + half_height,
    )
