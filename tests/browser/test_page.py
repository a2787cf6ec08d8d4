"""The page in a real Chromium: every view, live updates, the login, a link that breaks, a thousand
engines."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.browser.conftest import OpenTab, many_engines, planted, planted_stream, text_of
from tests.integration.conftest import LONG, Fleet, StartFleet, simulated, until
from tests.integration.recorders import records_of

from inferway.app import Gateway
from inferway.config import EngineSettings, ServeSettings
from inferway_sim.config import LatencyModel, SimulatorConfig

pytestmark = [pytest.mark.browser]
IMAGES = Path(__file__).parents[2] / "docs" / "images"
NAMES = ("alpha", "bravo", "charlie", "delta")
FRAME_MS = 100
QUESTION = {"role": "user", "content": "How do whales sleep?"}
RULES = "\n".join(f"Rule {i}: count to {i * i} before you answer, and say so." for i in range(40))
SLOW = LatencyModel(inter_token_latency=0.05)


async def seen(tab: Any, selector: str, text: str, seconds: float = 15) -> None:
    """Waits until the page shows it."""
    await tab.locator(selector, has_text=text).first.wait_for(timeout=seconds * 1000)


async def busy_fleet(
    start_fleet: StartFleet, engines: int | Sequence[SimulatorConfig] = 4, **settings: Any
) -> Fleet:
    """Four engines that have answered something, and records of ten minutes."""
    names = iter(NAMES)
    fleet = await start_fleet(
        engines, by_hand=lambda engine: EngineSettings(url=engine.url, name=next(names)), **settings
    )
    for number in range(12):
        await fleet.chat(LONG * (number % 4 + 1), f"Question {number}")
    for record in planted(list(NAMES), 420, time.time()):
        records_of(fleet.gateway).ring.append(record)
    return fleet


async def busy_page(
    start_fleet: StartFleet, open_tab: OpenTab, *, fleet: Fleet | None = None, **context: Any
) -> tuple[Fleet, Any]:
    """The fleet, and its page, which shows the last requests."""
    fleet = fleet or await busy_fleet(start_fleet)
    tab = await open_tab(fleet.url, **context)
    await seen(tab, "#requests", "✓ ok")
    return fleet, tab


async def stream(fleet: Fleet, *contents: str) -> None:
    """Reads a long answer to its end."""
    messages = [{"role": "user", "content": content} for content in contents]
    body = {"model": "smollm2", "messages": messages, "max_tokens": 900, "stream": True}
    body["stream_options"] = {"include_usage": True}
    async with fleet.http.post(f"{fleet.url}/v1/chat/completions", json=body) as answer:
        await answer.read()


async def test_every_view_is_filled(start_fleet: StartFleet, open_tab: OpenTab) -> None:
    _, tab = await busy_page(start_fleet, open_tab)

    await seen(tab, "#link", "Connected")
    await seen(tab, "#fleet", "charlie")
    await seen(tab, "#events", "delta")
    await seen(tab, "#breakers", "No cache breakers")
    assert await tab.locator("#flow canvas").is_visible()
    assert await tab.locator("#ttft canvas").is_visible()
    assert "%" in await text_of(tab, "#figure-cached b")
    assert "4" in await text_of(tab, "#figure-up")
    assert tab.faults == []


async def test_a_request_opens_into_its_explanation(
    start_fleet: StartFleet, open_tab: OpenTab
) -> None:
    _, tab = await busy_page(start_fleet, open_tab)

    await tab.locator("#requests button.row").first.click()
    await seen(tab, "#drawer", "What each engine held of the prompt")
    assert await tab.locator("#drawer svg.held[role=img]").count() == 4
    assert "prompt tokens from its cache" in await text_of(tab, "#drawer .story")

    await tab.keyboard.press("Escape")
    await tab.locator("#drawer").wait_for(state="hidden")
    await tab.locator("#requests tbody tr td:last-child").first.click()  # anywhere in the row
    await seen(tab, "#drawer", "What each engine held of the prompt")
    assert tab.faults == []


async def test_what_changes_is_shown_without_a_reload(
    start_fleet: StartFleet, open_tab: OpenTab
) -> None:
    fleet, tab = await busy_page(start_fleet, open_tab)
    (record,) = planted(["alpha"], 1, time.time(), 0)

    records_of(fleet.gateway).ring.append(msgspec.structs.replace(record, id="just-now"))

    await seen(tab, "#requests", "just-now")


async def test_an_engine_is_drained_and_gets_requests_again_by_keyboard(
    start_fleet: StartFleet, open_tab: OpenTab
) -> None:
    fleet, tab = await busy_page(start_fleet, open_tab)

    await tab.locator('[data-name="alpha"]').focus()
    await tab.keyboard.press("ArrowRight")
    await tab.keyboard.press("Enter")
    await seen(tab, "#drawer-title", "bravo")
    await tab.locator("#drawer button.primary").press("Enter")
    await seen(tab, "#drawer", "Give it requests again")
    assert "bravo" in fleet.gateway._auth.failover.standing.drained
    await seen(tab, '[data-name="bravo"]', "drained")

    await tab.locator("#drawer button.primary").press("Enter")
    await seen(tab, "#drawer .act", "those that it has end")
    assert not fleet.gateway._auth.failover.standing.drained


async def test_one_logs_in_with_the_key_and_out_again(
    start_fleet: StartFleet, open_tab: OpenTab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADMIN_KEY", "s3cret")
    fleet = await start_fleet(2, admin_key_env="ADMIN_KEY")
    tab = await open_tab(fleet.url)

    await tab.locator("#key").fill("wrong")
    await tab.keyboard.press("Enter")
    await seen(tab, "#login-error", "no key of an admin")
    assert not await tab.locator("#board").is_visible()
    await tab.locator("#key").fill("s3cret")
    await tab.keyboard.press("Enter")
    await seen(tab, "#link", "Connected")

    (cookie,) = await tab.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert "s3cret" not in str(cookie)
    assert await tab.evaluate("document.cookie") == ""

    await tab.locator("[data-name]").first.click()
    await tab.locator("#drawer button.primary").click()
    await seen(tab, "#drawer", "Give it requests again")
    await tab.keyboard.press("Escape")

    await tab.locator("#logout").click()
    await tab.locator("#login").wait_for()
    await tab.reload()
    await tab.locator("#login").wait_for()
    assert tab.faults == []


async def test_a_broken_link_is_said_and_comes_back(open_tab: OpenTab) -> None:
    settings = ServeSettings(
        engines=[EngineSettings(url="http://127.0.0.1:1")], port=0, access_log=None
    )
    first = Gateway(settings)
    await first.start()
    port = first.port
    tab = await open_tab(f"http://127.0.0.1:{port}")
    await seen(tab, "#link", "Connected")
    await first.close()
    await seen(tab, "#link", "Link lost")

    second = Gateway(msgspec.structs.replace(settings, port=port))
    await second.start()
    try:
        await seen(tab, "#link", "Connected")
        assert tab.faults == []
    finally:
        await second.close()


async def test_an_empty_gateway_says_what_to_do(open_tab: OpenTab) -> None:
    async with planted_stream() as stream:
        tab = await open_tab(stream.url)
        await stream.came.wait()
        assert await text_of(tab, "#link") == "Connecting…"
        nothing: dict[str, Any] = {
            name: [] for name in ("engines", "timeline", "requests", "alarms")
        }
        await stream.send("whole", version="1", **nothing)

        await seen(tab, "#fleet-empty", "inferway serve http://HOST:PORT")
        await seen(tab, "#requests-empty", "No request has ended")
        await seen(tab, "#flow-empty", "No request has ended")
        assert tab.faults == []


async def test_a_thousand_engines_are_drawn_within_a_frame_of_100_ms(open_tab: OpenTab) -> None:
    """Times are of the page's own thread, so that another process makes no difference."""
    async with planted_stream() as stream:
        tab = await open_tab(stream.url)
        await stream.came.wait()
        measuring = await tab.context.new_cdp_session(tab)
        await measuring.send("Performance.enable", {"timeDomain": "threadTicks"})

        async def spent() -> float:
            told = await measuring.send("Performance.getMetrics")
            named = {each["name"]: each["value"] for each in told["metrics"]}
            return float(named["TaskDuration"]) * 1000

        alarms = [{"level": "fail", "subject": "gpu-0005", "evidence": "it does not answer"}]
        whole = {"timeline": [], "requests": [], "alarms": [alarms[0] | {"cure": ""}]}
        await stream.send("whole", version="1", engines=many_engines(1000, 0), **whole)
        await tab.locator('[data-name="gpu-0999"]').wait_for(state="attached")
        before, ticks = await spent(), 20
        for tick in range(1, ticks + 1):
            changed = {"engines": many_engines(1000, tick), "gone": []}
            await stream.send("changes", **changed, timeline=[], requests=[])
            await says(tab, "gpu-0001", tick)
        each = (await spent() - before) / ticks

        await tab.locator("#fleet").evaluate("element => element.scrollTo(0, element.scrollHeight)")
        await says(tab, "gpu-0999", ticks)  # it was out of sight
        assert await tab.locator(".tile").count() == 1000
        assert each <= FRAME_MS, f"{each:.0f} ms a frame"
        assert tab.faults == []


async def says(tab: Any, name: str, tick: int) -> None:
    """Waits until the engine's tile has the figures of that tick."""
    row = next(row for row in many_engines(1000, tick) if row.name == name)
    shown = f"{name}: healthy, {row.running + row.waiting} requests, cache {row.kv:.0%}"
    script = "([name, said]) => document.querySelector(`[data-name='${name}']`).title === said"
    await tab.wait_for_function(script, arg=[name, shown])


async def test_a_cache_breaker_is_named_with_what_it_costs_and_its_cure(
    start_fleet: StartFleet, open_tab: OpenTab
) -> None:
    """A time at the beginning of each system prompt."""
    fleet = await start_fleet(2)
    minutes = count()

    async def are_found() -> bool:
        now = time.strftime("%H:%M:%S", time.gmtime(61 * next(minutes)))
        messages = [{"role": "system", "content": f"It is {now}. {RULES}"}, QUESTION]
        body = {"model": "smollm2", "messages": messages, "max_tokens": 4}
        assert (await fleet.post("/v1/chat/completions", body)).status == 200
        return bool((await fleet.get("/admin/cache-breakers")).body["breakers"])

    await until(are_found, 60)
    tab = await open_tab(fleet.url)

    await seen(tab, "#breakers li", "time")
    assert "tokens a day are computed again" in await text_of(tab, "#breakers li")
    assert "at the end of the prompt" in await text_of(tab, "#breakers li .cure")
    await seen(tab, "#alarms .alarm", "of its prompt tokens")
    assert "at the end of the prompt" in await text_of(tab, "#alarms .alarm .cure")
    assert tab.faults == []


async def test_it_fits_a_narrow_screen(start_fleet: StartFleet, open_tab: OpenTab) -> None:
    _, tab = await busy_page(start_fleet, open_tab, viewport={"width": 360, "height": 740})

    assert await tab.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_its_picture(start_fleet: StartFleet, open_tab: OpenTab, theme: str) -> None:
    """With SCREENSHOTS=1 it is the one in the docs."""
    fleet = await busy_fleet(
        start_fleet,
        engines=[simulated(latency=SLOW, kv_cache_size=220, max_model_len=2048)] * 4,
        scheduling=None,
    )
    going = [
        asyncio.ensure_future(stream(fleet, LONG * 2, f"Write {number}")) for number in range(13)
    ]
    await fleet.post("/admin/engines/delta/drain", b"")
    how: dict[str, Any] = {"color_scheme": theme, "device_scale_factor": 1.25}
    how["viewport"] = {"width": 1360, "height": 1120}
    _, tab = await busy_page(start_fleet, open_tab, fleet=fleet, **how)
    await tab.locator("#flow canvas").wait_for()
    await seen(tab, '[data-name="delta"]', "drained")
    ground = await tab.evaluate("getComputedStyle(document.body).backgroundColor")
    picture = await tab.screenshot()

    assert (sum(map(int, ground[4:-1].split(","))) < 200) is (theme == "dark")
    assert picture.startswith(b"\x89PNG")
    if os.environ.get("SCREENSHOTS"):
        (IMAGES / f"page-{theme}.png").write_bytes(picture)
        await tab.locator("tr:has(.tag) button.row").first.click()
        await seen(tab, "#drawer", "The rest")
        await tab.screenshot(path=IMAGES / f"page-request-{theme}.png")
    for each in going:
        each.cancel()
    assert tab.faults == []
