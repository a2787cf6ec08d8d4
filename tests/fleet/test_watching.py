"""What the fleet's columns show of engines that answer, and of one that does not any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, closing
from typing import Any

import pytest
from tests.fleet.worlds import INTERVAL, TellingEngine, busy, fleet_of, started

from inferway.config import KvTransferSettings
from inferway.fleet.fleet import Fleet
from inferway.fleet.watch import EngineWatch
from inferway.model import Adapters, Candidates, KvConnector
from inferway.prompts import GetOrCreateTokenizerKeyRequest, Renderer
from inferway.prompts.model_prompts import ModelPrompts
from inferway.prompts.served import ModelSource, PromptSource
from inferway_sim.prepare import prepare_smollm2


def watched(*engines: TellingEngine, **more: Any) -> AbstractAsyncContextManager[Fleet]:
    return started(fleet_of(*engines, scrape_seconds=INTERVAL, **more))


async def until(fleet: Fleet, condition: Callable[[Candidates], bool]) -> Candidates:
    async with asyncio.timeout(20):
        while not condition(candidates := fleet.candidates("m")):
            await asyncio.sleep(INTERVAL)
    return candidates


async def test_an_engine_that_can_is_asked_for_its_load_alone() -> None:
    others = "python_info 1\n" * 20
    engine = TellingEngine(others + busy(1, 0), narrows=True)
    async with engine.serving(), watched(engine) as fleet:
        await until(fleet, lambda candidates: candidates.running[0] == 1)
        engine.metrics = others + busy(3, 2)

        await until(fleet, lambda candidates: candidates.waiting[0] == 2)

    assert engine.asked[-1] == "/metrics/"
    assert engine.asked.count("/metrics") == 1


async def test_figures_follow_what_engines_tell() -> None:
    one = TellingEngine(busy(1, 0))
    async with one.serving(), watched(one) as fleet:
        before = fleet.candidates("m").running.tolist()
        one.metrics = busy(5, 3)
        after = await until(fleet, lambda table: table.running.tolist() == [5.0])

    assert before == [1.0]
    assert after.waiting.tolist() == [3.0]
    assert after.others.tolist() == [8.0]


async def test_endpoints_carry_their_engines_labels() -> None:
    one = TellingEngine()
    async with one.serving(), watched(one, labels={"role": "decode"}) as fleet:
        endpoints = fleet.candidates("m").endpoints

    assert [endpoint.labels for endpoint in endpoints] == [{"role": "decode"}]


NIXL = "vllm:nixl_num_kv_expired_reqs_total 0\n"


async def test_endpoints_know_how_their_engine_hands_over_blocks_and_the_log_tells_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one, other = TellingEngine(NIXL), TellingEngine()
    caplog.set_level("INFO", "inferway.fleet")
    async with one.serving(), other.serving(), watched(one, other) as fleet:
        first, second = fleet.candidates("m").endpoints

    assert first.kv_transfer is not None
    assert (first.kv_transfer.connector, first.kv_transfer.role) == (KvConnector.NIXL, "both")
    assert second.kv_transfer is None
    said = [line for line in caplog.messages if "serves m" in line]
    assert said[0].endswith("; it hands over KV blocks by nixl: both")
    assert "hands over" not in said[1]


async def test_an_engine_that_comes_back_with_a_connector_is_known_to_have_one() -> None:
    one = TellingEngine()
    async with one.serving(), watched(one) as fleet:
        [before] = fleet.candidates("m").endpoints
        one.metrics = NIXL
        fleet.look_soon(fleet.engines[0])
        after = await until(fleet, lambda table: table.endpoints[0].kv_transfer is not None)

    assert before.kv_transfer is None
    assert after.endpoints[0] == before  # the same row, and what is learned of it


async def test_legs_that_nobody_can_have_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    one = TellingEngine()
    async with one.serving(), watched(one, kv_transfer=KvTransferSettings(legs="gateway")):
        pass

    said = [line for line in caplog.messages if "--prefill-legs" in line]
    assert len(said) == 1
    assert "give the connector by hand: --engine URL,kv_connector=nixl" in said[0]


async def test_adapters_are_shown_as_they_are_loaded() -> None:
    one = TellingEngine()
    async with one.serving(), watched(one) as fleet:
        before = list(fleet.candidates("m").adapters)
        one.metrics = (
            'vllm:lora_requests_info{max_lora="2",running_lora_adapters="a",'
            'waiting_lora_adapters=""} 1.7e+09\n'
        )
        after = await until(fleet, lambda table: table.adapters[0].most == 2)

    assert before == [Adapters()]
    assert list(after.adapters) == [Adapters(frozenset({"a"}), frozenset(), 2)]


@pytest.fixture(scope="module")
def smollm2() -> Iterator[ModelPrompts]:
    with closing(Renderer()) as renderer:
        asked = GetOrCreateTokenizerKeyRequest(str(prepare_smollm2()))
        yield ModelPrompts(renderer, renderer.get_or_create_tokenizer_key(asked))


BLOCKS = 'vllm:cache_config_info{block_size="16"} 1\n'


@pytest.mark.parametrize(
    ("metrics", "scoring", "reason"),
    [
        (BLOCKS, True, "kv-aware"),
        (BLOCKS, False, "load-only"),
        ("", True, "no-block-size"),
    ],
)
async def test_the_report_says_what_requests_are_counted_under(
    metrics: str, scoring: bool, reason: str, smollm2: ModelPrompts
) -> None:
    one = TellingEngine(metrics)

    async def known(_: ModelSource) -> PromptSource:
        return smollm2

    async with one.serving(), watched(one, prompts=known, scoring=scoring) as fleet:
        [model] = fleet.report()["models"].values()

    assert model["reason"] == reason
    assert ("why" in model) == (reason != "kv-aware")


async def test_an_engine_that_falls_silent_does_not_look_idle() -> None:
    idle, steady = TellingEngine(busy(0, 0)), TellingEngine(busy(8, 4))
    async with idle.serving(), steady.serving(), watched(idle, steady) as fleet:
        before = fleet.candidates("m").running.tolist()
        idle.hang = True
        after = await until(fleet, lambda table: bool(table.running[0] > 7))
        is_there = fleet.engines[0].healthy

    assert before == [0.0, 8.0]
    assert after.waiting[0] > 3
    assert is_there  # silence is no absence, not so soon


async def test_an_engine_that_answers_again_is_believed_at_once() -> None:
    idle, steady = TellingEngine(busy(0, 0)), TellingEngine(busy(8, 4))
    async with idle.serving(), steady.serving(), watched(idle, steady) as fleet:
        idle.hang = True
        await until(fleet, lambda table: bool(table.running[0] > 4))
        fleet.engines[0].looked = asyncio.get_running_loop().time()
        watch = fleet.watch
        assert isinstance(watch, EngineWatch)
        turn = watch.scraper.turns["e0"]
        assert turn.task is not None
        turn.task.cancel()  # as its timeout would, seconds later
        idle.hang = False
        after = await until(fleet, lambda table: bool(table.running[0] == 0))

    assert after.running.tolist() == [0.0, 8.0]
