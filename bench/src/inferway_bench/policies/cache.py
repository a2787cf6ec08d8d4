"""An engine's KV cache at the grain of a trace: which blocks it holds, what is evicted for more.

The same rules as `simulator.cache` and `simulator.pool` (the longest run of whole blocks from the
start, never the last token; a prompt is admitted only if all of its blocks can be had; least
recently used first, tails before heads), held to them by a test, but blocks are a trace's integers:
nothing is hashed and no block is an object. Two simplifications, both within a block a request:
room for the answer is taken with the prompt's, and a second copy of a block is not kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockCache:
    """A cache of `capacity` blocks. What it holds is always closed towards the start of prompts: a
    request that uses a block uses all before it, and blocks without users go tails first."""

    __slots__ = ("_empty", "_idle", "_users", "capacity", "evicted")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.evicted: list[int] = []  # since the caller last replaced it
        self._empty = capacity  # blocks that hold nothing
        self._users: dict[int, int] = {}  # block -> requests that use it; 0 if it is only kept
        self._idle: OrderedDict[int, None] = OrderedDict()  # kept without users, oldest first

    @property
    def num_free(self) -> int:
        """The number of blocks that no request uses."""
        return self._empty + len(self._idle)

    @property
    def usage(self) -> float:
        """The share of the blocks that requests use, 0..1."""
        return 1.0 - (self._empty + len(self._idle)) / self.capacity

    def held(self) -> set[int]:
        """Return all blocks that a prompt could reuse."""
        return set(self._users)

    def match(self, blocks: Sequence[int], most: int) -> int:
        """Return how many of the first `most` blocks are here, found by halving (see the class)."""
        users = self._users
        if not most or blocks[0] not in users:
            return 0
        low, high = 1, most
        while low < high:
            middle = (low + high + 1) >> 1
            if blocks[middle - 1] in users:
                low = middle
            else:
                high = middle - 1
        return low

    def used(self, blocks: Sequence[int], least: int = 1) -> int:
        """Return how many of `blocks`, from the start, have at least this number of users."""
        get = self._users.get
        low, high = 0, len(blocks)
        while low < high:
            middle = (low + high) >> 1
            if get(blocks[middle], 0) >= least:
                low = middle + 1
            else:
                high = middle
        return low

    def admit(self, blocks: Sequence[int], most: int, extra: int) -> int | None:
        """Take room for `blocks`, of which the first `most` may be reused, and for `extra` blocks
        that nobody can find. Return how many are reused; None, and take nothing, if there is no
        room."""
        users, idle = self._users, self._idle
        num_reused = num_shared = self.match(blocks, most)
        if num_reused == most < len(blocks) and blocks[most] in users:
            num_shared += 1  # it is computed again, into the same block
        reused = blocks[:num_shared]
        num_idle = 0
        for block in reused:
            if not users[block]:
                num_idle += 1
        missing = len(blocks) - num_shared + extra
        if missing + num_idle > self._empty + len(idle):
            return None
        for block in reused:
            count = users[block]
            if not count:
                del idle[block]
            users[block] = count + 1
        self._take(missing)
        for block in blocks[num_shared:]:
            users[block] = 1
        return num_reused

    def _take(self, count: int) -> None:
        if count <= self._empty:
            self._empty -= count
            return
        idle, users, evicted = self._idle, self._users, self.evicted
        for _ in range(count - self._empty):
            block, _ = idle.popitem(last=False)
            del users[block]
            evicted.append(block)
        self._empty = 0

    def release(self, blocks: Sequence[int], extra: int, answer: Sequence[int] = ()) -> None:
        """End the request that was admitted with `blocks` and `extra`. `answer` is what some of the
        extra blocks hold now, behind `blocks`."""
        users, idle = self._users, self._idle
        self._empty += extra
        for block in reversed(answer):
            if block not in users:
                users[block] = 0
                idle[block] = None
                self._empty -= 1
        for block in reversed(blocks):
            count = users[block] - 1
            users[block] = count
            if not count:
                idle[block] = None
