"""The one protocol of all policies: a batch of views in, a batch of actions out.

Honest policies receive views and visible contracts and nothing else; only a `PrivilegedPolicy` is
handed hidden state, and its type says so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from exactlyonce_env.plan import Plan


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same memory without the right to write, as compiled policies expect it."""
    view = array.view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True, eq=False)
class ViewBatch:
    """What ``n`` clients have seen, in running worlds.

    Attributes
    ----------
    views
        (n,) `VIEW` records, read-only.
    contracts
        (C,) `CONTRACT` records of the preset, read-only; client ``i`` works under
        ``contracts[views["context"][i]]``.
    """

    views: npt.NDArray[Any]
    contracts: npt.NDArray[Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "views", _read_only(self.views))
        object.__setattr__(self, "contracts", _read_only(self.contracts))

    def __len__(self) -> int:
        return len(self.views)

    @property
    def own_contracts(self) -> npt.NDArray[Any]:
        """The contract of each client, (n,) `CONTRACT` records (a copy)."""
        return self.contracts[self.views["context"]]


@dataclass(frozen=True, eq=False)
class TruthBatch:
    """What really happened in the worlds of a `ViewBatch`.  Privileged.

    Attributes
    ----------
    truths
        (n,) `TRUTH` records, read-only, in the order of the views.
    contexts
        (C,) `CONTEXT` records, read-only: the contracts beside the hidden laws.
    """

    truths: npt.NDArray[Any]
    contexts: npt.NDArray[Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "truths", _read_only(self.truths))
        object.__setattr__(self, "contexts", _read_only(self.contexts))


@dataclass(frozen=True, eq=False)
class ActionBatch:
    """One decision for each view.

    Attributes
    ----------
    kinds
        (n,) int8, numbers of `exactlyonce_env.vocabulary.Action`.
    seconds
        (n,) float64 [s], how long to wait; counts where the kind is WAIT,
        0 <= seconds <= `exactlyonce_env.actions.MAX_WAIT_S`.
    """

    kinds: npt.NDArray[np.int8]
    seconds: npt.NDArray[np.float64]

    @classmethod
    def empty(cls, n: int) -> ActionBatch:
        """Room for ``n`` decisions, all READ with 0 s."""
        return cls(np.zeros(n, dtype=np.int8), np.zeros(n, dtype=np.float64))


class Policy(ABC):
    """Decides from views alone.  Subclass it, override `act`, and every runner takes the result.

    The same view must always get the same action, so that a run can be resumed and repeated.
    """

    privileged: ClassVar[bool] = False
    """Whether tables mark this policy as one that sees hidden state."""

    @property
    def spec(self) -> str:
        """Canonical name in tables and stores; of an own policy, its class's name."""
        return type(self).__name__

    @abstractmethod
    def act(self, batch: ViewBatch) -> ActionBatch:
        """One decision for each view of the batch."""


class PrivilegedPolicy(ABC):
    """Decides with a look at what really happened: a reference, not a client."""

    privileged: ClassVar[bool] = True

    @property
    def spec(self) -> str:
        """Canonical name in tables and stores; of an own policy, its class's name."""
        return type(self).__name__

    @abstractmethod
    def act(self, batch: ViewBatch, truths: TruthBatch) -> ActionBatch:
        """One decision for each view of the batch."""


class Bound(ABC):
    """What no client can exceed: the best episode of each world, found with all of it in view."""

    privileged: ClassVar[bool] = True

    @property
    @abstractmethod
    def spec(self) -> str:
        """Canonical name in tables and stores."""

    @abstractmethod
    def best_episodes(
        self, plan: Plan, seed: int, ids: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[Any]]:
        """Best reward (n,) float64 and its `OUTCOME` record (n,) in each of the worlds ``ids``."""


class PlannedPolicy(ABC):
    """An honest policy that is made for one preset: it knows the laws its worlds are drawn by."""

    privileged: ClassVar[bool] = False

    @property
    @abstractmethod
    def spec(self) -> str:
        """Canonical name in tables and stores."""

    @abstractmethod
    def for_plan(self, plan: Plan) -> Policy:
        """The policy for the worlds of ``plan``."""


AnyPolicy = Policy | PrivilegedPolicy | PlannedPolicy | Bound
