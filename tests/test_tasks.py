"""Tasks that nobody waits for."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.tasks import Later, Nap, Tasks, next_multiple


async def fail() -> None:
    raise ValueError("of the work itself")


async def test_one_that_fails_is_in_the_log_at_once(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks(logging.getLogger("test"), "engine e1: no more")
    tasks.spawn(fail())
    await asyncio.gather(*tasks.running, return_exceptions=True)

    assert caplog.messages == ["engine e1: no more"]
    assert "ValueError: of the work itself" in caplog.text
    assert not tasks.running


async def test_closing_ends_those_that_run_and_says_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks = Tasks(logging.getLogger("test"), "no more")
    tasks.spawn(asyncio.Event().wait())  # type: ignore[arg-type]
    await tasks.close()

    assert not tasks.running
    assert not caplog.messages


async def test_calls_that_are_due_later_keep_their_order() -> None:
    called: list[int] = []
    done = asyncio.Event()
    later = Later(0.01)
    for number in range(3):
        later(lambda number=number: called.append(number))  # type: ignore[misc]
    await asyncio.sleep(0)
    at_once = list(called)
    later(done.set)
    await done.wait()

    assert at_once == []
    assert called == [0, 1, 2]


async def test_who_is_called_later_may_ask_for_another_call() -> None:
    done = asyncio.Event()
    later = Later(0.001)
    later(lambda: later(done.set))

    await done.wait()

    assert done.is_set()


@given(
    st.floats(0, 1e7),
    st.one_of(st.just(1.0), st.just(0.25), st.floats(0.001, 10)),
)
def test_the_next_multiple_is_a_step_away_at_most(now: float, seconds: float) -> None:
    found = next_multiple(now, seconds)

    assert 0 < found - now <= 1.011 * seconds
    assert found / seconds == pytest.approx(round(found / seconds), rel=1e-9)


def test_a_timer_that_rings_early_is_not_set_to_the_same_moment_again() -> None:
    assert next_multiple(4.999, 1.0) == 6.0


async def test_who_naps_may_be_woken_sooner_and_later() -> None:
    nap, loop = Nap(), asyncio.get_running_loop()
    long = asyncio.create_task(nap.sleep_until(loop.time() + 1000))
    await asyncio.sleep(0)
    nap.wake_at(loop.time())
    async with asyncio.timeout(20):
        await long
    nap.wake_at(loop.time())  # nobody sleeps
    short = asyncio.create_task(nap.sleep_until(loop.time() + 0.001))
    await asyncio.sleep(0)
    nap.wake_at(loop.time() + 1000)
    await asyncio.sleep(0.01)
    is_asleep = not short.done()
    short.cancel()

    assert is_asleep
