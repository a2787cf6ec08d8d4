"""Coroutines that are run at once, as far as they go."""

from __future__ import annotations

import asyncio

import pytest

from inferway.http.eager import run_until_suspended


async def test_what_never_waits_is_over_at_once() -> None:
    ran: list[int] = []

    async def quick() -> None:
        ran.append(1)

    assert run_until_suspended(quick()) is None
    assert ran == [1]


async def test_what_waits_goes_on_where_it_was() -> None:
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    got: list[int] = []

    async def slow() -> None:
        got.append(await ready)
        await asyncio.sleep(0)
        got.append(0)

    rest = run_until_suspended(slow())
    assert rest is not None
    ready.set_result(7)
    await rest

    assert got == [7, 0]


async def test_a_cancellation_reaches_it() -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    rest = run_until_suspended(waits())
    assert rest is not None
    task = asyncio.ensure_future(rest)
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cancelled"]


async def test_so_does_a_second_one_while_it_tidies_up() -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("cancelled twice")

    rest = run_until_suspended(waits())
    assert rest is not None
    task = asyncio.ensure_future(rest)
    for _ in range(2):
        await asyncio.sleep(0)
        task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cancelled twice"]


async def test_what_fails_at_once_fails_here() -> None:
    async def broken() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_until_suspended(broken())
