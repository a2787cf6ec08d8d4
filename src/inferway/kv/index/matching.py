"""Along a prompt: where holders drop out, how much lies in lower tiers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from inferway.kv.index.shards import Shards
from inferway.model import BlockKey

StateOf = Callable[[BlockKey], int]


def prefix_lengths(
    keys: Sequence[BlockKey],
    shards: Shards[int],
    states: Sequence[int],
    masks: Sequence[int],
    holders: int,
) -> list[tuple[int, int]]:
    """Return (holders, how many blocks they have), in rising order, for those with the first one.

    `masks` of `states` of slots must only ever lose bits along a prompt. So what two blocks have
    in common is what all between them have, and a search by halving finds every place where it
    changes: one probe if there is none, about log2(n) for each.
    """
    at, shift = shards.at, shards.shift
    low, high = 0, len(keys) - 1
    key = keys[0]
    low_state = states[at[key >> shift].get(key, 0)]
    low_mask = masks[low_state] & holders
    if not low_mask:
        return []
    key = keys[high]
    high_mask = masks[states[at[key >> shift].get(key, 0)]] & low_mask
    found: list[tuple[int, int]] = []
    above: list[tuple[int, int]] = []  # stretches still to be searched: their (high, high_mask)
    while True:
        while low_mask != high_mask:
            middle = (low + high) >> 1
            if middle == low:
                found.append((low_mask ^ high_mask, high))
                break
            key = keys[middle]
            state = states[at[key >> shift].get(key, 0)]
            if state == low_state:
                low = middle
                continue
            mask = masks[state] & low_mask
            if mask == low_mask:
                low, low_state = middle, state
                continue
            above.append((high, high_mask))
            high, high_mask = middle, mask
        low, low_mask, low_state = high, high_mask, -1
        if not low_mask or not above:
            break
        high, high_mask = above.pop()
    if low_mask:
        found.append((low_mask, len(keys)))
    return found


def walked_prefix_lengths(
    keys: Sequence[BlockKey], state_of: StateOf, masks: Sequence[int], holders: int
) -> list[tuple[int, int]]:
    """Return what `prefix_lengths` returns, block by block: for `masks` that may gain bits along a
    prompt."""
    found: list[tuple[int, int]] = []
    left = holders
    for i, key in enumerate(keys):
        still = masks[state_of(key)] & left
        if still != left:
            if i:
                found.append((left ^ still, i))
            left = still
            if not left:
                return found
    found.append((left, len(keys)))
    return found


def runs(keys: Sequence[BlockKey], state_of: StateOf) -> Iterator[tuple[int, int, int]]:
    """Yield (state, start, end) of stretches of blocks with one state."""
    start, last = 0, -1
    for i, key in enumerate(keys):
        state = state_of(key)
        if state != last:
            if i:
                yield last, start, i
            start, last = i, state
    if keys:
        yield last, start, len(keys)
