"""Token ids as JSON: any JSON parser reads the same numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.openai_api.tokens_once import TokenIdsWriter

WRITER = TokenIdsWriter()


@given(st.lists(st.integers(0, 300_000), max_size=50))
def test_the_numbers_are_those_of_the_ids(ids: list[int]) -> None:
    assert json.loads(WRITER.json(np.array(ids, np.uint32))) == ids


@pytest.mark.parametrize(
    "ids",
    [
        [],
        [0],
        [9, 10, 99, 100, 999, 1000, 9_999, 10_000, 99_999, 100_000],
        [262_143, 262_144, 1_048_575, 3],
        [1_048_576, 3],
        [2**32 - 1, 0],
    ],
)
def test_a_vocabulary_of_any_size_is_written(ids: list[int]) -> None:
    assert json.loads(TokenIdsWriter().json(np.array(ids, np.uint32))) == ids


def test_an_id_of_the_table_takes_eight_bytes() -> None:
    ids = np.arange(1000, dtype=np.uint32)

    assert len(WRITER.json(ids)) == 8 * len(ids) + 1
