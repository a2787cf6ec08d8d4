"""A rewritten model's name in the answer."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from inferway.openai_api.edits import ModelRenamer

DELTA = rb'{"id":"1","model":"m","choices":[{"delta":{"content":"\"model\":"}}]}'
EVENTS = (
    b": keep-alive\n\ndata: " + DELTA + b"\r\n\r\n"
    b'event: message_start\ndata: {"type":"message_start","message":{"model":"m","id":"1"}}\n\n'
    b'event: response.created\ndata: {"response":{"model":"m"}}\n\ndata: [DONE]\n\n'
)
JSON = b' {"id":"1",\n"model": "m","choices":[{"text":"the \\"model\\":\\"m\\""}]}\n'


def through(names: ModelRenamer, chunks: Iterable[bytes]) -> bytes:
    return b"".join([*map(names.feed, chunks), names.end()])


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    borders = [0, *sorted(places), len(data)]
    return [data[a:b] for a, b in pairwise(borders)]


@given(st.sampled_from([EVENTS, JSON]), st.sets(st.integers(0, len(EVENTS))))
def test_wherever_an_answer_is_cut_only_its_models_name_changes(
    answer: bytes, places: set[int]
) -> None:
    chunks = cut(answer, {place for place in places if place <= len(answer)})

    renamed = through(ModelRenamer("asked"), chunks)

    assert renamed == answer.replace(b'"model":"m"', b'"model":"asked"').replace(
        b'"model": "m"', b'"model": "asked"'
    )


def test_words_of_an_error_are_not_a_message() -> None:
    error = b'{"message":"no \\"model\\"","model":"m"}'

    assert through(ModelRenamer("asked"), [error]) == error.replace(b'"m"', b'"asked"')


def test_a_whole_event_passes_at_once() -> None:
    names = ModelRenamer("asked")

    assert names.feed(b'data: {"model":"m"}\n\ndata: {"mo') == b'data: {"model":"asked"}\n\n'


def test_an_answer_without_a_model_is_left_alone() -> None:
    assert through(ModelRenamer("asked"), [b"plain ", b"text"]) == b"plain text"


def test_an_answer_that_is_too_large_passes_as_it_is() -> None:
    answer = b'{"model":"m","text":"a long one"}'

    assert through(ModelRenamer("asked", max_held=10), cut(answer, range(1, len(answer)))) == answer
