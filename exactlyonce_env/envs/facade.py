"""One world of a vector environment, seen as an environment of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt

    from exactlyonce_env.envs.vector import RecoveryVectorEnv
    from exactlyonce_env.view import View

SHARED = ("action_mode", "metadata", "plan", "render_mode", "reveal", "spec")
"""Attributes that are one for all worlds of a vector environment."""


class SubEnv:
    """What `call` and `get_attr` reach: the attributes of `RecoveryEnv`, for world ``index``.

    It cannot be stepped on its own.
    """

    def __init__(self, vector: RecoveryVectorEnv, index: int) -> None:
        self._vector = vector
        self._index = index

    @property
    def observation_space(self) -> Any:
        """The space of one observation."""
        return self._vector.single_observation_space

    @property
    def action_space(self) -> Any:
        """The space of one action."""
        return self._vector.single_action_space

    @property
    def unwrapped(self) -> SubEnv:
        """Itself: nothing wraps it."""
        return self

    @property
    def view(self) -> View:
        """What the client has seen so far, as policies receive it."""
        from exactlyonce_env.view import View

        seen, contract, _ = self._vector.records(self._index)
        return View.of(seen, contract)

    @property
    def world_seed(self) -> int:
        """The seed of the present world."""
        return int(self._vector.records(self._index)[2]["seed"])

    @property
    def world_id(self) -> int:
        """The id of the present world."""
        return int(self._vector.records(self._index)[2]["world"])

    def action_masks(self) -> npt.NDArray[Any]:
        """Which discrete actions are not refused, (11,) bool."""
        return self._vector.action_masks()[self._index]

    def render(self) -> Any:
        """A frame of this world."""
        return self._vector.frame(self._index)

    def __getattr__(self, name: str) -> Any:
        if name in SHARED:
            return getattr(self._vector, name)
        raise AttributeError(f"a world of {type(self._vector).__name__} has no attribute {name!r}")
