"""Open-loop load: each request leaves at its time, whether or not others are answered.

`python -m inferway.bench.chat_overhead.load PLAN OUT --url URL` reads `Planned` and writes
`Outcome`, one JSON object a line. Times are taken when bytes arrive; what they say is read when
all is over, so that reading one answer delays the clock of no other.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import httptools
import msgspec
import uvloop

from inferway.bench.chat_overhead.answers import Outcome, Piece, read_answer
from inferway.bench.chat_overhead.workload import Planned

_CONNECTIONS = 32  # opened before the first request; more are opened when all are in use
_PATIENCE = 60.0  # seconds that the last answers get

# What the official Python client sends besides the length.
_HEAD = (
    "POST {path} HTTP/1.1\r\nHost: {host}\r\nAccept: application/json\r\n"
    "Content-Type: application/json\r\nUser-Agent: OpenAI/Python 2.8.1\r\n"
    "Authorization: Bearer dummy\r\nContent-Length: {length}\r\n\r\n"
)


class Exchange:
    """One request and what came back. Written by its connection."""

    def __init__(self, planned: Planned, due: float) -> None:
        self.planned = planned
        self.due = due  # seconds of the loop's clock
        self.sent_ns = 0
        self.lag = 0.0
        self.status = 0
        self.headers: dict[str, str] = {}
        self.pieces: list[Piece] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self, error: Exception | None = None) -> None:
        if not self.done.done():
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(error)


class Connection(asyncio.Protocol):
    """One keep-alive connection; goes back to `idle` by itself."""

    def __init__(self, idle: list[Connection]) -> None:
        self._idle = idle
        self._exchange: Exchange | None = None
        self._arrived_ns = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._parser = httptools.HttpResponseParser(self)

    def send(self, exchange: Exchange, request: bytes) -> None:
        self._exchange = exchange
        exchange.lag = asyncio.get_running_loop().time() - exchange.due
        exchange.sent_ns = time.perf_counter_ns()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._arrived_ns = time.perf_counter_ns()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as e:
            self._fail(e)
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if self in self._idle:
            self._idle.remove(self)
        self._fail(error or ConnectionError("closed before the answer's end"))

    def close(self) -> None:
        self._transport.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._exchange is not None:
            self._exchange.headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        if self._exchange is not None:
            self._exchange.pieces.append(Piece(self._arrived_ns, body))

    def on_message_complete(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        exchange.status = self._parser.get_status_code()
        exchange.end()
        if self._parser.should_keep_alive():
            self._parser = httptools.HttpResponseParser(self)
            self._idle.append(self)
        else:
            self._transport.close()

    def _fail(self, error: Exception) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.end(error)


class Generator:
    """Sends a plan to one server."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._idle: list[Connection] = []

    async def run(self, plan: Sequence[Planned]) -> list[Outcome]:
        """Outcomes in the plan's order."""
        self._idle.extend([await self._connect() for _ in range(_CONNECTIONS)])
        loop = asyncio.get_running_loop()
        start = loop.time() + 0.05
        sending, exchanges = set(), []
        for planned in plan:
            exchange = Exchange(planned, start + planned.at)
            exchanges.append(exchange)
            await asyncio.sleep(max(0.0, exchange.due - loop.time()))
            if self._idle:
                self._idle.pop().send(exchange, self._request(planned))
            else:
                task = asyncio.create_task(self._send_on_new(exchange))
                sending.add(task)
                task.add_done_callback(sending.discard)
        await asyncio.wait([e.done for e in exchanges], timeout=_PATIENCE)
        outcomes = [_outcome(exchange) for exchange in exchanges]
        for connection in list(self._idle):
            connection.close()
        return outcomes

    async def _send_on_new(self, exchange: Exchange) -> None:
        try:
            connection = await self._connect()
        except OSError as e:
            exchange.end(e)
        else:
            connection.send(exchange, self._request(exchange.planned))

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: Connection(self._idle), self._host, self._port
        )
        return connection

    def _request(self, planned: Planned) -> bytes:
        body = planned.body.encode()
        host = f"{self._host}:{self._port}"
        return _HEAD.format(path=planned.path, host=host, length=len(body)).encode() + body


def _outcome(exchange: Exchange) -> Outcome:
    if not exchange.done.done():
        error: BaseException | None = TimeoutError(f"no end within {_PATIENCE:.0f} s")
    else:
        error = exchange.done.exception()
    return read_answer(
        exchange.planned,
        lag_us=round(exchange.lag * 1e6),
        sent_ns=exchange.sent_ns,
        status=exchange.status,
        headers=exchange.headers,
        pieces=exchange.pieces,
        error=None if error is None else f"{type(error).__name__}: {error}",
    )


def main(argv: Sequence[str]) -> None:
    """Standard output gets one JSON object: the share of a core that the sending took."""
    parser = ArgumentParser(prog="python -m inferway.bench.chat_overhead.load")
    parser.add_argument("plan", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--url", required=True)
    arguments = parser.parse_args(argv)
    plan = [
        msgspec.json.decode(line, type=Planned) for line in arguments.plan.read_bytes().splitlines()
    ]
    gc.disable()  # a collection would be somebody's latency
    wall, cpu = time.perf_counter(), time.process_time()
    outcomes = uvloop.run(Generator(arguments.url).run(plan))
    share = (time.process_time() - cpu) / (time.perf_counter() - wall)
    arguments.out.write_bytes(b"".join(msgspec.json.encode(o) + b"\n" for o in outcomes))
    print(f'{{"cpu_share":{share:.4f}}}')


if __name__ == "__main__":
    main(sys.argv[1:])
