"""A client's request as handlers see it, and the lines of an answer's head."""

from __future__ import annotations

import re
from functools import lru_cache
from http import HTTPStatus

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
_NO_FIELDS: dict[bytes, bytes] = {}


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


class Request:
    """A complete request: head and whole body. Header names are in lower case."""

    __slots__ = (
        "body",
        "client",
        "fields",
        "headers",
        "http11",
        "id",
        "keep_alive",
        "memory",
        "method",
        "path",
        "query",
        "started",
        "target",
        "upgrade",
    )

    def __init__(self, method: str, target: bytes, started: float) -> None:
        """`target` is as it came; raises BadHttpError if it is none for us."""
        read = read_target if len(target) <= _MAX_KEPT_TARGET_BYTES else read_target.__wrapped__
        parts = read(target)
        if parts[1] == "*" and method != "OPTIONS":
            raise _not_a_path(target)
        self.method = method
        self.target, self.path, self.query = parts
        self.started = started  # time.perf_counter() when the request was complete
        self.headers: Headers = ()
        self.fields = _NO_FIELDS  # the last value of each name
        self.body = b""
        self.memory: BodyMemory | None = None  # that counts the body; None: nobody does
        self.http11 = True
        self.keep_alive = False
        self.upgrade = b""  # the protocol that the connection is to be switched to
        self.id = b""  # x-request-id: the client's, or ours
        self.client = UNIX_CLIENT  # its address, without its port

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
