"""The two plots of `evaluation.persistence`, drawn like the frontier's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from evaluation.frontier import INK, TICKS_S, format_seconds, save_figure
from evaluation.persistence import Curve, DecisionMap, Persistence
from exactlyonce_env.vocabulary import Action
from policies.bayes.quiet import SENDS

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RATIO_LABEL = "cost of a duplicate / cost of an hour [h], log scale"

FINE_TICKS_S = (1, 2, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, 480, 600, 900, 1800, 3600)
FEW_TICKS = 4  # with fewer than these the finer ones are shown


@dataclass(frozen=True, slots=True)
class _Stroke:
    colour: str
    dashes: str | tuple[int, tuple[float, ...]]


_STROKES: dict[str, _Stroke] = {
    "fixed": _Stroke("#555555", (0, (1, 1.2))),
    "exponential": _Stroke("#0072B2", "-"),
    "log-uniform": _Stroke("#007A5A", "-"),
    "lognormal": _Stroke("#B0518B", (0, (5, 1.5))),
    "Weibull": _Stroke("#D55E00", (0, (5, 1.5, 1, 1.5))),
    "Lomax": _Stroke("#2B9FD8", (0, (3, 1.2))),
}
_OWN_STROKE = _Stroke(INK, "-")


@dataclass(frozen=True, slots=True)
class _Fill:
    colour: str
    label: str  # within the map
    legend: str


_FILLS: dict[Action, _Fill] = {
    Action.WAIT: _Fill("#A9D5F0", "wait,\nthen look again", "wait, then look again"),
    Action.READ: _Fill("#4A90C2", "read again", "read again at once"),
    Action.RETRY: _Fill("#EE9A5A", "re-issue", "re-issue"),
    Action.KEYED_RETRY: _Fill("#63BFA0", "re-issue\nwith the key", "re-issue with the key"),
    Action.ESCALATE: _Fill("#D9A3C4", "ask the\noperator", "ask the operator"),
    Action.FINISH: _Fill("#F2E58A", "claim\ncompletion", "claim completion"),
    Action.FINISH_UNCERTAIN: _Fill("#BFBFBF", "end as\nuncertain", "end as uncertain"),
}
"""Tints of the palette of Okabe and Ito, of different lightness, under dark text."""

_LEAVES: dict[Action | None, str] = {
    Action.FINISH: "claims completion",
    Action.FINISH_UNCERTAIN: "ends as uncertain",
    None: "runs out of calls",
}


def plot_persistence(found: Persistence, path: str | Path) -> list[Path]:
    """Draw how long the optimum holds out against the ratio, one line for each law.

    `path` ends in `.png` or `.svg`, or has neither and both are written. Returns what was written.

    Raises UserError for another suffix, and when the file cannot be written.
    """
    return save_figure(persistence_figure(found), path)


def plot_decision_map(found: DecisionMap, path: str | Path) -> list[Path]:
    """Draw the optimal action over elapsed time and ratio; files and errors as above."""
    return save_figure(decision_figure(found), path)


def persistence_figure(found: Persistence) -> Figure:
    """The plot of `plot_persistence` as a matplotlib figure."""
    from matplotlib import rc_context

    with rc_context({"font.size": 9.5}):
        figure, axes = _new_figure()
        _draw_curves(axes, found)
        axes.set_title(
            f"{_title(found.preset, found.context)}: how long the optimum holds out before it "
            "re-issues",
            loc="left",
            fontsize=11,
            color=INK,
        )
        axes.set_xlabel(RATIO_LABEL)
        axes.set_ylabel("first re-issue, time since the sending (log scale)")
        handles, labels = _legend(axes, found)
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=4,
            frameon=False,
            title=f"delays of late writes, all with a median of {_seconds(found.median_s)}; "
            "nothing ever shows",
        )
        axes.grid(color="#dddddd", linewidth=0.6)
        _mark_own_ratio(axes, found.own_ratio_h, across=False)
        figure.draw_without_rendering()  # fixes the layout, so that labels can be measured
        figure.set_layout_engine("none")
        _label_ends(axes, found)
        return figure


def decision_figure(found: DecisionMap) -> Figure:
    """The plot of `plot_decision_map` as a matplotlib figure."""
    from matplotlib import rc_context
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    with rc_context({"font.size": 9.5}):
        figure, axes = _new_figure()
        colours = ListedColormap([_FILLS[action].colour for action in sorted(_FILLS)])
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.pcolormesh(
            _edges(found.elapsed_s),
            _edges(found.ratios_h),
            found.actions,
            cmap=colours,
            vmin=-0.5,
            vmax=len(_FILLS) - 0.5,
            rasterized=True,
        )
        _time_ticks(axes, "x")
        _ratio_ticks(axes, "y")
        axes.set_title(
            f"{_title(found.preset, found.context)}: what the optimum does, having seen nothing "
            "so far",
            loc="left",
            fontsize=11,
            color=INK,
        )
        axes.set_xlabel("time since the sending, right after a read (log scale)")
        axes.set_ylabel(RATIO_LABEL)
        present = [action for action in sorted(_FILLS) if np.any(found.actions == action)]
        figure.legend(
            handles=[
                Patch(facecolor=_FILLS[a].colour, edgecolor="#777777", label=_FILLS[a].legend)
                for a in present
            ],
            loc="outside lower center",
            ncols=4,
            frameon=False,
        )
        _mark_own_ratio(axes, found.own_ratio_h, across=True)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for action in present:
            _label_region(axes, found, action)
        return figure


def _new_figure() -> tuple[Figure, Axes]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.6, 5.8), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _title(preset: str, context: str) -> str:
    return (
        preset if context == preset or context.startswith(f"{preset}/") else f"{preset}, {context}"
    )


def _seconds(seconds: float) -> str:
    return format_seconds(float(f"{seconds:.3g}"))


def _stroke(curve: Curve) -> _Stroke:
    return _STROKES.get(curve.family, _OWN_STROKE)


def _name(curve: Curve, preset: str) -> str:
    if curve.family not in _STROKES:
        return f"own law ({preset})"
    return f"{curve.family} ({preset})" if curve.own else curve.family


def _draw_curves(axes: Axes, found: Persistence) -> None:
    ratios = np.array(found.ratios_h)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for curve in found.curves:
        stroke = _stroke(curve)
        times = np.array([held.elapsed_s for held in curve.held])
        sends = np.array([held.action in SENDS for held in curve.held])
        axes.plot(
            ratios,
            np.where(sends, times, np.nan),
            color=stroke.colour,
            linestyle=stroke.dashes,
            linewidth=2.6 if curve.own else 1.7,
            label=_name(curve, found.preset),
            zorder=4 if curve.own else 3,
        )
        axes.plot(
            ratios[~sends],
            times[~sends],
            color=INK,
            linestyle="none",
            marker="x",
            markersize=4.5,
            markevery=2,
        )
    every = [held.elapsed_s for curve in found.curves for held in curve.held]
    axes.set_ylim(min(every) / 1.6, max(every) * 1.5)
    axes.set_xlim(ratios[0], ratios[-1] * 3.5)  # room for the names
    _time_ticks(axes, "y")
    _ratio_ticks(axes, "x", ratios[-1])


def _legend(axes: Axes, found: Persistence) -> tuple[list[Artist], list[str]]:
    from matplotlib.lines import Line2D

    handles, labels = axes.get_legend_handles_labels()
    leaving = {
        _LEAVES[held.action]
        for curve in found.curves
        for held in curve.held
        if held.action not in SENDS
    }
    if leaving:
        handles.append(Line2D([], [], color=INK, linestyle="none", marker="x", markersize=4.5))
        labels.append(f"no re-issue: {' or '.join(sorted(leaving))}")
    return handles, labels


def _label_ends(axes: Axes, found: Persistence) -> None:
    """Name each line at its right end, spread so that no name covers another."""
    wanted = []
    for curve in found.curves:
        ends = [
            (ratio, held.elapsed_s)
            for ratio, held in zip(found.ratios_h, curve.held, strict=True)
            if held.action in SENDS
        ]
        if ends:
            wanted.append((ends[-1], curve))
    scale = 72.0 / axes.figure.dpi
    wanted.sort(key=lambda entry: entry[0][1])
    spots = [axes.transData.transform(at) * scale for at, _ in wanted]
    heights = _spread([float(y) for _, y in spots], 11.5)
    for (at, curve), (_, y), height in zip(wanted, spots, heights, strict=True):
        axes.annotate(
            curve.family if curve.family in _STROKES else "own law",
            xy=at,
            xytext=(9.0, height - float(y)),
            textcoords="offset points",
            va="center",
            fontsize=9.0,
            fontweight="bold" if curve.own else "normal",
            color=_stroke(curve).colour,
            arrowprops={
                "arrowstyle": "-",
                "color": _stroke(curve).colour,
                "linewidth": 0.6,
                "relpos": (0.0, 0.5),
                "shrinkA": 0,
                "shrinkB": 0,
            },
            annotation_clip=False,
        )


def _spread(heights: Sequence[float], gap: float) -> list[float]:
    """Move ascending heights apart to at least ``gap``, groups staying around their mean."""
    groups: list[list[float]] = []  # members' wanted heights
    for height in heights:
        groups.append([height])
        while len(groups) > 1:
            low, high = groups[-2], groups[-1]
            apart = np.mean(high) - np.mean(low)
            if apart >= gap * (len(low) + len(high)) / 2.0:
                break
            groups[-2:] = [low + high]
    return [
        float(np.mean(group)) + gap * (k - (len(group) - 1) / 2.0)
        for group in groups
        for k in range(len(group))
    ]


def _mark_own_ratio(axes: Axes, ratio_h: float, *, across: bool) -> None:
    """A dotted line at the preset's own ratio, where the plot holds it."""
    low, high = axes.get_ylim() if across else axes.get_xlim()
    if not low < ratio_h < high:
        return
    draw = axes.axhline if across else axes.axvline
    draw(ratio_h, color=INK, linewidth=1.1, linestyle=(0, (1, 2)), zorder=2)
    text = f"own costs: {ratio_h:.3g} h"
    if across:
        at, where, place = (0.008, ratio_h), axes.get_yaxis_transform(), ("left", "bottom")
    else:
        at, where, place = (ratio_h, 0.985), axes.get_xaxis_transform(), ("right", "top")
    axes.annotate(
        text,
        at,
        xycoords=where,
        xytext=(0.0 if across else -3.0, 2.0),
        textcoords="offset points",
        ha=place[0],
        va=place[1],
        fontsize=8.5,
        color=INK,
    )


def _label_region(axes: Axes, found: DecisionMap, action: Action) -> None:
    """Write an action's name at the roomiest place of its largest region, if it fits there."""
    from scipy import ndimage

    text = axes.text(1.0, 1.0, _FILLS[action].label, ha="center", va="center", color=INK)
    box, size = axes.get_window_extent(), text.get_window_extent()
    regions, n = ndimage.label(found.actions == action)
    sizes = ndimage.sum_labels(np.ones_like(regions), regions, range(1, n + 1))
    largest = regions == 1 + int(np.argmax(sizes))
    if found.ratios_h[0] < found.own_ratio_h < found.ratios_h[-1]:
        largest[np.argmin(np.abs(np.log(found.ratios_h / found.own_ratio_h)))] = False  # a line
    region = np.pad(largest, 1)
    # Distances to the border in units of half the text's height and width.
    rows, columns = found.actions.shape
    cell = (2.0 * box.height / rows / size.height, 2.0 * box.width / columns / size.width)
    room = ndimage.distance_transform_edt(region, sampling=cell)[1:-1, 1:-1]
    row, column = np.unravel_index(int(np.argmax(room)), room.shape)
    if room[row, column] < math.sqrt(2.0):
        text.remove()
        return
    text.set_position((float(found.elapsed_s[column]), float(found.ratios_h[row])))


def _edges(centres: NDArray[np.float64]) -> NDArray[np.float64]:
    """Borders (k + 1,) around ascending centres (k,) on a logarithmic scale."""
    logs = np.log(centres)
    middles = 0.5 * (logs[1:] + logs[:-1])
    ends = (2.0 * logs[0] - middles[0], 2.0 * logs[-1] - middles[-1])
    return np.exp(np.concatenate([ends[:1], middles, ends[1:]]))


def _time_ticks(axes: Axes, which: str) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    fine = [t for t in FINE_TICKS_S if low <= t <= high]
    coarse = [t for t in TICKS_S if low <= t <= high]
    axis.set_major_locator(FixedLocator(fine if len(coarse) < FEW_TICKS else coarse))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda seconds, _: format_seconds(seconds)))


def _ratio_ticks(axes: Axes, which: str, end: float = math.inf) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    decades = [10.0**k for k in range(-9, 10)]
    axis.set_major_locator(FixedLocator([d for d in decades if low <= d <= min(high, end * 1.001)]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}"))
