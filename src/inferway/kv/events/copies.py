"""Copies of blocks in other tiers, whose events do not say all that is hashed.

vLLM's offloading publishes tokens and adapter, but neither salts nor pictures (0.32,
offloading/events.py: `extra_keys=None`). So such an event is believed by its hashes: those that are
known, or were a moment ago, have their keys. Others count if the way in which the engine hashes is
known and shows that nothing else is hashed (`apply`); if not, they wait, as orphans do.
"""

from __future__ import annotations

from inferway.kv.events.event import BlockStored
from inferway.kv.events.holder_state import HolderState
from inferway.kv.index.protocol import FULL_ATTENTION, Op, Tier


def store_without_tokens(held: HolderState, event: BlockStored, tier: Tier) -> list[Op]:
    """Add the blocks of an event without tokens: those that other events have given a key, and
    orphans. Return what the index must do."""
    hashes, place = event.block_hashes, (tier, FULL_ATTENTION)
    known = [h for h in hashes if held.bridge.key(h) is not None]
    orphans = [h for h in hashes if h in held.orphans] if held.orphans else []
    if len(known) + len(orphans) < len(hashes):
        held.stats.skip("unknown_hash")
    held.wait(orphans, place)
    return held.add(known, place)


def store_again(held: HolderState, event: BlockStored, tier: Tier, *, is_cut_so: bool) -> list[Op]:
    """Add those of an event's blocks that are not known any more, or not yet. `is_cut_so`: prompts
    are cut into blocks of their size; LMCache has chunks. Return what the index must do."""
    parent = event.parent_hash
    ops: list[Op] = []
    waiting: list[int] = []
    for block_hash in event.block_hashes:
        if held.bridge.key(block_hash) is None:
            again = held.store_again(block_hash, parent, tier)
            ops += again or []
            if again is None:
                waiting.append(block_hash)
        parent = block_hash
    if waiting and not is_cut_so:
        held.stats.skip("block_size")
        return ops
    held.wait(waiting, (tier, FULL_ATTENTION))
    return ops
