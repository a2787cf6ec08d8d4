"""A request's prompts, and which endpoint holds how much of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, repeat

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway.blocks.extra_keys import BlockExtras, request_extras
from inferway.blocks.keys import BlockHasher
from inferway.errors import RenderError
from inferway.index.protocol import Found, Index
from inferway.index.speculative import SpeculativeOverlay
from inferway.model import (
    BlockKey,
    Candidates,
    Column,
    HolderId,
    Prompt,
    Reason,
    TokenIds,
    Tokenized,
)
from inferway.openai_api.requests import Body, reads_cache
from inferway.prompts.served import ServedModel

_FEW = 32  # holders: for so many a loop is as fast as arrays
LONG_BLOCKS = 4_096  # a prompt of more is not derived, matched and weighed in one go


class Matched(msgspec.Struct, frozen=True):
    """A prompt, and what each holder has of its blocks: as the index knows it."""

    prompt: Prompt
    found: Found
    is_read: bool = True  # False: engines do not look in their cache for it; `found` is empty

    @property
    def held(self) -> Mapping[HolderId, int]:
        return self.found.blocks


# By block size of the model's engines: each of the request's prompts.
MatchedPrompts = Mapping[int, Sequence[Matched]]


class Lookup(msgspec.Struct, frozen=True):
    """A request's prompts and who holds them, for each block size of the model's engines."""

    prompts: MatchedPrompts
    reason: Reason  # whether the prompts are known to their end


@dataclass(slots=True)
class Matcher:
    """Request -> token ids -> block keys -> holders."""

    index: Index
    overlay: SpeculativeOverlay
    key_seed: int = 0
    breathe: Callable[[], Awaitable[None]] | None = None  # lets others have a turn
    _hashers: dict[int, BlockHasher] = field(default_factory=dict)

    async def match(self, model: ServedModel, body: Body) -> Lookup:
        """Raises RequestError, or RenderError for reasons of our own."""
        if model.unfaithful is not None:
            raise RenderError(model.unfaithful, reason=Reason.UNFAITHFUL)
        is_read = reads_cache(body)
        return await self.look_up(
            model, await model.tokenize(body), body.cache_salt, is_read=is_read
        )

    async def look_up(
        self,
        model: ServedModel,
        tokenized: Tokenized,
        cache_salt: str | None,
        *,
        is_read: bool = True,
    ) -> Lookup:
        """Who holds prompts that are tokens already."""
        extras = request_extras(lora=model.lora, cache_salt=cache_salt)
        prompts: list[Prompt] = []
        for block_size in model.block_sizes:
            for ids in tokenized.token_ids:
                keys = self._keys(block_size, ids, extras)
                prompts.append(Prompt(ids, keys))
                await self._breathe(keys)
        found: Iterable[Found] = repeat(Found())
        if is_read:
            found = await self.index.match_all([prompt.block_keys for prompt in prompts])
            await self._breathe(max([prompt.block_keys for prompt in prompts], key=len, default=()))
        matched = map(Matched, prompts, found, repeat(is_read))
        each = len(tokenized.token_ids)
        by_size = {size: list(islice(matched, each)) for size in model.block_sizes}
        return Lookup(by_size, tokenized.reason)

    def fill(
        self, candidates: Candidates, matched: MatchedPrompts, *, speculate: bool = True
    ) -> None:
        """Writes into the table what each endpoint holds of the prompts. With `speculate`,
        prompts on their way to an endpoint count as held by it."""
        if not matched:
            return
        candidates.matched_blocks = held_blocks = np.zeros(len(candidates.endpoints))
        less = np.zeros(len(candidates.endpoints))
        candidates.prompt_blocks = np.zeros(len(candidates.endpoints))
        for block_size, items in matched.items():
            of_size = candidates.block_sizes == block_size
            candidates.prompt_blocks[of_size] = sum([len(m.prompt.block_keys) for m in items])
            for item in items:
                held = item.held
                if speculate and item.is_read:
                    held = self.overlay.extend(item.prompt.block_keys, held)
                _add(held_blocks, candidates.rows, of_size, held)
                _add(less, candidates.rows, of_size, item.found.discount)
        candidates.matched_value = held_blocks - less

    async def _breathe(self, keys: Sequence[BlockKey]) -> None:
        """Between two steps that each take a millisecond or more."""
        if self.breathe is not None and len(keys) > LONG_BLOCKS:
            await self.breathe()

    def _keys(self, block_size: int, ids: TokenIds, extras: BlockExtras | None) -> list[int]:
        hasher = self._hashers.get(block_size)
        if hasher is None:
            hasher = self._hashers[block_size] = BlockHasher(block_size, self.key_seed)
        return hasher.keys(ids, extras)


def _add(
    column: Column,
    rows: Mapping[HolderId, int],
    of_size: NDArray[np.bool_],
    amounts: Mapping[HolderId, float],
) -> None:
    """To the rows of the holders, where `of_size` says so."""
    if len(amounts) <= _FEW:
        for holder, amount in amounts.items():
            row = rows.get(holder)
            if row is not None and of_size[row]:
                column[row] += amount
        return
    at = np.fromiter(map(rows.get, amounts, repeat(-1)), np.intp, len(amounts))
    counts = np.fromiter(amounts.values(), np.float64, len(amounts))
    known = at >= 0
    known &= of_size[at]
    column[at[known]] += counts[known]
