"""Running the sandbox: tasks x faults x writes x policies, each beside its fault-free twin."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from itertools import product
from multiprocessing import get_context
from typing import Any

from evaluation.intervals import mean_interval, share_interval
from exactlyonce_env.errors import UserError
from exactlyonce_env.sandbox.behaviour import behaviour_of
from exactlyonce_env.sandbox.contracts import CONTRACTS, FAULTS
from exactlyonce_env.sandbox.grading import Grade, grade
from exactlyonce_env.sandbox.session import Session
from exactlyonce_env.sandbox.tasks import TASKS, make_task
from exactlyonce_env.sandbox.tools import BATCH
from policies.base import Bound
from policies.recovery import FIRST_SENDS, run_task
from policies.spec import parse_policy
from policies.wrappers import wrap

__all__ = [
    "BY",
    "Cell",
    "Episode",
    "plan_cells",
    "run_cells",
    "session_after",
    "summarise",
]

GROUPS = {
    "policy": (
        *("policy", "wrapper", "contract", "docs", "instruction", "operator", "first_send"),
        "fault",
    ),
    "write": (
        *("policy", "wrapper", "contract", "docs", "instruction", "operator", "first_send"),
        *("fault", "task", "instance", "write"),
    ),
}
"""Fields of a cell that a row keeps apart."""

BY = tuple(GROUPS)
"""What a row stands for: all focal writes together, or each of them."""

CHUNK = 24
"""Cells that a process takes at a time."""

FEW = 48
"""With fewer cells than these one process is faster."""

FLAGS = tuple(f.name for f in fields(Grade) if f.type == "bool")
NUMBERS = tuple(f.name for f in fields(Grade) if f.type != "bool")


@dataclass(frozen=True)
class Cell:
    """One episode to run."""

    policy: str
    wrapper: str
    contract: str
    fault: str
    task: str
    instance: int
    write: str
    first_send: str = "keyed"
    operator: str = "answers"
    docs: str = "default"
    instruction: str = "default"
    repeat: int = 0

    @property
    def twin(self) -> Cell:
        """The same episode without the fault."""
        return replace(self, fault="ok", write=make_task(self.task, self.instance).focal[0])


@dataclass(frozen=True)
class Episode:
    """What came of a cell."""

    cell: Cell
    grade: Grade
    behaviour: str


def plan_cells(
    *,
    policies: Sequence[str],
    wrappers: Sequence[str] = ("none",),
    contracts: Sequence[str] = ("native",),
    faults: Sequence[str] = FAULTS[1:],
    tasks: Sequence[str] = tuple(TASKS),
    instances: Sequence[int] = (0,),
    first_send: str = "keyed",
    operator: str = "answers",
) -> list[Cell]:
    """Every episode of a comparison, without the twins.

    ``partial_batch`` is run on batches only; ``ok`` once a task and instance.

    Raises
    ------
    UserError
        For an unknown name, or a bound where a policy is wanted.
    """
    check_names(
        ("--contract", contracts, CONTRACTS),
        ("--faults", faults, FAULTS),
        ("--tasks", tasks, tuple(TASKS)),
        ("--first-send", (first_send,), FIRST_SENDS),
    )
    specs = []
    for text in policies:
        policy = parse_policy(text)
        if isinstance(policy, Bound):
            raise UserError(
                f"{policy.spec} is a bound of single worlds; the sandbox needs a policy"
            )
        specs.append(policy.spec)
    for spec in wrappers:
        wrap(Session(next(iter(TASKS))), spec)
    worlds = list(plan_worlds(faults, tasks, instances))
    if not worlds:
        raise UserError(f"--faults {', '.join(faults)}: no write of these tasks can meet them")
    return [
        Cell(policy, wrapper, contract, *world, first_send, operator)
        for policy, wrapper, contract in product(specs, wrappers, contracts)
        for world in worlds
    ]


def check_names(*wanted: tuple[str, Sequence[str], Sequence[str]]) -> None:
    """Refuse names that are not among the choices of an option: option, names, choices.

    Raises
    ------
    UserError
        Naming the first of them.
    """
    for option, names, choices in wanted:
        for name in names:
            if name not in choices:
                raise UserError(f"{option}: unknown {name!r}; choose from {', '.join(choices)}")


def plan_worlds(
    faults: Sequence[str], tasks: Sequence[str], instances: Sequence[int]
) -> Iterator[tuple[str, str, int, str]]:
    """Fault, task, instance and focal write of every world.

    ``partial_batch`` fits batches only; ``ok`` comes once a task and instance.
    """
    for fault, task, instance in product(faults, tasks, instances):
        made = make_task(task, instance)
        for focal in made.writes[:1] if fault == "ok" else made.writes:
            if fault != "partial_batch" or focal.path == BATCH:
                yield fault, task, instance, focal.name


def run_cell(cell: Cell) -> Episode:
    """Run one episode."""
    session = session_after(cell)
    return Episode(cell, grade(session), behaviour_of(session))


def session_after(cell: Cell) -> Session:
    """The session of a cell once its policy has ended the task."""
    session = Session(
        cell.task,
        instance=cell.instance,
        write=cell.write,
        fault=cell.fault,
        contract=cell.contract,
        operator=cell.operator,
        docs=cell.docs,
        instruction=cell.instruction,
    )
    policy = parse_policy(cell.policy)
    assert not isinstance(policy, Bound)  # `plan_cells` refuses it
    run_task(session, policy, caller=wrap(session, cell.wrapper), first_send=cell.first_send)
    return session


def run_cells(
    cells: Sequence[Cell],
    *,
    processes: int | None = None,
) -> Iterator[list[Episode]]:
    """Run episodes, and hand them out in the order given as they are done, some at a time.

    What comes out does not depend on the number of processes.
    """
    wanted = os.cpu_count() or 1 if processes is None else processes
    chunks = [cells[k : k + CHUNK] for k in range(0, len(cells), CHUNK)]
    if wanted < 2 or len(cells) < FEW:
        yield from map(_run_chunk, chunks)
        return
    with ProcessPoolExecutor(wanted, mp_context=get_context("spawn")) as pool:
        try:
            yield from pool.map(_run_chunk, chunks)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _run_chunk(cells: Sequence[Cell]) -> list[Episode]:
    return [run_cell(cell) for cell in cells]


def summarise(
    episodes: Sequence[Episode], twins: Mapping[Cell, Episode], by: str = "policy"
) -> list[dict[str, Any]]:
    """One row for each policy, every declared factor and fault, or for each focal write of them.

    Parameters
    ----------
    episodes
        What was run.
    twins
        The fault-free twin of each of them, by `Cell.twin`; where one is missing its episode
        counts for neither ``nominal`` nor ``recovery``.
    by
        One of `BY`.

    Returns
    -------
    Rows with ``episodes``, ``triggered``, the mean of every measure over the triggered episodes,
    ``ci`` (95 % intervals), ``exactly_once_count``, ``duplicate_count`` (episodes with at least
    one), ``behaviour``, ``nominal`` (share of the twins that were exactly once) and
    ``recovery`` (share of exactly once where the twin was). Means are None where nothing was
    triggered; episodes that were not are counted and in no mean.
    """
    groups: dict[tuple[Any, ...], list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(group_of(episode.cell, by), []).append(episode)
    return [
        dict(zip(GROUPS[by], key, strict=True)) | _row(members, twins)
        for key, members in groups.items()
    ]


def group_of(cell: Cell, by: str) -> tuple[Any, ...]:
    """The values of `GROUPS` of a cell."""
    return tuple(getattr(cell, name) for name in GROUPS[by])


AGENT = "agent:"
"""How the specs of agents begin, which are no policies."""


def _privileged(cell: Cell) -> bool:
    """Whether something that acts in the cell sees hidden state."""
    if cell.wrapper.endswith("-oracle"):
        return True
    return not cell.policy.startswith(AGENT) and parse_policy(cell.policy).privileged


def _row(members: Sequence[Episode], twins: Mapping[Cell, Episode]) -> dict[str, Any]:
    met = [e for e in members if e.grade.triggered or e.cell.fault == "ok"]
    row: dict[str, Any] = {
        "privileged": _privileged(members[0].cell),
        "episodes": len(members),
        "exactly_once_count": sum(e.grade.exactly_once for e in met),
        "duplicate_count": sum(e.grade.duplicates > 0 for e in met),
        "behaviour": dict(sorted(Counter(e.behaviour for e in members).items())),
    }
    intervals: dict[str, list[float | None]] = {}
    for names, estimate in ((FLAGS, share_interval), (NUMBERS, mean_interval)):
        for name in names:
            values = [getattr(e.grade, name) for e in met]
            found = estimate(values) if values else None
            row[name] = None if found is None else found.value
            intervals[name] = [None, None] if found is None else [found.low, found.high]
    row["triggered"] = len(met)
    known = [e for e in met if e.cell.twin in twins]
    able = [e for e in known if twins[e.cell.twin].grade.exactly_once]
    row["nominal"] = len(able) / len(known) if known else None
    row["recovery"] = sum(e.grade.exactly_once for e in able) / len(able) if able else None
    row["ci"] = intervals
    return row
