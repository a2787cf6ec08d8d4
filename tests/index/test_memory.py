"""What the memory index promises beyond the contract (tests/contract/test_index.py)."""

from __future__ import annotations

import asyncio

import pytest

from inferway.index.memory import MemoryIndex
from inferway.index.protocol import Clear, Remove, Store


def test_a_match_does_not_wait() -> None:
    """A caller on the event loop has its answer without giving up its turn."""
    index = MemoryIndex()
    index.apply([Store(0, [1])])
    asked = index.match([1])

    with pytest.raises(StopIteration) as answered:
        asked.send(None)

    assert answered.value.value == {0: 1}


def test_both_doors_answer_alike() -> None:
    index = MemoryIndex()
    index.apply([Store(0, [1, 2]), Store(3, [1])])

    assert index.match_now([1, 2]) == asyncio.run(index.match([1, 2]))


def test_nothing_is_left_of_blocks_that_nobody_holds() -> None:
    index = MemoryIndex()
    index.apply([Store(0, range(100)), Store(1, range(50)), Remove(0, range(100)), Clear(1)])

    assert index.num_keys == 0
