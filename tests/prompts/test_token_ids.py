"""Lists of integers become token ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inferway.prompts.token_ids import token_ids


@pytest.mark.parametrize("count", [0, 1, 8191, 8192, 8193, 100_000])
def test_every_integer_is_in_its_place(count: int) -> None:
    ids = token_ids(list(range(count)))

    assert ids.dtype == np.uint32
    assert np.array_equal(ids, np.arange(count))


@pytest.mark.parametrize("wrong", [-1, 2**32, "x", None])
@pytest.mark.parametrize("before", [0, 10_000])
def test_what_is_no_token_id_is_refused_wherever_it_stands(wrong: Any, before: int) -> None:
    with pytest.raises((OverflowError, TypeError, ValueError)):
        token_ids([1] * before + [wrong])
