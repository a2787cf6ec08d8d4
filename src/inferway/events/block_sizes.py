"""An engine whose blocks are smaller or bigger than those that prompts are cut into.

It is for an index with one key size for all engines; a gateway of its own computes keys in each
engine's size, which costs nothing and loses nothing.

Bigger engine blocks (64 tokens, keys of 16) are several keys each: they come and go together.
Several smaller ones (16 tokens, keys of 64) make one key. It is there when all of them are, and
goes with the first that is evicted; the others are remembered, so that it is there again when
that one returns. If they lie in different tiers, the key lies in the lowest of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from inferway.blocks.extra_keys import BlockExtras, ExtraItem, ExtraItems, event_extras
from inferway.blocks.keys import BlockHasher
from inferway.events.event import BlockStored
from inferway.index.protocol import Op, Remove, Store, Tier
from inferway.model import BlockKey, HolderId, TokenIds

_NO_EXTRAS = BlockExtras()


class _Piece:
    """One engine block: one or several keys, or a part of one."""

    __slots__ = (
        *("before", "children", "copies", "hash", "items", "keys"),
        *("parent", "part", "size", "tier"),
    )

    def __init__(self, block_hash: int, size: int, part: int, parent: _Piece | None) -> None:
        self.hash = block_hash
        self.size = size  # in tokens
        self.part = part  # its place within its key's block
        self.parent = parent  # within the same key's block
        self.before: BlockKey | None = None  # the key before the first of its own
        self.keys: Sequence[BlockKey] = ()  # none if it is a part, but the last
        self.items: tuple[TokenIds, ExtraItems] | None = None  # what its key is made of, of a part
        self.copies: dict[Tier, int] = {}
        self.children: dict[int, _Piece] = {}  # within the same key's block
        self.tier: Tier | None = None  # where its keys are for the index

    def way(self) -> Iterator[_Piece]:
        """The parts of its key up to here, last first."""
        piece: _Piece | None = self
        while piece is not None:
            yield piece
            piece = piece.parent

    def lowest_tier(self) -> Tier | None:
        """Of all parts; None if one is missing."""
        tiers = [min(piece.copies) if piece.copies else None for piece in self.way()]
        present = [tier for tier in tiers if tier is not None]
        return max(present) if len(present) == len(tiers) else None


class ResizedBlocks:
    """What a holder's engine told us, in keys of `key_size` tokens."""

    def __init__(self, holder: HolderId, key_size: int, seed: int) -> None:
        self._holder = holder
        self._key_size = key_size
        self._hasher = BlockHasher(key_size, seed)
        self._pieces: dict[int, _Piece] = {}
        self._hashes_of: dict[tuple[Tier, BlockKey], int] = {}  # how many stand for a key

    def __len__(self) -> int:
        return len(self._pieces)

    def fits(self, block_size: int) -> bool:
        """Whether blocks of one size are made of whole blocks of the other."""
        smaller, bigger = sorted((block_size, self._key_size))
        return smaller > 0 and bigger % smaller == 0

    def knows(self, block_hash: int) -> bool:
        return block_hash in self._pieces

    def clear(self) -> None:
        self._pieces.clear()
        self._hashes_of.clear()

    def stored(
        self, event: BlockStored, tokens: TokenIds, tier: Tier, lora_path: str | None = None
    ) -> list[Op] | None:
        """None: its parent is not known, or was of another size."""
        previous = self._pieces.get(event.parent_hash) if event.parent_hash is not None else None
        known = [self._pieces.get(block_hash) for block_hash in event.block_hashes]
        if event.parent_hash is not None and previous is None and None in known[:1]:
            return None
        if any(piece and piece.size != event.block_size for piece in (previous, *known)):
            return None
        told = event_extras(event.lora_name, event.extra_keys, event.lora_id, lora_path)
        extras = told or _NO_EXTRAS
        changed = []
        for i, block_hash in enumerate(event.block_hashes):
            piece = self._pieces.get(block_hash)
            if piece is None:
                own = tokens[i * event.block_size : (i + 1) * event.block_size]
                piece = self._new(block_hash, previous, own, extras.every, extras.at.get(i, ()))
            changed.append(piece)
            previous = piece
        return self._copied(changed, tier)

    def known(self, hashes: Sequence[int], tier: Tier) -> list[Op]:
        """An event without tokens."""
        return self._copied([self._pieces[h] for h in hashes if h in self._pieces], tier)

    def removed(self, block_hash: int, tier: Tier) -> list[Op] | None:
        """None: the tier has no copy of it."""
        piece = self._pieces.get(block_hash)
        if piece is None or tier not in piece.copies:
            return None
        piece.copies[tier] -= 1
        if piece.copies[tier]:
            return []
        del piece.copies[tier]
        ops = self._moved([piece])
        self._drop_unused(piece)
        return ops

    # pieces

    def _new(
        self,
        block_hash: int,
        previous: _Piece | None,
        tokens: TokenIds,
        every: ExtraItems,
        items: ExtraItems,
    ) -> _Piece:
        parts = max(1, self._key_size // len(tokens))
        part = 0 if previous is None else (previous.part + 1) % parts
        piece = _Piece(block_hash, len(tokens), part, previous if part else None)
        if part and previous is not None:
            piece.before = previous.before
            previous.children[block_hash] = piece
        elif previous is not None:
            piece.before = previous.keys[-1]
        if parts == 1:
            extras = BlockExtras(every, _spread(items, self._key_size, len(tokens)))
            piece.keys = self._hasher.keys(tokens, extras, piece.before)
        else:
            offset = part * len(tokens)
            piece.items = (tokens, tuple([_shifted(item, offset) for item in items]))
            if part == parts - 1:
                piece.keys = [self._key(piece, every)]
        self._pieces[block_hash] = piece
        return piece

    def _key(self, last: _Piece, every: ExtraItems) -> BlockKey:
        made_of = [piece.items for piece in last.way() if piece.items is not None][::-1]
        tokens = np.concatenate([tokens for tokens, _ in made_of])
        items = tuple(dict.fromkeys(item for _, items in made_of for item in items))
        extras = BlockExtras(every, {0: items} if items else {})
        [key] = self._hasher.keys(tokens, extras, last.before)
        return key

    def _drop_unused(self, piece: _Piece) -> None:
        """A piece that is gone is remembered as long as it is a part of what is not."""
        unused: _Piece | None = piece
        while unused is not None and not unused.copies and not unused.children:
            del self._pieces[unused.hash]
            if unused.parent is not None:
                del unused.parent.children[unused.hash]
            unused = unused.parent

    # operations

    def _copied(self, pieces: Sequence[_Piece], tier: Tier) -> list[Op]:
        for piece in pieces:
            piece.copies[tier] = piece.copies.get(tier, 0) + 1
        return _joined(self._moved(pieces))

    def _moved(self, pieces: Sequence[_Piece]) -> list[Op]:
        """Pieces came or went: what that means for the keys that they are a part of."""
        ops: list[Op] = []
        for piece in _with_descendants(pieces):
            if not piece.keys:
                continue
            old, new = piece.tier, piece.lowest_tier()
            piece.tier = new
            if new is not None and new != old:
                ops += self._store(piece, new)
            if old is not None and new != old:
                ops += self._remove(piece, old)
        return ops

    def _store(self, piece: _Piece, tier: Tier) -> list[Op]:
        for key in piece.keys:
            self._hashes_of[tier, key] = self._hashes_of.get((tier, key), 0) + 1
        return [Store(self._holder, piece.keys, piece.before, tier)]

    def _remove(self, piece: _Piece, tier: Tier) -> list[Op]:
        gone = []
        for key in piece.keys:
            left = self._hashes_of.pop((tier, key)) - 1
            if left:
                self._hashes_of[tier, key] = left
            else:
                gone.append(key)
        return [Remove(self._holder, gone, tier)] if gone else []


def _joined(ops: Sequence[Op]) -> list[Op]:
    """Stores that continue each other as one."""
    joined: list[Op] = []
    for op in ops:
        last = joined[-1] if joined else None
        if (
            isinstance(op, Store)
            and isinstance(last, Store)
            and (op.tier, op.parent) == (last.tier, last.keys[-1])
        ):
            joined[-1] = Store(op.holder, [*last.keys, *op.keys], last.parent, op.tier)
        else:
            joined.append(op)
    return joined


def _with_descendants(pieces: Sequence[_Piece]) -> Iterator[_Piece]:
    """Each once; in the order given."""
    seen: set[int] = set()
    for start in pieces:
        waiting = [start]
        while waiting:
            piece = waiting.pop()
            if piece.hash not in seen:
                seen.add(piece.hash)
                yield piece
                waiting.extend(piece.children.values())


def _spread(items: ExtraItems, key_size: int, block_size: int) -> dict[int, ExtraItems]:
    """Items of a big block on the keys it is made of: a picture's where it begins, the others on
    the first."""
    at: dict[int, ExtraItems] = {}
    for kind, value, offset in items:
        i = max(0, offset) // key_size if kind == "mm" and offset < block_size else 0
        at[i] = (*at.get(i, ()), (kind, value, offset - i * key_size if kind == "mm" else offset))
    return at


def _shifted(item: ExtraItem, offset: int) -> ExtraItem:
    kind, value, own = item
    return (kind, value, own + offset) if kind == "mm" else item
