"""What an engine is may change while the gateway runs, and differ from one engine to the next."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import Fleet, StartFleet, simulated, until
from tests.stored import tokenizer_json

from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest
from inferway.prompts.renderer import Renderer
from inferway_sim.config import SimulatorConfig
from inferway_sim.engine import SimulatedEngine
from inferway_sim.prepare import prepare_smollm2
from inferway_sim.rendered import RenderedModel

SHORT, LONG = "one two three", "word " * 1000
PHI = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def port_of(engine: SimulatedEngine) -> int:
    return int(engine.url.rpartition(":")[2])


async def seen_as(fleet: Fleet, healthy: bool) -> None:
    async def is_seen() -> bool:
        return fleet.gateway.fleet.engines[0].healthy is healthy

    await until(is_seen)


@asynccontextmanager
async def serving(config: SimulatorConfig, root: Path) -> AsyncIterator[SimulatedEngine]:
    """An engine that has read its files by itself."""
    renderer = Renderer(num_threads=1)
    key = renderer.get_or_create_tokenizer_key(GetOrCreateTokenizerKeyRequest(str(root)))
    model = RenderedModel(renderer, key, config.max_model_len)
    async with SimulatedEngine(config, model) as engine:
        yield engine
    renderer.close()


def make_phi(directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "tokenizer.json").write_text(tokenizer_json("phi-3"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    (directory / "chat_template.jinja").write_text(PHI)
    return directory


async def test_a_longer_context_after_a_restart_is_used(start_fleet: StartFleet) -> None:
    fleet = await start_fleet([simulated(max_model_len=512)])
    (engine,) = fleet.engines
    before = await fleet.chat(LONG)
    await engine.stop()
    await seen_as(fleet, healthy=False)
    await fleet.start_engine(simulated(max_model_len=4096, port=port_of(engine)))
    await seen_as(fleet, healthy=True)

    after = await fleet.chat(LONG)

    assert (before.status, after.status) == (400, 200)
    assert before.body["error"]["code"] == "context_length_exceeded"
    assert "This model's maximum context length is 512 tokens" in before.body["error"]["message"]


async def test_a_shorter_context_after_a_restart_is_told_by_the_gateway(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet([simulated(max_model_len=4096)])
    (engine,) = fleet.engines
    assert (await fleet.chat(LONG)).status == 200
    await engine.stop()
    await seen_as(fleet, healthy=False)
    await fleet.start_engine(simulated(max_model_len=512, port=port_of(engine)))
    await seen_as(fleet, healthy=True)

    refused = await fleet.chat(LONG)

    assert "maximum context length is 512 tokens" in refused.body["error"]["message"]


@pytest.mark.parametrize("lengths", [(512, 4096), (4096, 512)])
async def test_a_prompt_goes_where_it_fits(
    start_fleet: StartFleet, lengths: tuple[int, int]
) -> None:
    fleet = await start_fleet([simulated(max_model_len=length) for length in lengths])
    large = fleet.gateway.fleet.engines[lengths.index(4096)].name

    long = await asyncio.gather(*(fleet.chat(f"{n} {LONG}") for n in range(12)))
    short = await asyncio.gather(*(fleet.chat(f"{n} {SHORT}") for n in range(12)))
    nowhere = await fleet.chat(LONG * 5)

    assert {(answer.status, answer.engine) for answer in long} == {(200, large)}
    assert {answer.status for answer in short} == {200}
    assert len({answer.engine for answer in short}) == 2
    assert nowhere.status == 400
    assert "maximum context length is 4096 tokens" in nowhere.body["error"]["message"]


@pytest.mark.parametrize("fields", [{"max_tokens": 600}, {"truncate_prompt_tokens": 600}])
async def test_an_answer_or_a_cut_goes_where_it_fits(
    start_fleet: StartFleet, fields: dict[str, Any]
) -> None:
    fleet = await start_fleet([simulated(max_model_len=length) for length in (512, 4096)])
    large = fleet.gateway.fleet.engines[1].name

    answers = [await fleet.chat(f"{n} {SHORT}", **fields) for n in range(6)]

    assert {(answer.status, answer.engine) for answer in answers} == {(200, large)}


async def test_while_the_engine_where_it_fits_is_away_a_prompt_may_come_again(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet([simulated(max_model_len=length) for length in (4096, 512)])
    await fleet.engines[0].stop()
    await seen_as(fleet, healthy=False)

    answer = await fleet.chat(LONG)

    assert answer.status == 503
    assert "tokens get no requests now" in answer.body["error"]["message"]


@pytest.mark.parametrize("lengths", [(512, 4096), (4096, 512)])
@pytest.mark.parametrize("prompts", [[SHORT, LONG], [[5], [7] * 900]])
async def test_of_several_prompts_the_longest_decides_where_they_go(
    start_fleet: StartFleet, prompts: list[str | list[int]], lengths: tuple[int, int]
) -> None:
    fleet = await start_fleet([simulated(max_model_len=length) for length in lengths])
    large = fleet.gateway.fleet.engines[lengths.index(4096)].name
    body = {"model": "smollm2", "prompt": prompts, "max_tokens": 4}

    answers = [await fleet.post("/v1/completions", body) for _ in range(4)]

    assert {(answer.status, answer.engine) for answer in answers} == {(200, large)}


@pytest.mark.parametrize(
    ("fields", "base"),
    [
        ({"block_size": 32}, "smollm2"),
        ({"hash_seed": "7"}, "smollm2"),
        ({"served_model_names": ("base",), "lora_modules": {"smollm2": "/adapters/a"}}, "base"),
    ],
)
async def test_an_engine_that_is_back_otherwise_has_nothing_of_what_it_had(
    start_fleet: StartFleet, fields: dict[str, Any], base: str
) -> None:
    fleet = await start_fleet([simulated()])
    (engine,) = fleet.engines
    await fleet.chat(LONG)
    await engine.stop()
    await seen_as(fleet, healthy=False)
    await fleet.start_engine(simulated(port=port_of(engine), **fields))
    await seen_as(fleet, healthy=True)

    first = await fleet.chat(LONG)
    size = fields.get("block_size", 16)

    async def is_matched() -> bool:
        again = await fleet.chat(LONG)
        reusable = (int(again.body["usage"]["prompt_tokens"]) - 1) // size * size
        return bool(again.matched * size >= again.cached_tokens == reusable)

    assert (first.matched, first.cached_tokens) == (0, 0)
    await until(is_matched)
    other = await fleet.chat(LONG, model=base)
    assert (other.cached_tokens == 0) is (base != "smollm2")
    assert (other.matched == 0) is (base != "smollm2")


async def expect_exact(fleet: Fleet, text: str) -> None:
    """The engine agrees to our tokens, and reuses what is matched."""

    async def is_proven() -> bool:
        report = (await fleet.get("/ready")).body
        (probe,) = report["engines"][0]["probes"].values()
        return bool(report["models"]["smollm2"] == {"reason": "kv-aware"}) and probe == {
            "state": "agrees",
            "why": "",
        }

    async def is_matched() -> bool:
        again = await fleet.chat(text)
        assert again.status == 200, again.body
        return again.matched > 10 and again.expected_tokens == again.cached_tokens

    await until(is_proven, 20)
    await fleet.chat(text)
    await until(is_matched)


@pytest.mark.slow
async def test_another_model_under_the_same_name_is_learned_anew(
    start_fleet: StartFleet, tmp_path: Path
) -> None:
    fleet = await start_fleet(1)
    (engine,) = fleet.engines
    await expect_exact(fleet, "word " * 400)
    await engine.stop()
    await seen_as(fleet, healthy=False)
    other = make_phi(tmp_path / "phi")
    config = simulated(model=str(other), port=port_of(engine))
    async with serving(config, other):
        await seen_as(fleet, healthy=True)

        await expect_exact(fleet, "other " * 400)


@pytest.mark.slow
async def test_other_files_at_the_same_place_are_read_when_the_engine_is_back(
    start_fleet: StartFleet, tmp_path: Path
) -> None:
    root = tmp_path / "model"
    shutil.copytree(prepare_smollm2(), root)
    config = simulated(model=str(root))
    fleet = await start_fleet([config])
    (engine,) = fleet.engines
    await expect_exact(fleet, "word " * 400)
    await engine.stop()
    await seen_as(fleet, healthy=False)
    make_phi(root)
    async with serving(simulated(model=str(root), port=port_of(engine)), root):
        await seen_as(fleet, healthy=True)

        await expect_exact(fleet, "other " * 400)
