"""The bridge from one engine's block hashes to our keys, and how many copies it has of a block.

Blocks lie in *places*: a tier of a group of KV caches. vLLM does not merge equal blocks
(block_pool.py, NOTE #1): a prompt whose length is a multiple of the block size always recomputes
its last block, so that one hash is then stored twice. It publishes one BlockStored for each
physical copy and one BlockRemoved for each that is evicted, and each place does so apart. So
copies are counted, and a block is gone from a place with its last one there.

Two hashes may stand for one key: an adapter that was loaded again from another path, a tenant's
salt that an old engine does not publish. The key is gone with the last of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import islice

from inferway.kv.index.protocol import Holdings, Tier
from inferway.kv.index.shards import FOLD, LIMIT, Shards
from inferway.model import BlockKey, HolderId

Place = tuple[Tier, int]  # tier, group


class HashToKey:
    """hash -> key of what one holder has, by place. Told by `holdings`, it need not remember
    which keys that are; then its answers must be applied to that index before the next call."""

    def __init__(self, holder: HolderId, holdings: Holdings | None) -> None:
        self.counting = True  # False: however many copies there are, a removal removes the block
        self._holder = holder
        self._holdings = holdings
        self._tables: dict[Place, Shards[BlockKey]] = {}
        self._own: dict[Place, set[BlockKey]] = {}  # without `holdings`: the keys there
        self._more: dict[tuple[Place, int], int] = {}  # (place, hash) -> copies beyond the first
        self._doubles: dict[tuple[Place, BlockKey], int] = {}  # -> hashes beyond the first
        self._garbage: list[dict[int, BlockKey]] = []
        self._checked_at = 0  # evictions when `trim` was last through
        self._to_check: Iterator[tuple[Place, int, BlockKey]] | None = None

    def key(self, block_hash: int) -> BlockKey | None:
        """Return the key of a block that the holder has anywhere; None if it has none."""
        short = block_hash & FOLD
        for table in self._tables.values():
            key = table.at[block_hash >> table.shift].get(short)
            if key is not None:
                return key
        return None

    def add(self, place: Place, hashes: Sequence[int], keys: Sequence[BlockKey]) -> list[int]:
        """Add a copy of each block. Return the positions of those that the place had already."""
        table = self._tables.get(place)
        if table is None:
            table = self._tables[place] = Shards(folded=True)
        at, shift, fold, limit = table.at, table.shift, FOLD, LIMIT
        had = []
        for i, block_hash in enumerate(hashes):
            shard = at[block_hash >> shift]
            short = block_hash & fold
            if short in shard:
                had.append(i)
                continue
            shard[short] = keys[i]
            if len(shard) == limit:
                table.split(block_hash)
                at, shift = table.at, table.shift
        for i in had if self.counting else ():
            copy = (place, hashes[i])
            self._more[copy] = self._more.get(copy, 0) + 1
        new = keys if not had else _without(keys, had)
        for key in self._held(place, new):
            self._doubles[place, key] = self._doubles.get((place, key), 0) + 1
        return had

    def drop(self, place: Place, block_hash: int) -> tuple[BlockKey | None, bool]:
        """Drop a copy. Return its key, None if the place had none, and whether the key is gone."""
        table = self._tables.get(place)
        if table is None:
            return None, False
        shard = table.at[block_hash >> table.shift]
        short = block_hash & FOLD
        key = shard.get(short)
        if key is None:
            return None, False
        if self._more:
            if not self.counting:
                self._more.pop((place, block_hash), None)
            elif self._one_less(self._more, (place, block_hash)):
                return key, False
        del shard[short]
        if self._doubles and self._one_less(self._doubles, (place, key)):
            return key, False
        if self._holdings is None:
            self._own[place].discard(key)
        return key, True

    def take(self, block_hash: int, key: BlockKey) -> Sequence[tuple[Place, int]]:
        """Take a block out, if it has this key. Return how many copies there were, by place."""
        short, taken = block_hash & FOLD, []
        for place, table in self._tables.items():
            shard = table.at[block_hash >> table.shift]
            if shard.get(short) == key:
                del shard[short]
                more = self._more.pop((place, block_hash), 0) if self._more else 0
                taken.append((place, 1 + more))
        return taken

    def clear(self) -> None:
        """Forget everything. The memory is given back by `sweep`."""
        for table in self._tables.values():
            self._garbage.extend(table.dicts())
        self._tables.clear()
        self._own.clear()
        self._more.clear()
        self._doubles.clear()
        self._to_check = None
        self._checked_at = 0

    def sweep(self, max_blocks: int) -> bool:
        """Free what `clear` left and forget what the index has evicted, looking at about so many
        blocks. Return whether there is more to do."""
        while self._garbage and max_blocks > 0:
            max_blocks -= len(self._garbage.pop()) + 1
        if max_blocks > 0 and self._holdings is not None:
            self._trim(self._holdings, max_blocks)
        return bool(self._garbage) or self._to_check is not None

    def __len__(self) -> int:
        return sum(len(table) for table in self._tables.values())

    def num_bytes(self) -> int:
        """Return about how much memory it takes. Keys are counted with the index."""
        shards = [shard for table in self._tables.values() for shard in table.dicts()]
        own = sum(sys.getsizeof(keys) for keys in self._own.values())
        return sum(sys.getsizeof(shard) + 32 * len(shard) for shard in shards) + own

    def _held(self, place: Place, keys: Sequence[BlockKey]) -> Sequence[BlockKey]:
        """Those that were there before, under other hashes."""
        if self._holdings is not None:
            return self._holdings.held(self._holder, keys, *place)
        own = self._own.setdefault(place, set())
        held = [key for key in keys if key in own]
        own.update(keys)
        return held

    def _one_less(self, counts: dict[tuple[Place, int], int], item: tuple[Place, int]) -> bool:
        """Return whether one of several is gone, and another is left."""
        count = counts.get(item)
        if count is None:
            return False
        if count == 1:
            del counts[item]
        else:
            counts[item] = count - 1
        return True

    def _trim(self, holdings: Holdings, max_blocks: int) -> None:
        """Once in a while, when the index has evicted a quarter of what is here."""
        if self._to_check is None:
            evicted = holdings.num_evicted(self._holder) - self._checked_at
            if not evicted or evicted * 4 <= len(self):
                return
            self._checked_at += evicted
            self._to_check = self._items()
        for place, block_hash, key in islice(self._to_check, max_blocks):
            if not holdings.held(self._holder, [key], *place):
                self._tables[place].pop(block_hash)
                self._more.pop((place, block_hash), None)
                self._doubles.pop((place, key), None)
            max_blocks -= 1
        if max_blocks:
            self._to_check = None

    def _items(self) -> Iterator[tuple[Place, int, BlockKey]]:
        """All that is here now; what changes meanwhile may be left out."""
        for place, table in list(self._tables.items()):
            before, shift = None, table.shift
            for position, shard in enumerate(list(table.at)):
                if shard is before:
                    continue
                before, region = shard, position << shift & ~FOLD
                yield from ((place, region | short, key) for short, key in list(shard.items()))


def _without(keys: Sequence[BlockKey], positions: Sequence[int]) -> list[BlockKey]:
    left_out = set(positions)
    return [key for i, key in enumerate(keys) if i not in left_out]
