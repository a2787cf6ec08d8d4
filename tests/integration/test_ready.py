"""GET /ready: 503 with the reason, and when to ask again, until requests are routed by their
prompts."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import Fleet, StartFleet, simulated, until

from inferway.app import Gateway
from inferway.config import EngineSettings, ServeSettings
from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest
from inferway.prompts.renderer import Renderer
from inferway_sim.prepare import prepare_smollm2


class SlowRenderer(Renderer):
    """Loads a tokenizer when `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.asked = asyncio.Event()

    async def get_or_create_tokenizer_key_async(
        self, request: GetOrCreateTokenizerKeyRequest
    ) -> str:
        self.asked.set()
        await self.go.wait()
        return await super().get_or_create_tokenizer_key_async(request)


@asynccontextmanager
async def starting(
    engines: Sequence[str], renderer: Renderer, **settings: Any
) -> AsyncIterator[Gateway]:
    """A gateway that listens, and may not have started yet."""
    described = [EngineSettings(url=url) for url in engines]
    gateway = Gateway(ServeSettings(engines=described, port=0, **settings), renderer)
    start = asyncio.create_task(gateway.start())
    try:
        yield gateway
    finally:
        await start
        await gateway.close()


async def ready(fleet: Fleet, gateway: Gateway) -> tuple[int, Any, Any]:
    """(status, Retry-After, body)."""
    async with fleet.http.get(f"http://127.0.0.1:{gateway.port}/ready") as answer:
        return answer.status, answer.headers.get("retry-after"), await answer.json()


async def test_it_is_a_503_while_the_first_tokenizer_loads(start_fleet: StartFleet) -> None:
    fleet, renderer = await start_fleet(1), SlowRenderer()
    async with starting([fleet.engines[0].url], renderer) as gateway:
        await renderer.asked.wait()
        status, again, body = await ready(fleet, gateway)
        renderer.go.set()

        async def is_ready() -> bool:
            return (await ready(fleet, gateway))[0] == 200

        await until(is_ready)
    renderer.close()

    assert (status, again, body["ready"]) == (503, "1", False)
    assert body["why"] == "model 'smollm2': its tokenizer is being loaded"


async def test_scores_are_a_503_to_ask_again_while_the_tokenizer_loads(
    start_fleet: StartFleet,
) -> None:
    fleet, renderer = await start_fleet(1), SlowRenderer()
    async with starting([fleet.engines[0].url], renderer) as gateway:
        await renderer.asked.wait()
        url = f"http://127.0.0.1:{gateway.port}/score_completions"
        async with fleet.http.post(url, json={"model": "smollm2", "prompt": "x"}) as answer:
            status, again = answer.status, answer.headers.get("retry-after")
            error = (await answer.json())["error"]
        renderer.go.set()
    renderer.close()

    assert (status, again, error["code"]) == (503, "1", "tokenizer_loading")


async def test_it_does_not_wait_for_a_tokenizer_if_nothing_is_scored(
    start_fleet: StartFleet,
) -> None:
    fleet, renderer = await start_fleet(1), SlowRenderer()
    async with starting([fleet.engines[0].url], renderer, scoring=False) as gateway:

        async def has_answered() -> bool:
            return gateway.fleet.engines[0].healthy

        await until(has_answered)
        status, _, body = await ready(fleet, gateway)
    renderer.close()

    assert (status, body["why"]) == (200, None)


async def test_a_later_models_tokenizer_does_not_take_the_others_out_of_service(
    start_fleet: StartFleet, tmp_path: Path
) -> None:
    fleet, renderer = await start_fleet(1), SlowRenderer()
    renderer.go.set()
    directory = shutil.copytree(prepare_smollm2(), tmp_path / "other")
    other = await fleet.start_engine(simulated(model=str(directory), served_model_names=("other",)))
    async with starting([fleet.engines[0].url], renderer) as gateway:

        async def is_ready() -> bool:
            return (await ready(fleet, gateway))[0] == 200

        await renderer.asked.wait()
        await until(is_ready)
        renderer.go.clear()
        renderer.asked.clear()
        urls = (fleet.engines[0].url, other.url)
        await gateway.fleet.set_engines([EngineSettings(url=url) for url in urls])
        await renderer.asked.wait()
        status, _, body = await ready(fleet, gateway)
        renderer.go.set()
    renderer.close()

    assert status == 200
    assert body["models"]["smollm2"] == {"reason": "kv-aware"}
    assert body["models"]["other"]["reason"] == "tokenizer-loading"


async def test_engines_that_are_gone_are_the_reason_and_not_their_block_size(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(1)
    name = fleet.engines[0].url.removeprefix("http://")
    await fleet.engines[0].stop()

    async def gone() -> bool:
        return await fleet.metric("inferway_engine_up") == 0

    await until(gone)
    answer = await fleet.get("/ready")

    assert answer.status == 503
    assert answer.headers["Retry-After"] == "1"
    assert answer.body["why"] == f"no engine answers: {name}"
    assert answer.body["models"]["smollm2"] == {
        "reason": "no-engine",
        "why": "no engine that serves it answers",
    }


@pytest.mark.parametrize("path", ["/score_completions", "/v1/completions", "/query"])
async def test_a_request_without_a_live_engine_is_a_503_to_ask_again(
    start_fleet: StartFleet, path: str
) -> None:
    fleet = await start_fleet(1)
    await fleet.engines[0].stop()

    async def gone() -> bool:
        return await fleet.metric("inferway_engine_up") == 0

    await until(gone)
    body = {"model": "smollm2", "prompt": "hello", "token_ids": [1, 2, 3]}
    answer = await fleet.post(path, body)

    assert answer.status == 503
    assert answer.body["error"]["code"] == "no_engine_available"
    assert answer.headers["Retry-After"] == "1"


async def test_before_any_engine_is_known_that_is_the_reason(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(0)

    answer = await fleet.get("/ready")

    assert answer.status == 503
    assert answer.body["why"].startswith("no engine is known: none is given; give one")
