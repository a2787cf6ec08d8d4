"""LoopTurns of the loop, of any number of connections."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial

from tests.http.clients import connected, echo, get, serving
from tests.upstream.engines import in_loop

from inferway.http.connection import MAX_QUEUED
from inferway.loop_turns import CALLS_A_TURN, LoopTurns


async def test_few_have_theirs_in_each_in_the_order_of_asking() -> None:
    turns, called = LoopTurns(), list[int]()
    for each in range(3 * CALLS_A_TURN):
        turns.ask(partial(called.append, each))
    assert turns.are_short

    for num_turns in (1, 2, 3):
        await asyncio.sleep(0)
        assert called == list(range(num_turns * CALLS_A_TURN))
    assert not turns.are_short


async def test_who_asks_in_its_turn_has_another_in_the_next() -> None:
    turns, called = LoopTurns(), list[int]()

    def again() -> None:
        called.append(len(called))
        turns.ask(again)

    turns.ask(again)
    for num_turns in (1, 2, 3):
        await asyncio.sleep(0)
        assert len(called) == num_turns


async def test_a_fault_of_one_is_no_other_s() -> None:
    turns, called = LoopTurns(), list[int]()
    asyncio.get_running_loop().set_exception_handler(lambda *_: called.append(0))

    def fail() -> None:
        raise ValueError

    turns.ask(fail)
    turns.ask(lambda: called.append(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert called == [0, 1]


@in_loop
async def test_a_turn_of_the_loop_answers_few_requests_of_many_connections() -> None:
    num_connections, num_requests, each_turn = 100, 200, []
    async with serving(echo) as server, AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(connected(server)) for _ in range(num_connections)
        ]
        for client in clients:
            client.writer.write(get(b"/") * num_requests)
        before = 0
        while server.stats.requests < num_connections * num_requests:
            await asyncio.sleep(0)  # the next turn
            each_turn.append(server.stats.requests - before)
            before = server.stats.requests

    assert max(each_turn) <= 2 * CALLS_A_TURN * MAX_QUEUED + num_connections
