"""Tasks that nobody waits for."""

from __future__ import annotations

import asyncio
import logging

import pytest

from inferway.tasks import Later, Tasks


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
