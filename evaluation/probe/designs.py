"""The five designs of the probe as data: factors, levels and planned sizes.

A *cell* is one prompt: the levels of all factors and a task.  A *draw* is one response to it.  A
design crosses its factors exactly, and its size is the number of responses planned for one policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from typing import Any

from exactlyonce_env.errors import UserError, unknown

__all__ = [
    "DESIGNS",
    "DESIGN_NAMES",
    "LEVELS",
    "TASKS",
    "Cell",
    "Design",
    "Format",
    "Variant",
    "design_of",
]

TASKS: tuple[str, ...] = ("ci-run", "issue", "release", "review-comment")
"""What the write creates; target and payload of each are fixed."""

N_ORDERS = 4
"""Cyclic orders of the menu."""

N_MAPPINGS = 4
"""Ways in which codes A-D stand for the four actions of a menu without a key."""


@dataclass(frozen=True)
class Format:
    """How the actions are written.

    Attributes
    ----------
    actions
        ``canonical`` names or ``coded`` letters.
    mapping
        Which action the letter A stands for, 0-3; None for canonical names.
    order
        Place of the action, or of the letter, that the menu begins with.
    """

    actions: str = "canonical"
    mapping: int | None = None
    order: int = 0


@dataclass(frozen=True)
class Variant:
    """The levels of all factors but the task.

    Attributes
    ----------
    label
        Of the empty lookup: ``absent`` (it has none), ``weak``, ``unverified`` or
        ``authoritative``.  No label changes what is permitted.
    semantics
        Whether it is ``stated`` what an empty lookup means.
    key
        ``none``: the endpoint takes no key.  ``omitted``: the original carried none, a candidate is
        shown all the same.  ``valid``: the candidate is the original's key.  ``changed``: it is
        another one.  ``supplied``: none is shown, the model writes one.
    original
        Whether the original's key was ``sent`` or ``omitted``.
    actions, mapping, order
        As of `Format`.
    """

    label: str = "absent"
    semantics: str = "stated"
    key: str = "none"
    original: str = "omitted"
    actions: str = "canonical"
    mapping: int | None = None
    order: int = 0

    def __post_init__(self) -> None:
        for name, levels in LEVELS.items():
            level = getattr(self, name)
            if level not in levels or isinstance(level, bool):
                raise unknown(name, level, [str(one) for one in levels])
        if (self.original == "sent") != (self.key in ("valid", "changed")) and (
            self.key != "supplied"
        ):
            raise UserError(
                f"key {self.key} does not go with an original whose key is {self.original}"
            )
        if (self.actions == "coded") != (self.mapping is not None):
            raise UserError("a mapping belongs to coded actions, and to them alone")
        if self.actions == "coded" and self.key != "none":
            raise UserError("codes stand for the four actions of a menu without a key")

    @property
    def condition(self) -> tuple[str, str]:
        """The key condition: ``key`` and ``original``."""
        return self.key, self.original

    def to_dict(self) -> dict[str, Any]:
        """The levels by factor."""
        return asdict(self)


LEVELS: dict[str, tuple[Any, ...]] = {
    "label": ("absent", "weak", "unverified", "authoritative"),
    "semantics": ("stated", "unstated"),
    "key": ("none", "omitted", "valid", "changed", "supplied"),
    "original": ("omitted", "sent"),
    "actions": ("canonical", "coded"),
    "mapping": (None, *range(N_MAPPINGS)),
    "order": tuple(range(N_ORDERS)),
}
"""Levels of each factor."""

FACTORS: tuple[str, ...] = tuple(field.name for field in fields(Variant))


@dataclass(frozen=True)
class Cell:
    """One prompt: a variant and a task."""

    variant: Variant
    task: str

    def to_dict(self) -> dict[str, Any]:
        """The levels by factor, and the task."""
        return self.variant.to_dict() | {"task": self.task}

    @property
    def name(self) -> str:
        """All levels in one word."""
        return ",".join("-" if level is None else str(level) for level in self.to_dict().values())


@dataclass(frozen=True)
class Design:
    """Factors, exactly crossed.

    Attributes
    ----------
    name, summary
        What it is called, and what is crossed.
    variants
        The variants, each met by every task.
    draws
        Responses to each prompt.
    """

    name: str
    summary: str
    variants: tuple[Variant, ...]
    draws: int

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every prompt."""
        return tuple(Cell(variant, task) for variant in self.variants for task in TASKS)

    @property
    def planned(self) -> int:
        """Responses planned for one policy."""
        return len(self.variants) * len(TASKS) * self.draws

    def units(self) -> Iterator[tuple[Cell, int]]:
        """Every planned response: its prompt, and the number of the draw."""
        return ((cell, draw) for cell in self.cells for draw in range(self.draws))


TWO_LABELS = ("absent", "weak")
"""The levels of the label in designs that cross two."""

CANONICAL = Format()
ORDERS = tuple(Format(order=order) for order in range(N_ORDERS))
CODED = tuple(
    Format("coded", mapping, order)
    for mapping, order in product(range(N_MAPPINGS), range(N_ORDERS))
)

NO_KEY = (("none", "omitted"),)
CANDIDATES = (("omitted", "omitted"), ("valid", "sent"), ("changed", "sent"))
SUPPLIED = (("supplied", "omitted"), ("supplied", "sent"))


def _crossed(
    labels: Sequence[str],
    *,
    semantics: Sequence[str] = ("stated",),
    keys: Sequence[tuple[str, str]] = NO_KEY,
    formats: Sequence[Format] = (CANONICAL,),
) -> tuple[Variant, ...]:
    return tuple(
        Variant(label, stated, *key, form.actions, form.mapping, form.order)
        for label, stated, key, form in product(labels, semantics, keys, formats)
    )


DESIGNS: dict[str, Design] = {
    design.name: design
    for design in (
        Design(
            "key-control",
            "label 2 x semantics 2 x key 3 x task 4 x draw 5",
            _crossed(TWO_LABELS, semantics=LEVELS["semantics"], keys=CANDIDATES),
            5,
        ),
        Design(
            "counterbalance",
            "task 4 x label 2 x format 20 x draw 2",
            _crossed(TWO_LABELS, formats=(*ORDERS, *CODED)),
            2,
        ),
        Design(
            "cue-control",
            "label 4 x task 4 x order 4 x draw 4",
            _crossed(LEVELS["label"], formats=ORDERS),
            4,
        ),
        Design(
            "supplied-key",
            "key 2 x label 2 x task 4 x draw 5",
            _crossed(TWO_LABELS, keys=SUPPLIED),
            5,
        ),
        Design(
            "canonical-block",
            "task 4 x label 2 x order 4 x draw 8",
            _crossed(TWO_LABELS, formats=ORDERS),
            8,
        ),
    )
}
"""The designs by name."""

DESIGN_NAMES: tuple[str, ...] = tuple(DESIGNS)


def design_of(name: str) -> Design:
    """The design of a name.

    Raises
    ------
    UserError
        For an unknown one.
    """
    if name not in DESIGNS:
        raise unknown("design", name, DESIGN_NAMES)
    return DESIGNS[name]
