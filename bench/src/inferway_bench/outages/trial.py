"""One kind of trouble: all routers at once in front of the same engines, so that the same happens
to all of them at the same moment, and what their clients see."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from inferway_bench.loading.client import Client, Target
from inferway_bench.outages.engines import (
    MODEL,
    TroubledEngine,
    TroubledFleet,
    TroubleKind,
    troubled_fleet,
)
from inferway_bench.outages.seen import Seen, figures, seen
from inferway_bench.progress import OnStep
from inferway_bench.routers import Router, RunningRouter, place_for, running_router

_PATH = "/v1/chat/completions"


class TrialLoad(msgspec.Struct, frozen=True):
    """The requests of a trial: every other one is a stream."""

    per_second: float = 3.0  # to each router
    quiet_seconds: float = 5.0  # before the trouble begins
    seconds: float = 14.0  # in which requests are sent
    words: int = 100  # of a prompt
    answer_tokens: int = 60
    give_up_seconds: float = 60.0

    @property
    def num_requests(self) -> int:
        return round(self.per_second * self.seconds)

    def body(self, number: int) -> bytes:
        """Return the request of that number, which no other one is like."""
        words = [f"[{number}]", *[f"alpha{number % 13}", "beta"] * (self.words // 2)]
        return msgspec.json.encode(
            {
                "model": MODEL,
                "messages": [{"role": "user", "content": " ".join(words)}],
                "max_tokens": self.answer_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": number % 2 == 0,
            }
        )


@dataclass(slots=True)
class Trials:
    """Makes trials; their beginnings come one after the other, while the clients of those before
    may still wait. `found`: figures by kind and router."""

    spec: TroubledEngine
    load: TrialLoad
    routers: Sequence[Router]
    directory: Path
    on_step: OnStep
    found: dict[tuple[TroubleKind, str], dict[str, float]] = field(default_factory=dict)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self, kinds: Sequence[TroubleKind]) -> None:
        """Raises BenchError when something cannot be started."""
        total = len(kinds)
        await asyncio.gather(*(self._one(kind, n, total) for n, kind in enumerate(kinds)))

    async def _one(self, kind: TroubleKind, number: int, total: int) -> None:
        place = self.directory / str(number)
        place.mkdir()
        stack = ExitStack()
        try:
            async with self._turn:
                self.on_step(f"{kind}: starting engines and routers", number, total)
                fleet, routers = await asyncio.to_thread(self._start, stack, kind, place, number)
                self.on_step(f"{kind}: asking", number, total)
                trial = _Trial(self.load, fleet, routers)
                await trial.send(kind)
            await trial.answered()
            for router in routers:
                key = kind, router.label
                self.found[key] = figures(trial.seen[router.label], trial.trouble_at)
        finally:
            await asyncio.to_thread(stack.close)  # others are being asked

    def _start(
        self, stack: ExitStack, kind: TroubleKind, place: Path, number: int
    ) -> tuple[TroubledFleet, list[RunningRouter]]:
        fleet = stack.enter_context(troubled_fleet(self.spec, kind, place, number))
        routers = []
        for each, router in enumerate(self.routers):
            where = place_for(fleet.engines, MODEL, place / f"router-{each}")
            routers.append(stack.enter_context(running_router(router, where, router.is_ready)))
        return fleet, routers


class _Trial:
    """The clients of one kind of trouble."""

    def __init__(
        self, load: TrialLoad, fleet: TroubledFleet, routers: Sequence[RunningRouter]
    ) -> None:
        self.seen: dict[str, list[Seen]] = {router.label: [] for router in routers}
        self.trouble_at = load.quiet_seconds
        self._load = load
        self._fleet = fleet
        self._clients = {
            router.label: Client(Target(router.url, timeout=load.give_up_seconds))
            for router in routers
        }
        self._asked: set[asyncio.Task[None]] = set()
        self._began = 0.0

    async def send(self, kind: TroubleKind) -> None:
        """Send all requests, at their times."""
        load = self._load
        for label in self._clients:  # each router once, so that nobody's first request counts
            await self._ask(label, load.num_requests, is_seen=False)
        loop = asyncio.get_running_loop()
        began, self._began = loop.time(), time.perf_counter()
        has_begun = False
        for number in range(load.num_requests):
            due = number / load.per_second
            if due >= load.quiet_seconds and not has_begun:
                has_begun = True
                self.trouble_at = time.perf_counter() - self._began
                await asyncio.to_thread(self._fleet.begin, kind)
            await asyncio.sleep(began + due - loop.time())
            for label in self._clients:
                self._asked.add(asyncio.create_task(self._ask(label, number)))

    async def answered(self) -> None:
        """Return when all are answered, or given up."""
        await asyncio.gather(*self._asked)
        for client in self._clients.values():
            client.close()

    async def _ask(self, label: str, number: int, *, is_seen: bool = True) -> None:
        answer = await self._clients[label].post(_PATH, self._load.body(number))
        if is_seen:
            self.seen[label].append(seen(answer, self._began))
