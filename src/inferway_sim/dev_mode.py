"""vLLM's development mode (`VLLM_SERVER_DEV_MODE=1`): an operator pauses the engine, or puts it to
sleep (entrypoints/serve/dev/sleep/api_router.py, entrypoints/rl/online/api_router.py of 0.32).

Simulated are what such an engine takes and tells, and when. Where `abort` ends a request with the
reason "abort", a simulated engine cuts it short, with a reason of its own; one that waits goes on
waiting. With `keep` a cache in which requests hold blocks is not cleared.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from inferway.errors import InvalidRequestError
from inferway_sim.core import EngineCore

_MODES = ("abort", "wait", "keep")


class DevMode:
    """The routes of the development mode. `reset_cache`: as POST /reset_prefix_cache does.
    `on_weights` counts an update of the weights."""

    def __init__(
        self, core: EngineCore, reset_cache: Callable[[], bool], on_weights: Callable[[], None]
    ) -> None:
        self._core = core
        self._on_weights = on_weights
        self._reset_cache = reset_cache

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/sleep", self._sleep),
            web.post("/wake_up", self._wake_up),
            web.get("/is_sleeping", self._is_sleeping),
            web.post("/pause", self._pause),
            web.post("/resume", self._resume),
            web.get("/is_paused", self._is_paused),
            web.post("/update_weights", self._update_weights),
        ]

    async def _sleep(self, request: web.Request) -> web.Response:
        level = int(_one_of(request, "level", ("1", "0", "2")))
        await self._core.pause(_one_of(request, "mode", _MODES))
        if level:
            self._reset_cache()
        self._core.fall_asleep(level)
        return web.json_response({"status": "sleeping", "level": level})

    async def _wake_up(self, _: web.Request) -> web.Response:
        self._core.wake_up()
        return web.json_response({"status": "awake", "tags": None})

    async def _is_sleeping(self, _: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": self._core.is_paused})

    async def _pause(self, request: web.Request) -> web.Response:
        await self._core.pause(_one_of(request, "mode", _MODES))
        if _one_of(request, "clear_cache", ("true", "false")) == "true":
            self._reset_cache()
        return web.json_response({"status": "paused"})

    async def _resume(self, _: web.Request) -> web.Response:
        self._core.resume()
        return web.json_response({"status": "resumed"})

    async def _is_paused(self, _: web.Request) -> web.Response:
        return web.json_response({"is_paused": self._core.is_paused})

    async def _update_weights(self, _: web.Request) -> web.Response:
        self._on_weights()
        return web.json_response({"message": "Weights updated"})


def _one_of(request: web.Request, name: str, allowed: tuple[str, ...]) -> str:
    """Return a member of the query, by default the first that is allowed."""
    value = request.query.get(name, allowed[0])
    if value not in allowed:
        raise InvalidRequestError(
            f"{name}: {value!r}; expected one of: {', '.join(allowed)}", param=name
        )
    return value
