"""The demo's users go on until they are stopped, each conversation by whole turns."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
from aiohttp import web
from tests.integration.conftest import answering

from inferway_sim.demo.traffic import USERS, DemoTraffic, is_of_traffic


async def test_users_ask_as_streams_of_their_own_until_they_are_stopped() -> None:
    asked: list[tuple[str, dict[str, Any]]] = []
    came = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.headers["x-request-id"], await request.json()))
        if len(asked) >= USERS + 2:  # one at least asks for a second time
            came.set()
        return web.Response(text="data: [DONE]\n\n")

    async with answering(answer) as url, aiohttp.ClientSession() as http:
        traffic = DemoTraffic(http, url, "m")
        traffic.start()
        async with asyncio.timeout(20):
            await came.wait()
        await traffic.close()
        number = len(asked)

    assert all(is_of_traffic(request_id) and body["stream"] for request_id, body in asked)
    assert {len(body["messages"]) for _, body in asked} >= {2, 4}  # a turn goes on from the last
    openings = [body["messages"][1]["content"] for _, body in asked if len(body["messages"]) == 2]
    assert len({*openings}) == len(openings) >= USERS  # else two conversations look like one
    assert len(asked) == number


def test_requests_of_others_are_not_taken_for_theirs() -> None:
    assert not is_of_traffic("8f0c-12")
