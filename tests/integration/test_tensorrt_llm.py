"""An engine that answers as `trtllm-serve` does: it has no /kv_event_sources, and is polled."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from tests.fleet.servers import serving

from inferway.indexer import Indexer

SIZE = 32  # its default tokens_per_block
TOKENS = list(range(1000, 1000 + 3 * SIZE + 5))
MODELS = {"object": "list", "data": [{"id": "tiny", "object": "model", "owned_by": "nvidia"}]}


def stored(event_id: int, start: int, end: int, parent: int | None) -> dict[str, Any]:
    """As KVCacheEventSerializer writes it."""
    blocks = [
        {
            "type": "stored_block",
            "block_hash": 2**63 + number,
            "tokens": [
                {"type": "unique_token", "token_id": token, "token_extra_id": 0}
                for token in TOKENS[number * SIZE : (number + 1) * SIZE]
            ],
            "cache_level": 0,
            "priority": 35,
            "mm_keys": [],
        }
        for number in range(start, end)
    ]
    data = {"type": "stored", "parent_hash": parent, "blocks": blocks}
    return {"event_id": event_id, "data": data, "window_size": 4096}


async def test_its_events_are_scored() -> None:
    queue = [stored(0, 0, 2, None), stored(1, 2, 4, 2**63 + 1)]

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":
            return web.json_response(MODELS)
        if (request.method, request.path) == ("POST", "/kv_cache_events"):
            taken, queue[:] = queue[:], []
            return web.json_response(taken)
        return web.Response(status=200 if request.path == "/health" else 404)

    async with serving(answer) as url:
        engine = f"{url},name=trt,events={url}/kv_cache_events,block_size={SIZE}"
        async with Indexer([engine]) as indexer, asyncio.timeout(20):
            while (await indexer.score_tokens(TOKENS, "tiny")).engines["trt"].blocks < 3:
                await asyncio.sleep(0.01)
            scores = await indexer.score_tokens(TOKENS, "tiny")

    assert (scores.engines["trt"].blocks, scores.engines["trt"].state) == (3, "exact")
