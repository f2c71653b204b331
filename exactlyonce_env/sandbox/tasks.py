"""The twelve tasks: what is asked for, what must come of it, and where a fault may attach.

An instance's names and amounts follow from the task's name and the instance's number alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from exactlyonce_env.errors import UserError, unknown
from exactlyonce_env.sandbox.records import canonical
from exactlyonce_env.sandbox.tools import BATCH, PATHS, path_of

__all__ = ["TASKS", "FocalWrite", "Required", "Step", "Task", "make_task"]

MAX_INSTANCE = 10**9
CUE = "Every one of these actions must happen exactly once."


@dataclass(frozen=True)
class FocalWrite:
    """A write that a fault may attach to: the ``nth`` call of ``path`` whose arguments match."""

    name: str
    path: str
    where: Mapping[str, Any]
    nth: int = 1


@dataclass(frozen=True)
class Required:
    """One effect, or one batch of them, that the task asks for.

    ``arguments`` are what its write must have said; of rows and texts no more is compared.
    """

    path: str
    intent: tuple[Any, ...]
    arguments: Mapping[str, Any]
    items: tuple[str, ...] = ("",)


@dataclass(frozen=True)
class Step:
    """One call of the happy path."""

    name: str
    tool: str
    arguments: Mapping[str, Any]

    @property
    def path(self) -> str:
        """The write path that the step takes."""
        return path_of(self.tool, self.arguments).name


@dataclass(frozen=True)
class Task:
    """An instance of a task.

    Attributes
    ----------
    name, instance
        Which one.
    instruction
        What the agent is told, without the sentence on exactly once.
    steps
        Calls that do all of it where nothing goes wrong.
    focal
        Names of the steps that a fault may attach to, in order.
    seeded
        What the services hold before, by kind.
    protected
        Ids of seeded records that must not be touched.
    """

    name: str
    instance: int
    instruction: str
    steps: tuple[Step, ...]
    focal: tuple[str, ...]
    seeded: Mapping[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    protected: frozenset[str] = frozenset()

    def text(self, instruction: str = "default") -> str:
        """The instruction in a variant: ``default`` asks for exactly once, ``no-cue`` does not."""
        return self.instruction if instruction == "no-cue" else f"{self.instruction} {CUE}"

    @property
    def writes(self) -> tuple[FocalWrite, ...]:
        """The focal writes."""
        return tuple(self._focal(name) for name in self.focal)

    @property
    def required(self) -> tuple[Required, ...]:
        """The effects that the task asks for."""
        found = []
        for step in self.steps:
            path = PATHS[step.path]
            _, *intent = path.intent_of(step.arguments)
            items: tuple[str, ...] = ("",)
            if path.name == BATCH:
                items = tuple(canonical(row) for row in step.arguments["rows"])
            found.append(Required(path.name, tuple(intent), step.arguments, items))
        return tuple(found)

    def _focal(self, name: str) -> FocalWrite:
        step = next(step for step in self.steps if step.name == name)
        path = PATHS[step.path]
        where = {field: step.arguments[field] for field in path.intent}
        return FocalWrite(name, path.name, where)

    def write(self, which: str | int | None) -> FocalWrite:
        """A focal write by name or number; None: the first.

        Raises
        ------
        UserError
            For one that there is not.
        """
        names = ", ".join(f"{k} {name}" for k, name in enumerate(self.focal))
        if which is None:
            return self._focal(self.focal[0])
        text = str(which)
        if text.isascii() and text.isdigit() and int(text) < len(self.focal):
            return self._focal(self.focal[int(text)])
        if text in self.focal:
            return self._focal(text)
        raise UserError(f"task {self.name} has no focal write {text!r}; choose from {names}")

    def with_stranger(self, focal: FocalWrite) -> Mapping[str, list[Mapping[str, Any]]]:
        """What is seeded, and somebody else's record with the intent fields of the focal write."""
        step = next(step for step in self.steps if step.name == focal.name)
        kind = PATHS[focal.path].kind
        fields = {k: v for k, v in step.arguments.items() if k != "rows"}
        for name in ("text", "body", "description", "subject", "title"):
            if name in fields:
                fields[name] = f"{fields[name]} (not ours)"
        if focal.path == BATCH:
            fields["row"] = step.arguments["rows"][0]
        entry = {**fields, "id": f"{kind}-900001"}
        return {**self.seeded, kind: [*self.seeded.get(kind, ()), entry]}


class _Draw:
    """Names and numbers of an instance."""

    def __init__(self, task: str, instance: int) -> None:
        self.random = random.Random(f"{task}/{instance}")
        self.even = instance % 2 == 0

    def pick(self, choices: Sequence[str]) -> str:
        """One of some words."""
        return self.random.choice(choices)

    def product(self) -> str:
        """A product's name."""
        first = ("North", "Clear", "Stone", "Blue", "River", "Copper", "Silver", "Green")
        return self.pick(first) + self.pick(("desk", "mark", "line", "port", "field", "gate"))

    def version(self) -> str:
        """A version number."""
        r = self.random
        return f"{r.randint(1, 9)}.{r.randint(0, 19)}.{r.randint(0, 9)}"

    def service(self) -> str:
        """A service's name."""
        return self.pick(("checkout", "search", "ledger", "catalog", "mailer", "profile", "router"))

    def customers(self, n: int) -> list[str]:
        """Ids of different customers."""
        return [f"cust-{k}" for k in self.random.sample(range(1000, 9999), n)]

    def amount(self) -> float:
        """An amount in euros."""
        return self.random.randint(1000, 99999) / 100

    def ticket(self, project: str) -> str:
        """Id of a ticket that exists."""
        return f"{project}-{self.random.randint(100, 999)}"


def _publish(name: str, platform: str, text: str) -> Step:
    return Step(name, "social_publish", {"platform": platform, "text": text})


def _ticket(name: str, project: str, title: str, body: str) -> Step:
    return Step(name, "tickets_create", {"project": project, "title": title, "body": body})


def _comment(name: str, ticket_id: str, body: str) -> Step:
    return Step(name, "tickets_comment", {"ticket_id": ticket_id, "body": body})


def _mail(name: str, to: str, subject: str, body: str) -> Step:
    return Step(name, "mail_send", {"to": to, "subject": subject, "body": body})


def _charge(name: str, customer: str, amount: float, description: str) -> Step:
    arguments = {"customer": customer, "amount": amount, "description": description}
    return Step(name, "billing_charge", arguments)


def _upsert(name: str, table: str, key: str, values: Mapping[str, Any]) -> Step:
    return Step(name, "db_upsert", {"table": table, "key": key, "values": dict(values)})


def _insert(name: str, table: str, row: Mapping[str, Any]) -> Step:
    return Step(name, "db_insert", {"table": table, "row": dict(row)})


def _deploy(name: str, service: str, version: str, environment: str) -> Step:
    arguments = {"service": service, "version": version, "environment": environment}
    return Step(name, "deploy_run", arguments)


def _seeded_ticket(id_: str, title: str) -> dict[str, Any]:
    project = id_.split("-")[0]
    return {"id": id_, "project": project, "title": title, "body": title + ".", "status": "open"}


def _release_announcement(instance: int) -> Task:
    draw = _Draw("release_announcement", instance)
    product, version = draw.product(), draw.version()
    first = "mastodon" if draw.even else "linkedin"
    text = f"{product} {version} is out."
    return Task(
        "release_announcement",
        instance,
        f"{product} {version} has been released. Publish the post '{text}' on {first} and on "
        f"weibo, open a ticket 'Announce {product} {version}' in project COMMS with a short note, "
        f"and send an e-mail with the subject '{product} {version}' to press@example.org.",
        (
            _publish(f"post_{first}", first, text),
            _publish("post_weibo", "weibo", text),
            _ticket("ticket", "COMMS", f"Announce {product} {version}", f"{text} Posts are up."),
            _mail("mail", "press@example.org", f"{product} {version}", text),
        ),
        (f"post_{first}", "post_weibo", "ticket", "mail"),
    )


def _invoice_batch(instance: int) -> Task:
    draw = _Draw("invoice_batch", instance)
    customers = draw.customers(2 if draw.even else 3)
    amounts = [draw.amount() for _ in customers]
    month = draw.pick(("January", "March", "June", "October"))
    wanted = ", ".join(f"{c} {a:.2f} euros" for c, a in zip(customers, amounts, strict=True))
    return Task(
        "invoice_batch",
        instance,
        f"Charge these customers for {month}: {wanted}. Use 'Subscription {month}' as the "
        f"description. Then send an e-mail with the subject 'Invoices {month}' to "
        "billing@example.org that says how many were charged.",
        (
            *(
                _charge(f"charge_{k}", customer, amount, f"Subscription {month}")
                for k, (customer, amount) in enumerate(zip(customers, amounts, strict=True))
            ),
            _mail(
                "mail",
                "billing@example.org",
                f"Invoices {month}",
                f"{len(customers)} customers were charged.",
            ),
        ),
        (*(f"charge_{k}" for k in range(len(customers))), "mail"),
    )


def _incident_open(instance: int) -> Task:
    draw = _Draw("incident_open", instance)
    service, known = draw.service(), draw.ticket("WEB")
    return Task(
        "incident_open",
        instance,
        f"Service {service} answers with errors. Open a ticket '{service} is failing' in project "
        f"OPS, add a comment to ticket {known} that names {service} as the cause, and send an "
        f"e-mail with the subject 'Incident: {service}' to oncall@example.org.",
        (
            _ticket("ticket", "OPS", f"{service} is failing", f"{service} answers with errors."),
            _comment("comment", known, f"Caused by errors of {service}."),
            _mail("mail", "oncall@example.org", f"Incident: {service}", f"{service} is failing."),
        ),
        ("ticket", "comment", "mail"),
        {"ticket": [_seeded_ticket(known, "Pages do not load")]},
    )


def _migration_log(instance: int) -> Task:
    draw = _Draw("migration_log", instance)
    r = draw.random
    number = r.randint(100, 999)
    shards = r.sample(range(1, 64), 4)
    rows = [
        {"migration": number, "shard": shard, "rows_moved": r.randint(1000, 99999)}
        for shard in shards
    ]
    told = "; ".join(f"shard {row['shard']}, rows_moved {row['rows_moved']}" for row in rows)
    audit = {"event": "migration", "migration": number, "shards": 4}
    return Task(
        "migration_log",
        instance,
        f"Log migration {number} in table migrations with one batch insert of four rows, each with "
        f"migration {number}: {told}. Then insert one row into table audit: event 'migration', "
        f"migration {number}, shards 4.",
        (
            Step("batch", "db_batch_insert", {"table": "migrations", "rows": rows}),
            _insert("audit", "audit", audit),
        ),
        ("batch", "audit"),
    )


def _deploy_release(instance: int) -> Task:
    draw = _Draw("deploy_release", instance)
    service, version, ticket = draw.service(), draw.version(), draw.ticket("REL")
    return Task(
        "deploy_release",
        instance,
        f"Deploy {service} {version} to staging, then to production, and add a comment to ticket "
        f"{ticket} that {version} is live.",
        (
            _deploy("staging", service, version, "staging"),
            _deploy("production", service, version, "production"),
            _comment("comment", ticket, f"{service} {version} is live."),
        ),
        ("staging", "production", "comment"),
        {"ticket": [_seeded_ticket(ticket, f"Release {service}")]},
    )


def _refund_duplicate(instance: int) -> Task:
    draw = _Draw("refund_duplicate", instance)
    (customer,), amount = draw.customers(1), draw.amount()
    first, second = (f"ch-{k}" for k in draw.random.sample(range(10000, 99999), 2))
    charge = {"customer": customer, "amount": amount, "description": "Annual plan"}
    return Task(
        "refund_duplicate",
        instance,
        f"Customer {customer} was charged {amount:.2f} euros twice. Refund the second charge, "
        f"{second}; the original {first} stands. Then send an e-mail with the subject "
        f"'Refund {second}' to {customer}@example.com.",
        (
            Step("refund", "billing_refund", {"charge_id": second}),
            _mail(
                "mail",
                f"{customer}@example.com",
                f"Refund {second}",
                f"We have refunded {amount:.2f} euros.",
            ),
        ),
        ("refund", "mail"),
        {"charge": [{"id": first, **charge}, {"id": second, **charge}]},
        frozenset({first}),
    )


def _feature_flags(instance: int) -> Task:
    draw = _Draw("feature_flags", instance)
    product = draw.product()
    flags = draw.random.sample(
        ("dark_mode", "fast_search", "new_editor", "live_sync", "beta_api"), 3
    )
    return Task(
        "feature_flags",
        instance,
        f"Turn three features of {product} on: set enabled to true in table flags for the keys "
        f"{', '.join(flags)}. Then publish '{product} has new features.' on linkedin.",
        (
            *(
                _upsert(f"flag_{k}", "flags", flag, {"enabled": True})
                for k, flag in enumerate(flags)
            ),
            _publish("post", "linkedin", f"{product} has new features."),
        ),
        ("flag_0", "post"),
    )


def _customer_notice(instance: int) -> Task:
    draw = _Draw("customer_notice", instance)
    product = draw.product()
    addresses = [f"{customer}@example.com" for customer in draw.customers(3)]
    day = draw.pick(("Monday", "Tuesday", "Thursday", "Friday"))
    return Task(
        "customer_notice",
        instance,
        f"{product} is down for maintenance on {day}. Send an e-mail with the subject "
        f"'Maintenance of {product}' to each of {', '.join(addresses)}, and open a ticket "
        f"'Maintenance of {product}' in project SUPPORT.",
        (
            *(
                _mail(
                    f"mail_{k}",
                    address,
                    f"Maintenance of {product}",
                    f"{product} is down for maintenance on {day}.",
                )
                for k, address in enumerate(addresses)
            ),
            _ticket("ticket", "SUPPORT", f"Maintenance of {product}", "Customers were told."),
        ),
        ("mail_0", "mail_1", "ticket"),
    )


def _cross_post(instance: int) -> Task:
    draw = _Draw("cross_post", instance)
    product = draw.product()
    text = f"{product} turns {draw.random.randint(2, 20)} today."
    return Task(
        "cross_post",
        instance,
        f"Publish '{text}' on x and on mastodon, and send an e-mail with the subject "
        f"'{product} birthday' to team@example.org.",
        (
            _publish("post_x", "x", text),
            _publish("post_mastodon", "mastodon", text),
            _mail("mail", "team@example.org", f"{product} birthday", text),
        ),
        ("post_x", "post_mastodon"),
    )


def _subscription_upgrade(instance: int) -> Task:
    draw = _Draw("subscription_upgrade", instance)
    (customer,), amount = draw.customers(1), draw.amount()
    plan = draw.pick(("team", "business", "enterprise"))
    return Task(
        "subscription_upgrade",
        instance,
        f"Upgrade customer {customer} to plan {plan}: charge {amount:.2f} euros for 'Upgrade to "
        f"{plan}', set plan to '{plan}' in table subscriptions for the key {customer}, and send an "
        f"e-mail with the subject 'Your plan is now {plan}' to {customer}@example.com.",
        (
            _charge("charge", customer, amount, f"Upgrade to {plan}"),
            _upsert("upsert", "subscriptions", customer, {"plan": plan}),
            _mail(
                "mail",
                f"{customer}@example.com",
                f"Your plan is now {plan}",
                f"Thank you. We have charged {amount:.2f} euros.",
            ),
        ),
        ("charge", "upsert", "mail"),
    )


def _ticket_resolution(instance: int) -> Task:
    draw = _Draw("ticket_resolution", instance)
    ticket, (customer,) = draw.ticket("SUP"), draw.customers(1)
    cause = draw.pick(("an expired certificate", "a full disk", "a wrong setting"))
    return Task(
        "ticket_resolution",
        instance,
        f"Ticket {ticket} is solved; the cause was {cause}. Add a comment to it that says so, set "
        f"its status to resolved, and send an e-mail with the subject 'Ticket {ticket} is solved' "
        f"to {customer}@example.com.",
        (
            _comment("comment", ticket, f"Solved. The cause was {cause}."),
            Step("status", "tickets_set_status", {"ticket_id": ticket, "status": "resolved"}),
            _mail(
                "mail",
                f"{customer}@example.com",
                f"Ticket {ticket} is solved",
                f"The cause was {cause}.",
            ),
        ),
        ("comment", "status", "mail"),
        {"ticket": [_seeded_ticket(ticket, "Something does not work")]},
    )


def _hotfix_long(instance: int) -> Task:
    draw = _Draw("hotfix_long", instance)
    service, version, known = draw.service(), draw.version(), draw.ticket("OPS")
    text = f"A fix for {service} is being rolled out."
    row = {"event": "hotfix", "service": service, "version": version}
    return Task(
        "hotfix_long",
        instance,
        f"Roll out the fix {version} of {service}: open a ticket 'Hotfix {service} {version}' in "
        f"project REL; deploy it to staging, then to production; publish '{text}' on mastodon and "
        f"on weibo; add a comment to ticket {known} that {version} is live; insert one row into "
        f"table audit: event 'hotfix', service '{service}', version '{version}'; set version to "
        f"'{version}' in table services for the key {service}; send an e-mail with the subject "
        f"'Hotfix {service}' to oncall@example.org and one with the same subject to "
        "customers@example.org.",
        (
            _ticket("ticket", "REL", f"Hotfix {service} {version}", f"Fix {version}."),
            _deploy("staging", service, version, "staging"),
            _deploy("production", service, version, "production"),
            _publish("post_mastodon", "mastodon", text),
            _publish("post_weibo", "weibo", text),
            _comment("comment", known, f"{service} {version} is live."),
            _insert("audit", "audit", row),
            _upsert("upsert", "services", service, {"version": version}),
            _mail("mail", "oncall@example.org", f"Hotfix {service}", f"{version} is live."),
            _mail("mail_customers", "customers@example.org", f"Hotfix {service}", text),
        ),
        ("production", "post_weibo", "mail", "ticket"),
        {"ticket": [_seeded_ticket(known, f"{service} is failing")]},
    )


TASKS: dict[str, Callable[[int], Task]] = {
    "release_announcement": _release_announcement,
    "invoice_batch": _invoice_batch,
    "incident_open": _incident_open,
    "migration_log": _migration_log,
    "deploy_release": _deploy_release,
    "refund_duplicate": _refund_duplicate,
    "feature_flags": _feature_flags,
    "customer_notice": _customer_notice,
    "cross_post": _cross_post,
    "subscription_upgrade": _subscription_upgrade,
    "ticket_resolution": _ticket_resolution,
    "hotfix_long": _hotfix_long,
}
"""What makes an instance of each task."""


def make_task(name: str, instance: int = 0) -> Task:
    """An instance of a task.

    Raises
    ------
    UserError
        For an unknown name or an instance out of range.
    """
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    if isinstance(instance, bool) or not isinstance(instance, int):
        raise UserError(f"instance must be a whole number, not {instance!r}")
    if not 0 <= instance <= MAX_INSTANCE:
        raise UserError(f"instance must lie in 0..{MAX_INSTANCE}, not {instance}")
    return TASKS[name](instance)
