"""One engine's events -> index operations. Returns them; does not call the index.

The engine names a block by its hash, the index by our key. The bridge between them is in
`bridge`: a stored block's key is computed from the tokens in the event, continued from its
parent's key. Copies are counted there: a key is removed from a tier with its last copy in it. A
removal of what the tier was never said to hold (an orphan, or stored before we joined) takes
nothing away.

Groups. Models with several kinds of attention publish each block once per KV-cache group. The
full-attention group decides what prefix can be reused; a sliding-window group must still cover
its last window. Which is which, the events say (`kv_cache_spec_kind`); until one does, group 0
is full attention. A window group's blocks are known by their hashes, which are those of the full
group; their events carry tokens of blocks that have left the window as well, so they cannot be
keyed. Events of other groups (Mamba, local attention) are counted and skipped.

Orphans. A block whose parent we do not know cannot be keyed: its hash covers tokens that we have
not seen, and guessing would make wrong keys. It waits under the engine's hash (`orphans`), and its
children with it, unless its own hash is known from another copy. Who meets it in a prompt, hashed
as the engine does it, gives it its key: `adopt`.

Copies. Who moves blocks to another tier need not say all that is hashed: vLLM's offloading
publishes tokens and adapter, but neither salts nor pictures (0.32, offloading/events.py:
`extra_keys=None`). So such an event is believed by its hashes: those that are known, or were a
moment ago, have their keys. Others count if `confirm` says that nothing else is hashed; if not,
they wait, as orphans do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Protocol

import numpy as np

from inferway.kv.blocks.extra_keys import event_extras
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.events.event import WINDOW_KINDS, BlockRemoved, BlockStored, Event
from inferway.kv.events.hash_to_key import Place
from inferway.kv.events.holder_state import ApplyStats, HolderState
from inferway.kv.events.orphans import MAX_ORPHANS as MAX_ORPHANS  # for the follower
from inferway.kv.events.records import Record
from inferway.kv.events.together import stored
from inferway.kv.index.protocol import (
    FULL_ATTENTION,
    GPU,
    Holdings,
    Op,
    Tier,
)
from inferway.model import BlockKey, HolderId, TokenIds

_FULL_ATTENTION = ("full_attention", "mla_attention", "sink_full_attention")
_TOKEN = np.dtype(np.uint32)
_SWEEP_EVERY = 32  # events
_SWEEP_BLOCKS = 2048


# Engines with blocks of one size share it, and the arrays that it computes in. A hasher is not for
# threads, and events are read on the event loop alone.
_hasher_of = lru_cache(maxsize=64)(BlockHasher)


class HashVerifier(Protocol):
    """What knows how the engine hashes its blocks: a `dialect_finder.DialectFinder`."""

    def see(self, event: BlockStored) -> None:
        """Take note of stored blocks of full attention in GPU memory, with tokens."""

    def confirms(self, event: BlockStored) -> bool:
        """Return whether tokens and adapter alone make an event's hashes."""

    def is_moved(self, event: BlockStored) -> bool:
        """Return whether an adapter's event that begins a prompt is of another path than the one
        that is known."""


class EngineBlocks:
    """The blocks that one holder's engine has told us it holds.

    With `holdings` (the index itself, if it is in this process), the operations returned must be
    applied to it before the next event is handed in: asking it which keys the holder has saves a
    third of the memory."""

    def __init__(
        self,
        holder: HolderId,
        block_size: int,
        seed: int = 0,
        *,
        holdings: Holdings | None = None,
        on_record: Callable[[Record], None] | None = None,
        lora_path: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        """`on_record` is told what an event changed, before `apply` returns. `lora_path` says where
        an adapter is from, by its name; None if that is not known."""
        self.holder = holder
        self.block_size = block_size  # what prompts for this engine are cut into
        self.first_tokens: TokenIds | None = None  # of the last block that began a prompt
        self.stats = ApplyStats()
        self._verifier: HashVerifier | None = None
        self._lora_path = lora_path
        self._seed = seed
        self._hashers: dict[int, BlockHasher] = {}
        self._held = HolderState(holder, holdings, on_record, self.stats)
        self._events = 0
        self._full_kind: object = None  # group, kind, locality of an event of full attention, and
        # which group that was

    @property
    def block_size_seen(self) -> int | None:
        """The block size in tokens that the engine's last event had; None before the first."""
        return self._held.block_size

    @property
    def num_orphans(self) -> int:
        """Blocks the engine holds, as far as we know, that no prompt can be matched with."""
        return len(self._held.orphans)

    def is_orphan(self, block_hash: int) -> bool:
        return block_hash in self._held.orphans

    @property
    def num_windows(self) -> int:
        """Sliding-window groups that its events have named."""
        return len(self._held.windows)

    @property
    def num_awaited(self) -> int:
        """Window blocks whose full-attention block we have not heard of."""
        return len(self._held.deferred)

    @property
    def num_blocks(self) -> int:
        """Hashes that we have a key for, once for each tier and group."""
        return len(self._held.bridge)

    @property
    def copies_count(self) -> bool:
        """Whether a block is gone with its last copy; if False, it is gone with any removal."""
        return self._held.bridge.counting

    def count_no_copies(self) -> None:
        """Let any removal remove a block from here on: for an engine that is asked to report blocks
        again. Call it before the first such request leaves; between two events as well.

        A request with `kv_cache_report_mode: full` makes vLLM 0.32 publish one more BlockStored
        for all blocks that it found in the cache, from the prompt's start on, at each look-up
        (KVCacheManager.get_computed_blocks; again when it did not fit in and is tried anew). It
        has the very form of a real one: two equal prompts that are computed at the same time
        publish the same. So stores do not tell how many copies there are, and believing too little
        is the safe side.

        For good, whatever the engine clears and however often it starts anew: of a new life too,
        reports may be on their way before we hear that it has begun."""
        self._held.count_no_copies()

    def verify_hashes(self, verifier: HashVerifier) -> None:
        """Ask `verifier` from now on, and nobody else. Without one no event is confirmed."""
        self._verifier = verifier

    def apply(self, event: Event) -> list[Op]:
        """Apply the engine's next event. Return what the index must do so that it stays true."""
        self._sweep()
        if type(event) is BlockStored:
            return self._stored(event)
        if type(event) is BlockRemoved:
            return self._removed(event)
        self.stats.cleared += 1
        return self.forget()

    def apply_together(self, events: Sequence[BlockStored | BlockRemoved]) -> list[Op] | None:
        """Apply the engine's next events, all about GPU memory, at once. Return what the index must
        do; None, and nothing has changed: they must be applied one by one."""
        held, stores, removed = self._held, list[BlockStored](), dict[Place, list[int]]()
        self._sweep()
        for event in events:
            if type(event) is BlockStored:
                if not self._is_ordinary(event):
                    return None
                stores.append(event)
            elif type(event) is BlockRemoved:
                place = self._place(event)
                if isinstance(place, str):
                    return None
                removed.setdefault(place, []).extend(event.block_hashes)
        size = held.block_size or self.block_size
        hasher = self._hashers.get(size) or self._hasher(size)
        gone = set(chain.from_iterable(removed.values()))
        found = stored(stores, gone, self.holder, held.bridge, hasher)
        if found is None or held.awaits(found.blocks):
            return None
        for event in stores:
            self._see(event)
        ops = [op for place, hashes in removed.items() for op in held.remove(hashes, place)]
        return [*ops, *held.store_together(found, ops)] if stores else ops

    def adopt(
        self, hashes: Sequence[int], keys: Sequence[BlockKey], parent: BlockKey | None = None
    ) -> list[Op]:
        """Give a prompt's blocks, which the engine hashes like this, these keys, from its start on
        (or behind `parent`). Those that are orphans, or that orphans further on vouch for
        (`orphans`), are blocks from now on. Call it between two batches. Return what the index
        must do."""
        return [op for ops in self.adopt_in_steps(hashes, keys, parent) for op in ops]

    def adopt_in_steps(
        self, hashes: Sequence[int], keys: Sequence[BlockKey], parent: BlockKey | None = None
    ) -> Iterator[list[Op]]:
        """Do as `adopt`, in steps: the operations of each are to be applied before the next is
        taken, and no event meanwhile."""
        if self._held.orphans:
            yield from self._held.adopt(hashes, keys, parent)

    def apply_record(self, record: Record) -> list[Op]:
        """Do again what the record says, without a record of it, and return what the index must do.
        All records of an engine are to be redone in order, before its next event."""
        return self._held.apply_record(record)

    def forget(self) -> list[Op]:
        """Forget the engine's blocks. What kind of engine it is, and the counters, stay. The memory
        is given back by and by, or by `sweep`. Return what the index must do."""
        return self._held.clear()

    def sweep(self, max_blocks: int) -> bool:
        """Free what `forget` left, and forget what the index has evicted, looking at about so many
        blocks. Return whether there is more to do."""
        return self._held.bridge.sweep(max_blocks)

    def num_bytes(self) -> int:
        """Return about how much memory it takes. Keys are counted with the index."""
        return self._held.bridge.num_bytes()

    # events

    def _stored(self, event: BlockStored) -> list[Op]:
        held = self._held
        kind = (event.group_idx, event.spec_kind, event.locality, held.full_group)
        if kind != self._full_kind:
            if event.locality == "REMOTE":
                return self._skip("remote")
            if not self._is_full(event.group_idx or 0, event.spec_kind):
                return self._stored_window(event)
            self._full_kind = (*kind[:3], held.full_group)
        tier = held.tiers.get(event.medium)
        if tier != GPU and (tier := held.tier(event.medium)) is None:
            return self._skip("medium")
        if not event.token_ids:
            return self._stored_known(event, tier)
        if tier != GPU and event.extra_keys is None:
            return self._stored_copies(event, tier)
        return self._stored_tokens(event, tier)

    def _stored_tokens(self, event: BlockStored, tier: Tier) -> list[Op]:
        hashes, parent = event.block_hashes, None
        held, size = self._held, event.block_size
        if size != held.block_size:
            held.set_block_size(size)
        self._see(event, tier)
        tokens, extra_keys = event.token_ids, event.extra_keys
        ops: list[Op] = []
        if event.parent_hash is None:
            verifier = self._verifier
            if event.lora_name and verifier is not None and verifier.is_moved(event):
                held.wait(hashes, (tier, FULL_ATTENTION), implies_ancestors=True)
                return []
        else:
            parent = held.bridge.key(event.parent_hash)
            if parent is None:  # one of them may be known from another copy
                known = [held.bridge.key(block_hash) for block_hash in hashes]
                first = next((i for i, key in enumerate(known) if key is not None), len(hashes))
                held.wait(hashes[:first], (tier, FULL_ATTENTION), implies_ancestors=True)
                if first == len(hashes):
                    return ops
                parent, done = known[first], first + 1
                ops = held.add(hashes[first:done], (tier, FULL_ATTENTION))
                hashes, tokens = hashes[done:], tokens[done * size :]
                extra_keys = extra_keys[done:] if extra_keys else None
        hasher = self._hashers.get(size) or self._hasher(size)
        extras = None
        if not _has_tokens_alone(event):
            path = self._path(event)
            extras = event_extras(event.lora_name, extra_keys, event.lora_id, path)
        keys = hasher.keys_of_list(tokens, extras, parent)
        return ops + held.store(hashes, keys, parent, tier)

    def _see(self, event: BlockStored, tier: Tier = GPU) -> None:
        """Note what an event with tokens tells beside its blocks."""
        if self._verifier is not None and tier == GPU:
            self._verifier.see(event)
        if event.block_size != self.block_size:
            self.stats.other_block_size += 1
        if event.parent_hash is None:
            self.first_tokens = np.array(event.token_ids[: event.block_size], _TOKEN)

    def _path(self, event: BlockStored) -> str | None:
        """Where its adapter is from, if that is for its blocks to say."""
        if event.parent_hash is not None or not event.lora_name:
            return None
        return self._lora_path(event.lora_name)

    def _stored_known(self, event: BlockStored, tier: Tier) -> list[Op]:
        """An event without tokens: blocks that other events have given a key, or orphans."""
        hashes, held, place = event.block_hashes, self._held, (tier, FULL_ATTENTION)
        known = [h for h in hashes if held.bridge.key(h) is not None]
        orphans = [h for h in hashes if h in held.orphans] if held.orphans else []
        if len(known) + len(orphans) < len(hashes):
            self.stats.skip("unknown_hash")
        held.wait(orphans, place)
        return held.add(known, place)

    def _stored_copies(self, event: BlockStored, tier: Tier) -> list[Op]:
        """An event that may keep to itself what is hashed beside its tokens."""
        held, hashes = self._held, event.block_hashes
        known = [h for h in hashes if held.bridge.key(h) is not None]
        ops: list[Op] = []
        if len(known) < len(hashes):
            if not all(held.remembers(h) for h in hashes) and self._is_confirmed(event):
                return self._stored_tokens(event, tier)
            ops = self._stored_again(event, tier)
        return ops + held.add(known, (tier, FULL_ATTENTION))

    def _stored_again(self, event: BlockStored, tier: Tier) -> list[Op]:
        """Those of its blocks that are not known any more, or not yet."""
        held, parent = self._held, event.parent_hash
        ops: list[Op] = []
        waiting: list[int] = []
        for block_hash in event.block_hashes:
            if held.bridge.key(block_hash) is None:
                again = held.store_again(block_hash, parent, tier)
                ops += again or []
                if again is None:
                    waiting.append(block_hash)
            parent = block_hash
        if waiting and event.block_size != (self.block_size_seen or self.block_size):
            return ops + self._skip("block_size")  # LMCache's chunks: no prompt is cut like that
        held.wait(waiting, (tier, FULL_ATTENTION))
        return ops

    def _is_confirmed(self, event: BlockStored) -> bool:
        return self._verifier is not None and self._verifier.confirms(event)

    def _stored_window(self, event: BlockStored) -> list[Op]:
        held, group = self._held, event.group_idx or 0
        tier, blocks = held.tier(event.medium), self._window_blocks(event)
        if tier is None or (not blocks and group not in held.windows):
            return self._skip("other_group")
        ops: list[Op] = []
        if held.windows.get(group) != blocks:
            ops.append(held.set_window(group, blocks))
        if not blocks:
            return ops
        place = (tier, group + 1)
        known: list[int] = []
        unknown: list[int] = []
        for block_hash in event.block_hashes:
            (unknown if held.bridge.key(block_hash) is None else known).append(block_hash)
        held.wait(unknown, place)
        return ops + held.add(known, place)

    def _window_blocks(self, event: BlockStored) -> int:
        """How many blocks the event's group must have of a prefix's end; 0 if that cannot be
        told. Blocks of another size than the full group's have hashes of their own."""
        if event.spec_kind is None:
            return self._held.windows.get(event.group_idx or 0, 0)
        same_size = event.block_size == (self.block_size_seen or self.block_size)
        if event.spec_kind not in WINDOW_KINDS or not event.sliding_window or not same_size:
            return 0
        # as vLLM's SlidingWindowManager: the token to come sees window - 1 tokens before it
        return -(-(event.sliding_window - 1) // event.block_size)

    def _removed(self, event: BlockRemoved) -> list[Op]:
        place = self._place(event)
        return (
            self._skip(place)
            if isinstance(place, str)
            else self._held.remove(event.block_hashes, place)
        )

    def _place(self, event: BlockRemoved) -> Place | str:
        """Return where an event's blocks were; the reason to skip it if that is not kept."""
        held, group = self._held, event.group_idx or 0
        if event.locality == "REMOTE":
            return "remote"
        tier = held.tier(event.medium)
        if tier is None:
            return "medium"
        if group in held.windows:
            return tier, group + 1
        return (tier, FULL_ATTENTION) if group == (held.full_group or 0) else "other_group"

    # steps

    def _sweep(self) -> None:
        self._events += 1
        if self._events >= _SWEEP_EVERY:
            self._events = 0
            self._held.bridge.sweep(_SWEEP_BLOCKS)

    def _is_ordinary(self, event: BlockStored) -> bool:
        """Whether it stores blocks of full attention, of the size that we know, and tells their
        tokens, with nothing else in them."""
        held, size, num_blocks = self._held, event.block_size, len(event.block_hashes)
        kind = (event.group_idx, event.spec_kind, event.locality, held.full_group)
        return (
            size == held.block_size
            and kind == self._full_kind
            and num_blocks > 0
            and len(event.token_ids) == num_blocks * size
            and _has_tokens_alone(event)
        )

    def _is_full(self, group: int, kind: str | None) -> bool:
        """Return whether a group's blocks are those that decide."""
        if kind is not None and kind not in _FULL_ATTENTION:
            return False
        if self._held.full_group is None and kind is not None:
            self._held.set_full_group(group)
        return group == (self._held.full_group or 0)

    def _hasher(self, block_size: int) -> BlockHasher:
        hasher = self._hashers[block_size] = _hasher_of(block_size, self._seed)
        return hasher

    def _skip(self, reason: str) -> list[Op]:
        self.stats.skip(reason)
        return []


def _has_tokens_alone(event: BlockStored) -> bool:
    """Whether nothing but its tokens is hashed into its blocks."""
    extra_keys = event.extra_keys
    return (
        (extra_keys is None or not any(extra_keys))
        and not event.lora_name
        and event.lora_id is None
    )
