"""Snapshots of one holder's blocks, as they come back from a file."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import msgspec

from inferway.kv.events.apply import EngineBlocks
from inferway.kv.events.holder_snapshot import BlockParents, HolderSnapshot, Position, SavedHolder
from inferway.kv.index.memory import MemoryIndex

POSITION = Position(7, b"digest", is_exact=True)

_T = TypeVar("_T")


def encoded(snapshot: HolderSnapshot, index: MemoryIndex) -> bytes:
    """As it is written, once the index has told the parents of blocks."""
    parents = BlockParents(b"".join(index.links()))
    return msgspec.msgpack.encode(parents.added_to(snapshot))


def result(steps: Generator[object, None, _T]) -> _T:
    """What steps return that the index has nothing to do in."""
    while True:
        try:
            assert next(steps) == []
        except StopIteration as end:
            value: _T = end.value
            return value


def saved(blocks: EngineBlocks, index: MemoryIndex) -> SavedHolder:
    return SavedHolder(encoded(result(blocks.take(POSITION)), index))


def restore(blocks: EngineBlocks, index: MemoryIndex, snapshot: SavedHolder) -> None:
    for ops in blocks.restore(snapshot):
        index.apply(ops)
