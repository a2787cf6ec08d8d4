"""One engine's events -> index operations. Returns them; does not call the index.

The engine names a block by its hash, the index by our key. The bridge between them is in
`bridge`: a stored block's key is computed from the tokens in the event, continued from its
parent's key. Copies are counted there: a key is removed from a tier with its last copy in it. A
removal of what the tier was never said to hold (an orphan, or stored before we joined) takes
nothing away.

Groups. Models with several kinds of attention publish each block once per KV-cache group
(`groups`). What is said here is of full attention; blocks of others are in `group_blocks`.

Orphans. A block whose parent we do not know cannot be keyed: its hash covers tokens that we have
not seen, and guessing would make wrong keys. It waits under the engine's hash (`orphans`), and its
children with it, unless its own hash is known from another copy. Who meets it in a prompt, hashed
as the engine does it, gives it its key: `adopt`.

Copies in other tiers. vLLM's offloading publishes tokens and adapter, but neither salts nor
pictures (0.32, offloading/events.py: `extra_keys=None`). So such an event is believed by its
hashes: those that are known, or were a moment ago, have their keys. Others count if the way in
which the engine hashes is known and shows that nothing else is hashed; if not, they wait, as
orphans do.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Protocol

import numpy as np

from inferway.kv.blocks.dialects import Dialect
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.events.event import (
    MAX_GROUPS,
    BlockRemoved,
    BlockStored,
    Event,
    blocks_of,
    is_dense,
)
from inferway.kv.events.group_blocks import GroupBlocks, with_extras
from inferway.kv.events.groups import GPU_MEDIA, NO_FACTS, CacheFacts, Groups
from inferway.kv.events.hash_to_key import Place, stored
from inferway.kv.events.hidden_places import Beside
from inferway.kv.events.holder_snapshot import HolderSnapshot, Position, SavedHolder
from inferway.kv.events.holder_state import ApplyStats, HolderState
from inferway.kv.events.orphans import MAX_ORPHANS as MAX_ORPHANS  # for the follower
from inferway.kv.index.protocol import FULL_ATTENTION, GPU, Holdings, Op, Tier
from inferway.kv.index.reuse import CacheLayout
from inferway.model import BlockKey, Cut, HolderId, TokenIds, cut_of

_TOKEN = np.dtype(np.uint32)
_SWEEP_EVERY = 32  # events
_SWEEP_BLOCKS = 2048

# Engines with blocks of one size share it, and the arrays that it computes in. A hasher is not for
# threads, and events are read on the event loop alone.
_hasher_of = lru_cache(maxsize=64)(BlockHasher)


class HashVerifier(Protocol):
    """Verifies how the engine hashes its blocks: a `dialect_finder.DialectFinder`, which says what
    each of these is."""

    def see(self, event: BlockStored) -> None: ...
    def confirms(self, event: BlockStored) -> bool: ...
    def dialect(self) -> Dialect | None: ...
    def is_moved(self, event: BlockStored) -> bool: ...


class EngineBlocks:
    """The blocks that one holder's engine has told us it holds.

    With `holdings` (the index itself, if it is in this process), the operations returned must be
    applied to it before the next event is handed in. That saves a third of the memory."""

    def __init__(
        self,
        holder: HolderId,
        block_size: int,
        seed: int = 0,
        *,
        holdings: Holdings | None = None,
        lora_path: Callable[[str], str | None] = lambda _: None,
        cache_facts: Callable[[], CacheFacts] = lambda: NO_FACTS,
    ) -> None:
        """`lora_path` says where an adapter is from, by its name; None if that is not known.
        `cache_facts` says what events do not: the same object as long as nothing has changed."""
        self.holder = holder
        self.block_size = block_size  # what prompts for this engine are cut into
        self.first_tokens: TokenIds | None = None  # of the last block that began a prompt
        self.stats = ApplyStats()
        self._verifier: HashVerifier | None = None
        self._lora_path = lora_path
        self._seed = seed
        self._hashers: dict[int, BlockHasher] = {}
        self._held = HolderState(holder, holdings, self.stats)
        self._events = 0
        self._full_kind: object = None  # group, kind, locality of an event of full attention
        self._group_blocks = GroupBlocks(
            self._held, seed, self._hasher, lora_path, self._see, lambda: self._dialect
        )
        self._cache_facts = cache_facts
        self._groups = Groups()
        self._coming: Sequence[object] = ()

    @property
    def block_size_seen(self) -> int | None:
        """The block size in tokens that the engine's last event had; None before the first."""
        return self._held.block_size

    @property
    def cut_seen(self) -> Cut | None:
        """The cut of prompts for the engine, as its events show; None before the first."""
        size, layout = self._held.block_size, self._held.layout
        return None if size is None else cut_of(size, layout.lookahead if layout else 0)

    @property
    def hash_size(self) -> int | None:
        """The tokens of a hash, as its groups show; None before they are known."""
        layout = self._held.layout
        return None if layout is None else layout.unit

    @property
    def num_orphans(self) -> int:
        """Blocks the engine holds, as far as we know, that no prompt can be matched with."""
        return len(self._held.orphans)

    def is_orphan(self, block_hash: int) -> bool:
        return block_hash in self._held.orphans

    @property
    def unplaced_kinds(self) -> tuple[str, ...]:
        """The kinds of groups, full attention left out, that hold blocks without a key."""
        return self._held.unplaced_kinds()

    @property
    def num_awaited(self) -> int:
        """Blocks of other groups than full attention that have no key."""
        return len(self._held.deferred)

    @property
    def has_waiting(self) -> bool:
        """True if there are blocks, of whatever group, that have no key and cannot be matched."""
        return bool(self._held.deferred or self._held.orphans.tiers)

    @property
    def num_blocks(self) -> int:
        """Hashes that we have a key for, once for each tier and group."""
        return len(self._held.bridge)

    @property
    def copies_count(self) -> bool:
        """True if a block is gone with its last copy; if False, it is gone with any removal."""
        return self._held.bridge.counting

    def count_no_copies(self) -> None:
        """Let any removal remove a block from here on, for good: for an engine that is asked to
        report blocks again. Call it before the first such request leaves.

        A request with `kv_cache_report_mode: full` makes vLLM 0.32 publish one more BlockStored for
        all blocks that it found in the cache, at each look-up (KVCacheManager.get_computed_blocks),
        as two equal prompts do that are computed at the same time. So stores do not tell how many
        copies there are."""
        self._held.count_no_copies()

    def verify_hashes(self, verifier: HashVerifier) -> None:
        """Ask this `verifier` from now on, and no other one. Without one no event is confirmed."""
        self._verifier = verifier

    def apply(self, event: Event) -> list[Op]:
        """Apply the engine's next event. Return what the index must do so that it stays true."""
        self._sweep()
        if type(event) is BlockStored:
            return self._stored(event)
        if type(event) is BlockRemoved:
            return self._removed(event)
        self.stats.cleared += 1
        at = next((i for i, each in enumerate(self._coming, 1) if each is event), 0)
        self._coming = self._coming[at:]  # what stands before it says nothing of the blocks to come
        return self.forget()

    def may_name_more_than_held(self, event: BlockStored) -> bool:
        """Return whether an event may say of blocks that they are held which are not; `apply` does
        nothing then (`GroupBlocks.may_name_more_than_held`)."""
        return self._group_blocks.may_name_more_than_held(event)

    def apply_together(self, events: Sequence[BlockStored | BlockRemoved]) -> list[Op] | None:
        """Apply the engine's next events, all about GPU memory, at once. Return what the index must
        do; None, and nothing has changed: they must be applied one by one."""
        held = self._held
        stores: list[BlockStored] = []
        removed: dict[Place, list[int]] = {}
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
        (or behind `parent`). Those that are orphans, or that orphans further on vouch for, are
        blocks from now on. Call it between two batches. Return what the index must do."""
        return [op for ops in self.adopt_in_steps(hashes, keys, parent) for op in ops]

    def adopt_in_steps(
        self, hashes: Sequence[int], keys: Sequence[BlockKey], parent: BlockKey | None = None
    ) -> Iterator[list[Op]]:
        """Do as `adopt`, in steps: the operations of each are to be applied before the next is
        taken, and no event meanwhile."""
        if self._held.orphans:
            yield from self._held.adopt(hashes, keys, parent)

    def take(self, position: Position) -> Generator[list[Op], None, HolderSnapshot]:
        """Return a snapshot of the blocks, which are as of that batch. It is made in steps, with
        no event meanwhile."""
        return self._held.take(position)

    def restore(self, saved: SavedHolder) -> Iterator[list[Op]]:
        """Have the blocks of a snapshot, before the engine's next event. Yield what the index must
        do, in steps to be done before the next is taken."""
        self._groups.restore(saved.snapshot.layout)
        return self._held.restore(saved)

    def forget(self) -> list[Op]:
        """Forget the engine's blocks and its groups. What else it is, and the counters, stay. The
        memory is given back by and by, or by `sweep`. Return what the index must do."""
        self._groups.clear()
        self._hashers.clear()
        self._group_blocks.clear()
        self._full_kind = None
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
        kind = (event.group_idx, event.spec_kind, event.locality)
        ops: list[Op] = []
        if kind != self._full_kind:
            if event.locality == "REMOTE":
                return self._skip("remote")
            if not 0 <= (event.group_idx or 0) < MAX_GROUPS:
                return self._skip("other_group")
            ops = self._learn(event)
            if not held.is_full(event.group_idx or 0):
                tier = held.tier(event.medium)
                if tier is None or held.layout is None:
                    return ops + self._skip("medium" if tier is None else "other_group")
                place = (tier, (event.group_idx or 0) + 1)
                return ops + self._group_blocks.store(event, place)
            self._full_kind = kind if event.medium in GPU_MEDIA else None
        tier = held.tiers.get(event.medium)
        if tier != GPU and (tier := held.tier(event.medium)) is None:
            return ops + self._skip("medium")
        if event.block_size != held.block_size and tier == GPU and event.token_ids:
            ops += self._learn(event)
            if event.block_size != held.block_size:
                if held.layout is not None and not held.layout.is_fine:
                    return ops  # vLLM names the last part of a prompt, and looks for no parts
                return ops + self._group_blocks.store_within(event, (tier, FULL_ATTENTION))
        if not event.token_ids:
            return ops + _store_without_tokens(held, event, tier)
        if tier != GPU and event.extra_keys is None:
            return ops + self._stored_copies(event, tier)
        return ops + self._stored_tokens(event, tier)

    # groups

    @property
    def _dialect(self) -> Dialect | None:
        return None if self._verifier is None else self._verifier.dialect()

    @property
    def expects_prompts(self) -> bool:
        """True if events may name parts of prompts without their tokens, or no group is known."""
        layout = self._held.layout
        return layout is None or layout.has_hidden_places

    def expect_prompt(
        self, token_ids: Sequence[int] | TokenIds, keys: Sequence[BlockKey], beside: Beside
    ) -> Iterator[list[Op]]:
        """Take a prompt that is on its way to the engine, whose whole blocks have these keys:
        events may name parts of it without their tokens. Yield what the index must do, in steps of
        some milliseconds, to be done before the next is taken."""
        return self._group_blocks.expect(token_ids, keys, beside)

    def expect(self, events: Sequence[object]) -> list[Op]:
        """Take the events that come next, of one batch: what they say of groups is known before the
        first of them is applied. Return what the index must do before."""
        self._coming = events
        facts = self._cache_facts()
        if facts is self._groups.facts:
            return []
        self._groups.facts = facts
        return self._lay_out()

    @property
    def layout(self) -> CacheLayout | None:
        """The groups of KV caches that its events have named; None before the first."""
        return self._held.layout

    def _learn(self, event: BlockStored) -> list[Op]:
        groups = self._groups
        if event.medium not in GPU_MEDIA or event.block_size < 1 or groups.knows(event):
            return []
        groups.learn(event, self._coming)
        return self._lay_out()

    def _lay_out(self) -> list[Op]:
        held, layout = self._held, self._groups.layout()
        if layout is None or layout == held.layout:
            return []
        self._full_kind = None
        self._hashers.clear()
        ops: list[Op] = []
        if held.is_undone_by(layout):  # what it was taken for, its blocks were keyed by
            ops = held.clear()
            self._skip("groups_changed")
        return ops + held.set_layout(layout)

    def _stored_tokens(self, event: BlockStored, tier: Tier) -> list[Op]:
        hashes, parent = event.block_hashes, None
        held, size, tokens = self._held, event.block_size, event.token_ids
        rest = event  # without what is known from another copy
        if len(tokens) != len(hashes) * size:
            return self._group_blocks.store_known(event, (tier, FULL_ATTENTION))
        self._see(event, tier)
        ops: list[Op] = []
        if event.parent_hash is None:
            verifier = self._verifier
            if event.lora_name and verifier is not None and verifier.is_moved(event):
                held.wait(hashes, (tier, FULL_ATTENTION), implies_ancestors=True)
                return []
        else:
            parent = held.bridge.key(event.parent_hash)
            if held.within and parent in held.within:
                parent = None
            if parent is None:  # one of them may be known from another copy
                known = [held.bridge.key(block_hash) for block_hash in hashes]
                first = next((i for i, key in enumerate(known) if key is not None), len(hashes))
                held.wait(hashes[:first], (tier, FULL_ATTENTION), implies_ancestors=True)
                if first == len(hashes):
                    return ops
                ops = held.add(hashes[first : first + 1], (tier, FULL_ATTENTION))
                rest, parent = blocks_of(event, first + 1, len(hashes)), known[first]
                hashes, tokens = rest.block_hashes, rest.token_ids
        hasher = self._hashers.get(size) or self._hasher(size)
        extras = None
        if rest.lookahead_token_ids or not rest.has_tokens_alone:
            tokens, extras = with_extras(rest, self._group_blocks.path(rest))
        keys = hasher.keys_of_list(tokens, extras, parent)
        ops += held.store(hashes, keys, parent, tier)
        layout = held.layout
        if layout is None or layout.has_hidden_places:
            ops += self._group_blocks.follow(event)
        return ops

    def _see(self, event: BlockStored, tier: Tier = GPU) -> None:
        """Note what an event with tokens tells beside its blocks."""
        if self._verifier is not None and tier == GPU:
            self._verifier.see(event)
        if event.block_size != self.block_size:
            self.stats.other_block_size += 1
        if event.parent_hash is None:
            self.first_tokens = np.array(event.token_ids[: event.block_size], _TOKEN)

    def _stored_copies(self, event: BlockStored, tier: Tier) -> list[Op]:
        """An event that may keep to itself what is hashed beside its tokens."""
        held, hashes = self._held, event.block_hashes
        known = [h for h in hashes if held.bridge.key(h) is not None]
        ops: list[Op] = []
        if len(known) < len(hashes):
            verifier, is_there = self._verifier, all(held.key(h) is not None for h in hashes)
            if not is_there and verifier is not None and verifier.confirms(event):
                return self._stored_tokens(event, tier)
            is_cut_so = event.block_size == (self.block_size_seen or self.block_size)
            ops = _store_again(held, event, tier, is_cut_so=is_cut_so)
        return ops + held.add(known, (tier, FULL_ATTENTION))

    def _removed(self, event: BlockRemoved) -> list[Op]:
        place = self._place(event)
        if isinstance(place, str):
            return self._skip(place)
        return self._held.remove(event.block_hashes, place)

    def _place(self, event: BlockRemoved) -> Place | str:
        """Return where an event's blocks were; the reason to skip it if that is not kept."""
        held, group = self._held, event.group_idx or 0
        if event.locality == "REMOTE":
            return "remote"
        if not 0 <= group < MAX_GROUPS:
            return "other_group"
        tier = held.tier(event.medium)
        if tier is None:
            return "medium"
        return tier, FULL_ATTENTION if held.is_full(group) else group + 1

    # steps

    def _sweep(self) -> None:
        self._events += 1
        if self._events >= _SWEEP_EVERY:
            self._events = 0
            self._held.bridge.sweep(_SWEEP_BLOCKS)

    def _is_ordinary(self, event: BlockStored) -> bool:
        """Return whether the event stores blocks of full attention, of the size that we know, and
        tells their tokens, with nothing else in them."""
        held, size, num_blocks = self._held, event.block_size, len(event.block_hashes)
        kind = (event.group_idx, event.spec_kind, event.locality)
        return (
            size == held.block_size
            and kind == self._full_kind
            and num_blocks > 0
            and is_dense(event)
            and event.lookahead_token_ids is None
            and event.has_tokens_alone
        )

    def _hasher(self, block_size: int) -> BlockHasher:
        lookahead = self._groups.lookahead
        hasher = self._hashers[block_size] = _hasher_of(block_size, self._seed, lookahead)
        return hasher

    def _skip(self, reason: str) -> list[Op]:
        self.stats.skip(reason)
        return []


def _store_without_tokens(held: HolderState, event: BlockStored, tier: Tier) -> list[Op]:
    """Add the blocks of an event without tokens: those that other events have given a key, and
    orphans. Return what the index must do."""
    hashes, place = event.block_hashes, (tier, FULL_ATTENTION)
    known = [h for h in hashes if held.bridge.key(h) is not None]
    orphans = [h for h in hashes if h in held.orphans] if held.orphans else []
    if len(known) + len(orphans) < len(hashes):
        held.stats.skip("unknown_hash")
    held.wait(orphans, place)
    return held.add(known, place)


def _store_again(held: HolderState, event: BlockStored, tier: Tier, *, is_cut_so: bool) -> list[Op]:
    """Add those of an event's blocks that are not known any more, or not yet. `is_cut_so`: prompts
    are cut into blocks of their size; LMCache has chunks. Return what the index must do."""
    parent = event.parent_hash
    ops: list[Op] = []
    waiting: list[int] = []
    for block_hash in event.block_hashes:
        if held.bridge.key(block_hash) is None:
            again = held.store_again(block_hash, parent, tier)
            ops += again or []
            if again is None:
                waiting.append(block_hash)
        parent = block_hash
    if waiting and not is_cut_so:
        held.stats.skip("block_size")
        return ops
    held.wait(waiting, (tier, FULL_ATTENTION))
    return ops
