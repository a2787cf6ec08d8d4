"""settings -> the index of this process."""

from __future__ import annotations

from typing import TypeVar

from inferway.config import IndexSettings
from inferway.kv.index.memory import MemoryIndex

_IndexT = TypeVar("_IndexT", bound=MemoryIndex)


def build_index(settings: IndexSettings, kind: type[_IndexT]) -> _IndexT:
    """Return an index of this kind, with the bounds and weights of the settings."""
    return kind(
        weights=settings.tier_weights,
        max_blocks=settings.max_blocks,
        max_bytes=settings.max_bytes,
    )
