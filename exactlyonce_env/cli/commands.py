"""The table of commands: what `exactlyonce --help` lists without importing any of their modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

__all__ = ["COMMANDS", "LazyCommand"]


@dataclass(frozen=True)
class LazyCommand:
    """Where a command's function stands, and the line that describes it in the list of commands."""

    module: str  # in this package
    function: str
    help: str

    def load(self) -> Callable[..., None]:
        """Import the module and return the function."""
        function: Callable[..., None] = getattr(
            import_module(f"exactlyonce_env.cli.{self.module}"), self.function
        )
        return function


COMMANDS: dict[str, LazyCommand] = {
    "evaluate": LazyCommand("evaluate", "evaluate", "Compare policies on the same worlds."),
    "sweep": LazyCommand("evaluate", "sweep", "Find the waiting bound: one row per delta."),
    "bounds": LazyCommand("bounds", "bounds", "Compute what the best honest policy can earn."),
    "explain": LazyCommand("bounds", "explain", "Explain each step of a world by the optimum."),
    "export": LazyCommand("export", "export", "Write a learned policy as an ONNX model."),
    "fit": LazyCommand("measure", "fit", "Read measured delays and fit delay laws to them."),
    "train": LazyCommand("train", "train", "Train a policy and evaluate it on held-out worlds."),
    "presets": LazyCommand("world", "presets", "List the presets, or print one to copy and edit."),
    "worlds": LazyCommand("world", "worlds", "Print drawn worlds, hidden fates included."),
    "replay": LazyCommand("world", "replay", "Step one world through given actions."),
    "serve": LazyCommand("sandbox", "serve", "Serve sandbox episodes by MCP or HTTP, or a model."),
    "play": LazyCommand("sandbox", "play", "Play a sandbox episode by hand."),
    "grade": LazyCommand("sandbox", "grade", "Print the measures of episodes that were served."),
    "agent": LazyCommand("agent", "agent", "Run a language model as an agent of the sandbox."),
    "view": LazyCommand("view", "view", "Look at the transcripts of a run in the browser."),
    "prompts": LazyCommand("models", "prompts", "Print what language models are told."),
    "probe": LazyCommand("probe", "probe", "Ask for one decision after a timeout."),
    "probe-report": LazyCommand(
        "probe_report", "probe_report", "Counts, intervals and tests of recorded responses."
    ),
    "cases": LazyCommand("cases", "cases", "Play small recoveries with tools, or grade one."),
    "stats": LazyCommand("stats", "stats", "Compute one statistic from counts."),
    "compare": LazyCommand("compare", "compare", "Compare two runs on the same worlds, paired."),
    "plan": LazyCommand("stats", "plan", "Say how many worlds a comparison needs."),
    "incident": LazyCommand("incident", "incident", "Replay a reported incident and its remedy."),
    "bench": LazyCommand("bench", "bench", "Measure steps per second beside Gymnasium's CartPole."),
}
