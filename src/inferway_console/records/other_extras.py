"""Prompts that no engine holds, and that an engine holds under another cache salt or adapter.

Of prompts that have either, the first block is remembered by the key that it would have without.
Where such a prompt, or a plain one with the same first block, is found nowhere, its keys are made
anew as the other's were, and the index is asked. That is done for a few a second only.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

import msgspec

from inferway.errors import InferwayError
from inferway.kv.blocks.extra_keys import BlockExtras, request_extras
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.index.prefix_lengths import longest
from inferway.kv.index.protocol import MatchResult
from inferway.model import BlockKey, Endpoint, HolderId, Prompt, TokenIds
from inferway.routing.journey import Routed
from inferway.tasks import Tasks
from inferway_console.records.decided import DecidedRequest
from inferway_console.records.record import Miss, MissKind

log = logging.getLogger("inferway.records")

MOST_PROMPTS = 1_024  # first blocks that are remembered
MOST_EACH = 4  # salts and adapters of each
LOOKS_A_SECOND = 20
MOST_TOKENS = 65_536  # of a prompt that is looked at


class Matches(Protocol):
    async def match(self, keys: Sequence[BlockKey]) -> MatchResult: ...


class Extras(msgspec.Struct, frozen=True):
    """The adapter and the salt that set a prompt's blocks apart."""

    adapter: str | None = None
    salt: str | None = None
    path: str | None = None  # of the adapter

    def blocks(self) -> BlockExtras | None:
        return request_extras(self.adapter, self.salt, self.path)

    def kind(self, other: Extras) -> MissKind:
        """Return why this prompt reuses none of the blocks that the other one has stored."""
        return MissKind.OTHER_ADAPTER if self.adapter != other.adapter else MissKind.SALTED


PLAIN = Extras()


class OtherExtras:
    """A recorder's LooksElsewhere. `key_seed` is the matcher's."""

    def __init__(self, index: Matches, key_seed: int = 0) -> None:
        self._index = index
        self._seed = key_seed
        self._hashers: dict[int, BlockHasher] = {}
        self._seen: OrderedDict[BlockKey, list[tuple[Extras, str]]] = OrderedDict()
        self._second, self._looks = -1, 0
        self._tasks = Tasks(log, "a prompt was not looked for under another salt or adapter")

    async def close(self) -> None:
        await self._tasks.close()

    def see(self, routed: Routed, prompt: Prompt, size: int, endpoint: Endpoint) -> None:
        """Remember a prompt that has a salt or an adapter, and goes to this endpoint."""
        extras = _extras(routed)
        first = self._plain(prompt, size)
        known = self._seen.setdefault(first, [])
        self._seen.move_to_end(first)
        if (extras, endpoint.name) not in known:
            known.append((extras, endpoint.name))
            del known[:-MOST_EACH]
        if len(self._seen) > MOST_PROMPTS:
            self._seen.popitem(last=False)

    def under_other(self, endpoint: Endpoint, first: BlockKey) -> MissKind | None:
        """Return why a plain prompt of this first key may not be reused at the endpoint that was
        sent the same text with a salt or an adapter; None if it was not."""
        for extras, name in self._seen.get(first, ()):
            if name == endpoint.name:
                return PLAIN.kind(extras)
        return None

    def look(self, routed: Routed, prompt: Prompt, noted: DecidedRequest) -> None:
        """Find out whether others hold the prompt under another salt or adapter, and note that as
        a miss: a moment later."""
        own, size = _extras(routed), noted.block_size
        if not size or len(prompt.token_ids) < size:
            return
        if own == PLAIN:
            if not self._seen:
                return
            first = prompt.block_keys[0]
            others = [extras for extras, _ in self._seen.get(first, ())]
        else:
            others = [extras for extras, _ in self._seen.get(self._plain(prompt, size), ())]
            others = [PLAIN, *(extras for extras in others if extras != own)]
            self.see(routed, prompt, size, noted.endpoint)
        if others and len(prompt.token_ids) <= MOST_TOKENS and self._may_look(noted.at):
            self._tasks.spawn(self._look(own, others, prompt.token_ids, noted))

    def _may_look(self, now: float) -> bool:
        if int(now) != self._second:
            self._second, self._looks = int(now), 0
        self._looks += 1
        return self._looks <= LOOKS_A_SECOND

    async def _look(
        self, own: Extras, others: Sequence[Extras], ids: TokenIds, noted: DecidedRequest
    ) -> None:
        best = 0
        for other in others:
            keys = self._hasher(noted.block_size).keys(ids, other.blocks())
            try:
                found = await self._index.match(keys)
            except InferwayError:
                return
            if not found.blocks:
                continue
            blocks, holder = longest(found.blocks)
            if blocks > best:
                best = blocks
                noted.missed = (_miss(own, other, blocks, noted, holder),)

    def _plain(self, prompt: Prompt, size: int) -> BlockKey:
        return self._hasher(size).keys(prompt.token_ids[:size], None)[0]

    def _hasher(self, size: int) -> BlockHasher:
        hasher = self._hashers.get(size)
        if hasher is None:
            hasher = self._hashers[size] = BlockHasher(size, self._seed)
        return hasher


def _extras(routed: Routed) -> Extras:
    model = routed.model
    return Extras(model.lora, routed.request.body.cache_salt, model.lora_path)


def _miss(own: Extras, other: Extras, blocks: int, noted: DecidedRequest, holder: HolderId) -> Miss:
    kind = own.kind(other)
    names = [each.name for each in noted.roster.endpoints if each.holder == holder]
    what = "without a salt" if other.salt is None else "under another salt"
    if kind is MissKind.OTHER_ADAPTER:
        what = "of the base model" if other.adapter is None else f"of adapter {other.adapter!r}"
    return Miss(kind, blocks, f"{names[0] if names else 'another endpoint'}: holds them {what}")
