"""What a request's head must not say, beyond what llhttp refuses. Each raises BadHttpError with the
status to answer. Sections are of RFC 9112, if nothing else is said."""

from __future__ import annotations

from inferway.errors import BadHttpError, BodiesFullError, BodyTooLargeError
from inferway.frontends.http.message import MAX_HEADERS, Request
from inferway.upstream.headers import header_block

# Of two content types we would take the last, and vLLM takes the first.
_ONCE = (b"content-length", b"transfer-encoding", b"host", b"content-type")
# A body up to this size is received whatever its head says, and however many are held already.
SMALL_BODY_BYTES = 64 * 1024
_UPGRADE = frozenset({b"upgrade"})


def merge_repeated(headers: list[tuple[bytes, bytes]], fields: dict[bytes, bytes]) -> None:
    """Some may not be repeated; `connection` is one list (RFC 9110 section 5.3)."""
    names = [name for name, _ in headers]
    for name in _ONCE:
        if names.count(name) > 1:
            raise BadHttpError(f"{name.decode()}: given more than once")
    if names.count(b"connection") > 1:
        fields[b"connection"] = b", ".join([v for name, v in headers if name == b"connection"])


def check_coding(request: Request) -> None:
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


def check_length(length: bytes, limit: int) -> int:
    """What it says. Section 6.2."""
    if not length.isdigit():
        raise BadHttpError(f"content-length {length[:40]!r}: expected digits")
    number = int(length)
    if number > limit:
        raise body_too_large(limit)
    return number


def expects_continue(request: Request) -> bool:
    """RFC 9110 section 10.1.1: HTTP/1.0 expects nothing."""
    if not request.http11:
        return False
    if request.fields[b"expect"].lower() != b"100-continue":
        raise BadHttpError("expect: only '100-continue' is known", status=417)
    return True


def without_upgrade(request: Request, target: bytes) -> bytes:
    """The head as it would be if nothing were offered (RFC 9110 section 7.8)."""
    if request.method == "CONNECT":
        raise BadHttpError("CONNECT: this is no proxy of that kind", status=501)
    lines = header_block(request.headers, _UPGRADE)
    version = b"1.1" if request.http11 else b"1.0"
    return b"%b %b HTTP/%b\r\n%b\r\n" % (request.method.encode(), target, version, lines)


def too_many_headers(number: int) -> BadHttpError:
    return BadHttpError(f"{number} headers, over the limit of {MAX_HEADERS}", status=431)


def head_too_large(limit: int) -> BadHttpError:
    return BadHttpError(
        f"header: over the limit of {limit} bytes (limits.header_bytes)", status=431
    )


def body_too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"body: over the limit of {limit} bytes (limits.body_bytes)")


def bodies_full(limit: int) -> BodiesFullError:
    return BodiesFullError(
        f"body: the bodies of all requests are over the limit of {limit} bytes"
        " (limits.bodies_bytes); try again"
    )
