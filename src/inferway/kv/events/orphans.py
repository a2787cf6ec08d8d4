"""Blocks that an engine holds and that have no key: their parent is unknown.

Their hashes cover tokens that we have not seen, so they cannot be matched. They are remembered
under the engine's hash, in each tier with the number of copies, until somebody who can hash as
the engine does meets them in a prompt (`EngineBlocks.adopt`).

An orphan in the best tier *vouches* for the blocks before it: an engine stores a block there only
while the request that made it holds all blocks before it (vLLM: `cache_full_blocks`; SGLang: a
node of its tree has its parents). We have never heard of those, or they would have keys. What was
removed since is remembered, so that nobody is vouched for who has gone. If more is removed than
can be remembered, older orphans vouch no more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from inferway.kv.index.protocol import GPU, Tier

MAX_ORPHANS = 100_000
_REMOVALS = 2  # remembered for each orphan there may be

_ONE_COPY = [(tier,) for tier in range(16)]
_GPU_COPY = (GPU,)


class Orphans:
    """hash -> the tiers its copies lie in, one entry for each. The oldest make room."""

    __slots__ = ("_floor", "_max", "_removed", "_since", "_time", "tiers")

    def __init__(self, max_orphans: int = MAX_ORPHANS) -> None:
        self._max = max_orphans
        self.tiers: OrderedDict[int, tuple[Tier, ...]] = OrderedDict()  # read where speed counts
        self._time = 0  # counts what happens
        self._since: dict[int, int] = {}  # orphan -> when its ancestors were all there
        # any hash -> when it was last removed from the GPU
        self._removed: OrderedDict[int, int] = OrderedDict()
        self._floor = 0  # what was removed until then may have been left out

    def __len__(self) -> int:
        return len(self.tiers)

    def __contains__(self, block_hash: int) -> bool:
        return block_hash in self.tiers

    def add(
        self, hashes: Sequence[int], tier: Tier, *, implies_ancestors: bool, counting: bool
    ) -> None:
        """Add a copy of each block; with `counting` False there is one, however often."""
        all_tiers, one = self.tiers, _ONE_COPY[tier]
        for block_hash in hashes:
            tiers = all_tiers.get(block_hash)
            if tiers is None:
                all_tiers[block_hash] = one
            elif counting or tier not in tiers:
                all_tiers[block_hash] = tiers + one
        if implies_ancestors and tier == GPU:
            self._time += 1
            self._since.update(dict.fromkeys(hashes, self._time))
        while len(all_tiers) > self._max:
            self.pop(next(iter(all_tiers)))

    def pop(self, block_hash: int) -> tuple[Tier, ...]:
        """Take a block out. Return the tiers of its copies, none if it is no orphan."""
        tiers = self.tiers.pop(block_hash, ())
        self._since.pop(block_hash, None)
        if not self._since and self._removed:
            self._removed.clear()
        return tiers

    def drop(self, block_hash: int, tier: Tier, *, counting: bool) -> bool:
        """Drop a copy, with `counting` False all of that tier. Return whether there was one."""
        tiers = self.tiers.get(block_hash, ())
        if tier not in tiers:
            return False
        left = list(tiers)
        left.remove(tier)
        if not counting:
            left = [other for other in left if other != tier]
        if left:
            self.tiers[block_hash] = tuple(left)
        else:
            self.pop(block_hash)
        return True

    def note_removed(self, hashes: Sequence[int]) -> None:
        """Take note of blocks that were removed from the best tier, orphans or not: no event
        vouches for them any more."""
        if not self._since:
            return
        self._time += 1
        for block_hash in hashes:
            self._removed[block_hash] = self._time
            self._removed.move_to_end(block_hash)
        while len(self._removed) > _REMOVALS * self._max:
            _, self._floor = self._removed.popitem(last=False)

    def known_of(self, chain: Sequence[int]) -> list[tuple[Tier, ...]]:
        """Return, for each block of a chain, the tiers that its copies lie in, as an orphan or
        because one behind it vouches for it; () if nothing is known. The chain may begin
        anywhere."""
        known: list[tuple[Tier, ...]] = []
        vouched = self._floor
        for block_hash in reversed(chain):
            tiers = self.tiers.get(block_hash, ())
            if not tiers and self._removed.get(block_hash, self._floor) < vouched:
                tiers = _GPU_COPY
            known.append(tiers)
            vouched = max(vouched, self._since.get(block_hash, 0))
        known.reverse()
        return known

    def clear(self) -> None:
        self.tiers.clear()
        self._since.clear()
        self._removed.clear()
        self._floor = 0
