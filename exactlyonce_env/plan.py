"""A preset compiled into arrays: all that the kernel needs to draw and run its worlds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from exactlyonce_env.delays import encode
from exactlyonce_env.drawing import draw_worlds
from exactlyonce_env.observation import N_STATIC, write_static
from exactlyonce_env.records import CONTEXT, DOCUMENTED_QUANTILES, UNKNOWN, WORLD
from exactlyonce_env.vocabulary import (
    CandidateKey,
    InFlightSameKey,
    Mode,
    OriginalKey,
    Readback,
    Start,
)

if TYPE_CHECKING:
    from exactlyonce_env.config import Attempt, Costs, Preset, Situation
    from exactlyonce_env.delays import Law

MAX_SEED = 2**64 - 1
MAX_WORLD = 2**63 - 1


@dataclass(frozen=True, eq=False)
class Plan:
    """The arrays behind a preset.

    Attributes
    ----------
    preset
        The validated preset that the plan was made of.
    contexts
        (C,) `CONTEXT` records: the visible contract beside the hidden law.
    context_cdf
        (C,) float64, cumulative probability of the contexts.
    table
        (K,) float64, the arena of delay laws.
    static
        (C, N_STATIC) float32, the static part of the observation of each context.
    situations
        The contexts as models, in the same order.
    """

    preset: Preset
    contexts: npt.NDArray[Any]
    context_cdf: npt.NDArray[np.float64]
    table: npt.NDArray[np.float64]
    static: npt.NDArray[np.float32]
    situations: Sequence[Situation] = field(repr=False)

    @property
    def contracts(self) -> npt.NDArray[Any]:
        """The visible half of the contexts, (C,) `CONTRACT` records; what policies may see."""
        return self.contexts["contract"]

    def worlds(self, seed: int, ids: Iterable[int]) -> npt.NDArray[Any]:
        """Worlds written out in full, (n,) `WORLD` records.  Privileged.

        Raises
        ------
        UserError
            For a seed or an id out of range.
        """
        seed = checked_seed(seed)
        wanted = np.array([checked_world(k) for k in ids], dtype=np.int64)
        out = np.zeros(len(wanted), dtype=WORLD)
        draw_worlds(self.contexts, self.context_cdf, self.table, np.uint64(seed), wanted, out)
        return out

    def __deepcopy__(self, memo: object) -> Plan:
        return self  # immutable: environments that share a plan keep sharing it


def checked_seed(seed: int) -> int:
    """``seed`` as an int, or a `UserError` that names the range."""
    return _in_range("seed", seed, MAX_SEED)


def checked_world(world: int) -> int:
    """``world`` as an int, or a `UserError` that names the range."""
    return _in_range("world id", world, MAX_WORLD)


def _in_range(name: str, value: Any, high: int) -> int:
    from exactlyonce_env.errors import UserError

    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise UserError(f"{name} must be an integer, not {value!r}")
    if not 0 <= value <= high:
        raise UserError(f"{name} must lie in 0..{high}, not {value}")
    return int(value)


def compile_preset(preset: Preset) -> Plan:
    """Compile a preset.

    Raises
    ------
    UserError
        Where a variant is impossible.
    """
    situations = preset.situations()
    laws: list[Law] = []
    positions: dict[int, int] = {}
    contexts = np.zeros(len(situations), dtype=CONTEXT)
    for k, situation in enumerate(situations):
        tail = situation.faults.late_tail
        position = positions.setdefault(id(tail), len(laws))
        if position == len(laws):
            laws.append(tail)
        _write_contract(contexts[k]["contract"], preset.start, situation)
        _write_law(contexts[k]["law"], situation)
        contexts[k]["law"]["tail_offset"] = position
    table, offsets = encode(laws)
    contexts["law"]["tail_offset"] = offsets[contexts["law"]["tail_offset"]]
    contexts["law"]["shown_as"] = _first_alike(contexts["contract"])
    weights = np.array([situation.weight for situation in situations])
    context_cdf = np.cumsum(weights) / weights.sum()
    context_cdf[-1] = 1.0
    static = np.zeros((len(situations), N_STATIC), dtype=np.float32)
    for k in range(len(contexts)):
        write_static(contexts[k]["contract"], static[k])
    for array in (contexts, context_cdf, table, static):
        array.setflags(write=False)
    return Plan(preset, contexts, context_cdf, table, static, tuple(situations))


def _first_alike(contracts: npt.NDArray[Any]) -> list[int]:
    """For each of the contracts (C,) the first one with the same bytes."""
    first: dict[bytes, int] = {}
    return [first.setdefault(contract.tobytes(), k) for k, contract in enumerate(contracts)]


def write_costs(record: np.void, costs: Costs) -> None:
    """Copy a cost model into a `COSTS` record."""
    for name in type(costs).model_fields:
        record[name] = getattr(costs, name)


def _write_contract(record: np.void, start: str, situation: Situation) -> None:
    contract, faults, documented = situation.contract, situation.faults, situation.documented
    for name in (
        "client_timeout_s",
        "latency_s",
        "operator_delay_s",
        "operator_answer_rate",
        "n_items",
        "max_steps",
        "max_attempts",
        "accepts_key",
        "idempotent",
        "irreversible",
        "operator_sees_in_flight",
        "dispatch_claims",
    ):
        record[name] = getattr(contract, name)
    record["lag_s"] = contract.lag_s if contract.lag_documented else UNKNOWN
    record["key_retention_s"] = _or_infinite(contract.key_retention_s)
    record["in_flight_bound_s"] = _or_infinite(contract.in_flight_bound_s)
    record["readback"] = Readback[contract.readback.upper()]
    record["in_flight_same_key"] = InFlightSameKey[contract.in_flight_same_key.upper()]
    record["original_key"] = OriginalKey[contract.original_key.upper()]
    record["candidate_key"] = CandidateKey[contract.candidate_key.upper()]
    record["start"] = Start[start.upper()]
    write_costs(record["costs"], situation.costs)
    shares = faults.shares("original", contract.n_items)
    record["documented_delay_s"] = _documented_delays(situation, shares)
    timeouts = sum(shares[Mode.TIMEOUT_PRE : Mode.HTTP500_PRE])
    late = shares[Mode.TIMEOUT_LATE] + shares[Mode.TIMEOUT_LATE_TAIL]
    errors = sum(shares[Mode.HTTP500_PRE : Mode.REDELIVERY])
    record["documented_late_share"] = late / timeouts if documented.shares and timeouts else UNKNOWN
    record["documented_absent_share"] = (
        shares[Mode.TIMEOUT_PRE] / timeouts if documented.shares and timeouts else UNKNOWN
    )
    record["documented_commit_share"] = (
        1.0 - shares[Mode.HTTP500_PRE] / errors if documented.shares and errors else UNKNOWN
    )
    record["documented_retry_fault_rate"] = (
        faults.retry_fault_rate if documented.retry_faults else UNKNOWN
    )


def _documented_delays(situation: Situation, shares: list[float]) -> list[float]:
    """The documented quantiles [s] where the late writes follow one law, else unknown."""
    faults = situation.faults
    fixed, tail = shares[Mode.TIMEOUT_LATE] > 0, shares[Mode.TIMEOUT_LATE_TAIL] > 0
    if not situation.documented.delays or fixed == tail:
        return [UNKNOWN] * len(DOCUMENTED_QUANTILES)
    if fixed:
        return [faults.late_fixed_s] * len(DOCUMENTED_QUANTILES)
    quantiles = faults.late_tail.quantile(np.array(DOCUMENTED_QUANTILES))
    return [float(q) if math.isfinite(q) else UNKNOWN for q in quantiles]


def _write_law(record: np.void, situation: Situation) -> None:
    contract, faults = situation.contract, situation.faults
    record["lag_s"] = contract.lag_s
    for name in ("copy_delay_s", "retry_after_s", "outage_s", "late_fixed_s", "queued_share"):
        record[name] = getattr(faults, name)
    pairs: tuple[tuple[str, Attempt], ...] = (("first_cdf", "original"), ("retry_cdf", "retry"))
    for cdf, attempt in pairs:
        record[cdf] = np.cumsum(faults.shares(attempt, contract.n_items))
        record[cdf][record[cdf] > 1.0 - 1e-12] = 1.0


def _or_infinite(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds
