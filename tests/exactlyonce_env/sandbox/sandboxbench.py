"""A bench for the sandbox: every focal write, tasks of a single write, episodes to their end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from exactlyonce_env.sandbox.grading import Grade, grade
from exactlyonce_env.sandbox.session import Reply, Session
from exactlyonce_env.sandbox.tasks import TASKS, Step, Task, make_task
from exactlyonce_env.sandbox.tools import PATHS
from policies.recovery import run_task
from policies.spec import parse_policy

BATCH = "database/batch_insert"

ROWS = [{"shard": k, "moved": 100 + k} for k in range(4)]
TICKET = {"id": "OPS-1", "project": "OPS", "title": "Down", "body": "Down.", "status": "open"}
CHARGE = {"id": "ch-1", "customer": "cust-1", "amount": 9.5, "description": "Annual plan"}

ARGUMENTS: dict[str, dict[str, Any]] = {
    **{
        f"social/{name}": {"platform": name, "text": "It is out."}
        for name in ("mastodon", "weibo", "linkedin", "x")
    },
    "billing/charge": {"customer": "cust-2", "amount": 12.5, "description": "Subscription"},
    "billing/refund": {"charge_id": "ch-1"},
    "tickets/create": {"project": "WEB", "title": "Slow pages", "body": "Pages are slow."},
    "tickets/comment": {"ticket_id": "OPS-1", "body": "We look at it."},
    "tickets/status": {"ticket_id": "OPS-1", "status": "resolved"},
    "mail/send": {"to": "a@example.org", "subject": "News", "body": "It is out."},
    "database/insert": {"table": "audit", "row": {"event": "x"}},
    "database/batch_insert": {"table": "moves", "rows": ROWS},
    "database/upsert": {"table": "flags", "key": "dark", "values": {"enabled": True}},
    "deployments/run": {"service": "search", "version": "1.2.3", "environment": "staging"},
}
"""Valid arguments of a write on every path."""


def one_write(path: str, instance: int = 0, **arguments: Any) -> Task:
    """A task of a single write, which is the focal one."""
    step = Step("write", PATHS[path].tool, {**ARGUMENTS[path], **arguments})
    seeded = {"ticket": [TICKET], "charge": [CHARGE]}
    return Task(f"one:{path}", instance, "Do it.", (step,), ("write",), seeded)


def focal_writes(instances: Iterable[int] = (0,)) -> Iterator[tuple[str, int, str]]:
    """(task, instance, focal write) of all tasks."""
    for name in TASKS:
        for instance in instances:
            for write in make_task(name, instance).focal:
                yield name, instance, write


@dataclass(frozen=True)
class Run:
    """An ended episode."""

    session: Session
    grade: Grade

    @property
    def path(self) -> str:
        return self.session.focal.path

    @property
    def replies(self) -> list[Reply]:
        return [call.reply for call in self.session.calls]


def drive(
    policy: str,
    fault: str,
    *,
    instances: Iterable[int] = (0,),
    first_send: str = "keyed",
    only: Any = None,
    **variant: Any,
) -> list[Run]:
    """Run the recovery driver on every focal write that the fault fits."""
    decider: Any = parse_policy(policy)
    runs = []
    for name, instance, write in focal_writes(instances):
        path = make_task(name, instance).write(write).path
        if (fault == "partial_batch" and path != BATCH) or (only and not only(path)):
            continue
        session = Session(name, instance=instance, write=write, fault=fault, **variant)
        run_task(session, decider, first_send=first_send)
        runs.append(Run(session, grade(session)))
    return runs


def exact(runs: list[Run]) -> int:
    """How many were exactly once."""
    return sum(run.grade.exactly_once for run in runs)


def duplicated(runs: list[Run]) -> int:
    """How many have a duplicate."""
    return sum(run.grade.duplicates > 0 for run in runs)
