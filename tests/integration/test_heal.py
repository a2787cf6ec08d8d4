"""A gateway that joins late, beside engines that cannot replay what it has missed."""

from __future__ import annotations

from itertools import count

from tests.integration.conftest import LONG, Fleet, StartFleet, simulated, until

from inferway.config import EngineSettings
from inferway_sim.config import EventsConfig

NO_REPLAY = EventsConfig(replay_endpoint=None)
EARLIER = LONG * 3


async def late_gateway(start_fleet: StartFleet, heal: float) -> tuple[Fleet, Fleet]:
    """One that was there when an engine cached `EARLIER`, and one that was not; that one knows
    one event since, so that its picture is partial."""
    first = await start_fleet([simulated(events=NO_REPLAY, kv_cache_size=520)])
    await first.chat(EARLIER)
    engine = EngineSettings(url=first.engines[0].url)
    late = await start_fleet([], more=[engine], heal=heal, tokens_once="off")
    words = count()

    async def is_partial() -> bool:
        await late.chat(f"Something else, {next(words)}: {LONG}", max_tokens=1)
        [report] = (await late.get("/admin/engines")).body["engines"]
        return bool(report["endpoints"][0]["state"] == "partial")

    await until(is_partial)
    return first, late


async def test_asked_to_the_engine_reports_what_was_cached_before(start_fleet: StartFleet) -> None:
    first, late = await late_gateway(start_fleet, heal=1.0)
    labels = {"engine": first.engines[0].url.removeprefix("http://")}
    before = await late.metric("inferway_heal_requests_total", **labels)

    healing = await late.chat(EARLIER)

    assert healing.headers["x-inferway-edited"] == "vllm_xargs"
    assert healing.cached_tokens > healing.expected_tokens
    blocks = int(healing.headers["x-inferway-prompt-blocks"])

    async def known() -> bool:
        return list((await late.scores(EARLIER)).values()) == [blocks]

    await until(known)
    again = await late.chat(EARLIER)
    assert again.expected_tokens == again.cached_tokens == healing.cached_tokens
    assert "x-inferway-edited" not in again.headers
    assert await late.metric("inferway_heal_requests_total", **labels) == before + 1


async def test_what_is_driven_out_after_a_report_is_no_longer_believed(
    start_fleet: StartFleet,
) -> None:
    _, late = await late_gateway(start_fleet, heal=1.0)
    healing = await late.chat(EARLIER)
    believed = healing.cached_tokens
    for i in range(100):
        await late.chat(f"{i} drives out what was there: {LONG}", max_tokens=1)

    async def only_the_common_start() -> bool:
        return list((await late.scores(EARLIER)).values()) == [1]

    await until(only_the_common_start)
    assert (await late.chat(EARLIER)).cached_tokens == 16 < believed


async def test_nobody_is_asked_unless_told_to(start_fleet: StartFleet) -> None:
    _, late = await late_gateway(start_fleet, heal=0.0)

    answer = await late.chat(EARLIER)

    assert answer.cached_tokens > answer.expected_tokens
    assert "x-inferway-edited" not in answer.headers


async def test_what_a_client_has_reported_is_no_second_copy(start_fleet: StartFleet) -> None:
    fleet = await start_fleet([simulated(kv_cache_size=520)])

    async def is_exact() -> bool:
        [report] = (await fleet.get("/admin/engines")).body["engines"]
        return bool(report["endpoints"][0]["state"] == "exact")

    await fleet.chat(EARLIER)
    await until(is_exact)
    for _ in range(2):
        await fleet.chat(EARLIER, vllm_xargs={"kv_cache_report_mode": "full"})
    for i in range(100):
        await fleet.chat(f"{i} drives out what was there: {LONG}", max_tokens=1)

    async def only_the_common_start() -> bool:
        return list((await fleet.scores(EARLIER)).values()) == [1]

    await until(only_the_common_start)
    assert (await fleet.chat(EARLIER)).cached_tokens == 16
    assert not await is_exact()
