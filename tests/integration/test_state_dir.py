"""A gateway that is started again knows what it knew, once the engines have proven it."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from tests.integration.conftest import LONG, Fleet, StartFleet, simulated, until
from tests.integration.program import Start
from tests.integration.test_ranks import RanksInFront

from inferway.app import Gateway
from inferway.config import EngineSettings, ProbeSettings
from inferway.errors import ConfigError
from inferway.kv.events.stream import StreamState
from inferway_sim.config import EventsConfig
from inferway_sim.prepare import prepare_smollm2

SMALL = EventsConfig(buffer_steps=1)  # a replay can bring the last batch only
NO_PROBE = ProbeSettings(join=False, one_in=0)  # it would leave blocks in the engines


async def all_known(fleet: Fleet) -> None:
    """Until the gateway is in step with its one engine, and knows all it holds."""

    async def same() -> bool:
        states = [stream.state for stream in fleet.gateway.fleet.engines[0].subscribers]
        known = fleet.gateway.index.num_blocks(0)
        return known == len(fleet.engines[0].cached_blocks()) and states == [StreamState.EXACT]

    await until(same)


@asynccontextmanager
async def again(fleet: Fleet, **changed: Any) -> AsyncIterator[Fleet]:
    """The gateway is closed, and another one started with its settings."""
    await fleet.gateway.close()
    settings = msgspec.structs.replace(fleet.gateway.settings, **changed)
    gateway = Gateway(settings, fleet.gateway.indexer.renderer)
    await gateway.start()
    try:
        yield Fleet(fleet.engines, gateway, fleet.http, fleet.start_engine)
    finally:
        await gateway.close()


async def ask(url: str, text: str) -> None:
    """An engine, past the gateway."""
    body = {"model": "smollm2", "messages": [{"role": "user", "content": text}], "max_tokens": 8}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{url}/v1/chat/completions", json=body) as answer,
    ):
        assert answer.status == 200
        await answer.read()


async def answered(yes: bool) -> bool:
    return yes


def wait_for_blocks(url: str, more_than: int, after: str | None = None) -> int:
    """What a gateway believes that its one engine holds, in step with it, once it is so much;
    `after` a chat."""
    if after is not None:
        chat = {"messages": [{"role": "user", "content": after}], "max_tokens": 4}
        body = json.dumps({"model": "HuggingFaceTB/SmolLM2-135M-Instruct", **chat}).encode()
        head = {"content-type": "application/json"}
        request = urllib.request.Request(url + "/v1/chat/completions", body, head)
        urllib.request.urlopen(request, timeout=30).read()
    for _ in range(500):
        blocks = metric(url, "inferway_index_blocks")
        if blocks > more_than and metric(url, "inferway_stream_state", '.*"exact"') == 1:
            return int(blocks)
    raise AssertionError(f"{blocks} blocks")


def metric(url: str, name: str, labels: str = ".*") -> float:
    with urllib.request.urlopen(url + "/metrics", timeout=30) as page:
        text = page.read().decode()
    [value] = re.findall(rf"^{name}\{{{labels}.*\}} (\S+)$", text, re.MULTILINE)
    return float(value)


async def test_a_gateway_started_again_matches_at_once(
    start_fleet: StartFleet, tmp_path: Path
) -> None:
    fleet = await start_fleet([simulated(events=SMALL)], state_dir=str(tmp_path), probe=NO_PROBE)
    await all_known(fleet)
    first = await fleet.chat(LONG)
    await all_known(fleet)

    async with again(fleet) as second:
        await all_known(second)
        answer = await second.chat(LONG)

        assert first.matched == 0
        assert answer.expected_tokens == answer.cached_tokens > 0
        assert await second.metric("inferway_snapshot_proof", proof="proven") == 1
        assert await second.metric("inferway_snapshot_loaded_blocks") > 0


async def test_what_happened_meanwhile_is_replayed(start_fleet: StartFleet, tmp_path: Path) -> None:
    fleet = await start_fleet([simulated()], state_dir=str(tmp_path), probe=NO_PROBE)
    await fleet.chat(LONG)
    await all_known(fleet)
    await fleet.gateway.close()
    await ask(fleet.engines[0].url, "something else: " + LONG)

    async with again(fleet) as second:
        await all_known(second)
        for text in (LONG, "something else: " + LONG):
            answer = await second.chat(text)
            assert answer.expected_tokens == answer.cached_tokens > 0


async def test_an_engine_that_went_on_beyond_its_buffer_is_forgotten(
    start_fleet: StartFleet, tmp_path: Path
) -> None:
    fleet = await start_fleet([simulated(events=SMALL)], state_dir=str(tmp_path), probe=NO_PROBE)
    await all_known(fleet)
    await fleet.chat(LONG)
    await all_known(fleet)
    await fleet.gateway.close()
    for i in range(3):
        await ask(fleet.engines[0].url, f"something else {i}: " + LONG)

    async with again(fleet) as second:
        stream = second.gateway.fleet.engines[0].subscribers[0]
        await until(lambda: answered(stream.state is StreamState.PARTIAL))

        assert (await second.chat(LONG)).matched == 0
        assert await second.metric("inferway_snapshot_proof", proof="dropped") == 1


async def test_of_an_engine_that_was_restarted_meanwhile_nothing_is_believed(
    start_fleet: StartFleet, tmp_path: Path
) -> None:
    fleet = await start_fleet([simulated()], state_dir=str(tmp_path), probe=NO_PROBE)
    await fleet.chat(LONG)
    await all_known(fleet)
    await fleet.gateway.close()
    new = await fleet.start_engine(simulated())
    await ask(new.url, "something else: " + LONG)
    label = fleet.gateway.settings.engines[0].label

    async with again(fleet, engines=[EngineSettings(url=new.url, name=label)]) as second:
        moved = Fleet([new], second.gateway, fleet.http, fleet.start_engine)
        await all_known(moved)

        answer = await second.chat(LONG)  # the chat template begins each prompt alike
        assert answer.expected_tokens == answer.cached_tokens <= 16
        assert (await second.scores("something else: " + LONG)) != {}
        assert await second.metric("inferway_snapshot_proof", proof="dropped") == 1


async def test_each_rank_has_a_snapshot_of_its_own(start_fleet: StartFleet, tmp_path: Path) -> None:
    ranks = (await start_fleet(2)).engines
    async with RanksInFront(ranks).serving() as front:
        engine = EngineSettings(url=front.url, name="dp")
        fleet = await start_fleet([], more=[engine], state_dir=str(tmp_path), probe=NO_PROBE)
        for i in range(6):
            await fleet.chat(f"{i}: {LONG}")
        held = [len(rank.cached_blocks()) for rank in ranks]

        async def known(gateway: Gateway) -> bool:
            streams = gateway.fleet.engines[0].subscribers
            blocks = [gateway.index.num_blocks(stream.holder) for stream in streams]
            exact = all(stream.state is StreamState.EXACT for stream in streams)
            return exact and blocks == held

        await until(lambda: known(fleet.gateway))
        async with again(fleet) as second:
            await until(lambda: known(second.gateway))

            for rank, blocks in zip("01", held, strict=True):
                proven = {"rank": rank, "proof": "proven"}
                assert await second.metric("inferway_snapshot_proof", **proven) == 1
                loaded = await second.metric("inferway_snapshot_loaded_blocks", rank=rank)
                assert loaded == blocks > 0
    assert sorted(each.name for each in tmp_path.glob("*.snapshot")) == [
        "dp%2F0.snapshot",
        "dp%2F1.snapshot",
    ]


async def test_what_was_reported_to_the_gateway_before_is_no_second_copy(
    start_fleet: StartFleet, tmp_path: Path
) -> None:
    """It asked the engine for reports; the next one does not, and must not count them either."""
    small = EventsConfig(buffer_steps=2)
    before = await start_fleet([simulated(events=small, kv_cache_size=520)], probe=NO_PROBE)
    for text in (LONG * 3, "and another: " + LONG):
        await before.chat(text)
    engine = EngineSettings(url=before.engines[0].url)
    options: dict[str, Any] = {"state_dir": str(tmp_path), "probe": NO_PROBE}
    late = await start_fleet([], more=[engine], heal=1.0, **options)
    fleet = Fleet(before.engines, late.gateway, late.http, late.start_engine)
    await until(lambda: in_state(fleet, StreamState.PARTIAL))
    healing = await fleet.chat(LONG * 3)
    blocks = int(healing.headers["x-inferway-prompt-blocks"])
    assert healing.cached_tokens > healing.expected_tokens

    async def reported() -> bool:
        return list((await fleet.scores(LONG * 3)).values()) == [blocks]

    await until(reported)
    async with again(fleet, heal=0.0) as second:
        await until(lambda: in_state(second, StreamState.PARTIAL))
        assert list((await second.scores(LONG * 3)).values()) == [blocks]
        [report] = (await second.get("/admin/engines")).body["engines"]
        stream = report["endpoints"][0]["stream"]
        assert (stream["copies_count"], stream["snapshot"]["proof"]) == (False, "proven")
        for i in range(100):
            await second.chat(f"{i} drives out what was there: {LONG}", max_tokens=1)

        async def only_the_common_start() -> bool:
            return list((await second.scores(LONG * 3)).values()) == [1]

        await until(only_the_common_start)
        assert (await second.chat(LONG * 3)).cached_tokens == 16


async def in_state(fleet: Fleet, state: StreamState) -> bool:
    return [stream.state for stream in fleet.gateway.fleet.engines[0].subscribers] == [state]


async def test_what_cannot_be_confirmed_is_stale(start_fleet: StartFleet, tmp_path: Path) -> None:
    """The engine answers requests, but its events' port does not."""
    silent = EventsConfig()
    fleet = await start_fleet([simulated(events=silent)], state_dir=str(tmp_path), probe=NO_PROBE)
    await fleet.chat(LONG)
    await all_known(fleet)
    [engine] = fleet.gateway.settings.engines
    nowhere = msgspec.structs.replace(
        engine, events="tcp://127.0.0.1:1", replay="tcp://127.0.0.1:2"
    )

    async with again(fleet, engines=[nowhere]) as second:
        await until(lambda: in_state(second, StreamState.STALE))
        [report] = (await second.get("/admin/engines")).body["engines"]
        [endpoint] = report["endpoints"]

        assert (endpoint["state"], endpoint["blocks"] > 0) == ("stale", True)
        snapshot = endpoint["stream"]["snapshot"]
        assert snapshot["proof"] == "pending"
        assert snapshot["loaded_blocks"] == endpoint["blocks"]
        assert await second.metric("inferway_stream_state", state="stale") == 1


async def test_a_snapshot_of_another_model_is_refused_with_one_line(
    start_fleet: StartFleet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = await start_fleet([simulated()], state_dir=str(tmp_path), probe=NO_PROBE)
    await fleet.chat(LONG)
    await all_known(fleet)
    await fleet.gateway.close()
    root = tmp_path.with_name("other-model")
    root.symlink_to(prepare_smollm2())
    other = await fleet.start_engine(simulated(model=str(root)))
    label = fleet.gateway.settings.engines[0].label

    with caplog.at_level(logging.WARNING, "inferway.snapshot"):
        async with again(fleet, engines=[EngineSettings(url=other.url, name=label)]) as second:
            await all_known(Fleet([other], second.gateway, fleet.http, fleet.start_engine))
            assert await second.metric("inferway_snapshot_proof", proof="none") == 1
    [line] = [r.getMessage() for r in caplog.records if r.name == "inferway.snapshot"]
    assert "its snapshot is not used: it was taken for model " in line


async def test_without_a_replay_socket_nothing_is_kept(
    start_fleet: StartFleet, tmp_path: Path
) -> None:
    events = EventsConfig(replay_endpoint=None)
    fleet = await start_fleet([simulated(events=events)], state_dir=str(tmp_path))

    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    assert fleet.gateway.fleet.engines[0].subscribers[0].figures.snapshot is None


async def test_two_gateways_need_two_directories(start_fleet: StartFleet, tmp_path: Path) -> None:
    await start_fleet(1, state_dir=str(tmp_path))
    pattern = rf"state_dir '{tmp_path}': the gateway with process id {os.getpid()} uses it; give "

    with pytest.raises(ConfigError, match=pattern):
        await start_fleet(1, state_dir=str(tmp_path))


async def test_a_directory_that_cannot_be_written_is_told_at_start(
    start_fleet: StartFleet, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    pattern = rf"state_dir '{tmp_path}/file/state': cannot be written: not a directory; make it a "

    with pytest.raises(ConfigError, match=pattern):
        await start_fleet(1, state_dir=str(tmp_path / "file" / "state"))


@pytest.mark.slow
def test_a_gateway_that_was_stopped_knows_it_again(start: Start, tmp_path: Path) -> None:
    engine = start("simulate", "--port", "0")
    engine_url = engine.read_until(r"simulated engine (http://\S+)")
    command = ["serve", "--port", "0", "--engine", engine_url, "--state-dir", str(tmp_path)]
    first = start(*command)
    url = first.read_until(r"listening on (http://\S+)")
    held = wait_for_blocks(url, more_than=len(LONG) // 16 // 8, after=LONG)

    first.process.send_signal(signal.SIGTERM)
    first.ends()
    second = start(*command)
    loaded = int(second.read_until(r"(\d+) blocks from the snapshot"))
    url = second.read_until(r"listening on (http://\S+)")

    assert loaded >= held
    assert wait_for_blocks(url, more_than=loaded - 1) >= loaded
    assert metric(url, "inferway_snapshot_proof", '.*"proven"') == 1
