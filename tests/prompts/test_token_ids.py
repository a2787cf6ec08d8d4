"""Lists of integers become token ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inferway.errors import InvalidRequestError
from inferway.openai_api.token_ids import token_ids
from inferway.prompts.tokenizer.token_rows import checked_token_ids


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


@pytest.mark.parametrize("wrong", [-1, 2**32, 10**30, "x", None, True, 1.0, [1]])
@pytest.mark.parametrize("before", [0, 3, 10_000])
def test_what_nobody_has_looked_at_is_refused_by_its_place(wrong: Any, before: int) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        checked_token_ids([1] * before + [wrong, -7], "prompt")

    assert refused.value.param == f"prompt[{before}]"
    assert str(refused.value).startswith(
        f"prompt[{before}]: expected an integer from 0 to 4294967295, got "
    )
    assert len(str(refused.value)) < 100


@pytest.mark.parametrize("dtype", [np.uint32, np.int64, np.uint8])
def test_arrays_of_integers_are_token_ids(dtype: type[np.integer[Any]]) -> None:
    array = np.arange(200, dtype=dtype)

    assert checked_token_ids(array, "tokens").dtype == np.uint32
    assert np.array_equal(checked_token_ids(array, "tokens"), np.arange(200))


@pytest.mark.parametrize("array", [np.array([1.0]), np.array([[1, 2]]), np.array([-1])])
def test_other_arrays_are_not(array: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"tokens\[0\]: expected an integer"):
        checked_token_ids(array, "tokens")
