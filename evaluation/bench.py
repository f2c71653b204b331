"""Steps per second of every front end, beside Gymnasium's CartPole in the same run.

Machines are noisy, so nothing is measured alone: each round takes every figure once, ours and the
peer's in turn, and the medians over the rounds are reported with the ratios of the medians.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

ENV_ID = "exactlyonce_env:ExactlyOnce/LateTail-v0"
PEER_ID = "CartPole-v1"
BATCHES: tuple[int, ...] = (64, 1024, 65536)
N_POOL = 16  # prepared arrays of random actions, so that drawing them is not measured
WARM_UP_STEPS = 8


@dataclass
class Benchmark:
    """One thing to measure: ``run(seconds)`` takes about that long and returns steps per second."""

    name: str
    run: Callable[[float], float]
    figures: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Median of the figures so far [steps/s]."""
        return median(self.figures)


def bench(
    *,
    batches: Sequence[int] = BATCHES,
    rounds: int = 5,
    seconds: float = 0.5,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Measure; each figure takes ``seconds`` [s] in each of ``rounds`` rounds.

    Returns steps per second as medians: ``single``, ``vector`` {batch: ...}, ``rollout``, and the
    same for ``gymnasium_cartpole`` (``single``, ``vector``); ``memory_per_world_bytes``; ``ratios``
    to the peer; and ``spread`` {name: [least, greatest]}.
    """
    single = Benchmark("single", _single(ENV_ID))
    peer = Benchmark("cartpole single", _single(PEER_ID))
    rollout = Benchmark("rollout", _rollout())
    vector = {n: Benchmark(f"vector {n}", _vector(ENV_ID, n)) for n in batches}
    peer_vector = {n: Benchmark(f"cartpole vector {n}", _vector(PEER_ID, n)) for n in batches}
    everything = [single, peer, rollout]
    for n in batches:
        everything += [vector[n], peer_vector[n]]
    for _ in range(rounds):
        for benchmark in everything:
            if progress is not None:
                progress(benchmark.name)
            benchmark.figures.append(benchmark.run(seconds))
    return {
        "env": ENV_ID.partition(":")[2],
        "rounds": rounds,
        "single": single.median,
        "vector": {str(n): vector[n].median for n in batches},
        "rollout": rollout.median,
        "memory_per_world_bytes": memory_per_world_bytes(),
        "gymnasium_cartpole": {
            "single": peer.median,
            "vector": {str(n): peer_vector[n].median for n in batches},
        },
        "ratios": {
            "single": single.median / peer.median,
            "vector": {str(n): vector[n].median / peer_vector[n].median for n in batches},
        },
        "spread": {b.name: [min(b.figures), max(b.figures)] for b in everything},
    }


def _single(env_id: str) -> Callable[[float], float]:
    import gymnasium

    env = gymnasium.make(env_id).unwrapped
    rng = np.random.default_rng(0)
    actions: list[int] = rng.integers(env.action_space.n, size=4096).tolist()  # type: ignore[attr-defined]
    env.reset(seed=0)

    def run(seconds: float) -> float:
        step, reset = env.step, env.reset
        count = 0
        start = time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            for action in actions:
                _, _, terminated, truncated, _ = step(action)
                if terminated or truncated:
                    reset()
            count += len(actions)
        return count / elapsed

    run(0.0)
    return run


def _vector(env_id: str, n: int) -> Callable[[float], float]:
    import gymnasium

    envs = gymnasium.make_vec(env_id, num_envs=n, vectorization_mode="vector_entry_point")
    rng = np.random.default_rng(0)
    kinds = int(envs.single_action_space.n)  # type: ignore[attr-defined]
    pool = [rng.integers(kinds, size=n) for _ in range(N_POOL)]
    envs.reset(seed=0)
    for k in range(WARM_UP_STEPS):
        envs.step(pool[k % N_POOL])

    def run(seconds: float) -> float:
        count = 0
        start = time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            for actions in pool:
                envs.step(actions)
            count += n * N_POOL
        return count / elapsed

    return run


def _rollout() -> Callable[[float], float]:
    """Whole episodes of ``wait:300`` on the same preset, in the compiled loop."""
    from exactlyonce_env.presets import load_plan
    from policies.rollout import run_policy
    from policies.spec import parse_policy

    plan, policy = load_plan("late-tail"), parse_policy("wait:300")
    n = 50_000
    run_policy(plan, policy, 0, np.arange(100))

    def run(seconds: float) -> float:
        count, first = 0, 0
        start = time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            episodes = run_policy(plan, policy, 0, np.arange(first, first + n))
            count += int(episodes.outcomes["steps"].sum())
            first += n
        return count / elapsed

    return run


def memory_per_world_bytes(n: int = 65536) -> float:
    """Bytes that the native vector environment holds for each of ``n`` worlds after a step.

    Counts every live array, the returned observations, masks and infos included.
    """
    import gymnasium

    _vector(ENV_ID, 1)  # compiled code and what it loads are no part of a world
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        envs = gymnasium.make_vec(ENV_ID, num_envs=n, vectorization_mode="vector_entry_point")
        kept = envs.reset(seed=0)
        kept = envs.step(np.zeros(n, dtype=np.int64))  # type: ignore[assignment]
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    del kept
    envs.close()
    return held / n
