"""All that a memory index holds, as the operations that make another one equal.

It is read in pieces, and operations may be applied between two of them. Whoever applies the pieces
and, from the first one on, every operation that is applied meanwhile, has an equal index at the
end, however the two mix: storing twice is storing once, a block's parent never changes, and an
index takes blocks before their parents.
"""

from __future__ import annotations

from collections.abc import Iterator

from inferway.kv.index.holders import Holders
from inferway.kv.index.protocol import Op, Store, Window
from inferway.kv.index.slots import PARENT
from inferway.kv.index.tree import Tree
from inferway.model import BlockKey

PIECE_BLOCKS = 2048  # looked at for one piece: about a millisecond

# A block to go on with: its slot, its key, and its parent's.
_Head = tuple[int, BlockKey, BlockKey | None]


def snapshot(tree: Tree, holders: Holders, piece: int = PIECE_BLOCKS) -> Iterator[list[Op]]:
    """Yield the operations, those for about `piece` blocks at a time."""
    slots = tree.slots
    yield [
        Window(holder.id, group, blocks)
        for holder in holders.of(holders.windowed)
        for group, blocks in holder.windows.items()
    ]
    walk = _Walk(tree, holders)
    looked_at, slot = 0, 1
    while slot < len(slots.keys):  # it may grow meanwhile
        # a prompt's first block; or one that nobody holds, and whose parent nobody has told
        if slots.before[slot] in (0, PARENT) and (slots.states[slot] or slots.first[slot]):
            walk.heads.append((slot, slots.keys[slot], None))
        slot += 1
        looked_at += 1
        while walk.heads:
            looked_at += walk.chain(piece)
            if looked_at >= piece:
                yield walk.take()
                looked_at = 0
        if looked_at >= piece:
            yield walk.take()
            looked_at = 0
    yield walk.take()


class _Walk:
    """From parents to children. What a head names may be gone when its turn comes."""

    def __init__(self, tree: Tree, holders: Holders) -> None:
        self.heads: list[_Head] = []
        self._tree = tree
        self._holders = holders
        self._ops: list[Op] = []

    def take(self) -> list[Op]:
        ops, self._ops = self._ops, []
        return ops

    def chain(self, most: int) -> int:
        """Go from the last head on down, as long as there is one child that the same holders have.
        Returns how many blocks that were."""
        slots = self._tree.slots
        slot, key, parent = self.heads.pop()
        if slots.keys[slot] != key or not (slots.states[slot] or slots.first[slot]):
            return 1  # it was freed meanwhile, with all that was below it
        state, keys = slots.states[slot], [key]
        child = slots.first[slot]
        while child and not slots.next[child] and slots.states[child] == state and len(keys) < most:
            slot = child
            keys.append(slots.keys[slot])
            child = slots.first[slot]
        while child:
            self.heads.append((child, slots.keys[child], keys[-1]))
            child = slots.next[child]
        self._store(state, keys, parent)
        return len(keys)

    def _store(self, state: int, keys: list[BlockKey], parent: BlockKey | None) -> None:
        for tier, group, mask in self._tree.states.places(state):
            for holder in self._holders.of(mask):
                self._ops.append(Store(holder.id, keys, parent, tier, group))
