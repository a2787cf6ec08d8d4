"""A whole engine whose model has several KV cache groups and a drafter."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import aiohttp
import pytest
from tests.sim.doubles import all_events
from tests.sim.test_engine import complete, engine
from tests.sim.test_server import CHAT, COMPLETIONS, cached_tokens, chat, posting, serving

from inferway.errors import ConfigError
from inferway_sim.config import TransferConfig
from inferway_sim.drafting import Drafter
from inferway_sim.engine import SimulatedEngine
from inferway_sim.kv_groups.spec import KvGroups, SpeculativeDecoding, read_groups

HYBRID = KvGroups(
    read_groups("full,window:8,mamba:align", 4),
    speculation=SpeculativeDecoding("mtp", 2, acceptance=0.75),
    max_num_batched_tokens=16,
)


def told_by(events: list[dict[str, Any]]) -> set[int]:
    """The blocks that are in any group, as a reader of the events counts their copies."""
    held: dict[tuple[int, int], int] = {}
    for event in events:
        change = 1 if event["type"] == "BlockStored" else -1
        for block_hash in event["block_hashes"]:
            key = event["group_idx"], block_hash
            held[key] = held.get(key, 0) + change
    return {block_hash for (_, block_hash), copies in held.items() if copies}


def test_published_events_add_up_to_the_cache_under_pressure() -> None:
    async def scenario() -> tuple[set[int], set[int], int]:
        rng = random.Random(3)
        small = engine(kv_cache_size=80, max_model_len=120, max_num_seqs=4, kv_groups=HYBRID)
        async with small:
            prompts = ["".join(rng.choices("ab", k=3)) * rng.randint(1, 20) for _ in range(60)]
            await asyncio.gather(*[complete(small, prompt, 20) for prompt in prompts])
            events = await all_events(small)
            removed = sum(event["type"] == "BlockRemoved" for event in events)
            return told_by(events), small.cached_blocks(), removed

    told, held, num_removed = asyncio.run(scenario())

    assert told == held
    assert num_removed > 50


def test_an_answer_reports_what_all_groups_had_of_the_prompt() -> None:
    groups = KvGroups(read_groups("full,mamba:align", 16))
    body = {"model": "m", "prompt": "x" * 45, "max_tokens": 1}
    branch = body | {"prompt": "x" * 40 + "y" * 10}

    answers = posting(*[(COMPLETIONS, each) for each in (body, body, branch)], kv_groups=groups)

    # Full attention has 32 tokens of the branch, and there is a state after 32.
    assert [cached_tokens(answer) for _, answer in answers] == [0, 32, 32]


def test_drafts_change_no_answer() -> None:
    drafted = KvGroups(read_groups("full", 16), speculation=SpeculativeDecoding("eagle", 3))
    request = (CHAT, chat("Good morning, everyone"))

    [(_, with_drafts)] = posting(request, kv_groups=drafted)
    [(_, without)] = posting(request)

    assert with_drafts["choices"] == without["choices"]
    assert with_drafts["usage"] == without["usage"]


def test_a_drafter_accepts_the_configured_share_and_the_first_tokens() -> None:
    drafter = Drafter(SpeculativeDecoding("mtp", 2, acceptance=0.75))

    assert [drafter.accept(most=9) for _ in range(4)] == [1, 2, 1, 2]
    assert (drafter.num_drafts, drafter.num_accepted) == (4, 6)
    assert drafter.accepted_by_position == [4, 2]


def test_metrics_and_configuration_tell_of_groups_and_drafts_as_vllm_does() -> None:
    async def scenario(
        _engine: SimulatedEngine, client: aiohttp.ClientSession
    ) -> tuple[str, dict[str, Any], dict[str, Any]]:
        body = {"model": "m", "prompt": "abc", "max_tokens": 8, "ignore_eos": True}
        await client.post(COMPLETIONS, json=body)
        async with client.get("/metrics") as answer:
            metrics = await answer.text()
        async with client.get("/server_info?config_format=json") as answer:
            info = await answer.json()
        async with client.get("/version") as answer:
            return metrics, info["vllm_config"], await answer.json()

    groups = KvGroups(
        read_groups("full:8,window:8:4", 4),
        speculation=SpeculativeDecoding("mtp", 2, 1, 0.75),
        version="0.33",
    )
    metrics, config, version = serving(scenario, kv_groups=groups, max_model_len=512)

    [cache] = [line for line in metrics.splitlines() if line.startswith("vllm:cache_config_info{")]
    for label in ('block_size="4"', 'mamba_cache_mode="none"', 'prefix_match_unit="None"'):
        assert label in cache
    for name, value in (("drafts", 3.0), ("draft_tokens", 6.0), ("accepted_tokens", 4.0)):
        assert f'vllm:spec_decode_num_{name}_total{{engine="0",model_name="m"}} {value}' in metrics
    assert 'per_pos_total{engine="0",model_name="m",position="0"}' in metrics
    assert config["cache_config"]["effective_attention_block_size"] == 8
    assert config["speculative_config"] == {"method": "mtp", "num_speculative_tokens": 2}
    assert version["version"].startswith("0.33.0+")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kv_transfer": TransferConfig()}, "kv-transfer: not simulated with --kv-groups"),
        ({"kv_cache_size": 60}, "max-model-len: 120 tokens take 60 blocks of these groups"),
    ],
)
def test_an_engine_that_groups_make_impossible_is_refused(
    fields: dict[str, Any], message: str
) -> None:
    groups = KvGroups(read_groups("full,full", 4))

    with pytest.raises(ConfigError, match=message):
        engine(kv_groups=groups, max_model_len=120, **fields)
