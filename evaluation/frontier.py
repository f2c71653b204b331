"""The frontier plot: how often exactly once, against how long it takes.

Drawn with matplotlib's object interface on its own canvas; pyplot and its global state are never
touched. Colours are from the palette of Okabe and Ito, which stays apart under the common kinds
of colour blindness; markers differ as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from evaluation.label_placement import SAME_SPOT, Box, Wanted, place_labels
from exactlyonce_env.errors import UserError
from exactlyonce_env.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PointKind = Literal["wait", "poll", "policy", "keyed", "oracle", "bound"]

SUFFIXES = (".png", ".svg")
INK = "#222222"
TICKS_S = (0, 1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10800, 36000, 86400, 259200, 864000)


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """One policy in the plane of mean time and share of exactly-once episodes."""

    name: str  # as shown, for instance "guard"
    kind: PointKind
    delta_s: float | None  # waiting bound of wait and poll policies [s]
    exactly_once: float  # share of episodes, 0..1
    eos_low: float  # interval of the share; NaN: none
    eos_high: float
    elapsed_s: float  # mean time of an episode [s]
    elapsed_low_s: float  # interval of the mean time [s]; NaN: none
    elapsed_high_s: float


@dataclass(frozen=True, slots=True)
class _Style:
    legend: str
    colour: str
    marker: str
    size: float  # [pt]
    joined: bool  # a curve over its waiting bounds


_STYLES: dict[PointKind, _Style] = {
    "wait": _Style("wait:Δ, labelled with Δ", "#0072B2", "o", 5.0, True),
    "poll": _Style("poll:Δ, labelled with Δ", "#D55E00", "s", 4.5, True),
    "policy": _Style("other policies", "#555555", "v", 6.5, False),
    "keyed": _Style("keyed policies", "#007A5A", "D", 6.5, False),
    "oracle": _Style("oracles (see hidden state)", "#B0518B", "*", 11.0, False),
    "bound": _Style("bound for any client", INK, "P", 8.0, False),
}


def plot_frontier(
    points: Sequence[FrontierPoint],
    bounds: Sequence[FrontierPoint],
    path: str | Path,
    *,
    title: str = "",
) -> list[Path]:
    """Draw the share of exactly-once episodes against mean time, with interval bars.

    `wait` and `poll` points become curves over their waiting bound, other points are labelled with
    their name. Each of `bounds` (what no client, or no client without hidden state, can pass) is a
    line across the plot, with its own marker where its time is finite.

    `path` ends in `.png` or `.svg`, or has neither and both are written. Returns what was written.

    Raises UserError as `frontier_figure` does, for another suffix, and when the file cannot be
    written.
    """
    _targets(Path(path))
    return save_figure(frontier_figure(points, bounds, title=title), path)


def frontier_figure(
    points: Sequence[FrontierPoint], bounds: Sequence[FrontierPoint], *, title: str = ""
) -> Figure:
    """Draw the plot of `plot_frontier` as a matplotlib figure, for a notebook or a report.

    Raises UserError when there is no point, a value is not finite, or a curve point lacks its
    waiting bound.
    """
    _check(points, bounds)
    from matplotlib import rc_context

    with rc_context({"font.size": 9.5}):
        return _draw(points, bounds, title)


def _targets(path: Path) -> list[Path]:
    if path.suffix in SUFFIXES:
        return [path]
    if path.suffix and not path.suffix[1:].isdigit():
        raise UserError(f"cannot draw {path.name}: the suffix must be one of {', '.join(SUFFIXES)}")
    return [path.with_name(path.name + suffix) for suffix in SUFFIXES]


def _check(points: Sequence[FrontierPoint], bounds: Sequence[FrontierPoint]) -> None:
    if not points:
        raise UserError("a frontier plot needs at least one policy, got none")
    for point in points:
        if not (math.isfinite(point.elapsed_s) and point.elapsed_s >= 0.0):
            raise UserError(f"point {point.name!r} has no finite mean time: {point.elapsed_s}")
        if _STYLES[point.kind].joined and point.delta_s is None:
            raise UserError(f"point {point.name!r} is of kind {point.kind!r} and needs delta_s")
    for point in (*points, *bounds):
        if not 0.0 <= point.exactly_once <= 1.0:
            raise UserError(f"point {point.name!r} has no share in 0..1: {point.exactly_once}")


def save_figure(figure: Figure, path: str | Path) -> list[Path]:
    """Write a figure as PNG and SVG, or as the one that the suffix of `path` names.

    Returns what was written. Raises UserError for another suffix, and when the file cannot be
    written.
    """
    targets = _targets(Path(path))
    for target in targets:
        _save(figure, target)
    return targets


def _save(figure: Figure, target: Path) -> None:
    from matplotlib import rc_context

    # Without the date, and with a fixed salt for identifiers, the same points give the same file.
    metadata = {"Date": None} if target.suffix == ".svg" else {}
    form = target.suffix[1:]
    try:
        with rc_context({"svg.hashsalt": "frontier"}):
            write_atomically(
                target, lambda temporary: figure.savefig(temporary, format=form, metadata=metadata)
            )
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror}") from error


def _draw(points: Sequence[FrontierPoint], bounds: Sequence[FrontierPoint], title: str) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.6, 5.8), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    marked = [*points, *(b for b in bounds if math.isfinite(b.elapsed_s))]
    _set_scales(axes, marked, bounds)
    for kind, style in _STYLES.items():
        _draw_kind(axes, [point for point in marked if point.kind == kind], style)
    _draw_bound_lines(axes, bounds)
    axes.set_xlabel("mean time of an episode (log scale)")
    axes.set_ylabel("exactly once, share of episodes")
    if title:
        axes.set_title(title, loc="left", fontsize=11, color=INK)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, title="bars: 95 % intervals")
    figure.draw_without_rendering()  # fixes the layout, so that labels can be measured against it
    figure.set_layout_engine("none")
    _draw_labels(axes, marked, bounds)
    return figure


def _set_scales(
    axes: Axes, marked: Sequence[FrontierPoint], bounds: Sequence[FrontierPoint]
) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    times = [end for point in marked for end in _span(point.elapsed_s, *_time_interval(point))]
    if min(times) > 0.0:
        axes.set_xscale("log")
        # At least a factor of 9, so that two ticks or more are in view.
        room = max(1.35, 3.0 * math.sqrt(min(times) / max(times)))
        axes.set_xlim(min(times) / room, max(times) * room)
    else:
        axes.set_xscale("symlog", linthresh=1.0)
        axes.set_xlim(-0.15, max(1.0, max(times)) * 1.35)
    left, right = axes.get_xlim()
    axes.xaxis.set_major_locator(FixedLocator([t for t in TICKS_S if left <= t <= right]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: format_seconds(seconds)))
    shares = [
        end
        for point in (*marked, *bounds)
        for end in _span(point.exactly_once, point.eos_low, point.eos_high)
    ]
    margin = max(0.06 * (max(shares) - min(shares)), 0.01)
    axes.set_ylim(min(shares) - margin, max(shares) + 1.4 * margin)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{round(100 * share, 6):g}%"))


def _draw_kind(axes: Axes, points: Sequence[FrontierPoint], style: _Style) -> None:
    if not points:
        return
    points = sorted(points, key=lambda point: point.delta_s or 0.0)
    x = np.array([point.elapsed_s for point in points])
    y = np.array([point.exactly_once for point in points])
    axes.errorbar(
        x,
        y,
        xerr=_bars(x, [_time_interval(point) for point in points]),
        yerr=_bars(y, [(point.eos_low, point.eos_high) for point in points]),
        fmt=style.marker,
        linestyle="-" if style.joined else "none",
        linewidth=1.4,
        elinewidth=1.0,
        ecolor=(style.colour, 0.45),
        color=style.colour,
        markersize=style.size,
        markeredgecolor="white",
        markeredgewidth=0.6,
        label=style.legend,
        zorder=3 if style.joined else 4,
    )


def _draw_bound_lines(axes: Axes, bounds: Sequence[FrontierPoint]) -> None:
    for share in sorted({bound.exactly_once for bound in bounds}):
        axes.axhline(share, color=INK, linewidth=1.0, linestyle=(0, (5, 3)), zorder=2)


def _draw_labels(
    axes: Axes, marked: Sequence[FrontierPoint], bounds: Sequence[FrontierPoint]
) -> None:
    """Label points by name or Δ, bounds without a marker at the right end of their line."""
    from matplotlib.patheffects import withStroke

    lone = [bound for bound in bounds if not math.isfinite(bound.elapsed_s)]
    right = axes.get_xlim()[1]
    texts = [(text, at, colour, False) for text, at, colour in _names(axes, marked)]
    texts += [(bound.name, (right, bound.exactly_once), INK, False) for bound in lone]
    texts += [
        (format_seconds(point.delta_s), (point.elapsed_s, point.exactly_once), style.colour, True)
        for point in marked
        if (style := _STYLES[point.kind]).joined and point.delta_s is not None
    ]
    anchors = _to_points(axes, np.array([at for _, at, _, _ in texts]))
    wanted = [
        Wanted((float(x), float(y)), _text_size(axes, text, optional), optional)
        for (text, _, _, optional), (x, y) in zip(texts, anchors, strict=True)
    ]
    window = axes.get_window_extent()
    scale = 72.0 / axes.figure.dpi
    frame = Box(window.x0 * scale, window.y0 * scale, window.x1 * scale, window.y1 * scale)
    spots = _to_points(axes, np.array([(p.elapsed_s, p.exactly_once) for p in marked]))
    obstacles = [
        Box(x - half, y - half, x + half, y + half)
        for (x, y), point in zip(spots, marked, strict=True)
        if (half := _STYLES[point.kind].size / 2.0)
    ]
    placed = place_labels(wanted, obstacles, _strokes(axes, marked, bounds), frame)
    for (text, at, colour, optional), anchor, label in zip(texts, anchors, placed, strict=True):
        if label is None:
            continue
        offset = (label.centre[0] - anchor[0], label.centre[1] - anchor[1])
        axes.annotate(
            text,
            xy=at,
            xytext=offset,
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=_font_size(optional),
            color=colour,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkB": 4}
            if label.leader
            else None,
            path_effects=[withStroke(linewidth=2.2, foreground="white")],
            zorder=5,
        )


def _names(
    axes: Axes, marked: Sequence[FrontierPoint]
) -> list[tuple[str, tuple[float, float], str]]:
    """Names to show; points that lie on one another share a label."""
    named = [point for point in marked if not _STYLES[point.kind].joined]
    if not named:
        return []
    spots = _to_points(axes, np.array([(p.elapsed_s, p.exactly_once) for p in named]))
    groups: list[list[int]] = []
    for index, spot in enumerate(spots):
        for group in groups:
            if math.dist(spots[group[0]], spot) < SAME_SPOT:
                group.append(index)
                break
        else:
            groups.append([index])
    labels = []
    for group in groups:
        members = [named[index] for index in group]
        kinds = {point.kind for point in members}
        colour = _STYLES[members[0].kind].colour if len(kinds) == 1 else INK
        at = (members[0].elapsed_s, members[0].exactly_once)
        labels.append((",\n".join(point.name for point in members), at, colour))
    return labels


def _strokes(
    axes: Axes, marked: Sequence[FrontierPoint], bounds: Sequence[FrontierPoint]
) -> NDArray[np.float64]:
    """Points along everything that is drawn as a line, (k, 2) [pt]."""
    left, right = axes.get_xlim()
    segments = [((left, b.exactly_once), (right, b.exactly_once)) for b in bounds]
    for kind, style in _STYLES.items():
        curve = sorted((p for p in marked if p.kind == kind), key=lambda p: p.delta_s or 0.0)
        if style.joined:
            corners = [(point.elapsed_s, point.exactly_once) for point in curve]
            segments += pairwise(corners)
    for point in marked:
        low_s, high_s = _span(point.elapsed_s, *_time_interval(point))[1:]
        low, high = _span(point.exactly_once, point.eos_low, point.eos_high)[1:]
        segments.append(((low_s, point.exactly_once), (high_s, point.exactly_once)))
        segments.append(((point.elapsed_s, low), (point.elapsed_s, high)))
    ends = _to_points(axes, np.array(segments).reshape(-1, 2)).reshape(-1, 2, 2)
    return np.concatenate(
        [np.linspace(start, end, 2 + int(np.hypot(*(end - start)) / 4.0)) for start, end in ends]
    )


def _to_points(axes: Axes, data: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turn data coordinates (k, 2) into points on the page [pt]."""
    points: NDArray[np.float64] = axes.transData.transform(data) * (72.0 / axes.figure.dpi)
    return points


def _text_size(axes: Axes, text: str, optional: bool) -> tuple[float, float]:
    """Width and height of a text on the page [pt], with a hair of air around it."""
    probe = axes.text(0, 0, text, fontsize=_font_size(optional))
    extent = probe.get_window_extent()
    probe.remove()
    scale = 72.0 / axes.figure.dpi
    return extent.width * scale + 2.0, extent.height * scale + 1.0


def _font_size(optional: bool) -> float:
    return 8.0 if optional else 9.0


def _time_interval(point: FrontierPoint) -> tuple[float, float]:
    return point.elapsed_low_s, point.elapsed_high_s


def _span(value: float, low: float, high: float) -> tuple[float, float, float]:
    """Return the value and the ends of its interval, the value itself for ends not there."""
    return (
        value,
        low if math.isfinite(low) else value,
        high if math.isfinite(high) else value,
    )


def _bars(
    values: NDArray[np.float64], intervals: Sequence[tuple[float, float]]
) -> NDArray[np.float64]:
    """Lengths below and above each value as matplotlib wants them, (2, k)."""
    ends = [
        _span(float(value), *interval)[1:]
        for value, interval in zip(values, intervals, strict=True)
    ]
    low, high = np.array(ends).T
    lengths: NDArray[np.float64] = np.maximum(np.stack([values - low, high - values]), 0.0)
    return lengths


def format_seconds(seconds: float) -> str:
    """Write a time in its largest even unit: `45 s`, `5 min`, `1.5 h`, `2 d`."""
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= length and round(seconds / length, 1) * length == seconds:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"
