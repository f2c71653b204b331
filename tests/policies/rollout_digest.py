"""Digests of what every policy does in a few worlds; run as a script it prints them as JSON."""

from __future__ import annotations

import hashlib
import json

import numpy as np

from exactlyonce_env.presets import load_plan
from policies.rollout import run_batched, run_policy
from policies.spec import LINEUP, parse_policy

PRESETS = ("stale-tail", "native", "keys-everywhere", "first-decision")
N_WORLDS = 40


def digests() -> dict[str, str]:
    """One digest for each preset and policy, of outcomes and rewards."""
    ids = np.arange(N_WORLDS)
    found = {}
    for preset in PRESETS:
        plan = load_plan(preset)
        for spec in LINEUP:
            if spec == "clairvoyant":
                continue
            policy = parse_policy(spec)
            for run in (run_policy, run_batched):
                episodes = run(plan, policy, 7, ids)
                content = episodes.outcomes.tobytes() + episodes.rewards.tobytes()
                found[f"{preset} {spec} {run.__name__}"] = hashlib.sha256(content).hexdigest()
    return found


if __name__ == "__main__":
    print(json.dumps(digests()))
