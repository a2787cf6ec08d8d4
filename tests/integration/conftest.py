"""A gateway in front of simulated engines, in one process, on free ports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.integration.program import Program, Start

from inferway.app import Gateway
from inferway.config import EngineSettings, ModelSettings, ServeSettings
from inferway.prompts.chat.conversation import NO_FLAGS
from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest
from inferway.prompts.renderer import Renderer
from inferway.scheduling.load import CONFIGURATIONS
from inferway_sim.config import SimulatorConfig
from inferway_sim.engine import SimulatedEngine
from inferway_sim.prepare import prepare_smollm2
from inferway_sim.rendered import RenderedModel

LONG = "You answer in one sentence, you never guess, and you say so when you do not know. " * 4


@dataclass
class Answer:
    """What a client got."""

    status: int
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def engine(self) -> str:
        return self.headers["x-inferway-engine"]

    @property
    def matched(self) -> int:
        return int(self.headers["x-inferway-matched-blocks"])

    @property
    def expected_tokens(self) -> int:
        """Of what the gateway matched."""
        return self.reusable(self.matched)

    def reusable(self, blocks: int) -> int:
        """Tokens, of so many blocks of 16 from the start: vLLM computes the last token always."""
        prompt_tokens = int(self.body["usage"]["prompt_tokens"])
        return min(blocks, (prompt_tokens - 1) // 16) * 16

    @property
    def cached_tokens(self) -> int:
        return int(self.body["usage"]["prompt_tokens_details"]["cached_tokens"])


@dataclass
class Fleet:
    """Engines, the gateway in front, and a client."""

    engines: list[SimulatedEngine]
    gateway: Gateway
    http: aiohttp.ClientSession
    start_engine: Callable[..., Awaitable[SimulatedEngine]]  # (config, flags that shape prompts)
    admin: dict[str, str] = field(default_factory=dict)  # headers of one, who reads metrics

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}"

    async def post(self, path: str, body: object, **headers: str) -> Answer:
        data = body if isinstance(body, bytes) else None
        json = None if isinstance(body, bytes) else body
        async with self.http.post(self.url + path, data=data, json=json, headers=headers) as r:
            return Answer(r.status, dict(r.headers), await r.json())

    async def get(self, path: str) -> Answer:
        async with self.http.get(self.url + path) as r:
            return Answer(r.status, dict(r.headers), await r.json(content_type=None))

    async def chat(self, *contents: str, model: str = "smollm2", **fields: Any) -> Answer:
        messages = [
            {"role": "assistant" if i % 2 else "user", "content": content}
            for i, content in enumerate(contents)
        ]
        body = {"model": model, "messages": messages, "max_tokens": 8, **fields}
        return await self.post("/v1/chat/completions", body)

    async def scores(self, *contents: Any, model: str = "smollm2", **fields: Any) -> dict[str, int]:
        messages = [
            {"role": "assistant" if i % 2 else "user", "content": content}
            for i, content in enumerate(contents)
        ]
        body = {"model": model, "messages": messages, **fields}
        scores: dict[str, int] = (await self.post("/score_chat_completions", body)).body[
            "pod_scores"
        ]
        return scores

    async def metric(self, name: str, **labels: str) -> float:
        """The value of one sample; 0 when it is absent."""
        async with self.http.get(f"{self.url}/metrics", headers=self.admin) as r:
            page = await r.text()
        for line in page.splitlines():
            labelled = all(f'{key}="{value}"' in line for key, value in labels.items())
            if labelled and line.startswith((name + "{", name + " ")):
                return float(line.rsplit(" ", 1)[1])
        return 0.0


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 10) -> None:
    """Waits for what must come true; asks again and again instead of sleeping for long."""
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def answering(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[str]:
    """The URL of an engine that is one function."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


StartFleet = Callable[..., Awaitable[Fleet]]

# What most tests are about is not what machines that are busy take time for: by weights, a held
# prefix keeps its chat (docs/scheduling.md). `scheduling=None` is the default.
BY_WEIGHTS = CONFIGURATIONS["kv-aware"]


@pytest.fixture(scope="session")
def renderer() -> Iterator[Renderer]:
    """One for all tests: what they test is not how often a tokenizer is loaded."""
    shared = Renderer()
    yield shared
    shared.close()


@pytest.fixture
async def start_fleet(renderer: Renderer) -> AsyncIterator[StartFleet]:
    """start_fleet(number or configs of engines, flags of theirs that shape prompts, **settings
    of the gateway)."""
    async with AsyncExitStack() as stack:

        async def start(
            engines: int | Sequence[SimulatorConfig] = 2,
            more: Sequence[EngineSettings] = (),
            by_hand: Callable[[SimulatedEngine], EngineSettings] | None = None,
            flags: ModelSettings = NO_FLAGS,
            **settings: Any,
        ) -> Fleet:
            configs = [simulated()] * engines if isinstance(engines, int) else engines

            async def start_engine(
                config: SimulatorConfig, flags: ModelSettings = NO_FLAGS
            ) -> SimulatedEngine:
                asked = GetOrCreateTokenizerKeyRequest(config.model)
                key = renderer.get_or_create_tokenizer_key(asked)
                model = RenderedModel(renderer, key, config.max_model_len, flags)
                return await stack.enter_async_context(SimulatedEngine(config, model))

            running = [await start_engine(config, flags) for config in configs]
            describe = by_hand or (lambda engine: EngineSettings(url=engine.url))
            settings.setdefault("scheduling", BY_WEIGHTS)
            gateway = Gateway(
                ServeSettings(
                    engines=[*(describe(engine) for engine in running), *more],
                    port=0,
                    scrape_seconds=0.05,
                    **settings,
                ),
                renderer,
            )
            await gateway.start()
            stack.push_async_callback(gateway.close)
            http = await stack.enter_async_context(aiohttp.ClientSession())
            return Fleet(running, gateway, http, start_engine)

        yield start


def simulated(**fields: Any) -> SimulatorConfig:
    """A simulated engine's configuration that differs in some fields."""
    plain = SimulatorConfig(str(prepare_smollm2()), served_model_names=("smollm2", "alias"))
    return replace(plain, **fields)


@pytest.fixture
def start() -> Iterator[Start]:
    programs: list[Program] = []

    def starting(*arguments: str) -> Program:
        programs.append(Program(*arguments))
        return programs[-1]

    yield starting
    for program in programs:
        program.kill()
