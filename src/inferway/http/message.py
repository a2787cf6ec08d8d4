"""A client's request as handlers see it, and the lines of an answer's head."""

from __future__ import annotations

import re
from functools import lru_cache
from http import HTTPStatus

import msgspec

from inferway.errors import BadHttpError, BodiesFullError
from inferway.model import Headers, RequestHead

MAX_HEADERS = 128
MAX_TARGET_BYTES = 16 * 1024
UNIX_CLIENT = "unix"  # the address of clients of a Unix socket, which have none

STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}


def status_line(status: int) -> bytes:
    """Return the status line for a status that is not registered, without a reason phrase."""
    return b"HTTP/1.1 %d \r\n" % status


# RFC 3986: path characters and percent-encodings; in a query also what browsers leave as it is
# (WHATWG URL). A dot segment, plain or encoded, names another path to whoever resolves it.
_TARGET = re.compile(
    rb"(?:(?i:https?)://(?P<authority>[^/?]+))?"
    rb"(?P<path>(?:/(?:[\w.~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*)*)"
    rb"(?:\?(?P<query>(?:[\w.~!$&'()*+,;=:@/?\[\]{}|\\^`-]|%[0-9A-Fa-f]{2})*))?"
)
_DOTS = re.compile(rb"/(?:\.|%2[eE]){1,2}(?:/|$)")
_HOST = re.compile(
    rb"(?:\[[0-9A-Za-z:.~_%-]+\]|(?:[\w.~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]{0,5})?"
)
_MAX_HOST_BYTES = 300
_MAX_KEPT_TARGET_BYTES = 256
_REQUEST_ID = re.compile(rb"[!-~]{1,128}")
_ASTERISK = (b"*", "*", "")


CONTENT_ENCODING = b"content-encoding"
REALTIME = "/v1/realtime"  # the path whose connections may switch to the WebSocket protocol
# A body up to this size is received whatever its head says, and however many are held already.
SMALL_BODY_BYTES = 64 * 1024


def bodies_full(limit: int) -> BodiesFullError:
    """Return the refusal of a body for which there is no room beside the others."""
    return BodiesFullError(
        f"body: the bodies of all requests are over the limit of {limit} bytes"
        " (limits.bodies_bytes); try again"
    )


class BodyMemory:
    """The number of bytes of request bodies that a server holds, complete or not."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.held = 0
        self.limit = limit


class KnownHead(msgspec.Struct, eq=False):
    """A request's head that many requests have: what has been read of it, and what an engine gets.
    Only the length of the body differs."""

    method: str
    target: bytes
    path: str
    query: str
    headers: Headers
    fields: dict[bytes, bytes]
    lines: bytes | None = None  # that travel on, as http.headers has them; None: not made yet


class Request(msgspec.Struct, eq=False):
    """A complete request: head and whole body. Header names are in lower case."""

    method: str
    target: bytes  # that the engine gets
    path: str
    query: str
    started: float  # time.perf_counter() when the request was complete
    headers: Headers = ()
    fields: dict[bytes, bytes] = {}  # the last value of each name
    body: bytes = b""
    memory: BodyMemory | None = None  # that counts the body; None: it is not counted
    client: str = UNIX_CLIENT  # its address, without its port
    id: bytes = b""  # x-request-id: the client's, or ours
    keep_alive: bool = False
    known: KnownHead | None = None  # that has the same headers, but for the body's length
    http11: bool = True
    upgrade: bytes = b""  # the protocol that the connection is to be switched to

    @classmethod
    def to(cls, method: str, target: bytes, started: float) -> Request:
        """Return a request whose target is as it came. Raises BadHttpError if it is none for us."""
        read = read_target if len(target) <= _MAX_KEPT_TARGET_BYTES else read_target.__wrapped__
        target, path, query = read(target)
        if path == "*" and method != "OPTIONS":
            raise _not_a_path(target)
        return cls(method, target, path, query, started)

    def forget_body(self) -> None:
        """Release the body, which is not needed again."""
        if self.memory is not None:
            self.memory.held -= len(self.body)
        self.body = b""

    def replace_body(self, body: bytes) -> None:
        """Take the body as it is without its Content-Encoding, which goes. Raises BodiesFullError
        if there is no room for it."""
        memory = self.memory
        if memory is not None:
            more = len(body) - len(self.body)
            if more > 0 and len(body) > SMALL_BODY_BYTES and memory.held + more > memory.limit:
                raise bodies_full(memory.limit)
            memory.held += more
        self.body = body
        self.headers = [header for header in self.headers if header[0] != CONTENT_ENCODING]
        self.fields = {n: v for n, v in self.fields.items() if n != CONTENT_ENCODING}

    @property
    def request_id(self) -> str:
        """The id of the request as text."""
        return self.id.decode()

    @property
    def head(self) -> RequestHead:
        """The request without its body, for the rooms that know no HTTP."""
        return RequestHead(self.method, self.path, self.query, self.headers)


@lru_cache(maxsize=128)
def read_target(target: bytes) -> tuple[bytes, str, str]:
    """Return the path and the query that the engine gets. Absolute-form becomes origin-form (RFC
    9112 section 3.2), and the host in it is dropped. Raises BadHttpError."""
    if target == b"*":
        return _ASTERISK
    found = _TARGET.fullmatch(target)
    if found is None or not (found["path"] or found["authority"]):
        raise _not_a_path(target)
    authority, path, query = found["authority"], found["path"] or b"/", found["query"]
    if authority is not None and not is_host(authority):
        raise BadHttpError(f"request target {target[:100]!r}: expected http://HOST:PORT/PATH")
    if _DOTS.search(path):
        raise BadHttpError(f"request target {target[:100]!r}: resolve '.' and '..' first")
    whole = path if query is None else path + b"?" + query
    return whole, path.decode("ascii"), (query or b"").decode("ascii")


def _not_a_path(target: bytes) -> BadHttpError:
    return BadHttpError(
        f"request target {target[:100]!r}: expected a path, like '/v1/models', with all but URI"
        " characters percent-encoded"
    )


@lru_cache(maxsize=128)
def is_host(value: bytes) -> bool:
    """Return whether `value` is a host and maybe a port (RFC 9110 section 7.2; empty is
    allowed)."""
    return len(value) <= _MAX_HOST_BYTES and _HOST.fullmatch(value) is not None


def is_request_id(value: bytes) -> bool:
    """Return whether a client's x-request-id can be passed on and logged as it is."""
    return _REQUEST_ID.fullmatch(value) is not None
