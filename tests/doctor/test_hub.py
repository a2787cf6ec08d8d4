from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

from aiohttp import web

from inferway.doctor.facts import Hub
from inferway.doctor.hub import ask_hub

from .servers import serving


def ask(requests: list[str | None], **environment: str) -> Hub:
    """Asks a hub that knows one token, and notes what it is sent."""

    async def answer(request: web.Request) -> web.Response:
        requests.append(request.headers.get("authorization"))
        return web.Response(status=200 if requests[-1] in (None, "Bearer good") else 401)

    async def run() -> Hub:
        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        async with serving(app) as url:
            return await asyncio.to_thread(ask_hub, {"HF_ENDPOINT": url, **environment})

    return asyncio.run(run())


def test_without_a_token_any_answer_will_do() -> None:
    assert ask([]).status == 200


def test_a_token_is_tried() -> None:
    assert ask([], HF_TOKEN="bad").status == 401


def test_an_offline_hub_is_not_asked() -> None:
    requests: list[str | None] = []

    assert ask(requests, HF_HUB_OFFLINE="1").offline
    assert requests == []


def test_nobody_there_is_an_error() -> None:
    assert "refused" in (ask_hub({"HF_ENDPOINT": "http://127.0.0.1:1"}).error or "")


def test_an_endpoint_that_is_no_url_is_an_error() -> None:
    assert "unknown url type" in (ask_hub({"HF_ENDPOINT": "hub"}).error or "")


def test_a_hub_that_is_silent_is_given_up_on() -> None:
    answer = threading.Event()

    def never(_url: str, _headers: Mapping[str, str], _seconds: float) -> int:
        answer.wait()
        return 200

    found = ask_hub({}, seconds=0.05, get=never)
    answer.set()

    assert found.error == "no answer in 0.05 s"
