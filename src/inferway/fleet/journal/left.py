"""What is left of an engine's blocks after records, and which record told each block's key. Pure.

What redoes records is `events.held.HeldBlocks`; this follows it in what it counts, without keys
and without an index. A property test holds them together.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from inferway.events.orphans import MAX_ORPHANS
from inferway.events.records import (
    Adopted,
    Cleared,
    Known,
    Record,
    Removed,
    Stored,
    TierNamed,
    Uncounted,
    Waiting,
    Windowed,
)
from inferway.index.protocol import FULL_ATTENTION, GPU, Tier

Place = tuple[Tier, int]  # tier, group
Source = int  # a record's number


class Left:
    """After the records that were added, in order."""

    def __init__(self) -> None:
        self.sources: dict[Place, dict[int, Source]] = {}  # hash -> who told its key
        self.more: dict[Place, dict[int, int]] = {}  # hash -> copies beyond the first
        self.orphans: OrderedDict[int, tuple[Tier, ...]] = OrderedDict()
        self.awaited: dict[int, list[Place]] = {}
        self.kind: dict[object, Record] = {}  # what kind of engine it is
        self.counting = True

    def add(self, number: Source, record: Record) -> None:
        match record:
            case Stored(hashes, _, _, tier):
                self._store(number, hashes, tier)
            case Removed(hashes, tier, group):
                for block_hash in hashes:
                    self._remove(block_hash, (tier, group))
            case Known(hashes, tier, group):
                for block_hash in hashes:
                    self._know(block_hash, (tier, group))
            case Waiting(hashes, tier, group):
                self._wait(hashes, (tier, group))
            case Adopted(hashes):
                for block_hash in hashes:
                    tiers = self.orphans.pop(block_hash, (GPU,))
                    self._store(number, [block_hash], tiers[0])
                    for tier in tiers[1:]:
                        self._copy(block_hash, (tier, FULL_ATTENTION), number)
            case Cleared():
                self._clear()
            case _:
                self._learn(record)

    def _clear(self) -> None:
        self.sources.clear()
        self.more.clear()
        self.orphans.clear()
        self.awaited.clear()

    def _learn(self, record: Record) -> None:
        """Of two records on one subject the later one counts."""
        match record:
            case Uncounted():
                self.counting = False
            case Windowed(group):
                self.kind["window", group] = record
            case TierNamed(name):
                self.kind["tier", name] = record
            case _:
                self.kind[type(record)] = record

    def _store(self, number: Source, hashes: Sequence[int], tier: Tier) -> None:
        place = (tier, FULL_ATTENTION)
        table = self.sources.setdefault(place, {})
        orphans, awaited = self.orphans, self.awaited
        for block_hash in hashes:
            if block_hash in table:
                self._copy(block_hash, place, number)
            else:
                table[block_hash] = number
            for other in orphans.pop(block_hash, ()) if orphans else ():
                self._copy(block_hash, (other, FULL_ATTENTION), number)
            for awaiting in awaited.pop(block_hash, ()) if awaited else ():
                self._copy(block_hash, awaiting, number)

    def _copy(self, block_hash: int, place: Place, source: Source) -> None:
        table = self.sources.setdefault(place, {})
        if block_hash not in table:
            table[block_hash] = source
        elif self.counting:
            more = self.more.setdefault(place, {})
            more[block_hash] = more.get(block_hash, 0) + 1

    def _know(self, block_hash: int, place: Place) -> None:
        for table in self.sources.values():
            source = table.get(block_hash)
            if source is not None:
                self._copy(block_hash, place, source)
                return

    def _wait(self, hashes: Sequence[int], place: Place) -> None:
        tier, group = place
        for block_hash in hashes:
            if group != FULL_ATTENTION:
                if len(self.awaited) < MAX_ORPHANS:
                    self.awaited.setdefault(block_hash, []).append(place)
                continue
            tiers = self.orphans.get(block_hash, ())
            if self.counting or tier not in tiers:
                self.orphans[block_hash] = (*tiers, tier)
        while len(self.orphans) > MAX_ORPHANS:
            self.orphans.popitem(last=False)

    def _remove(self, block_hash: int, place: Place) -> None:
        table = self.sources.get(place)
        if table is None or block_hash not in table:
            self._stop_waiting(block_hash, place)
            return
        more = self.more.get(place)
        if more and block_hash in more:
            if self.counting:
                more[block_hash] -= 1
                if not more[block_hash]:
                    del more[block_hash]
                return
            del more[block_hash]
        del table[block_hash]

    def _stop_waiting(self, block_hash: int, place: Place) -> None:
        if place[1] == FULL_ATTENTION:
            tiers = list(self.orphans.get(block_hash, ()))
            if place[0] in tiers:
                tiers.remove(place[0])
                if not self.counting:
                    tiers = [tier for tier in tiers if tier != place[0]]
                self.orphans[block_hash] = tuple(tiers)
                if not tiers:
                    del self.orphans[block_hash]
            return
        places = self.awaited.get(block_hash)
        if places and place in places:
            places.remove(place)
            if not places:
                del self.awaited[block_hash]
