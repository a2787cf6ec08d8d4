"""Engines that tell how they are, and fleets that ask them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from aiohttp import web
from tests.fleet.servers import serving

from inferway.config import EngineSettings, ProbeSettings, ServeSettings
from inferway.fleet.engine import Engine
from inferway.fleet.event_source import EventSource
from inferway.fleet.fleet import Fleet
from inferway.fleet.served_models import LoadPrompts
from inferway.fleet.subscriber import EventSubscriber
from inferway.fleet.watch import EngineWatch
from inferway.kv.index.memory import MemoryIndex
from inferway.model import Endpoint, Reason
from inferway.prompts.served import ModelSource, NoPrompts, PromptSource

INTERVAL = 0.02


class HasUrl(Protocol):
    url: str


@dataclass
class TellingEngine:
    """An engine's answers to who asks how it is. `hang`: none any more. `narrows`: behind
    /metrics/ it has those that are named alone."""

    metrics: str = ""
    narrows: bool = False
    sources: str = "{}"
    models: str = '{"data": [{"id": "m"}]}'
    hang: bool = False
    is_unwell: bool = False
    url: str = ""
    asked: list[str] = field(default_factory=list)
    _answered: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.Response:
        if self.hang:
            await asyncio.Event().wait()
        says = {
            "/health": "",
            "/v1/models": self.models,
            "/kv_event_sources": self.sources,
            "/metrics": self.metrics,
        }
        if self.narrows:
            says["/metrics/"] = self.named(request.query.getall("name[]", []))
        if request.path not in says:
            raise web.HTTPNotFound
        self.asked.append(request.path)
        if self.is_unwell and request.path == "/health":
            raise web.HTTPServiceUnavailable
        return web.Response(text=says[request.path])

    def named(self, names: Sequence[str]) -> str:
        lines = self.metrics.splitlines(keepends=True)
        return "".join(line for line in lines if line.split()[0] in names)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with serving(self.answer) as self.url:
            yield


async def no_prompts(_: ModelSource) -> PromptSource:
    return NoPrompts(Reason.NO_TOKENIZER, "not in this test")


def no_events(engine: Engine, source: EventSource, endpoint: Endpoint) -> EventSubscriber:
    raise AssertionError(f"nobody subscribes here: {engine.name} {source} {endpoint}")


def busy(running: int, waiting: int) -> str:
    return f"vllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}\n"


def fleet_of(
    *engines: HasUrl,
    prompts: LoadPrompts = no_prompts,
    watch: type[EngineWatch] = EngineWatch,
    labels: dict[str, str] | None = None,
    **settings: Any,
) -> Fleet:
    """A fleet of engines e0, e1, ..., which is not started, and follows no events."""
    given = [
        EngineSettings(url=engine.url, name=f"e{n}", labels=labels or {})
        for n, engine in enumerate(engines)
    ]
    probe = ProbeSettings(join=False, one_in=0)
    made = ServeSettings(engines=given, probe=probe, **settings)
    return Fleet(made, MemoryIndex(), prompts, no_events, watch=watch)


@asynccontextmanager
async def started(fleet: Fleet) -> AsyncIterator[Fleet]:
    await fleet.start()
    try:
        yield fleet
    finally:
        await fleet.close()
