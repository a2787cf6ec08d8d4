"""Rows of a prompt's tokens: which are left, and which an assistant has written."""

from __future__ import annotations

from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from inferway.model import Offsets, TokenIds
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
