"""A user's own policy: what it receives, what it may return, and how it is told about mistakes."""

from __future__ import annotations

import numpy as np
import pytest

from exactlyonce_env.errors import UserError
from exactlyonce_env.records import CONTRACT, TRUTH, VIEW
from exactlyonce_env.vocabulary import Action, Response
from policies.base import ActionBatch, Policy, PrivilegedPolicy, TruthBatch, ViewBatch
from policies.lineup import LineupPolicy
from policies.rollout import run_policy
from policies.spec import parse_policy

from .episodebench import shipped


class OwnBlindRetry(Policy):
    """Blind retry on unkeyed time-outs, in NumPy, as a user would write it."""

    def act(self, batch: ViewBatch) -> ActionBatch:
        last = np.maximum(batch.views["n_attempts"] - 1, 0)
        response = batch.views["attempts"]["response"][np.arange(len(batch)), last]
        kinds = np.where(response == Response.SUCCESS, Action.FINISH, Action.RETRY)
        kinds[batch.views["n_attempts"] >= batch.own_contracts["max_attempts"]] = Action.FINISH
        return ActionBatch(kinds.astype(np.int8), np.zeros(len(batch)))


def test_an_own_policy_runs_like_a_shipped_one() -> None:
    plan, ids = shipped("late-tail"), np.arange(500)
    own = run_policy(plan, OwnBlindRetry(), 0, ids)
    ours = run_policy(plan, parse_policy("blind-retry"), 0, ids)
    assert OwnBlindRetry().spec == "OwnBlindRetry"
    assert own.outcomes.tobytes() == ours.outcomes.tobytes()
    assert own.rewards.tobytes() == ours.rewards.tobytes()
    assert own.contexts.tobytes() == ours.contexts.tobytes()
    assert own.modes.tobytes() == ours.modes.tobytes()


def test_a_subclass_of_a_shipped_policy_decides_for_itself() -> None:
    class Asleep(LineupPolicy):
        def act(self, batch: ViewBatch) -> ActionBatch:
            kinds = np.full(len(batch), Action.FINISH_UNCERTAIN, dtype=np.int8)
            return ActionBatch(kinds, np.zeros(len(batch)))

    blind = parse_policy("blind-retry")
    assert isinstance(blind, LineupPolicy)
    episodes = run_policy(shipped("late-tail"), Asleep("asleep", blind.code), 0, np.arange(50))
    assert episodes.outcomes["unresolved"].all()
    assert not episodes.outcomes["reissues"].any()


def test_a_batch_holds_the_running_worlds_only_and_no_more_than_views() -> None:
    class Spy(Policy):
        def __init__(self) -> None:
            self.sizes: list[int] = []

        def act(self, batch: ViewBatch) -> ActionBatch:
            self.sizes.append(len(batch))
            assert batch.views.dtype == VIEW
            assert batch.contracts.dtype == CONTRACT
            assert (batch.views["ending"] == 0).all()
            for array in (batch.views, batch.contracts):
                with pytest.raises(ValueError, match="read-only"):
                    array[0] = array[0]
            kinds = np.where(batch.views["n_steps"] == 1, Action.FINISH, Action.READ)
            kinds[0] = Action.FINISH
            return ActionBatch(kinds.astype(np.int8), np.zeros(len(batch)))

    spy = Spy()
    run_policy(shipped("late-tail"), spy, 0, np.arange(10))
    assert spy.sizes == [10, 9]


def test_only_a_privileged_policy_is_handed_the_truth() -> None:
    class Peek(PrivilegedPolicy):
        def act(self, batch: ViewBatch, truths: TruthBatch) -> ActionBatch:
            assert truths.truths.dtype == TRUTH
            assert len(truths.truths) == len(batch)
            assert truths.contexts["contract"].dtype == CONTRACT
            committed = truths.truths["attempts"]["effect"][:, 0] != 0
            kinds = np.where(committed, Action.FINISH, Action.FINISH_UNCERTAIN)
            return ActionBatch(kinds.astype(np.int8), np.zeros(len(batch)))

    episodes = run_policy(shipped("late-fixed"), Peek(), 0, np.arange(200))
    assert Peek.privileged
    assert not Policy.privileged
    assert not episodes.outcomes["overclaim"].any()


def _returns(kinds: object, seconds: object) -> Policy:
    class Fixed(Policy):
        def act(self, batch: ViewBatch) -> ActionBatch:
            return ActionBatch(np.asarray(kinds), np.asarray(seconds))  # type: ignore[arg-type]

    return Fixed()


@pytest.mark.parametrize(
    ("kinds", "seconds", "said"),
    [
        ([5], [0.0, 0.0], r"both must be \(2,\)"),
        ([5, 9], [0.0, 0.0], "the action 9; the kinds are 0 read, 1 wait"),
        ([5, -1], [0.0, 0.0], "the action -1"),
        ([1, 5], [-1.0, 0.0], "waits -1 s"),
        ([5, 1], [0.0, np.nan], "waits nan s"),
        ([5, 1], [0.0, np.inf], "a wait lasts 0 to 604800 s"),
    ],
)
def test_invalid_actions_of_an_own_policy_are_named(
    kinds: object, seconds: object, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        run_policy(shipped("late-tail"), _returns(kinds, seconds), 0, [0, 1])


@pytest.mark.parametrize(
    ("ids", "said"),
    [([-1], "at least 0, not -1"), ([0.5], "sequence of integers"), (3, "sequence of integers")],
)
def test_bad_world_ids_are_named(ids: object, said: str) -> None:
    with pytest.raises(UserError, match=said):
        run_policy(shipped("late-tail"), parse_policy("guard"), 0, ids)  # type: ignore[arg-type]


def test_a_bad_seed_is_named() -> None:
    with pytest.raises(UserError, match="seed"):
        run_policy(shipped("late-tail"), parse_policy("guard"), -1, [0])
