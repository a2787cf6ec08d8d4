"""A client's request as handlers see it, and the lines of an answer's head."""

from __future__ import annotations

from http import HTTPStatus

from inferway.errors import BadHttpError
from inferway.model import Headers, RequestHead

MAX_HEADERS = 128
MAX_TARGET_BYTES = 16 * 1024
MAX_REQUEST_ID_BYTES = 128

STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}


def status_line(status: int) -> bytes:
    """For a status that is not registered: without a reason phrase."""
    return b"HTTP/1.1 %d \r\n" % status


class Request:
    """A complete request: head and whole body. Header names are in lower case."""

    __slots__ = (
        "body",
        "fields",
        "headers",
        "http11",
        "id",
        "keep_alive",
        "method",
        "path",
        "query",
        "started",
        "target",
    )

    def __init__(self, method: str, target: bytes, started: float) -> None:
        """`target` is as it came; raises BadHttpError if it is none for us."""
        self.method = method
        self.target = target if target.startswith(b"/") else _origin_form(method, target)
        self.started = started  # time.perf_counter() when the request was complete
        try:
            self.path, _, self.query = self.target.decode("ascii").partition("?")
        except UnicodeDecodeError:
            raise BadHttpError("request target: expected ASCII, percent-encode the rest") from None
        self.headers: Headers = ()
        self.fields: dict[bytes, bytes] = {}  # the last value of each name
        self.body = b""
        self.http11 = True
        self.keep_alive = False
        self.id = b""  # x-request-id: the client's, or ours

    @property
    def request_id(self) -> str:
        """`id` as text."""
        return self.id.decode()

    @property
    def head(self) -> RequestHead:
        """The request without its body, for the rooms that know no HTTP."""
        return RequestHead(self.method, self.path, self.query, self.headers)


def _origin_form(method: str, target: bytes) -> bytes:
    """RFC 9112 section 3.2: absolute-form becomes origin-form, the rest is not for us."""
    lowered = target[:8].lower()
    for scheme in (b"http://", b"https://"):
        if lowered.startswith(scheme):
            rest = target[len(scheme) :]
            authority, slash, path = rest.partition(b"/")
            if authority and b"?" not in authority:
                return slash + path or b"/"
    if target == b"*" and method == "OPTIONS":
        return target
    raise BadHttpError(f"request target {target[:100]!r}: expected a path, like '/v1/models'")


def is_request_id(value: bytes) -> bool:
    """Whether a client's x-request-id can be passed on and logged as it is."""
    return 0 < len(value) <= MAX_REQUEST_ID_BYTES and value.isascii() and b" " not in value
