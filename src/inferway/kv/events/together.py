"""Some events of a batch at once, which takes a fraction of the time of one after the other.

Engines tell in one batch of all that a step has changed: removals of single blocks, for room, and
an event with a block or some for each request, in the order in which that happened. Nearly always
they have nothing to do with each other. Then their order does not matter, their tokens are read
together, and the index is told of them together.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence

from msgspec import Struct

from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.events.event import BlockStored
from inferway.kv.events.hash_to_key import HashToKey
from inferway.kv.index.protocol import Store
from inferway.model import BlockKey, HolderId

_SHORT_BLOCKS = 16  # of an event: with so many, reading it alone costs about the same


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
    """Return what events store that have nothing but tokens. None if they, and removals of these
    blocks among them, may come to something else in another order: a parent is unknown or is
    removed, a block is stored twice or is removed, or two hashes have one key."""
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
