"""A language model as an agent of the sandbox: it does a whole task with tool calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import product
from typing import Any

from evaluation.llm.agent_prompts import CONDITIONS, REFLECT, VERSION, system_text_of
from evaluation.llm.calling import Calls, NoAnswerError
from evaluation.llm.conversation import PROTOCOLS, open_conversation
from evaluation.llm.running import Document, Done, run_units, taken
from evaluation.llm.store import Store
from evaluation.sandbox import AGENT, Cell, Episode, check_names, plan_worlds
from exactlyonce_env.errors import UserError
from exactlyonce_env.sandbox.contracts import CONTRACTS, FAULTS
from exactlyonce_env.sandbox.grading import Grade
from exactlyonce_env.sandbox.hosting import Hosted
from exactlyonce_env.sandbox.playing import timeline
from exactlyonce_env.sandbox.session import OPERATORS, Session
from exactlyonce_env.sandbox.tasks import TASKS
from exactlyonce_env.sandbox.tools import DOCS
from policies.llm.asking import Settings
from policies.llm.policy import checked_model
from policies.wrappers import wrap

__all__ = ["Agent", "agent_cells", "episodes_of", "place_of", "run_agent"]


@dataclass(frozen=True)
class Agent:
    """A model and how it acts.

    Attributes
    ----------
    model
        The endpoint's name of it.
    condition
        One of `CONDITIONS`.
    protocol
        One of `PROTOCOLS`.
    settings
        How it is asked.

    Raises
    ------
    UserError
        For a name that is none, or an unknown word.
    """

    model: str
    condition: str = "vanilla"
    protocol: str = "chat"
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        checked_model(self.model)
        word = self.model.rpartition("+")[2]
        if word != self.model and word in (*CONDITIONS, *PROTOCOLS):
            raise UserError(
                f"--model {self.model!r} ends like a prompt or a protocol; name the model alone, "
                "and the others by --prompts and --protocol"
            )
        check_names(
            ("--prompts", (self.condition,), CONDITIONS),
            ("--protocol", (self.protocol,), tuple(PROTOCOLS)),
        )

    @property
    def spec(self) -> str:
        """Its name in tables and stores: ``agent:MODEL`` and what departs from the default."""
        words = [] if self.condition == "vanilla" else [self.condition]
        words += [] if self.protocol == "chat" else [self.protocol]
        return "+".join([f"{AGENT}{self.model}", *words])

    def way(self) -> dict[str, Any]:
        """How it is asked, in JSON types."""
        return {
            "prompt": {"condition": self.condition, "version": VERSION},
            "protocol": self.protocol,
            "temperature": self.settings.temperature,
            "max_tokens": self.settings.max_tokens,
        }


def agent_cells(
    agent: Agent,
    *,
    wrappers: Sequence[str] = ("none",),
    contracts: Sequence[str] = ("native",),
    faults: Sequence[str] = FAULTS[1:],
    tasks: Sequence[str] = tuple(TASKS),
    instances: Sequence[int] = (0,),
    writes: Sequence[str] | None = None,
    docs: Sequence[str] = ("default",),
    instruction: str = "default",
    operator: str = "answers",
    repeats: int = 1,
) -> list[Cell]:
    """Every episode of a run, without the twins.

    Raises
    ------
    UserError
        For an unknown name, and where no write can meet any fault.
    """
    check_names(
        ("--contract", contracts, CONTRACTS),
        ("--faults", faults, FAULTS),
        ("--tasks", tasks, tuple(TASKS)),
        ("--docs", docs, DOCS),
        ("--instruction", (instruction,), ("default", "no-cue")),
        ("--operator", (operator,), OPERATORS),
    )
    for wrapper in wrappers:
        wrap(Session(next(iter(TASKS))), wrapper)
    worlds = list(plan_worlds(faults, tasks, instances))
    if not worlds:
        raise UserError(f"--faults {', '.join(faults)}: no write of these tasks can meet them")
    if writes is not None:
        check_names(("--writes", writes, tuple(dict.fromkeys(world[3] for world in worlds))))
        worlds = [world for world in worlds if world[3] in writes]
    return [
        Cell(
            agent.spec,
            wrapper,
            contract,
            *world,
            operator=operator,
            docs=doc,
            instruction=instruction,
            repeat=repeat,
        )
        for wrapper, contract, doc, world, repeat in product(
            wrappers, contracts, docs, worlds, range(repeats)
        )
    ]


def place_of(cell: Cell) -> str:
    """Where the calls of an episode are kept."""
    return "/".join(str(getattr(cell, field.name)) for field in fields(Cell))


def run_agent(
    agent: Agent,
    cells: Sequence[Cell],
    calls: Calls,
    *,
    concurrency: int = 8,
    done: Done | None = None,
) -> None:
    """Run every episode that the store does not hold yet; see `evaluation.llm.running`.

    Parameters
    ----------
    agent
        The model.
    cells
        The episodes.
    calls
        Its way to the provider and the store.
    concurrency
        Episodes at the same time.
    done
        Called with the document of each episode, stored ones included.

    Raises
    ------
    UserError
        Where every request would fail.

    A budget that is used up ends the run quietly; ``calls.stopped`` names it.
    """
    run_units(
        cells,
        place_of,
        lambda cell: _episode(agent, cell, calls, place_of(cell)),
        calls,
        concurrency=concurrency,
        done=done,
    )


def session_of(cell: Cell) -> Session:
    """The episode of a cell."""
    return Session(
        cell.task,
        instance=cell.instance,
        write=cell.write,
        fault=cell.fault,
        contract=cell.contract,
        docs=cell.docs,
        instruction=cell.instruction,
        operator=cell.operator,
    )


async def _episode(agent: Agent, cell: Cell, calls: Calls, place: str) -> dict[str, Any]:
    """Play one episode to its end; its document."""
    session = session_of(cell)
    caller = wrap(session, cell.wrapper)
    talk = open_conversation(
        agent.protocol, system_text_of(agent.condition), session.instructions, session.tools
    )

    def over() -> bool:
        return session.ended

    reason, final, step, invalid = "", False, 0, 0
    try:
        while not session.ended:
            body = talk.body(agent.model, agent.settings)
            response = await calls.ask(place, step, talk.path, body)
            step += 1
            turn = talk.take(response)
            # Arguments that are no JSON object: a wrong call, which the service refuses.
            invalid += turn.wrong
            if not turn.calls:
                nudge = session.say(turn.text)
                if nudge is not None:
                    talk.add_user(nudge)
                continue
            failed = False
            for call in turn.calls:
                if over():
                    break
                reply = caller.call(call.name, call.arguments)
                failed |= reply.error
                talk.add_result(call, reply.text)
            if failed and agent.condition == "reflect" and not over():
                talk.add_user(REFLECT)
    except NoAnswerError as error:
        reason, final = str(error), error.final
    return document_of(session, cell, agent.spec, reason, final, invalid) | taken(
        calls.store.spent(place)
    )


def document_of(
    session: Session, cell: Cell, policy: str, reason: str, final: bool, invalid: int
) -> Document:
    """An ended episode in JSON types, but for what it took."""
    record = Hosted(place_of(cell), session, wrapper=cell.wrapper).close()
    assert record is not None
    return record | {
        "kind": "agent",
        "policy": policy,
        "repeat": cell.repeat,
        "status": "missing" if reason else "returned",
        "reason": reason,
        "final": final,
        "invalid": invalid,
        "cell": asdict(cell),
        "timeline": timeline(session),
    }


_GRADE = tuple(field.name for field in fields(Grade))


def episodes_of(
    store: Store, cells: Sequence[Cell]
) -> tuple[dict[Cell, Episode], dict[Cell, Mapping[str, Any]]]:
    """The episodes that came to an end, and the document of every one that was begun, by cell."""
    found: dict[Cell, Episode] = {}
    documents: dict[Cell, Mapping[str, Any]] = {}
    for cell in cells:
        document = store.document(place_of(cell))
        if document is None:
            continue
        short = {k: v for k, v in document.items() if k not in ("calls", "timeline", "reported")}
        documents[cell] = short
        if document["status"] == "returned":
            grade = Grade(**{name: document[name] for name in _GRADE})
            found[cell] = Episode(cell, grade, str(document["behaviour"]))
    return found, documents
