"""Engines that cannot be reached, refuse, or are lost: before the first event, and after."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest
from tests.http.clients import connected, get, post
from tests.http.gateways import DONE, EVENTS, Trip, events, gateway
from tests.upstream.engines import (
    LAST_CHUNK,
    SSE_HEAD,
    Script,
    Seen,
    Talk,
    answer,
    chunk,
    in_loop,
    raw,
    refusing,
    running,
    wait_until,
)

from inferway.config import EjectionSettings, RetrySettings, TimeoutSettings
from inferway.model import Headers, Target
from inferway.routing.limits.failover import FailoverPolicy, Retries
from inferway.routing.limits.outlier_detection import OutlierDetection

# ---------------------------------------------------------------------------------- failover


@in_loop
async def test_an_engine_that_is_not_there_is_passed_over() -> None:
    async with (
        refusing() as gone,
        running(answer(b"here")) as engine,
        gateway(gone, engine.url) as gw,
        connected(gw.server) as c,
    ):
        got = await c.ask(post(b"body"))

        assert (got.status, got.body) == (200, b"here")
        assert got.values(b"x-inferway-engine") == [b"e1"]
        assert got.values(b"x-inferway-attempts") == [b"2"]
        assert engine.seen[0].body == b"body"
        assert (gw.trips[0].attempts, gw.trips[0].outcomes) == (["e0", "e1"], ["ok"])


@pytest.mark.parametrize(
    "script",
    [
        raw(close=True),
        raw(b"HTTP/1.1 200", close=True),
        raw(b"garbage\r\n\r\n"),
        raw(SSE_HEAD, close=True),
        raw(SSE_HEAD, chunk(b": keep-alive\n\n"), close=True),
        raw(SSE_HEAD, chunk(b'data: {"half'), close=True),
        answer(b"busy", status=b"503 Service Unavailable"),
        answer(b"bad", status=b"502 Bad Gateway"),
    ],
    ids=["closed", "half a head", "garbage", "head", "comment", "half an event", "503", "502"],
)
@in_loop
async def test_what_is_lost_before_the_first_event_is_tried_elsewhere_unseen(
    script: Script,
) -> None:
    async with (
        running(script) as bad,
        running(events(*EVENTS)) as good,
        gateway(bad.url, good.url) as gw,
        connected(gw.server) as c,
    ):
        got = await c.ask(post())

        assert (got.status, got.body) == (200, b"".join(EVENTS))
        assert gw.trips[0].attempts == ["e0", "e1"]
        assert gw.trips[0].statuses == [200]


@in_loop
async def test_no_more_than_three_engines_are_tried() -> None:
    async with (
        refusing() as gone,
        running(answer()) as engine,
        gateway(gone, gone, gone, engine.url) as gw,
        connected(gw.server) as c,
    ):
        got = await c.ask(post())

        assert (got.status, engine.seen) == (502, [])
        assert b'"code":"engine_unreachable"' in got.body
        assert got.values(b"x-inferway-attempts") == [b"3"]
        assert gw.trips[0].outcomes == ["upstream_error"]


@in_loop
async def test_a_request_that_two_engines_had_when_they_were_lost_is_tried_no_more() -> None:
    dies = raw(close=True)
    async with (
        running(dies) as a,
        running(dies) as b,
        running(answer()) as other,
        gateway(a.url, b.url, other.url) as gw,
        connected(gw.server) as c,
    ):
        got = await c.ask(post())

        assert (got.status, other.seen) == (502, [])
        assert b'"code":"engines_lost"' in got.body
        assert b"is tried no more" in got.body
        assert got.values(b"x-inferway-attempts") == [b"2"]
        assert gw.trips[0].losses.number == 2


@in_loop
async def test_a_request_that_was_at_one_lost_engine_goes_past_those_that_are_gone() -> None:
    async with (
        running(raw(close=True)) as lost,
        refusing() as gone,
        running(answer(b"here")) as other,
        gateway(lost.url, gone, other.url) as gw,
        connected(gw.server) as c,
    ):
        got = await c.ask(post())

        assert (got.status, got.body) == (200, b"here")
        assert gw.trips[0].losses.number == 1


@in_loop
async def test_an_engine_that_closes_and_takes_no_connection_was_lost_with_the_request() -> None:
    """The request is sent once more on a new connection, since the engine may just have closed one
    that was idle. An engine that the request has ended refuses that."""

    async def answers_once(seen: Seen, talk: Talk) -> None:
        if len(dies.seen) == 1:
            await answer()(seen, talk)
        else:
            dies.refuse()
            talk.writer.close()

    async with (
        running(answers_once) as dies,
        running(answer(b"here")) as other,
        gateway(dies.url, other.url) as gw,
        connected(gw.server) as c,
    ):
        await c.ask(post())
        got = await c.ask(post())

        assert (got.status, got.body) == (200, b"here")
        assert gw.trips[1].losses.number == 1


@in_loop
async def test_the_last_engine_s_503_is_the_answer() -> None:
    busy = answer(b"busy", status=b"503 Service Unavailable")
    async with (
        running(busy) as a,
        running(busy) as b,
        gateway(a.url, b.url) as gw,
        connected(gw.server) as c,
    ):
        got = await c.ask(post())

        assert (got.status, got.body) == (503, b"busy")
        assert (len(a.seen), len(b.seen)) == (1, 1)


@in_loop
async def test_a_timeout_of_an_engine_that_has_not_answered_anybody_is_tried_elsewhere() -> None:
    timeouts = TimeoutSettings(first_byte=0.02)
    standing = OutlierDetection()
    async with (
        running(raw(SSE_HEAD)) as slow,
        running(answer()) as other,
        gateway(
            *(slow.url, other.url), timeouts=timeouts, policy=FailoverPolicy(monotonic, standing)
        ) as gw,
        connected(gw.server) as c,
    ):
        got = await c.ask(post())

        assert (got.status, len(other.seen)) == (200, 1)
        assert got.values(b"x-inferway-attempts") == [b"2"]
        assert standing.ejected == {"e0"}


@in_loop
async def test_a_timeout_of_an_engine_that_has_answered_others_is_504() -> None:
    timeouts = TimeoutSettings(first_byte=0.02)
    standing = OutlierDetection(answered={"e0": float("inf")})
    async with (
        running(raw(SSE_HEAD)) as slow,
        running(answer()) as other,
        gateway(
            *(slow.url, other.url), timeouts=timeouts, policy=FailoverPolicy(monotonic, standing)
        ) as gw,
        connected(gw.server) as c,
    ):
        got = await c.ask(post())

        assert (got.status, other.seen) == (504, [])
        assert got.values(b"x-inferway-attempts") == []
        assert gw.trips[0].outcomes == ["upstream_error"]
        assert standing.lost == {"e0": 1}


@in_loop
async def test_a_decision_without_targets_is_503() -> None:
    async with gateway() as gw, connected(gw.server) as c:
        assert (await c.ask(post())).status == 503
        assert gw.trips[0].outcomes == ["error"]


@in_loop
async def test_further_tries_have_a_budget() -> None:
    policy = FailoverPolicy(monotonic, retries=Retries(RetrySettings(share=0.0, floor=1)))
    release = asyncio.Event()

    async def slow(_: Seen, talk: Talk) -> None:
        await release.wait()
        await answer(b"late")(_, talk)

    async with (
        refusing() as gone,
        running(slow) as engine,
        gateway(gone, engine.url, policy=policy) as gw,
        connected(gw.server) as first,
        connected(gw.server) as second,
    ):
        await first.send(post())
        await wait_until(lambda: len(engine.seen) == 1)
        refused = await second.ask(post())
        release.set()
        late = await first.answer()

        assert (refused.status, late.body) == (502, b"late")
        assert (policy.retries.made, policy.retries.refused) == (1, 1)
        assert (policy.retries.active, policy.retries.retrying) == (0, 0)


@in_loop
async def test_an_engine_that_was_ejected_meanwhile_is_passed_over() -> None:
    standing = OutlierDetection(EjectionSettings(failures=1))
    standing.failed("e1", monotonic())
    async with (
        refusing() as gone,
        running(answer(b"e1")) as ejected,
        running(answer(b"e2")) as engine,
        gateway(gone, ejected.url, engine.url, policy=FailoverPolicy(monotonic, standing)) as gw,
        connected(gw.server) as c,
    ):
        assert (await c.ask(post())).body == b"e2"
        assert ejected.seen == []


@pytest.mark.parametrize(
    "script",
    [
        raw(close=True),
        raw(b"garbage\r\n\r\n"),
        answer(b"busy", status=b"503 Service Unavailable"),
        answer(b"late", status=b"504 Gateway Timeout"),
        raw(SSE_HEAD, chunk(EVENTS[0]), close=True),
    ],
    ids=["closed", "garbage", "503", "504", "broken off"],
)
@in_loop
async def test_what_an_engine_fails_counts_against_it_once(script: Script) -> None:
    policy = FailoverPolicy(monotonic)
    async with (
        running(script) as engine,
        gateway(engine.url, policy=policy) as gw,
        connected(gw.server) as c,
    ):
        await c.ask(post())

        assert policy.standing.failures == {"e0": 1}


@pytest.mark.parametrize("status", [b"200 OK", b"400 Bad", b"429 Too Many", b"500 Oops"])
@in_loop
async def test_what_a_request_may_be_the_cause_of_does_not_count(status: bytes) -> None:
    policy = FailoverPolicy(monotonic)
    async with (
        running(answer(b"x", status=status)) as engine,
        gateway(engine.url, policy=policy) as gw,
        connected(gw.server) as c,
    ):
        assert (await c.ask(post())).body == b"x"
        assert policy.standing.is_plain


@in_loop
async def test_a_probe_that_is_answered_brings_the_engine_back() -> None:
    now = [100.0]
    policy = FailoverPolicy(
        lambda: now[0], OutlierDetection(EjectionSettings(failures=1, seconds=5.0))
    )
    policy.standing.failed("e0", 100.0)
    async with (
        running(answer()) as engine,
        gateway(engine.url, policy=policy) as gw,
        connected(gw.server) as c,
    ):
        now[0] = 105.0
        await c.ask(post())

        assert policy.standing.state("e0", 105.0) == "closed"


@in_loop
async def test_a_probe_whose_client_goes_away_makes_room_for_the_next() -> None:
    now = [100.0]
    policy = FailoverPolicy(
        lambda: now[0], OutlierDetection(EjectionSettings(failures=1, seconds=5.0))
    )
    policy.standing.failed("e0", 100.0)
    now[0] = 105.0
    async with running(raw()) as engine, gateway(engine.url, policy=policy) as gw:
        async with connected(gw.server) as c:
            await c.send(post())
            await wait_until(lambda: len(engine.seen) == 1)
            assert not policy.standing.takes("e0", 105.0)

        await wait_until(lambda: gw.trips[0].outcomes == ["client_gone"])
        assert policy.standing.takes("e0", 105.0)
        assert policy.retries.active == 0


# ---------------------------------------------------------------------------------- hold head


@in_loop
async def test_the_head_is_held_until_the_first_event() -> None:
    go_on = asyncio.Event()

    async def script(_: Seen, talk: Talk) -> None:
        await talk.write(SSE_HEAD + chunk(b": keep-alive\n\n"))
        held.set()
        await go_on.wait()
        await talk.write(chunk(EVENTS[0]) + LAST_CHUNK)

    held = asyncio.Event()
    async with running(script) as engine, gateway(engine.url) as gw, connected(gw.server) as c:
        await c.send(post())
        await held.wait()
        await asyncio.sleep(0.02)  # the time in which nothing may come

        assert gw.trips[0].statuses == []
        go_on.set()
        assert (await c.answer()).body == b": keep-alive\n\n" + EVENTS[0]


@in_loop
async def test_the_head_is_held_no_longer_than_told() -> None:
    async with (
        running(raw(SSE_HEAD)) as engine,
        gateway(engine.url, timeouts=TimeoutSettings(hold_head=0.02)) as gw,
        connected(gw.server) as c,
    ):
        await c.send(post())

        assert (await c.head()).status == 200


async def comments(_: Seen, talk: Talk) -> None:
    """For ever."""
    await talk.write(SSE_HEAD)
    while True:
        await talk.write(chunk(b": keep-alive\n\n"))
        await asyncio.sleep(0.005)


@in_loop
async def test_comments_are_no_answer_that_came_in_time() -> None:
    timeouts = TimeoutSettings(first_byte=0.5)
    async with (
        running(comments) as engine,
        gateway(engine.url, timeouts=timeouts) as gw,
        connected(gw.server) as c,
    ):
        got = await c.ask(post())

        assert got.status == 504
        assert b"engine e0: no event came within 0.5 s" in got.body
        assert gw.trips[0].outcomes == ["upstream_error"]


@in_loop
async def test_nor_are_they_once_the_head_is_out() -> None:
    timeouts = TimeoutSettings(first_byte=1.0, hold_head=0.02)
    async with (
        running(comments) as engine,
        gateway(engine.url, timeouts=timeouts) as gw,
        connected(gw.server) as c,
    ):
        got = await c.ask(post())

        assert got.status == 200
        assert got.body.startswith(b": keep-alive\n\n")
        assert got.body.endswith(b'"code":"engine_timeout"}}\n\n')
        assert gw.trips[0].chunks == []  # nothing that would count as a first token


# ------------------------------------------------------------------------------- lost engines


@pytest.mark.parametrize(
    "last", [b"", b'data: {"choices":[{"de', b"data: whole line\n"], ids=["whole", "half", "line"]
)
@in_loop
async def test_a_stream_that_breaks_ends_with_an_error_event(last: bytes) -> None:
    pieces = [chunk(EVENTS[0]), chunk(EVENTS[1] + last)]
    async with (
        running(raw(SSE_HEAD, *pieces, close=True)) as engine,
        running(answer()) as other,
        gateway(engine.url, other.url) as gw,
        connected(gw.server) as c,
    ):
        got = await c.ask(post())

        assert got.body.startswith(EVENTS[0] + EVENTS[1] + b'data: {"error":{"message":"engine ')
        assert got.body.endswith(b'"code":"engine_unreachable"}}\n\n')
        assert gw.trips[0].outcomes == ["upstream_error"]
        assert other.seen == []
        assert (await c.ask(get())).status  # the connection goes on


@in_loop
async def test_a_stream_that_breaks_behind_its_done_is_whole() -> None:
    pieces = [chunk(event) for event in (*EVENTS, DONE)]
    async with (
        running(raw(SSE_HEAD, *pieces, close=True)) as engine,
        gateway(engine.url) as gw,
        connected(gw.server) as c,
    ):
        got = await c.ask(post())

        assert got.body == b"".join((*EVENTS, DONE))
        assert gw.trips[0].outcomes == ["ok"]
        assert (await c.ask(get())).status


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n",
    ],
    ids=["length", "chunked"],
)
@in_loop
async def test_json_that_breaks_off_cannot_be_taken_for_whole(reply: bytes) -> None:
    async with (
        running(raw(reply, close=True)) as engine,
        gateway(engine.url) as gw,
        connected(gw.server) as c,
    ):
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await c.ask(post())

        await wait_until(lambda: gw.trips[0].outcomes == ["upstream_error"])


# -------------------------------------------------------------------------- faults of our own


class FailingTrip(Trip):
    """A journey with a fault that shows when the last event passes."""

    def on_chunk(self, chunk: bytes) -> bytes:
        if EVENTS[-1] in chunk:
            raise ZeroDivisionError(chunk)
        return super().on_chunk(chunk)


@in_loop
async def test_a_fault_of_ours_in_a_stream_ends_it_with_an_error_event(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first_is_out, policy = asyncio.Event(), FailoverPolicy(monotonic)

    async def script(_: Seen, talk: Talk) -> None:
        await talk.write(SSE_HEAD + chunk(EVENTS[0]))
        await first_is_out.wait()
        await talk.write(chunk(EVENTS[-1]) + LAST_CHUNK)

    async with (
        running(script) as engine,
        gateway(engine.url, trip=FailingTrip, policy=policy) as gw,
        connected(gw.server) as c,
    ):
        await c.send(post())
        await wait_until(lambda: bool(gw.trips and gw.trips[0].chunks))
        first_is_out.set()
        got = await c.answer()

    assert got.body.startswith(EVENTS[0] + b'data: {"error":{"message":"internal error')
    assert gw.trips[0].outcomes == ["upstream_error"]
    assert "ZeroDivisionError" in caplog.text
    assert "choices" not in caplog.text
    assert policy.standing.failures == {}  # it is not the engine's


@in_loop
async def test_a_fault_of_ours_in_a_whole_answer_breaks_it_off() -> None:
    async with (
        running(answer(EVENTS[-1])) as engine,
        gateway(engine.url, trip=FailingTrip) as gw,
        connected(gw.server) as c,
    ):
        with pytest.raises(asyncio.IncompleteReadError):
            await c.ask(post())


class BrokenTrip(Trip):
    """A journey with a fault that shows before anything is sent."""

    def attempt(self, target: Target) -> Headers:
        raise ZeroDivisionError(target)


@in_loop
async def test_a_fault_of_ours_before_the_request_is_sent_leaves_nothing_taken() -> None:
    policy = FailoverPolicy(monotonic)
    async with (
        running(answer()) as engine,
        gateway(engine.url, trip=BrokenTrip, policy=policy) as gw,
        connected(gw.server) as c,
    ):
        assert (await c.ask(post())).status == 500
        assert (gw.trips[0].outcomes, policy.retries.active) == (["error"], 0)


# ----------------------------------------------------------- what is said to whom of an engine

NEVER = raw()
LOST = raw(SSE_HEAD, chunk(EVENTS[0]), close=True)
IDLE = raw(SSE_HEAD, chunk(EVENTS[0]))
COMMENTS = raw(SSE_HEAD, chunk(b": keep-alive\n\n"))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (raw(close=True), "the engine was lost before its answer was whole"),
        (raw(b"garbage\r\n\r\n"), "the engine was lost before its answer was whole"),
        (LOST, "the engine was lost before its answer was whole"),
        (NEVER, "the engine did not answer in time"),
        (IDLE, "the engine did not answer in time"),
        (COMMENTS, "the engine did not answer in time"),
    ],
    ids=["closed", "garbage", "lost in a stream", "silent", "silent in a stream", "comments"],
)
@in_loop
async def test_who_may_not_know_the_engine_is_told_what_happened_and_the_log_the_rest(
    script: Script, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    timeouts = TimeoutSettings(first_byte=0.05, idle_stream=0.05)
    async with (
        running(script) as engine,
        gateway(engine.url, timeouts=timeouts, explain=False) as gw,
        connected(gw.server) as c,
    ):
        got = await c.ask(post(b"", b"x-request-id: mine"))

    address = engine.url.removeprefix("http://").encode()
    assert f'"message":"{words}; the gateway\'s log has the reason"'.encode() in got.body
    assert address not in got.body
    assert b"e0" not in got.body
    (line,) = [record.message for record in caplog.records if "request mine" in record.message]
    assert address.decode() in line or "engine e0" in line


@in_loop
async def test_an_engine_that_cannot_be_reached_is_named_to_who_may_know_it() -> None:
    async with refusing() as gone:
        address = gone.removeprefix("http://").encode()
        for explain in (True, False):
            async with gateway(gone, explain=explain) as gw, connected(gw.server) as c:
                got = await c.ask(post())

                assert got.status == 502
                assert (address in got.body) == explain
                assert (address.partition(b":")[2] in got.body) == explain


# ------------------------------------------------------------------------------ faults of ours


class Unclosable(Trip):
    """A journey whose end fails, as a plugin's may."""

    def close(self, outcome: str) -> None:
        super().close(outcome)
        raise RuntimeError("a fault")


@in_loop
async def test_a_journey_that_cannot_be_closed_is_counted_once() -> None:
    policy = FailoverPolicy(monotonic)
    async with (
        running(answer(b"whole")) as engine,
        gateway(engine.url, trip=Unclosable, policy=policy) as gw,
        connected(gw.server) as c,
    ):
        got = await c.ask(post())
        await wait_until(lambda: bool(gw.trips[0].outcomes))

        assert (got.status, got.body) == (200, b"whole")
        assert (policy.retries.active, policy.retries.retrying) == (0, 0)
        assert policy.standing.failures == {}
