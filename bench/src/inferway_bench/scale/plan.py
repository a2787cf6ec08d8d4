"""What is measured, and the load that it is summed for."""

from __future__ import annotations

import msgspec


class Plan(msgspec.Struct, frozen=True):
    engines: tuple[int, ...] = (16, 64, 250, 1_000)
    block_size: int = 16
    blocks_held: int = 2_048  # by each engine
    prompt_tokens: int = 8_000
    decisions: int = 50  # in a row
    repeats: int = 7
    scrapes: int = 300
    seed: int = 1
    # the load of each engine
    requests: float = 1.0  # a second
    new_blocks: int = 64  # of each request, stored; as many are dropped


class Grown(msgspec.Struct, frozen=True):
    """With so many engines."""

    engines: int
    blocks: int  # held by each
    stored_us: float  # CPU time of a block that an engine has stored, decoding included
    removed_us: float  # and of one that it has dropped
    decision_us: list[float]  # CPU time, each the mean of some
    resident_mib: float
    bytes_per_block: float
