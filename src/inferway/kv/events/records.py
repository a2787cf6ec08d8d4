"""What an event changed in `apply.EngineBlocks`, so that it can be done again after a restart.

In our terms: hashes and block keys, never tokens. `EngineBlocks(on_record=...)` writes them down,
`EngineBlocks.redo` does again what they say. All records of an engine in order make an equal
EngineBlocks, and their operations an equal index.

Two things are not written down. How many events of which kind there were (statistics). And what
orphans say of the blocks before them (`orphans`): that depends on all that was removed since, and
whoever shortens a journal leaves out what was stored and removed again. So after a restart an
orphan is adopted as before, but vouches for itself alone.

Lists are those of the event: read them at once or copy them, and never change them.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from inferway.kv.index.protocol import FULL_ATTENTION, Tier
from inferway.kv.index.reuse import CacheLayout
from inferway.model import BlockKey


class StoredRecord(Struct, frozen=True, gc=False, array_like=True, tag="s"):
    """One more copy of each block of a chain of full attention, the first the child of `parent`
    (None: it begins a prompt). They may have been there already, or been orphans, or be awaited by
    other groups."""

    hashes: Sequence[int]
    keys: Sequence[BlockKey]
    parent: BlockKey | None = None
    tier: Tier = 0
    group: int = FULL_ATTENTION  # always


class PlacedRecord(Struct, frozen=True, gc=False, array_like=True, tag="p"):
    """One more copy of a block that is no link of the chain: of another group, or within a block.
    `parent` is the whole block before it, and `within` how many tokens of the next one it has, 0
    if it ends where a whole block does."""

    block_hash: int
    key: BlockKey
    parent: BlockKey | None
    within: int
    tier: Tier
    group: int


class KnownRecord(Struct, frozen=True, gc=False, array_like=True, tag="k"):
    """One more copy of each of these blocks, whose keys are known from another place or copy."""

    hashes: Sequence[int]
    tier: Tier
    group: int  # as `kv.index.protocol` numbers them: the engine's + 1, or FULL_ATTENTION


class WaitingRecord(Struct, frozen=True, gc=False, array_like=True, tag="w"):
    """One more copy of blocks without a key: orphans, or (in other groups than FULL_ATTENTION)
    those of a window whose full-attention blocks are unknown."""

    hashes: Sequence[int]
    tier: Tier
    group: int = FULL_ATTENTION


class AdoptedRecord(Struct, frozen=True, gc=False, array_like=True, tag="a"):
    """A chain of blocks that have got their keys: those that were orphans with all their copies,
    the others with one copy in the best tier."""

    hashes: Sequence[int]
    keys: Sequence[BlockKey]
    parent: BlockKey | None


class RemovedRecord(Struct, frozen=True, gc=False, array_like=True, tag="r"):
    """One copy less of each of these blocks, if there was one."""

    hashes: Sequence[int]
    tier: Tier
    group: int


class ClearedRecord(Struct, frozen=True, array_like=True, tag="c"):
    """The engine's blocks are gone, or forgotten, and its groups with them: a new one may have
    others. What else it is stays: the records below."""


class LaidOutRecord(Struct, frozen=True, array_like=True, tag="L"):
    """The engine's groups of KV caches are these; None: they are not known."""

    layout: CacheLayout | None


class TierNamed(Struct, frozen=True, array_like=True, tag="T"):
    """The engine has a tier that we had no number for."""

    name: str
    tier: Tier


class BlockSize(Struct, frozen=True, array_like=True, tag="B"):
    """The engine's blocks have so many tokens, as its events say."""

    tokens: int


class Uncounted(Struct, frozen=True, array_like=True, tag="U"):
    """Copies are not counted from here on (`EngineBlocks.count_no_copies`)."""


Record = (
    StoredRecord
    | PlacedRecord
    | KnownRecord
    | WaitingRecord
    | AdoptedRecord
    | RemovedRecord
    | ClearedRecord
    | LaidOutRecord
    | TierNamed
    | BlockSize
    | Uncounted
)
