"""Tasks that nobody waits for."""

from __future__ import annotations

import asyncio
import logging

import pytest

from inferway.tasks import Tasks


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
