"""How much is in a request is told without reading all of it."""

from __future__ import annotations

from typing import Any

import pytest

from inferway.prompts.body_size import MAX_TO_RENDER_HERE, BodySize, body_size


@pytest.mark.parametrize(
    ("values", "size"),
    [
        ([], BodySize(0, 0)),
        ([None], BodySize(10, 0)),
        (["abc", "d"], BodySize(4, 0)),
        ([[{"role": "user", "content": "abc"}]], BodySize(7, 1)),
        ([{"content": [{"text": "abc"}, "de"]}, [[1, 2.5]]], BodySize(25, 2)),
        (({"a": {}}, ({},)), BodySize(0, 3)),
    ],
)
def test_text_is_counted_however_deep_it_is(values: Any, size: BodySize) -> None:
    assert body_size(values) == size


def test_counting_ends_where_it_is_clear() -> None:
    read = []

    def messages() -> Any:
        for i in range(1_000_000):
            read.append(i)
            yield {"content": "x" * 500}

    assert body_size(messages()).to_render > MAX_TO_RENDER_HERE
    assert len(read) < 1_100


def test_a_body_as_deep_as_json_allows_is_counted() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]

    assert body_size(deep) == BodySize(1, 0)
