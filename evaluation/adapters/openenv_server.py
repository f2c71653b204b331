"""The sandbox as an OpenEnv environment, server and client.  Needs the extra ``openenv``.

Serve it::

    python -m evaluation.adapters.openenv_server --port 8000 --out runs/openenv

and play an episode from anywhere::

    with SandboxClient(base_url="http://127.0.0.1:8000").sync() as client:
        opened = client.reset(task="invoice_batch", fault="timeout_late", seed=7)
        print(opened.observation.instructions, [tool.name for tool in opened.observation.tools])
        sent = {"customer": "cust-4711", "amount": 10.0, "description": "Subscription"}
        result = client.step(CallToolAction(tool_name="billing_charge", arguments=sent))
        print(result.observation.result, result.reward, result.done)
        done = {"status": "uncertain", "summary": "The charge may not have gone through."}
        result = client.step(CallToolAction(tool_name="finish", arguments=done))
        print(result.reward, client.state().measures)

The actions are OpenEnv's own: ``CallToolAction`` calls a tool, ``ListToolsAction`` lists them again
and is not counted.  A ``tool_name`` of "" is a turn without a tool call: the answer is the nudge.
Every connection (``/ws``) is an episode of its own; ``reset`` takes the fields of a world, and a
``seed`` from which the rest is drawn (`evaluation.adapters.episode.draw_world`).  OpenEnv's plain
``POST /reset`` and ``/step`` keep nothing between two requests, so an episode cannot be played
through them.

The reward is 0 until the episode ends, and then what the effect ledger is worth: the settlement
value unless the server was started with another ``--reward``.  Observations hold the instructions,
the tools and the replies; which fault there was and how it was graded stand in the state, and only
once the episode is over.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from openenv.core.env_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_types import (
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    Tool,
)
from openenv.core.env_server.types import (
    Action,
    ConcurrencyConfig,
    EnvironmentMetadata,
    Observation,
    State,
)
from pydantic import Field

from evaluation.adapters.episode import REWARDS, Episode
from evaluation.llm.agent_prompts import CONDITIONS, system_text_of
from exactlyonce_env.errors import UserError, unknown
from exactlyonce_env.sandbox.hosting import IDLE_S
from exactlyonce_env.sandbox.log import EpisodeLog
from exactlyonce_env.versions import version_of

__all__ = [
    "Answer",
    "CallToolAction",
    "ListToolsAction",
    "Opening",
    "SandboxClient",
    "SandboxEnvironment",
    "SandboxState",
    "make_app",
]

MAX_SESSIONS = 256
"""Episodes that a server holds at a time, unless it is told otherwise."""


class Opening(Observation):  # type: ignore[misc]
    """What ``reset`` answers."""

    system: str = Field("", description="What an agent is told before the task.")
    instructions: str = Field("", description="The task.")
    tools: list[Tool] = Field(default_factory=list, description="The tools on offer.")
    calls_left: int = Field(0, description="Tool calls that may be made.")


class Answer(CallToolObservation):  # type: ignore[misc]
    """What ``step`` answers: ``result`` is the service's reply, word for word."""

    is_error: bool = Field(False, description="Whether the reply is an error.")
    calls_left: int = Field(0, description="Tool calls that may still be made.")


class SandboxState(State):  # type: ignore[misc]
    """Where an episode stands; ``world`` and ``measures`` are given once it is over."""

    seed: int | None = Field(None, description="What was not named was drawn from it.")
    time_s: float = Field(0.0, description="Virtual time since the start [s].")
    calls_left: int = Field(0, description="Tool calls that may still be made.")
    ended: bool = Field(False, description="Whether the episode is over.")
    world: dict[str, Any] | None = Field(None, description="Which world it was.")
    measures: dict[str, Any] | None = Field(None, description="How it was graded.")


class SandboxEnvironment(Environment):  # type: ignore[misc]
    """One episode at a time, as OpenEnv drives it.

    Parameters
    ----------
    reward
        One of `evaluation.adapters.episode.REWARDS`.
    prompt
        ``vanilla`` or ``aware``: whether the system text states the rules of reliable clients.
    log
        Where ended episodes are written; None: nowhere.

    Raises
    ------
    UserError
        For an unknown name.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(
        self, reward: str = "settlement", prompt: str = "vanilla", log: EpisodeLog | None = None
    ) -> None:
        super().__init__()
        _check(reward, prompt)
        self._reward, self._prompt, self._log = reward, prompt, log
        self._episode: Episode | None = None
        self._name = ""
        self._n_steps = 0
        self._paid = False

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **world: Any
    ) -> Opening:
        """Leave the episode that runs, if any, and open the one of that world and seed.

        Raises
        ------
        UserError
            For a field or name that there is not; the episode that runs goes on then.
        """
        episode = Episode(world, seed=seed, reward=self._reward, id_=episode_id or "")
        self.close()
        self._episode, self._paid, self._n_steps = episode, False, 0
        self._name = episode_id or str(episode.world.seed)
        return Opening(
            system=system_text_of(self._prompt),
            instructions=episode.instructions,
            tools=_listed(episode),
            calls_left=episode.calls_left,
        )

    def step(
        self, action: Action, timeout_s: float | None = None, **more: Any
    ) -> Answer | ListToolsObservation:
        """Call a tool, or list the tools; time is virtual, so there is nothing to time out.

        Raises
        ------
        UserError
            Before the first reset, and for an action of another kind.
        """
        episode = self._running()
        if isinstance(action, ListToolsAction):
            return ListToolsObservation(tools=_listed(episode), done=episode.ended, reward=0.0)
        if not isinstance(action, CallToolAction):
            raise UserError("an action is a CallToolAction or a ListToolsAction")
        self._n_steps += 1
        if action.tool_name:
            reply = episode.call(action.tool_name, action.arguments)
            text, is_error = reply.text, reply.error
        else:
            text, is_error = episode.say(str(action.arguments.get("text", ""))) or "", False
        return Answer(
            tool_name=action.tool_name,
            result=text,
            is_error=is_error,
            calls_left=episode.calls_left,
            done=episode.ended,
            reward=self._pay(episode),
        )

    @property
    def state(self) -> SandboxState:
        """Where the episode stands."""
        episode = self._episode
        if episode is None:
            return SandboxState()
        over = episode.ended
        return SandboxState(
            episode_id=self._name,
            step_count=self._n_steps,
            seed=episode.world.seed,
            time_s=episode.time_s,
            calls_left=episode.calls_left,
            ended=over,
            world=episode.world.variant.model_dump() if over else None,
            measures=episode.measures() if over else None,
        )

    def get_metadata(self) -> EnvironmentMetadata:
        """What the environment is."""
        return EnvironmentMetadata(
            name="exactlyonce_sandbox",
            description="Tool-using agents against services whose writes may have an unknown "
            "outcome; graded from the effect ledger.",
            version=version_of("exactlyonce-env"),
        )

    def close(self) -> None:
        """End the episode that runs, as left by its client; an ended one stays to be asked."""
        if self._episode is not None and not self._episode.ended:
            self._pay(self._episode, left=True)

    def _running(self) -> Episode:
        if self._episode is None:
            raise UserError("no episode is open: call reset first, over the same connection")
        return self._episode

    def _pay(self, episode: Episode, *, left: bool = False) -> float:
        """The reward of a step: what the episode is worth, once, when it is over."""
        if self._paid or not (episode.ended or left):
            return 0.0
        self._paid = True
        record = episode.close()
        if self._log is not None:
            self._log.append({**record, "id": self._name, "seed": episode.world.seed})
        return episode.reward()


class SandboxClient(EnvClient[CallToolAction, Observation, SandboxState]):  # type: ignore[misc]
    """The client of `SandboxEnvironment`, with typed observations; `sync` gives a blocking one."""

    def _step_payload(self, action: CallToolAction | ListToolsAction) -> dict[str, Any]:
        payload: dict[str, Any] = action.model_dump()
        return payload

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[Observation]:
        seen = payload["observation"]
        kind: Any = Answer
        if "tools" in seen:
            kind = Opening if "instructions" in seen else ListToolsObservation
        found = kind(**seen, done=payload["done"], reward=payload["reward"])
        return StepResult(observation=found, reward=payload["reward"], done=payload["done"])

    def _parse_state(self, payload: dict[str, Any]) -> SandboxState:
        return SandboxState(**payload)


def make_app(
    *,
    reward: str = "settlement",
    prompt: str = "vanilla",
    max_sessions: int = MAX_SESSIONS,
    idle_s: float = IDLE_S,
    out: Path | None = None,
) -> Any:
    """The ASGI application, as ``uvicorn --factory`` takes it.

    Parameters
    ----------
    reward, prompt
        As `SandboxEnvironment` takes them.
    max_sessions
        Episodes at a time; further connections are refused.
    idle_s
        When a client counts as gone [s].
    out
        Folder of the log of ended episodes, as ``exactlyonce serve --out`` writes it.

    Raises
    ------
    UserError
        For an unknown name, a number that is not positive, and a folder that cannot be written.
    """
    _check(reward, prompt)
    if max_sessions < 1 or not idle_s > 0.0:
        raise UserError("the number of sessions and the idle time must be positive")
    log = None if out is None else EpisodeLog(out, sys.argv)
    return create_fastapi_app(
        partial(SandboxEnvironment, reward, prompt, log),
        CallToolAction,
        Answer,
        concurrency_config=ConcurrencyConfig(
            max_concurrent_envs=max_sessions, session_timeout=idle_s
        ),
        env_name="exactlyonce_sandbox",
        state_cls=SandboxState,
        reset_observation_cls=Opening,
    )


def _check(reward: str, prompt: str) -> None:
    if reward not in REWARDS:
        raise unknown("reward", reward, REWARDS)
    choices = [name for name in CONDITIONS if name != "reflect"]  # that one talks between the turns
    if prompt not in choices:
        raise unknown("prompt", prompt, choices)


def _listed(episode: Episode) -> list[Tool]:
    """The tools as an agent may see them: the annotations, which hold the contracts, stay here."""
    return [
        Tool(name=tool.name, description=tool.description, input_schema=tool.input_schema)
        for tool in episode.tools
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; 2 for bad input."""
    import uvicorn

    parser = argparse.ArgumentParser(prog="python -m evaluation.adapters.openenv_server")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--reward", default="settlement", help=", ".join(REWARDS))
    parser.add_argument("--prompt", default="vanilla", help="vanilla or aware")
    parser.add_argument("--max-sessions", type=int, default=MAX_SESSIONS)
    parser.add_argument("--out", type=Path, help="folder of the log of ended episodes")
    given = parser.parse_args(arguments)
    try:
        app = make_app(
            reward=given.reward,
            prompt=given.prompt,
            max_sessions=given.max_sessions,
            out=given.out,
        )
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    uvicorn.run(app, host=given.host, port=given.port, log_level="warning")
    return 0


if __name__ == "__main__":
    sys.exit(main())
