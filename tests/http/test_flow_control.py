"""Requests that wait for their turn: over real connections, before scripted engines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from time import monotonic
from typing import Any

import pytest
from tests.http.clients import Client, connected, post
from tests.http.gateways import Gateway, gateway
from tests.upstream.engines import (
    Script,
    Seen,
    Talk,
    answer,
    in_loop,
    raw,
    refusing,
    running,
    wait_until,
)

from inferway.config import FlowSettings
from inferway.http.request_queue import RequestQueue

ENGINES = ["e0", "e1", "e2"]


def limited(engines: Sequence[str] = ("e0",), **settings: object) -> RequestQueue:
    return RequestQueue(FlowSettings(**settings), lambda _: engines, monotonic)  # type: ignore[arg-type]


class Gate:
    """An engine that answers with the request's body, one request each time it is opened."""

    def __init__(self) -> None:
        self.at_once = self.most = 0
        self._opened = asyncio.Semaphore(0)

    def open(self, times: int = 1) -> None:
        for _ in range(times):
            self._opened.release()

    @property
    def script(self) -> Script:
        async def run(seen: Seen, talk: Talk) -> None:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            await self._opened.acquire()
            self.at_once -= 1
            await answer(seen.body)(seen, talk)

        return run


def waiting(control: RequestQueue) -> int:
    return control.limiter.queue.size


def is_empty(control: RequestQueue) -> bool:
    """Nothing is kept of anybody."""
    limiter = control.limiter
    return (limiter.in_flight, limiter.engines, waiting(control), control._futures) == (
        *(0, {}, 0, {}),
    )


async def sent(c: Client, body: bytes, control: RequestQueue, *headers: bytes) -> None:
    """Waits until it waits."""
    before = waiting(control)
    await c.send(post(body, *headers))
    await wait_until(lambda: waiting(control) == before + 1)


@in_loop
async def test_no_more_than_the_limit_are_in_flight_and_all_are_answered() -> None:
    control, gate = limited(in_flight=2), Gate()
    async with (
        running(gate.script) as engine,
        gateway(engine.url, control=control) as gw,
        asyncio.TaskGroup() as group,
    ):

        async def ask(number: int) -> None:
            async with connected(gw.server) as c:
                assert (await c.ask(post(b"%d" % number))).body == b"%d" % number

        tasks = [group.create_task(ask(number)) for number in range(12)]
        await wait_until(lambda: waiting(control) == 10)
        gate.open(12)
        await asyncio.wait(tasks)

        assert gate.most == 2
        assert is_empty(control)
        assert control.limiter.stats.waited == 10


@in_loop
async def test_an_urgent_request_goes_first() -> None:
    control, gate = limited(in_flight=1), Gate()
    async with (
        running(gate.script) as engine,
        gateway(engine.url, control=control) as gw,
        connected(gw.server) as first,
        connected(gw.server) as plain,
        connected(gw.server) as urgent,
    ):
        await first.send(post(b"first"))
        await wait_until(lambda: gate.at_once == 1)
        await sent(plain, b"plain", control)
        await sent(urgent, b"urgent", control, b"x-priority: 2")
        gate.open(3)

        assert (await urgent.answer()).body == b"urgent"
        assert (await plain.answer()).body == b"plain"
        assert [seen.body for seen in engine.seen] == [b"first", b"urgent", b"plain"]


@in_loop
async def test_tenants_take_turns() -> None:
    control, gate = limited(in_flight=1), Gate()
    async with (
        running(gate.script) as engine,
        gateway(engine.url, control=control) as gw,
        asyncio.TaskGroup() as group,
    ):

        async def ask(tenant: bytes) -> None:
            async with connected(gw.server) as c:
                header = b"x-tenant: " + tenant
                assert (await c.ask(post(tenant, header))).status == 200

        group.create_task(ask(b"a"))
        await wait_until(lambda: gate.at_once == 1)
        for number, tenant in enumerate([b"a", b"a", b"a", b"b", b"b"]):
            group.create_task(ask(tenant))
            await wait_until(lambda so_many=number + 1: waiting(control) == so_many)  # type: ignore[misc]
        gate.open(6)
        await wait_until(lambda: len(engine.seen) == 6)

        assert b"".join(seen.body for seen in engine.seen) == b"aababa"


@in_loop
async def test_who_goes_away_leaves_the_queue_at_once() -> None:
    control, gate = limited(in_flight=1), Gate()
    async with (
        running(gate.script) as engine,
        gateway(engine.url, control=control) as gw,
        connected(gw.server) as first,
    ):
        await first.send(post(b"first"))
        await wait_until(lambda: gate.at_once == 1)
        async with connected(gw.server) as gone:
            await sent(gone, b"gone", control)
        await wait_until(lambda: waiting(control) == 0)
        gate.open()
        await first.answer()

        assert [seen.body for seen in engine.seen] == [b"first"]
        assert is_empty(control)
        assert control.limiter.stats.left == 1


@in_loop
async def test_a_full_queue_is_429_and_says_when_to_come_again() -> None:
    control, gate = limited(in_flight=1, queue=0), Gate()
    async with (
        running(gate.script) as engine,
        gateway(engine.url, control=control) as gw,
        connected(gw.server) as first,
        connected(gw.server) as second,
    ):
        await first.send(post(b"first"))
        await wait_until(lambda: gate.at_once == 1)
        refused = await second.ask(post())
        gate.open(2)
        await first.answer()

        assert refused.status == 429
        assert refused.values(b"retry-after") == [b"1"]
        assert b'"type":"rate_limit_error"' in refused.body
        assert b'"code":"queue_full"' in refused.body
        assert (await second.ask(post(b"again"))).body == b"again"
        assert is_empty(control)


@in_loop
async def test_who_is_displaced_gets_his_429() -> None:
    control, gate = limited(in_flight=1, queue=1), Gate()
    async with (
        running(gate.script) as engine,
        gateway(engine.url, control=control) as gw,
        connected(gw.server) as first,
        connected(gw.server) as plain,
        connected(gw.server) as urgent,
    ):
        await first.send(post(b"first"))
        await wait_until(lambda: gate.at_once == 1)
        await sent(plain, b"plain", control)
        await urgent.send(post(b"urgent", b"x-priority: 1"))

        assert (await plain.answer()).status == 429
        gate.open(2)
        assert (await urgent.answer()).body == b"urgent"
        assert is_empty(control)


@pytest.mark.parametrize(
    "header", [b"x-slo-ttft-ms: 20", b"x-request-timeout-ms: 20", b"x-stainless-read-timeout: 0.02"]
)
@in_loop
async def test_nobody_waits_for_longer_than_he_says(header: bytes) -> None:
    control, gate = limited(in_flight=1), Gate()
    async with (
        running(gate.script) as engine,
        gateway(engine.url, control=control) as gw,
        connected(gw.server) as first,
        connected(gw.server) as hasty,
    ):
        await first.send(post(b"first"))
        await wait_until(lambda: gate.at_once == 1)
        refused = await hasty.ask(post(b"", header))
        gate.open()
        await first.answer()

        assert (refused.status, len(engine.seen)) == (429, 1)
        assert b"no engine had room for it within 0.02 s" in refused.body
        assert b'"code":"wait_too_long"' in refused.body
        assert is_empty(control)


@in_loop
async def test_a_further_try_goes_only_where_there_is_room() -> None:
    control, gate = limited(ENGINES, in_flight=None, engine_in_flight=1), Gate()
    async with (
        refusing() as gone,
        running(gate.script) as full,
        running(answer(b"e2")) as free,
        gateway(gone, full.url, free.url, control=control) as gw,
        connected(gw.server) as first,
        connected(gw.server) as second,
    ):
        await first.send(post(b"first"))  # e0 is not there: it goes to e1
        await wait_until(lambda: gate.at_once == 1)
        got = await second.ask(post())
        gate.open()
        await first.answer()

        assert (got.body, gate.most) == (b"e2", 1)
        assert gw.trips[1].attempts == ["e0", "e2"]
        assert is_empty(control)


@in_loop
async def test_new_limits_hold_at_once() -> None:
    control, gate = limited(in_flight=1), Gate()
    async with (
        running(gate.script) as engine,
        gateway(engine.url, control=control) as gw,
        connected(gw.server) as first,
        connected(gw.server) as second,
    ):
        await first.send(post(b"first"))
        await wait_until(lambda: gate.at_once == 1)
        await sent(second, b"second", control)
        control.set_settings(FlowSettings(in_flight=2))
        await wait_until(lambda: gate.at_once == 2)
        gate.open(2)
        await first.answer()
        await second.answer()

        assert is_empty(control)


@in_loop
async def test_an_engine_that_comes_has_room_for_who_waits() -> None:
    engines = ["full"]
    control = limited(engines, in_flight=None, engine_in_flight=1)
    assert control.limiter.enter("m") == "full"
    async with (
        running(answer(b"here")) as engine,
        gateway(engine.url, control=control) as gw,
        connected(gw.server) as c,
    ):
        await sent(c, b"", control)
        engines.append("e0")

        assert (await c.answer()).body == b"here"


@pytest.mark.parametrize("seed", range(8))
@in_loop
async def test_whoever_comes_and_goes_nothing_is_lost_and_nothing_leaks(seed: int) -> None:
    """Clients leave at any moment, engines answer, break off, or refuse."""
    random = Random(seed)
    control = limited(ENGINES, in_flight=4, queue=20)
    limiter = control.limiter
    most = 0

    async def script(seen: Seen, talk: Talk) -> None:
        nonlocal most
        most = max(most, limiter.in_flight)
        await passes(random.randrange(40))
        if random.random() < 0.2:
            await raw(close=True)(seen, talk)
        status = b"503 No" if random.random() < 0.2 else b"200 OK"
        await answer(seen.body, status=status)(seen, talk)

    async def ask(gw: Gateway, number: int) -> int | None:
        body = b"%d" % number
        objective = b"x-priority: %d" % random.randint(-1, 1)
        tenant = b"x-tenant: %d" % random.randrange(3)
        await passes(random.randrange(100))
        async with connected(gw.server) as c:
            await c.send(post(body, objective, tenant))
            if random.random() < 0.3:
                await passes(random.randrange(60))
                return None
            got = await c.answer()
            assert got.status != 200 or got.body == body
            return got.status

    async with (
        running(script) as a,
        running(script) as b,
        running(script) as c,
        gateway(a.url, b.url, c.url, control=control) as gw,
        asyncio.timeout(20),
    ):
        statuses = await asyncio.gather(*(ask(gw, number) for number in range(120)))
        await wait_until(lambda: is_empty(control))

    assert set(statuses) <= {None, 200, 429, 502, 503}
    assert statuses.count(200) > 20
    assert (limiter.stats.waited > 0, most) == (True, 4)


async def passes(times: int) -> None:
    """So many rounds of the loop."""
    for _ in range(times):
        await asyncio.sleep(0)


@in_loop
async def test_the_end_of_the_server_ends_who_waits() -> None:
    control, gate = limited(in_flight=1), Gate()
    async with running(gate.script) as engine, gateway(engine.url, control=control) as gw:
        async with connected(gw.server) as first, connected(gw.server) as second:
            await first.send(post(b"first"))
            await wait_until(lambda: gate.at_once == 1)
            await sent(second, b"second", control)
            await gw.server.stop(0)
        control.close()

        assert is_empty(control)


def test_it_is_off_without_limits() -> None:
    client: Any = None
    assert limited(in_flight=None).ticket(client, "") is None
    assert limited(in_flight=1).ticket(client, "") is not None
    assert limited(in_flight=None, engine_in_flight=1).ticket(client, "") is not None
