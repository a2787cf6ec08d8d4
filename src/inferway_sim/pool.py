"""Physical KV blocks: which are free, in what order they are taken, what each one holds.

Follows vLLM 0.32's v1/core/block_pool.py in all that can be seen from outside: the order of
eviction, copies of one block that live side by side, and one event for each copy.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from inferway_sim.events import CacheCleared, CacheRemoved, Event


class Block:
    """A physical block. `hash` is set while its content can be reused."""

    __slots__ = ("hash", "id", "num_users")

    def __init__(self, block_id: int) -> None:
        self.id = block_id
        self.num_users = 0
        self.hash: bytes | None = None


class BlockPool:
    """The blocks of an engine. A block without users is free; if it has a hash, its content stays
    reusable until the block is taken for something else."""

    def __init__(self, num_blocks: int) -> None:
        # Block 0 is vLLM's null block: never free, never used.
        self._blocks = [Block(i) for i in range(1, num_blocks)]
        self._free: OrderedDict[int, Block] = OrderedDict((b.id, b) for b in self._blocks)
        # hash -> its copies by block id, oldest first. vLLM does not merge equal blocks.
        self._by_hash: dict[bytes, dict[int, Block]] = {}
        self.events: list[Event] = []

    @property
    def num_blocks(self) -> int:
        """The number of blocks that can hold tokens."""
        return len(self._blocks)

    @property
    def num_free(self) -> int:
        """The number of blocks that no request uses."""
        return len(self._free)

    def find(self, block_hash: bytes) -> Block | None:
        """Find the oldest copy of that block, if there is one."""
        copies = self._by_hash.get(block_hash)
        return next(iter(copies.values())) if copies else None

    def cached(self) -> dict[bytes, int]:
        """Return the number of copies of each hash: all that could be reused now."""
        return {block_hash: len(copies) for block_hash, copies in self._by_hash.items()}

    def take(self, num_blocks: int) -> list[Block]:
        """The next free blocks, one user each; what they held is evicted. The caller has made
        sure that there are enough."""
        taken = [self._free.popitem(last=False)[1] for _ in range(num_blocks)]
        for block in taken:
            self._evict(block)
            block.num_users = 1
        return taken

    def share(self, blocks: Iterable[Block]) -> None:
        """Add a user to each of these blocks."""
        for block in blocks:
            if block.num_users == 0:
                del self._free[block.id]
            block.num_users += 1

    def keep(self, block: Block, block_hash: bytes) -> None:
        """`block` is full: from now on it can be found by its hash. Emits nothing."""
        block.hash = block_hash
        self._by_hash.setdefault(block_hash, {})[block.id] = block

    def release(self, blocks: Sequence[Block]) -> None:
        """Remove a user from each block of a request, given in the order of its tokens.

        Reusable blocks are evicted last, and tails before heads: a prefix serves more prompts than
        what follows it. Blocks without a hash are taken first."""
        freed = [block for block in reversed(blocks) if self._drop_user(block)]
        for block in reversed([b for b in freed if b.hash is None]):
            self._free[block.id] = block
            self._free.move_to_end(block.id, last=False)
        for block in freed:
            if block.hash is not None:
                self._free[block.id] = block

    def clear(self) -> bool:
        """Forget all content. Refused, as in vLLM, while any block has a user."""
        if self.num_free != self.num_blocks:
            return False
        self._by_hash.clear()
        for block in self._blocks:
            block.hash = None
        self.events.append(CacheCleared())
        return True

    @staticmethod
    def _drop_user(block: Block) -> bool:
        block.num_users -= 1
        return block.num_users == 0

    def _evict(self, block: Block) -> None:
        if block.hash is None:
            return
        copies = self._by_hash[block.hash]
        del copies[block.id]
        if not copies:
            del self._by_hash[block.hash]
        self.events.append(CacheRemoved(block.hash))
        block.hash = None
