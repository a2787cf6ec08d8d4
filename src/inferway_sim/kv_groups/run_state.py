"""A request's blocks in a cache with several groups."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferway_sim.pool import Block


@dataclass(slots=True)
class BlockTable:
    """The blocks of one request in one group, in the order of its tokens; the group writes it."""

    blocks: list[Block] = field(default_factory=list)
    num_kept: int | None = None  # blocks that were gone through for storing; None: not yet begun
    partial: tuple[int, Block] | None = None  # a block that others use up to its middle, and where
    # Of a Mamba group that keeps states where steps end:
    is_begun: bool = False
    last_state: int | None = None  # the block that the step before the last one wrote
    num_retired: int = 0  # blocks from the start without a state


@dataclass(slots=True)
class RunState:
    """One request's block tables, one for each group."""

    tables: list[BlockTable]
    num_computed: int = 0  # tokens; the cache writes it after each step
    junction: int = 0  # tokens that one group had of the prompt, and not all of them; 0: none
