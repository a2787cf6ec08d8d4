"""Bytes of one connection -> its requests: the parsing half of `connection`.

What is refused is in rule 1 there.
"""

from __future__ import annotations

import re
import time
from collections import deque
from io import BytesIO
from typing import TYPE_CHECKING

import httptools

from inferway.errors import BadHttpError, BodyTooLargeError, RequestError
from inferway.http.message import (
    MAX_HEADERS,
    MAX_TARGET_BYTES,
    REALTIME,
    SMALL_BODY_BYTES,
    UNIX_CLIENT,
    KnownHead,
    Request,
    bodies_full,
    is_host,
    is_request_id,
)
from inferway.upstream.headers import header_block

if TYPE_CHECKING:
    from inferway.http.server import HttpServer

# Of two content types we would take the last, and vLLM takes the first.
_ONCE = (b"content-length", b"transfer-encoding", b"host", b"content-type")
_UPGRADE = frozenset({b"upgrade"})
_OTHER_HTTP = re.compile(rb"(?:(?:h2c?|http/\d\.\d|tls/\d\.\d)(?:\s*,\s*|$))+")
_NO_HEADERS: list[tuple[bytes, bytes]] = []
# Fields that are another's in each request, or that make it another one than it seems.
_NOT_KNOWN = frozenset(
    {b"x-request-id", b"traceparent", b"expect", b"transfer-encoding", b"upgrade"}
)
_MAX_FRAMING = 16  # bytes around each byte of a chunked body, beyond what a head may have


class _BodyNotAwaitedError(Exception):
    """The handler refuses the request for its head."""


class RequestReader:
    """`feed` appends requests to `complete`, until it refuses one or does not await its body: then
    it must not be fed again. The parser refers to it, so that `close` is needed at the end."""

    __slots__ = (
        "_again",
        "_bodies",
        "_body",
        "_body_bytes",
        "_expects",
        "_first",
        "_headers",
        "_key",
        "_length",
        "_parser",
        "_partial",
        "_read",
        "_received",
        "_request",
        "_searched",
        "_server",
        "_target",
        "behind",
        "client",
        "complete",
        "receiving",
    )

    _body: bytes | BytesIO

    def __init__(self, server: HttpServer, complete: deque[Request | RequestError]) -> None:
        self._server = server
        self._bodies = server.bodies
        self.client = UNIX_CLIENT  # until it is known
        self.complete = complete
        self._parser = httptools.HttpRequestParser(self)
        self._read: bytes | memoryview = b""  # what is being parsed
        self._first = False  # it began with the request that is being parsed
        self._again = b""  # a head whose upgrade is ignored
        self._key = b""  # of the head that is being parsed, if it may be known from then on
        self.behind: bytes | None = None  # what has come behind a head whose upgrade is not
        self._expects = False
        self.on_message_begin()
        self.receiving = False  # a request has begun to arrive and is not complete

    def take_known(self, data: bytes) -> bool:
        """Return whether `data` is one whole request whose head has been read before, and take it:
        clients send the same head again and again, but for the length of the body."""
        if self.receiving:
            return False
        known, key, end = self._server.heads.find(data)
        size = len(data) - end
        if known is None or size > SMALL_BODY_BYTES or size > self._server.limits.body_bytes:
            self._key = key
            return False
        bodies = self._bodies
        bodies.held += size
        self.complete.append(
            Request(
                *(known.method, known.target, known.path, known.query, time.perf_counter()),
                *(known.headers, known.fields.copy(), data[end:], bodies, self.client),
                *(self._server.new_request_id(), True, known),
            )
        )
        return True

    def _remember(self, request: Request) -> None:
        """Know the head of a plain request, which came in one piece, from now on."""
        fields = request.fields
        if request.keep_alive and request.http11 and not (_NOT_KNOWN & fields.keys()):
            request.known = KnownHead(
                *(request.method, request.target, request.path, request.query),
                *(request.headers, fields.copy()),
            )
            self._server.heads.add(self._key, request.known)

    def feed(self, data: bytes | memoryview) -> bool:
        """Return whether more may be fed. If not, the last one in `complete` is an error, or a
        request whose body is not awaited, or one after which the connection speaks another
        protocol: then `behind` is what has come of that."""
        self._read, self._searched = data, 0
        self._first = not self.receiving
        behind = None
        try:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as e:
                behind = memoryview(data)[e.args[0] :]
            if behind is not None and self._switches:
                self.behind = bytes(behind)
                return False
            if behind is not None:  # outside the except: a refusal is known by its __context__
                self._ignore_upgrade(behind)
            if self.receiving:
                self._check_part(data)
        except httptools.HttpParserCallbackError as e:
            if isinstance(e.__context__, _BodyNotAwaitedError):
                self._complete_without_body()
            elif isinstance(e.__context__, RequestError):
                self._refuse(e.__context__)
            else:
                raise
        except httptools.HttpParserError as e:
            self._refuse(BadHttpError(f"not an HTTP/1.1 request: {e}"))
        except RequestError as e:
            self._refuse(e)
        else:
            return True
        finally:
            self._read = b""
        return False

    def _refuse(self, error: RequestError) -> None:
        self.drop()
        self.complete.append(error)

    def _complete_without_body(self) -> None:
        request = self._request
        assert request is not None
        self.on_message_complete()
        request.keep_alive = False

    def awaited_bytes(self) -> int:
        """Return the number of bytes that the body under way still lacks, if its head has said how
        long it is."""
        return 0 if self._request is None else max(0, self._length - self._body_bytes)

    def takes_continue(self) -> bool:
        """Return whether the client waits for 100 Continue. It is asked once."""
        expects = self._expects and not self._body_bytes
        if expects:
            self._expects = False
        return expects

    def drop(self) -> None:
        """Discard what has come of a request, which is not needed."""
        if self.receiving:
            self._server.bodies.held -= self._body_bytes
        self.receiving = False
        self._body = b""

    def close(self) -> None:
        """Note that no more bytes will come."""
        self.drop()
        del self._parser  # it refers to us: a body would stay until the garbage collector runs

    @property
    def _switches(self) -> bool:
        """Return whether the last complete request switches the connection to another protocol."""
        last = self.complete[-1] if self.complete else None
        return isinstance(last, Request) and bool(last.upgrade)

    def _read_upgrade(self, request: Request) -> None:
        """Ignore the offer of another version of HTTP, with which some clients begin (RFC 9110
        section 7.8). Another protocol is carried, or refused: as plain HTTP the request would get
        the answer to something else. Raises BadHttpError."""
        offered = request.fields.get(b"upgrade", b"").lower()
        if request.method == "CONNECT" or _OTHER_HTTP.fullmatch(offered):
            self._again = _without_upgrade(request, self._target)
        elif offered == b"websocket" and self._server.carries(request):
            request.upgrade = offered
        else:
            raise BadHttpError(
                f"upgrade {offered[:40].decode('latin-1')!r}: {request.path[:100]} does not carry"
                f" it; {REALTIME} alone carries websocket",
                status=501,
            )

    def _ignore_upgrade(self, rest: memoryview) -> None:
        """Reads the head again without it, and what comes after."""
        while True:
            self._parser = httptools.HttpRequestParser(self)
            self._read, self._again = self._again, b""
            self._first, self._searched = True, 0
            self._parser.feed_data(self._read)
            self._read, self._searched = rest, 0
            try:
                self._parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as e:
                rest = rest[e.args[0] :]

    # ------------------------------------------------------------------- httptools' callbacks

    def on_message_begin(self) -> None:
        self.receiving = True
        self._request: Request | None = None  # once its head is complete
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body = b""
        self._body_bytes = 0
        self._length = 0  # of the body, if the head has said it
        self._received = 0  # bytes: of the head, and then of what follows it
        self._partial: bytes | bytearray = b""  # the head so far, in reads before this one

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._request is None:  # else a trailer: dropped
            self._headers.append((name.lower(), value.rstrip()))

    def on_headers_complete(self) -> None:
        headers = self._headers
        fields = dict(headers)
        if len(headers) > MAX_HEADERS or len(self._read) > MAX_TARGET_BYTES or self._partial:
            self._check_size(headers)
        if len(fields) != len(headers):
            _merge_repeated(headers, fields)
        parser = self._parser
        method = parser.get_method().decode()
        self._request = request = Request.to(method, self._target, 0.0)
        request.headers = headers
        request.fields = fields
        request.client = self.client
        place = len(method) + 1 + len(self._target)
        if self._first and self._read[place : place + 11] == b" HTTP/1.1\r\n":
            self._searched, http11 = place + 11, True
        else:
            request.http11 = http11 = self._is_http11(method)
        host = fields.get(b"host")
        if host is None:
            if http11:
                raise BadHttpError("host: required header is missing")
        elif not is_host(host):
            raise BadHttpError(f"host {host[:100]!r}: expected HOST or HOST:PORT")
        length = fields.get(b"content-length")
        if b"transfer-encoding" in fields:
            _check_coding(request)
            may_be_large = True
        else:
            if length is not None:
                self._length = _check_length(length, self._server.limits.body_bytes)
            may_be_large = self._length > SMALL_BODY_BYTES
        if b"expect" in fields:
            self._expects = _expects_continue(request)
            may_be_large = may_be_large or self._length > 0
        if may_be_large and not self._server.awaits_body(request):
            raise _BodyNotAwaitedError
        self._received = -len(self._read)
        if parser.should_upgrade():
            self._read_upgrade(request)

    def on_body(self, body: bytes) -> None:
        size = len(body)
        bodies = self._bodies
        bodies.held += size
        self._body_bytes = so_far = self._body_bytes + size
        if so_far > self._server.limits.body_bytes:
            raise _body_too_large(self._server.limits.body_bytes)
        if so_far > SMALL_BODY_BYTES and bodies.held > bodies.limit:
            raise bodies_full(bodies.limit)
        if so_far == size:
            self._body = body
            return
        if isinstance(self._body, bytes):
            first, self._body = self._body, BytesIO()
            self._body.write(first)
        self._body.write(body)

    def on_message_complete(self) -> None:
        if self._again:
            return  # it is about to be read again
        request = self._request
        assert request is not None
        if self._body_bytes:
            # BytesIO gives its buffer away, where bytes(bytearray) would copy megabytes.
            body = self._body
            request.body = body if isinstance(body, bytes) else body.getvalue()
            request.memory = self._bodies
            self._body = b""
        request.keep_alive = self._parser.should_keep_alive() and not request.upgrade
        self.receiving = self._first = self._expects = False
        request.started = time.perf_counter()
        given = request.fields.get(b"x-request-id")
        request.id = given if given and is_request_id(given) else self._server.new_request_id()
        self._headers, self._request = _NO_HEADERS, None  # an idle connection keeps nothing
        if self._key:
            if not given:
                self._remember(request)
            self._key = b""
        self.complete.append(request)

    # ----------------------------------------------------------------------------- the checks

    def _is_http11(self, method: str) -> bool:
        """Look up the version in the line of a request that came in parts, or after others, or with
        white space: the line is somewhere. Raises BadHttpError unless it is HTTP, 1.1 or 1.0."""
        before, self._partial = self._partial, b""
        line = rb"%b *%b *(HTTP|RTSP|ICE)/" % (method.encode(), re.escape(self._target))
        found = re.compile(line).search(before + self._read, self._searched)
        if found is None or found[1] != b"HTTP":
            raise BadHttpError("request line: expected METHOD TARGET HTTP/1.1")
        self._searched = max(0, found.end() - len(before))
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise BadHttpError(f"HTTP version {version}: expected 1.1 or 1.0")
        return version == "1.1"

    def _check_size(self, headers: list[tuple[bytes, bytes]]) -> None:
        if len(headers) > MAX_HEADERS:
            raise _too_many_headers(len(headers))
        if len(self._target) > MAX_TARGET_BYTES:
            raise BadHttpError(f"request target: over {MAX_TARGET_BYTES} bytes", status=414)
        limit = self._server.limits.header_bytes
        if len(self._partial) + len(self._read) > limit:
            size = sum([len(name) + len(value) + 4 for name, value in headers])
            if size > limit:
                raise _head_too_large(limit)

    def _check_part(self, data: bytes | memoryview) -> None:
        """A read ended inside a request. Raises BadHttpError."""
        limit = self._server.limits.header_bytes
        if self._request is None:
            if self._first or self._partial:  # else: no telling where in `data` it began
                self._received += len(data)
            self._partial = self._partial or bytearray()
            self._partial += data
            if self._received > limit:
                raise _head_too_large(limit)
            if len(self._headers) > MAX_HEADERS:
                raise _too_many_headers(len(self._headers))
        else:
            self._received += len(data)
            if self._received - _MAX_FRAMING * self._body_bytes > limit:
                raise _head_too_large(limit)


# What a head must not say, beyond what llhttp refuses. Each raises BadHttpError with the status to
# answer. Sections are of RFC 9112, if nothing else is said.


def _merge_repeated(headers: list[tuple[bytes, bytes]], fields: dict[bytes, bytes]) -> None:
    """Some may not be repeated; `connection` is one list (RFC 9110 section 5.3)."""
    names = [name for name, _ in headers]
    for name in _ONCE:
        if names.count(name) > 1:
            raise BadHttpError(f"{name.decode()}: given more than once")
    if names.count(b"connection") > 1:
        fields[b"connection"] = b", ".join([v for name, v in headers if name == b"connection"])


def _check_coding(request: Request) -> None:
    """Sections 6.1 and 6.3: a body whose last coding is not `chunked` has no end."""
    fields = request.fields
    if b"content-length" in fields:
        raise BadHttpError("content-length and transfer-encoding: only one may be given")
    if not request.http11:
        raise BadHttpError("transfer-encoding: not known in HTTP/1.0")
    codings = [coding.strip() for coding in fields[b"transfer-encoding"].lower().split(b",")]
    if codings != [b"chunked"]:
        status = 501 if codings[-1] == b"chunked" else 400
        raise BadHttpError("transfer-encoding: only 'chunked' is known", status=status)


def _check_length(length: bytes, limit: int) -> int:
    """Return the length that the field says. Section 6.2."""
    if not length.isdigit():
        raise BadHttpError(f"content-length {length[:40]!r}: expected digits")
    number = int(length)
    if number > limit:
        raise _body_too_large(limit)
    return number


def _expects_continue(request: Request) -> bool:
    """RFC 9110 section 10.1.1: HTTP/1.0 expects nothing."""
    if not request.http11:
        return False
    if request.fields[b"expect"].lower() != b"100-continue":
        raise BadHttpError("expect: only '100-continue' is known", status=417)
    return True


def _without_upgrade(request: Request, target: bytes) -> bytes:
    """The head as it would be if nothing were offered (RFC 9110 section 7.8)."""
    if request.method == "CONNECT":
        raise BadHttpError("CONNECT: this is no proxy of that kind", status=501)
    lines = header_block(request.headers, _UPGRADE)
    version = b"1.1" if request.http11 else b"1.0"
    return b"%b %b HTTP/%b\r\n%b\r\n" % (request.method.encode(), target, version, lines)


def _too_many_headers(number: int) -> BadHttpError:
    return BadHttpError(f"{number} headers, over the limit of {MAX_HEADERS}", status=431)


def _head_too_large(limit: int) -> BadHttpError:
    return BadHttpError(
        f"header: over the limit of {limit} bytes (limits.header_bytes)", status=431
    )


def _body_too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"body: over the limit of {limit} bytes (limits.body_bytes)")
