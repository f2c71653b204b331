"""The picture of an episode: what the client saw above, what really happened below.

Both halves share one axis of time, logarithmic from ten seconds on, so that a time-out of 30 s and
a commit two hours later fit into one picture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from exactlyonce_env.vocabulary import Action, Ending, Key, Response

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from exactlyonce_env.envs.story import Sent, Story

WIDTH, HEIGHT, DPI = 960, 600, 100  # pixels, pixels, pixels per inch

# Okabe and Ito's colours, told apart by colour-blind readers.
GREEN, ORANGE, RED, BLUE, PURPLE, SKY = (
    "#009E73",
    "#E69F00",
    "#D55E00",
    "#0072B2",
    "#CC79A7",
    "#56B4E9",
)
GREY, PALE, AFTER, INK = "#8A8A8A", "#F4F4F2", "#E2E2DE", "#222222"

RESPONSES: dict[Response, tuple[str, str]] = {
    Response.SUCCESS: ("success", GREEN),
    Response.TIMEOUT: ("time-out", ORANGE),
    Response.SERVER_ERROR: ("HTTP 500", RED),
    Response.RATE_LIMITED: ("HTTP 429", GREY),
    Response.UNAVAILABLE: ("HTTP 503", GREY),
    Response.SCHEMA: ("HTTP 422", GREY),
    Response.CONFLICT: ("HTTP 409", GREY),
}
KEYS: dict[Key, str] = {Key.NONE: "", Key.PINNED: ", key", Key.OTHER: ", other key"}
ENDINGS: dict[Ending, str] = {
    Ending.RUNNING: "now",
    Ending.CLAIMED: "finished: done",
    Ending.UNCERTAIN: "finished: uncertain",
    Ending.EXHAUSTED: "budget used up",
}
TICKS: tuple[tuple[float, str], ...] = (
    (0, "0"),
    (5, "5 s"),
    (15, "15 s"),
    (30, "30 s"),
    (60, "1 min"),
    (150, "2.5 min"),
    (300, "5 min"),
    (900, "15 min"),
    (1800, "30 min"),
    (3600, "1 h"),
    (7200, "2 h"),
    (21600, "6 h"),
    (86400, "1 d"),
    (259200, "3 d"),
    (604800, "1 wk"),
    (2592000, "30 d"),
)
SCALE_S = 10.0  # the axis is linear below and logarithmic above
EXACTLY_ONCE = "exactly once"


def picture(story: Story) -> npt.NDArray[np.uint8]:
    """Draw an episode: (600, 960, 3) uint8."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / DPI, HEIGHT / DPI), dpi=DPI, facecolor="white")
    canvas = FigureCanvasAgg(figure)
    upper = _rows_above(story)
    lower = max(len(story.attempts), 1)
    above, below = figure.subplots(
        2, 1, sharex=True, height_ratios=(max(len(upper), 2) + 0.4, max(lower, 2) + 0.4)
    )
    figure.subplots_adjust(left=0.182, right=0.975, top=0.885, bottom=0.155, hspace=0.24)
    _axis_of_time(story, above, below)
    _draw_client(story, above, upper)
    _draw_truth(story, below)
    figure.text(0.012, 0.975, story.title, fontsize=10, color=INK, va="top", weight="bold")
    _legend(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    return np.ascontiguousarray(pixels[:, :, :3])


def _place(seconds: Any) -> Any:
    """Where a time stands on the axis; linear below 0, where only the left margin lies."""
    scaled = np.asarray(seconds) / SCALE_S
    return np.where(scaled < 0.0, scaled, np.log1p(np.maximum(scaled, 0.0)))


def _time(place: Any) -> Any:
    """The time at a place: the inverse of `_place`."""
    place = np.asarray(place)
    return SCALE_S * np.where(place < 0.0, place, np.expm1(np.maximum(place, 0.0)))


def _axis_of_time(story: Story, above: Axes, below: Axes) -> None:
    last_s = max([60.0, story.clock_s, *_moments(story)])
    below.set_xscale("function", functions=(_place, _time))
    width = float(_place(last_s))
    below.set_xlim(float(_time(-0.02 * width)), float(_time(1.07 * width)))
    right_s = below.get_xlim()[1]
    shown = [(s, text) for s, text in TICKS if s <= right_s]
    gap = float(_place(right_s)) / 16
    kept: list[tuple[float, str]] = []
    for tick in shown:
        if not kept or float(_place(tick[0]) - _place(kept[-1][0])) >= gap:
            kept.append(tick)
    below.set_xticks([s for s, _ in kept], [text for _, text in kept])
    below.minorticks_off()
    for axes in (above, below):
        axes.set_facecolor(PALE)
        axes.grid(axis="x", color="white", linewidth=1.2)
        axes.set_axisbelow(True)
        axes.tick_params(length=0, labelsize=8, colors=INK)
        axes.spines[:].set_visible(False)
        axes.axvline(story.clock_s, color=INK, linewidth=1.0, zorder=4)
    above.tick_params(labelbottom=False)


def _moments(story: Story) -> Iterator[float]:
    """Times [s] that the axis must reach."""
    for attempt in story.attempts:
        fortune = attempt.fortune
        yield attempt.answered_s
        for at_s in (fortune.arrival_s, fortune.execution_s, fortune.copy_s):
            if at_s is not None and at_s < 1e7:
                yield at_s + (story.lag_s if at_s != fortune.arrival_s else 0.0)


def _rows_above(story: Story) -> list[str]:
    kinds = {event.kind for event in story.events}
    rows = [f"attempt {j}{KEYS[sent.key]}" for j, sent in enumerate(story.attempts)]
    rows += ["reads"] if Action.READ in kinds else []
    rows += ["waits"] if Action.WAIT in kinds else []
    rows += ["operator"] if Action.ESCALATE in kinds else []
    return rows or ["nothing sent yet"]


def _label_rows(axes: Axes, rows: list[str], heading: str) -> None:
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(max(len(rows), 2) - 0.4, -0.6)
    axes.annotate(
        heading,
        (0.0, 1.0),
        xycoords="axes fraction",
        xytext=(-4, 5),
        textcoords="offset points",
        ha="right",
        fontsize=9,
        weight="bold",
        color=INK,
    )


def _draw_client(story: Story, axes: Axes, rows: list[str]) -> None:
    _label_rows(axes, rows, "What the client saw")
    _flag(axes, story)
    for j, sent in enumerate(story.attempts):
        text, colour = RESPONSES[sent.response]
        _bar(axes, j, sent.sent_s, sent.answered_s, colour, 0.5)
        _word(axes, story, sent.answered_s, j, text, colour)
    for event in story.events:
        if event.kind == Action.READ:
            _draw_report(axes, story, rows.index("reads"), event.start_s, event.shown, BLUE)
        elif event.kind == Action.WAIT:
            _bar(axes, rows.index("waits"), event.start_s, event.end_s, SKY, 0.22, "white")
        elif event.kind == Action.ESCALATE:
            row = rows.index("operator")
            _bar(axes, row, event.start_s, event.end_s, PURPLE, 0.22)
            _draw_report(axes, story, row, event.end_s, event.shown, PURPLE)


def _draw_report(axes: Axes, story: Story, row: int, at_s: float, shown: int, colour: str) -> None:
    """A filled dot: effects were shown; a ring: none were; a cross: no answer or an error."""
    if shown < 0:
        axes.plot(at_s, row, "x", color=colour, markersize=7, markeredgewidth=2, zorder=5)
        return
    count = shown.bit_count()
    full = count == story.n_items
    fill = colour if full else "white"
    axes.plot(at_s, row, "o", color=colour, markerfacecolor=fill, markersize=8, zorder=5)
    if 0 < count < story.n_items:
        _word(axes, story, at_s, row, f"{count}/{story.n_items}", colour)


def _draw_truth(story: Story, axes: Axes) -> None:
    rows = [f"{j}: {sent.fortune.mode}" for j, sent in enumerate(story.attempts)]
    _label_rows(axes, rows or ["nothing sent yet"], "What really happened")
    if story.ending != Ending.RUNNING:
        right_s = axes.get_xlim()[1]
        axes.axvspan(story.clock_s, right_s, color=AFTER, zorder=0)
        verdict = _verdict(story)
        axes.annotate(
            verdict,
            (1.0, 1.0),
            xycoords="axes fraction",
            xytext=(-2, 5),
            textcoords="offset points",
            ha="right",
            fontsize=9.5,
            weight="bold",
            color=GREEN if verdict == EXACTLY_ONCE else RED,
        )
    for j, sent in enumerate(story.attempts):
        _draw_fortune(axes, story, j, sent)


def _draw_fortune(axes: Axes, story: Story, row: int, sent: Sent) -> None:
    fortune = sent.fortune
    if fortune.arrival_s is None:
        _nothing(axes, story, row, sent.sent_s, "never arrived")
        return
    axes.plot([sent.sent_s, fortune.arrival_s], [row, row], ":", color=GREY, linewidth=2, zorder=2)
    if fortune.execution_s is None:
        text = "answered by its key" if fortune.items_suppressed else "had no effect"
        _nothing(axes, story, row, fortune.arrival_s, text)
        return
    _bar(axes, row, fortune.arrival_s, fortune.execution_s, GREY, 0.22)
    _effect(
        axes, story, row, fortune.execution_s, len(fortune.items_executed), sent.duplicates, "*"
    )
    if fortune.copy_s is not None:
        copied = len(fortune.copy_items)
        _effect(axes, story, row, fortune.copy_s, copied, sent.copy_duplicates, "D")


def _effect(
    axes: Axes, story: Story, row: int, at_s: float, items: int, duplicate: bool, marker: str
) -> None:
    """An effect, and from when on an eventual read shows it."""
    colour = RED if duplicate else GREEN
    if story.lag_s > 0:
        until_s = at_s + story.lag_s
        axes.plot([at_s, until_s], [row, row], "-", color=colour, linewidth=1, zorder=3)
        axes.plot(until_s, row, "|", color=colour, markersize=9, zorder=3)
    size = 15 if marker == "*" else 7
    axes.plot(at_s, row, marker, color=colour, markersize=size, markeredgewidth=0, zorder=6)
    if story.n_items > 1:
        axes.annotate(
            f"{items}/{story.n_items}",
            (at_s, row),
            xytext=(0, 8),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=colour,
            zorder=7,
        )


def _nothing(axes: Axes, story: Story, row: int, at_s: float, text: str) -> None:
    axes.plot(at_s, row, "x", color=GREY, markersize=8, markeredgewidth=2, zorder=5)
    _word(axes, story, at_s, row, text, GREY)


def _bar(
    axes: Axes,
    row: int,
    from_s: float,
    to_s: float,
    colour: str,
    height: float,
    edge: str | None = None,
) -> None:
    """A bar; an edge of its own colour keeps a second visible where a pixel is a minute."""
    bar = axes.barh(row, to_s - from_s, left=from_s, height=height, color=colour, zorder=2)
    bar[0].set_edgecolor(edge or colour)


def _word(axes: Axes, story: Story, at_s: float, row: int, text: str, colour: str) -> None:
    """A word beside a point of a row: to its right, or to its left near the right edge."""
    edge = float(_place(axes.get_xlim()[1]))
    near = float(_place(at_s)) > 0.86 * edge
    axes.annotate(
        text,
        (at_s, row),
        xytext=(-9 if near else 9, 0),
        textcoords="offset points",
        ha="right" if near else "left",
        va="center",
        fontsize=8,
        color=colour,
        bbox={"facecolor": PALE, "edgecolor": "none", "pad": 0.8},
        zorder=7,
    )


def _flag(axes: Axes, story: Story) -> None:
    """Name the line that marks the present, above the upper half."""
    near = float(_place(story.clock_s)) > 0.8 * float(_place(axes.get_xlim()[1]))
    axes.annotate(
        ENDINGS[story.ending],
        (story.clock_s, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(-3 if near else 3, 5),
        textcoords="offset points",
        ha="right" if near else "left",
        fontsize=8.5,
        color=INK,
    )


def _verdict(story: Story) -> str:
    duplicated = any(sent.duplicates or sent.copy_duplicates for sent in story.attempts)
    if duplicated:
        return "duplicated, and not complete" if story.missing else "duplicated"
    if story.missing == story.n_items:
        return "never happened"
    return "not complete" if story.missing else EXACTLY_ONCE


def _legend(figure: Any) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def point(marker: str, colour: str, text: str, **style: Any) -> Line2D:
        return Line2D([], [], marker=marker, color=colour, linestyle="", label=text, **style)

    figure.legend(
        handles=[
            point("o", BLUE, "a report of the whole effect"),
            point("o", BLUE, "a report of less", markerfacecolor="white"),
            point("x", BLUE, "no report"),
            Line2D([], [], color=GREY, linestyle=":", label="request in transit", linewidth=2),
            Line2D([], [], color=GREY, label="request held by the service", linewidth=4),
            Patch(color=AFTER, label="after the client finished"),
            point("*", GREEN, "effect", markersize=10),
            point("*", RED, "duplicate effect", markersize=10),
            point("D", RED, "effect of a redelivered copy", markersize=5),
            point("|", GREEN, "from here on reads show it", markersize=9),
        ],
        loc="lower center",
        ncols=5,
        fontsize=7.5,
        frameon=False,
        handletextpad=0.6,
        columnspacing=1.6,
        labelcolor=INK,
    )
