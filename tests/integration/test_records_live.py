"""What was not reused is named by its reason, live: simulated engines, whose caches are true, over
HTTP, with their events over ZMQ. What an engine would say wrong, a proxy in front of it says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from tests.integration.conftest import LONG, Answer, Fleet, StartFleet, answering, simulated, until
from tests.integration.recorders import records_of

from inferway.config import EngineSettings, RecordSettings
from inferway.scheduling.load import CONFIGURATIONS
from inferway_console.records.record import Miss, MissKind, RequestRecord
from inferway_sim.config import EventsConfig, LatencyModel
from inferway_sim.engine import SimulatedEngine

TEXT = LONG * 2
# One request at a time, so that others wait in the engine while something happens to its cache.
ONE_BY_ONE = {"max_num_seqs": 1, "latency": LatencyModel(inter_token_latency=0.005)}
_numbers = count()


async def _record(fleet: Fleet, answer: Answer) -> RequestRecord:
    """What GET /admin/requests/ID tells of it, once it does."""
    path = f"/admin/requests/{answer.headers['X-Request-ID']}"

    async def is_kept() -> bool:
        return (await fleet.get(path)).status == 200

    await until(is_kept)
    told = (await fleet.get(path)).body
    missed = tuple(Miss(**each) for each in told["missed"])
    return RequestRecord(
        **{
            name: told[name]
            for name in ("id", "at", "reachable_blocks", "chosen_blocks", "delivered_tokens")
        },
        missed=missed,
    )


async def _known(fleet: Fleet, text: str = TEXT, **fields: Any) -> None:
    """The engine holds it, and its events have told so."""

    async def is_known() -> bool:
        answer = await fleet.chat(text, **fields)
        return answer.status == 200 and answer.matched > 5 and answer.cached_tokens > 80

    await until(is_known)


async def _only(fleet: Fleet, answer: Answer, kind: MissKind) -> tuple[RequestRecord, Miss]:
    assert answer.status == 200, answer.body
    record = await _record(fleet, answer)
    assert [each.kind for each in record.missed] == [kind]
    return record, record.missed[0]


def _later(fleet: Fleet, text: str, **fields: Any) -> asyncio.Task[Answer]:
    return asyncio.ensure_future(fleet.chat(text, **fields))


async def _under_way(fleet: Fleet, requests: int) -> None:
    """So many were decided, and are at the only engine."""

    async def are_there() -> bool:
        known = fleet.gateway.fleet
        at_gateway = sum(map(known.in_flight, known.engines))
        return min(fleet.engines[0].num_requests, at_gateway) >= requests

    await until(are_there)


async def _occupied(fleet: Fleet) -> asyncio.Task[Answer]:
    """A request that keeps the only place of the only engine for a while."""
    running = _later(fleet, f"{next(_numbers)}?", max_tokens=150)
    await _under_way(fleet, 1)
    return running


@dataclass
class Front:
    """A proxy in front of an engine, once it is told to interfere: something happens to the engine
    before a chat comes there, and it counts wrong."""

    engine: SimulatedEngine
    resets: bool = False
    meanwhile: Callable[[], Awaitable[None]] | None = None  # happens once, and others wait for it
    drives_out: str = ""  # what else is asked there, first
    tokens_more: int = 0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def answer(self, request: web.Request) -> web.Response:
        url, path = self.engine.url, request.path
        body, is_chat = await request.read(), path == "/v1/chat/completions"
        async with self._turn:
            if is_chat and self.meanwhile is not None:
                await self.meanwhile()
                self.meanwhile = None
        types = {"Content-Type": request.headers.get("Content-Type", "application/json")}
        async with aiohttp.ClientSession() as http:
            if is_chat and self.resets:
                async with http.post(f"{url}/reset_prefix_cache") as reset:
                    assert (await reset.json())["success"]
            if is_chat and self.drives_out:
                said = [{"role": "user", "content": self.drives_out}]
                first = {"model": "smollm2", "messages": said, "max_tokens": 1}
                async with http.post(url + path, json=first) as driven:
                    assert driven.status == 200
            async with http.request(
                request.method, url + request.path_qs, data=body, headers=types
            ) as got:
                if not is_chat or not self.tokens_more:
                    return web.Response(
                        body=await got.read(), status=got.status, content_type=got.content_type
                    )
                told = await got.json()
                told["usage"]["prompt_tokens"] += self.tokens_more
                told["usage"]["prompt_tokens_details"] = {"cached_tokens": 0}
                return web.json_response(told)


@pytest.fixture
async def fronted(start_fleet: StartFleet) -> AsyncIterator[tuple[Fleet, Front]]:
    small = simulated(kv_cache_size=65, max_model_len=1024)
    front = Front((await start_fleet([small])).engines[0])
    async with answering(front.answer) as url:
        yield await start_fleet([], more=[EngineSettings(url=url)]), front


async def test_moved_for_load(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2, scheduling=CONFIGURATIONS["round-robin"])
    await fleet.chat(TEXT)

    async def is_known() -> bool:
        return max((await fleet.scores(TEXT)).values()) > 5

    await until(is_known)

    answers = [await fleet.chat(TEXT) for _ in range(2)]

    [moved] = [answer for answer in answers if answer.matched == 0]
    record, miss = await _only(fleet, moved, MissKind.MOVED_FOR_LOAD)
    assert miss.blocks == record.reachable_blocks > 5


async def test_evicted_meanwhile(fronted: tuple[Fleet, Front]) -> None:
    """Another one takes the cache while the request is on its way."""
    fleet, front = fronted
    await _known(fleet)
    front.drives_out = " ".join(map(str, range(240)))

    answer = await fleet.chat(TEXT)

    record, miss = await _only(fleet, answer, MissKind.EVICTED)
    assert 0 < miss.blocks <= record.chosen_blocks
    assert "event batch" in miss.detail


async def test_restart(fronted: tuple[Fleet, Front]) -> None:
    """It is emptied while the request is on its way."""
    fleet, front = fronted
    await _known(fleet)
    front.resets = True

    answer = await fleet.chat(TEXT)

    _, miss = await _only(fleet, answer, MissKind.RESTART)
    assert 5 < miss.blocks <= answer.matched


async def test_a_restart_as_another_engine(fronted: tuple[Fleet, Front]) -> None:
    """While the request is on its way the engine ends, and another one takes its addresses."""
    fleet, front = fronted
    await _known(fleet)
    old, known = front.engine, fleet.gateway.fleet.engines[0].subscribers[0].figures.stats
    forgotten = known.forgotten
    events, replay = (f"tcp://*:{_port(at)}" for at in (old.events_endpoint, old.replay_endpoint))
    again = replace(old.config, port=_port(old.url), events=EventsConfig(events, replay))

    async def restart() -> None:
        await old.stop()
        await fleet.start_engine(again)
        await until(lambda: _is(known.forgotten > forgotten))

    front.meanwhile = restart

    answer = await fleet.chat(TEXT)

    _, miss = await _only(fleet, answer, MissKind.RESTART)
    assert 5 < miss.blocks <= answer.matched
    assert answer.cached_tokens == 0


async def _is(said: bool) -> bool:
    return said


def _port(url: str | None) -> int:
    assert url is not None
    return int(url.rpartition(":")[2])


async def test_salted(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)
    await _known(fleet, cache_salt="one")

    answer = await fleet.chat(TEXT, cache_salt="two")

    _, miss = await _only(fleet, answer, MissKind.SALTED)
    assert miss.blocks > 5
    assert "one" not in miss.detail


async def test_other_adapter(start_fleet: StartFleet) -> None:
    fleet = await start_fleet([simulated(lora_modules={"tuned": "/adapters/tuned"})])
    await _known(fleet, model="tuned")

    answer = await fleet.chat(TEXT)

    _, miss = await _only(fleet, answer, MissKind.OTHER_ADAPTER)
    assert miss.blocks > 5


async def test_never_stored(start_fleet: StartFleet) -> None:
    """The request that was to compute it is aborted before it was its turn."""
    fleet = await start_fleet([simulated(**ONE_BY_ONE)])
    running = await _occupied(fleet)
    first = _later(fleet, TEXT)
    await _under_way(fleet, 2)
    second = _later(fleet, TEXT)
    await _under_way(fleet, 3)
    first.cancel()
    with suppress(asyncio.CancelledError):
        await first

    answer = await second

    _, miss = await _only(fleet, answer, MissKind.NEVER_STORED)
    assert 5 < miss.blocks <= answer.matched
    assert (await running).status == 200


@pytest.mark.parametrize(
    ("kind", "fields", "tokens_more"),
    [(MissKind.DIFFERS, {}, 3), (MissKind.TRUNCATED, {"truncate_prompt_tokens": 120}, -50)],
)
async def test_the_engine_has_counted_other_tokens(
    fronted: tuple[Fleet, Front], kind: MissKind, fields: dict[str, Any], tokens_more: int
) -> None:
    fleet, front = fronted
    await _known(fleet, **fields)
    front.tokens_more = tokens_more

    answer = await fleet.chat(TEXT, **fields)

    _, miss = await _only(fleet, answer, kind)
    assert miss.blocks > 5
    assert "the engine has counted" in miss.detail


def _lose(engine: SimulatedEngine) -> None:
    """It drops its cache, and does not say so."""
    assert engine._cache.clear()
    engine._cache.take_events()


async def test_a_stale_picture_heals_from_what_is_not_delivered(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)
    (engine,) = fleet.engines
    texts = [f"{number}: {TEXT}" for number in range(4)]
    for text in texts:
        await _known(fleet, text)
    _lose(engine)

    for text in texts[:3]:
        answer = await fleet.chat(text)
        await _only(fleet, answer, MissKind.STALE)
        _lose(engine)

    name = engine.url.removeprefix("http://")
    assert await fleet.metric("inferway_picture_repairs_total", engine=name) == 1

    async def is_healed() -> bool:
        answer = await fleet.chat(texts[2])
        return answer.expected_tokens == answer.cached_tokens > 80

    await until(is_healed)


async def test_what_changes_of_records_waits_for_a_restart_and_the_log_says_so(
    start_fleet: StartFleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = await start_fleet(1)
    settings = fleet.gateway.settings
    new = msgspec.structs.replace(settings, records=RecordSettings(requests=5, max_age=60))

    await fleet.gateway.reload(lambda: new)
    answer = await fleet.chat(TEXT)

    assert "needs a restart: records" in caplog.text
    assert records_of(fleet.gateway).ring.capacity == settings.records.requests
    assert (await _record(fleet, answer)).missed == ()
