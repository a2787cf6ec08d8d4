"""Parts of chains of blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inferway.model import BlockKey

MAX_RUN = 512  # blocks adopted at once: half a millisecond


def without(
    keys: Sequence[BlockKey], had: Sequence[int], parent: BlockKey | None
) -> tuple[BlockKey | None, Sequence[BlockKey]]:
    """Return the part of a chain from the first key to the last that is not at one of the positions
    `had`, and its parent."""
    new = sorted(set(range(len(keys))).difference(had))
    if not new:
        return parent, []
    first, last = new[0], new[-1]
    return keys[first - 1] if first else parent, keys[first : last + 1]


def pieces_found(found: Sequence[object]) -> Iterator[tuple[int, int]]:
    """Yield the stretches [start, end) where something was found, long ones in pieces."""
    start = 0
    for end in range(len(found) + 1):
        if end == len(found) or not found[end]:
            if start < end:
                yield start, end
            start = end + 1
        elif end - start == MAX_RUN:
            yield start, end
            start = end
