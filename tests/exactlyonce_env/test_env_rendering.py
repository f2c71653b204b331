"""Rendering: the view in words, and the timeline of what was seen and what happened."""

from __future__ import annotations

import math
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from hypothesis import given, settings
from hypothesis import strategies as st

from exactlyonce_env import RecoveryEnv
from exactlyonce_env.actions import ACTION_NAMES
from exactlyonce_env.envs.story import Story
from exactlyonce_env.envs.timeline import _place, _time, picture
from exactlyonce_env.view_text import view_text
from exactlyonce_env.vocabulary import Action, Ending, Key, Response


def shown(preset: str, actions: list[str], wanted: Any = None, **keywords: Any) -> RecoveryEnv:
    """An environment in the first world, after the actions, whose truth is as wanted."""
    env = RecoveryEnv(preset, render_mode="rgb_array", reveal=True, **keywords)
    for world in range(3000):
        _, info = env.reset(seed=0, options={"world": world})
        over = False
        for action in actions:
            assert not over
            _, _, over, _, info = env.step(ACTION_NAMES.index(action))
        if wanted is None or wanted(info["truth"]):
            return env
    raise AssertionError("no such world")


def story(env: RecoveryEnv) -> Story:
    seen, truth = env._cell["seen"][0], env._cell["truth"][0]
    assert env._trace is not None
    return Story.of(env.plan, seen, truth, env._trace)


def test_ansi_is_the_text_of_the_view() -> None:
    env = gymnasium.make("ExactlyOnce/StaleTail-v0", render_mode="ansi").unwrapped
    env.reset(seed=2)
    env.step(0)
    text = env.render()
    assert type(text) is str
    assert text == env.view.text == view_text(env.view.seen, env.view.contract)


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.lists(st.sampled_from([0, 1, 3, 8]), max_size=4))
def test_ansi_tells_nothing_hidden(world: int, actions: list[int]) -> None:
    """Worlds of a timeout group with the same visible history read alike."""
    env = RecoveryEnv("late-tail", render_mode="ansi", reveal=True)
    texts: dict[bytes, str] = {}
    for k in range(4):
        env.reset(seed=1, options={"world": world + k})
        for action in actions:
            env.step(action)
        text = env.render()
        assert texts.setdefault(env.view.tobytes(), text) == text


def test_without_a_mode_rendering_warns_and_shows_nothing() -> None:
    env = RecoveryEnv("late-tail")
    env.reset(seed=0)
    with pytest.warns(UserWarning, match="render\\(\\) was called without a render mode"):
        assert env.render() is None


@pytest.mark.parametrize("mode", ["ansi", "rgb_array"])
def test_there_is_nothing_to_show_before_the_first_reset(mode: str) -> None:
    with pytest.raises(ResetNeeded):
        RecoveryEnv("late-tail", render_mode=mode).render()


def test_pictures_are_of_one_size_and_deterministic() -> None:
    env = shown("native", [])
    frames = [env.render()]
    for action in ("retry", "read", "wait:900", "escalate", "finish"):
        if not env._over:
            env.step(ACTION_NAMES.index(action))
        frames.append(env.render())
    for frame in frames:
        assert (frame.dtype, frame.shape) == (np.uint8, (600, 960, 3))
        assert frame.flags.c_contiguous
        assert len(np.unique(frame.reshape(-1, 3), axis=0)) > 20  # something is drawn
    assert (env.render() == frames[-1]).all()
    assert not (frames[0] == frames[1]).all()


def test_gymnasium_collects_and_displays_frames() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make("ExactlyOnce/LateTail-v0", render_mode="rgb_array_list")
        env.reset(seed=0)
        env.step(0)
        assert len(env.render()) == 2


def test_the_story_of_a_late_write_and_its_duplicate() -> None:
    env = shown(
        "late-tail",
        ["read", "wait:60", "read", "retry", "finish"],
        lambda t: t["original_mode"] == "timeout_late_tail" and t["attempts"][0]["queued"],
    )
    told = story(env)
    kinds = [event.kind for event in told.events]
    assert kinds == [Action.READ, Action.WAIT, Action.READ, Action.RETRY, Action.FINISH]
    assert [(e.start_s, e.end_s) for e in told.events[:3]] == [(30, 31), (31, 91), (91, 92)]
    assert told.events[0].shown == 0
    assert told.events[3].attempt == 1
    assert (told.ending, told.clock_s) == (Ending.CLAIMED, 93.0)
    late, again = told.attempts
    assert (late.response, again.response) == (Response.TIMEOUT, Response.SUCCESS)
    assert (late.sent_s, late.answered_s) == (0.0, 30.0)
    assert late.fortune.arrival_s == 0.0
    first = late.fortune.execution_s
    assert first is not None
    # The one that came second is the duplicate.
    assert (late.duplicates, again.duplicates) == (first > 93, first <= 93)
    assert told.missing == 0


def test_the_story_of_a_redelivery() -> None:
    env = shown("native", ["retry", "finish"], lambda t: t["outcome"]["duplicates"] == 1)
    (sent,) = story(env).attempts
    assert (sent.duplicates, sent.copy_duplicates) == (False, True)
    assert sent.fortune.copy_s == sent.fortune.execution_s + 2.0


def test_the_story_of_a_key() -> None:
    env = shown(
        "late-tail",
        ["keyed_retry", "finish"],
        lambda t: t["original_mode"] == "timeout_post",
        contract={"accepts_key": True, "original_key": "sent"},
    )
    first, second = story(env).attempts
    assert (first.key, second.key) == (Key.PINNED, Key.PINNED)
    assert second.fortune.items_suppressed == (0,)
    assert not second.duplicates
    assert env.render().shape == (600, 960, 3)


def test_the_story_of_a_partial_batch() -> None:
    env = shown(
        "native",
        ["retry", "wait:15", "read", "finish_uncertain"],
        lambda t: t["original_mode"] == "partial_batch",
        contract={"n_items": 4, "readback": "strong", "lag_s": 0.0},
    )
    told = story(env)
    assert told.ending == Ending.UNCERTAIN
    assert 0 < told.missing < 4
    assert told.events[2].shown.bit_count() == 4 - told.missing
    assert env.render().shape == (600, 960, 3)


def test_silence_errors_and_refusals_are_noted() -> None:
    env = shown(
        "late-tail",
        ["read", "escalate", "keyed_retry"],
        contract={"readback": "none", "operator_answer_rate": 0.0},
    )
    read, asked, keyed = story(env).events
    assert (read.refused, read.shown) == (True, -1)
    assert (asked.silent, asked.shown) == (True, -1)
    assert (keyed.refused, keyed.attempt, keyed.end_s) == (True, -1, keyed.start_s)
    assert env.render().shape == (600, 960, 3)


def test_a_reset_begins_a_new_story() -> None:
    env = shown("late-tail", ["read", "finish"])
    env.reset()
    assert story(env).events == ()
    assert story(env).ending == Ending.RUNNING


def test_no_decisions_are_kept_where_no_picture_is_asked_for() -> None:
    assert RecoveryEnv("late-tail")._trace is None
    assert RecoveryEnv("late-tail", render_mode="ansi")._trace is None


@settings(max_examples=25)
@given(
    st.sampled_from(["late-tail", "late-lomax", "stale-tail", "native", "keys-everywhere"]),
    st.integers(0, 10**9),
    st.lists(st.integers(0, 8), max_size=8),
)
def test_every_episode_can_be_drawn(preset: str, world: int, actions: list[int]) -> None:
    env = RecoveryEnv(preset, render_mode="rgb_array")
    env.reset(seed=5, options={"world": world})
    for action in actions:
        if env.step(action)[2]:
            break
    assert picture(story(env)).shape == (600, 960, 3)


@pytest.mark.parametrize("seconds", [0.0, 0.5, 10.0, 90.0, 7200.0, 604800.0, 1e8])
def test_the_axis_of_time_goes_both_ways(seconds: float) -> None:
    assert float(_time(_place(seconds))) == pytest.approx(seconds, rel=1e-9, abs=1e-12)
    assert float(_place(seconds)) == pytest.approx(math.log1p(seconds / 10))
    assert float(_time(_place(-0.3))) == pytest.approx(-0.3)
