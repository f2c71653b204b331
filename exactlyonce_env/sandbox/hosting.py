"""Episodes that a server holds for agents elsewhere: opened, called, ended, written to the log."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from exactlyonce_env.errors import UserError, invalid
from exactlyonce_env.sandbox.carrying_out import Caller
from exactlyonce_env.sandbox.log import EpisodeLog, episode_record
from exactlyonce_env.sandbox.session import NUDGES, Reply, Session
from exactlyonce_env.vocabulary import Ending

__all__ = ["IDLE_S", "Caller", "Host", "Hosted", "Variant", "Wrap", "make_variant"]

IDLE_S = 1800.0
"""An episode that nobody has called for so long [s] counts as left by its client."""

MAX_OPEN = 10_000
"""Episodes that may run at a time."""

MAX_KEPT = 1000
"""Ended episodes whose results a server remembers; the log has all of them."""


Wrap = Callable[[Session, str], Caller]
"""Puts the wrapper of a name around a session."""


class Variant(BaseModel):
    """Which episode to open: the arguments of `Session`, and a wrapper."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    instance: int = Field(0, ge=0)
    write: str | int | None = None
    fault: str = "ok"
    contract: str = "native"
    docs: str = "default"
    instruction: str = "default"
    operator: str = "answers"
    options: dict[str, Any] = Field(default_factory=dict)
    wrapper: str = "none"

    def session(self) -> Session:
        """A new session of the variant.

        Raises
        ------
        UserError
            For a name that there is not.
        """
        return Session(self.task, **self.model_dump(exclude={"task", "wrapper"}))


def make_variant(fields: Mapping[str, Any]) -> Variant:
    """A variant from its fields.

    Raises
    ------
    UserError
        For an unknown field or a value of the wrong type.
    """
    try:
        return Variant.model_validate(dict(fields))
    except ValidationError as error:
        raise invalid("episode", error, Variant.model_fields) from None


def no_wrapper(session: Session, spec: str) -> Caller:
    """The session itself, which is all that ``none`` asks for.

    Raises
    ------
    UserError
        For every other wrapper.
    """
    if spec != "none":
        raise UserError(f"unknown wrapper {spec!r}; choose from none")
    return session


class Hosted:
    """One episode, and what is known of its client.

    Parameters
    ----------
    id_
        Names it; nobody can guess it.
    session, caller
        The episode, and what its tools are called through.
    wrapper
        Name of what stands between the two.
    real_time
        Wall-clock seconds of one virtual second; 0: calls are answered at once and the client's
        own time costs nothing.
    """

    def __init__(
        self,
        id_: str,
        session: Session,
        caller: Caller | None = None,
        *,
        wrapper: str = "none",
        real_time: float = 0.0,
    ) -> None:
        self.id = id_
        self.session, self.wrapper, self.real_time = session, wrapper, real_time
        self.caller: Caller = caller or session
        self.touched_s = time.monotonic()
        self.record: dict[str, Any] | None = None
        """Its line in the log, once it has ended."""
        self.late_s = 0.0
        """Latest end of a call so far, on the session's clock [s]."""
        self._origin_s: float | None = None

    def touch(self) -> None:
        """Note that the client is there."""
        self.touched_s = time.monotonic()

    def call(self, name: str, arguments: Any = None) -> tuple[Reply, float]:
        """Call a tool; the reply, and the wall-clock seconds until it is due.

        In real time the session's clock first reaches what the wall clock says.  A client that
        gave a call up and makes another finds the services as they are at that moment, before the
        first call is over.  Only the calls about one write stay in order: a repeat of it is sent
        once those before, its read-backs included, are over.
        """
        session = self.session
        self.touch()
        if self.real_time and not session.ended:
            if self._origin_s is None:
                self._origin_s = self.touched_s
            session.now_s = (self.touched_s - self._origin_s) / self.real_time
        reply = self.caller.call(name, arguments)
        now_s = session.now_s
        self.late_s = max(self.late_s, now_s)
        if not self.real_time or self._origin_s is None:
            return reply, 0.0
        return reply, self._origin_s + now_s * self.real_time - time.monotonic()

    def say(self, text: str) -> str | None:
        """A turn without a tool call; the nudge it gets, or None where it ended the episode."""
        self.touch()
        return self.session.say(text)

    def close(self, ended_by: str = "client") -> dict[str, Any] | None:
        """Grade the episode; its line, or None where it was closed before.

        Parameters
        ----------
        ended_by
            Who left an episode that still runs: ``client`` or ``server``.
        """
        if self.record is not None:
            return None
        session = self.session
        if not session.ended:
            session.ending = Ending.EXHAUSTED
        elif session.finished:
            ended_by = "finish"
        elif session.nudges > NUDGES:
            ended_by = "nudges"
        else:
            ended_by = "budget"
        session.now_s = max(session.now_s, self.late_s)
        more = {"real_time": self.real_time} if self.real_time else {}
        self.record = episode_record(
            session, wrapper=self.wrapper, ended_by=ended_by, id=self.id, **more
        )
        return self.record


class Host:
    """All episodes of a server.

    Parameters
    ----------
    log
        Where ended episodes are written; None: nowhere.
    wrap
        Makes wrappers; None: only ``none`` is known.
    real_time
        Wall-clock seconds of one virtual second; 0: virtual time.
    idle_s
        When a client counts as gone [s].
    single
        Whether there is one episode only, so that nobody waits while its line is written.

    Raises
    ------
    UserError
        For a factor or a time that is not a positive number.
    """

    def __init__(
        self,
        log: EpisodeLog | None = None,
        *,
        wrap: Wrap | None = None,
        real_time: float = 0.0,
        idle_s: float = IDLE_S,
        single: bool = False,
    ) -> None:
        if not (math.isfinite(real_time) and real_time >= 0.0):
            raise UserError(f"--real-time must be a positive number, not {real_time:g}")
        if not (math.isfinite(idle_s) and idle_s > 0.0):
            raise UserError(f"--idle must be a positive number of seconds, not {idle_s:g}")
        self.log, self.real_time, self.idle_s, self.single = log, real_time, idle_s, single
        self._wrap: Wrap = wrap or no_wrapper
        self.running: dict[str, Hosted] = {}
        self.ended: OrderedDict[str, Hosted] = OrderedDict()
        self.stopping = asyncio.Event()
        self._writing: set[asyncio.Future[None]] = set()

    def open(self, variant: Variant) -> Hosted:
        """Open an episode.

        Raises
        ------
        UserError
            For a name that there is not, and where too many episodes run.
        """
        if len(self.running) >= MAX_OPEN:
            raise UserError(f"{MAX_OPEN} episodes run already; end some of them")
        session = variant.session()
        hosted = Hosted(
            secrets.token_urlsafe(12),
            session,
            self._wrap(session, variant.wrapper),
            wrapper=variant.wrapper,
            real_time=self.real_time,
        )
        self.running[hosted.id] = hosted
        return hosted

    def find(self, id_: str) -> Hosted | None:
        """The episode of that id, if it runs or is remembered."""
        return self.running.get(id_) or self.ended.get(id_)

    async def call(self, hosted: Hosted, name: str, arguments: Any = None) -> Reply:
        """Call a tool and wait until the reply is due; an ended episode is on the disk by then."""
        reply, due_s = hosted.call(name, arguments)
        if hosted.session.ended and hosted.record is None:
            if self.single:
                self.end_now(hosted)
            else:
                await self.end(hosted)
        if due_s > 0.0:
            await self._sleep(due_s)
        return reply

    async def say(self, hosted: Hosted, text: str) -> str | None:
        """A turn without a tool call, as `Hosted.say`."""
        nudge = hosted.say(text)
        if hosted.session.ended:
            await self.end(hosted)
        return nudge

    async def end(self, hosted: Hosted, ended_by: str = "client") -> None:
        """End the episode if it still runs, and write its line."""
        record = hosted.close(ended_by)
        if record is None:
            return
        if self.log is not None:
            write = asyncio.get_running_loop().run_in_executor(None, self.log.append, record)
            self._writing.add(write)
            try:
                # A request that is cancelled does not take the line with it.
                await asyncio.shield(write)
            except OSError:
                hosted.record = (
                    None  # a full disk; the episode is tried again when the server stops
                )
                raise
            finally:
                write.add_done_callback(self._writing.discard)
        self._move(hosted)

    def end_now(self, hosted: Hosted, ended_by: str = "client") -> None:
        """As `end`, without giving way to anything else."""
        record = hosted.close(ended_by)
        if record is not None and self.log is not None:
            self.log.append(record)

    def stop(self) -> None:
        """Let calls that wait for their time be answered at once."""
        self.stopping.set()

    async def close(self) -> None:
        """End every running episode and close the log."""
        self.stop()
        for hosted in list(self.running.values()):
            await self.end(hosted, "server")
        if self._writing:
            await asyncio.wait(self._writing)
        if self.log is not None:
            self.log.close()

    async def watch(self) -> None:
        """End episodes whose client has gone, until the server stops."""
        while not self.stopping.is_set():
            await self._sleep(min(self.idle_s / 4.0, 30.0))
            before_s = time.monotonic() - self.idle_s
            for hosted in [h for h in self.running.values() if h.touched_s < before_s]:
                await self.end(hosted)

    async def _sleep(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self.stopping.wait(), seconds)
        except TimeoutError:
            return

    def _move(self, hosted: Hosted) -> None:
        """Keep an ended episode among the remembered ones."""
        self.running.pop(hosted.id, None)
        self.ended[hosted.id] = hosted
        while len(self.ended) > MAX_KEPT:
            self.ended.popitem(last=False)
