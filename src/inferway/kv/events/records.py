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
from inferway.model import BlockKey


class StoredRecord(Struct, frozen=True, gc=False, array_like=True, tag="s"):
    """One more copy of each block of a chain, the first the child of `parent` (None: it begins a
    prompt). They may have been there already, or been orphans, or be awaited by windows."""

    hashes: Sequence[int]
    keys: Sequence[BlockKey]
    parent: BlockKey | None = None
    tier: Tier = 0
    group: int = FULL_ATTENTION  # always


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
    """The engine's blocks are gone, or forgotten. What kind of engine it is stays: the four
    below."""


class Windowed(Struct, frozen=True, array_like=True, tag="W"):
    """The engine's group `group` is a window of so many blocks; 0: it is none any more."""

    group: int  # the engine's number
    blocks: int


class FullGroup(Struct, frozen=True, array_like=True, tag="F"):
    """The engine's group `group` is the one with full attention."""

    group: int  # the engine's number


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
    | KnownRecord
    | WaitingRecord
    | AdoptedRecord
    | RemovedRecord
    | ClearedRecord
    | Windowed
    | FullGroup
    | TierNamed
    | BlockSize
    | Uncounted
)
