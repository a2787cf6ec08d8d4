"""One connection to the server, over which the script calls of many share round trips.

While one round trip is under way, what is asked meanwhile gathers for the next. So a caller that
loses patience leaves nothing behind: its answer is read and dropped, the connection stays whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as LostError
from redis.exceptions import NoScriptError, RedisError, ResponseError

from inferway.errors import ConfigError

log = logging.getLogger("inferway.index")

CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 2.0  # a server that is silent for so long is away

Arg = bytes | str | int

_SCHEMES = {"valkey": "redis", "valkeys": "rediss"}


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


class Lane:
    """`open`, then `ask`; `close`. After a failure every call fails until it is opened again."""

    def __init__(self, url: str, *scripts: str) -> None:
        """Raises ConfigError if the URL cannot hold."""
        self.failure: RedisError | None = LostError("not connected yet")
        self._make = _maker(url)
        self._connection: AbstractConnection | None = None
        self._scripts = scripts
        self._shas: dict[str, bytes] = {}
        self._waiting: list[_Call] = []
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connects, anew if it was open, and loads the scripts. Raises RedisError."""
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
        """The script's answer. Raises RedisError, and TimeoutError if there is none `within` so
        many seconds. Needs no task of its own, unlike asyncio.timeout: the HTTP server runs a
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
        """As if the connection had broken."""
        self.failure = failure
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call.fails(failure)

    async def close(self) -> None:
        """Calls under way fail. Idempotent."""
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
    """Whether the server is there, and says no."""
    return isinstance(error, ResponseError) and not isinstance(error, NoScriptError)


def shown(url: str) -> str:
    """The URL without user, password and options."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _maker(url: str) -> Callable[[], AbstractConnection]:
    """What makes connections to the server; raises ConfigError."""
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
