"""The plot of stated beliefs against exact posteriors: a calibration curve for each model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation.frontier import INK, save_figure
from policies.llm.prompts import STATES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["belief_figure", "plot_beliefs"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#B0518B", "#E69F00", "#555555")
MARKERS = "os^Dv*"
NAMES = {"absent": "absent", "committed": "committed", "in_flight": "in flight"}


def plot_beliefs(rows: Sequence[Mapping[str, Any]], path: str | Path, title: str) -> list[Path]:
    """Draw the curves of the rows that have beliefs; nothing where none has.

    `path` ends in `.png` or `.svg`, or has neither and both are written. Returns what was written.

    Raises UserError for another suffix, and when the file cannot be written.
    """
    stated = [row for row in rows if row.get("belief")]
    return save_figure(belief_figure(stated, title), path) if stated else []


def belief_figure(rows: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """The plot as a matplotlib figure; dots grow with the number of decisions in their bin."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"font.size": 9.5}):
        figure = Figure(figsize=(9.6, 4.2), dpi=150, layout="constrained")
        panels = figure.subplots(1, len(STATES), sharex=True, sharey=True)
        for axes, state in zip(panels, STATES, strict=True):
            axes.plot((0, 1), (0, 1), color="#999999", linewidth=1.0, linestyle="--")
            for k, row in enumerate(rows):
                curve = row["belief"]["curve"][state]
                total = row["belief"]["n"]
                sizes = [14 + 120 * entry["n"] / total for entry in curve]
                xs = [entry["stated"] for entry in curve]
                ys = [entry["exact"] for entry in curve]
                colour, marker = COLOURS[k % len(COLOURS)], MARKERS[k % len(MARKERS)]
                axes.plot(xs, ys, color=colour, linewidth=1.2)
                label = f"{row['policy']}: Brier {row['belief']['brier']:.3f}"
                axes.scatter(xs, ys, s=sizes, color=colour, marker=marker, label=label, zorder=3)
            axes.set_title(f"P({NAMES[state]})", fontsize=10, color=INK)
            axes.set_xlabel("stated")
            axes.grid(color="#dddddd", linewidth=0.6)
            axes.set_xlim(-0.03, 1.03)
            axes.set_ylim(-0.03, 1.03)
            axes.set_aspect("equal")
        panels[0].set_ylabel("exact, mean of the bin")
        heading = f"{title}: what models believe, against the exact posterior"
        figure.suptitle(heading, x=0.01, ha="left")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure
