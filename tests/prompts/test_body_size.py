"""How much is in a request is told without reading all of it."""

from __future__ import annotations

from typing import Any

import pytest

from inferway.prompts.body_size import MAX_TO_RENDER_HERE, BodySize, body_size


@pytest.mark.parametrize(
    ("values", "chars", "objects", "num_values"),
    [
        ([], 0, 0, 0),
        ([None], 0, 0, 1),
        (["abc", "d"], 4, 0, 2),
        ([[{"role": "user", "content": "abc"}]], 3, 1, 3),  # the role is left out
        ([[{"role": "user", "content": "abc", "name": "x"}]], 8, 1, 5),
        ([{"content": [{"text": "abc"}, "de"]}, [[1, 2.5]]], 5, 2, 9),
        (({"a": {}}, ({},)), 0, 3, 4),
    ],
)
def test_text_is_counted_however_deep_it_is(
    values: Any, chars: int, objects: int, num_values: int
) -> None:
    assert body_size(values) == BodySize(chars + 10 * num_values, objects)


@pytest.mark.parametrize("value", ["", 0, [], {}, {"role": "", "content": ""}, "x" * 500])
def test_counting_ends_where_it_is_clear(value: Any) -> None:
    read = []

    def messages() -> Any:
        for i in range(1_000_000):
            read.append(i)
            yield value

    assert body_size(messages()).to_render > MAX_TO_RENDER_HERE
    assert len(read) <= MAX_TO_RENDER_HERE // 10 + 1


def test_a_body_as_deep_as_json_allows_is_counted() -> None:
    deep: Any = "x"
    for _ in range(1_000):
        deep = [deep]

    assert body_size(deep) == BodySize(1 + 10 * 1_000, 0)
