"""Gives orphans their keys: prompts just routed, hashed as the engine hashes them.

An orphan is a block that an engine holds under a hash of its own (`kv.events.orphans`). How the
engine hashes is found from its events (`kv.events.dialect_finder`). While one has orphans, or may
come to have some, the last prompts that were routed anywhere are kept for a moment and hashed in
its dialect, beside the requests. Where 64 bits of a prompt's hash are those of an orphan, that is
the prompt's block.

All of it happens on the event loop, a millisecond or two at a time: hashing small blocks holds the
GIL, so a thread would take the same time from the same core and hand the GIL to and fro.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from inferway.fleet.engine import Engine
from inferway.fleet.subscriber import EventSubscriber
from inferway.kv.blocks.dialects import Dialect, LoraAdapter, wire_hash
from inferway.kv.blocks.extra_keys import request_extras
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.events.dialect_finder import SEEDS, DialectFinder
from inferway.kv.events.hidden_places import Beside
from inferway.kv.events.stream import StreamState
from inferway.model import (
    BlockKey,
    Cut,
    MediaSpan,
    Prompt,
    TokenIds,
    block_size_of,
    lookahead_of,
)
from inferway.prompts.fidelity import CACHE_SALT
from inferway.tasks import Tasks, TimeSlice, next_multiple

log = logging.getLogger("inferway.events")

ROUND_SECONDS = 0.25
REST_SECONDS = 1.0  # between two rounds while no prompts are wanted
MAX_PROMPTS = 256  # kept
MAX_TOKENS = 1 << 20  # of all prompts kept
_BLOCKS = 16  # hashed between two looks at the clock: 0.5 ms if it is CBOR


@dataclass(slots=True, eq=False)
class _Recent:
    """A prompt that was routed a moment ago."""

    serial: int
    cut: Cut
    token_ids: TokenIds
    block_keys: Sequence[BlockKey]
    lora: str | None
    lora_path: str | None
    cache_salt: str | None
    media: Sequence[MediaSpan]
    hashes: dict[tuple[object, ...], list[int]] = field(default_factory=dict)  # by dialect


@dataclass(slots=True, eq=False)
class _OrphanWatch:
    """One event stream, and what has been tried for its orphans."""

    engine: Engine
    subscriber: EventSubscriber
    finder: DialectFinder
    forgotten: int  # how often its blocks had been forgotten when `finder` began
    orphans: int = 0  # how many had come when all prompts were last tried
    expected: int = -1  # the last prompt that was expected
    serial: int = -1  # of the last prompt tried


class OrphanResolver:
    """`offer` what is routed, as long as it is `wanted`. `start` and `close` on the event loop."""

    def __init__(
        self,
        engines: Sequence[Engine],
        *,
        seeds: Sequence[str] = SEEDS,
        on_moved: Callable[[Engine], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`engines`: those there are, as the fleet keeps them. `seeds`: what an engine may have
        been given as PYTHONHASHSEED. `on_moved` is told of one whose events show that it has an
        adapter from elsewhere than it had told."""
        # Some engine has orphans, or blocks of which it is not known where they are, or it has not
        # told yet whether it publishes events: its first prompts may be asked for then.
        self.wanted = True
        self._engines = engines
        self._seeds = seeds
        self._on_moved = on_moved
        self._moved: set[tuple[str, str, str | None]] = set()  # adapters that it was told of
        self._slice = TimeSlice(clock)
        self._watches: dict[EventSubscriber, _OrphanWatch] = {}
        self._recent: deque[_Recent] = deque()
        self._num_tokens = 0
        self._num_offered = 0
        self._tasks = Tasks(
            log,
            "events without a known parent block are no longer adopted, by a fault of the gateway",
        )

    def offer(
        self,
        prompts: Mapping[Cut, Sequence[Prompt]],
        *,
        lora: str | None = None,
        lora_path: str | None = None,
        cache_salt: str | None = None,
    ) -> None:
        """Take a request's prompts, by their cuts; their keys are made for an adapter from
        there."""
        for cut, items in prompts.items():
            for prompt in items:
                num_tokens = len(prompt.token_ids)
                if num_tokens > MAX_TOKENS:
                    continue
                ids, keys = prompt.token_ids, prompt.block_keys
                recent = _Recent(
                    *(self._num_offered, cut, ids, keys, lora, lora_path, cache_salt, prompt.media)
                )
                self._num_offered += 1
                self._num_tokens += num_tokens
                self._recent.append(recent)
        while len(self._recent) > MAX_PROMPTS or self._num_tokens > MAX_TOKENS:
            self._num_tokens -= len(self._recent.popleft().token_ids)

    def start(self) -> None:
        self._tasks.spawn(self._run())

    async def close(self) -> None:
        """Stop the resolution. It may be called twice."""
        await self._tasks.close()

    async def look(self) -> None:
        """Do one round: look at new streams, events, orphans and prompts."""
        self._attend()
        for engine in self._engines:
            self._offer_probes(engine)
        for watch in list(self._watches.values()):
            await self._verify(watch)
            await self._expect(watch)
            if watch.subscriber.blocks.num_orphans:
                await self._adopt(watch)
        self.wanted = any(map(_may_need_prompts, self._watches)) or not all(
            engine.facts for engine in self._engines
        )
        if not self.wanted:
            self._recent.clear()
            self._num_tokens = 0

    def _offer_probes(self, engine: Engine) -> None:
        """Take the prompts that the gateway has sent to an engine by itself."""
        cut = engine.cut
        if cut is None or not engine.probed:
            return
        hasher = BlockHasher(block_size_of(cut), lookahead=lookahead_of(cut))
        while engine.probed:
            ids = engine.probed.popleft()
            keys = hasher.keys(ids, request_extras(None, CACHE_SALT))
            self.offer({cut: [Prompt(ids, keys)]}, cache_salt=CACHE_SALT)

    async def _run(self) -> None:
        while True:
            await self.look()
            now = asyncio.get_running_loop().time()
            until = next_multiple(now, ROUND_SECONDS if self.wanted else REST_SECONDS)
            await asyncio.sleep(until - now)

    # streams

    def _attend(self) -> None:
        """A finder for each stream there is now; a new one when its engine began anew. Engines that
        are polled hash in another way than those we know; for what another process follows it
        has a resolver of its own."""
        watches = {}
        for engine in self._engines:
            published = [each for each in engine.subscribers if not each.source.is_polled]
            here = [each for each in published if isinstance(each, EventSubscriber)]
            for subscriber in here:
                watch = self._watches.get(subscriber)
                if watch is None or watch.forgotten != subscriber.stats.forgotten:
                    watch = self._watch(engine, subscriber)
                watches[subscriber] = watch
            ranks = {subscriber.source.rank for subscriber in published}
            for rank in engine.dialects.keys() - ranks:
                del engine.dialects[rank]
        self._watches = watches

    def _watch(self, engine: Engine, subscriber: EventSubscriber) -> _OrphanWatch:
        finder = DialectFinder(
            self._seeds,
            lora_path=engine.adapter_path,
            hash_size=lambda: subscriber.blocks.hash_size,
            on_moved=partial(self._is_moved, engine),
        )
        subscriber.blocks.verify_hashes(finder)
        engine.dialects[subscriber.source.rank] = finder
        return _OrphanWatch(engine, subscriber, finder, subscriber.stats.forgotten)

    def _is_moved(self, engine: Engine, adapter: str) -> None:
        """Blocks of the adapter wait: soon it is known where it is from, and prompts meet them."""
        known = engine.name, adapter, engine.adapter_path(adapter)
        if known not in self._moved:
            self._moved.add(known)
            self._on_moved(engine)

    async def _verify(self, watch: _OrphanWatch) -> None:
        finder = watch.finder
        had = finder.finding
        while finder.has_work:
            finder.step(_BLOCKS)
            await self._breathe()
        if finder.finding is not None and finder.finding != had:
            log.warning("engine %s: %s", watch.engine.name, finder.finding)

    # orphans

    async def _adopt(self, watch: _OrphanWatch) -> None:
        """Tries what has not been tried: new prompts, or all of them for new orphans."""
        blocks = watch.subscriber.blocks
        noted = blocks.stats.orphans
        if watch.finder.wants_prompts:
            await self._prove(watch)
        first = watch.serial + 1 if noted == watch.orphans else 0
        for recent in [r for r in self._recent if r.serial >= first]:
            watch.serial = max(watch.serial, recent.serial)
            if recent.cut != watch.engine.cut or recent.media:
                continue  # hashes of media are made only to find parts of prompts
            for dialect, lora in _ways(watch, recent):
                hashes = await self._hashes(recent, dialect, lora, blocks.hash_size)
                last = max((i for i, h in enumerate(hashes) if blocks.is_orphan(h)), default=-1)
                if last >= 0:
                    end = last + 1
                    await watch.subscriber.adopt(hashes[:end], recent.block_keys[:end])
                await self._breathe()
        if watch.finder.name is not None:
            watch.orphans = noted

    async def _prove(self, watch: _OrphanWatch) -> None:
        """No prompt's start has shown how the engine hashes. Prompts may."""
        finder = watch.finder
        for recent in list(self._recent):
            if not finder.wants_prompts:
                return
            if recent.cut != watch.engine.cut or recent.media:
                continue
            size = block_size_of(recent.cut)
            found = finder.find(recent.token_ids, size, recent.lora)
            await self._breathe()
            path = _path_there(watch, recent)
            if found is None or (recent.lora and path is None):
                continue
            lora = LoraAdapter(recent.lora, path) if recent.lora and path else None
            block, event = found
            tokens = recent.token_ids[: (block + 1) * size]
            for _ in finder.prove(event, tokens, lora, recent.cache_salt):
                await self._breathe()

    async def _expect(self, watch: _OrphanWatch) -> None:
        """Have the engine's blocks expect new prompts, if events may name parts of them without
        their tokens. Prompts wait until it is known how the engine hashes."""
        blocks = watch.subscriber.blocks
        if not blocks.expects_prompts or watch.finder.dialect() is None:
            return
        for recent in [r for r in self._recent if r.serial > watch.expected]:
            watch.expected = recent.serial
            if recent.cut == watch.engine.cut:
                for _, lora in _ways(watch, recent):
                    beside = Beside(lora, recent.cache_salt, recent.media)
                    await watch.subscriber.expect(recent.token_ids, recent.block_keys, beside)
                    await self._breathe()

    async def _hashes(
        self, recent: _Recent, dialect: Dialect, lora: LoraAdapter | None, unit: int | None
    ) -> list[int]:
        """Of the prompt's blocks, as its events carry them; a hash has `unit` tokens."""
        size, lookahead = block_size_of(recent.cut), lookahead_of(recent.cut)
        unit = unit or size
        way = (dialect.algorithm, dialect.seed, dialect.tagged, lora, unit)
        known = recent.hashes.get(way)
        if known is not None:
            return known
        hashes: list[int] = []
        block_hashes = dialect.block_hashes(
            recent.token_ids,
            unit,
            lora=lora,
            cache_salt=recent.cache_salt,
            lookahead=lookahead,
        )
        for number, block_hash in enumerate(block_hashes, 1):
            if number * unit % size == 0:
                hashes.append(wire_hash(block_hash))
            if number % _BLOCKS == 0:
                await self._breathe()
        recent.hashes[way] = hashes
        return hashes

    async def _breathe(self) -> None:
        if self._slice.is_over:
            await self._slice.rest()


def _ways(watch: _OrphanWatch, recent: _Recent) -> Iterator[tuple[Dialect, LoraAdapter | None]]:
    """How the engine may hash this prompt."""
    with_extras = recent.lora is not None or recent.cache_salt is not None
    for dialect in list(watch.finder.dialects(with_extras=with_extras)):
        if recent.lora is None:
            yield dialect, None
            continue
        path = _path_there(watch, recent)
        if path is not None or (not dialect.tagged and recent.lora_path is None):
            yield dialect, LoraAdapter(recent.lora, path or "")


def _path_there(watch: _OrphanWatch, recent: _Recent) -> str | None:
    """Where the engine has the prompt's adapter from, if that is what its keys are made for."""
    path = watch.engine.adapter_path(recent.lora) if recent.lora else None
    return path if recent.lora_path in (None, path) else None


def _may_need_prompts(subscriber: EventSubscriber) -> bool:
    """An engine of which we know all has no orphans, and will have none; but its events may name
    parts of prompts without their tokens."""
    blocks, state = subscriber.blocks, subscriber.state
    return blocks.num_orphans > 0 or state is not StreamState.EXACT or blocks.expects_prompts
