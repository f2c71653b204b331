"""Did the write happen?  Environments, worlds and tools for ambiguous timeouts.

Importing this package registers its Gymnasium ids and nothing heavier; every public name is loaded
on first use.  Only the environments need Gymnasium.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from exactlyonce_env.registration import ENV_IDS, register_all

if TYPE_CHECKING:
    from exactlyonce_env.actions import ACTION_NAMES
    from exactlyonce_env.envs.history import HistoryStack
    from exactlyonce_env.envs.single import RecoveryEnv
    from exactlyonce_env.envs.vector import RecoveryVectorEnv
    from exactlyonce_env.errors import UserError
    from exactlyonce_env.observation import FEATURES
    from exactlyonce_env.plan import Plan
    from exactlyonce_env.presets import PRESET_NAMES, load_plan, preset

__all__ = [
    "ACTION_NAMES",
    "ENV_IDS",
    "FEATURES",
    "PRESET_NAMES",
    "HistoryStack",
    "Plan",
    "RecoveryEnv",
    "RecoveryVectorEnv",
    "UserError",
    "__version__",
    "load_plan",
    "preset",
    "register_all",
]

_HOMES = {
    "ACTION_NAMES": "actions",
    "FEATURES": "observation",
    "HistoryStack": "envs.history",
    "PRESET_NAMES": "presets",
    "Plan": "plan",
    "RecoveryEnv": "envs.single",
    "RecoveryVectorEnv": "envs.vector",
    "UserError": "errors",
    "load_plan": "presets",
    "preset": "presets",
}

register_all()


def __getattr__(name: str) -> Any:
    """Load a public name on its first use."""
    if name in _HOMES:
        try:
            value = getattr(import_module(f"exactlyonce_env.{_HOMES[name]}"), name)
        except ImportError as error:
            if not _HOMES[name].startswith("envs.") or error.name not in (None, "gymnasium"):
                raise
            raise ImportError(
                f"{name} needs Gymnasium, which is not installed: pip install gymnasium",
                name="gymnasium",
            ) from error
    elif name == "__version__":
        from importlib.metadata import version

        value = version("exactlyonce-env")
    else:
        raise AttributeError(f"module 'exactlyonce_env' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
