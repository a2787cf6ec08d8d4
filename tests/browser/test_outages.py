"""What the page says of outages, and of engines that are slow."""

from __future__ import annotations

import re
import time
from typing import Any

import msgspec
import pytest
from tests.browser.conftest import OpenTab, many_engines, planted_stream, text_of
from tests.browser.test_page import seen

from inferway.telemetry.alarms import fleet_alarms
from inferway.telemetry.engine_rows import OutageRow
from inferway.telemetry.engine_speeds import Late, Slow, Speed
from inferway_console.page.engine_times import Times
from inferway_console.page.pictures import PageRow

pytestmark = [pytest.mark.browser]


def row_of(name: str, **fields: Any) -> PageRow:
    """One of the planted engines, as something else."""
    return msgspec.structs.replace(many_engines(1, 0)[0], name=name, drained=False, **fields)


def shown(*rows: PageRow) -> dict[str, Any]:
    """What the page is told of such a fleet, with the alarms that the gateway finds."""
    told = {"version": "1", "timeline": [], "requests": [], "queued": 3}
    return {**told, "engines": list(rows), "alarms": [*fleet_alarms(rows)]}


def out(name: str, kind: str = "silent", seconds: float = 12.0, **fields: Any) -> PageRow:
    since = time.time() - seconds
    outage = OutageRow(kind, since, "no answer for 4.1 s")
    return row_of(name, up=False, state=kind, since=since, outage=outage, **fields)


async def test_a_total_outage_is_one_banner_with_since_when_and_what_it_means(
    open_tab: OpenTab,
) -> None:
    async with planted_stream() as stream:
        tab = await open_tab(stream.url)
        await stream.came.wait()
        await stream.send("whole", **shown(out("a"), out("b", "unreachable"), out("c"), out("d")))

        await seen(tab, ".alarm.total", "No engine answers since")
        banner = await text_of(tab, ".alarm.total p")
        assert re.search(r"since \d\d:\d\d:\d\d \(1\d s\)\. Every request gets 503\.", banner)
        assert await tab.locator("#alarms > .alarm").count() == 1
        assert await tab.locator("#alarms details .alarm").count() == 2
        assert await tab.title() == "(4 down) Inferway"
        assert await text_of(tab, "#link") == "Connected"
        assert "bad" in str(await tab.locator("#figure-up").get_attribute("class"))
        assert tab.faults == []

        await stream.send("whole", **shown(row_of("a"), row_of("b")))
        await tab.locator(".alarm.total").wait_for(state="hidden")
        assert await tab.title() == "Inferway"


async def test_a_frozen_engine_is_said_with_since_when_its_requests_and_the_first_steps(
    open_tab: OpenTab,
) -> None:
    async with planted_stream() as stream:
        tab = await open_tab(stream.url)
        await stream.came.wait()
        await stream.send("whole", **shown(row_of("a"), out("b", moved=3, lost=1)))

        await seen(tab, "#alarms .alarm", "does not answer since")
        said = await text_of(tab, "#alarms .alarm p")
        assert "1 request failed, 3 moved to other engines." in said
        assert "curl -m 5" in said
        link = tab.locator("#alarms .alarm a")
        assert str(await link.get_attribute("href")).endswith("alerts.md#inferwayenginesilent")
        await tab.locator('[data-name="b"]').click()
        await seen(tab, "#drawer", "no answer for 4.1 s")
        await seen(tab, "#drawer", "1 failed, 3 moved")
        assert tab.faults == []


async def test_an_engine_that_is_slow_and_one_that_keeps_requests_waiting_are_said_to(
    open_tab: OpenTab,
) -> None:
    slow = Slow(7.6, 2.3, 0.3, "prompt token", False)
    late = Late(4, time.time() - 22, 0.06)
    speed, times = Speed(2.3, 60.0), Times(20, 1, 1480.0, 1780.0)
    async with planted_stream() as stream:
        tab = await open_tab(stream.url)
        await stream.came.wait()
        rows = row_of("a", slow=slow, speed=speed, times=times), row_of("b", late=late)
        await stream.send("whole", **shown(*rows))

        await seen(tab, "#alarms .alarm", "8 times slower than its fellows: 2.3 ms a prompt token")
        await seen(tab, "#alarms .alarm", "4 requests wait for the first token since")
        await seen(tab, '[data-name="a"]', "8× slower")
        await seen(tab, '[data-name="b"]', "keeps waiting")
        await tab.locator('[data-name="a"]').click()
        await seen(tab, "#drawer", "median 1.48 s, p95 1.78 s")
        await seen(tab, "#drawer", "2.3 ms a prompt token, 60 ms an answer token")
        await seen(tab, "#drawer", "1 of 20")
        assert tab.faults == []


async def test_forty_engines_that_are_down_are_one_line(open_tab: OpenTab) -> None:
    async with planted_stream() as stream:
        tab = await open_tab(stream.url)
        await stream.came.wait()
        down = [out(f"gpu-{number}") for number in range(501, 541)]
        await stream.send("whole", **shown(row_of("a"), *down))

        await seen(tab, "#alarms .alarm", "40 engines (gpu-501 to gpu-540) do not answer since")
        assert await tab.locator("#alarms .alarm").count() == 1
        assert await tab.title() == "(40 down) Inferway"


async def test_failures_the_queue_and_the_p95_of_first_tokens_are_among_the_figures(
    open_tab: OpenTab,
) -> None:
    bucket = [int(time.time()) // 2 * 2, 40, 2, 1000, 740, 700, 860, 20.0, 21.0, 30.0, 120]
    async with planted_stream() as stream:
        tab = await open_tab(stream.url)
        await stream.came.wait()
        told = shown(row_of("a", waiting=4)) | {"timeline": [bucket]}
        await stream.send("whole", **told, first_token={"p50": 190.0, "p95": 412.0})

        await seen(tab, "#figure-failed", "5%")
        assert "2 of 40" in await text_of(tab, "#figure-failed")
        assert "bad" in str(await tab.locator("#figure-failed").get_attribute("class"))
        assert "412 ms" in await text_of(tab, "#figure-first b")
        assert await text_of(tab, "#figure-waiting b") == "7"
        cached = await text_of(tab, "#figure-cached")
        assert "74% reachable, 12% at engines without events" in cached
