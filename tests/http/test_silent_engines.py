"""An engine says nothing any more while its connections stand: where the requests go that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import pytest
from tests.http.clients import connected, get, post
from tests.http.gateways import EVENTS, Gateway, events, gateway
from tests.upstream.engines import (
    SSE_HEAD,
    Seen,
    Talk,
    answer,
    chunk,
    in_loop,
    raw,
    running,
    wait_until,
)

from inferway.config import EngineSettings, RetrySettings, TimeoutSettings
from inferway.fleet.engine import Engine
from inferway.fleet.outage import Outage, OutageKind
from inferway.http.silent_engines import SilentEngines
from inferway.routing.limits.failover import FailoverPolicy, Retries
from inferway.routing.limits.outlier_detection import OutlierDetection

SOON = TimeoutSettings(silent_engine=0.01)


def engine(name: str, kind: OutageKind | None = OutageKind.SILENT) -> Engine:
    found = Engine(EngineSettings(url="http://127.0.0.1:1", name=name), ())
    if kind is not None:
        found.outage = Outage(kind, monotonic(), None, "no answer for 3 s")
    return found


@contextmanager
def hearing(
    gw: Gateway, standing: OutlierDetection, *, has_others: bool = True
) -> Iterator[SilentEngines]:
    silent = SilentEngines(standing, gw.server.sources, gw.pool, lambda _: has_others)
    try:
        yield silent
    finally:
        silent.close()


@in_loop
async def test_a_request_that_waits_there_is_sent_to_the_next_engine() -> None:
    standing = OutlierDetection()
    async with (
        running(raw(SSE_HEAD)) as frozen,
        running(events(*EVENTS)) as other,
        gateway(frozen.url, other.url, policy=FailoverPolicy(monotonic, standing)) as gw,
        connected(gw.server) as c,
    ):
        with hearing(gw, standing) as silent:
            asked = asyncio.create_task(c.ask(post(b"body")))
            await wait_until(lambda: bool(frozen.seen))
            silent.hear(engine("e0"))
            got = await asked

        assert (got.status, got.body) == (200, b"".join(EVENTS))
        assert (gw.trips[0].attempts, gw.trips[0].outcomes) == (["e0", "e1"], ["ok"])
        assert other.seen[0].body == b"body"
        assert standing.moved == {"e0": 1}


@in_loop
async def test_the_budget_of_further_tries_does_not_bind_it() -> None:
    standing = OutlierDetection()
    none = Retries(RetrySettings(share=0, floor=0))
    async with (
        running(raw(SSE_HEAD)) as frozen,
        running(answer(b"here")) as other,
        gateway(*(frozen.url, other.url), policy=FailoverPolicy(monotonic, standing, none)) as gw,
        connected(gw.server) as c,
    ):
        with hearing(gw, standing) as silent:
            asked = asyncio.create_task(c.ask(post()))
            await wait_until(lambda: bool(frozen.seen))
            silent.hear(engine("e0"))
            got = await asked

        assert got.body == b"here"
        assert (none.retrying, none.active) == (0, 0)


@in_loop
async def test_it_does_not_go_to_another_engine_that_is_silent() -> None:
    standing = OutlierDetection(silent={"e1"})
    async with (
        running(raw(SSE_HEAD)) as frozen,
        running(raw(SSE_HEAD)) as frozen_too,
        running(answer(b"here")) as other,
        gateway(
            *(frozen.url, frozen_too.url, other.url), policy=FailoverPolicy(monotonic, standing)
        ) as gw,
        connected(gw.server) as c,
    ):
        with hearing(gw, standing) as silent:
            asked = asyncio.create_task(c.ask(post()))
            await wait_until(lambda: bool(frozen.seen))
            silent.hear(engine("e0"))
            got = await asked

        assert (got.body, frozen_too.seen) == (b"here", [])


@pytest.mark.parametrize("meanwhile", [OutageKind.SILENT, OutageKind.UNREACHABLE])
@in_loop
async def test_what_can_go_nowhere_else_waits_and_is_given_up_then(meanwhile: OutageKind) -> None:
    """Also if new connections are refused meanwhile."""
    standing = OutlierDetection()
    async with (
        running(raw(SSE_HEAD, chunk(EVENTS[0]))) as frozen,
        gateway(frozen.url, timeouts=SOON, policy=FailoverPolicy(monotonic, standing)) as gw,
        connected(gw.server) as c,
    ):
        with hearing(gw, standing) as silent:
            asked = asyncio.create_task(c.ask(post()))
            await wait_until(lambda: bool(gw.trips and gw.trips[0].chunks))
            silent.hear(engine("e0"))
            silent.hear(engine("e0", meanwhile))
            still_waits = not asked.done()
            got = await asked

        assert still_waits
        assert got.body.startswith(EVENTS[0])
        assert b"engine e0 does not answer, since " in got.body
        assert b'"code":"engine_timeout"' in got.body
        assert gw.trips[0].outcomes == ["upstream_error"]
        assert standing.lost == {"e0": 1}


@in_loop
async def test_the_answer_that_comes_after_all_is_passed_on_if_nobody_else_could_give_it() -> None:
    standing = OutlierDetection()
    goes_on = asyncio.Event()

    async def script(seen: Seen, talk: Talk) -> None:
        await goes_on.wait()
        await answer(b"late")(seen, talk)

    async with (
        running(script) as frozen,
        gateway(frozen.url, timeouts=SOON, policy=FailoverPolicy(monotonic, standing)) as gw,
        connected(gw.server) as c,
    ):
        with hearing(gw, standing, has_others=False) as silent:
            asked = asyncio.create_task(c.ask(post()))
            await wait_until(lambda: bool(frozen.seen))
            silent.hear(engine("e0"))
            goes_on.set()
            got = await asked

        assert got.body == b"late"
        assert (standing.moved, standing.lost) == ({}, {})


@in_loop
async def test_a_refused_connection_is_no_silence() -> None:
    standing = OutlierDetection()
    async with (
        running(raw(SSE_HEAD)) as one,
        running(answer()) as other,
        gateway(one.url, other.url, policy=FailoverPolicy(monotonic, standing)) as gw,
        connected(gw.server) as c,
    ):
        with hearing(gw, standing) as silent:
            await c.send(get())
            await wait_until(lambda: bool(one.seen))
            silent.hear(engine("e0", OutageKind.UNREACHABLE))

            assert (standing.silent, other.seen) == (set(), [])


def test_what_was_held_against_an_engine_is_forgotten_when_it_answers_again() -> None:
    standing = OutlierDetection()
    standing.begins("e0", 0.0, is_silent=True)
    standing.eject("e0", 0.0)
    standing.ends("e0")

    assert standing.is_plain
    assert (standing.silent, standing.out, standing.takes("e0", 0.0)) == (set(), set(), True)


@in_loop
async def test_comments_do_not_keep_a_stream_alive() -> None:
    timeouts = TimeoutSettings(idle_stream=0.05)

    async def script(_: Seen, talk: Talk) -> None:
        await talk.write(SSE_HEAD + chunk(EVENTS[0]))
        while True:
            await talk.write(chunk(b": keep-alive\n\n"))
            await asyncio.sleep(0.005)  # the engine's pace: comments come sooner than the limit

    async with (
        running(script) as engine,
        gateway(engine.url, timeouts=timeouts) as gw,
        connected(gw.server) as c,
    ):
        got = await c.ask(post())

        assert b"timeouts.idle_stream" in got.body
        assert gw.trips[0].outcomes == ["upstream_error"]
