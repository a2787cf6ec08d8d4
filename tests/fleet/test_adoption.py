"""Prompts just routed give orphans their keys, whatever engine the prompts went to."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest

from inferway.config import EngineSettings
from inferway.fleet.engine import Engine
from inferway.fleet.engine_facts import EngineFacts, ModelCard
from inferway.fleet.event_source import EventSource
from inferway.fleet.orphan_resolution import MAX_PROMPTS, MAX_TOKENS, OrphanResolver
from inferway.fleet.subscriber import Subscription
from inferway.fleet.subscribing import PollingSubscriber
from inferway.fleet.zmq_subscriber import ZmqSubscriber
from inferway.kv.blocks.dialects import Dialect, LoraAdapter, hash_extras, wire_hash
from inferway.kv.blocks.extra_keys import request_extras
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.blocks.places import PromptPlaces
from inferway.kv.events.dialect_finder import DialectState
from inferway.kv.events.event import AllBlocksCleared, BlockStored
from inferway.kv.events.groups import NO_FACTS, CacheFacts
from inferway.kv.events.stream import StreamState
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.reuse import FULL, MAMBA
from inferway.model import Prompt
from inferway.prompts.fidelity import CACHE_SALT

SIZE = 4
HOLDER = 0
LORA = LoraAdapter("alice", "/adapters/alice")
CARDS = (
    ModelCard("base", "/models/base", None, None),
    ModelCard(LORA.name, LORA.path, "base", None),
)


def prompt(seed: int, blocks: int = 6) -> list[int]:
    numbers = random.Random(seed)
    return [numbers.randrange(50_000) for _ in range(blocks * SIZE)]


@dataclass
class Setup:
    """An engine, what its events are applied to, and the adopter."""

    engine: Engine
    subscriber: ZmqSubscriber
    index: MemoryIndex
    adopter: OrphanResolver
    dialect: Dialect

    def stored(
        self,
        tokens: list[int],
        first: int = 0,
        lora: LoraAdapter | None = None,
        salt: str | None = None,
        medium: str = "GPU",
    ) -> None:
        """The engine tells of the prompt's blocks from `first` on; of extra keys in GPU memory
        only, as vLLM's offloading."""
        hashes, parent = [], None
        for start in range(0, len(tokens), SIZE):
            extra = hash_extras(lora, salt if start == 0 else None)
            parent = self.dialect.block_hash(parent, tokens[start : start + SIZE], extra)
            hashes.append(wire_hash(parent))
        keys: list[object] = [[lora.name] if lora else None for _ in hashes]
        if salt:
            keys[0] = [*([lora.name] if lora else []), salt]
        event = BlockStored(
            block_hashes=hashes[first:],
            parent_hash=hashes[first - 1] if first else None,
            token_ids=tokens[first * SIZE :],
            block_size=SIZE,
            lora_name=lora.name if lora else None,
            medium=medium,
            extra_keys=keys[first:] if medium == "GPU" else None,
        )
        self.index.apply(self.subscriber.blocks.apply(event))

    def stored_whole(self, tokens: list[int], number: int, salt: str | None = None) -> None:
        """The engine has full attention and state-space layers, and hashes each token. It tells of
        the prompt's first whole blocks."""
        hashes = self._token_hashes(tokens[: number * SIZE], salt)[SIZE - 1 :: SIZE]
        self._store(hashes, None, tokens[: number * SIZE], SIZE, groups=(FULL[0],), salt=salt)

    def stored_part(self, tokens: list[int], end: int, salt: str | None = None) -> None:
        """Such an engine tells of the part of a block that ends there."""
        hashes = self._token_hashes(tokens[:end], salt)
        parent = hashes[-2] if end > 1 else None
        self._store(hashes[-1:], parent, tokens[end - 1 : end], 1, groups=(FULL[0], MAMBA))

    def _token_hashes(self, tokens: list[int], salt: str | None) -> list[int]:
        hashes = self.dialect.block_hashes(np.array(tokens), 1, cache_salt=salt)
        return [wire_hash(each) for each in hashes]

    def _store(
        self,
        hashes: list[int],
        parent: int | None,
        tokens: list[int],
        size: int,
        groups: Sequence[str],
        salt: str | None = None,
    ) -> None:
        events = [
            BlockStored(
                block_hashes=hashes,
                parent_hash=parent,
                token_ids=tokens,
                block_size=size,
                group_idx=number,
                spec_kind=kind,
                extra_keys=[[salt], *[None] * (len(hashes) - 1)] if salt else None,
            )
            for number, kind in enumerate(groups)
        ]
        blocks = self.subscriber.blocks
        self.index.apply(blocks.expect(events))
        for event in events:
            self.index.apply(blocks.apply(event))

    def reused(self, tokens: list[int], salt: str | None = None) -> int:
        """Tokens of the prompt that the engine is believed to reuse."""
        item, hasher = self.prompt(tokens, salt=salt), BlockHasher(SIZE)
        extras = request_extras(None, salt)
        places = PromptPlaces(hasher, item.token_ids, item.block_keys, extras)
        found = self.index.match_now(item.block_keys, places)
        return found.reuse[HOLDER].tokens if HOLDER in found.reuse else 0

    def routed(self, tokens: list[int], lora: str | None = None, salt: str | None = None) -> None:
        self.adopter.offer({SIZE: [self.prompt(tokens, lora, salt)]}, lora=lora, cache_salt=salt)

    def prompt(self, tokens: list[int], lora: str | None = None, salt: str | None = None) -> Prompt:
        ids = np.array(tokens, dtype=np.uint32)
        return Prompt(ids, BlockHasher(SIZE).keys(ids, request_extras(lora, salt)))

    def matched(self, tokens: list[int], lora: str | None = None, salt: str | None = None) -> int:
        keys = self.prompt(tokens, lora, salt).block_keys
        return self.index.match_now(keys).blocks.get(HOLDER, 0)


@asynccontextmanager
async def setup(
    dialect: Dialect | None = None, cache: CacheFacts = NO_FACTS, **options: Any
) -> AsyncIterator[Setup]:
    index = MemoryIndex()
    source = EventSource(0, "tcp://127.0.0.1:1", None)
    subscription = Subscription(source, HOLDER, SIZE, index, cache_facts=lambda: cache)
    subscriber = ZmqSubscriber(subscription)
    facts = EngineFacts(models=CARDS, block_size=SIZE, sources=(source,), findings=())
    engine = Engine(EngineSettings(url="http://one:1"), headers=(), facts=facts)
    engine.subscribers.append(subscriber)
    adopter = OrphanResolver([engine], **options)
    await adopter.look()
    try:
        yield Setup(engine, subscriber, index, adopter, dialect or Dialect())
    finally:
        await adopter.close()
        await subscriber.close()


async def test_an_engine_that_is_polled_hashes_in_no_way_that_we_know() -> None:
    async with setup() as it:
        source = EventSource(0, "http://127.0.0.1:1/kv_cache_events", None)
        polled = PollingSubscriber(Subscription(source, HOLDER, SIZE, it.index))
        it.engine.subscribers[:] = [polled]
        await it.adopter.look()

        assert it.engine.dialects == {}
        assert not it.adopter.wanted


async def test_an_orphan_is_adopted_when_its_prompt_was_routed_before_it_came() -> None:
    async with setup() as it:
        it.stored(prompt(1, 1))  # tells the dialect
        it.routed(prompt(2))
        await it.adopter.look()
        it.stored(prompt(2), first=4)
        assert it.matched(prompt(2)) == 0

        await it.adopter.look()

        assert it.matched(prompt(2)) == 6
        assert it.subscriber.blocks.num_orphans == 0


@pytest.mark.parametrize(("salt", "known", "waiting"), [(None, 6, 0), ("tenant", 0, 6)])
async def test_unseen_blocks_of_another_tier_count_if_tokens_alone_make_their_hashes(
    salt: str | None, known: int, waiting: int
) -> None:
    async with setup() as it:
        it.stored(prompt(1, 1))  # tells the dialect
        await it.adopter.look()

        it.stored(prompt(2), salt=salt, medium="CPU")

        assert it.matched(prompt(2)) == known
        assert it.subscriber.blocks.num_orphans == waiting


async def test_a_salted_prompt_gives_unseen_blocks_of_another_tier_their_keys() -> None:
    async with setup() as it:
        it.stored(prompt(1, 1))
        it.stored(prompt(2), salt="tenant", medium="CPU")
        await it.adopter.look()
        it.routed(prompt(2), salt="tenant")
        it.routed(prompt(2))

        await it.adopter.look()

        assert (it.matched(prompt(2), salt="tenant"), it.matched(prompt(2))) == (6, 0)


async def test_an_orphan_is_adopted_when_its_prompt_comes_later() -> None:
    async with setup() as it:
        it.stored(prompt(1, 1))
        it.stored(prompt(2), first=4)
        await it.adopter.look()
        assert it.subscriber.blocks.num_orphans == 2

        it.routed(prompt(2) + prompt(3))
        await it.adopter.look()

        assert it.matched(prompt(2) + prompt(3)) == 6


async def test_prompts_tell_the_dialect_if_no_prompts_start_has() -> None:
    """The usual case: all chats begin with a block that the engine has already."""

    async with setup(Dialect("sha256_cbor", "42")) as it:
        it.stored(prompt(3), first=4)
        it.stored(prompt(2), first=4)
        it.routed(prompt(2) + prompt(4))

        await it.adopter.look()

        assert it.matched(prompt(2)) == 6
        assert it.matched(prompt(3)) == 0
        assert it.engine.dialects[0].name == "sha256_cbor, seed '42'"


@pytest.mark.parametrize("tagged", [True, False])
async def test_adapters_and_salts_are_hashed_as_the_engine_does(tagged: bool) -> None:
    async with setup(Dialect(tagged=tagged)) as it:
        it.stored(prompt(1, 1))
        it.stored(prompt(2), first=4, lora=LORA, salt="s")
        it.routed(prompt(2))  # the same tokens for the base model: other blocks
        it.routed(prompt(2), lora=LORA.name, salt="other")
        await it.adopter.look()
        assert it.subscriber.blocks.num_orphans == 2

        it.routed(prompt(2), lora=LORA.name, salt="s")
        await it.adopter.look()

        assert it.matched(prompt(2), LORA.name, "s") == 6
        assert it.matched(prompt(2)) == it.matched(prompt(2), LORA.name, "other") == 0


async def test_nothing_is_adopted_in_a_dialect_that_is_not_verified() -> None:
    async with setup(Dialect("xxhash", "random")) as it:
        it.stored(prompt(1, 1))
        it.stored(prompt(20), first=4)
        it.routed(prompt(20))

        await it.adopter.look()

        assert it.engine.dialects[0].state is DialectState.NONE
        assert it.matched(prompt(20)) == 0


async def test_a_finding_is_logged_once_and_is_one_of_the_engines_problems(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, logger="inferway.events")
    async with setup(Dialect("xxhash", "random")) as it:
        it.stored(prompt(1, 1))
        await it.adopter.look()
        await it.adopter.look()

        [problem] = [text for text in it.engine.problems() if "PYTHONHASHSEED" in text]
        assert [r.message for r in caplog.records] == [f"engine one:1: {problem}"]


async def test_an_engine_that_began_anew_may_hash_otherwise() -> None:
    async with setup() as it:
        it.stored(prompt(1, 1))
        await it.adopter.look()
        it.index.apply(it.subscriber.blocks.forget())
        it.subscriber.stats.forgotten += 1
        await it.adopter.look()

        it.dialect = Dialect("sha256_cbor")
        it.stored(prompt(1, 1))
        await it.adopter.look()

        assert it.engine.dialects[0].state is DialectState.FOUND
        assert it.engine.dialects[0].name == "sha256_cbor, seed 'vllm-none-hash'"


async def test_prompts_in_blocks_of_another_size_are_left_alone() -> None:
    async with setup() as it:
        it.stored(prompt(1, 1))
        it.stored(prompt(2), first=4)
        ids = np.array(prompt(2), dtype=np.uint32)
        it.adopter.offer({2: [Prompt(ids, BlockHasher(2).keys(ids))]})

        await it.adopter.look()

        assert it.subscriber.blocks.num_orphans == 2


async def test_what_is_cleared_is_not_adopted() -> None:
    async with setup() as it:
        it.stored(prompt(1, 1))
        it.stored(prompt(2), first=4)
        it.index.apply(it.subscriber.blocks.apply(AllBlocksCleared()))
        it.routed(prompt(2))

        await it.adopter.look()

        assert it.matched(prompt(2)) == 0


async def test_prompts_are_wanted_until_an_engine_has_told_whether_it_publishes_events() -> None:
    """The events of the first prompts may come before the resolver's next round."""
    assert OrphanResolver([]).wanted
    async with setup() as it:
        it.engine.subscribers.clear()
        it.engine.facts, told = None, it.engine.facts
        await it.adopter.look()
        assert it.adopter.wanted

        it.engine.facts = told
        await it.adopter.look()
        assert not it.adopter.wanted


async def test_prompts_are_wanted_while_an_engine_has_orphans_or_may_have() -> None:
    """Of this one nothing is known yet."""

    async with setup() as it:
        assert it.adopter.wanted
        it.engine.subscribers.clear()

        await it.adopter.look()

        assert not it.adopter.wanted
        assert it.engine.dialects == {}


@pytest.mark.parametrize("has_parts", [True, False], ids=["short-prompt-before", "first-prompt"])
async def test_a_prompts_end_within_a_block_is_known_of_a_prompt_before_the_dialect_was(
    has_parts: bool,
) -> None:
    """The prompt is routed while nothing is known of the engine, or only its groups, from the
    parts of a prompt that is shorter than a block."""
    tokens, end = prompt(2, 2)[: SIZE + 3], SIZE + 2
    async with setup(cache=CacheFacts(hash_size=1, block_size=SIZE)) as it:
        for _ in it.subscriber.follower.live(0, msgspec.msgpack.encode([0.0, []])):
            pass
        assert it.subscriber.state is StreamState.EXACT
        if has_parts:
            it.stored_part(prompt(3, 1), 1)
        it.routed(tokens)
        await it.adopter.look()

        it.stored_whole(tokens, 1)
        it.stored_part(tokens, end)
        await it.adopter.look()

        assert it.reused(tokens) == end


async def test_a_probes_end_within_a_block_is_known() -> None:
    tokens, end = prompt(2, 2)[: SIZE + 3], SIZE + 2
    async with setup(cache=CacheFacts(hash_size=1, block_size=SIZE)) as it:
        it.stored_whole(tokens, 1, CACHE_SALT)
        it.stored_part(tokens, end, CACHE_SALT)
        it.engine.probed.append(np.array(tokens, np.uint32))

        await it.adopter.look()

        assert it.reused(tokens, CACHE_SALT) == end
        assert not it.subscriber.blocks.has_waiting
        assert not it.engine.probed


async def test_no_more_prompts_are_kept_than_there_is_room_for() -> None:
    """The first has made room for others; the last is there."""

    async with setup() as it:
        it.stored(prompt(1, 1))
        for seed in (2, MAX_PROMPTS + 3):
            it.stored(prompt(seed), first=4)
        for seed in range(2, MAX_PROMPTS + 4):
            it.routed(prompt(seed))
        huge = np.zeros(MAX_TOKENS + SIZE, dtype=np.uint32)
        it.adopter.offer({SIZE: [Prompt(huge, [1])]})

        await it.adopter.look()

        assert it.matched(prompt(2)) == 0
        assert it.matched(prompt(MAX_PROMPTS + 3)) == 6


async def test_it_looks_by_itself_once_started() -> None:
    async with setup() as it:
        it.stored(prompt(1, 1))
        it.stored(prompt(2), first=4)
        it.routed(prompt(2))

        it.adopter.start()
        while it.matched(prompt(2)) != 6:
            await asyncio.sleep(0.01)

        await it.adopter.close()
        await it.adopter.close()
