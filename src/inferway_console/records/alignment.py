"""The places where two prompts, as token ids, part, and where they come together again."""

from __future__ import annotations

from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway.model import TokenIds

WINDOW = 16  # tokens: as many that are equal in a row are no accident

Hashes: TypeAlias = "NDArray[np.uint64]"

_MULTIPLIER = 0x9E3779B97F4A7C15
_FACTORS = [np.uint64(pow(_MULTIPLIER, k + 1, 1 << 64)) for k in range(WINDOW)]
_MIX = np.uint64(0xD6E8FEB86659FD93)
_SHIFT = np.uint64(32)


class Rejoining(msgspec.Struct, frozen=True):
    """The places where two prompts are equal again for WINDOW tokens."""

    left: int
    right: int


def common_prefix(left: TokenIds, right: TokenIds) -> int:
    """Return how many tokens both have in common from the start."""
    length = min(len(left), len(right))
    same = left[:length] == right[:length]
    first = int(same.argmin()) if length else 0
    return length if length == 0 or same[first] else first


def window_hashes(ids: TokenIds) -> Hashes:
    """Return a hash of each WINDOW tokens in a row, by where they begin. They depend on nothing
    else, so that equal pieces are found wherever they stand."""
    count = max(0, len(ids) - WINDOW + 1)
    hashes = np.zeros(count, np.uint64)
    wide = ids.astype(np.uint64)
    for place, factor in enumerate(_FACTORS):
        hashes += wide[place : place + count] * factor
    hashes ^= hashes >> _SHIFT
    hashes *= _MIX
    hashes ^= hashes >> _SHIFT
    return hashes


def rejoin(left: Hashes, right: Hashes, parted_at: int, within: int) -> Rejoining | None:
    """Return the first place behind `parted_at` from which both have the same WINDOW tokens, not
    further than `within` tokens on either side; None if there is none."""
    ours = left[parted_at : parted_at + within + 1]
    theirs = right[parted_at : parted_at + within + 1]
    _, at, other = np.intersect1d(ours, theirs, return_indices=True)
    if not len(at):
        return None
    first = int((at + other).argmin())
    return Rejoining(parted_at + int(at[first]), parted_at + int(other[first]))


def going_on(left: Hashes, right: Hashes) -> Rejoining | None:
    """Return where `left` goes on with what comes later in `right`: half of its pieces stand there
    side by side, as far behind their places in `left`; None if it does not."""
    theirs, other, times = np.unique(right, return_index=True, return_counts=True)
    theirs, other = theirs[times == 1], other[times == 1]
    if not len(theirs):
        return None
    found = np.minimum(theirs.searchsorted(left), len(theirs) - 1)
    places = np.flatnonzero(theirs[found] == left)
    shifts = other[found[places]] - places
    later, count = np.unique(shifts[shifts > 0], return_counts=True)
    if not len(later) or 2 * count.max() < len(left):
        return None
    shift = int(later[count.argmax()])
    first = int(places[(shifts == shift).argmax()])
    return Rejoining(first, first + shift)


def shared(left: Hashes, right: Hashes) -> NDArray[np.bool_]:
    """Return, for each WINDOW tokens of `left`, whether `right` has them anywhere."""
    found: NDArray[np.bool_] = np.isin(left, right)
    return found


def num_moved(left: Hashes, right: Hashes) -> int:
    """Return how many pieces, of those that stand once in both, come in the right one before others
    that they come behind in the left one."""
    ours, at, times = np.unique(left, return_index=True, return_counts=True)
    theirs, other, other_times = np.unique(right, return_index=True, return_counts=True)
    ours, at = ours[times == 1], at[times == 1]
    theirs, other = theirs[other_times == 1], other[other_times == 1]
    _, first, second = np.intersect1d(ours, theirs, assume_unique=True, return_indices=True)
    places = other[second][at[first].argsort()]
    return int((places < np.maximum.accumulate(places)).sum())
