"""A row of the bitmask: int32 words, the bit of token t is bit t % 32 of word t // 32."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferway_structured.grammar import MaskRow


def allow(row: MaskRow, token: int) -> None:
    word = int(row[token >> 5]) | 1 << (token & 31)
    row[token >> 5] = word - (1 << 32) if word >= 1 << 31 else word


def allowed(row: MaskRow, token: int) -> bool:
    return bool(int(row[token >> 5]) >> (token & 31) & 1)


def allow_only(row: MaskRow, tokens: Iterable[int]) -> None:
    row[:] = 0
    for token in tokens:
        allow(row, token)
