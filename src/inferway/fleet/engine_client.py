"""Questions to engines that are no requests of clients, over connections like those of requests,
which take half of the CPU time that aiohttp takes.

A host is a host, or a Unix socket's path (`config.EngineSettings.http_url`). Redirects are not
followed: an engine must not choose whom the gateway connects to.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from urllib.parse import unquote

from inferway.config import TimeoutSettings
from inferway.errors import UpstreamError, UpstreamTimeoutError
from inferway.model import Headers
from inferway.upstream.headers import header_block
from inferway.upstream.pool import IDLE_KEEP_ALIVE_SECONDS, Pool

ANSWER_SECONDS = 5.0  # that an engine may take to answer a GET
MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_PAGE_BYTES = 8 * 1024 * 1024  # vLLM has 50 KB of metrics a rank, half a KB of a model
PLAIN_HTTP = "it speaks plain http; write http:// in its URL"
_JSON = (b"content-type", b"application/json")
_PLAIN = (b"accept-encoding", b"identity")  # nothing here decompresses
_PATIENT = TimeoutSettings(connect=3600.0, first_byte=3600.0, idle_stream=3600.0)
# How a handshake fails because what came back was no TLS at all; the second is newer OpenSSL's.
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")


class StatusError(UpstreamError):
    """The engine answered, with something else than 200."""

    def __init__(self, message: str, answered: int, body: bytes = b"") -> None:
        super().__init__(message)
        self.answered = answered
        self.body = body


class EngineClient:
    """Sends requests to engines. The first request opens the client, in the loop that asks; `close`
    it there, and it asks no more."""

    def __init__(
        self,
        tls: ssl.SSLContext | None = None,
        *,
        seconds: float = ANSWER_SECONDS,
        on_closed: Callable[[str], None] | None = None,
        idle_keep_alive: float = IDLE_KEEP_ALIVE_SECONDS,
    ) -> None:
        """`tls` says who is trusted to be an https engine; else whom the system trusts. `seconds`:
        that the answer to a GET may take. `on_closed`, `idle_keep_alive`: as `Pool` has them."""
        self._tls = tls
        self._seconds = seconds
        self._on_closed = on_closed
        self._idle_keep_alive = idle_keep_alive
        self._pool: Pool | None = None
        self._is_closed = False

    async def close(self) -> None:
        """Close the connections; questions under way fail. It may be called twice."""
        self._is_closed = True
        if self._pool is not None:
            await self._pool.close()

    async def __aenter__(self) -> EngineClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def get(self, url: str, path: str, headers: Headers, *, cut: bool = False) -> bytes:
        """Return the body of a 200 from the engine at `url`. Raises StatusError for another answer,
        UpstreamTimeoutError for none in time, UpstreamError for no connection, and for more than
        MAX_PAGE_BYTES; these and a little more are returned where it may be `cut`."""
        asked = url, "GET", path, headers, b"", self._seconds
        status, body = await self._ask(*asked, MAX_PAGE_BYTES, cut=cut)
        if status != 200:
            raise StatusError(f"{_name(url, path)} answered {status}", status, body)
        return body

    async def metrics(self, url: str, path: str, headers: Headers) -> str:
        """Return a page of metrics; empty if the engine has no such page. The line is left out that
        was cut if it was too long: vLLM adds a sample for each set of adapters that it has ever run
        together, so that with many adapters its page grows for weeks. Raises as `get` does."""
        try:
            page = await self.get(url, path, headers, cut=True)
        except StatusError as e:
            if e.answered != 404:  # not everything that speaks OpenAI's API has it
                raise
            return ""
        if len(page) > MAX_PAGE_BYTES:
            page = page[: page.rfind(b"\n", 0, MAX_PAGE_BYTES) + 1]
        return page.decode(errors="replace")

    async def post(
        self, url: str, path: str, body: bytes, headers: Headers, seconds: float
    ) -> tuple[int, bytes]:
        """Send JSON by POST, and return status and body of the answer. Raises UpstreamTimeoutError
        for no answer within `seconds`, UpstreamError for no connection."""
        return await self._ask(url, "POST", path, [*headers, _JSON], body, seconds)

    async def _ask(
        self,
        url: str,
        method: str,
        path: str,
        headers: Headers,
        body: bytes,
        seconds: float,
        limit: int = MAX_ANSWER_BYTES,
        *,
        cut: bool = False,
    ) -> tuple[int, bytes]:
        if self._is_closed:
            raise UpstreamError("the gateway is shutting down")
        if self._pool is None:
            self._pool = Pool(
                _PATIENT,
                idle_keep_alive=self._idle_keep_alive,
                tls=self._tls,
                on_closed=self._on_closed,
            )
        name = _name(url, path)
        answer = _AnswerBody(name, limit, cut=cut)
        timer = self._pool.loop.call_later(seconds, answer.is_late, seconds)
        block = header_block([*headers, _PLAIN])
        exchange = self._pool.send(url, method, path.encode(), block, body, answer)
        try:
            body = await answer.body
        except UpstreamError as e:
            why = _why(e.__cause__)
            if why is None:
                raise
            raise UpstreamError(f"{name}: {why}") from e.__cause__
        finally:
            timer.cancel()
            exchange.abort()
        return answer.status, body


def _name(url: str, path: str) -> str:
    return unquote(f"{url}{path.partition('?')[0]}")


def _why(cause: BaseException | None) -> str | None:
    """Return what the system says of a connection that did not come about; None: nothing."""
    if isinstance(cause, ssl.SSLError):
        return PLAIN_HTTP if cause.reason in _NO_TLS else str(cause)
    if not isinstance(cause, OSError):
        return None
    number = cause.errno
    return os.strerror(number) if number and number > 0 else cause.strerror or str(cause)


class _AnswerBody:
    """Takes one answer, of `limit` bytes and a little more where it may be `cut`."""

    __slots__ = ("_cut", "_limit", "_name", "_pieces", "_size", "body", "status")

    def __init__(self, name: str, limit: int, *, cut: bool) -> None:
        self.body: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.status = 0
        self._name = name
        self._limit = limit
        self._cut = cut
        self._pieces: list[bytes] = []
        self._size = 0

    def on_head(self, status: int, headers: Headers, length: int | None) -> None:  # noqa: ARG002
        self.status = status

    def on_chunk(self, chunk: bytes) -> None:
        if self.body.done():
            return  # it was longer, and the connection is about to be closed
        self._size += len(chunk)
        self._pieces.append(chunk)
        if self._size > self._limit and self._cut:
            self.body.set_result(b"".join(self._pieces))
        elif self._size > self._limit:
            words = f"its answer has more than {self._limit} bytes, and no engine's has"
            words += "; give the URL of an inference engine"
            self.on_error(UpstreamError(f"{self._name}: {words}"))

    def on_end(self, chunk: bytes) -> None:
        self.on_chunk(chunk)
        if not self.body.done():
            self.body.set_result(b"".join(self._pieces))

    def is_late(self, seconds: float) -> None:
        words = f"{self._name} did not answer within {seconds:g} s"
        self.on_error(UpstreamTimeoutError(words))

    def on_error(self, error: UpstreamError) -> None:
        if not self.body.done():
            self.body.set_exception(error)
