"""A language model as the policy of the recovery driver: the sandbox's tasks, every call kept.

The driver asks a policy in plain calls, so each episode has a thread; its requests go through the
run's one loop, store and budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from evaluation.llm.agent_run import document_of, place_of, session_of
from evaluation.llm.calling import Calls, HaltedError, NoAnswerError
from evaluation.llm.running import Document, Done, run_units, taken
from evaluation.llm.trial import way_of
from evaluation.sandbox import Cell
from policies.llm.policy import LLMPolicy
from policies.recovery import run_task
from policies.wrappers import wrap

__all__ = ["run_recovery"]


class _Bridge:
    """An endpoint for a thread: what is asked there is asked in the run's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, calls: Calls, place: str) -> None:
        self._loop, self._calls, self._place = loop, calls, place
        self._step = 0

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request.

        Raises
        ------
        NoAnswerError
            Where none will come.
        HaltedError
            Once the run has ended.
        """
        if self._loop.is_closed():
            raise HaltedError
        asked = self._calls.ask(self._place, self._step, path, body)
        self._step += 1
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked, self._loop))


def run_recovery(
    policy: LLMPolicy,
    cells: Sequence[Cell],
    calls: Calls,
    *,
    concurrency: int = 8,
    done: Done | None = None,
) -> None:
    """Run every episode that the store does not hold yet; see `evaluation.llm.running`.

    Parameters
    ----------
    policy
        The model, which is also the policy of the cells.
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
    """
    how = ""

    async def find_way() -> None:
        nonlocal how
        how = await way_of(policy, calls)

    with ThreadPoolExecutor(concurrency, thread_name_prefix="episode") as threads:

        async def play(cell: Cell) -> Document:
            loop = asyncio.get_running_loop()
            own = policy.through(_Bridge(loop, calls, place_of(cell)), how)
            document = await loop.run_in_executor(threads, _play, cell, own)
            return document | taken(calls.store.spent(place_of(cell)))

        run_units(
            cells,
            place_of,
            play,
            calls,
            concurrency=concurrency,
            done=done,
            before=find_way,
        )


def _play(cell: Cell, policy: LLMPolicy) -> Document:
    session = session_of(cell)
    reason, final = "", False
    try:
        run_task(session, policy, caller=wrap(session, cell.wrapper), first_send=cell.first_send)
    except NoAnswerError as error:
        reason, final = str(error), error.final
    return document_of(session, cell, cell.policy, reason, final, policy.invalid)
