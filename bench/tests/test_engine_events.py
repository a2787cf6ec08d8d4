"""An engine's events, made and followed."""

from __future__ import annotations

from itertools import islice, pairwise

from inferway.kv.events.adapters.sglang import open_batch
from inferway.kv.events.event import BlockStored
from inferway.kv.index.memory import MemoryIndex
from inferway_bench.engine_events import FollowedEngine, endless_events, payload


def stored(batch: bytes) -> BlockStored:
    [event] = open_batch(batch).decoded().events
    assert isinstance(event, BlockStored)
    return event


def test_a_payload_is_what_an_engine_sends() -> None:
    made = next(endless_events(4, seed=0, chain=1, blocks=2))
    found = stored(payload(made, 4))

    assert (found.block_hashes, len(found.token_ids)) == (made.hashes, 8)
    assert (found.parent_hash, found.block_size, found.medium) == (None, 4, "GPU")


def test_endless_events_are_chains_of_new_blocks() -> None:
    events = endless_events(8, seed=0, chain=3, blocks=16)
    made = [stored(payload(event, 8)) for event in islice(events, 200)]
    hashes = [block_hash for event in made for block_hash in event.block_hashes]

    assert len(set(hashes)) == 200 * 16
    assert len({tuple(event.token_ids) for event in made}) == 200
    for before, event in pairwise(made):
        assert event.parent_hash in (None, before.block_hashes[-1])
    assert [event.parent_hash is None for event in made[:4]] == [True, False, False, True]


def test_followed_events_are_in_the_index_and_the_picture_is_exact() -> None:
    index = MemoryIndex()
    engine = FollowedEngine(0, 4, index)
    raw = [payload(event, 4) for event in islice(endless_events(4, 1, 8, 16), 24)]

    engine.apply(raw[:5])
    engine.apply(raw[5:])

    assert index.num_blocks(0) == engine.blocks.num_blocks == 24 * 16
    assert engine.follower.stats.batches == 24
