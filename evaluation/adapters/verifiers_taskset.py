"""The sandbox as a verifiers taskset with a harness of its own.  Needs the extra ``verifiers``.

verifiers finds a taskset by the name of a top-level module, so one of two lines names it here, for
instance ``exactlyonce_sandbox.py`` beside the run's configuration::

    from evaluation.adapters.verifiers_taskset import *
    from evaluation.adapters.verifiers_taskset import __all__

With its folder on ``PYTHONPATH`` it is evaluated and trained on like any other::

    vf-eval exactlyonce-sandbox -m gpt-x --env.taskset.faults '["timeout_late"]'

``tasks``, ``faults``, ``instances`` and ``writes`` choose the benchmark's worlds; ``drawn`` takes
so many worlds of seeds instead, for training (`evaluation.adapters.episode.draw_world`).

The harness plays the episode in this process: the session's own tools, budget of calls and nudges,
calls of one turn in their order, and no retries between the model and the services, which would be
the very fault that is measured.  No tool server and no container is needed.  What the agent did is
kept in the trace (``info``), and reward and metrics are computed from it by playing it again: the
world is deterministic, so the ledger is the same, also when saved traces are scored anew.  The
reward is that of `evaluation.adapters.episode.reward_of`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import httpx
import verifiers.v1 as vf
from pydantic import Field

from evaluation.adapters.episode import REWARDS, Episode, draw_world
from evaluation.llm.agent_prompts import CONDITIONS, REFLECT, system_text_of
from evaluation.llm.conversation import open_conversation
from evaluation.sandbox import check_names, plan_worlds
from exactlyonce_env.errors import UserError
from exactlyonce_env.sandbox.contracts import CONTRACTS, FAULTS
from exactlyonce_env.sandbox.tasks import TASKS
from exactlyonce_env.sandbox.tools import DOCS
from policies.llm.asking import Settings

__all__ = ["SandboxEnv", "SandboxHarness", "SandboxTaskset"]

PLAYED = "exactlyonce_sandbox"
"""Where a trace's ``info`` holds what the agent did."""

TIMEOUT_S = 600.0
"""Longest answer of a model that is waited for [s]."""

METRICS = ("exactly_once", "task_success", "duplicates", "omissions", "unresolved", "overclaim")


class SandboxTaskConfig(vf.TaskConfig):  # type: ignore[misc]
    """How a task is scored: ``reward`` is one of `evaluation.adapters.episode.REWARDS`."""

    reward: str = "settlement"


class SandboxConfig(vf.TasksetConfig):  # type: ignore[misc]
    """Which worlds there are; an empty list stands for all."""

    task: SandboxTaskConfig = SandboxTaskConfig()
    tasks: list[str] = Field(default_factory=list)
    faults: list[str] = Field(default_factory=list)
    instances: list[int] = Field(default_factory=lambda: [0])
    writes: list[str] = Field(default_factory=list)
    drawn: int = 0
    contract: str = "native"
    docs: str = "default"
    instruction: str = "default"
    operator: str = "answers"
    wrapper: str = "none"
    condition: str = "vanilla"


class SandboxData(vf.TaskData):  # type: ignore[misc]
    """A task's row; the model sees its prompts only."""

    world: dict[str, Any]
    condition: str = "vanilla"


class SandboxTask(vf.Task[SandboxData, vf.State, SandboxTaskConfig]):  # type: ignore[misc]
    """One episode, scored from its ledger."""

    @vf.reward
    async def ledger(self, trace: Any) -> float:
        """What the episode is worth."""
        return self._again(trace).reward()

    @vf.metric
    async def measures(self, trace: Any) -> dict[str, float]:
        """How it was graded."""
        found = self._again(trace).measures()
        return {name: float(found[name]) for name in METRICS}

    def _again(self, trace: Any) -> Episode:
        """The episode, played again from what the trace holds.

        Raises
        ------
        UserError
            Where nothing was played: another harness has run it.
        """
        played = trace.info.get(PLAYED)
        if played is None:
            raise UserError("the sandbox is played by its own harness: leave --env.agent.harness")
        episode = Episode(self.data.world, seed=0, reward=self.config.reward)
        for what, *said in played:
            if what == "call":
                episode.call(*said)
            else:
                episode.say(*said)
        return episode


class SandboxTaskset(vf.Taskset[SandboxTask, SandboxConfig]):  # type: ignore[misc]
    """The worlds that the configuration names."""

    def load(self) -> Iterator[SandboxTask]:
        """The tasks, in order.

        Raises
        ------
        UserError
            For an unknown name.
        """
        config = self.config
        check_names(
            ("tasks", config.tasks, tuple(TASKS)),
            ("faults", config.faults, FAULTS),
            ("contract", (config.contract,), CONTRACTS),
            ("docs", (config.docs,), DOCS),
            ("condition", (config.condition,), CONDITIONS),
            ("reward", (config.task.reward,), REWARDS),
        )
        shared = {
            name: getattr(config, name)
            for name in ("contract", "docs", "instruction", "operator", "wrapper")
        }
        for name, world in self._worlds(shared):
            yield SandboxTask(
                SandboxData(
                    id=name,
                    name=name,
                    prompt=Episode(world, seed=0).instructions,
                    system_prompt=system_text_of(config.condition),
                    world=world,
                    condition=config.condition,
                ),
                config.task,
            )

    def _worlds(self, shared: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        config = self.config
        if config.drawn:
            kinds = list(product(config.tasks or [None], config.faults or [None]))
            for seed in range(config.drawn):
                task, fault = kinds[seed % len(kinds)]
                named = {"task": task, "fault": fault}
                named = {k: v for k, v in named.items() if v is not None}
                yield f"seed {seed}", draw_world({**shared, **named}, seed).variant.model_dump()
            return
        planned = plan_worlds(
            config.faults or FAULTS[1:], config.tasks or tuple(TASKS), config.instances
        )
        found = [world for world in planned if not config.writes or world[3] in config.writes]
        if not found:
            raise UserError("no world fits these tasks, faults, instances and writes")
        for fault, task, instance, write in found:
            named = {"task": task, "instance": instance, "write": write, "fault": fault}
            yield f"{task}/{instance}/{write}/{fault}", {**named, **shared}


class SandboxHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
    """Plays an episode in this process: model calls go through verifiers, tool calls do not."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: SandboxData,
    ) -> Any:
        """Play to the end of the episode, or until verifiers refuses the next turn."""
        played: list[list[Any]] = []
        trace.info[PLAYED] = played
        episode = Episode(data.world, seed=0)
        system, task = self.resolve_text_prompt(data)
        talk = open_conversation("chat", system or "", task or "", episode.tools)
        headers = {"Authorization": f"Bearer {secret}"}

        def over() -> bool:
            return episode.ended

        async with httpx.AsyncClient(timeout=TIMEOUT_S, headers=headers) as client:
            while not episode.ended:
                body = talk.body(ctx.model, Settings())
                # How to sample is verifiers' to say.
                asked = {name: body[name] for name in ("model", "messages", "tools")}
                response = await client.post(f"{endpoint}/chat/completions", json=asked)
                if response.is_error:
                    words = f"the model answered {response.status_code}: {response.text[:500]}"
                    return vf.ProgramResult(exit_code=1, stdout="", stderr=words)
                turn = talk.take(response.json())
                if not turn.calls:
                    played.append(["say", turn.text])
                    nudge = episode.say(turn.text)
                    if nudge is not None:
                        talk.add_user(nudge)
                    continue
                failed = False
                for call in turn.calls:
                    if over():
                        break
                    played.append(["call", call.name, call.arguments])
                    reply = episode.call(call.name, call.arguments)
                    failed |= reply.error
                    talk.add_result(call, reply.text)
                if failed and data.condition == "reflect" and not over():
                    talk.add_user(REFLECT)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


class SandboxEnvConfig(vf.EnvConfig):  # type: ignore[misc]
    """One agent, for which a local process is all that is needed."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class SandboxEnv(vf.Env[SandboxEnvConfig]):  # type: ignore[misc]
    """The agent plays each task alone."""

    async def run(self, task: Any, agents: Any) -> None:
        """Play one episode."""
        await agents.agent.run(task)
