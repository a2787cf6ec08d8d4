"""A request's prompts, and which endpoint holds how much of them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, repeat

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway.errors import (
    InferwayError,
    RenderError,
    crash_report,
    panic_as_error,
)
from inferway.kv.blocks.extra_keys import BlockExtras, request_extras
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.index.prefix_lengths import HolderIds, PrefixLengths
from inferway.kv.index.protocol import Index, MatchResult, Tier
from inferway.kv.index.speculative import SpeculativeOverlay
from inferway.model import (
    BlockKey,
    Candidates,
    Column,
    Endpoint,
    HolderId,
    Prompt,
    Reason,
    TokenIds,
    Tokenized,
)
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import Body, MessagesRequest, reads_cache
from inferway.prompts.served import ServedModel
from inferway.scheduling.per_endpoint import PerEndpoint

log = logging.getLogger("inferway.director")

_FEW = 32  # holders: for so many a loop is as fast as arrays
LONG_BLOCKS = 4_096  # a prompt of more is not derived, matched and weighed in one go


class Matched(msgspec.Struct, frozen=True):
    """A prompt, and what each holder has of its blocks: as the index knows it."""

    prompt: Prompt
    found: MatchResult
    is_read: bool = True  # False: engines do not look in their cache for it; `found` is empty


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
    _holders: PerEndpoint[HolderIds] = field(default_factory=lambda: PerEndpoint(_holders_of))

    async def match_if_possible(self, model: ServedModel, body: Body) -> Lookup:
        """Return who holds the request's prompts; routing must never make an answer impossible, so
        what cannot be rendered, or matched, has no prompts, and goes by load. Raises
        RequestError."""
        if not model.block_sizes:
            return Lookup({}, Reason.NO_BLOCK_SIZE)
        try:
            return await self.match(model, body)
        except RenderError as e:
            return Lookup({}, Reason(e.reason))
        except InferwayError:
            raise
        except BaseException as e:
            log.error(
                "a prompt for model %r could not be derived, and its request goes by load only: %s",
                model.name,
                crash_report(panic_as_error(e)),
            )
            return Lookup({}, Reason.OUR_FAULT)

    async def match(self, model: ServedModel, body: Body) -> Lookup:
        """Return who holds the request's prompts. Raises RequestError, or RenderError for reasons
        of our own."""
        if model.unfaithful is not None:
            raise RenderError(model.unfaithful, reason=Reason.UNFAITHFUL)
        if model.unfaithful_messages is not None and isinstance(body, MessagesRequest):
            raise RenderError(model.unfaithful_messages, reason=Reason.UNFAITHFUL)
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
        """Return who holds prompts that are tokens already."""
        extras = request_extras(model.lora, cache_salt, model.lora_path)
        prompts = await self._prompts(model, tokenized, extras)
        found: Iterable[MatchResult] = repeat(MatchResult())
        if is_read:
            found = await self._found(prompts)
            if len(model.lora_paths) > 1:
                found = await self._found_by_path(model, tokenized, cache_salt, found)
        matched = map(Matched, prompts, found, repeat(is_read))
        each = len(tokenized.token_ids)
        by_size = {size: list(islice(matched, each)) for size in model.block_sizes}
        return Lookup(by_size, tokenized.reason)

    async def _prompts(
        self, model: ServedModel, tokenized: Tokenized, extras: BlockExtras | None
    ) -> list[Prompt]:
        prompts: list[Prompt] = []
        for block_size in model.block_sizes:
            for ids in tokenized.token_ids:
                prompts.append(Prompt(ids, await self._keys(block_size, ids, extras)))
        return prompts

    async def _found(self, prompts: Sequence[Prompt]) -> Sequence[MatchResult]:
        found = await self.index.match_all([prompt.block_keys for prompt in prompts])
        await self._breathe(max([prompt.block_keys for prompt in prompts], key=len, default=()))
        return found

    async def _found_by_path(
        self,
        model: ServedModel,
        tokenized: Tokenized,
        cache_salt: str | None,
        first: Sequence[MatchResult],
    ) -> Sequence[MatchResult]:
        """Engines that have the adapter from different places have different blocks of a prompt:
        of each, what it has of its own. `first`: as found with the first place."""
        found = [first]
        for path in islice(model.lora_paths, 1, None):
            extras = request_extras(model.lora, cache_salt, path)
            found.append(await self._found(await self._prompts(model, tokenized, extras)))
        holders = list(model.lora_paths.values())
        return [_joined(zip(each, holders, strict=True)) for each in zip(*found, strict=True)]

    def fill(
        self, candidates: Candidates, matched: MatchedPrompts, *, speculate: bool = True
    ) -> None:
        """Write into the table what each endpoint holds of the prompts. With `speculate`, prompts
        on their way to an endpoint count as held by it."""
        if not matched:
            return
        candidates.matched_blocks = held_blocks = np.zeros(len(candidates.endpoints))
        less = np.zeros(len(candidates.endpoints))
        candidates.prompt_blocks = np.zeros(len(candidates.endpoints))
        for block_size, items in matched.items():
            of_size = candidates.block_sizes == block_size
            candidates.prompt_blocks[of_size] = sum([len(m.prompt.block_keys) for m in items])
            for item in items:
                held = item.found.blocks
                if isinstance(held, PrefixLengths):
                    held_blocks += held.column(self._holders(candidates.endpoints)) * of_size
                else:
                    _add(held_blocks, candidates.rows, of_size, held)
                if speculate and item.is_read:
                    longer = self.overlay.longer(item.prompt.block_keys, held)
                    more = {at: blocks - held.get(at, 0) for at, blocks in longer.items()}
                    _add(held_blocks, candidates.rows, of_size, more)
                _add(less, candidates.rows, of_size, item.found.discount)
        candidates.weighted_matched_blocks = held_blocks - less

    async def _breathe(self, keys: Sequence[BlockKey]) -> None:
        """Between two steps that each take a millisecond or more."""
        if self.breathe is not None and len(keys) >= LONG_BLOCKS:
            await self.breathe()

    async def _keys(
        self, block_size: int, ids: TokenIds, extras: BlockExtras | None
    ) -> list[BlockKey]:
        hasher = self._hashers.get(block_size)
        if hasher is None:
            hasher = self._hashers[block_size] = BlockHasher(block_size, self.key_seed)
        keys = hasher.keys(ids[: LONG_BLOCKS * block_size], extras)
        behind = None if extras is None else BlockExtras(extras.every)  # a request's are no others
        for start in range(LONG_BLOCKS, len(ids) // block_size, LONG_BLOCKS):
            await self._breathe(keys)
            piece = ids[start * block_size : (start + LONG_BLOCKS) * block_size]
            keys += hasher.keys(piece, behind, keys[-1])
        await self._breathe(keys)
        return keys


def _holders_of(endpoints: Sequence[Endpoint]) -> HolderIds:
    return np.array([endpoint.holder for endpoint in endpoints], np.intp)


def with_prompts(request: LLMRequest, matched: MatchedPrompts, *, are_whole: bool) -> LLMRequest:
    if not matched:
        return request
    prompts = {size: [item.prompt for item in items] for size, items in matched.items()}
    return msgspec.structs.replace(request, prompts=prompts, prompts_are_whole=are_whole)


def _joined(parts: Iterable[tuple[MatchResult, Collection[HolderId]]]) -> MatchResult:
    """Return what was found of some holders in one search and of others in another."""
    blocks: dict[HolderId, int] = {}
    discount: dict[HolderId, float] = {}
    lower: dict[HolderId, Mapping[Tier, int]] = {}
    for found, holders in parts:
        blocks |= {at: n for at, n in found.blocks.items() if at in holders}
        discount |= {at: n for at, n in found.discount.items() if at in holders}
        lower |= {at: n for at, n in found.lower.items() if at in holders}
    return MatchResult(blocks, discount, lower)


def _add(
    column: Column,
    rows: Mapping[HolderId, int],
    of_size: NDArray[np.bool_],
    amounts: Mapping[HolderId, float],
) -> None:
    """Add the amounts to the rows of their holders, where `of_size` is true."""
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
