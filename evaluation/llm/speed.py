"""Model calls per second through the whole stack, beside the bare SDK, at a fake endpoint.

Both ask the same endpoint in the same run: the bare SDK sends one request over and over, the stack
plays episodes, which renders views, keeps every call in its store and reads every answer strictly.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from evaluation.llm.fake import FakeProcess
from evaluation.llm.models import ModelOptions
from evaluation.runner import evaluate
from exactlyonce_env.episode import Walk
from exactlyonce_env.plan import Plan
from exactlyonce_env.presets import load_plan
from policies.llm.asking import Question, Settings
from policies.llm.endpoint import CHAT, OpenAIEndpoint
from policies.llm.policy import LLMPolicy
from policies.llm.prompts import DEFAULT

__all__ = ["model_speed"]

PRESET = "late-tail"
EPISODES = 200
"""Episodes at the same time."""
SOCKETS = 8
"""Requests in flight at the same time: the SDK is fastest with few."""


def model_speed(
    *, worlds: int = 1000, rounds: int = 3, progress: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Measure the stack and the bare SDK, in turn.

    Parameters
    ----------
    worlds
        Episodes a round.
    rounds
        Rounds; the medians are reported.
    progress
        Called with what is measured.

    Returns
    -------
    ``calls_per_s`` and ``sdk_calls_per_s`` (medians), their ``ratio``, ``calls`` of the last round,
    ``episodes_open``, ``sockets``, and ``memory_growth_mib``: how much the peak of memory rose
    after the first round.
    """
    plan = load_plan(PRESET)
    ours, bare, peaks = [], [], []
    calls = 0
    with FakeProcess("patient") as fake:
        settings = Settings(base_url=fake.base_url, sockets=SOCKETS)
        _stack(plan, settings, 20)
        for number in range(rounds):
            if progress is not None:
                progress(f"round {number + 1} of {rounds}")
            calls, seconds = _stack(plan, settings, worlds)
            ours.append(calls / seconds)
            bare.append(_sdk_rate(plan, settings, calls))
            peaks.append(_peak_mib())
    ours.sort()
    bare.sort()
    middle = rounds // 2
    return {
        "calls_per_s": ours[middle],
        "sdk_calls_per_s": bare[middle],
        "ratio": ours[middle] / bare[middle],
        "calls": calls,
        "worlds": worlds,
        "rounds": rounds,
        "episodes_open": EPISODES,
        "sockets": SOCKETS,
        "memory_growth_mib": peaks[-1] - peaks[0],
    }


def _stack(plan: Plan, settings: Settings, worlds: int) -> tuple[int, float]:
    """Play worlds; the number of calls and the seconds they took."""
    policy = LLMPolicy("fake", settings=settings)
    with TemporaryDirectory() as folder:
        began_s = time.perf_counter()
        found = evaluate(
            plan,
            [policy],
            worlds=worlds,
            out=Path(folder) / "run",
            models=ModelOptions(concurrency=EPISODES),
        )
        seconds = time.perf_counter() - began_s
    return found.accounts[policy.spec].n_calls, seconds


def _sdk_rate(plan: Plan, settings: Settings, calls: int) -> float:
    """Requests per second of the bare SDK, with as many in flight."""
    view = Walk(plan, 0, 0).view
    body = Question(view.seen, view.contract, DEFAULT, "text").body("fake", settings)

    async def run() -> float:
        endpoint = OpenAIEndpoint(settings.base_url, sockets=SOCKETS)
        left = iter(range(calls))

        async def work() -> None:
            for _ in left:
                await endpoint.post(CHAT, body)

        began_s = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(SOCKETS)))
        seconds = time.perf_counter() - began_s
        await endpoint.close()
        return calls / seconds

    return asyncio.run(run())


def _peak_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
