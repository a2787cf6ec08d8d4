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
    UnknownMediaError,
    crash_report,
    panic_as_error,
)
from inferway.kv.blocks.extra_keys import BlockExtras, request_extras
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.blocks.places import PromptPlaces
from inferway.kv.index.prefix_lengths import HolderIds, PrefixLengths
from inferway.kv.index.protocol import Index, MatchResult, Tier
from inferway.kv.index.reuse import Reuse
from inferway.kv.index.speculative import SpeculativeOverlay
from inferway.model import (
    BlockKey,
    Candidates,
    Column,
    Cut,
    Endpoint,
    HolderId,
    MediaName,
    Prompt,
    Reason,
    TokenIds,
    Tokenized,
    block_size_of,
    lookahead_of,
)
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import Body, reads_cache
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


_NOTHING = MatchResult()

# By the cuts of the model's engines: each of the request's prompts.
MatchedPrompts = Mapping[Cut, Sequence[Matched]]


class Lookup(msgspec.Struct, frozen=True):
    """A request's prompts and their holders, for each cut of the model's engines."""

    prompts: MatchedPrompts
    reason: Reason  # whether the prompts are known to their end
    names: Sequence[MediaName] = ()  # that the media of the body must get


@dataclass(slots=True)
class Matcher:
    """Request -> token ids -> block keys -> holders."""

    index: Index
    overlay: SpeculativeOverlay
    key_seed: int = 0
    breathe: Callable[[], Awaitable[None]] | None = None  # lets others have a turn
    _hashers: dict[Cut, BlockHasher] = field(default_factory=dict)
    _holders: PerEndpoint[HolderIds] = field(default_factory=lambda: PerEndpoint(_holders_of))

    async def match_if_possible(self, model: ServedModel, body: Body) -> Lookup:
        """Return the holders of the request's prompts; routing must never make an answer
        impossible, so what cannot be rendered, or matched, has no prompts, and goes by load. Raises
        RequestError."""
        if not model.cuts:
            return Lookup({}, Reason.NO_BLOCK_SIZE)
        try:
            return await self.match(model, body)
        except UnknownMediaError as e:
            return Lookup({}, Reason.MEDIA, e.names)
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
        """Return the holders of the request's prompts. Raises RequestError, or RenderError for
        reasons of our own."""
        if model.unfaithful is not None and body.is_rendered:
            raise RenderError(model.unfaithful, reason=Reason.UNFAITHFUL)
        if model.unfaithful_messages is not None and body.tells_length:
            raise RenderError(model.unfaithful_messages, reason=Reason.UNFAITHFUL)
        is_read = reads_cache(body)
        return await self.look_up(
            model, await body.tokenized_by(model), body.cache_salt, is_read=is_read
        )

    async def look_up(
        self,
        model: ServedModel,
        tokenized: Tokenized,
        cache_salt: str | None,
        *,
        is_read: bool = True,
    ) -> Lookup:
        """Return the holders of prompts that are tokens already."""
        extras = request_extras(model.lora, cache_salt, model.lora_path)
        prompts = await self._prompts(model, tokenized, extras)
        found: Iterable[MatchResult] = repeat(_NOTHING)
        if is_read:
            found = await self._found(prompts)
            if len(model.lora_paths) > 1:
                found = await self._found_by_path(model, tokenized, cache_salt, found)
        matched = map(Matched, prompts, found, repeat(is_read))
        each = len(tokenized.token_ids)
        by_cut = {cut: list(islice(matched, each)) for cut in model.cuts}
        return Lookup(by_cut, tokenized.reason, tokenized.names)

    async def renewed(self, model: ServedModel, matched: MatchedPrompts) -> MatchedPrompts:
        """Return the same prompts with their holders of now: the request has waited."""
        items = [item for each in matched.values() for item in each if item.is_read]
        if not items or len(model.lora_paths) > 1:  # each path has prompts of its own
            return matched
        found = iter(await self._found([item.prompt for item in items]))
        return {
            cut: [Matched(each.prompt, next(found)) if each.is_read else each for each in of_cut]
            for cut, of_cut in matched.items()
        }

    async def _prompts(
        self, model: ServedModel, tokenized: Tokenized, extras: BlockExtras | None
    ) -> list[Prompt]:
        prompts: list[Prompt] = []
        has_layouts, media, of_cut = self.index.has_layouts, tokenized.media, extras
        for cut in model.cuts:
            hasher = self._hashers.get(cut)
            if hasher is None:
                hasher = BlockHasher(block_size_of(cut), self.key_seed, lookahead_of(cut))
                self._hashers[cut] = hasher
            if media:
                size, lookahead = hasher.block_size, hasher.lookahead
                of_cut = (extras or BlockExtras()).with_media(media, size, lookahead)
            for ids in tokenized.token_ids:
                keys = await self._keys(hasher, ids, of_cut)
                places = PromptPlaces(hasher, ids, keys, extras, media) if has_layouts else None
                prompts.append(Prompt(ids, keys, places, media))
        return prompts

    async def _found(self, prompts: Sequence[Prompt]) -> Sequence[MatchResult]:
        places = [prompt.places for prompt in prompts] if self.index.has_layouts else None
        found = await self.index.match_all([prompt.block_keys for prompt in prompts], places)
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

    async def num_held(self, prompt: Prompt, holder: HolderId) -> int:
        """Return how many blocks of the prompt the holder has."""
        [found] = await self._found([prompt])
        return found.blocks.get(holder, 0)

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
        for cut, items in matched.items():
            of_size = candidates.cuts == cut
            candidates.prompt_blocks[of_size] = sum([len(m.prompt.block_keys) for m in items])
            for item in items:
                held = item.found.blocks
                if isinstance(held, PrefixLengths):
                    held_blocks += held.column(self._holders(candidates.endpoints)) * of_size
                else:
                    _add(held_blocks, candidates.rows, of_size, held)
                if speculate and item.is_read:
                    longer = self._on_the_way(item.prompt.block_keys, held)
                    more = {at: blocks - held.get(at, 0) for at, blocks in longer.items()}
                    _add(held_blocks, candidates.rows, of_size, more)
                _add(less, candidates.rows, of_size, item.found.discount)
                if item.found.reuse:
                    _add(held_blocks, candidates.rows, of_size, _parts(item.found, cut))
        candidates.weighted_matched_blocks = held_blocks - less

    def _on_the_way(
        self, keys: Sequence[BlockKey], held: Mapping[HolderId, int]
    ) -> Mapping[HolderId, int]:
        """Return how many blocks engines will reuse that get more than they hold. Sparse groups
        keep what a hit at a prompt's end needs, and nothing that is certain before."""
        coming = self.overlay.longer(keys, held)
        if not coming or not self.index.has_layouts:
            return coming
        found: dict[HolderId, int] = {}
        for holder, blocks in coming.items():
            layout = self.index.layout(holder)
            if layout is not None:
                is_same = blocks == len(keys) and self.overlay.ends(holder, keys[-1])
                if layout.has_sparse_groups and not is_same:
                    continue
                blocks -= layout.drops_last_block
            found[holder] = blocks
        return found

    async def _breathe(self, keys: Sequence[BlockKey]) -> None:
        """Between two steps that each take a millisecond or more."""
        if self.breathe is not None and len(keys) >= LONG_BLOCKS:
            await self.breathe()

    async def _keys(
        self, hasher: BlockHasher, ids: TokenIds, extras: BlockExtras | None
    ) -> list[BlockKey]:
        block_size, behind_block = hasher.block_size, hasher.lookahead
        keys = hasher.keys(ids[: LONG_BLOCKS * block_size + behind_block], extras)
        for start in range(LONG_BLOCKS, (len(ids) - behind_block) // block_size, LONG_BLOCKS):
            await self._breathe(keys)
            piece = ids[start * block_size : (start + LONG_BLOCKS) * block_size + behind_block]
            behind = None if extras is None else extras.behind(start)
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
    reuse: dict[HolderId, Reuse] = {}
    for found, holders in parts:
        blocks |= {at: n for at, n in found.blocks.items() if at in holders}
        discount |= {at: n for at, n in found.discount.items() if at in holders}
        lower |= {at: n for at, n in found.lower.items() if at in holders}
        reuse |= {at: n for at, n in found.reuse.items() if at in holders}
    return MatchResult(blocks, discount, lower, reuse)


def _parts(found: MatchResult, cut: Cut) -> Mapping[HolderId, float]:
    """Return what is reused beside whole blocks, in blocks: hits may end within one."""
    size = block_size_of(cut)
    return {at: reuse.tokens % size / size for at, reuse in found.reuse.items()}


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
