from __future__ import annotations

import math
from dataclasses import replace

import matplotlib.image
import numpy as np
import pytest

from evaluation.frontier import FrontierPoint, format_seconds, frontier_figure, plot_frontier
from exactlyonce_env.errors import UserError


def _point(name: str, kind, exact: float, elapsed_s: float, delta_s: float | None = None):
    return FrontierPoint(
        name=name,
        kind=kind,
        delta_s=delta_s,
        exactly_once=exact,
        eos_low=max(0.0, exact - 0.01),
        eos_high=min(1.0, exact + 0.01),
        elapsed_s=elapsed_s,
        elapsed_low_s=0.9 * elapsed_s,
        elapsed_high_s=1.1 * elapsed_s,
    )


POINTS = [
    *(_point(f"wait:{d}", "wait", e, 30.0 + d, d) for d, e in ((0, 0.66), (300, 0.8), (900, 0.87))),
    *(_point(f"poll:{d}", "poll", e, 30.0 + d / 2, d) for d, e in ((0, 0.66), (300, 0.8))),
    _point("rules", "policy", 0.66, 30.0),
    _point("same-key", "keyed", 0.98, 40.0),
    _point("outcome-oracle", "oracle", 1.0, 200.0),
]
BOUNDS = [_point("clairvoyant", "bound", 1.0, 150.0)]


def _labels(points, bounds) -> list[str]:
    (axes,) = frontier_figure(points, bounds).axes
    return [text.get_text() for text in axes.texts]


def test_both_formats_are_written_and_show_something(tmp_path) -> None:
    written = plot_frontier(POINTS, BOUNDS, tmp_path / "frontier", title="late-tail")
    assert written == [tmp_path / "frontier.png", tmp_path / "frontier.svg"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["frontier.png", "frontier.svg"]
    pixels = matplotlib.image.imread(tmp_path / "frontier.png")
    assert min(pixels.shape[:2]) >= 600
    blue = np.array([0x00, 0x72, 0xB2]) / 255.0
    assert (np.abs(pixels[..., :3] - blue).max(axis=-1) < 0.02).sum() > 300


def test_every_policy_and_waiting_bound_is_named() -> None:
    labels = _labels(POINTS, BOUNDS)
    assert {"rules", "same-key", "outcome-oracle", "clairvoyant"} < set(labels)
    assert (labels.count("5 min"), labels.count("15 min")) == (2, 1)


def test_no_label_covers_another_or_leaves_the_plot() -> None:
    (axes,) = frontier_figure(POINTS, BOUNDS).axes
    boxes = [text.get_window_extent() for text in axes.texts]
    frame = axes.get_window_extent()
    for index, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:index])
        assert frame.contains(box.x0, box.y0)
        assert frame.contains(box.x1, box.y1)


def test_the_same_points_give_the_same_file(tmp_path) -> None:
    for name in ("one.svg", "two.svg", "one.png", "two.png"):
        plot_frontier(POINTS, BOUNDS, tmp_path / name)
    for suffix in ("svg", "png"):
        one, two = (tmp_path / f"{name}.{suffix}" for name in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


def test_pyplot_stays_out(run_python) -> None:
    code = (
        "import sys\n"
        "from evaluation.frontier import FrontierPoint, frontier_figure\n"
        f"frontier_figure([{POINTS[-1]!r}], [])\n"
        "print('matplotlib.figure' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    )
    assert run_python("-c", code).stdout.split() == ["True", "False"]


def test_points_on_one_spot_share_a_label() -> None:
    twins = [_point("rules", "policy", 0.66, 30.0), _point("never-retry", "policy", 0.66, 30.0)]
    labels = _labels([*twins, _point("guard", "policy", 0.9, 900.0)], [])
    assert sorted(labels) == ["guard", "rules,\nnever-retry"]


def test_a_time_of_zero_and_intervals_that_are_not_defined_can_be_drawn() -> None:
    lone = replace(
        _point("never-retry", "policy", 0.5, 0.0),
        eos_low=math.nan,
        eos_high=math.nan,
        elapsed_low_s=math.nan,
        elapsed_high_s=math.nan,
    )
    timeless = replace(BOUNDS[0], elapsed_s=math.nan)
    figure = frontier_figure([lone], [timeless])
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["never-retry", "clairvoyant"]
    figure.draw_without_rendering()
    assert "0 s" in [tick.get_text() for tick in axes.get_xticklabels()]


@pytest.mark.parametrize(
    ("points", "bounds", "name", "message"),
    [
        ([], [], "f.png", "at least one policy"),
        (POINTS, [], "f.pdf", r"one of \.png, \.svg"),
        ([replace(POINTS[0], delta_s=None)], [], "f.png", "'wait:0' is of kind 'wait' and needs"),
        ([replace(POINTS[0], elapsed_s=math.nan)], [], "f.png", "'wait:0' has no finite mean time"),
        ([replace(POINTS[0], elapsed_s=-1.0)], [], "f.png", "'wait:0' has no finite mean time"),
        ([replace(POINTS[0], exactly_once=1.2)], [], "f.png", "'wait:0' has no share"),
        (
            POINTS,
            [replace(BOUNDS[0], exactly_once=math.nan)],
            "f.png",
            "'clairvoyant' has no share",
        ),
        (POINTS, [], "nowhere/f.png", "cannot write"),
    ],
)
def test_what_cannot_be_drawn_is_refused(tmp_path, points, bounds, name, message: str) -> None:
    with pytest.raises(UserError, match=message) as refusal:
        plot_frontier(points, bounds, tmp_path / name)
    assert "\n" not in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (45, "45 s"),
        (90, "1.5 min"),
        (100, "100 s"),
        (300, "5 min"),
        (3600, "1 h"),
        (5400, "1.5 h"),
        (172800, "2 d"),
    ],
)
def test_times_read_as_people_say_them(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
