"""POST /query over HTTP, in front of simulated engines."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.integration.conftest import Fleet, StartFleet, answering, simulated, until

from inferway.app import Gateway
from inferway.config import EngineSettings, LimitSettings, ServeSettings
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.index.protocol import CPU, STORAGE, Remove, Store
from inferway.openai_api.token_ids import token_ids

BLOCK = 16
TOKENS = list(range(1000, 1000 + 5 * BLOCK + 3))


async def complete(fleet: Fleet, tokens: list[int] = TOKENS, **fields: Any) -> str:
    """The engine that has answered."""
    body = {"model": "smollm2", "prompt": tokens, "max_tokens": 1, **fields}
    answer = await fleet.post("/v1/completions", body)
    assert answer.status == 200
    return answer.engine


async def query(fleet: Fleet, **fields: Any) -> dict[str, Any]:
    body = {"model": "smollm2", "token_ids": TOKENS, **fields}
    answer = await fleet.post("/query", body)
    assert answer.status == 200, answer.body
    return answer.body


async def matched(fleet: Fleet, engine: str, tokens: int, **fields: Any) -> None:
    """Until so many tokens are known to be held."""

    async def known() -> bool:
        found = await query(fleet, **fields)
        return bool(found[engine]["longest_matched"] == tokens)

    await until(known)


async def test_each_engine_is_answered_with_the_tokens_it_holds(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2)
    engine = await complete(fleet)
    other = next(e.url[7:] for e in fleet.engines if e.url[7:] != engine)
    await matched(fleet, engine, 5 * BLOCK)

    found = await query(fleet)

    assert found.keys() == {engine, other, "default", "instances"}
    assert found["instances"] == found["default"] == {e: found[e] for e in (engine, other)}
    assert found[engine]["gpu"] == found[engine]["DISK"] == 5 * BLOCK
    assert found[engine]["rank_matches"] == {"0": dict.fromkeys(("gpu", "cpu", "disk"), 80)}
    assert found[other]["longest_matched"] == 0


async def test_tiers_are_cumulative_and_a_prefix_is_unbroken(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)
    engine = fleet.engines[0].url[7:]
    keys = BlockHasher(BLOCK).keys(token_ids(TOKENS))
    fleet.gateway.index.apply(
        [
            Store(0, keys[:2]),
            Store(0, keys[2:3], parent=keys[1], tier=CPU),
            Store(0, keys[3:4], parent=keys[2], tier=STORAGE),
            Store(0, keys[4:5], parent=keys[3]),
        ]
    )

    row = (await query(fleet))[engine]

    assert (row["gpu"], row["cpu"], row["disk"], row["longest_matched"]) == (32, 48, 80, 80)
    fleet.gateway.index.apply([Remove(0, keys[:1])])
    assert (await query(fleet))[engine]["longest_matched"] == 0


async def test_salts_and_adapters_are_asked_for_by_name(start_fleet: StartFleet) -> None:
    fleet = await start_fleet([simulated(lora_modules={"tuned": "/adapters/tuned"})])
    engine = await complete(fleet, cache_salt="tenant")
    await complete(fleet, TOKENS[: 2 * BLOCK], model="tuned")

    await matched(fleet, engine, 5 * BLOCK, cache_salt="tenant")
    await matched(fleet, engine, 2 * BLOCK, lora_name="tuned")
    await matched(fleet, engine, 0)


async def two_ranks(request: web.Request) -> web.Response:
    """An engine with two data-parallel ranks that says what it is, and no more."""
    match request.path:
        case "/v1/models":
            return web.json_response({"data": [{"id": "m", "root": "/nowhere"}]})
        case "/kv_event_sources":
            sources = {str(rank): {"endpoint": f"tcp://*:{9 + rank}"} for rank in range(2)}
            return web.json_response(sources)
        case "/metrics":
            return web.Response(text='vllm:cache_config_info{block_size="16"} 1.0\n')
    raise web.HTTPNotFound


async def test_ranks_are_told_apart_and_may_be_chosen() -> None:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(answering(two_ranks))
        settings = ServeSettings(
            engines=[EngineSettings(url=url, name="e")], port=0, remote_render_ms=0
        )
        gateway = Gateway(settings)
        await gateway.start()
        stack.push_async_callback(gateway.close)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        keys = BlockHasher(BLOCK).keys(token_ids(TOKENS))
        gateway.index.apply([Store(0, keys[:1]), Store(1, keys[:3])])

        async def ask(**fields: str) -> Any:
            body = {"model": "m", "token_ids": TOKENS, **fields}
            async with http.post(f"http://127.0.0.1:{gateway.port}/query", json=body) as answer:
                return (await answer.json())["instances"]

        both = (await ask())["e"]
        assert (both["longest_matched"], both["dp"]) == (48, {"0": 16, "1": 48})
        assert (await ask(instance_id="e"))["e"] == both
        assert (await ask(instance_id="e/0"))["e"]["dp"] == {"0": 16}
        scores = await gateway.indexer.score_tokens(TOKENS, "m", engines=["e/1"])
        assert [(score.name, score.tokens) for score in scores.engines.values()] == [("e/1", 48)]


async def test_engines_and_block_sizes_may_be_chosen(start_fleet: StartFleet) -> None:
    fleet = await start_fleet([simulated(block_size=16), simulated(block_size=64)])
    small, large = (engine.url[7:] for engine in fleet.engines)

    assert (await query(fleet, instance_id=small))["instances"].keys() == {small}
    assert (await query(fleet, block_size=64))["instances"].keys() == {large}


@pytest.mark.parametrize(
    ("fields", "status", "param", "message"),
    [
        ({"model": "gpt"}, 404, "model", "model: no engine serves 'gpt'; known: alias, smollm2"),
        ({"lora_name": "x"}, 404, "lora_name", "lora_name: no engine serves 'x'"),
        ({"token_ids": [1, -5]}, 400, "token_ids[1]", "token_ids[1]: expected an integer from 0"),
        ({"token_ids": [1, 2**32]}, 400, "token_ids[1]", "token_ids[1]: expected an integer"),
        ({"token_ids": [1.5]}, 400, "token_ids[0]", "token_ids[0]: expected an integer from 0"),
        ({"token_ids": [1] * 8193}, 400, "token_ids", "token_ids: 8193 are more than the model's"),
        ({"instance_id": "e"}, 400, "instance_id", "instance_id: no engine is called 'e'; known"),
        ({"block_size": 7}, 400, "block_size", "block_size: no engine of the model has 7"),
    ],
)
async def test_what_cannot_be_answered_is_said_by_its_field(
    start_fleet: StartFleet, fields: dict[str, Any], status: int, param: str, message: str
) -> None:
    fleet = await start_fleet(1)

    answer = await fleet.post("/query", {"model": "smollm2", "token_ids": TOKENS, **fields})

    error = answer.body["error"]
    assert (answer.status, error["param"]) == (status, param)
    assert error["message"].startswith(message)
    assert error["type"] == "invalid_request_error"


async def test_only_post_is_answered_and_bodies_have_their_limit(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1, limits=LimitSettings(body_bytes=1000))

    refused = await fleet.get("/query")
    too_large = await fleet.post("/query", b" " * 1001)

    assert (refused.status, refused.headers["Allow"]) == (405, "POST")
    assert (too_large.status, too_large.body["error"]["code"]) == (413, "body_too_large")


async def test_a_large_query_is_parsed_beside_the_event_loop(start_fleet: StartFleet) -> None:
    fleet = await start_fleet([simulated(max_model_len=131_072, kv_cache_size=8_200)])
    tokens = [100_000 + i % 900_000 for i in range(100_000)]

    found = await query(fleet, token_ids=tokens)

    assert found[fleet.engines[0].url[7:]]["longest_matched"] == 0
