"""One episode as a picture needs it: what the client did and saw, and what really happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from exactlyonce_env.compiled import Record
from exactlyonce_env.envs.trace import Event, Trace
from exactlyonce_env.ledger import Fortune, fortunes, ledger, settled
from exactlyonce_env.vocabulary import Ending, Key, Readback, Response

if TYPE_CHECKING:
    from exactlyonce_env.plan import Plan


@dataclass(frozen=True, slots=True)
class Sent:
    """One attempt: what the client saw of it, and what became of it.

    ``duplicates`` and ``copy_duplicates`` tell whether its effects, or those of its redelivered
    copy, came on top of earlier ones.
    """

    sent_s: float
    answered_s: float
    response: Response
    key: Key
    items: int
    fortune: Fortune
    duplicates: bool
    copy_duplicates: bool


@dataclass(frozen=True, slots=True)
class Story:
    """An episode up to its present moment.  Times are in seconds from t = 0.

    ``lag_s`` is the visibility lag that really acts, 0 where reads show everything or nothing.
    """

    title: str
    clock_s: float
    ending: Ending
    n_items: int
    lag_s: float
    attempts: tuple[Sent, ...]
    events: tuple[Event, ...]
    missing: int  # items without an effect, once everything in flight has completed

    @classmethod
    def of(cls, plan: Plan, seen: Record, truth: Record, trace: Trace) -> Story:
        """The story of a running or ended world."""
        context = plan.contexts[truth.context]
        contract, after = context.contract, settled(context, seen, truth)
        effects = ledger(context, seen, after)
        first = {effect.item: effect for effect in reversed(effects)}
        late = {(e.attempt, e.copy) for e in effects if first[e.item] is not e}
        attempts = tuple(
            Sent(
                float(seen.attempts[j].sent_s),
                float(seen.attempts[j].answered_s),
                Response(int(seen.attempts[j].response)),
                Key(int(seen.attempts[j].key)),
                int(seen.attempts[j].payload).bit_count(),
                fortune,
                (j, False) in late,
                (j, True) in late,
            )
            for j, fortune in enumerate(fortunes(context, seen, after))
        )
        eventual = contract.readback == Readback.EVENTUAL
        return cls(
            f"{plan.preset.name}, seed {int(truth.seed)}, world {int(truth.world)}",
            float(seen.clock_s),
            Ending(int(seen.ending)),
            int(contract.n_items),
            float(context.law.lag_s) if eventual else 0.0,
            attempts,
            tuple(trace.events),
            int(contract.n_items) - len(first),
        )
