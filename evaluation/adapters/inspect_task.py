"""The sandbox as an Inspect task.  Needs the extra ``inspect``.

In Python::

    from inspect_ai import eval
    from evaluation.adapters.inspect_task import sandbox

    eval(sandbox(tasks="invoice_batch", faults="timeout_late"), model="openai/gpt-x")

or on the command line, where the package is installed from a wheel (Inspect names a task after the
package that it is imported from)::

    inspect eval evaluation/sandbox --model openai/gpt-x -T tasks=invoice_batch

and from a checkout: ``inspect eval evaluation/adapters/inspect_task.py@sandbox --model …``.

A sample is one episode.  The model meets the session's own tools, budget of calls and nudges; the
score comes from the effect ledger and nothing else.  An episode that a provider's failure cut off
has no score: Inspect reports it as an error, never as a failure of the model.
"""

from __future__ import annotations

from typing import Any

from inspect_ai import Epochs, Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import (
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    get_model,
)
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import ToolCallError, ToolDef, ToolError, ToolParams

from evaluation.llm.agent_prompts import CONDITIONS, REFLECT, system_text_of
from evaluation.sandbox import check_names, plan_worlds
from exactlyonce_env.sandbox.behaviour import behaviour_of
from exactlyonce_env.sandbox.contracts import CONTRACTS, FAULTS
from exactlyonce_env.sandbox.grading import grade
from exactlyonce_env.sandbox.hosting import Caller
from exactlyonce_env.sandbox.session import Session, ToolInfo
from exactlyonce_env.sandbox.tasks import TASKS
from exactlyonce_env.sandbox.tools import DOCS
from policies.wrappers import wrap

__all__ = ["sandbox"]

SESSION = "exactlyonce.session"
"""Key of the episode in a sample's store: the scorer's, never the model's."""

MEASURES = ("exactly_once", "task_success", "duplicates", "unresolved", "overclaim", "triggered")


@task
def sandbox(
    tasks: str = "all",
    faults: str = "timeout_late",
    instances: str = "0",
    writes: str = "all",
    contract: str = "native",
    docs: str = "default",
    instruction: str = "default",
    operator: str = "answers",
    wrapper: str = "none",
    prompt: str = "vanilla",
    repeats: int = 1,
) -> Task:
    """Tasks of the sandbox, each focal write with each fault.

    Parameters
    ----------
    tasks, faults, instances, writes
        Names or numbers, by commas; ``all`` for all of them.
    contract, docs, instruction, operator, wrapper
        Variants of the world, and what stands around its tools.
    prompt
        ``vanilla``, ``aware`` or ``reflect``.
    repeats
        Epochs: each episode so many times, the mean reduced by Inspect.

    Raises
    ------
    UserError
        For an unknown name.
    """
    chosen = _listed(tasks, tuple(TASKS))
    modes = _listed(faults, FAULTS[1:])
    check_names(
        ("tasks", chosen, tuple(TASKS)),
        ("faults", modes, FAULTS),
        ("contract", (contract,), CONTRACTS),
        ("docs", (docs,), DOCS),
        ("prompt", (prompt,), CONDITIONS),
    )
    worlds = list(plan_worlds(modes, chosen, [int(number) for number in _listed(instances, ())]))
    kept = _listed(writes, tuple(world[3] for world in worlds))
    samples = []
    for fault, name, instance, write in worlds:
        if write not in kept:
            continue
        world: dict[str, Any] = {
            "task": name,
            "instance": instance,
            "write": write,
            "fault": fault,
            "contract": contract,
            "docs": docs,
            "instruction": instruction,
            "operator": operator,
        }
        session = Session(**world)
        samples.append(
            Sample(
                id=f"{name}/{instance}/{write}/{fault}",
                input=session.instructions,
                metadata=world | {"wrapper": wrapper},
            )
        )
    return Task(
        dataset=MemoryDataset(samples, name="exactlyonce-sandbox"),
        solver=agent(wrapper, prompt),
        scorer=ledger(),
        epochs=Epochs(repeats, "mean"),
    )


@solver
def agent(wrapper: str, prompt: str) -> Solver:
    """The loop over the session's tools, with its nudges."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        world = {k: v for k, v in state.metadata.items() if k != "wrapper"}
        session = Session(**world)
        caller = wrap(session, wrapper)
        state.store.set(SESSION, session)
        tools = [_tool(info, caller) for info in session.tools]
        state.messages.insert(0, ChatMessageSystem(content=system_text_of(prompt)))
        model = get_model()

        def over() -> bool:
            return session.ended

        while not session.ended:
            output = await model.generate(state.messages, tools)
            state.messages.append(output.message)
            state.output = output
            if not output.message.tool_calls:
                nudge = session.say(output.completion)
                if nudge is not None:
                    state.messages.append(ChatMessageUser(content=nudge))
                continue
            failed = False
            # Not by Inspect's own executor: it keeps calls of unknown tools and those with wrong
            # arguments from the session, which would never count them, so that nothing ended it.
            for call in output.message.tool_calls:
                if over():
                    break
                given = call.arguments if call.parse_error is None else call.parse_error
                reply = caller.call(call.function, given)
                failed |= reply.error
                state.messages.append(
                    ChatMessageTool(
                        content=reply.text,
                        tool_call_id=call.id,
                        function=call.function,
                        error=ToolCallError("unknown", reply.text) if reply.error else None,
                    )
                )
            if failed and prompt == "reflect" and not over():
                state.messages.append(ChatMessageUser(content=REFLECT))
        state.completed = True
        return state

    return solve


def _tool(info: ToolInfo, caller: Caller) -> ToolDef:
    """A tool of the session as Inspect offers it; a service's error is a tool error."""

    async def execute(**arguments: Any) -> str:
        reply = caller.call(info.name, arguments)
        if reply.error:
            raise ToolError(reply.text)
        return reply.text

    # One after the other: the order of parallel calls is part of the episode.
    return ToolDef(
        execute,
        name=info.name,
        description=info.description,
        parameters=ToolParams(**_plain(info.input_schema)),
        parallel=False,
    )


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """The parts of a JSON schema that Inspect's own model of it knows."""
    return {
        "type": "object",
        "properties": schema["properties"],
        "required": list(schema.get("required", ())),
        "additionalProperties": False,
    }


@scorer(metrics={"*": [mean(), stderr()]})
def ledger() -> Scorer:
    """Scores from the effect ledger: one value a measure."""

    async def score(state: TaskState, target: Target) -> Score:
        session: Session = state.store.get(SESSION)
        found = grade(session)
        return Score(
            value={name: float(getattr(found, name)) for name in MEASURES},
            explanation=f"{behaviour_of(session)}; {found.to_dict()}",
            metadata={"behaviour": behaviour_of(session), **found.to_dict()},
        )

    return score


def _listed(text: Any, everything: tuple[str, ...]) -> list[str]:
    # Inspect hands "a,b" on as a list.
    if isinstance(text, list | tuple):
        return [str(entry) for entry in text]
    words = [word.strip() for word in str(text).split(",")]
    return list(everything) if words == ["all"] and everything else words
