"""An engine that is drained hands its caches over: before simulated engines that fetch blocks from
each other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from tests.integration.conftest import LONG, Answer, Fleet, StartFleet, simulated, until

from inferway.cli.fleet_state import GatewayClient
from inferway.config import EngineSettings, KvTransferSettings
from inferway_sim.config import TransferConfig
from inferway_sim.engine import SimulatedEngine

TENANT = "x-gateway-inference-fairness-id"


def connected(number: int = 2, **fields: Any) -> Sequence[Any]:
    return [simulated(kv_transfer=TransferConfig(**fields)) for _ in range(number)]


def named(fleet: Fleet, engine: SimulatedEngine) -> str:
    return next(e.name for e in fleet.gateway.fleet.engines if e.url == engine.url)


async def change(fleet: Fleet, name: str, what: str) -> dict[str, Any]:
    answer = await fleet.post(f"/admin/engines/{name}/{what}", b"")
    assert answer.status == 200
    return answer.body


async def hand_over(fleet: Fleet, name: str) -> dict[str, Any]:
    told = (await fleet.get("/admin/engines")).body["engines"]
    found: dict[str, Any] = next(each["hand_over"] for each in told if each["name"] == name)
    return found


async def handed_over(fleet: Fleet, name: str) -> dict[str, Any]:
    """What is told of it when it has ended."""

    async def ended() -> bool:
        return bool((await hand_over(fleet, name))["state"] != "running")

    await until(ended)
    return await hand_over(fleet, name)


async def all_known(fleet: Fleet) -> None:
    async def same() -> bool:
        known = [fleet.gateway.index.num_blocks(holder) for holder in range(len(fleet.engines))]
        return known == [len(engine.cached_blocks()) for engine in fleet.engines]

    await until(same)


async def one_engine_with_sessions(
    fleet: Fleet, sessions: Sequence[str], **fields: Any
) -> tuple[str, str]:
    """Let one engine have these sessions, and return its name and the other one's."""
    a, b = (named(fleet, engine) for engine in fleet.engines)
    await change(fleet, b, "drain")
    for session in sessions:
        assert (await asked(fleet, session, **fields)).engine == a
    await change(fleet, b, "resume")
    await all_known(fleet)
    return a, b


async def asked(fleet: Fleet, session: str, *more: str, **fields: Any) -> Answer:
    answer = await fleet.chat(f"{session}: {LONG}", *more, **fields)
    assert answer.status == 200
    return answer


@pytest.mark.parametrize("connector", ["nixl", "nixl-push"])
async def test_the_sessions_of_a_drained_engine_find_their_blocks_elsewhere(
    start_fleet: StartFleet, connector: Literal["nixl", "nixl-push"]
) -> None:
    fleet = await start_fleet(
        connected(connector=connector),
        by_hand=lambda engine: EngineSettings(url=engine.url, kv_connector=connector),
    )
    a, b = await one_engine_with_sessions(fleet, ["one", "two", "three"])

    began = await change(fleet, a, "drain")
    told = await handed_over(fleet, a)
    await all_known(fleet)

    assert (began["drained"], began["hand_over"]["state"]) == (True, "running")
    assert (told["state"], told["handed_over"], told["failed"], told["left"]) == ("done", 3, 0, 0)
    for session in ("one", "two", "three"):
        answer = await asked(fleet, session, "Yes.", "And now?")
        blocks = (int(answer.body["usage"]["prompt_tokens"]) - 1) // 16
        assert answer.engine == b
        assert 0 < blocks - answer.cached_tokens // 16 <= 2
        assert answer.matched == answer.cached_tokens // 16


async def test_what_has_been_handed_over_is_counted(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(connected())
    a, _ = await one_engine_with_sessions(fleet, ["one", "two"])
    await change(fleet, a, "drain")
    told = await handed_over(fleet, a)

    async def prefixes(outcome: str) -> float:
        name = "inferway_hand_over_prefixes_total"
        return await fleet.metric(name, engine=a, outcome=outcome)

    assert await prefixes("handed-over") == 2
    assert await prefixes("failed") == 0
    assert await fleet.metric("inferway_hand_over_tokens_total", engine=a) == told["tokens"] > 0
    assert await fleet.metric("inferway_hand_over_left", engine=a) == 0
    assert await fleet.metric("inferway_warm_prefixes") == 2
    assert await fleet.metric("inferway_warm_prefix_bytes") > 0
    for engine in fleet.gateway.fleet.engines:
        assert fleet.gateway.fleet.in_flight(engine) == 0

    await change(fleet, a, "resume")
    await change(fleet, a, "drain")
    await handed_over(fleet, a)
    assert await prefixes("handed-over") == 2


async def test_tenants_stay_apart(start_fleet: StartFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SALT", "a secret")
    fleet = await start_fleet(connected(), salt_per_tenant_env="SALT")
    a, b = await one_engine_with_sessions(fleet, [])
    await change(fleet, b, "drain")
    chat = {"model": "smollm2", "messages": [{"role": "user", "content": LONG}], "max_tokens": 1}
    await fleet.post("/v1/chat/completions", chat, **{TENANT: "acme"})
    await change(fleet, b, "resume")
    await all_known(fleet)

    await change(fleet, a, "drain")
    await handed_over(fleet, a)
    await all_known(fleet)

    for tenant, is_warm in (("rival", False), ("acme", True)):
        answer = await fleet.post("/v1/chat/completions", chat, **{TENANT: tenant})
        assert answer.engine == b
        assert (answer.cached_tokens > 0) == is_warm


async def test_an_engine_that_gets_requests_again_hands_over_no_more(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(connected(time_per_block=60.0))
    a, b = await one_engine_with_sessions(fleet, ["one"])
    await change(fleet, a, "drain")

    async def fetches() -> bool:
        engine = next(e for e in fleet.gateway.fleet.engines if e.name == b)
        return fleet.gateway.fleet.in_flight(engine) == 1

    await until(fetches)
    state = await asyncio.to_thread(GatewayClient(fleet.url).ask)
    assert {each.name: each.state for each in state.engines} == {a: "draining", b: "up"}
    again = await change(fleet, a, "drain")
    resumed = await change(fleet, a, "resume")

    assert again["hand_over"]["state"] == "running"
    assert (resumed["drained"], resumed["hand_over"]) == (False, None)
    assert [fleet.gateway.fleet.in_flight(e) for e in fleet.gateway.fleet.engines] == [0, 0]
    assert (await asked(fleet, "one")).engine == a


async def test_a_gateway_that_ends_stops_what_is_handed_over(
    start_fleet: StartFleet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    fleet = await start_fleet(connected(time_per_block=60.0))
    a, _ = await one_engine_with_sessions(fleet, ["one"])
    await change(fleet, a, "drain")
    async with asyncio.timeout(10):
        await fleet.gateway.close()

    assert f"engine {a} has handed over 0 warm prefixes" in caplog.text
    assert "1 are left (stopped)" in caplog.text


async def test_the_request_says_for_how_long(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(connected(time_per_block=60.0))
    a, _ = await one_engine_with_sessions(fleet, ["one"])

    told = (await change(fleet, a, "drain?seconds=1000"))["hand_over"]
    assert 900 < told["seconds_left"] <= 1000
    await change(fleet, a, "resume")
    told = (await change(fleet, a, "drain?seconds=0"))["hand_over"]
    assert (told["state"], told["why"]) == ("none", "it is given 0 s")

    for seconds in ("", "-1", "nan", "inf", "x", "1e9"):
        path = f"/admin/engines/{a}/drain?seconds={seconds}"
        refused = await fleet.post(path, b"")
        assert refused.status == 400
        assert refused.body["error"]["param"] == "seconds"


@pytest.mark.parametrize(
    ("configs", "settings", "why"),
    [
        ([simulated(), simulated()], {}, "no connector is known"),
        (connected(1), {}, "no other engine that gets requests"),
        ([*connected(1), simulated()], {}, "no other engine that gets requests"),
        (connected(2), {"hand_over_seconds": 0.0}, "kv_transfer.hand_over_seconds is 0"),
    ],
)
async def test_an_engine_with_nobody_to_hand_to_is_drained_at_once(
    start_fleet: StartFleet, configs: Sequence[Any], settings: dict[str, Any], why: str
) -> None:
    fleet = await start_fleet(configs, kv_transfer=KvTransferSettings(**settings))
    await asked(fleet, "one")
    name = named(fleet, fleet.engines[0])

    told = (await change(fleet, name, "drain"))["hand_over"]

    assert told["state"] == "none"
    assert why in told["why"]


async def test_prompts_are_kept_of_engines_with_a_connector_alone(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(2)
    await asked(fleet, "one")

    assert await fleet.metric("inferway_warm_prefixes") == 0


async def test_a_drained_engine_that_dies_is_drained_for_good(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(connected())
    a, b = await one_engine_with_sessions(fleet, ["one", "two"])
    await fleet.engines[0].stop()

    await change(fleet, a, "drain")
    told = await handed_over(fleet, a)

    assert (told["state"], told["handed_over"]) == ("failed", 0)
    assert told["why"]
    assert (await asked(fleet, "one")).engine == b
