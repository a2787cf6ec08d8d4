"""A client that says exactly the bytes it is told, and reads answers as they are framed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from inferway.config import LimitSettings, TimeoutSettings
from inferway.extension import Extension, Tap
from inferway.http.message import Request
from inferway.http.responder import Responder
from inferway.http.server import Handler, HttpServer


@dataclass
class Answer:
    """Names in lower case, in order; `chunks` are the body's pieces as they were framed."""

    status: int
    headers: list[tuple[bytes, bytes]]
    chunks: list[bytes]

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    def values(self, name: bytes) -> list[bytes]:
        return [value for given, value in self.headers if given == name]


class Client:
    """One connection. `answer` raises IncompleteReadError where the server breaks one off."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, *, to_head: bool = False) -> Answer:
        answer = await self.head()
        if to_head or answer.status in (204, 304):
            return answer
        if answer.values(b"transfer-encoding") == [b"chunked"]:
            while data := await self.chunk():
                answer.chunks.append(data)
        elif lengths := answer.values(b"content-length"):
            answer.chunks.append(await self.reader.readexactly(int(lengths[0])))
        else:
            answer.chunks.append(await self.reader.read())
        return answer

    async def head(self) -> Answer:
        head = await self.reader.readuntil(b"\r\n\r\n")
        line, *lines = head[:-4].split(b"\r\n")
        pairs = [text.partition(b": ") for text in lines]
        headers = [(name.lower(), value) for name, _, value in pairs]
        return Answer(int(line.split(b" ")[1]), headers, [])

    async def chunk(self) -> bytes:
        size = int((await self.reader.readuntil(b"\r\n")).rstrip(), 16)
        data = await self.reader.readexactly(size + 2)
        assert data.endswith(b"\r\n")
        return data[:-2]

    async def ask(self, data: bytes) -> Answer:
        await self.send(data)
        return await self.answer(to_head=data.startswith(b"HEAD"))

    async def closed(self) -> bytes:
        """What still comes until the server closes the connection."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def serving(
    handler: Handler,
    *,
    limits: LimitSettings | None = None,
    timeouts: TimeoutSettings | None = None,
    extensions: Sequence[Extension] = (),
    awaits_body: Callable[[Request], bool] = lambda _: True,
) -> AsyncIterator[HttpServer]:
    server = HttpServer(
        handler, limits=limits, timeouts=timeouts, tap=Tap(extensions), awaits_body=awaits_body
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0)


@asynccontextmanager
async def connected(server: HttpServer) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=2**20)
    client = Client(reader, writer)
    try:
        yield client
    finally:
        client.reset()


async def echo(request: Request, responder: Responder) -> None:
    """Answers with what was asked: method, target and body."""
    body = b"%b %b %b" % (request.method.encode(), request.target, request.body)
    responder.send(200, ((b"content-type", b"text/plain"),), body)


class Gate:
    """A handler that answers when it is let go, and counts who waits."""

    def __init__(self) -> None:
        self.waiting = 0
        self.open = asyncio.Event()

    async def __call__(self, request: Request, responder: Responder) -> None:
        self.waiting += 1
        await self.open.wait()
        await echo(request, responder)


def get(target: bytes = b"/", *headers: bytes) -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return b"GET %b HTTP/1.1\r\nhost: gw\r\n%b\r\n" % (target, lines)


def post(body: bytes = b"{}", *headers: bytes, target: bytes = b"/v1/chat/completions") -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return b"POST %b HTTP/1.1\r\nhost: gw\r\n%bcontent-length: %d\r\n\r\n%b" % (
        target,
        lines,
        len(body),
        body,
    )
