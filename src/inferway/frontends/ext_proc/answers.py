"""What Envoy is answered. Pure: values in, messages out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from inferway.errors import FleetError, InferwayError, RequestError, SaturatedError
from inferway.frontends.ext_proc.messages import ProcessingResponse, set_header
from inferway.frontends.ext_proc.reading import DESTINATION, LOAD_BALANCER
from inferway.model import Headers

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


def request_headers(
    addresses: str, told: Headers, removed: Iterable[bytes], length: int | None
) -> Any:
    """The pick: the same in the header and in the metadata. `told` are headers that change;
    `length` is the body's, None without one."""
    answer = ProcessingResponse()
    common = answer.request_headers.response
    common.clear_route_cache = True
    mutation = common.header_mutation
    set_header(mutation, DESTINATION.encode(), addresses.encode())
    for name, value in told:
        set_header(mutation, name, value)
    if length is not None:
        set_header(mutation, b"content-length", b"%d" % length)
    mutation.remove_headers.extend(name.decode("latin-1") for name in removed)
    answer.dynamic_metadata.MergeFrom(_told_in_metadata(addresses))
    return answer


@lru_cache(maxsize=4096)
def _told_in_metadata(addresses: str) -> Any:
    """Made once for each: a Struct takes as long as all the rest of the answer."""
    answer = ProcessingResponse()
    answer.dynamic_metadata.update({LOAD_BALANCER: {DESTINATION: addresses}})
    return answer.dynamic_metadata


def request_pieces(body: bytes, *, ended: bool) -> Iterator[Any]:
    """The body, in one piece at least. `ended`: no trailers follow."""
    last = max(len(body) - 1, 0) // MAX_PIECE_BYTES
    for number in range(last + 1):
        answer = ProcessingResponse()
        piece = answer.request_body.response.body_mutation.streamed_response
        piece.body = body[number * MAX_PIECE_BYTES : (number + 1) * MAX_PIECE_BYTES]
        piece.end_of_stream = ended and number == last
        yield answer


def request_trailers() -> Any:
    answer = ProcessingResponse()
    answer.request_trailers.SetInParent()
    return answer


def response_headers(told: Headers, removed: Iterable[bytes] = ()) -> Any:
    answer = ProcessingResponse()
    mutation = answer.response_headers.response.header_mutation
    for name, value in told:
        set_header(mutation, name, value)
    mutation.remove_headers.extend(name.decode("latin-1") for name in removed)
    return answer


def response_piece(body: bytes, *, ended: bool) -> Any:
    answer = ProcessingResponse()
    piece = answer.response_body.response.body_mutation.streamed_response
    piece.body = body
    piece.end_of_stream = ended
    return answer


def response_body(body: bytes, *, changed: bool) -> Any:
    """Where the proxy sends bodies in another mode than full duplex."""
    answer = ProcessingResponse()
    if changed:
        answer.response_body.response.body_mutation.body = body
    else:
        answer.response_body.SetInParent()
    return answer


def response_trailers() -> Any:
    answer = ProcessingResponse()
    answer.response_trailers.SetInParent()
    return answer


def refusal(error: InferwayError) -> Any:
    """In llm-d's words, so that what reads them goes on reading."""
    status = error.status if isinstance(error, RequestError | FleetError) else 500
    saturated = isinstance(error, SaturatedError)
    words = _SATURATED if saturated else str(error)
    answer = immediate(status, f"inference error: {_CODES.get(status, 'Internal')} - {words}")
    if saturated:
        set_header(answer.immediate_response.headers, _DROPPED, b"rejected-saturated")
    return answer


def immediate(status: int, text: str) -> Any:
    """The client's answer, instead of an engine's."""
    answer = ProcessingResponse()
    answer.immediate_response.status.code = status
    answer.immediate_response.body = text.encode()
    set_header(answer.immediate_response.headers, b"content-type", b"text/plain")
    return answer
