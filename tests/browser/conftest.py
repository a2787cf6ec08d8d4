"""A real Chromium, a gateway with planted records behind it, and a stream of a thousand engines."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec
import pytest
from aiohttp import web
from tests.integration.conftest import renderer as renderer  # a fixture
from tests.integration.conftest import start_fleet as start_fleet  # a fixture, too

from inferway_console.page.pictures import PageRow
from inferway_console.page.routes import INDEX, static_files
from inferway_console.records.record import CandidateRecord, Miss, RequestRecord


@pytest.fixture
async def browser() -> AsyncIterator[Any]:
    """Chromium; its errors in the page's console fail the test (`Tab`)."""
    from playwright.async_api import async_playwright  # scripts/install_browser.sh brings it

    path = shutil.which("chromium")
    assert path is not None, "scripts/install_browser.sh installs it"
    async with async_playwright() as driver:
        chromium = await driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        await chromium.close()


OpenTab = Callable[..., Any]


@pytest.fixture
async def open_tab(browser: Any) -> OpenTab:
    """open_tab(url, **how the browser's context is): the page there, once it is drawn."""

    async def opening(url: str, **context: Any) -> Any:
        context.setdefault("viewport", {"width": 1360, "height": 1000})
        tab = await (await browser.new_context(**context)).new_page()
        tab.faults = []
        tab.on("pageerror", lambda error: tab.faults.append(str(error)))
        tab.on("console", lambda said: _note(tab, said))
        await tab.goto(url)
        return tab

    return opening


def _note(tab: Any, said: Any) -> None:
    """Keep what the page's own code, or its policy, complains of; a link that is lost on purpose is
    no fault."""
    if said.type == "error" and "Failed to load resource" not in said.text:
        tab.faults.append(said.text)


async def text_of(tab: Any, selector: str) -> str:
    return str(await tab.locator(selector).inner_text())


# ------------------------------------------------------------------------------ planted records

MODEL = "smollm2"
_MISSES = ("moved-for-load", "evicted", "template-or-tokens-differ")


def planted(
    engines: list[str], number: int, now: float, seconds: float = 590
) -> list[RequestRecord]:
    """Records of requests that ended in the last `seconds`, oldest first."""
    draw = Random(7)
    ages = sorted((draw.uniform(0, seconds) for _ in range(number)), reverse=True)
    return [_record(draw, engines, place, now - age, age) for place, age in enumerate(ages)]


def _record(draw: Random, engines: list[str], place: int, at: float, age: float) -> RequestRecord:
    blocks = draw.randint(24, 90)
    warm = min(0.92, 0.25 + (600 - age) / 700 + draw.uniform(-0.15, 0.15))
    reachable = int(blocks * max(0.0, warm))
    holder = draw.choice(engines)
    moved = draw.random() < 0.12 and len(engines) > 1
    chosen = draw.choice([name for name in engines if name != holder]) if moved else holder
    held = reachable // 3 if moved else reachable
    evicted = not moved and draw.random() < 0.06
    delivered = held // 2 if evicted else held
    missed = []
    if moved:
        missed = [Miss("moved-for-load", reachable - held, "saved 84 ms")]
    elif evicted:
        missed = [Miss("evicted", held - delivered, "removed at event 4711, 0.4 s before")]
    expected = 14 + (blocks - held) * 3.1 + draw.uniform(0, 20)
    candidates = [
        CandidateRecord(
            name,
            found := reachable if name == holder else (held if name == chosen else reachable // 4),
            tiers=((0, found - found // 4), (1, found // 4)) if name == holder else ((0, found),),
            terms={"fixed": 9.0, "own": (blocks - found) * 3.1, "waiting": draw.uniform(0, 60)},
            others_ms=draw.uniform(0, 14),
            cost=expected if name == chosen else expected + draw.uniform(10, 120),
            running=draw.randint(0, 6),
            waiting=draw.randint(0, 2),
        )
        for name in engines
    ]
    return RequestRecord(
        id=f"8f0c-{place:x}",
        at=at,
        model=MODEL,
        path="/v1/chat/completions",
        streamed=True,
        prompt_tokens=blocks * 16 + 5,
        prompt_blocks=blocks,
        block_size=16,
        reason="kv-aware",
        picked_by="expected-ttft",
        decided_ms=0.4,
        attempts=1,
        candidates=tuple(candidates[:8]),
        num_candidates=len(engines),
        chosen=chosen,
        reachable_blocks=reachable,
        reachable_at=holder,
        chosen_blocks=held,
        delivered_tokens=delivered * 16,
        usage_prompt_tokens=blocks * 16 + 5,
        output_tokens=draw.randint(20, 300),
        missed=tuple(missed),
        expected_ttft_ms=expected,
        ttft_ms=expected * draw.uniform(0.8, 1.35) + (60 if evicted else 0),
        itl_p50_ms=11.2,
        itl_max_ms=40.0,
        total_ms=expected + draw.uniform(100, 900),
        status=200,
        outcome="ok",
    )


# --------------------------------------------------------------------- a stream of many engines


def many_engines(number: int, tick: int) -> list[PageRow]:
    draw = Random(tick)
    return [
        PageRow(
            name=f"gpu-{place:04d}",
            url=f"http://10.0.{place // 250}.{place % 250}:8000",
            up=place % 97 != 5,
            state="silent" if place % 97 == 5 else "ready",
            since=None,
            outage=None,
            moved=0,
            lost=0,
            drained=place % 61 == 3,
            breaker="open" if place % 83 == 7 else "closed",
            role=None,
            models=["org/model"],
            version="0.32.0",
            in_flight=draw.randint(0, 30),
            running=draw.randint(0, 30),
            waiting=draw.randint(0, 5),
            kv=round(draw.random(), 2),
            block_size=16,
            tiers=[draw.randint(0, 50_000), draw.randint(0, 9_000)],
            evicted=0,
            trust="partial" if place % 41 == 9 else "exact",
            events_at=time.time(),
            events=tick,
            gaps=0,
            hand_over=None,
            problems=[],
            late=None,
            slow=None,
            speed=None,
            times=None,
        )
        for place in range(number)
    ]


@dataclass
class Planted:
    """The page's own files, and a stream that a test sends."""

    url: str = ""
    streams: list[web.StreamResponse] = field(default_factory=list)
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, event: str, **told: Any) -> None:
        common: dict[str, Any] = {"now": time.time(), "records": {"kept": 0, "most": 10_000}}
        body = msgspec.json.encode(common | told)
        for stream in self.streams:
            await stream.write(b"event: %b\ndata: %b\n\n" % (event.encode(), body))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path == "/admin/live":
            stream = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await stream.prepare(request)
            self.streams.append(stream)
            self.came.set()
            await asyncio.Event().wait()
        if path == "/page/session":
            return web.json_response({"in": True, "wants_key": False})
        file = static_files().get(INDEX if path == "/" else path.removeprefix("/page/"))
        if file is None:
            raise web.HTTPNotFound
        return web.Response(body=file.body, headers={"content-type": file.content_type.decode()})


@asynccontextmanager
async def planted_stream() -> AsyncIterator[Planted]:
    planted = Planted()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", planted.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        planted.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        yield planted
    finally:
        await runner.cleanup()
