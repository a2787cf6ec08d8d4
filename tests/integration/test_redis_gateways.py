"""`inferway serve --index redis://…`: several gateways in front of the same simulated engines,
with a real redis-server between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.integration.conftest import LONG, Answer, Fleet, StartFleet, until
from tests.integration.program import Program
from tests.kv.index.redis_server import RedisServer, running_server

from inferway.config import EngineSettings, IndexSettings
from inferway.kv.index.redis import RedisIndex
from inferway.simulator.engine import SimulatedEngine

pytestmark = pytest.mark.tools

PATIENT = 20.0  # seconds: a lease of the default 6 s, on a busy machine


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with running_server() as running:
        yield running


def shared(server: RedisServer) -> IndexSettings:
    return IndexSettings(url=server.url)


def redis_of(fleet: Fleet) -> RedisIndex:
    index = fleet.gateway.index
    assert isinstance(index, RedisIndex)
    return index


def same(engines: Sequence[SimulatedEngine]) -> list[EngineSettings]:
    """The same engines as another gateway is told of them."""
    return [EngineSettings(url=engine.url) for engine in engines]


async def until_matched(fleet: Fleet, *turns: str) -> Answer:
    """The first answer that was routed by what an engine holds."""
    answers: list[Answer] = []

    async def matched() -> bool:
        answers.append(await fleet.chat(*turns))
        return answers[-1].matched > 0

    await until(matched, PATIENT)
    return answers[-1]


async def scores_of(fleet: Fleet, *turns: str) -> dict[str, int]:
    """Asked again where a busy machine makes an answer of Redis late."""
    found: list[Answer] = []

    async def scored() -> bool:
        found.append(await fleet.post("/score_chat_completions", _chat(*turns)))
        return found[-1].status == 200

    await until(scored, PATIENT)
    scores: dict[str, int] = found[-1].body["pod_scores"]
    return scores


async def is_true(fleet: Fleet, *turns: str) -> None:
    """The engine has as much of a prompt as the index says, and some engine has much of it."""
    scores = await scores_of(fleet, *turns)
    answer = await fleet.chat(*turns)

    assert answer.reusable(scores[answer.engine]) == answer.cached_tokens, (scores, answer.engine)
    assert max(scores.values()) > 5


async def until_scores(fleet: Fleet, expected: dict[str, int], *turns: str) -> None:
    async def so() -> bool:
        return await scores_of(fleet, *turns) == expected

    await until(so, PATIENT)


def _chat(*turns: str) -> dict[str, object]:
    return {"model": "smollm2", "messages": [{"role": "user", "content": turn} for turn in turns]}


async def until_written(fleet: Fleet, engines: Sequence[SimulatedEngine] = ()) -> None:
    """This gateway writes all its engines, and Redis has what they hold."""

    async def all_is() -> bool:
        index, held = redis_of(fleet), [len(e.cached_blocks()) for e in engines or fleet.engines]
        known = [index.num_blocks(holder) for holder in range(len(held))]
        return known == held and index.num_leases == len(held) and index.num_pending == 0

    await until(all_is, PATIENT)
    await redis_of(fleet).flushed()


# what one knows, all know


async def test_what_one_gateway_has_routed_another_matches(
    start_fleet: StartFleet, server: RedisServer
) -> None:
    first = await start_fleet(2, index=shared(server))
    answer = await first.chat(LONG)
    second = await start_fleet([], more=same(first.engines), index=shared(server))

    again = await until_matched(second, LONG)

    assert again.engine == answer.engine
    assert again.expected_tokens == again.cached_tokens > 0


async def test_a_gateway_that_hears_no_engine_matches_what_another_has_heard(
    start_fleet: StartFleet, server: RedisServer, tmp_path: Path
) -> None:
    """Their event sockets are out of its reach."""
    first = await start_fleet(2, index=shared(server))
    for i in range(6):
        await first.chat(f"{i}: {LONG}")
    await until_written(first)
    nobody = f"ipc://{tmp_path}/nobody"
    deaf = [EngineSettings(url=engine.url, events=nobody) for engine in first.engines]
    second = await start_fleet([], more=deaf, index=shared(server))

    for i in range(6):
        scores = await scores_of(first, f"{i}: {LONG}")
        assert max(scores.values()) > 5
        await until_scores(second, scores, f"{i}: {LONG}")
        answer = await until_matched(second, f"{i}: {LONG}")
        assert answer.expected_tokens == answer.cached_tokens > 0

    index = redis_of(second)
    await index.keep()
    assert [index.shared_state(holder) for holder in (0, 1)] == ["exact", "exact"]
    assert [redis_of(first).shared_state(holder) for holder in (0, 1)] == [None, None]
    assert (await second.metric("inferway_index_leases"), index.stats.written.batches) == (0, 0)
    assert await first.metric("inferway_index_leases") == 2


async def test_what_an_engine_drops_is_gone_for_all_gateways(
    start_fleet: StartFleet, server: RedisServer
) -> None:
    first = await start_fleet(1, index=shared(server))
    second = await start_fleet([], more=same(first.engines), index=shared(server))
    await first.chat(LONG)
    await until_matched(second, LONG)

    await reset(first, first.engines[0])

    for fleet in (first, second):
        await until_scores(fleet, {first.engines[0].url[7:]: 0}, LONG)


async def reset(fleet: Fleet, engine: SimulatedEngine) -> None:
    """Empties the engine's cache. As in vLLM, its events leave with its next step."""

    async def done() -> bool:  # refused while something runs: the probe, perhaps
        async with fleet.http.post(f"{engine.url}/reset_prefix_cache") as response:
            return bool((await response.json())["success"])

    await until(done)
    ping = {"model": "smollm2", "prompt": "ping", "max_tokens": 1}
    async with fleet.http.post(f"{engine.url}/v1/completions", json=ping) as response:
        assert response.status == 200


# a gateway dies


@asynccontextmanager
async def gateway_process(*arguments: str) -> AsyncIterator[tuple[Program, str]]:
    """`inferway serve` in a process of its own, and its URL."""
    program = Program("serve", "--port", "0", *arguments)
    try:
        url = await asyncio.to_thread(program.read_until, r"listening on (http://\S+)")
        yield program, url
    finally:
        program.kill()


async def test_when_the_writer_is_killed_another_takes_over_and_what_it_says_is_true(
    start_fleet: StartFleet, server: RedisServer
) -> None:
    """With the lease that gateways have unless told otherwise: 6 s."""
    unused = await start_fleet(2)
    engines = unused.engines
    told = [f"--engine={engine.url}" for engine in engines]
    async with gateway_process("--index", server.url, *told) as (killed, url):
        survivor = await start_fleet([], more=same(engines), index=shared(server))
        for _ in range(4):
            async with survivor.http.post(f"{url}/v1/chat/completions", json=_chat(LONG)) as r:
                assert r.status == 200
                holder = r.headers["x-inferway-engine"]

        async def is_known() -> bool:
            return (await scores_of(survivor, LONG))[holder] > 5

        await until(is_known, PATIENT)
        assert redis_of(survivor).num_leases == 0

        killed.process.kill()
        await asyncio.to_thread(killed.process.wait)
        [cleared] = [engine for engine in engines if engine.url[7:] == holder]
        await reset(survivor, cleared)

        async def writes() -> bool:
            return await survivor.metric("inferway_index_leases") == 2

        await until(writes, PATIENT)

    await until_scores(survivor, {engine.url[7:]: 0 for engine in engines}, LONG)
    for i in range(4):
        await survivor.chat(f"{i} {LONG}")
    await until_written(survivor, engines)
    for i in range(4):
        await is_true(survivor, f"{i} {LONG}")


# the server dies


async def all_answered(fleet: Fleet, clients: int, enough: asyncio.Event) -> list[Answer]:
    """Clients that ask, each again and again, until there have been enough."""

    async def client(number: int) -> list[Answer]:
        answers = []
        while not enough.is_set():
            answers.append(await fleet.chat(f"client {number}: {LONG}", max_tokens=1))
        return answers

    found = await asyncio.gather(*(client(number) for number in range(clients)))
    return [answer for answers in found for answer in answers]


@pytest.mark.parametrize("silent", [False, True], ids=["killed", "silent"])
async def test_a_server_that_is_lost_under_load_costs_matches_and_no_answer(
    start_fleet: StartFleet, server: RedisServer, silent: bool
) -> None:
    fleet = await start_fleet(2, index=shared(server))
    enough = asyncio.Event()
    clients = asyncio.ensure_future(all_answered(fleet, 8, enough))

    async def decisions(reason: str) -> float:
        return await fleet.metric("inferway_decisions_total", reason=reason)

    async def rises(reason: str, by: int) -> None:
        goal = await decisions(reason) + by

        async def risen() -> bool:
            return await decisions(reason) >= goal

        await until(risen, PATIENT)

    await rises("kv-aware", 50)
    (server.fall_silent if silent else server.kill)()
    await rises("index-away", 100)
    away = await fleet.metric("inferway_index_away")
    late = await fleet.metric("inferway_index_late_total")
    (server.go_on if silent else server.start)()
    await rises("kv-aware", 50)
    enough.set()
    answers = await clients

    assert {answer.status for answer in answers} == {200}
    assert away == 1
    assert late < 40  # the others did not wait
    decided = await fleet.metric("inferway_decision_seconds_count")
    in_time = await fleet.metric("inferway_decision_seconds_bucket", le="0.5")
    assert decided - in_time < 4  # eight clients would have waited for a lost answer (2 s)
    await until_written(fleet)
    for i in range(8):
        await is_true(fleet, f"client {i}: {LONG}")


async def test_a_gateway_starts_without_the_server_and_heals(
    start_fleet: StartFleet, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.kill()
    fleet = await start_fleet(2, index=shared(server))

    assert (await fleet.chat(LONG)).status == 200
    assert await fleet.metric("inferway_decisions_total", reason="index-away") == 1
    models = (await fleet.get("/ready")).body["models"]
    assert {model["reason"] for model in models.values()} == {"index-away"}
    assert "is away, and requests go by load only" in caplog.text
    answer = await fleet.post("/score_chat_completions", _chat(LONG))
    assert (answer.status, answer.body["error"]["code"]) == (503, "index_away")

    server.start()
    answer = await until_matched(fleet, LONG)
    assert answer.expected_tokens == answer.cached_tokens > 0


async def test_a_gateway_that_is_stopped_leaves_what_it_wrote_to_the_others(
    start_fleet: StartFleet, server: RedisServer
) -> None:
    first = await start_fleet(1, index=shared(server))
    await first.chat(LONG)
    await until_written(first)
    scores = await scores_of(first, LONG)
    second = await start_fleet([], more=same(first.engines), index=shared(server))
    await first.gateway.close()

    await until_scores(second, scores, LONG)

    async def writes() -> bool:
        return redis_of(second).num_leases == 1

    await until(writes, PATIENT)
    await until_scores(second, scores, LONG)
