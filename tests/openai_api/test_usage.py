"""How many prompt tokens came from the engine's cache, read as the answer passes."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from inferway.openai_api.usage import UsageReader

BODY = (
    b'{"choices":[{"message":{"content":"say \\"cached_tokens\\": 7, please"}}],'
    b'"usage":{"prompt_tokens":40,"prompt_tokens_details":{"cached_tokens":32}}}'
)


def read(*chunks: bytes) -> int | None:
    reader = UsageReader()
    for chunk in chunks:
        reader.feed(chunk)
    return reader.cached_tokens


def test_the_figure_is_read_from_a_body() -> None:
    assert read(BODY) == 32


def test_an_answer_without_it_has_none() -> None:
    assert read(b'data: {"choices":[]}\n\n', b"data: [DONE]\n\n") is None


def test_generated_text_is_not_mistaken_for_it() -> None:
    assert read(b'{"content":"\\"cached_tokens\\":5}"}') is None


@given(st.lists(st.integers(0, len(BODY)), max_size=8))
def test_it_does_not_matter_where_chunks_are_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(BODY)]

    chunks = [BODY[a:b] for a, b in itertools.pairwise(edges)]

    assert read(*chunks) == 32
