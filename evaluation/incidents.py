"""Replaying incidents: the client as reported, then the same world under policies.

A policy takes over where the outcome of a write is open: the first client sends the original as it
was sent (with the key where the contract says so), and whoever has no success to show is handed to
the policy with his own view.  A client that takes up what another one sent knows of that request
and of no answer.  `bayes-optimal` is made for the incident's contract and the fates that the
response leaves open, each as likely as the others: after a time-out lost, executed or late, after a
5xx failed or executed (or in part, of a batch); a late write lands after the incident's own delay
(`Incident.late_s`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from exactlyonce_env import kernel
from exactlyonce_env.errors import UserError
from exactlyonce_env.permission import PINNED, candidate_key, next_payload
from exactlyonce_env.records import MEASURES
from exactlyonce_env.sandbox.incident_stage import Stage
from exactlyonce_env.sandbox.incident_work import Moment, Work, plan_of
from exactlyonce_env.sandbox.incidents import (
    INTENT_KEY,
    REPORTED,
    RIGHT,
    Incident,
    Step,
)
from exactlyonce_env.view_building import item_list
from exactlyonce_env.vocabulary import Action, Response
from policies.base import Bound, PlannedPolicy, TruthBatch, ViewBatch
from policies.recovery import Decider, decide_one
from policies.spec import parse_policy

__all__ = ["POLICIES", "Run", "replay", "run_incident", "run_policy", "run_steps"]

POLICIES = ("guard", "same-key", "bayes-optimal")
"""Policies that an incident's world is run under where none is named."""

OTHER_KEY = "another"
"""The key of a client whose candidate key differs from the intent's."""

COMPLETED, UNCERTAIN, FAILED = "completed", "uncertain", "failed"
ENDINGS = {"finish": COMPLETED, "finish_uncertain": UNCERTAIN, "fail": FAILED}


@dataclass(frozen=True)
class Run:
    """One run of an incident.

    Attributes
    ----------
    policy
        ``reported``, ``right`` or a policy's spec.
    timeline
        What the clients saw beside what really happened, in order of time.
    outcome
        The measures, all writes together; and ``claim`` (``completed``, ``uncertain`` or
        ``failed``), ``executions``, ``standing`` (effects that nothing undid) and ``false_failure``
        (said to have failed, though something of it stands).
    """

    policy: str
    timeline: tuple[Moment, ...]
    outcome: dict[str, bool | int | float | str]

    def to_dict(self) -> dict[str, Any]:
        """The run in JSON's types."""
        return {
            "policy": self.policy,
            "timeline": [moment.to_dict() for moment in self.timeline],
            "outcome": self.outcome,
        }


def replay(incident: Incident, policies: Sequence[str] = POLICIES) -> dict[str, Any]:
    """Run an incident as reported, as it would have been right, and under policies.

    Returns
    -------
    dict
        ``name``, ``title``, ``source``, ``hidden``, ``mistake``, ``remedy`` and ``runs``.

    Raises
    ------
    UserError
        For an unknown policy, a bound, or steps that are not in the order of time.
    """
    fields = ("name", "title", "source", "hidden", "mistake", "remedy")
    runs = [run.to_dict() for run in run_incident(incident, policies)]
    return {name: getattr(incident, name) for name in fields} | {"runs": runs}


def run_incident(incident: Incident, policies: Sequence[str] = POLICIES) -> Iterator[Run]:
    """The runs of `replay`, one after the other."""
    for spec in policies:
        _checked(spec)
    yield run_steps(incident, REPORTED, incident.reported)
    if incident.right:
        yield run_steps(incident, RIGHT, incident.right)
    for spec in policies:
        yield run_policy(incident, spec)


def _checked(spec: str) -> Decider | PlannedPolicy:
    policy = parse_policy(spec)
    if isinstance(policy, Bound):
        raise UserError(f"{policy.spec} is a bound of single worlds; an incident needs a policy")
    return policy


# --- scripted clients -----------------------------------------------------------------------------


def run_steps(incident: Incident, name: str, steps: Sequence[Step]) -> Run:
    """Replay scripted clients.

    Raises
    ------
    UserError
        For a step that would begin before the one above it.
    """
    stage = Stage(incident)
    claims: dict[tuple[str, str], str] = {}
    client, write = next(iter(incident.clients)), next(iter(incident.writes))
    begun_s = 0.0
    for k, step in enumerate(steps):
        client, write = step.client or client, step.write or write
        if step.at_s is not None and step.do != "wait":
            stage.now_s[client] = max(stage.now_s[client], step.at_s)
        if stage.now_s[client] < begun_s:
            raise UserError(
                f"incident {incident.name}: {name}.{k} begins at {stage.now_s[client]:g} s, before "
                f"the step above it ({begun_s:g} s); write steps in the order of time"
            )
        begun_s = stage.now_s[client]
        stage.happen_until(begun_s)
        _take(stage, claims, step, client, write)
    return _finished(stage, claims, name)


def _take(
    stage: Stage, claims: dict[tuple[str, str], str], step: Step, client: str, write: str
) -> None:
    why = f" [{step.note}]" if step.note else ""
    if step.do == "send":
        for k in range(step.sendings):
            if k:
                stage.now_s[client] += step.every_s
            by = f" ({_layer(step.layers, k)})" if step.layers else ""
            response = stage.send(client, write, step.key, step.items, why + by)
            claims[client, write] = COMPLETED if response == Response.SUCCESS else UNCERTAIN
            if response == Response.SUCCESS:
                break
    elif step.do == "read":
        stage.read(client, write, step.via, why)
    elif step.do == "wait":
        until_s = step.at_s if step.seconds is None else stage.now_s[client] + step.seconds
        assert until_s is not None  # the format asks for one of them
        stage.wait(client, until_s, write if write in stage.works else None, why)
    elif step.do == "ask":
        stage.ask(client, write, why)
    elif step.do == "undo":
        stage.undo(step.by or "the operator", write, step.keep, stage.now_s[client])
    else:
        claim = ENDINGS[step.do]
        own = [name for name, work in stage.works.items() if client in work.views]
        for name in [step.write] if step.write else own:
            claims[client, name] = claim
            stage.end(client, name, f"ends {name} as {claim}{why}")


def _layer(layers: dict[str, int], k: int) -> str:
    """Which layer makes the try with this number: the innermost, named last, counts fastest."""
    if k == 0:
        return "first try"
    for name, tries in reversed(layers.items()):
        if k % tries:
            return f"again by {name}"
        k //= tries
    return ""


# --- policies -------------------------------------------------------------------------------------


def run_policy(incident: Incident, spec: str) -> Run:
    """Run the incident's world under a policy, for every client.

    Raises
    ------
    UserError
        For an unknown policy or a bound.
    """
    policy = _checked(spec)
    stage = Stage(incident)
    claims: dict[tuple[str, str], str] = {}
    players = [
        _Player(stage, client, writes, policy, claims)
        for client, writes in incident.acting()
        if writes
    ]
    while players:
        player = min(players, key=lambda p: stage.now_s[p.client])
        stage.happen_until(stage.now_s[player.client])
        player.move()
        players = [p for p in players if p.writes]
    return _finished(stage, claims, policy.spec)


class _Player:
    """A client that does its writes one after the other, a move at a time."""

    def __init__(
        self,
        stage: Stage,
        client: str,
        writes: Sequence[str],
        policy: Decider | PlannedPolicy,
        claims: dict[tuple[str, str], str],
    ) -> None:
        self.stage, self.client, self.writes = stage, client, list(writes)
        self.policy, self.claims = policy, claims

    def move(self) -> None:
        """Send the original, or do what the policy decides."""
        stage, client, name = self.stage, self.client, self.writes[0]
        work = stage.touch(client, name)
        if not work.sendings:
            keyed = stage.incident.contract_of(name).original_key == "sent"
            if stage.send(client, name, INTENT_KEY if keyed else None, None) == Response.SUCCESS:
                self._finish(name, COMPLETED)
            return
        view, contract = work.views[client], work.stated[0]
        action, seconds = self._decide(work)
        if action in (Action.FINISH, Action.FINISH_UNCERTAIN):
            claim = COMPLETED if action == Action.FINISH else UNCERTAIN
            self._finish(name, claim)
            return
        if action == Action.READ:
            stage.read(client, name)
        elif action == Action.WAIT:
            stage.wait(client, stage.now_s[client] + seconds, name)
        elif action == Action.ESCALATE:
            stage.ask(client, name)
        elif not kernel.sends(contract, view[0], int(action)):
            view["n_client_errors"] += 1
            view["n_steps"] += 1
            stage.note(client, f"cannot send {name} so")
        else:
            stage.send(client, name, *self._again(work, action))
        if view["n_steps"][0] >= contract["max_steps"]:
            stage.note(client, f"has no calls left for {name}")
            self._end(name, UNCERTAIN)

    def _finish(self, name: str, claim: str) -> None:
        self.stage.end(self.client, name, f"ends {name} as {claim}")
        self._end(name, claim)

    def _end(self, name: str, claim: str) -> None:
        self.claims[self.client, name] = claim
        self.writes.remove(name)

    def _decide(self, work: Work) -> tuple[Action, float]:
        view = work.views[self.client]
        response = Response(int(view["attempts"]["response"][0, 0]))
        plan = plan_of(self.stage.incident, work.name, response)
        policy = (
            self.policy.for_plan(plan) if isinstance(self.policy, PlannedPolicy) else self.policy
        )
        truths = TruthBatch(work.operation.truth.copy(), work.operation.contexts)
        return decide_one(policy, ViewBatch(view.copy(), plan.contracts), truths)

    def _again(self, work: Work, action: Action) -> tuple[str | None, tuple[int, ...] | None]:
        """Key and items of a re-issue."""
        contract, view = work.stated[0], work.views[self.client][0]
        key = None
        if action == Action.KEYED_RETRY:
            pinned = work.operation.first_key or INTENT_KEY
            same = candidate_key(contract) == PINNED
            key = pinned if same else OTHER_KEY
        mask = int(next_payload(view, contract, work.operation.key_number(key)))
        items = item_list(mask)
        return key, None if len(items) == contract["n_items"] else items


# --- the end --------------------------------------------------------------------------------------


def _finished(stage: Stage, claims: dict[tuple[str, str], str], name: str) -> Run:
    elapsed_s = max(stage.now_s[client] for client, _ in claims) if claims else 0.0
    stage.settle()
    said = set(claims.values())
    claim = next((c for c in (FAILED, UNCERTAIN, COMPLETED) if c in said), UNCERTAIN)
    return Run(name, tuple(stage.timeline()), _outcome(stage, claim, elapsed_s))


def _outcome(stage: Stage, claim: str, elapsed_s: float) -> dict[str, bool | int | float | str]:
    """The measures from the ledger, all writes of the incident together."""
    counts: Counter[str] = Counter()
    operator_s = 0.0
    for name in stage.incident.writes:
        contract, work = stage.incident.contract_of(name), stage.works.get(name)
        ledger = work.ledger() if work else []
        if contract.idempotent:  # executing it again changes nothing
            ledger = list({effect.item: effect for effect in reversed(ledger)}.values())
        executed = Counter(effect.item for effect in ledger)
        standing = Counter(e.item for e in ledger if work and e not in work.undone)
        counts["executions"] += len(ledger)
        counts["standing"] += standing.total()
        for item in range(contract.n_items):
            counts["omissions"] += standing[item] == 0
            counts["duplicates"] += max(executed[item] - 1, 0)
            counts["residual_duplicates"] += max(standing[item] - 1, 0)
        for view in work.views.values() if work else ():
            for measure in ("reads", "waits", "reissues", "escalations", "steps"):
                counts[measure] += int(view[f"n_{measure}"][0])
            operator_s += float(view["n_escalations"][0]) * contract.operator_delay_s
        counts["false_retry_permissions"] += work.false_permissions if work else 0
    success = counts["omissions"] == 0
    exact = success and counts["duplicates"] == 0
    unresolved = claim != COMPLETED
    found: dict[str, bool | int | float | str] = {
        "task_success": success,
        "exactly_once": exact,
        "unresolved": unresolved,
        "resolved_exact": exact and not unresolved,
        "overclaim": not unresolved and (not success or counts["residual_duplicates"] > 0),
        "elapsed_s": elapsed_s,
        "operator_s": operator_s,
    }
    ordered = {name: found.get(name, counts[name]) for name in MEASURES}
    return ordered | {
        "claim": claim,
        "executions": counts["executions"],
        "standing": counts["standing"],
        "false_failure": claim == FAILED and counts["standing"] > 0,
    }
