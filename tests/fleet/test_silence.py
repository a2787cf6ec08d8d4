"""Engines that say nothing any more: how a fleet finds them, and what tells that they are back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from tests.fleet.servers import serving, until
from tests.fleet.worlds import fleet_of, started

from inferway.fleet.engine import Engine
from inferway.fleet.fleet import Fleet
from inferway.fleet.load import Load, parse_load
from inferway.fleet.outage import OutageKind
from inferway.fleet.watch import EngineWatch, SilenceWatch

LOAD = "vllm:num_requests_running {}\nvllm:generation_tokens_total {}\n"


@dataclass
class Core:
    """The engine's core, as its API shows it: `answers` a try with this status; None: not yet."""

    status: int | None = 200
    tries: int = 0
    url: str = ""
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.Response(text='{"data": [{"id": "m"}]}')
        if request.path != "/v1/completions":
            return web.Response(text="" if request.path == "/health" else LOAD.format(0, 0))
        self.tries += 1
        if self.status is None:
            await self.goes_on.wait()
        return web.Response(status=self.status or 200)


class AsksOnce(EngineWatch):
    """Asks every engine at the start, and not again."""

    def go_on(self) -> None:
        """Nothing: the test says what is heard of them."""


@dataclass
class World:
    """A fleet that nobody asks any more but `silence`, by a clock of the test's."""

    fleet: Fleet
    silence: SilenceWatch
    now: float
    asked: list[str]

    def engine(self, name: str) -> Engine:
        found = self.fleet.engine(name)
        assert found is not None
        return found

    def others_answer(self, *names: str) -> None:
        for name in names:
            self.engine(name).liveness.has_answered(self.now, 0.0)

    def tells(self, name: str, running: int, generated: int) -> None:
        self.engine(name).load = parse_load(LOAD.format(running, generated))

    def pass_seconds(self, seconds: float, *answering: str) -> None:
        """Look ten times a second, while these engines answer what they are asked."""
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            self.others_answer(*answering)
            self.silence.look(self.now, 1.0)

    def kind(self, name: str) -> OutageKind | None:
        outage = self.engine(name).outage
        return None if outage is None else outage.kind


@asynccontextmanager
async def world(*cores: Core) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        for core in cores:
            core.url = await stack.enter_async_context(serving(core.answer))
        fleet = fleet_of(*cores, watch=AsksOnce, scrape_seconds=3600)
        fleet.expected_seconds = lambda _: 0.0
        await stack.enter_async_context(started(fleet))
        asked: list[str] = []
        silence = SilenceWatch(fleet, fleet.client, lambda engine: asked.append(engine.name))
        try:
            yield World(fleet, silence, asyncio.get_running_loop().time(), asked)
        finally:
            for core in cores:
                core.goes_on.set()
            await silence.close()


async def test_an_engine_that_owes_an_answer_is_silent_where_another_one_answers() -> None:
    async with world(Core(), Core()) as w:
        w.engine("e0").liveness.is_asked(w.now)
        w.pass_seconds(2.3, "e1")
        before = w.kind("e0")
        w.pass_seconds(0.5, "e1")

        assert (before, w.kind("e0")) == (None, OutageKind.SILENT)
        assert not w.engine("e0").healthy
        assert w.engine("e1").healthy


async def test_an_engine_is_not_that_soon_silent_where_no_other_one_answers() -> None:
    async with world(Core(), Core()) as w:
        w.engine("e0").liveness.is_asked(w.now)
        w.pass_seconds(29)
        before = w.kind("e0")
        w.pass_seconds(3)

        assert (before, w.kind("e0")) == (None, OutageKind.SILENT)
        assert "e1" in w.asked


async def test_engines_are_not_taken_for_lost_by_a_gateway_that_stood_still() -> None:
    async with world(Core(), Core()) as w:
        w.engine("e0").liveness.is_asked(w.now)
        w.now += 60.0
        w.pass_seconds(2.3, "e1")

        assert w.kind("e0") is None


async def test_a_core_that_computes_nothing_is_found_by_a_try() -> None:
    core = Core(status=None)
    async with world(core, Core()) as w:
        w.tells("e0", running=1, generated=10)
        w.pass_seconds(0.5, "e1")
        w.tells("e0", running=1, generated=11)
        w.pass_seconds(2.3, "e1")
        await until(lambda: core.tries == 1)
        before = w.kind("e0")
        w.pass_seconds(0.5, "e1")

        assert (before, w.kind("e0")) == (None, OutageKind.STALLED)
        assert core.tries == 1


async def test_what_an_engine_tells_first_is_no_token() -> None:
    """Its first token may be compiled for: it has longer."""
    core = Core(status=None)
    async with world(core, Core()) as w:
        w.engine("e0").load = Load()
        w.silence.look(w.now, 1.0)
        w.tells("e0", running=1, generated=10)
        w.pass_seconds(9.0, "e1")
        await until(lambda: core.tries == 1)

        assert w.kind("e0") is None


async def test_a_long_prompt_counts_until_its_first_token_shows_in_the_counters() -> None:
    """The gateway may have that token before the engine tells of it."""
    core = Core(status=None)
    async with world(core, Core()) as w:
        expected = 10.0
        w.fleet.expected_seconds = lambda _: expected
        for generated in (10, 11):
            w.tells("e0", running=1, generated=generated)
            w.pass_seconds(0.1, "e1")
        w.pass_seconds(14.0, "e1")
        await until(lambda: core.tries == 0)
        w.pass_seconds(6.0, "e1")
        await until(lambda: core.tries == 1)
        expected = 0.1
        w.pass_seconds(4.0, "e1")
        w.tells("e0", running=1, generated=11)
        w.pass_seconds(1.0, "e1")
        before = w.kind("e0")
        w.tells("e0", running=1, generated=11)
        w.pass_seconds(20.0, "e1")

        assert (before, w.kind("e0")) == (None, OutageKind.STALLED)


async def test_a_core_that_answers_the_try_is_not_stalled() -> None:
    core = Core()
    async with world(core, Core()) as w:
        w.tells("e0", running=1, generated=10)
        w.pass_seconds(0.5, "e1")
        w.tells("e0", running=1, generated=11)
        w.pass_seconds(2.0, "e1")
        await until(lambda: core.tries == 1 and w.engine("e0").liveness.tried is None)
        w.pass_seconds(1.0, "e1")

        assert w.kind("e0") is None


async def test_counters_that_move_are_no_silence() -> None:
    core = Core(status=None)
    async with world(core, Core()) as w:
        for generated in range(60):
            w.tells("e0", running=1, generated=generated)
            w.pass_seconds(1.0, "e1")

        assert w.kind("e0") is None
        assert core.tries == 0


async def test_a_stalled_engine_is_back_when_it_answers_a_try_and_not_sooner() -> None:
    core = Core(status=None)
    async with world(core, Core()) as w:
        w.tells("e0", running=1, generated=10)
        w.pass_seconds(0.5, "e1")
        w.tells("e0", running=1, generated=11)
        w.pass_seconds(4, "e1")
        await until(lambda: core.tries == 1)
        w.pass_seconds(4, "e1")
        stalled = w.kind("e0")
        w.tells("e0", running=0, generated=11)  # what ran there was aborted
        w.pass_seconds(4, "e0", "e1")
        still = w.kind("e0")
        core.goes_on.set()
        await until(lambda: w.engine("e0").healthy)

        assert (stalled, still, w.kind("e0")) == (OutageKind.STALLED, OutageKind.STALLED, None)
        assert core.tries == 1  # one at a time


async def test_an_engine_that_has_nothing_to_do_is_not_stalled() -> None:
    core = Core(status=None)
    async with world(core, Core()) as w:
        w.tells("e0", running=0, generated=10)
        w.pass_seconds(60, "e1")

        assert (w.kind("e0"), core.tries) == (None, 0)


async def test_a_core_whose_counters_tell_nothing_is_not_judged() -> None:
    core = Core(status=None)
    async with world(core, Core()) as w:
        w.engine("e0").load = parse_load("vllm:num_requests_running 1\n")
        w.pass_seconds(60, "e1")

        assert (w.kind("e0"), core.tries) == (None, 0)


async def test_a_core_that_answers_tries_is_not_stalled_whatever_the_others_wait_for() -> None:
    core = Core()
    async with world(core, Core()) as w:
        told = LOAD.format(0, 5) + "vllm:num_requests_waiting 1\n"
        w.engine("e0").load = parse_load(told)
        w.fleet.table.book(w.engine("e0").endpoints[0], 10)
        for tries in range(1, 4):
            w.pass_seconds(6, "e1")
            await until(lambda number=tries: core.tries >= number)  # type: ignore[misc]
            await until(lambda: w.engine("e0").liveness.tried is None)
            w.now = asyncio.get_running_loop().time()

        assert w.kind("e0") is None
        assert w.engine("e0").liveness.pauses.seconds(w.now) == 0.0


async def test_requests_that_wait_at_a_stalled_core_are_seen() -> None:
    core = Core(status=None)
    async with world(core, Core()) as w:
        w.tells("e0", running=0, generated=10)
        w.pass_seconds(0.5, "e1")
        told = LOAD.format(0, 10) + "vllm:num_requests_waiting 1\n"
        w.engine("e0").load = parse_load(told)
        w.pass_seconds(5.5, "e1")
        await until(lambda: core.tries == 1)
        w.pass_seconds(6, "e1")

        assert w.kind("e0") is OutageKind.STALLED


async def test_an_engine_that_cannot_be_tried_is_not_judged_again() -> None:
    core = Core(status=404)
    async with world(core, Core()) as w:
        w.tells("e0", running=1, generated=10)
        w.pass_seconds(6, "e1")
        await until(lambda: core.tries == 1 and w.engine("e0").liveness.tried is None)
        w.pass_seconds(60, "e1")

        assert (w.kind("e0"), core.tries) == (None, 1)
