"""How bytes are cut on their way makes no difference. Without sockets: every cut is tried fast."""

from __future__ import annotations

import asyncio
import re
import tracemalloc
from itertools import pairwise
from typing import cast

import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.http.clients import echo, get, post
from tests.http.test_malformed import CHUNKED, REFUSED
from tests.upstream.engines import CHUNKED_HEAD, LAST_CHUNK, chunk

from inferway.errors import UpstreamError
from inferway.http.connection import ClientConnection
from inferway.http.message import Request
from inferway.http.responder import Responder
from inferway.http.server import HttpServer
from inferway.model import Headers
from inferway.upstream.connection import EngineConnection
from inferway.upstream.exchange import UpstreamRequest
from inferway.upstream.pool import Origin, Pool

MESSAGES = [
    get(b"/a"),
    get(b"/b", b"x-empty:", b"x: \t y \t "),
    post(b"hello"),
    post(b""),
    CHUNKED + chunk(b"abc") + chunk(b"d" * 100) + b"0\r\nx-trailer: 1\r\n\r\n",
    get(b"/head").replace(b"GET", b"HEAD"),
    get(b"/close", b"connection: close"),
    *[sent for _, sent in REFUSED.values() if len(sent) < 1000],
]
ANSWERS = [
    b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nx-a: 1\r\n\r\nhello",
    CHUNKED_HEAD + chunk(b"abc") + chunk(b"d" * 100) + LAST_CHUNK,
    CHUNKED_HEAD + chunk(b"abc") + b"0\r\nx-trailer: 1\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
    b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhell",
    b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\na",
    CHUNKED_HEAD + b"zz\r\n",
    b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nab",
]


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def get_extra_info(self, name: str) -> object:
        return ("127.0.0.1", 1) if name == "peername" else None

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, pieces: tuple[bytes, ...]) -> None:
        self.written += b"".join(pieces)

    def close(self) -> None:
        self.closed = True

    abort = write_eof = close

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Heard:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.heads: list[tuple[int, Headers, int | None]] = []
        self.body = b""
        self.ends: list[str] = []

    def on_head(self, status: int, headers: Headers, length: int | None) -> None:
        self.heads.append((status, headers, length))

    def on_chunk(self, chunk: bytes) -> None:
        self.body += chunk

    def on_end(self, chunk: bytes) -> None:
        self.body += chunk
        self.ends.append("end")

    def on_error(self, error: UpstreamError) -> None:
        del error
        self.ends.append("error")


def cut(data: bytes, places: list[int]) -> list[bytes]:
    borders = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(borders) if a < b]


async def answered(pieces: list[bytes]) -> bytes:
    """What a client who sends these pieces reads, but for what differs each time."""
    server = HttpServer(echo)
    await server.start()
    wire = Wire()
    connection = ClientConnection(server)
    connection.connection_made(cast(asyncio.Transport, wire))
    for piece in pieces:
        connection.data_received(piece)
    connection.connection_lost(None)
    await server.stop(0)
    return re.sub(rb"(date|x-request-id): [^\r]*\r\n", b"", wire.written)


async def test_a_body_that_came_in_one_read_is_copied_once() -> None:
    size = 2**23
    request = post(b"x" * size)

    async def length(request: Request, responder: Responder) -> None:
        responder.send(200, (), b"%d" % len(request.body))

    server = HttpServer(length)
    await server.start()
    wire = Wire()
    connection = ClientConnection(server)
    connection.connection_made(cast(asyncio.Transport, wire))
    tracemalloc.start()
    try:
        connection.data_received(request)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    connection.connection_lost(None)
    await server.stop(0)

    assert wire.written.endswith(b"\r\n\r\n%d" % size)
    assert peak < 1.5 * size


async def heard(pieces: list[bytes]) -> tuple[list[tuple[int, Headers, int | None]], bytes, str]:
    """What an engine that sends these pieces and closes makes the sink hear. What came in one
    read with garbage is not handed on, so that of an error only that it is one is compared."""
    pool = Pool()
    origin, wire, sink = Origin(pool, "http://engine:1"), Wire(), Heard()
    connection = EngineConnection(origin)
    connection.connection_made(cast(asyncio.Transport, wire))
    connection.send(UpstreamRequest(origin, (b"",), sink, is_head=False))
    for piece in pieces:
        if not wire.closed:
            connection.data_received(piece)
    connection.connection_lost(None)
    await pool.close()
    assert len(sink.ends) == 1
    if sink.ends == ["error"]:
        return [], b"", "error"
    return sink.heads, sink.body, sink.ends[0]


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.sampled_from(MESSAGES), min_size=1, max_size=4),
    st.lists(st.integers(min_value=0, max_value=4000), max_size=12),
)
def test_requests_are_answered_the_same_however_they_are_cut(
    messages: list[bytes], places: list[int]
) -> None:
    data = b"".join(messages)

    assert uvloop.run(answered(cut(data, places))) == uvloop.run(answered([data]))


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(ANSWERS), st.lists(st.integers(min_value=0, max_value=400), max_size=12))
def test_answers_are_heard_the_same_however_they_are_cut(data: bytes, places: list[int]) -> None:
    assert uvloop.run(heard(cut(data, places))) == uvloop.run(heard([data]))


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(MESSAGES), st.binary(max_size=8), st.integers(min_value=0, max_value=4000))
def test_no_bytes_bring_a_connection_down(message: bytes, junk: bytes, place: int) -> None:
    place %= len(message)
    data = message[:place] + junk + message[place + len(junk) :]

    out = uvloop.run(answered([data]))

    assert out == b"" or out.startswith(b"HTTP/1.1 ")
