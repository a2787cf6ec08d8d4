"""What is written by hand is what protobuf reads, and would write."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inferway_llmd.ext_proc import answers
from inferway_llmd.ext_proc.messages import ProcessingResponse

SIZES = st.one_of(st.integers(0, 400), st.sampled_from([16_383, 16_384, 61_990, 62_000, 2_100_000]))
NAMES = st.text("abcdefghijklmnopqrstuvwxyz-0123456789", min_size=1, max_size=150)
HEADERS = st.lists(st.tuples(NAMES, st.binary(max_size=300)), max_size=5)


def read(answer: bytes) -> Any:
    """By protobuf, which would have written the same but for what is empty."""
    found = ProcessingResponse.FromString(answer)
    again = ProcessingResponse.FromString(found.SerializeToString())
    assert found == again
    return found


def encoded(headers: list[tuple[str, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value) for name, value in headers]


def told(mutation: Any) -> list[tuple[str, bytes]]:
    assert all(option.append_action == 2 for option in mutation.set_headers)
    return [(option.header.key, option.header.raw_value) for option in mutation.set_headers]


@given(size=SIZES, ended=st.booleans())
def test_a_piece_of_an_answer(size: int, ended: bool) -> None:
    found = read(answers.response_piece(b"x" * size, ended=ended))

    piece = found.response_body.response.body_mutation.streamed_response
    assert (len(piece.body), piece.end_of_stream) == (size, ended)


@given(size=SIZES, ended=st.booleans())
def test_a_requests_body(size: int, ended: bool) -> None:
    pieces = [
        read(answer).request_body.response.body_mutation.streamed_response
        for answer in answers.request_pieces(b"x" * size, ended=ended)
    ]

    assert sum(len(piece.body) for piece in pieces) == size
    assert [piece.end_of_stream for piece in pieces] == [*[False] * (len(pieces) - 1), ended]


@given(headers=HEADERS, removed=st.lists(NAMES, max_size=4), length=st.none() | st.integers(0))
def test_a_pick(headers: list[tuple[str, bytes]], removed: list[str], length: int | None) -> None:
    names = [name.encode() for name in removed]
    found = read(answers.request_headers("10.0.0.1:1", encoded(headers), names, length))

    common = found.request_headers.response
    more = [] if length is None else [("content-length", b"%d" % length)]
    destination = ("x-gateway-destination-endpoint", b"10.0.0.1:1")
    assert told(common.header_mutation) == [destination, *headers, *more]
    assert list(common.header_mutation.remove_headers) == removed
    assert common.clear_route_cache
    metadata = found.dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"]
    assert metadata == "10.0.0.1:1"


@given(headers=HEADERS, removed=st.lists(NAMES, max_size=4))
def test_an_answers_head(headers: list[tuple[str, bytes]], removed: list[str]) -> None:
    names = tuple(name.encode() for name in removed)
    found = read(answers.response_headers(tuple(encoded(headers)), names))

    mutation = found.response_headers.response.header_mutation
    assert told(mutation) == headers
    assert list(mutation.remove_headers) == removed


@given(status=st.integers(200, 599), text=st.text())
def test_an_answer_of_our_own(status: int, text: str) -> None:
    reply = read(answers.immediate(status, text)).immediate_response

    assert (reply.status.code, reply.body) == (status, text.encode())
    assert told(reply.headers) == [("content-type", b"text/plain")]


@given(size=SIZES)
def test_a_body_in_another_mode(size: int) -> None:
    found = read(answers.response_body(b"x" * size, changed=True))

    assert len(found.response_body.response.body_mutation.body) == size
    assert read(answers.response_body(b"", changed=False)).WhichOneof("kind") == "response_body"


def test_trailers() -> None:
    assert read(answers.request_trailers()).WhichOneof("kind") == "request_trailers"
    assert read(answers.response_trailers()).WhichOneof("kind") == "response_trailers"
