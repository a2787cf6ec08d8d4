"""Physical KV blocks that several groups take from one pool. A block can be found in the group it
was stored for, and where hits end within blocks, under several hashes.

Follows vLLM 0.32's v1/core/block_pool.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inferway_sim.events import CacheRemoved
from inferway_sim.pool import Block, BlockPool


class GroupedPool(BlockPool):
    """A pool whose keys are a block's hash with the number of its group. `null` stands where a
    request has no block: it is never free and never used."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.null = Block(0)
        self._more_keys: dict[int, list[bytes]] = {}  # by block id, beside its own
        self._ends: dict[int, int] = {}  # by block id: the tokens up to which its hash says it is

    def find_in(self, block_hash: bytes, groups: Sequence[int]) -> list[Block] | None:
        """Return the oldest copy in each of these groups; None if one of them has none."""
        found = []
        for group in groups:
            block = self.find(_key(block_hash, group))
            if block is None:
                return None
            found.append(block)
        return found

    def end_of(self, block: Block) -> int:
        """Return the tokens from a prompt's start up to which the block can be found; 0 if it
        cannot."""
        return 0 if block.hash is None else self._ends[block.id]

    def holds(self, block: Block, block_hash: bytes, group: int) -> bool:
        """Return whether the block is found under that hash."""
        return block.id in self._by_hash.get(_key(block_hash, group), ())

    def store(self, block: Block, block_hash: bytes, group: int, end: int) -> None:
        """Let `block`, which ends at token `end`, be found by this hash, too."""
        if self.holds(block, block_hash, group):
            return
        self._enter(block, _key(block_hash, group), end)

    def forget(self, block: Block) -> None:
        """Forget the hashes that `block` was found by."""
        for key in self._take_keys(block):
            self.events.append(CacheRemoved(key[:-4], int.from_bytes(key[-4:], "big")))

    def hand_over(self, source: Block, copy: Block) -> None:
        """`copy` is found instead of `source`, which is written on. Emits nothing."""
        end = self.end_of(source)
        for key in self._take_keys(source):
            self._enter(copy, key, end)

    def share(self, blocks: Iterable[Block]) -> None:
        """Add a user to each of these blocks."""
        super().share(block for block in blocks if block is not self.null)

    def release(self, blocks: Sequence[Block]) -> None:
        """Remove a user from each block, given in the order of a request's tokens."""
        super().release([block for block in blocks if block is not self.null])

    def clear(self) -> bool:
        """Forget all content. Refused, as in vLLM, while any block has a user."""
        is_cleared = super().clear()
        if is_cleared:
            self._more_keys.clear()
            self._ends.clear()
        return is_cleared

    def _enter(self, block: Block, key: bytes, end: int) -> None:
        if block.hash is None:
            self.keep(block, key)
            self._ends[block.id] = end
        else:
            self._more_keys.setdefault(block.id, []).append(key)
            self._by_hash.setdefault(key, {})[block.id] = block

    def _take_keys(self, block: Block) -> list[bytes]:
        if block.hash is None:
            return []
        keys = [block.hash, *self._more_keys.pop(block.id, ())]
        for key in keys:
            copies = self._by_hash[key]
            del copies[block.id]
            if not copies:
                del self._by_hash[key]
        block.hash = None
        del self._ends[block.id]
        return keys

    def _evict(self, block: Block) -> None:
        self.forget(block)


def _key(block_hash: bytes, group: int) -> bytes:
    return block_hash + group.to_bytes(4, "big")
