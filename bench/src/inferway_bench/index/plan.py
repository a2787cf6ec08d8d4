"""How much `inferway bench index` measures. The workers get it as JSON."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import field

from inferway_bench.flags import flag


class IndexPlan(msgspec.Struct, frozen=True):
    """What a run does."""

    peer: Annotated[
        bool, flag("Measure Inferway's index alone, and do not install ai-dynamo-runtime.")
    ] = True
    seed: int = 1
    rounds: int = 5  # in which both systems are measured, taking turns
    block_size: int = 32
    prompts: dict[int, int] = field(default_factory=lambda: {512: 200, 8192: 20})  # of each length
    filler_blocks: int = 1_000_000  # of other prompts beside them
    match_repeats: int = 15
    events: dict[int, int] = field(default_factory=lambda: {16: 4_000, 1: 20_000})  # by blocks
    event_repeats: int = 3
    key_tokens: int = 8_000
    growth_blocks: int = 6_000_000
    blocks_per_second: int = 100_000
    quiet_seconds: float = 10.0  # before an index grows, to compare with
    memory_blocks: int = 6_000_000
    peer_blocks: int = 1_000_000
    snapshot_blocks: int = 5_000_000  # of eight engines, loaded


QUICK = {
    "rounds": 2,
    "prompts": {512: 50, 8192: 5},
    "filler_blocks": 50_000,
    "match_repeats": 7,
    "events": {16: 500, 1: 2_000},
    "event_repeats": 2,
    "growth_blocks": 500_000,
    "quiet_seconds": 2.0,
    "memory_blocks": 500_000,
    "peer_blocks": 200_000,
    "snapshot_blocks": 400_000,
}
