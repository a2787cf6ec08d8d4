"""The blocks that each server was sent: an estimate of what its cache holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from inferway.kv.index.holders import places
from inferway.model import Column

_FEW = 12  # bits: so many are faster found one by one


@dataclass(slots=True)
class SentBlocks:
    """Remembers, for each server, the blocks that were sent there last, `capacity` at most.

    Each server has a bit, and a block's servers are a mask, so one AND a block answers for all of
    them. Of one prompt the last blocks are forgotten first, as engines do it: they free a request's
    blocks from its end."""

    capacity: int
    version: int = 0  # another one when servers come or go
    _servers: dict[int, int] = field(default_factory=dict)  # hash -> bits
    _blocks: dict[str, OrderedDict[int, None]] = field(default_factory=dict)  # last used last
    _place: dict[str, int] = field(default_factory=dict)  # by server
    _free: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        """Blocks, each counted once however many servers have it."""
        return len(self._servers)

    def add(self, server: str, hashes: Sequence[int]) -> None:
        """Note that a prompt of these blocks is sent there."""
        if server not in self._place:
            self._came(server)
        bit = 1 << self._place[server]
        blocks, servers = self._blocks[server], self._servers
        for block in reversed(hashes):
            if block in blocks:
                blocks.move_to_end(block)
            else:
                blocks[block] = None
                servers[block] = servers.get(block, 0) | bit
        while len(blocks) > self.capacity:
            self._drop(blocks.popitem(last=False)[0], bit)

    def places(self, servers: Iterable[str]) -> NDArray[np.intp]:
        """Return the servers' places in what `held` returns, as long as `version` is the same."""
        return np.array([self._place.get(server, -1) for server in servers], np.intp)

    def held(self, hashes: Sequence[int]) -> Column:
        """Return by place how many of the blocks a server has before the first that it lacks. The
        last number is 0, for servers that we have never heard of."""
        depths = np.zeros(len(self._place) + len(self._free) + 1)
        left = self._servers.get(hashes[0], 0) if hashes else 0
        depth = 0
        for block in hashes:
            still = left & self._servers.get(block, 0)
            if still != left:
                depths[_bits(left ^ still)] = depth
                left = still
            if not left:
                return depths
            depth += 1
        depths[_bits(left)] = depth
        return depths

    def keep(self, servers: Iterable[str]) -> None:
        """Forget all servers but these."""
        for server in set(self._blocks).difference(servers):
            place = self._place.pop(server)
            for block in self._blocks.pop(server):
                self._drop(block, 1 << place)
            self._free.append(place)
            self.version += 1

    def _came(self, server: str) -> None:
        self._place[server] = self._free.pop() if self._free else len(self._place)
        self._blocks[server] = OrderedDict()
        self.version += 1

    def _drop(self, block: int, bit: int) -> None:
        left = self._servers[block] & ~bit
        if left:
            self._servers[block] = left
        else:
            del self._servers[block]


def _bits(number: int) -> list[int] | NDArray[np.intp]:
    """The positions of its ones."""
    if number.bit_count() > _FEW:
        given = number.to_bytes((number.bit_length() + 7) // 8, "little")
        return np.unpackbits(np.frombuffer(given, np.uint8), bitorder="little").nonzero()[0]
    return list(places(number))
