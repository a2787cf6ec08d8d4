"""Misses that are planted: engines with true caches, what is believed of them, and requests that
reuse less than they could have, for one reason each. What comes of a request passes the recorder's
own parts, and what engines say the subscriber's; only time, engines and sockets are played."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
from tests.console.records.planted_events import PlantedStream

from inferway.config import EngineSettings
from inferway.fleet.engine import Engine
from inferway.kv.blocks.extra_keys import request_extras
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.events.event import AllBlocksCleared, BlockRemoved, BlockStored
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import Copy, Layout
from inferway.kv.index.reuse import CacheGroup, CacheLayout
from inferway.kv.index.speculative import SpeculativeOverlay
from inferway.model import BlockKey, Decision, Endpoint, Prompt, Reason, Target, TokenIds
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import CompletionRequest
from inferway.openai_api.usage import Usage
from inferway.prompts.served import NoPrompts, ServedModel
from inferway.routing.journey import Routed
from inferway.routing.match import Matched
from inferway.routing.record import Record
from inferway.scheduling.columns import EXPECTED_TTFT_MS
from inferway.scheduling.expected_ttft.learning import COST_MS, TERMS_MS
from inferway.scheduling.idle import idle
from inferway_console.records.other_extras import OtherExtras
from inferway_console.records.record import MissKind, RequestRecord
from inferway_console.records.recorder import Recorder
from inferway_console.records.ring import RecordRing
from inferway_console.records.shortfalls import Shortfalls

SIZE = 16
MODEL = ServedModel("m", NoPrompts(Reason.NO_TOKENIZER, "these are tokens"), (SIZE,))
TUNED = ServedModel(
    "tuned", MODEL.prompts, (SIZE,), lora="tuned", lora_paths={None: frozenset({0, 1})}
)


@dataclass
class Place:
    """An engine: its true cache, and the events that it has told."""

    endpoint: Endpoint
    engine: Engine
    stream: PlantedStream
    true: set[BlockKey] = field(default_factory=set)
    tells_extras: bool = True


@dataclass
class Asked:
    """A request on its way."""

    routed: Routed
    record: Record
    true_keys: Sequence[BlockKey]
    place: Place


class World:
    """Two engines, an index, and a recorder. `trouble`: the share of the engines' messages that
    do not come as they should."""

    def __init__(self, seed: int, trouble: float = 0.0) -> None:
        self.random = Random(seed)
        self.trouble = trouble
        self.now = 1000.0
        self.index = MemoryIndex()
        self.overlay = SpeculativeOverlay()
        self.hasher = BlockHasher(SIZE)
        self.places = [self._place(number) for number in range(2)]
        self.filtered: dict[int, str] = {}  # holder -> why
        self.ring = RecordRing(1000)
        self.others = OtherExtras(self.index)
        self.recorder = Recorder(
            *(self.ring, self.clock),
            whereabouts=self,
            others=self.others,
            wall_clock=self.clock,
        )
        self.due: list[Callable[[], None]] = []
        self.shortfalls = Shortfalls(
            *(self.recorder, self.index, self, self.due.append, self.clock),
            under_other=self.others.under_other,
        )
        self.recorder.doubt = self.shortfalls.look

    def clock(self) -> float:
        return self.now

    def engine(self, name: str) -> Engine | None:
        """The fleet's (records.shortfalls.KnowsEngines)."""
        return next((each.engine for each in self.places if each.engine.name == name), None)

    # what engines do

    async def store(self, place: Place, tokens: TokenIds, **extras: str) -> None:
        """The engine computes a prompt, keeps its blocks and says so."""
        keys = self.keys(tokens, **extras)
        place.true.update(keys)
        salt = extras.get("salt") if place.tells_extras else None
        await place.stream.publish(
            BlockStored(
                block_hashes=[_hash(key) for key in keys],
                parent_hash=None,
                token_ids=tokens[: len(keys) * SIZE].tolist(),
                block_size=SIZE,
                lora_name=extras.get("adapter") if place.tells_extras else None,
                extra_keys=None if salt is None else [[salt], *[None] * (len(keys) - 1)],
            ),
        )

    async def drop(self, place: Place, keys: Sequence[BlockKey], *, told: bool = True) -> None:
        """The engine drops blocks."""
        place.true.difference_update(keys)
        if told:
            await place.stream.publish(BlockRemoved(block_hashes=[_hash(key) for key in keys]))

    async def clear(self, place: Place) -> None:
        place.true.clear()
        await place.stream.publish(AllBlocksCleared())

    async def work(self) -> None:
        """Engines compute other prompts and drop some, so that there is something to say."""
        for _ in range(self.random.randrange(8)):
            place, tokens = self.random.choice(self.places), self.tokens(self.random.randint(1, 5))
            await self.store(place, tokens)
            if self.random.random() < 0.5:
                await self.drop(place, self.keys(tokens))

    def restart(self, place: Place) -> None:
        """Another process takes the engine's place."""
        place.true.clear()
        place.stream.restart()

    async def hear(self) -> None:
        """All that engines have said until now is known; then time goes on."""
        for place in self.places:
            await place.stream.settle()
        self.now += 0.01

    # what requests do

    def tokens(self, blocks: int, rest: int = 5) -> TokenIds:
        number = blocks * SIZE + rest
        return np.array([self.random.randrange(50_000) for _ in range(number)], np.uint32)

    def keys(
        self, tokens: TokenIds, salt: str | None = None, adapter: str | None = None
    ) -> list[BlockKey]:
        return self.hasher.keys(tokens, request_extras(adapter, salt))

    async def ask(
        self,
        tokens: TokenIds,
        at: int,
        *,
        salt: str | None = None,
        adapter: str | None = None,
        costs: Sequence[float] = (10.0, 10.0),
        truncates: int | None = None,
    ) -> Asked:
        """A request is decided: it goes to the engine of this number."""
        await self.hear()
        place, keys = self.places[at], self.keys(tokens, salt, adapter)
        prompt = Prompt(tokens, keys)
        found = await self.index.match(keys)
        endpoints = [e.endpoint for e in self.places if e.endpoint.holder not in self.filtered]
        held = self.overlay.extend(keys, found.blocks)
        table = idle(endpoints, SIZE)
        table.matched_blocks = np.array([float(held.get(e.holder, 0)) for e in endpoints])
        table.now = self.now
        spent = np.array([costs[e.holder] for e in endpoints])
        table.add(COST_MS, spent)
        table.add(EXPECTED_TTFT_MS, spent * 0.9)
        table.add(TERMS_MS, np.full((len(endpoints), 6), 1.0))
        blocks = held.get(place.endpoint.holder, 0)
        target = Target(place.endpoint, 1.0, blocks, len(keys))
        body = CompletionRequest(
            model="m", prompt="", cache_salt=salt, truncate_prompt_tokens=truncates
        )
        model = MODEL if adapter is None else TUNED
        request = LLMRequest(request_id="", target_model="m", body=body)
        decision = Decision((target,), Reason.KV_AWARE)
        matched = {SIZE: [Matched(prompt, found)]}
        record = Record(self.now)
        routed = Routed(request, model, matched, decision, table, record, tells_its_reuse=True)
        record.target, record.attempts, record.reason = target, 1, Reason.KV_AWARE
        record.prompt_tokens = len(tokens)
        record.reused_tokens = min(blocks, (len(tokens) - 1) // SIZE) * SIZE
        self.recorder.on_request(routed, 0.0)
        await self._settled(self.others)
        return Asked(routed, record, keys, place)

    async def answered(
        self,
        asked: Asked,
        *,
        counted: int | None = None,
        cached: int | None = None,
        tells: bool = True,
    ) -> RequestRecord:
        """The engine answers, with what is true in its cache now."""
        record, own = asked.record, 0
        for key in asked.true_keys[: (record.prompt_tokens - 1) // SIZE]:
            if key not in asked.place.true:
                break
            own += SIZE
        cached = own if cached is None else cached
        self.now += 0.1
        usage = Usage(counted or record.prompt_tokens, 10, cached if tells else None)
        record.usage, record.outcome = usage, "ok"
        name = f"r{self.ring.next_seq}-{len(self.due)}"
        answer: Any = SimpleNamespace(
            request_id=name,
            path="/v1/completions",
            status=200,
            outcome="",
            seconds=0.1,
            record=record,
        )
        self.recorder.on_answers([answer])
        self.recorder.settle()
        await self.hear()
        for call in self.due:
            call()
        self.due.clear()
        await self._settled(self.shortfalls)
        found = self.ring.find(name)
        assert found is not None
        return found

    def _place(self, number: int) -> Place:
        endpoint = Endpoint(f"e{number}", f"http://e{number}", number)
        engine = Engine(EngineSettings(url=endpoint.url, name=endpoint.engine), (), healthy=True)
        engine.endpoints = [endpoint]
        stream = PlantedStream(
            number, SIZE, self.index, self.clock, Random(self.random.random()), self.trouble
        )
        engine.subscribers = [stream]
        return Place(endpoint, engine, stream)

    def num_endpoints(self) -> int:
        """The recorder's Whereabouts."""
        return len(self.places)

    def of(self, holder: int, _: Routed) -> tuple[str, str] | None:
        return f"e{holder}", self.filtered[holder]

    async def _settled(self, of: Any) -> None:
        """Wait for what it does beside."""
        while of._tasks.running:
            for task in list(of._tasks.running):
                await task


def _hash(key: BlockKey) -> int:
    return key ^ 0x5555


# How each kind is planted: returns the record, and how many blocks it must be of.
Planted = tuple[RequestRecord, int]


async def evicted(world: World) -> Planted:
    tokens, place = await _stored(world)
    asked = await world.ask(tokens, place)
    keys = asked.true_keys
    at = world.random.randrange(len(keys))
    world.now += 0.01
    await world.drop(world.places[place], keys[at:])
    return await world.answered(asked), len(keys) - at


async def stale(world: World) -> Planted:
    """It drops blocks, and does not say so."""
    tokens, place = await _stored(world)
    keys = world.keys(tokens)
    at = world.random.randrange(len(keys))
    await world.drop(world.places[place], keys[at:], told=False)
    asked = await world.ask(tokens, place)
    return await world.answered(asked), len(keys) - at


async def cut_off(world: World) -> Planted:
    """The same, while its events do not come."""
    tokens, place = await _stored(world)
    await world.hear()
    world.places[place].stream.cut_off()
    keys = world.keys(tokens)
    await world.drop(world.places[place], keys, told=False)
    asked = await world.ask(tokens, place)
    return await world.answered(asked), len(keys)


async def restart(world: World) -> Planted:
    tokens, place = await _stored(world)
    asked = await world.ask(tokens, place)
    await world.clear(world.places[place])
    return await world.answered(asked), len(asked.true_keys)


async def new_process(world: World) -> Planted:
    """The same, by a process that has begun anew under the same name."""
    tokens, place = await _stored(world)
    asked = await world.ask(tokens, place)
    world.restart(world.places[place])
    if world.random.random() < 0.5:
        await world.store(world.places[place], world.tokens(3))
    return await world.answered(asked), len(asked.true_keys)


async def never_stored(world: World) -> Planted:
    """Another request was to compute it, and was aborted."""
    tokens, place = world.tokens(world.random.randint(1, 30)), world.random.randrange(2)
    world.overlay.add(place, world.keys(tokens))
    asked = await world.ask(tokens, place)
    return await world.answered(asked), len(asked.true_keys)


async def differs(world: World) -> Planted:
    tokens, place = await _stored(world)
    asked = await world.ask(tokens, place)
    short = world.random.randint(1, len(asked.true_keys))
    left = (len(asked.true_keys) - short) * SIZE
    counted = len(tokens) + world.random.choice([-3, 2, 7])
    return await world.answered(asked, counted=counted, cached=left), short


async def truncated(world: World) -> Planted:
    tokens, place = await _stored(world, least=2)
    asked = await world.ask(tokens, place, truncates=20)
    return await world.answered(asked, counted=20, cached=0), len(asked.true_keys)


async def silent(world: World) -> Planted:
    tokens, place = await _stored(world)
    asked = await world.ask(tokens, place)
    return await world.answered(asked, tells=False), len(asked.true_keys)


async def salted(world: World) -> Planted:
    tokens, place = world.tokens(world.random.randint(1, 30)), world.random.randrange(2)
    first, second = world.random.sample([None, "a", "b"], 2)
    if first is not None:  # it went there
        await world.answered(await world.ask(tokens, place, salt=first))
    await world.store(world.places[place], tokens, **({} if first is None else {"salt": first}))
    asked = await world.ask(tokens, place, salt=second)
    return await world.answered(asked), len(asked.true_keys)


async def salted_unseen(world: World) -> Planted:
    """The engine's events do not tell salts."""
    tokens, place = world.tokens(world.random.randint(1, 30)), world.random.randrange(2)
    world.places[place].tells_extras = False
    await world.answered(await world.ask(tokens, place, salt="a"))
    await world.store(world.places[place], tokens, salt="a")
    asked = await world.ask(tokens, place)
    return await world.answered(asked), len(asked.true_keys)


async def other_adapter(world: World) -> Planted:
    tokens, place = world.tokens(world.random.randint(1, 30)), world.random.randrange(2)
    is_base_first = world.random.random() < 0.5
    first, second = (None, "tuned") if is_base_first else ("tuned", None)
    await world.answered(await world.ask(tokens, place, adapter=first))
    await world.store(world.places[place], tokens, **({} if first is None else {"adapter": first}))
    asked = await world.ask(tokens, place, adapter=second)
    return await world.answered(asked), len(asked.true_keys)


async def moved_for_load(world: World) -> Planted:
    tokens, place = await _stored(world)
    other = 1 - place
    some = world.random.randrange(len(world.keys(tokens)))
    if some:
        await world.store(world.places[other], tokens[: some * SIZE])
    costs = [50.0, 50.0]
    costs[place] += world.random.uniform(1, 100)
    asked = await world.ask(tokens, other, costs=costs)
    return await world.answered(asked), len(asked.true_keys) - some


async def filtered(world: World) -> Planted:
    tokens, place = await _stored(world)
    world.filtered[place] = world.random.choice(["drained", "ejected, after failures"])
    asked = await world.ask(tokens, 1 - place)
    return await world.answered(asked), len(asked.true_keys)


async def failed_first(world: World) -> Planted:
    """The engine that holds it fails, and another one answers."""
    tokens, place = await _stored(world)
    asked = await world.ask(tokens, place)
    asked.place = world.places[1 - place]
    asked.record.target = Target(asked.place.endpoint, 0.5, 0, len(asked.true_keys))
    asked.record.attempts, asked.record.reused_tokens = 2, 0
    return await world.answered(asked), len(asked.true_keys)


async def _stored(world: World, least: int = 1) -> tuple[TokenIds, int]:
    """A prompt that one of the engines holds whole, and its number."""
    tokens = world.tokens(world.random.randint(least, 30))
    place = world.random.randrange(2)
    await world.store(world.places[place], tokens)
    world.now += 1.0
    return tokens, place


async def laid_out(world: World) -> Planted:
    """The engine has state-space layers, and a checkpoint before the prompt's end alone."""
    tokens, number = await _stored(world, least=3)
    await world.hear()
    place, keys = world.places[number], world.keys(tokens)
    full, states = CacheGroup(0, "full_attention", SIZE), CacheGroup(1, "mamba", SIZE)
    layout = Layout(place.endpoint.holder, CacheLayout((full, states)))
    world.index.apply([layout, Copy(place.endpoint.holder, keys[:2], group=2)])
    place.true.difference_update(keys[2:])
    return await world.answered(await world.ask(tokens, number)), len(keys) - 2


PLANTS: Sequence[tuple[MissKind, Callable[[World], Any]]] = (
    (MissKind.EVICTED, evicted),
    (MissKind.STALE, stale),
    (MissKind.STALE, cut_off),
    (MissKind.RESTART, restart),
    (MissKind.RESTART, new_process),
    (MissKind.NEVER_STORED, never_stored),
    (MissKind.DIFFERS, differs),
    (MissKind.TRUNCATED, truncated),
    (MissKind.SILENT, silent),
    (MissKind.LAYOUT, laid_out),
    (MissKind.SALTED, salted),
    (MissKind.SALTED, salted_unseen),
    (MissKind.OTHER_ADAPTER, other_adapter),
    (MissKind.MOVED_FOR_LOAD, moved_for_load),
    (MissKind.FILTERED, filtered),
    (MissKind.FILTERED, failed_first),
)


async def wrongly_named(seed: int, trouble: float = 0.0) -> str | None:
    """Plant a miss; return what is wrong with its record, None if nothing is."""
    kind, plant = PLANTS[seed % len(PLANTS)]
    world = World(seed, trouble)
    await world.work()
    record, blocks = await plant(world)
    found = [(miss.kind, miss.blocks) for miss in record.missed]
    if found == [(kind, blocks)]:
        return None
    return f"seed {seed}, {plant.__name__}: {found} instead of {[(kind.value, blocks)]}"
