"""The HTTP client of the load: keep-alive connections that note when each piece came, and do next
to nothing else."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from urllib.parse import urlsplit

import httptools

from inferway_bench.loading.answers import Answer, Piece
from inferway_bench.processes import BenchError


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to ask, and how. `url` may end in /v1, as OpenAI's base URLs do.

    Raises BenchError if it is none.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)  # sent with each request
    timeout: float = 300.0  # seconds from sending to the answer's end

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        try:
            known = bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError:
            known = False
        if not known or parts.scheme not in ("http", "https") or parts.query or parts.fragment:
            raise BenchError(
                f"URL {self.url!r}: expected http://HOST:PORT or https://HOST, as in "
                "http://127.0.0.1:8000"
            )

    @property
    def is_tls(self) -> bool:
        return urlsplit(self.url).scheme == "https"

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or (443 if self.is_tls else 80)

    def head(self, method: str, path: str) -> str:
        """Return the head of a request, up to the value of its length."""
        parts = urlsplit(self.url)
        before = parts.path.rstrip("/").removesuffix("/v1")
        named = {
            "host": parts.netloc.rpartition("@")[2],
            "accept": "text/event-stream, application/json",
            "content-type": "application/json",
            "user-agent": "inferway-bench-load",
            **{name.lower(): value for name, value in self.headers.items()},
        }
        lines = [f"{method} {before}{path} HTTP/1.1", *(f"{k}: {v}" for k, v in named.items())]
        return "\r\n".join(lines) + "\r\ncontent-length: "


class _Connection(asyncio.Protocol):
    """One keep-alive connection; goes back to `idle` by itself. One request at a time."""

    def __init__(self, idle: list[_Connection]) -> None:
        self._idle = idle
        self._answer: Answer | None = None
        self._done: asyncio.Future[None] | None = None
        self._arrived = 0.0
        self.is_fresh = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._parser = httptools.HttpResponseParser(self)

    async def ask(self, request: bytes, answer: Answer, timeout: float) -> None:
        """Send a request and wait until `answer` is filled, at most `timeout` seconds."""
        loop = asyncio.get_running_loop()
        self._answer, self._done = answer, loop.create_future()
        timer = loop.call_later(timeout, self._end, "timeout")
        try:
            answer.sent = time.perf_counter()
            self._transport.write(request)
            await self._done
        finally:
            timer.cancel()
            # Cancelled: nobody wants the rest. But somebody else's answer may be on its way by now.
            if self._answer is answer:
                self._answer = None
                self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._arrived = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._end("not HTTP")

    def eof_received(self) -> None:
        self._arrived = time.perf_counter()

    def connection_lost(self, error: Exception | None) -> None:
        if self in self._idle:
            self._idle.remove(self)
        answer = self._answer
        # An answer without a length ends where its connection does.
        if answer is not None and answer.status and _has_no_end(answer.headers) and error is None:
            self._end(None)
        else:
            self._end("cut" if answer is not None and answer.status else "connect")

    def close(self) -> None:
        self._transport.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._answer is not None:
            self._answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._answer is not None:
            self._answer.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._answer is not None:
            self._answer.pieces.append(Piece(self._arrived, body))

    def on_message_complete(self) -> None:
        answer = self._answer
        if answer is None or answer.status < 200:  # 100 Continue
            return
        self._end(None)
        if self._parser.should_keep_alive() and not self._transport.is_closing():
            self._parser = httptools.HttpResponseParser(self)
            self.is_fresh = False
            self._idle.append(self)
        else:
            self._transport.close()

    def _end(self, error: str | None) -> None:
        """Of the answer; a connection with half of one is of no further use."""
        answer, self._answer = self._answer, None
        if answer is None or self._done is None:
            return
        answer.error = error
        answer.ended = time.perf_counter()
        if not self._done.done():
            self._done.set_result(None)
        if error is not None:
            self._transport.abort()


def _has_no_end(headers: Mapping[str, str]) -> bool:
    return "content-length" not in headers and "transfer-encoding" not in headers


class Client:
    """Connections to one target, as many as there are requests at a time. Close it."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._idle: list[_Connection] = []
        self._head = cache(lambda method, path: target.head(method, path).encode("latin-1"))
        # The system's authorities, or those in SSL_CERT_FILE; reading them takes milliseconds.
        self._tls = ssl.create_default_context() if target.is_tls else None

    async def post(self, path: str, body: bytes) -> Answer:
        """Return the answer. Nothing that the other side does raises: the answer says it."""
        return await self._ask("POST", path, body)

    async def get(self, path: str) -> Answer:
        return await self._ask("GET", path, b"")

    async def open(self, count: int) -> None:
        """Open this number of connections beforehand, or none if nobody listens."""
        made = [self._connect() for _ in range(count)]
        found = await asyncio.gather(*made, return_exceptions=True)
        self._idle += [one for one in found if isinstance(one, _Connection)]

    def close(self) -> None:
        for connection in self._idle:
            connection.close()

    async def _ask(self, method: str, path: str, body: bytes) -> Answer:
        request = b"%s%d\r\n\r\n%s" % (self._head(method, path), len(body), body)
        while True:
            try:
                connection = self._idle.pop() if self._idle else await self._connect()
            except (OSError, TimeoutError) as e:
                return _not_connected(e)
            answer, was_fresh = Answer(), connection.is_fresh
            await connection.ask(request, answer, self._target.timeout)
            # A server may close an idle connection at the moment at which we use it.
            if answer.error != "connect" or was_fresh:
                return answer

    async def _connect(self) -> _Connection:
        async with asyncio.timeout(self._target.timeout):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(self._idle), *self._target.address, ssl=self._tls
            )
        return connection


def _not_connected(error: Exception) -> Answer:
    kind = "tls" if isinstance(error, ssl.SSLError) else "connect"
    kind = "timeout" if isinstance(error, TimeoutError) else kind
    said = str(error).encode() or type(error).__name__.encode()
    now = time.perf_counter()
    return Answer(ended=now, error=kind, pieces=[Piece(now, said)])
