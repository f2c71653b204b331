"""Many episodes of a model at the same time: the one loop behind every kind of run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from evaluation.llm.calling import BudgetError, Calls
from evaluation.llm.store import Spent
from policies.llm.endpoint import OpenAIEndpoint

__all__ = ["Document", "Done", "run_units", "taken"]

Unit = TypeVar("Unit")
Document = dict[str, Any]
Done = Callable[[Document], None]

GRACE_S = 20.0
"""How long an interrupted run waits for the answers in flight, which are paid for [s]."""


def run_units(
    units: Iterable[Unit],
    place_of: Callable[[Unit], str],
    play: Callable[[Unit], Awaitable[Document]],
    calls: Calls,
    *,
    concurrency: int,
    done: Done | None = None,
    before: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Run every episode that the store does not hold yet, and keep each as it ends.

    An interrupt lets no further request out and waits a little for the answers in flight, so that
    the store has them; a second one does not wait.

    Parameters
    ----------
    units
        What is to be played, in order.
    place_of
        Where a unit's episode is kept.
    play
        Plays one to its end; its document.
    calls
        The way to the provider and the store.
    concurrency
        Episodes at the same time.
    done
        Called with the document of each episode, stored ones included.
    before
        What is done first, once.

    Raises
    ------
    UserError
        Where every request would fail.

    A budget that is used up ends the run quietly; ``calls.stopped`` names it.
    """
    asyncio.run(_run(units, place_of, play, calls, concurrency, done, before))


async def _run(
    units: Iterable[Unit],
    place_of: Callable[[Unit], str],
    play: Callable[[Unit], Awaitable[Document]],
    calls: Calls,
    concurrency: int,
    done: Done | None,
    before: Callable[[], Awaitable[None]] | None,
) -> None:
    waiting = iter(units)
    workers: list[asyncio.Task[None]] = []

    async def work() -> None:
        for unit in waiting:
            place = place_of(unit)
            document = calls.store.document(place)
            if document is None or _again(document):
                document = await play(unit)
                calls.store.finish(place, document)
            if done is not None:
                done(document)

    try:
        if before is not None:
            await before()
        workers = [asyncio.create_task(work()) for _ in range(concurrency)]
        # Unlike `gather`, an interrupt of this does not reach the workers.
        over, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
        for worker in over:
            worker.result()
    except BudgetError:
        return
    except asyncio.CancelledError:
        calls.halt()
        if workers:
            await asyncio.wait(workers, timeout=GRACE_S)
        raise
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        if isinstance(calls.endpoint, OpenAIEndpoint):
            await calls.endpoint.close()


def _again(document: Document) -> bool:
    """Whether an episode is worth another try: its trouble may have passed."""
    return document["status"] == "missing" and not document["final"]


def taken(spent: Spent) -> Document:
    """The fields of a document that say what its calls took."""
    return {
        "provider_errors": spent.trouble,
        "n_calls": spent.n_calls,
        "tokens_in": spent.tokens_in,
        "tokens_out": spent.tokens_out,
        "usd": spent.usd,
    }
