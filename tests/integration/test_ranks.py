"""An engine with data-parallel ranks: each is a holder of its own, and is chosen by a header."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web
from tests.integration.conftest import LONG, Fleet, StartFleet, until

from inferway.config import EngineSettings, ProbeSettings
from inferway_sim.engine import SimulatedEngine


class RanksInFront:
    """One API server before simulated engines that are its ranks, as vLLM 0.32's is: the header
    is a place among the ranks that it manages, and a wrong one is the client's fault."""

    def __init__(self, ranks: Sequence[SimulatedEngine], first_rank: int = 0) -> None:
        self.ranks = ranks
        self.first_rank = first_rank
        self.chosen: list[str | None] = []  # the headers of requests
        self.url = ""

    async def ask(self, request: web.Request) -> web.Response:
        header = request.headers.get("X-data-parallel-rank")
        self.chosen.append(header)
        place = int(header or 0)
        if not 0 <= place < len(self.ranks):
            message = f"data_parallel_rank {place} is out of range [0, {len(self.ranks)})."
            return web.json_response({"error": {"message": message}}, status=400)
        return await self._pass_on(self.ranks[place], request)

    async def tell(self, request: web.Request) -> web.Response:
        return await self._pass_on(self.ranks[0], request)

    async def sources(self, _: web.Request) -> web.Response:
        """Ranks are counted over all nodes."""
        found = {}
        async with aiohttp.ClientSession() as http:
            for rank, engine in enumerate(self.ranks, self.first_rank):
                async with http.get(f"{engine.url}/kv_event_sources") as answer:
                    found[str(rank)] = (await answer.json())["0"]
        return web.json_response(found)

    async def _pass_on(self, engine: SimulatedEngine, request: web.Request) -> web.Response:
        body = await request.read()
        async with (
            aiohttp.ClientSession() as http,
            http.request(request.method, engine.url + request.path, data=body) as answer,
        ):
            content_type = answer.content_type
            return web.Response(
                body=await answer.read(), status=answer.status, content_type=content_type
            )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[RanksInFront]:
        app = web.Application()
        app.router.add_get("/kv_event_sources", self.sources)
        app.router.add_get("/{path:.*}", self.tell)
        app.router.add_post("/v1/chat/completions", self.ask)
        app.router.add_post("/{path:.*}", self.tell)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield self
        finally:
            await runner.cleanup()


async def gateway_of(start_fleet: StartFleet, front: RanksInFront) -> Fleet:
    """It asks nothing of its own."""
    engine = EngineSettings(url=front.url, name="dp")
    return await start_fleet([], more=[engine], probe=ProbeSettings(join=False, one_in=0))


async def believed(fleet: Fleet, text: str) -> dict[str, int]:
    """By rank."""
    return {name.rpartition("/")[2]: n for name, n in (await fleet.scores(text)).items()}


async def test_a_rank_keeps_what_was_sent_to_it(start_fleet: StartFleet) -> None:
    ranks = (await start_fleet(2)).engines
    async with RanksInFront(ranks).serving() as front:
        fleet = await gateway_of(start_fleet, front)
        first = await fleet.chat(LONG)
        [chosen] = front.chosen
        blocks = int(first.headers["x-inferway-prompt-blocks"])

        async def known() -> bool:
            return (await believed(fleet, LONG))[str(chosen)] == blocks

        await until(known)
        again = await fleet.chat(LONG)
        other = {"0": "1", "1": "0"}[str(chosen)]

        assert front.chosen == [chosen, chosen]
        assert again.expected_tokens == again.cached_tokens > 0
        assert (await believed(fleet, LONG))[other] < blocks
        assert (first.engine, set(await fleet.scores(LONG))) == ("dp", {"dp/0", "dp/1"})
        for rank in ("0", "1"):
            labels = {"engine": "dp", "rank": rank, "state": "exact"}
            assert await fleet.metric("inferway_stream_state", **labels) == 1


async def test_the_header_is_a_place_among_the_ranks_of_the_node(start_fleet: StartFleet) -> None:
    ranks = (await start_fleet(2)).engines
    async with RanksInFront(ranks, first_rank=2).serving() as front:
        fleet = await gateway_of(start_fleet, front)
        # All at once, so that one rank's cached system prompt does not outweigh its queue.
        answers = await asyncio.gather(*(fleet.chat(f"{i}: {LONG}") for i in range(12)))

        assert {answer.status for answer in answers} == {200}
        assert set(front.chosen) == {"0", "1"}
        assert set(await fleet.scores(LONG)) == {"dp/2", "dp/3"}


async def test_a_single_rank_is_not_chosen(start_fleet: StartFleet) -> None:
    """With the external load balancer every rank is a server of its own, which takes none."""
    ranks = (await start_fleet(1)).engines
    async with RanksInFront(ranks, first_rank=3).serving() as front:
        fleet = await gateway_of(start_fleet, front)
        await fleet.chat(LONG)

        assert front.chosen == [None]
        assert set(await fleet.scores(LONG)) == {"dp"}


async def test_an_engine_that_comes_back_with_more_ranks_is_all_used(
    start_fleet: StartFleet,
) -> None:
    ranks = (await start_fleet(2)).engines
    async with RanksInFront(ranks[:1]).serving() as front:
        fleet = await gateway_of(start_fleet, front)
        await fleet.chat(LONG)
        front.ranks = ranks
        [engine] = fleet.gateway.fleet.engines
        fleet.gateway.fleet.suspect(engine.endpoints[0])

        async def both_known() -> bool:
            return set(await fleet.scores(LONG)) == {"dp/0", "dp/1"}

        await until(both_known)
        front.chosen.clear()
        await asyncio.gather(*[fleet.chat(f"{i}: {LONG}") for i in range(12)])  # at once: by load
        assert set(front.chosen) == {"0", "1"}
