"""Records -> fewer records that come to the same: what is left, in the order it came. Pure.

It is the same history without what cancelled out. First all records are gone through to see which
copies of which blocks are left, and which record told the key of each: its *source*. Then they are
gone through again, and of each source only those blocks are kept that are left. So parents come
before children as they did, and a block whose parent is gone comes with that parent's key, and is
detached again. What memory it takes depends on the blocks that are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from inferway.events.records import Adopted, Known, Record, Removed, Stored, Uncounted, Waiting
from inferway.fleet.journal.left import Left, Place, Source
from inferway.index.protocol import FULL_ATTENTION, GPU

MAX_BLOCKS = 256  # in one record: they are redone in one piece


def shortened(history: Iterable[Record], again: Iterable[Record]) -> Iterator[Record]:
    """`history` and `again` are the same records."""
    left = Left()
    for number, record in enumerate(history):
        left.add(number, record)
    yield from left.kind.values()
    yield from _joined(_kept(left, again))
    yield from _joined(_waiting(left))
    if not left.counting:
        yield Uncounted()


def in_pieces(record: Record, max_blocks: int = MAX_BLOCKS) -> Iterator[Record]:
    """The same in records of so many blocks at most."""
    hashes: Sequence[int] = getattr(record, "hashes", ())
    if len(hashes) <= max_blocks:
        yield record
        return
    for start in range(0, len(hashes), max_blocks):
        end = start + max_blocks
        match record:
            case Stored(_, keys, parent, tier):
                before = keys[start - 1] if start else parent
                yield Stored(hashes[start:end], keys[start:end], before, tier)
            case Adopted(_, keys, parent):
                before = keys[start - 1] if start else parent
                yield Adopted(hashes[start:end], keys[start:end], before)
            case Known(_, tier, group) | Waiting(_, tier, group) | Removed(_, tier, group):
                yield type(record)(hashes[start:end], tier, group)


def _waiting(left: Left) -> Iterator[Record]:
    """Blocks without a key, oldest first."""
    for block_hash, tiers in left.orphans.items():
        for tier in tiers:
            yield Waiting([block_hash], tier)
    for block_hash, places in left.awaited.items():
        for place in places:
            yield Waiting([block_hash], *place)


def _kept(left: Left, records: Iterable[Record]) -> Iterator[Record]:
    for number, record in enumerate(records):
        if isinstance(record, Stored | Adopted):
            yield from _kept_of(left, number, record)


def _kept_of(left: Left, number: Source, record: Stored | Adopted) -> Iterator[Record]:
    """What is left of what a record told: stretches of its chain that lie in the same places."""
    hashes, keys = record.hashes, record.keys
    tables = left.sources
    lie: list[tuple[Place, ...]] = [
        tuple([place for place, table in tables.items() if table.get(block_hash) == number])
        for block_hash in hashes
    ]
    start = 0
    for end in range(1, len(hashes) + 1):
        full = end - start == MAX_BLOCKS
        if end < len(hashes) and lie[end] == lie[start] and not full:
            continue
        if lie[start]:
            parent = keys[start - 1] if start else record.parent
            stored = Stored(hashes[start:end], keys[start:end], parent)
            yield from _placed(left, stored, lie[start])
        start = end


def _placed(left: Left, stored: Stored, places: tuple[Place, ...]) -> Iterator[Record]:
    hashes = stored.hashes
    full = next((place for place in places if place[1] == FULL_ATTENTION), None)
    tier = full[0] if full else GPU
    yield Stored(hashes, stored.keys, stored.parent, tier)
    for place in places:
        if place != full:
            yield Known(hashes, *place)
        more = left.more.get(place)
        if more:
            for block_hash in hashes:
                yield from [Known([block_hash], *place)] * more.get(block_hash, 0)
    if full is None:  # only a window has them: they were stored so that they have a key
        yield Removed(hashes, tier, FULL_ATTENTION)


def _joined(records: Iterable[Record]) -> Iterator[Record]:
    """Neighbours that say the same of more blocks are one record."""
    last: Record | None = None
    for record in records:
        both = None if last is None else _both(last, record)
        if both is None and last is not None:
            yield last
        last = both or record
    if last is not None:
        yield last


def _both(first: Record, second: Record) -> Record | None:
    """None: they do not go together."""
    match first, second:
        case Stored(), Stored():
            if (second.parent, second.tier) == (first.keys[-1], first.tier):
                hashes, keys = [*first.hashes, *second.hashes], [*first.keys, *second.keys]
                if len(hashes) <= MAX_BLOCKS:
                    return Stored(hashes, keys, first.parent, first.tier)
        case (Waiting(), Waiting()) | (Known(), Known()):
            assert isinstance(first, Waiting | Known)
            assert isinstance(second, Waiting | Known)
            hashes = [*first.hashes, *second.hashes]
            is_same_place = (first.tier, first.group) == (second.tier, second.group)
            if is_same_place and len(hashes) <= MAX_BLOCKS:
                return type(first)(hashes, first.tier, first.group)
    return None
