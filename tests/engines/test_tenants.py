"""Tenants' salts and the paths that are forwarded by load, with real engines."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import pytest
from tests.engines.engine import BLOCK_SIZE, MODEL, RealEngine

from inferway.app import Gateway
from inferway.config import EngineSettings, ServeSettings

TENANT = "x-gateway-inference-fairness-id"
WORDS = "the rain in spain falls mainly on the plain " * 12


class Front:
    """A gateway that salts, in front of one engine, and a client of it."""

    def __init__(self, gateway: Gateway, http: aiohttp.ClientSession) -> None:
        self.gateway = gateway
        self.http = http

    async def ask(
        self, path: str, body: dict[str, Any], tenant: str = ""
    ) -> aiohttp.ClientResponse:
        url = f"http://127.0.0.1:{self.gateway.port}{path}"
        headers = {TENANT: tenant} if tenant else {}
        answer = await self.http.post(url, json={"model": MODEL, **body}, headers=headers)
        await answer.read()
        return answer

    async def chat(self, text: str, tenant: str) -> tuple[int, int]:
        """Blocks of the prompt: (matched by us, reused by the engine)."""
        messages = [{"role": "user", "content": text}]
        body = {"messages": messages, "max_tokens": 1}
        answer = await self.ask("/v1/chat/completions", body, tenant)
        assert answer.status == 200, await answer.text()
        assert answer.headers["x-inferway-edited"] in ("cache_salt", "cache_salt, tokens")
        details = (await answer.json())["usage"]["prompt_tokens_details"]
        matched = int(answer.headers["x-inferway-matched-blocks"])
        return matched, details["cached_tokens"] // BLOCK_SIZE


@pytest.fixture
async def front(
    engines: Sequence[RealEngine], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Front]:
    monkeypatch.setenv("SALT", "a secret of this test")
    settings = ServeSettings(
        engines=[EngineSettings(url=engines[0].url)],
        port=0,
        access_log=None,
        salt_per_tenant_env="SALT",
    )
    gateway = Gateway(settings)
    await gateway.start()
    try:
        async with aiohttp.ClientSession() as http:
            yield Front(gateway, http)
    finally:
        await gateway.close()


async def test_a_tenant_reuses_its_own_blocks_and_nobody_else_s(front: Front) -> None:
    text = f"{uuid.uuid4()} {WORDS}"

    assert await front.chat(text, "acme") == (0, 0)
    assert await front.chat(text, "rival") == (0, 0)
    async with asyncio.timeout(30):  # the engine's events come when they come
        while (again := await front.chat(text, "acme"))[0] == 0:
            await asyncio.sleep(0.1)

    matched, reused = again
    assert matched == reused > 3


async def test_messages_are_salted_too(front: Front) -> None:
    text = f"{uuid.uuid4()} {WORDS}"
    body = {"max_tokens": 1, "messages": [{"role": "user", "content": text}]}
    reused = []
    for tenant in ("acme", "rival", "acme"):
        answer = await front.ask("/v1/messages", body, tenant)
        assert answer.status == 200, await answer.text()
        assert answer.headers["x-inferway-edited"] == "cache_salt"
        reused.append((await answer.json())["usage"].get("cache_read_input_tokens") or 0)

    assert reused[:2] == [0, 0]
    assert reused[2] > 3 * BLOCK_SIZE


async def test_other_paths_are_answered_by_the_engine(front: Front) -> None:
    tokens = await front.ask("/tokenize", {"prompt": "the rain"})
    text = await front.ask("/detokenize", {"tokens": (await tokens.json())["tokens"]})
    count = await front.ask(
        "/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hi"}]}
    )

    assert (await text.json())["prompt"] == "the rain"
    assert (await count.json())["input_tokens"] > 0
    for answer in (tokens, text, count):
        assert answer.headers["x-inferway-engine"]
        assert "x-inferway-edited" not in answer.headers


@pytest.mark.parametrize("path", ["/sleep", "/collective_rpc", "/pause", "/reset_prefix_cache"])
async def test_what_engines_leave_unguarded_stays_theirs(front: Front, path: str) -> None:
    answer = await front.ask(path, {})

    assert answer.status == 404
    assert (await answer.json())["error"]["code"] == "path_not_found"


async def test_the_engine_would_take_where_blocks_come_from(front: Front) -> None:
    """It is the gateway that refuses it."""
    body = {"prompt": "a", "max_tokens": 1, "kv_transfer_params": {"do_remote_prefill": True}}
    answer = await front.ask("/v1/completions", body)

    assert answer.status == 400
    assert (await answer.json())["error"]["param"] == "kv_transfer_params"
