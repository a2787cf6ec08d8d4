"""Layouts of KV caches for tests."""

from __future__ import annotations

from collections.abc import Mapping

from inferway.kv.index.protocol import Layout
from inferway.kv.index.reuse import CacheGroup, CacheLayout
from inferway.model import HolderId

SIZE = 16
_FULL = CacheGroup(9, "full_attention", SIZE)


def windows(holder: HolderId, blocks: Mapping[int, int]) -> Layout:
    """Full attention, and windows of so many blocks by their groups in the index; without any: full
    attention alone."""
    if not blocks:
        return Layout(holder, None)
    groups = [
        CacheGroup(group - 1, "sliding_window", SIZE, SIZE * needed + 1)
        for group, needed in blocks.items()
    ]
    return Layout(holder, CacheLayout((_FULL, *groups)))
