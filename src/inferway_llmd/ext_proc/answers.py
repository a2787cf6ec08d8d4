"""Answers to Envoy. Pure: values in, ProcessingResponses out, as bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from inferway.errors import FleetError, InferwayError, RequestError, SaturatedError
from inferway.model import Headers
from inferway_llmd.ext_proc.messages import ProcessingResponse
from inferway_llmd.ext_proc.reading import DESTINATION, LOAD_BALANCER


# Protobuf by hand, for fields of numbers below 16: building a message of upb's costs several times
# its bytes.
def varint(number: int) -> bytes:
    if number < 128:
        return _ONE_BYTE[number]
    written = bytearray()
    while number >= 128:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


_ONE_BYTE = [bytes([number]) for number in range(128)]


def field(number: int, payload: bytes) -> bytes:
    """Return a field with a message, a string or bytes; also an empty one is written."""
    size = len(payload)
    if size < 128:
        return b"%c%c%b" % (number << 3 | 2, size, payload)
    return b"%c%b%b" % (number << 3 | 2, varint(size), payload)


def number(number: int, value: int) -> bytes:
    """Return a field with an integer, an enum or a bool; 0 is not written."""
    return b"%c%b" % (number << 3, varint(value)) if value else b""


@lru_cache(maxsize=4096)
def before(size: int, more: int, *numbers: int) -> bytes:
    """Return the bytes that precede a field of `size` bytes in nested messages; `numbers` are the
    fields' numbers from outside. `more` bytes follow the field in the innermost message."""
    heads = b""
    for each in reversed(numbers):
        head = b"%c%b" % (each << 3 | 2, varint(size))
        heads = head + heads
        size += len(head) + more
        more = 0
    return heads


# Some implementations take no more than 64 KiB in a piece (GIE #854); Envoy takes any.
MAX_PIECE_BYTES = 62_000

_DROPPED = b"x-llm-d-request-dropped-reason"
_SATURATED = "system saturated, sheddable request dropped"

# status -> llm-d's word for it (pkg/common/error)
_CODES = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    413: "PayloadTooLarge",
    429: "ResourceExhausted",
    503: "ServiceUnavailable",
}

# Fields' numbers (messages.py): which answer, ...
_REQUEST_HEADERS, _RESPONSE_HEADERS, _REQUEST_BODY, _RESPONSE_BODY = 1, 2, 3, 4
_REQUEST_TRAILERS, _RESPONSE_TRAILERS, _IMMEDIATE, _DYNAMIC_METADATA = 5, 6, 7, 8
# ... CommonResponse's, and what stands in them
_RESPONSE = 1
_HEADER_MUTATION, _BODY_MUTATION, _CLEAR_ROUTE_CACHE = 2, 3, 5
_SET_HEADERS, _REMOVE_HEADERS = 1, 2
_BODY, _STREAMED = 1, 3

# envoy.config.core.v3.HeaderValueOption: Envoy overwrites whatever is said; other proxies append
# unless they are told.
_HEADER, _KEY, _RAW_VALUE = 1, 1, 3
_OVERWRITE_IF_EXISTS_OR_ADD = number(3, 2)

_END_OF_STREAM = number(2, 1)


def set_header(name: bytes, value: bytes) -> bytes:
    """The header has this value alone. `raw_value` only: Envoy refuses both."""
    header = field(_HEADER, field(_KEY, name) + field(_RAW_VALUE, value))
    return field(_SET_HEADERS, header + _OVERWRITE_IF_EXISTS_OR_ADD)


def request_headers(
    addresses: str, told: Headers, removed: Sequence[bytes], length: int | None
) -> bytes:
    """Return the pick, the same in the header and in the metadata. `told` are headers that change;
    `length` is the body's, None without one."""
    destination, metadata = _destination(addresses)
    mutation = destination + b"".join([set_header(name, value) for name, value in told])
    if length is not None:
        mutation += set_header(b"content-length", b"%d" % length)
    if removed:
        mutation += _removals(removed)
    common = field(_HEADER_MUTATION, mutation) + number(_CLEAR_ROUTE_CACHE, 1)
    return field(_REQUEST_HEADERS, field(_RESPONSE, common)) + metadata


def _removals(names: Sequence[bytes]) -> bytes:
    return b"".join([field(_REMOVE_HEADERS, name) for name in names])


@lru_cache(maxsize=4096)
def _destination(addresses: str) -> tuple[bytes, bytes]:
    return (
        set_header(DESTINATION.encode(), addresses.encode()),
        load_balancer_metadata({DESTINATION: addresses}),
    )


def load_balancer_metadata(values: Mapping[str, str | float]) -> bytes:
    """Return the dynamic metadata of an answer, for the proxy's load balancer. It is put behind the
    answer."""
    answer = ProcessingResponse()
    answer.dynamic_metadata.update({LOAD_BALANCER: dict(values)})
    written: bytes = answer.SerializeToString()
    return written


def request_pieces(body: bytes, *, ended: bool) -> Iterator[bytes]:
    """Yield the body, in one piece at least. `ended`: no trailers follow."""
    if len(body) <= MAX_PIECE_BYTES:
        yield _piece(_REQUEST_BODY, body, ended)
        return
    last = (len(body) - 1) // MAX_PIECE_BYTES
    for i in range(last + 1):
        piece = body[i * MAX_PIECE_BYTES : (i + 1) * MAX_PIECE_BYTES]
        yield _piece(_REQUEST_BODY, piece, ended and i == last)


def _piece(which: int, body: bytes, ended: bool) -> bytes:
    path = (which, _RESPONSE, _BODY_MUTATION, _STREAMED, _BODY)
    if not ended:
        return before(len(body), 0, *path) + body
    return b"%b%b%b" % (before(len(body), len(_END_OF_STREAM), *path), body, _END_OF_STREAM)


def request_trailers() -> bytes:
    return field(_REQUEST_TRAILERS, b"")


@lru_cache(maxsize=4096)
def response_headers(
    told: tuple[tuple[bytes, bytes], ...], removed: tuple[bytes, ...] = ()
) -> bytes:
    """Return the answer to an answer's head. Engines and numbers of blocks are few."""
    mutation = b"".join([set_header(name, value) for name, value in told]) + _removals(removed)
    common = field(_HEADER_MUTATION, mutation)
    return field(_RESPONSE_HEADERS, field(_RESPONSE, common))


def response_piece(body: bytes, *, ended: bool) -> bytes:
    return _piece(_RESPONSE_BODY, body, ended)


def response_body(body: bytes, *, changed: bool) -> bytes:
    """Return the answer to a piece of a body, for a proxy that sends bodies in another mode than
    full duplex."""
    if not changed:
        return field(_RESPONSE_BODY, b"")
    return before(len(body), 0, _RESPONSE_BODY, _RESPONSE, _BODY_MUTATION, _BODY) + body


def response_trailers() -> bytes:
    return field(_RESPONSE_TRAILERS, b"")


def refusal(error: InferwayError) -> bytes:
    """Return a refusal in llm-d's words, so that programs that read those keep working."""
    saturated = isinstance(error, SaturatedError)
    words = _SATURATED if saturated else str(error)
    status = status_of_refusal(error)
    return immediate(
        status,
        f"inference error: {_CODES.get(status, 'Internal')} - {words}",
        [(_DROPPED, b"rejected-saturated")] if saturated else (),
    )


def status_of_refusal(error: InferwayError) -> int:
    return error.status if isinstance(error, RequestError | FleetError) else 500


def immediate(status: int, text: str, told: Headers = ()) -> bytes:
    """Return an answer that Envoy gives the client itself, instead of an engine's."""
    headers = [(b"content-type", b"text/plain"), *told]
    mutation = b"".join([set_header(name, value) for name, value in headers])
    said = field(1, number(1, status)) + field(2, mutation) + field(3, text.encode())
    return field(_IMMEDIATE, said)
