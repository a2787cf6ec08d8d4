"""Blocks that are no link of the chain of full attention: of other groups, and parts of blocks.

Such a block that ends where one of full attention does has its hash, and so its key. Another one is
keyed by its own tokens, if the block before it is known and its event has the tokens of all blocks
that it names. Where blocks between them were skipped, an event does not say which: they are found
by hashing as the engine does (`hidden_places`), or their hashes wait until they are known from
elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from inferway.kv.blocks.dialects import Dialect, LoraAdapter
from inferway.kv.blocks.extra_keys import BlockExtras, event_extras
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.blocks.places import hasher_within
from inferway.kv.events.event import BlockStored, blocks_of, is_dense
from inferway.kv.events.hash_to_key import Place
from inferway.kv.events.hidden_places import Beside, HiddenPlaces
from inferway.kv.events.holder_state import HolderState
from inferway.kv.index.protocol import Op
from inferway.kv.index.reuse import FULL
from inferway.model import BlockKey, TokenIds

_TOKEN = np.dtype(np.uint32)
_PIECE_HASHES = 512  # made at a time: some milliseconds


class GroupBlocks:
    """The blocks that one engine has stored so. It writes what it finds to `held`."""

    def __init__(
        self,
        held: HolderState,
        seed: int,
        hasher: Callable[[int], BlockHasher],
        lora_path: Callable[[str], str | None],
        see: Callable[[BlockStored], None],
        dialect: Callable[[], Dialect | None],
    ) -> None:
        """`hasher` makes keys of whole blocks of a size, `seed` is its own. `dialect` says how the
        engine hashes, if that is known, and `see` is shown events to find that out."""
        self._held = held
        self._seed = seed
        self._hasher = hasher
        self._lora_path = lora_path
        self._see = see
        self._dialect = dialect
        self._hidden = HiddenPlaces(held.bridge.key)

    def store_known(self, event: BlockStored, place: Place) -> list[Op]:
        """Add those of an event's blocks whose keys are known, or whose places can be found; the
        others wait. Return what the index must do."""
        held, hashes = self._held, event.block_hashes
        ops = self.follow(event)
        known = [h for h in hashes if held.bridge.key(h) is not None]
        unknown = [h for h in hashes if held.bridge.key(h) is None]
        ops += held.add(known, place)
        for block_hash in unknown:
            ops += self._store_hidden(block_hash, place)
        return ops

    def _store_hidden(self, block_hash: int, place: Place) -> list[Op]:
        """Add a block whose key is not known: where it is found by hashing, or it waits."""
        held, found = self._held, self._hidden.find(block_hash)
        if found is None or found.key is None:
            held.wait([block_hash], place)
            return []
        return held.store_placed(block_hash, found.key, found.parent, found.within, place)

    def follow(self, event: BlockStored) -> list[Op]:
        """Hash an event's tokens as the engine does, if blocks may be stored there of which events
        do not say where they are. Return what the index must do for those that waited."""
        layout, dialect = self._held.layout, self._dialect()
        if layout is None or not layout.has_hidden_places or dialect is None:
            return []
        beside = self._beside(event)
        if beside is None or not event.token_ids:
            return []
        tokens: Sequence[int] = event.token_ids
        if event.lookahead_token_ids:
            tokens = [*tokens, *event.lookahead_token_ids[-1]]
        hasher, parent_hash = self._hasher(layout.block_size), event.parent_hash
        return self._found(
            self._hidden.follow(dialect, layout, hasher, parent_hash, tokens, beside)
        )

    def expect(
        self, token_ids: Sequence[int] | TokenIds, keys: Sequence[BlockKey], beside: Beside
    ) -> Iterator[list[Op]]:
        """Hash a prompt that the engine is about to compute, if blocks may be stored of which its
        events will not say where they are. Yield what the index must do for those that waited,
        piece by piece."""
        layout, dialect = self._held.layout, self._dialect()
        if layout is None or not layout.has_hidden_places or dialect is None:
            return
        size, ahead = layout.block_size, layout.lookahead
        hasher, done = self._hasher(size), self._hidden.last_of(keys)
        parent_hash = self._hidden.hash_of(keys[done - 1]) if done else None
        step = max(_PIECE_HASHES * layout.unit // size, 1) * size
        for start in range(done * size, len(token_ids), step):
            tokens = token_ids[start : start + step + ahead]
            hashes = self._hidden.follow(
                dialect, layout, hasher, parent_hash, tokens, beside, start
            )
            yield self._found(hashes)
            parent_hash = hashes[-1] if hashes else None
            if parent_hash is None:
                return

    def clear(self) -> None:
        """Forget what was hashed."""
        self._hidden.clear()

    def _found(self, hashes: Sequence[int]) -> list[Op]:
        """Give those of the blocks that wait their keys."""
        held = self._held
        ops: list[Op] = []
        for block_hash in hashes if held.awaits(hashes) else ():
            found = self._hidden.find(block_hash)
            if found is not None and found.key is not None:
                for place in held.take_waiting(block_hash):
                    ops += held.store_placed(
                        block_hash, found.key, found.parent, found.within, place
                    )
        return ops

    def _beside(self, event: BlockStored) -> Beside | None:
        """Return what is hashed beside an event's tokens; None if that is not known."""
        if _has_media(event) or (event.lora_name is None and event.lora_id is not None):
            return None
        lora = None
        if event.lora_name is not None:
            path = self._lora_path(event.lora_name)
            if path is None:
                return None
            lora = LoraAdapter(event.lora_name, path)
        salt = None
        if event.parent_hash is None and event.extra_keys:
            first = event.extra_keys[0]
            texts = list(first) if isinstance(first, list | tuple) else []
            if lora is not None and lora.name in texts:
                texts.remove(lora.name)
            salt = texts[0] if texts else None
        return Beside(lora, salt)

    def may_name_more_than_held(self, event: BlockStored) -> bool:
        """Return whether an event may be a report of a sparse group's blocks: vLLM 0.32 names all
        of them up to the hit, also those that the group does not hold
        (BlockPool.emit_cached_block_events). A report begins with the prompt."""
        is_sparse = event.spec_kind is not None and event.spec_kind not in FULL
        return is_sparse and event.parent_hash is None and not self._held.bridge.counting

    def store(self, event: BlockStored, place: Place) -> list[Op]:
        """Add the blocks of a group that is not full attention. Return what the index must do."""
        held, layout, hashes = self._held, self._held.layout, event.block_hashes
        assert layout is not None
        size, parent_hash = layout.block_size, event.parent_hash
        if layout.full_position is None:
            self._see(event)
        if self.may_name_more_than_held(event):
            return []
        if all(held.bridge.key(h) is not None for h in hashes):
            return held.add(hashes, place)
        if event.block_size % size:
            return self.store_within(event, place)
        parent = None if parent_hash is None else held.bridge.key(parent_hash)
        is_orphan = parent_hash is not None and (parent is None or parent in held.within)
        if not is_dense(event) or (event.block_size > size and _has_media(event)):
            return self.store_known(event, place)
        if is_orphan:  # those behind the first block that is known from elsewhere have keys
            known = [
                key if key not in held.within else None for key in map(held.bridge.key, hashes)
            ]
            after = next((i for i, key in enumerate(known, 1) if key is not None), len(hashes))
            ops = self.store_known(blocks_of(event, 0, after), place)
            return ops + self.store(blocks_of(event, after, len(hashes)), place)
        path = self.path(event)
        keys = self._hasher(size).keys_of_list(*with_extras(event, path), parent)
        each = event.block_size // size
        ops = []
        for i, block_hash in enumerate(hashes, 1):
            at = i * each - 1
            before = keys[at - 1] if at else parent
            ops += held.store_placed(block_hash, keys[at], before, 0, place)
        return ops

    def store_within(self, event: BlockStored, place: Place) -> list[Op]:
        """Add blocks that end within whole ones: of a group with smaller blocks, or the last part
        of a prompt. Return what the index must do."""
        held, layout, unit = self._held, self._held.layout, event.block_size
        assert layout is not None
        size, hashes, parent_hash = layout.block_size, event.block_hashes, event.parent_hash
        if not is_dense(event) or unit > size or size % unit:
            return self.store_known(event, place)
        key = None if parent_hash is None else held.bridge.key(parent_hash)
        parent, within = (None, 0) if key is None else held.within.get(key, (key, 0))
        is_orphan = parent_hash is not None and key is None
        ops = self.follow(event) if is_orphan else []
        for i, block_hash in enumerate(hashes):
            known = held.bridge.key(block_hash)
            within += unit
            if known is None and (is_orphan or within == size):
                # A whole block's key is made of its tokens, which may be in several events.
                is_orphan = True
                ops += self._store_hidden(block_hash, place)
                continue
            if is_orphan and known is not None:
                parent, within = held.within.get(known, (None, size))
                is_orphan = False
            if within == size:
                assert known is not None
                parent, within, key = known, 0, known
                ops += held.add([block_hash], place)
                continue
            key = self._key_within(event, i, key) if known is None else known
            ops += held.store_placed(block_hash, key, parent, within, place)
        return ops

    def path(self, event: BlockStored) -> str | None:
        """Return where an event's adapter is from, if that is for its blocks to say."""
        if event.parent_hash is not None or not event.lora_name:
            return None
        return self._lora_path(event.lora_name)

    def _key_within(self, event: BlockStored, i: int, parent: BlockKey | None) -> BlockKey:
        assert self._held.layout is not None
        size, layout = event.block_size, self._held.layout
        hasher = hasher_within(layout.unit, self._seed, layout.lookahead)
        tokens = [*event.token_ids[i * size : (i + 1) * size]]
        if event.lookahead_token_ids:
            tokens += event.lookahead_token_ids[i]
        entry = event.extra_keys[i : i + 1] if event.extra_keys else None
        path = None if i else self.path(event)
        extras = event_extras(event.lora_name, entry, event.lora_id, path)
        return hasher.keys(np.array(tokens, _TOKEN), extras, parent)[-1]


def with_extras(event: BlockStored, path: str | None) -> tuple[Sequence[int], BlockExtras | None]:
    """Return the tokens of an event's blocks, with those behind them that their hashes cover, and
    what else is hashed. `path` is where its adapter is from."""
    tokens: Sequence[int] = event.token_ids
    if event.lookahead_token_ids:
        tokens = [*tokens, *event.lookahead_token_ids[-1]]
    if event.has_tokens_alone:
        return tokens, None
    return tokens, event_extras(event.lora_name, event.extra_keys, event.lora_id, path)


def _has_media(event: BlockStored) -> bool:
    """Return whether an event's hashes cover something that belongs to some of the tokens."""
    entries = [entry for entry in event.extra_keys or () if isinstance(entry, list | tuple)]
    return any(not isinstance(item, str) for entry in entries for item in entry)
