"""The Gymnasium ids of this package, registered when it is imported.

Gymnasium loads no plugins, so ``import exactlyonce_env``, which is also all that
``gymnasium.register_envs(exactlyonce_env)`` needs, or the prefix in
``gymnasium.make("exactlyonce_env:ExactlyOnce/Recovery-v0")`` makes the ids known.
"""

from __future__ import annotations

__all__ = ["ENV_IDS", "register_all"]

ENV_IDS: dict[str, str] = {
    "ExactlyOnce/LateFixed-v0": "late-fixed",
    "ExactlyOnce/LateTail-v0": "late-tail",
    "ExactlyOnce/LateLomax-v0": "late-lomax",
    "ExactlyOnce/StaleTail-v0": "stale-tail",
    "ExactlyOnce/Native-v0": "native",
    "ExactlyOnce/KeysEverywhere-v0": "keys-everywhere",
    "ExactlyOnce/FirstDecision-v0": "first-decision",
    "ExactlyOnce/Contextual-v0": "contextual",
    "ExactlyOnce/Empirical-v0": "empirical",
    "ExactlyOnce/Recovery-v0": "contextual",
}
"""Preset behind each id of the single-operation world."""

WORKFLOW_ID = "ExactlyOnce/Workflow-v0"
"""Several operations an episode: the sandbox's tasks."""


def register_all() -> None:
    """Register every id that is not registered yet.

    The call budget ends an episode inside the dynamics, so no ``max_episode_steps`` stands on top
    of it.  The passive checker is left off, since the full ones of Gymnasium and
    Stable-Baselines3 are among the tests; ``gymnasium.make(..., disable_env_checker=False)`` puts
    it back.

    Without Gymnasium there is nothing to register with: presets, views and policies work all the
    same, and whoever asks for an environment is told what is missing.
    """
    try:
        from gymnasium.envs.registration import register, registry
    except ImportError as error:
        if error.name not in (None, "gymnasium"):
            raise  # it is there, but something that it needs is not
        return
    for env_id, preset in ENV_IDS.items():
        if env_id not in registry:
            register(
                env_id,
                entry_point="exactlyonce_env.envs.single:RecoveryEnv",
                vector_entry_point="exactlyonce_env.envs.vector:RecoveryVectorEnv",
                disable_env_checker=True,
                kwargs={"preset": preset},
            )
    if WORKFLOW_ID not in registry:
        register(
            WORKFLOW_ID,
            entry_point="exactlyonce_env.envs.workflow:WorkflowEnv",
            disable_env_checker=True,
        )
