"""Simulated engines and a gateway that listens for how they are, in virtual time.

The engines' cores and schedulers, the scraper's rounds and the silence watch are the real ones.
Between them is no network: an answer takes as long as is drawn.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from tests.fleet.virtual_time import VirtualLoop

from inferway.config import EngineSettings, ProbeSettings, ServeSettings
from inferway.errors import UpstreamTimeoutError
from inferway.fleet.engine import Engine
from inferway.fleet.engine_client import EngineClient
from inferway.fleet.fleet import Fleet
from inferway.fleet.load import Load
from inferway.fleet.outage import Outage
from inferway.fleet.scraper import Scraper
from inferway.fleet.watch import SilenceWatch
from inferway.kv.blocks.dialects import Dialect
from inferway.kv.index.memory import MemoryIndex
from inferway_sim.cache import KvCache, Run
from inferway_sim.config import LatencyModel
from inferway_sim.core import Disturbance, EngineCore
from inferway_sim.scheduler import RunningRequest, Scheduler

BLOCK_SIZE = 1024  # so large that prompts of 100,000 tokens take the test no time
CHUNK = 8192  # tokens of a prefill in chunks
NEVER = float("inf")


@dataclass(frozen=True)
class Make:
    """What an engine is like. Times in seconds."""

    prefill_per_token: float = 0.0001
    inter_token: float = 0.1
    under_load: float = 1.0
    max_num_seqs: int = 16
    in_turn: bool = True
    in_chunks: bool = False
    compiles: float = 0.0  # before its very first token
    answers_in: tuple[float, float] = (0.0, 0.1)  # its API, least and most


class VirtualEngine:
    """A core, and an API that tells how it is."""

    def __init__(self, make: Make, loop: VirtualLoop, rng: Random) -> None:
        self.make = make
        self.is_frozen = self._is_stalled = False
        self._rng = rng
        self._loop = loop
        self._tokens = itertools.count()
        self._firsts = self._ended = self._chunk = self._chunks_done = 0
        self._has_compiled = not make.compiles
        latency = LatencyModel(
            prefill_time_per_token=make.prefill_per_token,
            inter_token_latency=make.inter_token,
            time_factor_under_load=make.under_load,
            prefill_in_turn=make.in_turn,
        )
        cache = KvCache(20_000, BLOCK_SIZE, Dialect())
        self._scheduler = Scheduler(cache, latency, make.max_num_seqs, 10_000)
        self.core = EngineCore(self._scheduler, lambda _: None, self._first, loop.time)
        self.prefills: list[float] = []  # seconds that those under way take by themselves

    async def request(self, prompt: int, answer: int) -> None:
        """A prompt that no cache has, and an answer of so many tokens."""
        first = next(self._tokens) * 200_000
        run = Run(list(range(first, first + prompt)))
        job = RunningRequest(run, [1] * answer, self._loop.time())
        seconds = prompt * self.make.prefill_per_token
        self.prefills.append(seconds)
        if not self._has_compiled:
            self._has_compiled = True
            self.stall()
            self._loop.call_later(self.make.compiles, self._goes_on)
        with self.core.submit([job]) as tokens:
            async for emitted in tokens:
                if job.num_emitted == 1:
                    self.prefills.remove(seconds)
                self._ended += emitted.is_last

    async def asked(self) -> None:
        """Return when its API answers."""
        await asyncio.sleep(self._rng.uniform(*self.make.answers_in))
        if self.is_frozen:
            await asyncio.get_running_loop().create_future()  # for ever

    def load(self) -> Load:
        scheduler = self._scheduler
        usage = scheduler.cache.usage + (self._chunks() if self.make.in_chunks else 0.0)
        figures = {
            "running": float(len(scheduler.running)),
            "waiting": float(len(scheduler.waiting)),
            "kv_usage": usage,
        }
        generated = float(scheduler.totals.generation_tokens)
        return Load(figures, float(self._firsts - self._ended), generated=generated)

    def stall(self) -> None:
        """Its core computes nothing any more."""
        self._is_stalled = True
        self.core.disturb(Disturbance(stalled=True))

    def _goes_on(self) -> None:
        self._is_stalled = False
        self.core.disturb(Disturbance())

    def _chunks(self) -> float:
        """What changes with each chunk that is done."""
        chunk = int(self._loop.time() / (CHUNK * self.make.prefill_per_token))
        if self.prefills and not self._is_stalled and chunk != self._chunk:
            self._chunk = chunk
            self._chunks_done += 1
        return 1e-6 * self._chunks_done

    def _first(self, seconds: float) -> None:
        del seconds
        self._firsts += 1


@dataclass
class VirtualFleet:
    """`alarms`: which engine was declared out, when and as what."""

    loop: VirtualLoop
    fleet: Fleet
    engines: Sequence[VirtualEngine]
    alarms: list[tuple[str, float, Outage]] = field(default_factory=list)
    error: float = 1.0  # of what is expected, times

    def of(self, engine: Engine) -> VirtualEngine:
        return self.engines[int(engine.name)]

    async def ask(self, engine: Engine, suspected: bool) -> bool:
        """As `EngineWatch` does."""
        del suspected
        live, asked = engine.liveness, self.of(engine)
        live.is_asked(self.loop.time())
        await asked.asked()
        engine.load = asked.load()
        live.has_answered(self.loop.time(), 0.0, was_out=engine.outage is not None)
        return True

    def expected(self, engine: Engine) -> float:
        return self.error * max(self.of(engine).prefills, default=0.0)

    def note_outage(self, engine: Engine) -> None:
        if engine.outage is not None:
            self.alarms.append((engine.name, self.loop.time(), engine.outage))


class _Tries:
    """In place of an EngineClient: a POST is a request of one token."""

    def __init__(self, engines: Sequence[VirtualEngine]) -> None:
        self._engines = engines

    async def post(self, url: str, *_: Any, seconds: float) -> tuple[int, bytes]:
        try:
            async with asyncio.timeout(seconds):
                await self._engines[int(url.removeprefix("http://e"))].request(1, 1)
        except TimeoutError as e:
            raise UpstreamTimeoutError from e
        return 200, b"{}"


@asynccontextmanager
async def virtual_fleet(
    loop: VirtualLoop, makes: Sequence[Make], rng: Random
) -> AsyncIterator[VirtualFleet]:
    """Engines that run, and a gateway that listens."""
    engines = [VirtualEngine(make, loop, rng) for make in makes]
    settings = ServeSettings(
        engines=[EngineSettings(url=f"http://e{n}", name=str(n)) for n in range(len(makes))],
        probe=ProbeSettings(join=False, one_in=0),
    )
    fleet = Fleet(settings, MemoryIndex(), _nobody, _nobody)
    one = VirtualFleet(loop, fleet, engines)
    fleet.on_outage, fleet.expected_seconds = one.note_outage, one.expected
    cores = [asyncio.create_task(engine.core.run()) for engine in engines]
    scraper = Scraper(fleet.engines, one.ask, lambda now: silence.look(now, scraper.pace))
    silence = SilenceWatch(fleet, cast("EngineClient", _Tries(engines)), scraper.ask_soon)
    for engine in fleet.engines:
        engine.healthy = True
    scraper.start()
    try:
        yield one
    finally:
        await scraper.close()
        await silence.close()
        for core in cores:
            core.cancel()
        await asyncio.gather(*cores, return_exceptions=True)


def _nobody(*_: object) -> Any:
    raise AssertionError("nobody is asked here")
