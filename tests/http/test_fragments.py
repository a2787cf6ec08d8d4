"""How bytes are cut on their way makes no difference. Without sockets: every cut is tried fast."""

from __future__ import annotations

import asyncio
import re
import tracemalloc
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.http.clients import echo, get, post
from tests.http.test_malformed import CHUNKED, REFUSED
from tests.upstream.engines import CHUNKED_HEAD, LAST_CHUNK, chunk, in_loop

from inferway.config import LimitSettings, TimeoutSettings
from inferway.errors import UpstreamError
from inferway.http.connection import ClientConnection
from inferway.http.headers import request_lines
from inferway.http.message import Request
from inferway.http.responder import Responder
from inferway.http.server import HttpServer
from inferway.model import Headers
from inferway.upstream.connection import EngineConnection
from inferway.upstream.exchange import UpstreamRequest
from inferway.upstream.headers import MAX_KNOWN_HEADS
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
LENGTH_5 = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
ANSWERS = [
    b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nx-a: 1\r\n\r\nhello",
    CHUNKED_HEAD + chunk(b"abc") + chunk(b"d" * 100) + LAST_CHUNK,
    CHUNKED_HEAD + chunk(b"abc") + b"0\r\nx-trailer: 1\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\nhello",
    b"HTTP/1.1 103 x\r\ncontent-length: 43\r\n\r\n" + LENGTH_5,
    LENGTH_5.replace(b"200", b"500"),
    LENGTH_5.replace(b"\r\n\r\n", b"\r\nconnection: x-a\r\nx-a: 1\r\n\r\n"),
    LENGTH_5.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n"),
    LENGTH_5.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"),
    LENGTH_5.replace(b"1.1", b"1.0"),
    LENGTH_5 + b"more",
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


async def answered(pieces: list[bytes], before: Sequence[bytes] = ()) -> bytes:
    """What a client who sends these pieces reads, but for what differs each time. `before`: what
    the server has received, each from a client of its own."""

    server = HttpServer(echo_fields)
    await server.start()
    for request in before:
        talk(server, [request])
    written = talk(server, pieces)
    await server.stop(0)
    return re.sub(rb"(date|x-request-id): [^\r]*\r\n", b"", written)


def talk(server: HttpServer, pieces: list[bytes]) -> bytes:
    """What a new client who sends these pieces reads."""
    wire = Wire()
    connection = ClientConnection(server)
    connection.connection_made(cast(asyncio.Transport, wire))
    for piece in pieces:
        connection.data_received(piece)
    connection.connection_lost(None)
    return wire.written


async def echo_fields(request: Request, responder: Responder) -> None:
    """Answer with all that was asked, and with what an engine would get of the head."""
    fields = {name: value for name, value in request.fields.items() if name != b"content-length"}
    lines = [line for line in request_lines(request).splitlines() if request.id not in line]
    body = repr((request.method, request.target, fields, lines, request.body))
    responder.send(200, (), body.encode())


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


async def heard(
    pieces: list[bytes], before: Sequence[bytes] = ()
) -> tuple[list[tuple[int, Headers, int | None]], bytes, str]:
    """What an engine that sends these pieces and closes makes the sink hear. What came in one
    read with garbage is not handed on, so that of an error only that it is one is compared.
    `before`: answers that engines have sent, each on a connection of its own."""
    pool = Pool()
    for answer in before:
        listen(pool, [answer])
    sink = listen(pool, pieces)
    await pool.close()
    assert len(sink.ends) == 1
    if sink.ends == ["error"]:
        return [], b"", "error"
    return sink.heads, sink.body, sink.ends[0]


def listen(pool: Pool, pieces: Sequence[bytes]) -> Heard:
    """Return the sink of a request that an engine answers with these pieces."""
    origin, wire, sink = Origin(pool, "http://engine:1"), Wire(), Heard()
    connection = EngineConnection(origin)
    connection.connection_made(cast(asyncio.Transport, wire))
    connection.send(UpstreamRequest(origin, (b"",), sink, is_head=False))
    for piece in pieces:
        if not wire.closed:
            connection.data_received(piece)
    connection.connection_lost(None)
    return sink


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
@given(
    st.lists(st.sampled_from(MESSAGES), min_size=1, max_size=4),
    st.lists(st.integers(min_value=0, max_value=4000), max_size=3),
    st.sampled_from([b"a", b"hello", b"hello, hello", b"\r\n" * 9]),
)
def test_heads_that_the_server_has_seen_make_no_difference(
    messages: list[bytes], places: list[int], body: bytes
) -> None:
    messages = [
        message.replace(b"content-length: 5\r\n\r\nhello", with_length(body))
        for message in messages
    ]
    data = b"".join(messages)

    known = uvloop.run(answered(cut(data, places), MESSAGES))

    assert known == uvloop.run(answered(cut(data, places)))


def with_length(body: bytes) -> bytes:
    return b"content-length: %d\r\n\r\n%b" % (len(body), body)


@in_loop
async def test_a_head_that_comes_again_is_not_parsed_again() -> None:
    server, wire = HttpServer(echo), Wire()
    await server.start()
    connection = ClientConnection(server)
    connection.connection_made(cast(asyncio.Transport, wire))
    connection.data_received(post(b"hello"))
    [known, _, _] = server.heads.find(post(b"other"))
    connection.data_received(post(b"and more"))

    assert known is not None
    assert len(server.heads) == 1
    assert wire.written.endswith(b"POST /v1/chat/completions and more")
    connection.connection_lost(None)
    await server.stop(0)


@in_loop
async def test_a_body_behind_a_head_that_is_known_has_the_limit_that_was_reloaded() -> None:
    server, wire = HttpServer(echo), Wire()
    await server.start()
    connection = ClientConnection(server)
    connection.connection_made(cast(asyncio.Transport, wire))
    connection.data_received(post(b"hello"))
    server.hold_to(LimitSettings(body_bytes=4), TimeoutSettings())
    connection.data_received(post(b"other"))
    connection.connection_lost(None)
    await server.stop(0)

    assert b"HTTP/1.1 413 " in wire.written


NOT_KNOWN = {
    "an id of its own": post(b"a", b"x-request-id: mine"),
    "a span of its own": post(b"a", b"traceparent: 00-1-1-00"),
    "a last request": post(b"a", b"connection: close"),
    "an old client": post(b"a").replace(b"HTTP/1.1", b"HTTP/1.0"),
    "a body that is announced": post(b"a", b"expect: 100-continue"),
    "no body": get(),
}


@pytest.mark.parametrize("data", NOT_KNOWN.values(), ids=NOT_KNOWN)
@in_loop
async def test_no_head_is_kept_that_does_not_come_again(data: bytes) -> None:
    server = HttpServer(echo)
    await server.start()
    talk(server, [data])

    assert len(server.heads) == 0
    await server.stop(0)


@in_loop
async def test_a_flood_of_heads_is_not_kept() -> None:
    server = HttpServer(echo)
    await server.start()
    for number in range(3 * MAX_KNOWN_HEADS):
        talk(server, [post(b"a", b"x-number: %d" % number)])

    assert 0 < len(server.heads) <= MAX_KNOWN_HEADS
    await server.stop(0)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.sampled_from(ANSWERS), min_size=1, max_size=3),
    st.lists(st.integers(min_value=0, max_value=400), max_size=2),
)
def test_heads_that_engines_have_sent_make_no_difference(
    answers: list[bytes], places: list[int]
) -> None:
    data = b"".join(answers)

    known = uvloop.run(heard(cut(data, places), ANSWERS))

    assert known == uvloop.run(heard(cut(data, places)))


STREAM = CHUNKED_HEAD + chunk(b"a: b\n\n") + chunk(b"c\r\n") + chunk(b"0\r\n\r\n") + LAST_CHUNK


@in_loop
async def test_a_stream_is_heard_the_same_whichever_two_or_three_cuts_are_in_it() -> None:
    whole = await heard([STREAM])
    begin = len(CHUNKED_HEAD)

    for first in range(begin, len(STREAM)):
        for second in range(first, len(STREAM)):
            pieces = cut(STREAM, [begin + 11, first, second])
            assert await heard(pieces) == whole, pieces


@pytest.mark.parametrize("size", [b"+4", b"0x4", b" 4", b"4_", b"5", b"3", b"g"])
@in_loop
async def test_a_chunk_of_another_size_than_it_says_is_not_handed_on(size: bytes) -> None:
    pieces = [CHUNKED_HEAD + chunk(b"ab"), size + b"\r\nabcd\r\n", LAST_CHUNK]

    assert await heard(pieces) == await heard([b"".join(pieces)])


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
