"""Rows of a prompt's tokens: how integers become them, which are left, and which an assistant has
written."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from inferway.errors import InvalidRequestError
from inferway.model import Offsets, TokenIds
from inferway.openai_api.token_ids import AT_ONCE, token_ids
from inferway.prompts.chat.template_environment import Span

TruncationSide = Literal["left", "right"]

_Rows = TypeVar("_Rows", TokenIds, Offsets)


def truncated(
    rows: _Rows, keep: int | None, side: TruncationSide | None, num_before: int = 0
) -> _Rows:
    """Return the part of a prompt's tokens, or of other rows with one for each token, that
    truncation leaves. `num_before` special tokens stand in front."""
    if keep is None or len(rows) <= keep:
        return rows
    if side == "right":
        return rows[:keep]
    dropped = len(rows) - keep
    if side == "left" or num_before == 0:
        return rows[dropped:]
    return np.concatenate([rows[:num_before], rows[num_before + dropped :]])


def assistant_mask(offsets: Offsets, spans: list[Span]) -> NDArray[np.uint8]:
    """1 for each token of a span, as transformers' `return_assistant_tokens_mask` counts them:
    from the first token of its first character to the first token of its last; to the end if
    there is no such token (it was cut off, or it is token 0); and none at all from the first
    span on whose beginning is in no token."""
    mask = np.zeros(len(offsets), dtype=np.uint8)
    for start, end in spans:
        first, last = _token_at(offsets, start), _token_at(offsets, end - 1)
        if first is None:
            break
        mask[first : last + 1 if last else None] = 1
    return mask


def _token_at(offsets: Offsets, char: int) -> int | None:
    """The first token that covers the character."""
    covers = (offsets[:, 0] <= char) & (char < offsets[:, 1])
    token = int(covers.argmax()) if len(covers) else 0
    return token if len(covers) and covers[token] else None


def checked_token_ids(values: Sequence[int] | TokenIds, param: str) -> TokenIds:
    """Return `values`, which nobody has checked yet, as token ids. Raises InvalidRequestError that
    names the path, `param[i]`, of the first value that is no token id."""
    if isinstance(values, np.ndarray) and values.dtype == np.uint32 and values.ndim == 1:
        return values
    listed: Sequence[int] = values.tolist() if isinstance(values, np.ndarray) else values
    starts = range(0, len(listed), AT_ONCE)
    if all(set(map(type, listed[start : start + AT_ONCE])) <= {int} for start in starts):
        with suppress(OverflowError):
            return token_ids(listed)
    raise _bad_token(listed, param)


def _bad_token(values: Sequence[object], param: str) -> InvalidRequestError:
    for i, value in enumerate(values):
        if type(value) is not int or not 0 <= value < 2**32:
            where = f"{param}[{i}]"
            got = repr(value)[:20] if type(value) is int else f"`{type(value).__name__}`"
            return InvalidRequestError(
                f"{where}: expected an integer from 0 to 4294967295, got {got}", param=where
            )
    raise AssertionError("every one is a token id")
