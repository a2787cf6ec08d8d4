"""A scripted engine on a real socket, and a way to run a test in the gateway's own loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import ParamSpec

import uvloop

P = ParamSpec("P")
PATIENCE_SECONDS = 20


def in_loop(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Runs a coroutine as a test, on uvloop; one that hangs fails."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def limited() -> None:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await test(*args, **kwargs)

        uvloop.run(limited())

    return run


async def wait_until(condition: Callable[[], bool]) -> None:
    """Lets the loop run until `condition` holds; the test's own time limit ends it."""
    while not condition():
        await asyncio.sleep(0.001)


@dataclass
class Seen:
    """A request as the engine received it; names in lower case, in order."""

    line: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def values(self, name: bytes) -> list[bytes]:
        return [value for given, value in self.headers if given == name]


@dataclass
class Talk:
    """One connection of an engine: what a script writes to and may wait on."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    number: int  # of the connection, from 1

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def until_closed(self) -> None:
        """Returns when the other side has closed the connection."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass

    def reset(self) -> None:
        self.writer.transport.abort()


Script = Callable[[Seen, Talk], Awaitable[None]]
_FLOOD_BLOCK = 65536


@dataclass
class Engine:
    """`seen` are the requests, `connections` counts what was accepted. After `refuse` it takes no
    more connections."""

    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    refuse: Callable[[], None] = lambda: None


def answer(body: bytes = b"ok", head: bytes = b"", status: bytes = b"200 OK") -> Script:
    """Answers every request with `body` and its Content-Length."""

    async def script(_: Seen, talk: Talk) -> None:
        await talk.write(
            b"HTTP/1.1 %b\r\n%bcontent-length: %d\r\n\r\n%b" % (status, head, len(body), body)
        )

    return script


@dataclass
class Flood:
    """A script that answers with so many blocks; `written` is what its socket has taken."""

    num_blocks: int
    written: int = 0

    @property
    def size(self) -> int:
        return self.num_blocks * _FLOOD_BLOCK

    async def __call__(self, _: Seen, talk: Talk) -> None:
        await talk.write(CHUNKED_HEAD)
        for _block in range(self.num_blocks):
            await talk.write(chunk(b"x" * _FLOOD_BLOCK))
            self.written += _FLOOD_BLOCK
        await talk.write(LAST_CHUNK)

    async def stalled(self) -> None:
        """Until all buffers on its way are full and it writes no more."""
        before = -1
        while before != self.written:
            before = self.written
            await asyncio.sleep(0.1)  # the time in which it could have written


def raw(*pieces: bytes, close: bool = False) -> Script:
    """Answers every request with these bytes; may close after them."""

    async def script(_: Seen, talk: Talk) -> None:
        for piece in pieces:
            await talk.write(piece)
        if close:
            talk.writer.close()

    return script


def chunk(data: bytes) -> bytes:
    """`data` in chunked framing."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"
CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


@asynccontextmanager
async def running(script: Script) -> AsyncIterator[Engine]:
    """An engine that answers each request by `script`, until the connection ends."""
    engine = Engine()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        engine.connections += 1
        engine.open += 1
        talk = Talk(reader, writer, engine.connections)
        try:
            while (seen := await _read_request(reader)) is not None:
                engine.seen.append(seen)
                await script(seen, talk)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            engine.open -= 1
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**20)
    engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    engine.refuse = server.close
    try:
        yield engine
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read_request(reader: asyncio.StreamReader) -> Seen | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    line, *lines = head[:-4].split(b"\r\n")
    headers = []
    for text in lines:
        name, _, value = text.partition(b":")
        headers.append((name.lower(), value.strip()))
    seen = Seen(line, headers, b"")
    lengths = seen.values(b"content-length")
    seen.body = await reader.readexactly(int(lengths[0])) if lengths else b""
    return seen


@asynccontextmanager
async def refusing() -> AsyncIterator[str]:
    """The URL of an engine that is not there: nobody listens on the port."""
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await server.wait_closed()
    yield url
