"""The connections to the server, and whether it is there.

One connection for each kind of work, so that none waits for another's: matches, batches of changes,
leases. What breaks one has mostly broken the others, which were at rest and do not know; so they
fail and are mended together.

Over each, the script calls of many share round trips. While one round trip is under way, what is
asked meanwhile gathers for the next. So a caller that loses patience leaves nothing behind: its
answer is read and dropped, the connection stays whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as LostError
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as SlowError

from inferway.errors import ConfigError
from inferway.kv.index.redis.scripts import KEEP, LEAVE, MATCH, WRITE
from inferway.kv.index.redis.writer import WriterStats

log = logging.getLogger("inferway.index")

PATIENCE = 3  # matches in a row that came too late: from then on nobody waits for the server
CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 2.0  # a server that is silent for so long is away

Arg = bytes | str | int

_SCHEMES = {"valkey": "redis", "valkeys": "rediss"}


@dataclass(frozen=True, slots=True)
class RedisLimits:
    """The limits of the index in Redis, in seconds except for the last."""

    match: float = 0.02  # a request waits so long for the server at most
    lease: float = 6.0  # without news from a writer, another takes over
    forget: float = 60.0  # what nobody confirms any more is gone
    retry: float = 0.5  # between two attempts to mend a connection
    rest: float = 5.0  # before we write a holder again whose batch the server refused
    pending: int = 100_000  # changed keys of a holder; if more wait, it is written from scratch


@dataclass(slots=True)
class RedisStats:
    """Plain integers, read when somebody scrapes."""

    matches: int = 0
    answered: int = 0  # of them
    answer_seconds: float = 0.0  # that those took, all together
    late: int = 0  # matches that took longer than `RedisLimits.match`
    refused: int = 0  # matches that failed, or were not tried, because the server was away
    outages: int = 0  # times that it went away
    written: WriterStats = field(default_factory=WriterStats)


class ConnectionHealth:
    """`mend` opens it, and opens it again after `trouble`, which sets `broken`; `close`."""

    def __init__(
        self, url: str, match_seconds: float, stats: RedisStats, broken: asyncio.Event
    ) -> None:
        """Raises ConfigError if the URL cannot hold."""
        self.shown = shown(url)
        self.asking = PipelinedConnection(url, MATCH)
        self.writing = PipelinedConnection(url, WRITE, LEAVE)
        self.keeping = PipelinedConnection(url, KEEP)
        self.is_up = False
        self._stats = stats
        self._broken = broken
        self._match_seconds = match_seconds
        self._late = 0  # matches in a row
        self._warned = False  # that the server is away is in the log

    async def mend(self) -> None:
        """Open all connections; does nothing if they are up. Raises RedisError."""
        if self.is_up:
            return
        for lane in (self.keeping, self.writing, self.asking):
            await lane.open()
        if self._late:
            await self._probe()
        self.is_up = True
        if self._warned:
            self._warned = False
            log.info("the shared index %s is back", self.shown)

    async def close(self) -> None:
        self.is_up = False
        for lane in (self.asking, self.writing, self.keeping):
            await lane.close()

    def trouble(self, error: RedisError) -> None:
        """Note that something has failed, once per outage in the log."""
        self.is_up = False
        self._broken.set()
        if not self._warned:
            self._warned = True
            self._stats.outages += 1
            log.warning(
                "the shared index %s is away, and requests go by load only: %s", self.shown, error
            )

    def in_time(self) -> None:
        """Note that a match was answered."""
        self._late = 0

    def too_late(self) -> None:
        """Note that a match was not answered in time."""
        self._stats.late += 1
        self._late += 1
        if self._late >= PATIENCE:
            limit = self._match_seconds
            self.trouble(SlowError(f"{PATIENCE} times no answer within {limit} s"))

    async def _probe(self) -> None:
        """A server that has answered too late must first show that it answers in time."""
        try:
            await self.asking.ask(MATCH, (), (b"",), within=self._match_seconds)
        except TimeoutError:
            raise SlowError(f"no answer within {self._match_seconds} s") from None
        self._late = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    script: str
    keys: Sequence[str]
    args: Sequence[Arg]
    answer: asyncio.Future[Any]

    def command(self, shas: Mapping[str, bytes]) -> tuple[Arg, ...]:
        return ("EVALSHA", shas[self.script], len(self.keys), *self.keys, *self.args)

    def fails(self, failure: RedisError) -> None:
        if not self.answer.done():
            self.answer.set_exception(failure)


class PipelinedConnection:
    """`open`, then `ask`; `close`. After a failure every call fails until it is opened again."""

    def __init__(self, url: str, *scripts: str) -> None:
        """Raises ConfigError if the URL cannot hold."""
        self.failure: RedisError | None = LostError("not connected yet")
        self._make = maker(url)
        self._connection: AbstractConnection | None = None
        self._scripts = scripts
        self._shas: dict[str, bytes] = {}
        self._waiting: list[_Call] = []
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect, anew if it was open, and load the scripts. Raises RedisError."""
        await self.close()
        self._connection = connection = self._make()
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            for script in self._scripts:
                await connection.send_command("SCRIPT LOAD", script)
                self._shas[script] = await connection.read_response()
        except OSError as e:
            raise LostError(str(e)) from e
        self.failure = None
        self._task = asyncio.ensure_future(self._run(connection))

    async def ask(
        self,
        script: str,
        keys: Sequence[str],
        args: Sequence[Arg],
        within: float | None = None,
    ) -> Any:
        """Return the script's answer. Raises RedisError, and TimeoutError if there is none `within`
        so many seconds. Needs no task of its own, unlike asyncio.timeout: the HTTP server runs a
        handler outside of one until it first waits."""
        if self.failure is not None:
            raise LostError(str(self.failure))
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._waiting.append(_Call(script, keys, args, answer))
        self._wanted.set()
        if within is None:
            return await answer
        timer = loop.call_later(within, _too_late, answer, loop.time() + within, within)
        try:
            return await answer
        finally:
            timer.cancel()

    def fail(self, failure: RedisError) -> None:
        """Fail all calls, as if the connection had broken."""
        self.failure = failure
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call.fails(failure)

    async def close(self) -> None:
        """Close the connection; calls under way fail. A second call does nothing."""
        self.fail(self.failure or LostError("closed"))
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)

    async def _run(self, connection: AbstractConnection) -> None:
        try:
            while self.failure is None:
                await self._wanted.wait()
                self._wanted.clear()
                waiting, self._waiting = self._waiting, []
                calls = [call for call in waiting if not call.answer.done()]
                if calls:
                    await self._round_trip(connection, calls)
        except Exception as e:
            log.exception("a connection to the shared index is given up")
            self.fail(LostError(type(e).__name__))

    async def _round_trip(self, connection: AbstractConnection, calls: Sequence[_Call]) -> None:
        try:
            await connection.send_packed_command(
                connection.pack_commands([call.command(self._shas) for call in calls]),
                check_health=False,
            )
            for call in calls:
                await self._read(connection, call)
        except (RedisError, OSError) as e:
            self.fail(e if isinstance(e, RedisError) else LostError(str(e)))
        finally:
            for call in calls:  # what has not been answered will not be
                call.fails(self.failure or LostError("closed"))

    async def _read(self, connection: AbstractConnection, call: _Call) -> None:
        """One answer; raises RedisError if no more can come."""
        try:
            answer = await connection.read_response()
        except NoScriptError as e:  # flushed, or another server behind the address
            self.fail(e)
        except ResponseError as e:
            call.fails(e)
        else:
            if not call.answer.done():
                call.answer.set_result(answer)


def _too_late(answer: asyncio.Future[Any], due: float, within: float) -> None:
    """A process too busy to look at the clock was too busy to read the answer: once more, then."""
    loop = answer.get_loop()
    if answer.done():
        return
    if within and loop.time() - due > within / 2:
        loop.call_later(within, _too_late, answer, due, 0.0)
    else:
        answer.set_exception(TimeoutError())


def refused(error: RedisError) -> bool:
    """Return whether the server is there and has refused the call."""
    return isinstance(error, ResponseError) and not isinstance(error, NoScriptError)


def shown(url: str) -> str:
    """Return the URL without user, password and options."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def maker(url: str) -> Callable[[], AbstractConnection]:
    """Return what makes connections to the server. Raises ConfigError."""
    scheme, separator, rest = url.partition("://")
    try:
        pool = ConnectionPool.from_url(
            _SCHEMES.get(scheme, scheme) + separator + rest,
            protocol=2,  # nothing of RESP 3 is needed; older servers and proxies speak 2
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=CONNECT_SECONDS,
            retry=Retry(NoBackoff(), 0),  # who asks decides what a lost answer means
        )
        make = partial(pool.connection_class, **pool.connection_kwargs)
        make()  # connects nowhere: only to check the options
    except (ValueError, TypeError) as e:
        # neither the URL nor redis-py's words: both may hold a password cut in two
        raise ConfigError(
            f"index: the URL that begins with {scheme[:8]!r} is not that of a Redis: expected "
            "redis://, rediss:// or unix://, [USER:PASSWORD@]HOST[:PORT][/DATABASE] and, after a "
            "?, options of redis-py; percent-encode what is special in a password"
        ) from e
    return make
