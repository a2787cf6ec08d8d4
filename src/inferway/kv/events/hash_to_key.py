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
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import cast

from msgspec import Struct

from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.events.event import BlockStored
from inferway.kv.index.protocol import Holdings, Store, Tier
from inferway.kv.index.shards import FOLD, LIMIT, Shards
from inferway.model import BlockKey, HolderId

Place = tuple[Tier, int]  # tier, group
_SHORT_BLOCKS = 16  # of an event: with so many, reading it alone costs about the same


class _Blocks:
    """The blocks in one place."""

    __slots__ = ("doubles", "more", "own", "table")

    def __init__(self) -> None:
        self.table: Shards[BlockKey] = Shards(folded=True)  # hash -> key
        self.more: dict[int, int] = {}  # hash -> copies beyond the first
        self.doubles: dict[BlockKey, int] = {}  # key -> hashes beyond the first
        self.own: set[BlockKey] = set()  # without `holdings`: the keys there


class HashToKey:
    """hash -> key of what one holder has, by place. Told by `holdings`, it need not remember
    which keys that are; then its answers must be applied to that index before the next call, but
    for keys that are gone and that `add` is told of."""

    def __init__(self, holder: HolderId, holdings: Holdings | None) -> None:
        self.counting = True  # False: however many copies there are, a removal removes the block
        self._holder = holder
        self._holdings = holdings
        self._places: dict[Place, _Blocks] = {}
        self._garbage: list[dict[int, BlockKey]] = []
        self._checked_at = 0  # evictions when `trim` was last through
        self._to_check: Iterator[tuple[Place, int, BlockKey]] | None = None

    def key(self, block_hash: int) -> BlockKey | None:
        """Return the key of a block that the holder has anywhere; None if it has none."""
        short = block_hash & FOLD
        for blocks in self._places.values():
            table = blocks.table
            key = table.at[block_hash >> table.shift].get(short)
            if key is not None:
                return key
        return None

    def add(
        self,
        place: Place,
        hashes: Sequence[int],
        keys: Sequence[BlockKey],
        leaving: Collection[BlockKey] = (),
    ) -> list[int]:
        """Add a copy of each block. Return the positions of those that the place had already. The
        index is still to be told that the place has no more those `leaving`."""
        blocks = self._places.get(place)
        if blocks is None:
            blocks = self._places[place] = _Blocks()
        table = blocks.table
        at, shift, fold, limit = table.at, table.shift, FOLD, LIMIT
        had: list[int] = []
        for block_hash, key in zip(hashes, keys, strict=True):
            shard = at[block_hash >> shift]
            short = block_hash & fold
            if short in shard:
                had.append(block_hash)
                continue
            shard[short] = key
            if len(shard) == limit:
                table.split(block_hash)
                at, shift = table.at, table.shift
        positions = self._had(blocks, hashes, had) if had else had
        self._note_doubles(place, blocks, _without(keys, positions) if had else keys, leaving)
        return positions

    def _had(self, blocks: _Blocks, hashes: Sequence[int], had: Sequence[int]) -> list[int]:
        """Finish `add` where some hashes were there already, or come twice."""
        left = Counter(had)
        positions: list[int] = []
        for i in range(len(hashes) - 1, -1, -1):  # of equal ones the first is new
            if left[hashes[i]]:
                left[hashes[i]] -= 1
                positions.append(i)
        positions.reverse()
        for block_hash in had if self.counting else ():
            blocks.more[block_hash] = blocks.more.get(block_hash, 0) + 1
        return positions

    def _note_doubles(
        self,
        place: Place,
        blocks: _Blocks,
        keys: Sequence[BlockKey],
        leaving: Collection[BlockKey],
    ) -> None:
        """Take note of those that were there before, under other hashes."""
        if self._holdings is not None:
            held = self._holdings.held(self._holder, keys, *place)
            if held and leaving:
                held = [key for key in held if key not in leaving]
        elif blocks.own.isdisjoint(keys):  # nearly always
            blocks.own.update(keys)
            return
        else:
            held = [key for key in keys if key in blocks.own]
            blocks.own.update(keys)
        for key in held:
            blocks.doubles[key] = blocks.doubles.get(key, 0) + 1

    def drop(self, place: Place, hashes: Sequence[int]) -> tuple[Sequence[BlockKey], Sequence[int]]:
        """Drop a copy of each block. Return the keys that are gone with their last one, and the
        hashes that the place did not have."""
        blocks = self._places.get(place)
        if blocks is None:
            return (), hashes
        if blocks.doubles or (blocks.more and not blocks.more.keys().isdisjoint(hashes)):
            return self._drop_some(blocks, hashes)
        table = blocks.table
        at, shift, fold = table.at, table.shift, FOLD
        found = [at[block_hash >> shift].pop(block_hash & fold, None) for block_hash in hashes]
        gone = cast("list[BlockKey]", found)
        absent: list[int] = []
        if not all(found):  # some are None, unless a key is 0
            gone = [key for key in found if key is not None]
            absent = [hashes[i] for i, key in enumerate(found) if key is None]
        if self._holdings is None:
            blocks.own.difference_update(gone)
        return gone, absent

    def _drop_some(
        self, blocks: _Blocks, hashes: Sequence[int]
    ) -> tuple[Sequence[BlockKey], Sequence[int]]:
        """Drop hashes as `drop` does, where some may have several copies or hashes."""
        gone: list[BlockKey] = []
        absent: list[int] = []
        for block_hash in hashes:
            key = blocks.table.get(block_hash)
            if key is None:
                absent.append(block_hash)
                continue
            if not self.counting:
                blocks.more.pop(block_hash, None)
            elif _one_less(blocks.more, block_hash):
                continue
            blocks.table.pop(block_hash)
            if _one_less(blocks.doubles, key):
                continue
            blocks.own.discard(key)
            gone.append(key)
        return gone, absent

    def pieces(self) -> Iterator[tuple[Place, int, dict[int, BlockKey]]]:
        """Yield all blocks, some hundreds at a time, place by place: what to add to the hashes
        (`Shards`), and their keys by hash; what changes meanwhile may be left out."""
        for place, blocks in list(self._places.items()):
            table = blocks.table
            before, shift = None, table.shift
            for position, shard in enumerate(list(table.at)):
                if shard is not before and shard:
                    yield place, position << shift & ~FOLD, shard
                before = shard

    def copies(self, place: Place) -> dict[int, int]:
        """Return the copies beyond the first of blocks that lie there, by hash."""
        return self._places[place].more

    def clear(self) -> None:
        """Forget all hashes and keys. The memory is given back by `sweep`."""
        for blocks in self._places.values():
            self._garbage.extend(blocks.table.dicts())
        self._places.clear()
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
        return sum(len(blocks.table) for blocks in self._places.values())

    def num_bytes(self) -> int:
        """Return about how much memory it takes. Keys are counted with the index."""
        places = self._places.values()
        own = sum(sys.getsizeof(blocks.own) for blocks in places)
        shards = sum(sum(map(sys.getsizeof, blocks.table.dicts())) for blocks in places)
        return shards + 32 * len(self) + own

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
                blocks = self._places[place]
                blocks.table.pop(block_hash)
                blocks.more.pop(block_hash, None)
                blocks.doubles.pop(key, None)
            max_blocks -= 1
        if max_blocks:
            self._to_check = None

    def _items(self) -> Iterator[tuple[Place, int, BlockKey]]:
        """All that is here now; what changes meanwhile may be left out."""
        for place, region, shard in self.pieces():
            yield from ((place, region | short, key) for short, key in list(shard.items()))


def _one_less(counts: dict[int, int], item: int) -> bool:
    """Return whether one of several is gone, and another is left."""
    count = counts.get(item)
    if count is None:
        return False
    if count == 1:
        del counts[item]
    else:
        counts[item] = count - 1
    return True


def _without(keys: Sequence[BlockKey], positions: Sequence[int]) -> list[BlockKey]:
    left_out = set(positions)
    return [key for i, key in enumerate(keys) if i not in left_out]


class Stored(Struct, frozen=True, gc=False):
    """Blocks that several events store in GPU memory, in order, each block once."""

    blocks: dict[int, BlockKey]  # by their hashes
    ops: list[Store]  # one for each event


def stored(
    events: Sequence[BlockStored],
    removed: Collection[int],
    holder: HolderId,
    bridge: HashToKey,
    hasher: BlockHasher,
) -> Stored | None:
    """Return what events of one batch store that have nothing but tokens. They are read together in
    a fraction of the time: nearly always events of one step have nothing to do with each other.
    None if they, and removals of these blocks among them, may come to something else in another
    order: a parent is unknown or is removed, a block is stored twice or is removed, or two hashes
    have one key."""
    digests, start = _digests(events, hasher), 0
    blocks: dict[int, BlockKey] = {}
    ops: list[Store] = []
    num_blocks = 0
    for event in events:
        hashes, parent_hash, parent = event.block_hashes, event.parent_hash, None
        if parent_hash is not None:
            parent = blocks.get(parent_hash) or bridge.key(parent_hash)
            if parent is None or parent_hash in removed:
                return None
        if digests and len(hashes) <= _SHORT_BLOCKS:
            end = start + len(hashes)
            keys = hasher.chain_of_list(digests[start:end], parent)
            start = end
        else:
            keys = hasher.keys_of_list(event.token_ids, None, parent)
        blocks.update(zip(hashes, keys, strict=True))
        num_blocks += len(hashes)
        ops.append(Store(holder, keys, parent))
    if len(blocks) < num_blocks or len(set(blocks.values())) < num_blocks:
        return None
    return Stored(blocks, ops) if blocks.keys().isdisjoint(removed) else None


def _digests(events: Sequence[BlockStored], hasher: BlockHasher) -> list[int]:
    """Return the digests of all blocks of short events, one after the other; none if there is but
    one event."""
    tokens = array("I")
    for event in events if len(events) > 1 else ():
        if len(event.block_hashes) <= _SHORT_BLOCKS:
            tokens.extend(event.token_ids)
    return hasher.digests_of_list(tokens) if tokens else []
