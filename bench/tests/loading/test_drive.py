"""Sessions that are sent at their times, and what is measured of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from bench.tests.loading.made import session
from bench.tests.loading.servers import Answer, Recording, serving

from inferway_bench.loading.answers import Sample
from inferway_bench.loading.client import Target
from inferway_bench.loading.drive import Driven, Pacing, drive
from inferway_bench.loading.generated import Session


async def driven(answer: Answer, *sessions: Session, **pacing: Any) -> Driven:
    async with serving(answer) as url:
        target = Target(url, timeout=30)
        return await drive(target, sessions, Pacing(**pacing), model="m")


def contents(body: dict[str, Any]) -> list[str]:
    return [message["content"] for message in body["messages"]]


async def test_a_session_grows_by_the_servers_answers() -> None:
    server = Recording("a", "b")

    await driven(server, session("one", "two", at=(0.0,)))

    assert [contents(body) for body in server.bodies] == [["one"], ["one", "ab", "two"]]
    assert server.bodies[0]["stream_options"] == {"include_usage": True}


async def test_a_sample_says_what_the_server_said_and_when() -> None:
    [sample] = (await driven(Recording(), session("one", at=(0.0,)))).samples

    assert (sample.prompt_tokens, sample.completion_tokens, sample.cached_tokens) == (40, 3, 30)
    assert (sample.num_deltas, len(sample.gaps), sample.status) == (3, 2, 200)
    assert sample.sent is not None
    assert sample.first is not None
    assert sample.last is not None
    assert sample.intended <= sample.sent <= sample.first <= sample.last <= sample.ended


async def test_nothing_is_sent_more_than_half_a_millisecond_before_its_time() -> None:
    planned = [session("x", at=(0.01 * i,), number=i) for i in range(10)]

    samples = (await driven(Recording(), *planned)).samples

    assert all(s.sent is not None and s.sent >= s.intended for s in samples)
    assert sorted(s.intended for s in samples) == pytest.approx(
        [s.at[0] for s in planned], abs=0.0006
    )


async def test_a_turn_without_a_time_comes_after_the_answer_before() -> None:
    samples = (await driven(Recording(), session("a", "b", at=(0.0,)))).samples

    assert samples[1].intended >= samples[0].ended
    assert samples[1].held == 0


async def test_nobody_waits_for_the_slow_answer_of_another_session() -> None:
    """The first session's answer comes when the second's has been asked for."""
    second_asked = asyncio.Event()

    async def before(body: dict[str, Any]) -> None:
        if contents(body) == ["first"]:
            await second_asked.wait()
        else:
            second_asked.set()

    planned = (session("first", at=(0.0,)), session("second", at=(0.01,), number=1))
    samples = (await driven(Recording(before=before), *planned)).samples

    assert [s.ok for s in samples] == [True, True]


STALL = 0.3


async def test_a_server_that_stalls_once_is_charged_with_all_that_it_delays() -> None:
    """Turns are due every 10 ms; the fifth answer takes 300. Who counts from sending sees one slow
    request, and its 29 successors are quick."""
    asked = 0

    async def before(_: dict[str, Any]) -> None:
        nonlocal asked
        asked += 1
        if asked == 5:
            await asyncio.sleep(STALL)  # the stall itself

    times = tuple(0.01 * i for i in range(60))
    samples = (await driven(Recording(before=before), session(*["x"] * 60, at=times))).samples

    waited = [s for s in samples if s.e2e > STALL / 2]
    stalled = samples[4]
    assert stalled.e2e_sent is not None
    assert stalled.e2e_sent >= STALL
    assert len(waited) >= 15
    assert sum(s.held for s in samples) >= sum(STALL - 0.01 * i for i in range(1, 30))
    assert all(s.e2e >= s.held + (s.e2e_sent or 0) - 1e-9 for s in samples)


async def test_users_send_one_request_at_a_time_each() -> None:
    open_now, most = 0, 0
    both = asyncio.Event()

    async def before(_: dict[str, Any]) -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        if open_now == 2:
            both.set()
        await both.wait()
        open_now -= 1

    planned = [session("x", "y", number=i) for i in range(6)]
    samples = (await driven(Recording(before=before), *planned, users=2)).samples

    assert (len(samples), most) == (12, 2)


async def test_so_many_requests_are_sent_and_no_more() -> None:
    planned = [session("x", "y", number=i) for i in range(9)]

    assert len((await driven(Recording(), *planned, users=3, requests=7)).samples) == 7


async def test_nothing_begins_after_the_last_second() -> None:
    planned = [session("x", at=(at,)) for at in (0.0, 0.05, 10.0)]

    found = await driven(Recording(), *planned, seconds=0.06)

    assert [s.intended for s in found.samples] == pytest.approx([0.0, 0.05], abs=0.0006)
    assert found.is_whole


async def test_a_failed_turn_ends_its_session_and_is_kept() -> None:
    async with serving(Recording()) as url:
        pass
    target = Target(url)

    found = await drive(target, [session("a", "b", at=(0.0,))], Pacing(), model="m")

    assert [s.error for s in found.samples] == ["connect"]
    assert found.samples[0].detail


async def test_when_it_is_stopped_what_was_measured_is_there() -> None:
    stop = asyncio.Event()

    async def before(body: dict[str, Any]) -> None:
        if contents(body) == ["never"]:
            stop.set()
            await asyncio.Event().wait()

    planned = (session("x", at=(0.0,)), session("never", at=(0.05,)), session("y", at=(60.0,)))
    async with serving(Recording(before=before)) as url:
        found = await drive(Target(url), planned, Pacing(), model="m", stop=stop)

    assert [s.ok for s in found.samples] == [True]
    assert not found.is_whole


async def test_progress_is_told_of_each_sample() -> None:
    told: list[Sample] = []

    async with serving(Recording()) as url:
        found = await drive(
            Target(url), [session("a", at=(0.0,))], Pacing(), model="m", on_sample=told.append
        )

    assert told == found.samples


async def test_answers_that_are_read_late_are_measured_alike() -> None:
    server = Recording("a", "b")
    async with serving(server) as url:
        planned = [session("one", "two", at=(0.0,))]
        found = await drive(Target(url), planned, Pacing(), model="m", reads_late=True)

    assert [contents(body) for body in server.bodies] == [["one"], ["one", "ab", "two"]]
    assert [(s.turn, s.num_deltas, s.ok) for s in found.samples] == [(0, 2, True), (1, 2, True)]


async def test_an_open_loop_without_times_is_refused() -> None:
    with pytest.raises(ExceptionGroup, match="unhandled") as raised:
        await driven(Recording(), session("x"))

    assert "an open loop needs its times" in str(raised.value.exceptions[0])


async def test_a_fault_of_ours_is_not_a_result() -> None:
    def broken(_: Sample) -> None:
        raise ZeroDivisionError

    async with serving(Recording()) as url:
        with pytest.raises(ExceptionGroup):
            await drive(
                Target(url), [session("a", at=(0.0,))], Pacing(), model="m", on_sample=broken
            )
