"""What a client says and what the engine gets of it, to the byte. RFC 9112, if nothing else is
said. Without sockets, and each case whole as well as byte by byte."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import uvloop
from tests.fuzz.unwired import Unwired
from tests.http.test_malformed import REFUSED

from inferway.config import LimitSettings

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
ID = b"x-request-id: r\r\n"
READ = 65536  # what a socket gives at once
LIMITS = LimitSettings(body_bytes=1000)


def got(
    line: bytes = b"POST /", lines: bytes = b"", body: bytes | None = b"", id_: bytes = ID
) -> bytes:
    """A request as an engine gets it; `body` None: a method without one."""
    length = b"" if body is None else b"content-length: %d\r\n" % len(body)
    return b"%b HTTP/1.1\r\nhost: engine:1\r\n%baccept-encoding: identity\r\n%b%b\r\n%b" % (
        line, lines, id_, length, body or b"",
    )  # fmt: skip


def said(
    line: bytes = b"POST / HTTP/1.1", lines: bytes = b"host: gw\r\n", body: bytes = b""
) -> bytes:
    return b"%b\r\n%bx-request-id: r\r\n\r\n%b" % (line, lines, body)


HOST = b"host: gw\r\n"
TE = HOST + b"transfer-encoding: chunked\r\n"
EVIL = b"GET /evil HTTP/1.1\r\nhost: evil.xy\r\n\r\n"
H2C = HOST + b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"

# what the client says -> what the engine gets
PASSED: dict[str, tuple[bytes, bytes]] = {
    "2.2 empty lines before the request": (b"\r\n\r\n" + said(), got()),
    "2.2 a bare LF before the request": (b"\n" + said(), got()),
    "2.3 HTTP/1.0 becomes 1.1": (said(b"GET /a HTTP/1.0", b""), got(b"GET /a", body=None)),
    "3 spaces between the parts": (said(b"GET   /a   HTTP/1.1"), got(b"GET /a", body=None)),
    "3.2.1 a query stays as it is": (
        said(b"POST /a?b=%20&c=[d]|{e}&f=../g HTTP/1.1"),
        got(b"POST /a?b=%20&c=[d]|{e}&f=../g"),
    ),
    "3.2.1 percent-encodings stay as they are": (
        said(b"POST /v1/%63hat%2Fx HTTP/1.1"),
        got(b"POST /v1/%63hat%2Fx"),
    ),
    "3.2.1 empty segments stay as they are": (said(b"POST //a//b HTTP/1.1"), got(b"POST //a//b")),
    "3.2.1 dots that are no segments": (
        said(b"POST /..a/b./... HTTP/1.1"),
        got(b"POST /..a/b./..."),
    ),
    "3.2.2 absolute-form": (said(b"POST http://gw/a?b HTTP/1.1"), got(b"POST /a?b")),
    "3.2.2 absolute-form, other host": (said(b"POST HTTPS://x.y:80/a HTTP/1.1"), got(b"POST /a")),
    "3.2.2 absolute-form, no path": (said(b"POST http://gw?b HTTP/1.1"), got(b"POST /?b")),
    "3.2.2 absolute-form, IPv6": (said(b"POST http://[::1]:80 HTTP/1.1"), got(b"POST /")),
    "3.2.4 OPTIONS *": (said(b"OPTIONS * HTTP/1.1"), got(b"OPTIONS *", body=None)),
    "12.5.3 no answer may be compressed": (
        said(lines=HOST + b"accept-encoding: gzip, br\r\n"),
        got(),
    ),
    "3.2 an empty host": (said(lines=b"host:\r\n"), got()),
    "3.2 a host with a port": (said(lines=b"host: [fe80::1]:8080\r\n"), got()),
    "5 names lose their case": (said(lines=b"HoSt: gw\r\nX-A: B\r\n"), got(lines=b"x-a: B\r\n")),
    "5.1 values lose their padding": (
        said(lines=HOST + b"x-a: \t b c \t \r\nx-b:\r\n"),
        got(lines=b"x-a: b c\r\nx-b: \r\n"),
    ),
    "5.5 bytes above ASCII stay": (
        said(lines=HOST + b"x-a: \xff\x80\r\n"),
        got(lines=b"x-a: \xff\x80\r\n"),
    ),
    "RFC 9110 5.3 repeated fields stay in order": (
        said(lines=HOST + b"x-a: 1\r\nx-b: 2\r\nx-a: 3\r\n"),
        got(lines=b"x-a: 1\r\nx-b: 2\r\nx-a: 3\r\n"),
    ),
    "6.1 chunked becomes a length": (
        said(lines=TE, body=b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"),
        got(body=b"abc"),
    ),
    "6.1 CHUNKED": (
        said(lines=HOST + b"transfer-encoding: CHUNKED\r\n", body=b"0\r\n\r\n"),
        got(),
    ),
    "6.2 a length with zeros before it": (
        said(lines=HOST + b"content-length: 03\r\n", body=b"abc"),
        got(body=b"abc"),
    ),
    "6.2 a length with padding": (
        said(lines=HOST + b"content-length: \t3 \t\r\n", body=b"abc"),
        got(body=b"abc"),
    ),
    "6.3 no length is no body": (said(), got()),
    "7.1 sizes in capitals and with zeros": (
        said(lines=TE, body=b"00A\r\n0123456789\r\n000\r\n\r\n"),
        got(body=b"0123456789"),
    ),
    "7.1 a chunk that looks like an end": (
        said(lines=TE, body=b"5\r\n0\r\n\r\n\r\n0\r\n\r\n"),
        got(body=b"0\r\n\r\n"),
    ),
    "7.1.1 extensions are dropped": (
        said(lines=TE, body=b'1;a\r\nx\r\n1;b=c;d="e f"\r\ny\r\n0;g\r\n\r\n'),
        got(body=b"xy"),
    ),
    "7.1.2 trailers are dropped": (
        said(lines=TE, body=b"1\r\nx\r\n0\r\nx-a: 1\r\nhost: evil\r\nauthorization: x\r\n\r\n"),
        got(body=b"x"),
    ),
    "RFC 9110 7.6.1 hop-by-hop fields are dropped": (
        said(
            lines=HOST + b"keep-alive: 1\r\nte: trailers\r\ntrailer: x\r\n"
            b"proxy-connection: x\r\nx-a: 1\r\n"
        ),
        got(lines=b"x-a: 1\r\n"),
    ),
    "RFC 9110 7.6.1 fields that Connection names": (
        said(lines=HOST + b"connection: keep-alive, X-A\r\nx-a: 1\r\nx-b: 2\r\n"),
        got(lines=b"x-b: 2\r\n"),
    ),
    "RFC 9110 7.6.1 a short name alone": (
        said(lines=HOST + b"connection: X-A\r\nx-a: 1\r\n"),
        got(),
    ),
    "RFC 9110 7.6.1 Connection in two lines": (
        said(lines=HOST + b"connection: X-A\r\nx-a: 1\r\nconnection: keep-alive\r\n"),
        got(),
    ),
    "RFC 9110 7.8 an upgrade is ignored": (
        said(b"GET /a HTTP/1.1", H2C),
        got(b"GET /a", body=None),
    ),
    "RFC 9110 7.8 an upgrade with a length": (
        said(lines=H2C + b"content-length: 3\r\n", body=b"abc"),
        got(body=b"abc"),
    ),
    "RFC 9110 7.8 an upgrade with chunks": (
        said(lines=H2C + b"transfer-encoding: chunked\r\n", body=b"3\r\nabc\r\n0\r\n\r\n"),
        got(body=b"abc"),
    ),
    "RFC 9110 10.1.1 an expectation ends here": (
        said(lines=HOST + b"expect: 100-continue\r\ncontent-length: 1\r\n", body=b"a"),
        got(body=b"a"),
    ),
    "RFC 9110 10.1.1 an expectation in HTTP/1.0": (
        said(b"POST / HTTP/1.0", b"expect: 200-ok\r\n"),
        got(),
    ),
    "RFC 9110 9.3.8 TRACE": (said(b"TRACE /a HTTP/1.1"), got(b"TRACE /a")),
    "what looks like a request is a body": (
        said(lines=HOST + b"content-length: 37\r\n", body=EVIL),
        got(body=EVIL),
    ),
}


async def exchanged(pieces: list[bytes]) -> tuple[list[bytes], list[bytes], bool]:
    """What the engine gets, request by request, the statuses the client gets, and whether its
    connection is closed then."""
    world = Unwired(LIMITS)
    requests: list[bytes] = []

    def answer_all() -> None:
        while line := next((line for line in world.origin.lines if line.written), None):
            requests.append(line.said)
            line.written.clear()
            line.feed(OK)

    for piece in pieces:
        world.client.feed(piece)
        answer_all()
    text = world.client.said.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
    closed = world.client.closing or world.client.ended
    world.leave()
    world.stop()
    assert [trip.outcomes for trip in world.trips] == [["ok"]] * len(world.trips)
    return requests, re.findall(rb"(?:^|ok|\})HTTP/1\.1 (\d{3}) ", text), closed


def in_pieces(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


@pytest.mark.parametrize("split", [False, True], ids=["whole", "in bytes"])
@pytest.mark.parametrize(("sent", "expected"), PASSED.values(), ids=PASSED)
def test_the_engine_gets_exactly(sent: bytes, expected: bytes, split: bool) -> None:
    requests, statuses, _ = uvloop.run(exchanged(in_pieces(sent, 1) if split else [sent]))

    assert requests == [expected]
    assert statuses == [b"200"]


@pytest.mark.parametrize(("sent", "expected"), PASSED.values(), ids=PASSED)
def test_what_follows_in_the_same_read_is_a_request_of_its_own(
    sent: bytes, expected: bytes
) -> None:
    requests, statuses, closed = uvloop.run(exchanged([sent + said(b"GET /next HTTP/1.1")]))

    if b"HTTP/1.0" in sent:
        assert (requests, len(statuses), closed) == ([expected], 1, True)
        return
    assert requests == [expected, got(b"GET /next", body=None)]
    assert (len(statuses), closed) == (2, False)


@pytest.mark.parametrize("first", [b"", said(b"GET /first HTTP/1.1")], ids=["alone", "second"])
@pytest.mark.parametrize(("status", "sent"), REFUSED.values(), ids=REFUSED)
def test_nothing_of_what_is_refused_reaches_an_engine(
    status: int, sent: bytes, first: bytes
) -> None:
    smuggled = said(b"GET /smuggled HTTP/1.1")

    requests, statuses, closed = uvloop.run(exchanged(in_pieces(first + sent + smuggled, READ)))

    assert requests == ([got(b"GET /first", body=None)] if first else [])
    assert statuses[len(requests) :] == [b"%d" % status]
    assert closed


@pytest.mark.parametrize(
    ("status", "sent"), [c for c in REFUSED.values() if len(c[1]) < 2000],
    ids=[name for name, c in REFUSED.items() if len(c[1]) < 2000],
)  # fmt: skip
def test_what_is_refused_is_refused_byte_by_byte_too(status: int, sent: bytes) -> None:
    requests, statuses, closed = uvloop.run(exchanged(in_pieces(sent + said(), 1)))

    assert (requests, statuses, closed) == ([], [b"%d" % status], True)


def test_the_docs_say_how_many_there_are() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()

    assert f"{len(REFUSED)} refused and {len(PASSED)} normalised forms" in page
