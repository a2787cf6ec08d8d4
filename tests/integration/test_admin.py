"""GET /admin/engines, before simulated engines."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.integration.conftest import LONG, Fleet, StartFleet, simulated, until

from inferway.cli.fleet_state import GatewayClient, TransferState
from inferway.config import EngineSettings
from inferway.doctor.gateway import ask_gateway
from inferway.doctor.traffic_rules import judge_gateway
from inferway_sim.config import EventsConfig
from inferway_sim.engine import SimulatedEngine

DOCUMENT = Path(__file__).parents[2] / "docs" / "troubleshooting.md"


async def engines(fleet: Fleet) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await fleet.get("/admin/engines")).body["engines"]
    return found


def documented(what: str) -> set[str]:
    """The keys in the first column of the table that is headed so."""
    table = re.search(rf"\| key of {what} \|.*?\n\n", DOCUMENT.read_text(), re.DOTALL)
    assert table is not None
    rows = re.findall(r"^\| (`.*?) \|", table[0], re.MULTILINE)
    return {key for row in rows for key in re.findall(r"`(\w+)`", row)}


async def test_its_keys_are_the_documented_ones(start_fleet: StartFleet) -> None:
    [engine] = await engines(await start_fleet(1))
    [endpoint] = engine["endpoints"]

    assert engine.keys() == documented("an engine")
    assert endpoint.keys() == documented("an endpoint")
    assert endpoint["stream"].keys() == documented("a stream")


async def test_who_can_hand_blocks_to_whom_is_shown(start_fleet: StartFleet) -> None:
    roles: list[Literal["prefill", "decode"]] = ["prefill", "decode"]

    def described(engine: SimulatedEngine) -> EngineSettings:
        role = roles.pop(0)
        return EngineSettings(url=engine.url, name=role, role=role, kv_connector="nixl")

    fleet = await start_fleet(2, by_hand=described)
    prefill, decode = await engines(fleet)

    assert (prefill["role"], decode["role"]) == ("prefill", "decode")
    assert prefill["kv_transfer"].keys() == documented("an engine's transfer")
    assert prefill["kv_transfer"]["hands_to"] == ["decode"]
    assert decode["kv_transfer"]["hands_to"] == []
    done = await asyncio.to_thread(GatewayClient(fleet.url).ask)
    shown = [each.kv_transfer for each in done.engines]
    assert shown == [
        TransferState("nixl", "prefill", 30.0, ["decode"]),
        TransferState("nixl", "decode", 30.0, []),
    ]


async def test_the_keys_of_the_traffic_are_the_documented_ones(start_fleet: StartFleet) -> None:
    traffic = (await (await start_fleet(1)).get("/admin/traffic")).body

    assert traffic.keys() == documented("the traffic")
    named = documented("the conversations") - {"cause", "client", "in_first_block"}
    assert traffic["conversations"].keys() == named


async def test_the_doctor_says_what_breaks_the_caches_of_a_gateways_clients(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(1)
    said: list[dict[str, str]] = []
    for turn in range(4):
        said += [{"role": "user", "content": f"{LONG} {turn}"}]
        system = {"role": "system", "content": f"cc_version=2.1; cch=a{turn};\n{LONG}"}
        chat = {"model": "smollm2", "messages": [system, *said], "max_tokens": 1}
        await fleet.post("/v1/chat/completions", chat, **{"User-Agent": "litellm/1.80"})
        said += [{"role": "assistant", "content": "Yes."}]
    stored = {"model": "smollm2", "input": "hi", "previous_response_id": "r"}
    await fleet.post("/v1/responses", stored, **{"User-Agent": "codex_cli_rs/0.63"})

    found = await ask_gateway(fleet.url)

    assert found is not None
    said_of_it = "\n".join(finding.evidence for finding in judge_gateway(found))
    assert "1 requests of codex to /v1/responses went by load: response-items" in said_of_it
    assert "0 of 3 turns that were looked at keep the prompt before" in said_of_it
    assert "3 of 3 turns, of litellm, miss" in said_of_it
    assert "a hash or an id in the system prompt" in said_of_it


async def test_it_tells_how_an_engine_is_known(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)
    await fleet.chat(LONG)
    [simulator] = fleet.engines

    async def all_known() -> bool:
        [endpoint] = (await engines(fleet))[0]["endpoints"]
        return bool(endpoint["blocks"] == len(simulator.cached_blocks()) > 0)

    await until(all_known)
    [engine] = await engines(fleet)
    [endpoint] = engine["endpoints"]
    stream = endpoint["stream"]

    assert (engine["url"], engine["healthy"], engine["block_size"]) == (simulator.url, True, 16)
    assert engine["version"].startswith("0.32.0")
    assert (endpoint["name"], endpoint["rank"]) == (engine["name"], None)
    assert endpoint["state"] == stream["state"] == "exact"
    assert (stream["endpoint"], stream["replay"]) == (
        simulator.events_endpoint,
        simulator.replay_endpoint,
    )
    assert stream["seq"] == stream["batches"] - 1
    assert 0 <= stream["age_seconds"] < 10
    assert stream["stored"] >= endpoint["blocks"]
    assert stream["skipped"] == {}


async def test_an_engine_without_events_is_blind(start_fleet: StartFleet) -> None:
    fleet = await start_fleet([simulated(events=EventsConfig(endpoint=None))])
    [engine] = await engines(fleet)

    [endpoint] = engine["endpoints"]

    assert (endpoint["state"], endpoint["stream"]) == ("blind", None)
    labels = {"engine": engine["name"], "rank": "0"}
    assert await fleet.metric("inferway_stream_state", state="blind", **labels) == 1
    assert await fleet.metric("inferway_stream_state", state="exact", **labels) == 0


async def test_an_engine_that_is_not_there_is_told_too(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)
    await fleet.chat(LONG)

    async def is_known() -> bool:
        return bool((await engines(fleet))[0]["endpoints"][0]["blocks"])

    await until(is_known)
    await fleet.engines[0].stop()

    async def is_gone() -> bool:
        [engine] = await engines(fleet)
        return not engine["healthy"] and engine["endpoints"][0]["state"] == "stale"

    await until(is_gone)
    [engine] = await engines(fleet)
    assert engine["problems"][0].startswith("it cannot be reached since ")
    assert (engine["state"], engine["outage"]["kind"]) == ("unreachable", "unreachable")
    assert engine["since"] <= time.time()
    alarms = (await fleet.get("/admin/alarms")).body["alarms"]
    assert alarms[0]["evidence"] == "no engine answers"
    assert (alarms[1]["subject"], alarms[1]["evidence"]) == (engine["name"], "cannot be reached")
    assert "curl -m 5" in alarms[1]["cure"]
    assert await fleet.metric("inferway_engines", state="unreachable") == 1
    assert await fleet.metric("inferway_engines", state="ready") == 0
    assert await fleet.metric("inferway_ready") == 0


async def test_it_wants_the_admins_key(
    start_fleet: StartFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_ADMIN_KEY", "secret")
    fleet = await start_fleet(1, admin_key_env="TEST_ADMIN_KEY")
    url = f"{fleet.url}/admin/engines"

    async with fleet.http.get(url) as refused:
        assert refused.status == 401
    async with fleet.http.get(url, headers={"authorization": "Bearer secret"}) as allowed:
        assert allowed.status == 200
