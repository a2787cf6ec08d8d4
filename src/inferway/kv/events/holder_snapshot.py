"""A holder's snapshot: all that `HolderState` has after a batch, so that another process can go on
from there.

A snapshot has hashes and block keys, never tokens. Three things are not in it: counters, the keys
of blocks that were removed a moment ago, and what orphans say of the blocks before them. So after a
restart an orphan is adopted as before, but vouches for itself alone.

`HolderState.take` makes a snapshot without the parents of its blocks, which the index has: it tells
those of all holders at once (`MemoryIndex.links`), after the last snapshot was taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from inferway.kv.events.hash_to_key import Place
from inferway.kv.index.protocol import Tier
from inferway.kv.index.reuse import CacheLayout
from inferway.model import BlockKey

NUMBER = np.dtype("<u8")  # of hashes and keys in columns
_RUN_BLOCKS = 128  # restored at a time: a fraction of a millisecond
Numbers = np.ndarray[Any, np.dtype[np.uint64]]


class Position(msgspec.Struct, frozen=True, array_like=True):
    """The batch up to which the engine's events have been applied."""

    seq: int
    digest: bytes
    is_exact: bool  # nothing that the engine holds was unknown then


class PlaceColumns(msgspec.Struct, frozen=True, array_like=True):
    """The blocks in one place, in any order: columns of `NUMBER`, in pieces."""

    tier: Tier
    group: int
    hashes: list[bytes]
    keys: list[bytes]
    copies: dict[int, int]  # hash -> copies beyond the first
    parents: list[bytes] = []  # keys; 0: the block begins a prompt


class HolderSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """A holder's blocks, as they are kept in a file. The fields are those of `HolderState`."""

    position: Position
    counts_copies: bool
    block_size: int | None
    layout: CacheLayout | None
    tiers: dict[str, Tier]
    places: list[PlaceColumns]
    within: dict[BlockKey, tuple[BlockKey | None, int]]
    orphans: dict[int, tuple[Tier, ...]]
    deferred: dict[int, tuple[Place, ...]]


class BlockParents:
    """The parents of blocks, as an index has told them (`MemoryIndex.links`)."""

    def __init__(self, links: bytes) -> None:
        rows = np.frombuffer(links, NUMBER).reshape(-1, 2)
        rows = rows[np.argsort(rows[:, 0])]
        self._keys, self._parents = rows[:, 0].copy(), rows[:, 1].copy()

    def added_to(self, snapshot: HolderSnapshot) -> HolderSnapshot:
        """Return the snapshot with the parents of its blocks. Blocks that are not known are left
        out: the holder has removed them since, which the engine's replay tells. Takes long for a
        big one."""
        return replace(snapshot, places=[self._added(place) for place in snapshot.places])

    def _added(self, place: PlaceColumns) -> PlaceColumns:
        hashes, keys = _numbers(place.hashes), _numbers(place.keys)
        order = np.argsort(keys)  # numbers in order are found much faster
        hashes, keys = hashes[order], keys[order]
        parents = keys
        if len(self._keys):
            at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
            known = self._keys[at] == keys
            hashes, keys, parents = hashes[known], keys[known], self._parents[at[known]]
        else:
            hashes = keys = parents = keys[:0]
        columns = {"hashes": hashes, "keys": keys, "parents": parents}
        return replace(place, **{name: [each.tobytes()] for name, each in columns.items()})


class Chains:
    """The blocks of one place as chains, parents before children."""

    def __init__(self, place: PlaceColumns) -> None:
        """Raises ValueError if the columns are not equally long."""
        columns = place.hashes, place.keys, place.parents
        self._hashes, self._keys, self._parents = map(_numbers, columns)
        if not len(self._hashes) == len(self._keys) == len(self._parents):
            raise ValueError("the columns of a place are not equally long")
        before = self._rows_of_parents()
        children = np.argsort(before, kind="stable")
        ends = np.searchsorted(before[children], np.arange(-1, len(before) + 1))
        self._children = children.data  # of row i: from `ends[i + 1]` to `ends[i + 2]`
        self._ends = ends.data

    def __iter__(self) -> Iterator[tuple[list[int], list[BlockKey], BlockKey | None]]:
        """Yield the hashes and keys of some blocks of a chain, and the parent of the first."""
        children, ends = self._children, self._ends
        waiting = children[: ends[1]].tolist()  # those without a parent here
        while waiting:
            run = [waiting.pop()]
            while found := children[ends[run[-1] + 1] : ends[run[-1] + 2]].tolist():
                if len(run) == _RUN_BLOCKS:
                    waiting += found
                    break
                waiting += found[1:]
                run.append(found[0])
            parent = self._parents[run[0]].item() or None
            yield self._hashes[run].tolist(), self._keys[run].tolist(), parent

    def _rows_of_parents(self) -> Any:
        """The row of each block's parent; -1 if that is not here."""
        keys, parents = self._keys, self._parents
        if not len(keys):
            return np.zeros(0, np.int64)
        order = np.argsort(keys, kind="stable")
        at = np.minimum(np.searchsorted(keys, parents, sorter=order), len(keys) - 1)
        rows = order[at]
        return np.where((keys[rows] == parents) & (parents != 0), rows, -1)


class SavedHolder:
    """A snapshot that was read again, made ready for `HolderState.restore`."""

    def __init__(self, encoded: bytes) -> None:
        """Takes long for a big one: call it in a thread. Raises msgspec.DecodeError and
        ValueError."""
        self.snapshot = msgspec.msgpack.decode(encoded, type=HolderSnapshot)
        self.chains = [Chains(place) for place in self.snapshot.places]


def _numbers(pieces: list[bytes]) -> Numbers:
    return np.frombuffer(b"".join(pieces), NUMBER)
