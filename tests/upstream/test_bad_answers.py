"""What engines may send, and what a client gets of it. Sections are of RFC 9112, if nothing else
is said. Without sockets, and each case whole as well as byte by byte."""

from __future__ import annotations

import pytest
from tests.fuzz.unwired import Unwired
from tests.http.clients import get, post
from tests.upstream.engines import CHUNKED_HEAD, LAST_CHUNK, SSE_HEAD, chunk, in_loop

OK = b"HTTP/1.1 200 OK\r\n"
LENGTH = OK + b"content-length: 2\r\n"
NEXT = LENGTH + b"\r\n42"
EVENT = b'data: {"x":1}\n\n'

# what the engine sends -> the client's status, body, and whether the connection serves another
WHOLE: dict[str, tuple[bytes, int, bytes, bool]] = {
    "2.2 an empty line first": (b"\r\n" + LENGTH + b"\r\nab", 200, b"ab", True),
    "4 no reason phrase": (b"HTTP/1.1 200\r\ncontent-length: 2\r\n\r\nab", 200, b"ab", True),
    "4 an unknown status": (b"HTTP/1.1 599 x\r\ncontent-length: 2\r\n\r\nab", 599, b"ab", True),
    "5.5 bytes above ASCII": (LENGTH + b"x: \xff\r\n\r\nab", 200, b"ab", True),
    "6.1 chunked": (CHUNKED_HEAD + chunk(b"ab") + LAST_CHUNK, 200, b"ab", True),
    "6.3 a status without body": (b"HTTP/1.1 204 x\r\n\r\n", 204, b"", True),
    "6.3 304 with a length": (b"HTTP/1.1 304 x\r\ncontent-length: 5\r\n\r\n", 304, b"", True),
    "6.3 204 with a length": (b"HTTP/1.1 204 x\r\ncontent-length: 2\r\n\r\n", 204, b"", True),
    "6.3 204 with a body": (b"HTTP/1.1 204 x\r\ncontent-length: 2\r\n\r\nab", 204, b"", False),
    "6.3 304 with chunks": (
        b"HTTP/1.1 304 x\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(b"ab") + LAST_CHUNK,
        304,
        b"",
        False,
    ),
    "7.1.1 extensions": (CHUNKED_HEAD + b"2;a=b\r\nab\r\n0;c\r\n\r\n", 200, b"ab", True),
    "7.1.2 trailers": (CHUNKED_HEAD + chunk(b"ab") + b"0\r\nx: 1\r\n\r\n", 200, b"ab", True),
    "7.1.2 a coding as trailer": (
        CHUNKED_HEAD + chunk(b"ab") + b"0\r\ntransfer-encoding: chunkex\r\n\r\n",
        200,
        b"ab",
        False,
    ),
    "6.3 an answer nobody asked for, chunked": (
        (CHUNKED_HEAD + chunk(b"ab") + LAST_CHUNK) + (CHUNKED_HEAD + chunk(b"no") + LAST_CHUNK),
        200,
        b"ab",
        False,
    ),
    "9.3 HTTP/1.0": (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nab", 200, b"ab", False),
    "9.3 HTTP/1.0 that stays": (
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nab",
        200,
        b"ab",
        True,
    ),
    "9.6 close": (LENGTH + b"connection: close\r\n\r\nab", 200, b"ab", False),
    "6.3 more than the length": (LENGTH + b"\r\nabc", 200, b"ab", False),
    "6.3 an answer nobody asked for": (LENGTH + b"\r\nab" + LENGTH + b"\r\nno", 200, b"ab", False),
    "7.1 more than the chunks": (
        CHUNKED_HEAD + chunk(b"ab") + LAST_CHUNK + b"c",
        200,
        b"ab",
        False,
    ),
    "9.6 an answer after close": (
        LENGTH + b"connection: close\r\n\r\nab" + NEXT,
        200,
        b"ab",
        False,
    ),
    "RFC 9110 15.2 informational answers": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 x\r\nlink: y\r\n\r\n" + LENGTH + b"\r\nab",
        200,
        b"ab",
        True,
    ),
    "RFC 9110 15.2 one with a length": (
        b"HTTP/1.1 103 x\r\ncontent-length: 5\r\n\r\n" + LENGTH + b"\r\nab",
        200,
        b"ab",
        True,
    ),
}

GARBAGE: dict[str, bytes] = {
    "2 another protocol": b"SSH-2.0-OpenSSH\r\n",
    "2 a TLS alert": b"\x15\x03\x01\x00\x02\x02\x50",
    "2 nothing but NUL": b"\x00" * 100,
    "2.2 bare LF after the status line": b"HTTP/1.1 200 OK\ncontent-length: 0\r\n\r\n",
    "2.2 bare LF after a field": OK + b"content-length: 0\n\r\n",
    "2.2 bare CR in the reason": b"HTTP/1.1 200 O\rK\r\ncontent-length: 0\r\n\r\n",
    "2.3 HTTP/2.0": b"HTTP/2.0 200 OK\r\ncontent-length: 0\r\n\r\n",
    "2.3 HTTP/0.9": b"HTTP/0.9 200 OK\r\ncontent-length: 0\r\n\r\n",
    "2.3 HTTP/1.2": b"HTTP/1.2 200 OK\r\ncontent-length: 0\r\n\r\n",
    "2.3 HTTP/2.0 that stays": (
        b"HTTP/2.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 0\r\n\r\n"
    ),
    "2.3 ICY": b"ICY 200 OK\r\n\r\n",
    "4 a status of two digits": b"HTTP/1.1 20 OK\r\ncontent-length: 0\r\n\r\n",
    "4 a status of four digits": b"HTTP/1.1 2000 OK\r\ncontent-length: 0\r\n\r\n",
    "6.3 an unknown informational answer with a length": (
        b"HTTP/1.1 126 x\r\ncontent-length: 2\r\n\r\nno" + LENGTH + b"\r\nab"
    ),
    "6.3 an unknown informational answer in chunks": (
        b"HTTP/1.1 126 x\r\ntransfer-encoding: chunked\r\n\r\n" + LAST_CHUNK + LENGTH + b"\r\nab"
    ),
    "RFC 9110 15 status 000": b"HTTP/1.1 000 OK\r\ncontent-length: 0\r\n\r\n",
    "RFC 9110 15 status 099": b"HTTP/1.1 099 OK\r\ncontent-length: 0\r\n\r\n",
    "RFC 9110 15 status 600": b"HTTP/1.1 600 OK\r\ncontent-length: 0\r\n\r\n",
    "RFC 9110 15.2.2 101": b"HTTP/1.1 101 x\r\n\r\nab",
    "RFC 9110 15.2.2 101 with an upgrade": (
        b"HTTP/1.1 101 x\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"
    ),
    "5 no colon": OK + b"x\r\n\r\n",
    "5 white space before the colon": OK + b"x : a\r\ncontent-length: 0\r\n\r\n",
    "5 NUL in a value": OK + b"x: a\x00\r\ncontent-length: 0\r\n\r\n",
    "5.2 obs-fold": OK + b"x: a\r\n b\r\ncontent-length: 0\r\n\r\n",
    "5.4 many fields": OK + b"".join(b"x-%d: 1\r\n" % i for i in range(300)) + b"\r\n",
    "5.4 the same field many times": OK + b"x: 1\r\n" * 300 + b"\r\n",
    "6.1 TE and CL": CHUNKED_HEAD[:-2] + b"content-length: 3\r\n\r\n0\r\n\r\n",
    "6.1 CL and TE": LENGTH + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "6.1 gzip": OK + b"transfer-encoding: gzip\r\n\r\nab",
    "6.1 gzip, chunked": OK + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "6.1 chunked, gzip": OK + b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "6.1 gzip and chunked in two lines": (
        OK + b"transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "6.1 chunked twice": CHUNKED_HEAD[:-2] + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "6.1 identity": OK + b"transfer-encoding: identity\r\n\r\nab",
    "6.1 chunked in HTTP/1.0": (
        b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
    ),
    "6.1 chunked in HTTP/1.0 that stays": (
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ntransfer-encoding: chunked\r\n\r\n"
        b"2\r\nab\r\n0\r\n\r\n"
    ),
    "6.2 two lengths": LENGTH + b"content-length: 3\r\n\r\nab",
    "6.2 the same length twice": LENGTH + b"content-length: 2\r\n\r\nab",
    "6.2 a list of lengths": OK + b"content-length: 2, 2\r\n\r\nab",
    "6.2 a negative length": OK + b"content-length: -2\r\n\r\nab",
    "6.2 an empty length": OK + b"content-length:\r\n\r\nab",
    "6.2 a length over 64 bits": OK + b"content-length: 99999999999999999999\r\n\r\nab",
}

# what comes after a head and a piece of the body: the answer has begun, and breaks off
BROKEN: dict[str, bytes] = {
    "7.1 a chunk size that is none": b"zz\r\n",
    "7.1 a negative chunk size": b"-1\r\n",
    "7.1 white space before a chunk size": b" 1\r\na\r\n",
    "7.1 a chunk without its CRLF": b"1\r\na0\r\n\r\n",
    "7.1 a chunk longer than its size": b"1\r\nabc\r\n",
    "7.1 a chunk size with bare LF": b"1\na\r\n",
    "7.1 a chunk size over 64 bits": b"10000000000000000\r\n",
    "7.1.1 an extension with bare LF": b"1;a\nx\r\n0\r\n\r\n",
    "7.1.2 a trailer without a colon": b"0\r\nx\r\n\r\n",
}


class Asked:
    """One request under way, and what comes of it."""

    def __init__(self, method: bytes = b"POST") -> None:
        self.world = Unwired()
        self.client = self.world.client
        self.client.feed(post(b"1") if method == b"POST" else get().replace(b"GET", method))
        (self.engine,) = self.world.origin.lines

    def answer(self, data: bytes, size: int) -> None:
        for i in range(0, len(data), size):
            self.engine.feed(data[i : i + size])

    def status(self) -> int:
        return int(self.client.said[9:12])

    def body(self) -> bytes:
        """Without its chunks, of which there is one."""
        head, _, body = self.client.said.partition(b"\r\n\r\n")
        if b"transfer-encoding: chunked" not in head:
            return body
        data = b""
        while body:
            size, _, body = body.partition(b"\r\n")
            data, body = data + body[: int(size, 16)], body[int(size, 16) + 2 :]
        return data

    def next_answer(self) -> bytes:
        """What another client gets, whose engine answers with 42."""
        self.world.settle()
        self.world.new_client()
        self.world.client.feed(post(b"2"))
        self.world.origin.lines[-1].feed(NEXT)
        return self.world.client.said[-2:]

    def over(self) -> None:
        """Nothing is left of it."""
        self.world.leave()
        self.world.stop()
        assert all(len(trip.outcomes) == 1 for trip in self.world.trips)
        assert self.world.pool.stats.open == 0
        assert (self.world.server.stats.open, self.world.server.stats.answering) == (0, 0)


@pytest.mark.parametrize("size", [100_000, 1], ids=["whole", "in bytes"])
@pytest.mark.parametrize(("sent", "status", "body", "kept"), WHOLE.values(), ids=WHOLE)
@in_loop
async def test_an_answer_passes_and_what_follows_it_is_never_the_next_one(
    sent: bytes, status: int, body: bytes, kept: bool, size: int
) -> None:
    asked = Asked()
    asked.answer(sent, size)

    assert (asked.status(), asked.body()) == (status, body)
    assert asked.engine.closing != kept
    assert asked.next_answer() == b"42"
    asked.over()


@pytest.mark.parametrize("size", [100_000, 1], ids=["whole", "in bytes"])
@pytest.mark.parametrize("sent", GARBAGE.values(), ids=GARBAGE)
@in_loop
async def test_what_is_no_answer_is_502_and_ends_the_connection(sent: bytes, size: int) -> None:
    asked = Asked()
    asked.answer(sent, size)

    assert (asked.status(), asked.engine.closing) == (502, True)
    assert b"what is not HTTP/1.1" in asked.client.said
    assert asked.next_answer() == b"42"
    asked.over()


@pytest.mark.parametrize("size", [100_000, 1], ids=["whole", "in bytes"])
@pytest.mark.parametrize("sent", BROKEN.values(), ids=BROKEN)
@in_loop
async def test_a_stream_that_becomes_garbage_ends_with_an_error_event(
    sent: bytes, size: int
) -> None:
    asked = Asked()
    asked.answer(SSE_HEAD + chunk(EVENT), 100_000)
    asked.answer(sent, size)

    assert asked.body().startswith(EVENT)
    assert b'data: {"error":' in asked.body()
    assert asked.client.said.endswith(b"\r\n0\r\n\r\n")
    assert asked.engine.closing
    assert asked.next_answer() == b"42"
    asked.over()


@pytest.mark.parametrize("sent", BROKEN.values(), ids=BROKEN)
@in_loop
async def test_another_answer_that_becomes_garbage_is_broken_off(sent: bytes) -> None:
    asked = Asked()
    asked.answer(CHUNKED_HEAD + chunk(b"ab"), 100_000)
    asked.answer(sent, 1)

    assert asked.client.reset
    assert not asked.client.said.endswith(b"0\r\n\r\n")
    assert asked.next_answer() == b"42"
    asked.over()


@pytest.mark.parametrize("error", [None, ConnectionResetError()], ids=["close", "reset"])
@pytest.mark.parametrize("cut", range(1, len(LENGTH + b"\r\na") + 1, 3))
@in_loop
async def test_an_engine_that_leaves_before_its_answer_is_whole(
    cut: int, error: Exception | None
) -> None:
    asked = Asked()
    asked.answer((LENGTH + b"\r\na")[:cut], 100_000)
    asked.engine.hang_up(error)

    # the head went out with the first piece of the body, or 502 did instead
    assert asked.client.reset or asked.status() == 502
    assert asked.next_answer() == b"42"
    asked.over()


@pytest.mark.parametrize("size", [100_000, 1], ids=["whole", "in bytes"])
@in_loop
async def test_a_body_that_comes_with_the_answer_to_head_is_dropped(size: int) -> None:
    asked = Asked(b"HEAD")
    asked.answer(LENGTH + b"\r\nab", size)

    assert asked.client.said.endswith(b"\r\n\r\n")
    assert asked.engine.closing
    assert asked.next_answer() == b"42"
    asked.over()


@in_loop
async def test_a_flood_of_informational_answers_ends() -> None:
    asked = Asked()
    for _ in range(20_000):
        asked.answer(b"HTTP/1.1 103 x\r\nlink: </a>\r\n\r\n", 100_000)

    assert (asked.status(), asked.engine.closing) == (502, True)
    asked.over()


@in_loop
async def test_what_an_idle_connection_says_is_not_an_answer() -> None:
    asked = Asked()
    asked.answer(LENGTH + b"\r\nab", 100_000)
    asked.engine.feed(LENGTH + b"\r\nno")

    assert asked.engine.closing
    assert asked.next_answer() == b"42"
    asked.over()
