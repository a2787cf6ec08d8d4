"""What is refused: requests with two readings, or over a limit. Sections are of RFC 9112, if
nothing else is said."""

from __future__ import annotations

import asyncio

import pytest
from tests.http.clients import Gate, connected, echo, get, post, serving
from tests.upstream.engines import in_loop, wait_until

from inferway.config import LimitSettings
from inferway.http.message import Request
from inferway.http.responder import Responder

POST = b"POST / HTTP/1.1\r\nhost: gw\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"

REFUSED = {
    # 2.2: message format
    "2.2 bare LF after the request line": (400, b"GET / HTTP/1.1\nhost: gw\r\n\r\n"),
    "2.2 bare LF after a header": (400, b"GET / HTTP/1.1\r\nhost: gw\n\r\n"),
    "2.2 bare LF ends the head": (400, b"GET / HTTP/1.1\r\nhost: gw\r\n\n"),
    "2.2 bare CR in a value": (400, b"GET / HTTP/1.1\r\nhost: gw\r\nx: a\rb: c\r\n\r\n"),
    "2.2 space before the first header": (400, b"GET / HTTP/1.1\r\n host: gw\r\n\r\n"),
    # 3: request line
    "3 no target": (400, b"GET HTTP/1.1\r\nhost: gw\r\n\r\n"),
    "3 unknown method": (400, b"FETCH / HTTP/1.1\r\nhost: gw\r\n\r\n"),
    "3 method in lower case": (400, b"get / HTTP/1.1\r\nhost: gw\r\n\r\n"),
    "3 HTTP/0.9": (400, b"GET /\r\n"),
    "3 HTTP/0.9 in words": (400, b"GET / HTTP/0.9\r\nhost: gw\r\n\r\n"),
    "3 HTTP/2.0": (400, b"GET / HTTP/2.0\r\nhost: gw\r\n\r\n"),
    "3 HTTP/1.2": (400, b"GET / HTTP/1.2\r\nhost: gw\r\n\r\n"),
    "3 HTTP/1.10": (400, b"GET / HTTP/1.10\r\nhost: gw\r\n\r\n"),
    "3 the HTTP/2 preface": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "3 a TLS handshake": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "3 space in the target": (400, b"GET /a b HTTP/1.1\r\nhost: gw\r\n\r\n"),
    "3 NUL in the target": (400, b"GET /\x00 HTTP/1.1\r\nhost: gw\r\n\r\n"),
    "3 UTF-8 in the target": (400, "GET /ä HTTP/1.1\r\nhost: gw\r\n\r\n".encode()),
    "3 authority as target": (400, b"GET gw:80 HTTP/1.1\r\nhost: gw\r\n\r\n"),
    "3 CONNECT": (400, b"CONNECT gw:80 HTTP/1.1\r\nhost: gw\r\n\r\n"),
    "3 another scheme": (400, b"GET ftp://gw/a HTTP/1.1\r\nhost: gw\r\n\r\n"),
    "3 no authority in the target": (400, b"GET http:///a HTTP/1.1\r\nhost: gw\r\n\r\n"),
    "3 GET *": (400, b"GET * HTTP/1.1\r\nhost: gw\r\n\r\n"),
    "3 a long target": (414, b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nhost: gw\r\n\r\n"),
    # 3.2: host
    "3.2 no host": (400, b"GET / HTTP/1.1\r\n\r\n"),
    "3.2 two hosts": (400, b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n"),
    "3.2 the same host twice": (400, b"GET / HTTP/1.1\r\nhost: a\r\nHost: a\r\n\r\n"),
    # 5: fields
    "5 space before the colon": (400, POST + b"content-length : 1\r\n\r\na"),
    "5 no colon": (400, POST + b"content-length\r\n\r\n"),
    "5 no name": (400, POST + b": a\r\n\r\n"),
    "5 obs-fold": (400, POST + b"x: a\r\n b\r\n\r\n"),
    "5 NUL in a name": (400, POST + b"x\x00: a\r\n\r\n"),
    "5 NUL in a value": (400, POST + b"x: a\x00\r\n\r\n"),
    "5 a control character in a value": (400, POST + b"x: a\x01b\r\n\r\n"),
    "5 DEL in a value": (400, POST + b"x: a\x7fb\r\n\r\n"),
    "5 a parenthesis in a name": (400, POST + b"x(: a\r\n\r\n"),
    "5 UTF-8 in a name": (400, POST + "xä: a\r\n\r\n".encode()),
    "5 many headers": (431, POST + b"".join(b"x-%d: 1\r\n" % i for i in range(130)) + b"\r\n"),
    "5 a long header": (431, POST + b"x: " + b"a" * 70_000 + b"\r\n\r\n"),
    "5 a header without end": (431, POST + b"x: " + b"a" * 400_000),
    # 6.1: transfer-encoding
    "6.1 CL and TE": (
        400,
        POST + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    "6.1 TE and CL": (
        400,
        POST + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
    ),
    "8.3 two content types": (
        400,
        POST + b"content-type: application/json\r\n"
        b"content-type: multipart/form-data; boundary=x\r\ncontent-length: 1\r\n\r\na",
    ),
    "6.1 TE twice": (400, POST + b"transfer-encoding: chunked\r\n" * 2 + b"\r\n0\r\n\r\n"),
    "6.1 TE chunked, chunked": (
        400,
        POST + b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    ),
    "6.1 TE not chunked": (400, POST + b"transfer-encoding: gzip\r\n\r\n"),
    "6.1 TE chunked not last": (400, POST + b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n"),
    "6.1 TE gzip, chunked": (501, POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "6.1 TE xchunked": (400, POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n"),
    "6.1 TE with a vertical tab": (400, POST + b"transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n"),
    "6.1 TE in HTTP/1.0": (400, b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
    # 6.2: content-length
    "6.2 two lengths": (400, POST + b"content-length: 1\r\ncontent-length: 2\r\n\r\nab"),
    "6.2 the same length twice": (400, POST + b"content-length: 1\r\ncontent-length: 1\r\n\r\na"),
    "6.2 a list of lengths": (400, POST + b"content-length: 1, 1\r\n\r\na"),
    "6.2 a negative length": (400, POST + b"content-length: -1\r\n\r\n"),
    "6.2 a signed length": (400, POST + b"content-length: +1\r\n\r\na"),
    "6.2 a length in hex": (400, POST + b"content-length: 0x1\r\n\r\na"),
    "6.2 an empty length": (400, POST + b"content-length:\r\n\r\n"),
    "6.2 a length with an underscore": (400, POST + b"content-length: 1_0\r\n\r\n"),
    "6.2 a length with a space": (400, POST + b"content-length: 1 0\r\n\r\n"),
    "6.2 a length over 64 bits": (400, POST + b"content-length: 99999999999999999999\r\n\r\n"),
    "6.2 a body over the limit": (413, POST + b"content-length: 1001\r\n\r\n"),
    # 7.1: chunks
    "7.1 a chunk size that is none": (400, CHUNKED + b"xyz\r\n"),
    "7.1 an empty chunk size": (400, CHUNKED + b"\r\n\r\n"),
    "7.1 a negative chunk size": (400, CHUNKED + b"-1\r\n"),
    "7.1 a chunk size in 0x": (400, CHUNKED + b"0x1\r\na\r\n0\r\n\r\n"),
    "7.1 a chunk size with a space": (400, CHUNKED + b"1 \r\na\r\n0\r\n\r\n"),
    "7.1 a chunk size over 64 bits": (400, CHUNKED + b"10000000000000000\r\n"),
    "7.1 a chunk size with bare LF": (400, CHUNKED + b"1\na\r\n0\r\n\r\n"),
    "7.1 a chunk longer than its size": (400, CHUNKED + b"1\r\nab\r\n0\r\n\r\n"),
    "7.1 a chunk without its CRLF": (400, CHUNKED + b"1\r\na0\r\n\r\n"),
    "7.1 a chunk with bare LF": (400, CHUNKED + b"1\r\na\n0\r\n\r\n"),
    "7.1 chunks over the limit": (413, CHUNKED + b"3e9\r\n" + b"a" * 1001 + b"\r\n"),
    "7.1 a chunk extension without end": (431, CHUNKED + b"1;" + b"a" * 400_000),
    "7.1 a trailer without end": (431, CHUNKED + b"0\r\nx: " + b"a" * 400_000),
    "7.1 an obs-fold in a trailer": (400, CHUNKED + b"0\r\nx: a\r\n b\r\n\r\n"),
    # RFC 9110
    "RFC 9110 10.1.1 an unknown expectation": (417, POST + b"expect: 200-ok\r\n\r\n"),
    # what llhttp alone lets pass
    "2.2 RTSP": (400, b"GET / RTSP/1.1\r\nhost: gw\r\n\r\n"),
    "2.2 RTSP with white space": (400, b"GET /  RTSP/1.0\r\nhost: gw\r\n\r\n"),
    "2.2 ICE": (400, b"SOURCE / ICE/1.0\r\nhost: gw\r\n\r\n"),
    "2.3 HTTP in lower case": (400, b"GET / http/1.1\r\nhost: gw\r\n\r\n"),
    "3 white space before the request line": (400, b" GET / HTTP/1.1\r\nhost: gw\r\n\r\n"),
    "3 white space after the version": (400, b"GET / HTTP/1.1 \r\nhost: gw\r\n\r\n"),
    "3 a tab as separator": (400, b"GET\t/ HTTP/1.1\r\nhost: gw\r\n\r\n"),
    "3 a form feed in the target": (400, b"GET /a\x0cb HTTP/1.1\r\nhost: gw\r\n\r\n"),
    "3 a bare CR in the target": (400, b"GET /a\rb HTTP/1.1\r\nhost: gw\r\n\r\n"),
    "3.2 a fragment": (400, b"GET /a#b HTTP/1.1\r\nhost: gw\r\n\r\n"),
    "3.2 a fragment after a query": (400, b"GET /a?b#c HTTP/1.1\r\nhost: gw\r\n\r\n"),
    "3.2 a quote in the target": (400, b'GET /a"b HTTP/1.1\r\nhost: gw\r\n\r\n'),
    "3.2 a backslash in the path": (400, b"GET /a\\..\\b HTTP/1.1\r\nhost: gw\r\n\r\n"),
    "3.2 a broken percent-encoding": (400, b"GET /a%2 HTTP/1.1\r\nhost: gw\r\n\r\n"),
    "3.2 a query alone": (400, b"GET ?a HTTP/1.1\r\nhost: gw\r\n\r\n"),
    "3.2.1 dot segments": (400, b"GET /v1/../sleep HTTP/1.1\r\nhost: gw\r\n\r\n"),
    "3.2.1 dot segments, encoded": (400, b"GET /v1/%2e%2E/sleep HTTP/1.1\r\nhost: gw\r\n\r\n"),
    "3.2.1 a dot segment at the end": (400, b"GET /v1/. HTTP/1.1\r\nhost: gw\r\n\r\n"),
    "3.2.2 a user in the target": (400, b"GET http://u:p@gw/ HTTP/1.1\r\nhost: gw\r\n\r\n"),
    "3.2.2 a port that is none": (400, b"GET http://gw:x/ HTTP/1.1\r\nhost: gw\r\n\r\n"),
    "3.2.3 CONNECT to a path": (501, b"CONNECT /a HTTP/1.1\r\nhost: gw\r\n\r\n"),
    "3.2.4 an asterisk with more": (400, b"OPTIONS *a HTTP/1.1\r\nhost: gw\r\n\r\n"),
    "3.2 white space in host": (400, b"GET / HTTP/1.1\r\nhost: a b\r\n\r\n"),
    "3.2 a list of hosts": (400, b"GET / HTTP/1.1\r\nhost: a, b\r\n\r\n"),
    "3.2 a path in host": (400, b"GET / HTTP/1.1\r\nhost: gw/a\r\n\r\n"),
    "3.2 a user in host": (400, b"GET / HTTP/1.1\r\nhost: u@gw\r\n\r\n"),
    "3.2 a host beyond ASCII": (400, "GET / HTTP/1.1\r\nhost: gä\r\n\r\n".encode()),
    "3.2 a bad host in HTTP/1.0": (400, b"GET / HTTP/1.0\r\nhost: a/b\r\n\r\n"),
    "5 a tab before the colon": (400, POST + b"x\t: a\r\n\r\n"),
    "5.2 an obs-fold with a tab": (400, POST + b"x: a\r\n\tb\r\n\r\n"),
    "5.2 an obs-fold in a coding": (400, POST + b"transfer-encoding: chun\r\n ked\r\n\r\n"),
    "5.5 a vertical tab in a value": (400, POST + b"x: a\x0bb\r\n\r\n"),
    "6.1 an empty coding": (400, POST + b"transfer-encoding:\r\n\r\n"),
    "6.1 an empty coding first": (501, POST + b"transfer-encoding: ,chunked\r\n\r\n0\r\n\r\n"),
    "6.1 an empty coding last": (400, POST + b"transfer-encoding: chunked,\r\n\r\n0\r\n\r\n"),
    "6.1 chunked with a parameter": (400, POST + b"transfer-encoding: chunked;a=b\r\n\r\n"),
    "6.1 chunked in quotes": (400, POST + b'transfer-encoding: "chunked"\r\n\r\n'),
    "6.1 identity": (400, POST + b"transfer-encoding: identity\r\n\r\n"),
    "6.1 TE in two lines": (
        400,
        POST + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n",
    ),
    "6.3 TE hidden by a folded length": (
        400,
        POST + b"content-length:\r\n 5\r\ntransfer-encoding: chunked\r\n\r\n",
    ),
    "7.1 a signed chunk size": (400, CHUNKED + b"+1\r\na\r\n0\r\n\r\n"),
    "7.1 a chunk size with an underscore": (400, CHUNKED + b"1_0\r\na\r\n0\r\n\r\n"),
    "7.1 white space before a chunk size": (400, CHUNKED + b" 1\r\na\r\n0\r\n\r\n"),
    "7.1 a chunk size ended by CR": (400, CHUNKED + b"1\ra\r\n0\r\n\r\n"),
    "7.1.1 an extension with bare LF": (400, CHUNKED + b"1;a\nx\r\n0\r\n\r\n"),
    "7.1.1 an extension with bare CR": (400, CHUNKED + b"1;a\rb\r\nx\r\n0\r\n\r\n"),
    "7.1.1 an extension with NUL": (400, CHUNKED + b"1;a\x00\r\nx\r\n0\r\n\r\n"),
    "7.1.1 a CRLF in a quoted extension": (400, CHUNKED + b'1;a="\r\n"\r\nx\r\n0\r\n\r\n'),
    "7.1.1 an extension without a name": (400, CHUNKED + b"1;\r\nx\r\n0\r\n\r\n"),
    "7.1.1 extensions that outweigh their chunks": (
        431,
        CHUNKED + b"".join(b"1;%b\r\na\r\n" % (b"a" * 1000) for _ in range(900)),
    ),
    "7.1.2 a length as trailer": (400, CHUNKED + b"0\r\ncontent-length: 5\r\n\r\n"),
    "7.1.2 a coding as trailer": (400, CHUNKED + b"0\r\ntransfer-encoding: chunked\r\n\r\n"),
    "7.1.2 a trailer with bare LF": (400, CHUNKED + b"0\r\nx: a\n\r\n"),
    "7.1.2 white space in a trailer's name": (400, CHUNKED + b"0\r\nx : a\r\n\r\n"),
    "7.1.2 the end with bare LF": (400, CHUNKED + b"0\r\n\n"),
    "RFC 9110 7.8 an upgrade that cannot be read": (
        400,
        POST + b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 1, 1\r\n\r\na",
    ),
}


@pytest.mark.parametrize(("status", "sent"), REFUSED.values(), ids=REFUSED)
@in_loop
async def test_refused(status: int, sent: bytes) -> None:
    handled: list[Request] = []

    async def handler(request: Request, responder: Responder) -> None:
        handled.append(request)
        responder.send(200, (), b"")

    limits = LimitSettings(body_bytes=1000)
    async with serving(handler, limits=limits) as server, connected(server) as client:
        client.writer.write(sent + get(b"/smuggled"))
        answer = await client.answer()

        assert (answer.status, handled) == (status, [])
        assert answer.values(b"connection") == [b"close"]
        assert answer.values(b"content-type") == [b"application/json"]
        assert await client.closed() == b""
        assert server.stats.refused == 1


@in_loop
async def test_what_was_complete_before_is_still_answered_and_in_order() -> None:
    gate = Gate()
    async with serving(gate) as server, connected(server) as client:
        await client.send(get(b"/good") + b"bad\r\n\r\n")
        await wait_until(lambda: gate.waiting == 1)
        gate.open.set()

        assert (await client.answer()).body == b"GET /good "
        assert (await client.answer()).status == 400


@in_loop
async def test_a_refusal_reaches_a_client_who_is_still_sending() -> None:
    limits = LimitSettings(body_bytes=1000)
    async with serving(echo, limits=limits) as server, connected(server) as client:
        await client.send(post(b"x" * 3_000_000))

        assert (await client.answer()).status == 413


@in_loop
async def test_what_follows_a_request_to_close_is_not_a_request() -> None:
    async with serving(echo) as server, connected(server) as client:
        await client.send(get(b"/a", b"connection: close") + get(b"/b"))

        assert (await client.answer()).body == b"GET /a "
        assert await client.closed() == b""
        assert server.stats.requests == 1


@pytest.mark.parametrize(
    "sent",
    [
        b"\r\n" + get(),  # RFC 9112 section 2.2: a server should ignore it
        get().replace(b"host:", b"HOST:"),
        get().replace(b"GET ", b"GET  "),
        get(b"/", b"x-empty:", b"x-next: 1"),
        get(b"/", b"x: \t a \t "),
        get(b"/", "x: ä".encode()),
        get(b"/", b"x: 1", b"x: 2"),
        CHUNKED + b"1;a=b\r\na\r\n0\r\n\r\n",
        CHUNKED + b"A\r\n0123456789\r\n00\r\n\r\n",
        POST + b"transfer-encoding: Chunked\r\n\r\n0\r\n\r\n",
        POST + b"content-length: 01\r\n\r\na",
        b"OPTIONS * HTTP/1.1\r\nhost: gw\r\n\r\n",
    ],
)
@in_loop
async def test_unusual_but_clear_requests_are_answered(sent: bytes) -> None:
    async with serving(echo) as server, connected(server) as client:
        assert (await client.ask(sent)).status == 200
        assert (await client.ask(get(b"/next"))).body == b"GET /next "


@in_loop
async def test_header_names_are_in_lower_case_and_values_without_their_padding() -> None:
    seen: list[Request] = []

    async def handler(request: Request, responder: Responder) -> None:
        seen.append(request)
        responder.send(200, (), b"")

    async with serving(handler) as server, connected(server) as client:
        await client.ask(get(b"/", b"X-A: \t a b \t ", b"X-Empty:", b"X-B: 1"))

    assert seen[0].headers[1:] == [(b"x-a", b"a b"), (b"x-empty", b""), (b"x-b", b"1")]
    assert seen[0].head.headers == seen[0].headers


@in_loop
async def test_a_request_of_many_small_chunks_is_not_taken_for_a_long_head() -> None:
    async with serving(echo) as server, connected(server) as client:
        await client.send(CHUNKED)
        for _ in range(20):
            await client.send(b"1\r\na\r\n" * 10_000)
            await asyncio.sleep(0)

        assert len((await client.ask(b"0\r\n\r\n")).body) == len(b"POST / ") + 200_000
