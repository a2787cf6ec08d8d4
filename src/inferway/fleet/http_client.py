"""HTTP to engines: questions that are not requests of clients, by aiohttp.

A host is a host, or a Unix socket's path (`config.EngineSettings.http_url`). Redirects are not
followed, here and wherever an engine is asked: an engine must not choose whom the gateway connects
to.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote

import aiohttp
from aiohttp.client_exceptions import UnixClientConnectorError
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from inferway.config import unix_path
from inferway.errors import UpstreamError, UpstreamTimeoutError
from inferway.loop_turns import SLICE_BYTES, LoopTurns, SlicedProtocol
from inferway.upstream.pool import IDLE_KEEP_ALIVE_SECONDS

if TYPE_CHECKING:
    from aiohttp.tracing import Trace

MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_PAGE_BYTES = 8 * 1024 * 1024  # vLLM has 50 KB of metrics a rank, half a KB of a model
PLAIN_HTTP = "it speaks plain http; write http:// in its URL"
_JSON = {"content-type": "application/json"}
_MAX_ANSWERS = 16  # that nobody has taken: informational ones (1xx), of a single question
_MOST_LINES = 512  # of a slice that is parsed in a turn of the loop; of one with more:
_SMALL_SLICE_BYTES = 2 * 1024


class StatusError(UpstreamError):
    """The engine answered, with something else than 200."""

    def __init__(self, message: str, answered: int) -> None:
        super().__init__(message)
        self.answered = answered


async def fetch(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], *, cut: bool = False
) -> bytes:
    """GET the body of a 200. Raises StatusError for another answer, UpstreamTimeoutError for none
    in time, UpstreamError for no connection, and for more than MAX_PAGE_BYTES; these and a little
    more are given where it may be `cut`."""
    with upstream_errors(url):
        async with session.get(
            URL(url, encoded=True), headers=headers, allow_redirects=False
        ) as response:
            if response.status != 200:
                raise StatusError(f"{url} answered {response.status}", response.status)
            return await read_answer(response, MAX_PAGE_BYTES, cut=cut)


@contextmanager
def upstream_errors(url: str, late: str = "in time") -> Iterator[None]:
    """Raise aiohttp's errors as UpstreamTimeoutError and UpstreamError, which name the URL, with
    the path of a socket as it is."""
    url = unquote(url)
    try:
        yield
    except TimeoutError as e:
        raise UpstreamTimeoutError(f"{url} did not answer {late}") from e
    except (aiohttp.ClientError, OSError) as e:
        if isinstance(e, aiohttp.ClientConnectorSSLError) and _is_plain(e.os_error):
            raise UpstreamError(f"{url}: {PLAIN_HTTP}") from e
        raise UpstreamError(f"{url}: {_said(e)}") from e


def _said(error: Exception) -> str:
    """What the system says of a connection that did not come about, without aiohttp's words."""
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(
        error, aiohttp.ClientSSLError
    ):
        number = error.os_error.errno
        return os.strerror(number) if number and number > 0 else str(error.os_error.strerror)
    return str(error) or type(error).__name__


def _is_plain(error: OSError) -> bool:
    """Whether a handshake failed because what came back was no TLS at all; the second reason is
    newer OpenSSL's."""
    reason = error.reason if isinstance(error, ssl.SSLError) else None
    return reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")


async def post(
    session: aiohttp.ClientSession,
    engine_url: str,
    path: str,
    body: bytes,
    *,
    headers: Mapping[str, str],
    seconds: float,
) -> tuple[int, bytes]:
    """POST some JSON. Return status and body of the answer. Raises UpstreamTimeoutError for none
    within `seconds`, UpstreamError for no connection."""
    with upstream_errors(path or engine_url, f"within {seconds:g} s"):
        async with session.post(
            URL(engine_url + path, encoded=True),
            data=body,
            headers={**headers, **_JSON},
            timeout=aiohttp.ClientTimeout(total=seconds),
            allow_redirects=False,
        ) as response:
            return response.status, await read_answer(response)


async def read_answer(
    response: aiohttp.ClientResponse, limit: int = MAX_ANSWER_BYTES, *, cut: bool = False
) -> bytes:
    """Return the body of an answer. One over `limit` bytes raises UpstreamError, or is not read on
    if it may be `cut`."""
    pieces, size = [], 0
    async for piece in response.content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > limit and cut:
            break
        if size > limit:
            raise UpstreamError(
                f"{response.url.path}: its answer has more than {limit} bytes, and no engine's has;"
                " give the URL of an inference engine"
            )
    return b"".join(pieces)


class _Answers(ResponseHandler):
    """Takes no answers without end: aiohttp would read all that come at once, 50 µs each, in the
    same turn of the loop, and then again. Nor chunks without end: 2 µs each."""

    def __init__(self, loop: asyncio.AbstractEventLoop, turns: LoopTurns) -> None:
        super().__init__(loop=loop)
        self._slices = _Slices(self._parse, turns)
        self._has_more = False  # bytes behind those that aiohttp parses right now

    @property
    def should_close(self) -> bool:
        """Also for a connection with bytes that aiohttp has not seen: they are no answer to the
        next question."""
        return super().should_close or self._has_more or self._slices.has_unread

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._slices.connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._slices.parse_all()
        self._slices.connection_lost(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if data:
            self._slices.data_received(data)
        else:  # aiohttp goes on with what it has
            super().data_received(data)

    def pause_reading(self) -> None:
        super().pause_reading()
        self._slices.hold()

    def resume_reading(self, *args: bool, **more: bool) -> None:
        super().resume_reading(*args, **more)
        if not self._reading_paused:
            self._slices.release()
        if self._slices.is_stopped and self.transport is not None:
            self.transport.pause_reading()  # aiohttp has resumed it

    def _parse(self, data: bytes, has_more: bool) -> bool:
        if self.transport is None:  # it was closed meanwhile
            return False
        self._has_more = has_more
        super().data_received(data)
        self._has_more = False
        if len(self) <= _MAX_ANSWERS:
            return True
        self.abort()
        words = f"more than {_MAX_ANSWERS} answers at once to one question"
        self.set_exception(aiohttp.ClientConnectionError(words))
        return False


class _Slices(SlicedProtocol):
    """`parse` of slices: gets the bytes of one, and whether there are more; returns whether to go
    on."""

    def __init__(self, parse: Callable[[bytes, bool], bool], turns: LoopTurns) -> None:
        super().__init__(turns)
        self._parse = parse

    def parse(self, data: bytes, start: int) -> int:
        end = min(start + SLICE_BYTES, len(data))
        if data.count(b"\r\n", start, end) > _MOST_LINES:  # heads, or tiny chunks
            end = min(start + _SMALL_SLICE_BYTES, end)
        return end if self._parse(data[start:end], end < len(data)) else len(data)


class EngineConnector(aiohttp.TCPConnector):
    """Connects to any number of engines. aiohttp's own for Unix sockets knows one path each; what
    it does is done here for each path."""

    def __init__(
        self, tls: ssl.SSLContext | None, *, idle_keep_alive: float = IDLE_KEEP_ALIVE_SECONDS
    ) -> None:
        """`tls` says who is trusted to be an https engine; else whom the system trusts."""
        super().__init__(
            # no limit of connections: who does not answer must not keep others from being asked
            limit=0,
            # Requests take turns on the idle connections, so as many as were once needed at the
            # same time would stay open; and engines close theirs after 5 s.
            keepalive_timeout=idle_keep_alive,
            ssl=tls or True,
        )
        self._factory = cast("partial[ResponseHandler]", partial(_Answers, self._loop, LoopTurns()))

    async def _create_connection(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        path = unix_path(req.url.host or "")
        if path is None:
            return await super()._create_connection(req, traces, timeout)
        try:
            _, protocol = await self._loop.create_unix_connection(self._factory, path)
        except OSError as e:
            raise UnixClientConnectorError(path, req.connection_key, e) from e
        return protocol
