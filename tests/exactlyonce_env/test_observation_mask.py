"""The discrete actions and their mask."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from exactlyonce_env.actions import ACTION_NAMES, KINDS, N_ACTIONS, SECONDS, WAITS_S, write_mask
from exactlyonce_env.presets import PRESET_NAMES
from exactlyonce_env.vocabulary import Action

from .worldbench import decide, opened, shipped


def test_the_eleven_actions() -> None:
    assert ACTION_NAMES == (
        "read",
        "wait:15",
        "wait:60",
        "wait:300",
        "wait:900",
        "wait:3600",
        "retry",
        "keyed_retry",
        "escalate",
        "finish",
        "finish_uncertain",
    )
    assert len(KINDS) == len(SECONDS) == N_ACTIONS == 11
    waits = KINDS == Action.WAIT
    assert tuple(SECONDS[waits]) == WAITS_S
    assert not SECONDS[~waits].any()
    for name, kind in zip(ACTION_NAMES, KINDS, strict=True):
        assert Action[name.partition(":")[0].upper()] == kind


@given(
    preset=st.sampled_from([name for name in PRESET_NAMES if name != "first-decision"]),
    world=st.integers(0, 2**50),
    actions=st.lists(st.sampled_from(["wait:900", "retry", "keyed_retry", "read"]), max_size=10),
)
def test_the_mask_hides_exactly_what_the_contract_answers_with_an_error(
    preset: str, world: int, actions: list[str]
) -> None:
    plan = shipped(preset)
    seen, truth = opened(plan, world)
    for action in actions:
        decide(plan, seen, truth, action)
    mask = np.full(N_ACTIONS, 7, dtype=np.int8)
    contract = plan.contexts[seen["context"]]["contract"]
    write_mask(seen, contract, mask)
    for k, name in enumerate(ACTION_NAMES):
        after, hidden = seen.copy(), truth.copy()
        decide(plan, after, hidden, name)
        refused = after["n_client_errors"] > seen["n_client_errors"]
        taught_nothing = name == "read" and contract["readback"] == 0
        assert mask[k] == (not refused and not taught_nothing), name
