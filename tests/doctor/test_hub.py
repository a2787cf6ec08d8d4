from __future__ import annotations

import asyncio
import threading
from typing import Any

from aiohttp import web

from inferway.doctor.hub import ask_hub

from .servers import serving


def ask(app: web.Application, **environment: str) -> tuple[int | None, str | None]:
    async def run() -> tuple[int | None, str | None]:
        async with serving(app) as url:
            found = await ask_hub({"HF_ENDPOINT": url, **environment})
        return found.status, found.error

    return asyncio.run(run())


def hub(requests: list[str | None]) -> web.Application:
    """Knows one token, and notes what it was sent."""

    async def answer(request: web.Request) -> web.Response:
        requests.append(request.headers.get("authorization"))
        return web.Response(status=200 if requests[-1] in (None, "Bearer good") else 401)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    return app


def test_without_a_token_any_answer_will_do() -> None:
    assert ask(hub([])) == (200, None)


def test_a_token_is_tried() -> None:
    assert ask(hub([]), HF_TOKEN="bad") == (401, None)


def test_an_offline_hub_is_not_asked() -> None:
    requests: list[str | None] = []

    ask(hub(requests), HF_HUB_OFFLINE="1")

    assert requests == []


def test_nobody_there_is_an_error() -> None:
    found = asyncio.run(ask_hub({"HF_ENDPOINT": "http://127.0.0.1:1"}))

    assert found.error is not None


def test_a_silent_name_server_is_given_up_on() -> None:
    silence = threading.Event()

    def never(*_: object) -> list[Any]:
        silence.wait()
        return []

    found = asyncio.run(
        ask_hub({"HF_ENDPOINT": "http://hub.example"}, seconds=0.05, getaddrinfo=never)
    )
    silence.set()

    assert found.error == "no answer in 0.05 s"
