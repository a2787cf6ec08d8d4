"""What must hold for any bytes, from a client (`check_requests`) and from an engine
(`check_answer`). An input's first byte says how; 0xfe in the rest is where a read ends.

requests   what the engine gets, read again, is what we took in, and what h11 reads in the
           client's bytes; each is answered, in order and with its own nonce
answers    what the client gets, read again, is what h11 reads in the engine's bytes, or an error
both       nothing is left when all have gone
"""

from __future__ import annotations

import re

from tests.fuzz.second_opinion import read_answer, read_requests
from tests.fuzz.unwired import Line, Unwired
from tests.http.clients import post

from inferway.config import LimitSettings
from inferway.http.message import Request
from inferway.model import Headers
from inferway.upstream.headers import HOP_BY_HOP, REWRITTEN

CUT = b"\xfe"
LIMITS = LimitSettings(body_bytes=10_000, header_bytes=4_000)
METHODS = (b"POST", b"GET", b"HEAD", b"OPTIONS")
# What h11 minds and we do not: a reason phrase, and trailers, which we drop unread; empty lines
# between answers.
_STRICTER = (
    "illegal status line",
    "no response line received",
    "Only Transfer-Encoding: chunked is supported",
    "multiple Transfer-Encoding headers",
    "bad Content-Length",
    "conflicting Content-Length headers",
)
_NOT_COMPARED = HOP_BY_HOP | REWRITTEN | {b"x-request-id"}


class WrongError(AssertionError):
    """What must hold does not."""


def check(data: bytes) -> None:
    """Raises WrongError."""
    if len(data) < 2:
        return
    if data[0] & 1:
        check_answer(data[0] >> 1, data[1:].split(CUT))
    else:
        check_requests(data[1:].split(CUT))


def expect(holds: bool, what: str, *evidence: object) -> None:
    if not holds:
        raise WrongError(f"{what}: {evidence!r}")


# ------------------------------------------------------------------------------------ requests


def check_requests(reads: list[bytes]) -> None:
    """A client sends these; an engine answers each with its number."""
    world = Unwired(LIMITS)
    forwarded: list[bytes] = []
    for read in reads:
        if read:
            world.client.feed(read)
            _answer_all(world, forwarded)
    said = world.client.said
    requests = [trip.request for trip in world.trips]
    refused = world.server.stats.refused
    _leave_nothing(world)
    _same_as_forwarded(requests, forwarded)
    _answered_in_order(said, requests, refused)
    _same_as_second_opinion(b"".join(reads), requests)


def _answer_all(world: Unwired, forwarded: list[bytes]) -> None:
    """Until nothing is asked. An engine's line has one request at a time."""
    while True:
        line = next((line for line in world.origin.lines if line.written), None)
        if line is None:
            return
        forwarded.append(line.said)
        line.written.clear()
        head = forwarded[-1].startswith(b"HEAD ")
        nonce = b"%06d" % len(forwarded)
        line.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n" + (b"" if head else nonce))


def _same_as_forwarded(requests: list[Request], forwarded: list[bytes]) -> None:
    expect(len(requests) == len(forwarded), "requests are lost", requests, forwarded)
    for request, data in zip(requests, forwarded, strict=True):
        reading = read_requests(data)
        expect(
            len(reading.messages) == 1 and reading.end in ("", "closed"),
            "not one request is forwarded",
            data,
            reading,
        )
        (message,) = reading.messages
        expect(
            (message.start, message.target, message.body)
            == (request.method.encode(), request.target, request.body),
            "another request is forwarded",
            message,
            data,
        )
        expect(message.values(b"host") == [b"engine:1"], "another host", data)
        expect(not message.values(b"transfer-encoding"), "a coding is forwarded", data)


def _answered_in_order(said: bytes, requests: list[Request], refused: int) -> None:
    """`said` is an answer for each request, with its nonce, and one for what was refused."""
    said = said.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
    for number, request in enumerate(requests, 1):
        message, wrong, said = read_answer(said, request.method.encode(), closed=False)
        expect(message is not None, "no answer", number, wrong)
        assert message is not None
        body = b"" if request.method == "HEAD" else b"%06d" % number
        expect((message.start, message.body) == (b"200", body), "another's answer", message)
    if refused:
        message, wrong, said = read_answer(said, b"GET", closed=False)
        expect(message is not None and message.start[:1] in b"45", "no refusal", wrong, said)
    expect(said == b"", "more answers than requests", said)


def _same_as_second_opinion(data: bytes, requests: list[Request]) -> None:
    """What h11 reads, too, is the same. Where it stops we may go on for reasons we know."""
    reading = read_requests(data.lstrip(b"\r\n"))
    for ours, theirs in zip(requests, reading.messages, strict=False):
        expect(
            (ours.method.encode(), ours.body) == (theirs.start, theirs.body)
            and _same_target(ours.target, theirs.target),
            "h11 reads another request",
            (ours.method, ours.target, ours.body),
            theirs,
        )
        expect(_kept(ours.headers) == _kept(theirs.headers), "h11 reads other headers", theirs)
    if len(requests) > len(reading.messages):
        expect(_may_be_stricter(reading.end, data), "h11 reads less", reading, data)


def _kept(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [header for header in headers if header[0] not in _NOT_COMPARED]


def _same_target(ours: bytes, theirs: bytes) -> bool:
    if ours == theirs:
        return True
    path = re.sub(rb"^(?i:https?)://[^/?]*", b"", theirs)
    return ours == (path if path.startswith(b"/") else b"/" + path)


def _may_be_stricter(end: str, data: bytes) -> bool:
    """h11 wants one space in a request line, keeps no HTTP/1.0 connection, and knows no empty
    lines before a request."""
    if end == "closed":
        return b" HTTP/1.0\r\n" in data
    return end.startswith(("illegal request line", "no request line received"))


# ------------------------------------------------------------------------------------- answers


def check_answer(how: int, reads: list[bytes]) -> None:
    """An engine sends these, and then closes or resets."""
    method = METHODS[how & 3]
    world = Unwired(LIMITS)
    world.client.feed(post(b"x").replace(b"POST", method))
    (engine,) = world.origin.lines
    sent = b""
    for read in reads:
        if read and not engine.closing:
            sent += read
            engine.feed(read)
    kept = not engine.closing and world.trips[0].outcomes == ["ok"]
    if not kept:
        engine.hang_up(None if how & 4 else ConnectionResetError())
        for line in world.origin.lines[1:]:  # it was sent once more
            line.hang_up()
    client = world.client
    (outcome,) = world.trips[0].outcomes
    _same_answer(client, method, outcome, sent, fin=bool(how & 4))
    world.settle()
    _next_is_its_own(world)
    _leave_nothing(world)


def _same_answer(client: Line, method: bytes, outcome: str, sent: bytes, *, fin: bool) -> None:
    """What the client has is the engine's answer, an error of ours, or visibly not whole."""
    got, wrong, rest = read_answer(client.said, method, closed=client.closing)
    expect(rest == b"", "more than one answer", client.said)
    if outcome != "ok":
        expect(
            got is None or got.start == b"502" or b'data: {"error"' in got.body,
            "a broken answer looks whole",
            got,
        )
        expect(got is not None or client.closing, "no answer, and no end", client.said)
        return
    theirs, unread, _ = read_answer(sent.lstrip(b"\r\n"), method, closed=fin)
    if theirs is None and unread.startswith(_STRICTER):
        return
    expect(got is not None and theirs is not None, "not whole", wrong, unread, got)
    assert got is not None
    assert theirs is not None
    expect((got.start, got.body) == (theirs.start, theirs.body), "another answer", got, theirs)
    kept = [header for header in _kept(got.headers) if header != (b"date", b"")]
    expect(kept == _passed(theirs.headers), "other headers", kept, theirs)


def _passed(headers: Headers) -> list[tuple[bytes, bytes]]:
    named = {
        word.strip().lower()
        for name, value in headers
        if name == b"connection"
        for word in value.split(b",")
    }
    return [header for header in _kept(headers) if header[0] not in named]


def _next_is_its_own(world: Unwired) -> None:
    world.new_client()
    before = len(world.trips)
    world.client.feed(post(b"next"))
    expect(len(world.trips) == before + 1, "the next request is lost")
    line = next(line for line in reversed(world.origin.lines) if not line.closing)
    line.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nnonce2")
    expect(world.client.said.endswith(b"\r\n\r\nnonce2"), "not its answer", world.client.said)


# ---------------------------------------------------------------------------------------- both


def _leave_nothing(world: Unwired) -> None:
    world.leave()
    world.stop()
    server, pool = world.server.stats, world.pool.stats
    left = (
        server.open,
        server.answering,
        server.crashed,
        pool.open,
        world.pool.idle("http://engine:1"),
    )
    expect(left == (0, 0, 0, 0, 0), "something is left", left)
    expect(all(len(trip.outcomes) == 1 for trip in world.trips), "journeys are not closed once")
