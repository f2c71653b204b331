"""The sandbox as an environment of TRL's ``GRPOTrainer``.  Needs the extra ``trl`` to be used.

TRL makes one instance a rollout, calls ``reset`` with the columns of the dataset's row, offers the
public methods to the model as tools, and asks ``get_reward`` once the rollout is over::

    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer
    from evaluation.adapters.trl_environment import ledger_metrics, prompt_of, sandbox_environment

    rows = Dataset.from_list([{"prompt": prompt_of("aware"), "seed": k} for k in range(2000)])
    trainer = GRPOTrainer(
        model="Qwen/Qwen3-4B", train_dataset=rows, reward_funcs=ledger_metrics,
        environment_factory=sandbox_environment(), args=GRPOConfig(max_tool_calling_iterations=40),
    )
    trainer.train()

A row says which world its group of rollouts meets: a ``seed``, from which all that is not named is
drawn (`evaluation.adapters.episode.draw_world`), and any of ``task``, ``instance``, ``write``,
``fault``, ``operator``, ``instruction`` and ``options``.  All rollouts of a row meet the same
world, so that their rewards compare.  Whatever decides how the tools look (``contract``, ``docs``)
is set for the class.

The reward comes from the effect ledger: by default the settlement value, 1 for a task done exactly
once and claimed, less for each duplicate and omission.  A rollout that stops calling tools without
``finish`` ends unresolved: TRL answers no turn without a tool call, so there are no nudges.  The
methods return the service's replies word for word, errors included; the model sees nothing else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from evaluation.adapters.episode import REWARDS, Episode
from evaluation.llm.agent_prompts import CONDITIONS, system_text_of
from exactlyonce_env.errors import UserError, unknown
from exactlyonce_env.sandbox.hosting import Variant
from exactlyonce_env.sandbox.session import ToolInfo
from exactlyonce_env.sandbox.tasks import TASKS

__all__ = ["SandboxBase", "ledger_metrics", "prompt_of", "sandbox_environment"]

OF_THE_CLASS = ("contract", "docs", "wrapper")
"""Fields of a world that a row cannot set."""

OF_TRL = ("prompt", "images", "image")
"""Columns that TRL itself reads."""

TYPES: dict[str, Any] = {"string": str, "number": float, "object": dict, "array": list}
"""Type hints, from which TRL makes the schema again, by the schema's types."""


class SandboxBase:
    """What every environment of `sandbox_environment` has besides the tools."""

    _fixed: Mapping[str, str]
    _reward: str
    _ignored: frozenset[str]
    _optional: Mapping[str, frozenset[str]]
    _episode: Episode | None = None

    def reset(self, **row: Any) -> str:
        """Open the episode of a row of the dataset.

        Parameters
        ----------
        row
            Its columns; those that are None are as if they were not there.

        Returns
        -------
        The task, which TRL adds to the end of the prompt.

        Raises
        ------
        UserError
            For a column that is no field of a world, a field that belongs to the class, and a row
            that neither names a task nor has a seed.
        """
        named = {
            name: value
            for name, value in row.items()
            if value is not None and name not in self._ignored
        }
        seed = named.pop("seed", None)
        for name in named:
            if name in OF_THE_CLASS:
                raise UserError(
                    f"column {name!r}: the tools depend on it; write sandbox_environment({name}=…)"
                )
            if name not in Variant.model_fields:
                raise UserError(f"column {name!r} is no field of a world; list it under ignore")
        if seed is None and not {"task", "instance", "write", "fault"} <= named.keys():
            raise UserError(
                "a row needs a seed, or else task, instance, write and fault: all rollouts of a "
                "group must meet the same world"
            )
        self._episode = Episode({**named, **self._fixed}, seed=seed, reward=self._reward)
        return self._episode.instructions

    def get_reward(self) -> float:
        """What the rollout is worth; one that has not finished its episode has left it.

        Raises
        ------
        UserError
            Before the first reset.
        """
        return self._running().reward()

    def _running(self) -> Episode:
        if self._episode is None:
            raise UserError("no episode is open: call reset first")
        return self._episode

    def _call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool; an optional argument that is None was left out."""
        optional = self._optional[tool]
        given = {k: v for k, v in arguments.items() if v is not None or k not in optional}
        return self._running().call(tool, given).text


def sandbox_environment(
    *,
    contract: str = "native",
    docs: str = "default",
    wrapper: str = "none",
    reward: str = "settlement",
    ignore: Sequence[str] = (),
) -> type[SandboxBase]:
    """The class to pass as ``environment_factory``: its public methods are the tools.

    Parameters
    ----------
    contract, docs, wrapper
        As `exactlyonce_env.sandbox.hosting.Variant` takes them.
    reward
        One of `evaluation.adapters.episode.REWARDS`.
    ignore
        Columns of the dataset that are for something else.

    Raises
    ------
    UserError
        For an unknown name.
    """
    if reward not in REWARDS:
        raise unknown("reward", reward, REWARDS)
    fixed = {"contract": contract, "docs": docs, "wrapper": wrapper}
    anything = {"task": next(iter(TASKS)), "instance": 0, "fault": "ok"}
    tools = Episode({**anything, **fixed}, seed=0).tools
    methods = {tool.name: _method(tool) for tool in tools}
    taken = methods.keys() & vars(SandboxBase).keys()
    assert not taken, taken
    body: dict[str, Any] = {
        "__doc__": "The sandbox under one variant of contracts and documentation.",
        "__module__": __name__,
        "_fixed": fixed,
        "_reward": reward,
        "_ignored": frozenset({*OF_TRL, *ignore}),
        "_optional": {
            tool.name: frozenset(tool.input_schema["properties"])
            - frozenset(tool.input_schema["required"])
            for tool in tools
        },
    }
    return type("SandboxEnvironment", (SandboxBase,), methods | body)


def prompt_of(condition: str = "vanilla") -> list[dict[str, str]]:
    """The ``prompt`` column: the fixed system text, and the user's message that the task ends.

    Raises
    ------
    UserError
        For a condition other than ``vanilla`` and ``aware``.
    """
    choices = [name for name in CONDITIONS if name != "reflect"]  # that one talks between the turns
    if condition not in choices:
        raise unknown("prompt", condition, choices)
    return [
        {"role": "system", "content": system_text_of(condition)},
        {"role": "user", "content": ""},
    ]


def ledger_metrics(
    environments: Sequence[SandboxBase],
    log_metric: Callable[[str, float], None] | None = None,
    **more: Any,
) -> list[None]:
    """Log the measures of a batch beside the reward; as a reward function it says nothing.

    Pass it among ``reward_funcs``: TRL leaves rewards that are None out, and what counts is
    `SandboxBase.get_reward`.
    """
    if log_metric is not None and environments:
        found = [environment._running().measures() for environment in environments]
        for name in ("exactly_once", "duplicates", "omissions", "overclaim", "unresolved", "steps"):
            log_metric(f"ledger/{name}", sum(float(m[name]) for m in found) / len(found))
    return [None] * len(environments)


def _method(tool: ToolInfo) -> Callable[..., str]:
    """The method that calls a tool, with the signature and docstring that TRL reads."""

    def method(self: SandboxBase, **arguments: Any) -> str:
        return self._call(tool.name, arguments)

    properties = tool.input_schema["properties"]
    required = tool.input_schema["required"]
    hints = {name: _hint(schema, name in required) for name, schema in properties.items()}
    # Arguments that may be left out come last in a signature.
    order = sorted(properties, key=lambda name: name not in required)
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for name in order:
        default = inspect.Parameter.empty if name in required else None
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=default,
                annotation=hints[name],
            )
        )
    method.__name__ = tool.name
    method.__qualname__ = f"SandboxEnvironment.{tool.name}"
    method.__doc__ = _docstring(tool)
    method.__annotations__ = {name: hints[name] for name in order} | {"return": str}
    method.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        parameters, return_annotation=str
    )
    return method


def _hint(schema: Mapping[str, Any], required: bool) -> Any:
    """The type hint of an argument."""
    if "enum" in schema:
        hint: Any = Literal[tuple(schema["enum"])]
    elif schema["type"] == "array":
        hint = list[_hint(schema["items"], True)]  # type: ignore[misc]
    else:
        hint = TYPES[schema["type"]]
    return hint if required else hint | None


def _docstring(tool: ToolInfo) -> str:
    """In Google's style, which is the one that transformers reads."""
    lines = [tool.description, ""]
    properties = tool.input_schema["properties"]
    if properties:
        lines += ["Args:", *(f"    {k}: {v['description']}" for k, v in properties.items()), ""]
    return "\n".join([*lines, "Returns:", "    What the service answers."])
