"""What `render` shows, chosen by the render mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from exactlyonce_env.compiled import Record

if TYPE_CHECKING:
    from exactlyonce_env.envs.trace import Trace
    from exactlyonce_env.plan import Plan


NO_MODE = (
    "render() was called without a render mode; choose one when you make the environment: "
    'gymnasium.make("ExactlyOnce/LateTail-v0", render_mode="ansi")'
)


def rendered(
    render_mode: str | None, plan: Plan, seen: Record, truth: Record, trace: Trace | None
) -> Any:
    """One world as ``render_mode`` shows it: a text, or a (height, width, 3) uint8 picture."""
    if render_mode is None:
        return None
    if render_mode == "ansi":
        from exactlyonce_env.view_text import view_text

        return view_text(seen, plan.contracts[seen.context])
    from exactlyonce_env.envs.story import Story
    from exactlyonce_env.envs.timeline import picture

    assert trace is not None  # kept wherever the render mode is rgb_array
    return picture(Story.of(plan, seen, truth, trace))
