"""A client that sends megabytes must not hold up the others."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import Fleet, StartFleet, simulated
from tests.stored import tokenizer_json

from inferway.config import ModelSettings, ProbeSettings
from inferway_sim.config import LatencyModel

TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


@pytest.fixture
def falcon(tmp_path: Path) -> Path:
    """A model's directory with a tokenizer that the fast encoder refuses."""
    (tmp_path / "tokenizer.json").write_text(tokenizer_json("falcon"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return tmp_path


# As much as fits the characters of the longest prompt, and not its tokens: what it takes to find
# that out is done, and no engine has to answer.
CONTEXT = {"max_model_len": 32_768, "kv_cache_size": 2_100}

LINE = "The quick brown fox jumps over the lazy dog.\n"

BODIES: dict[str, dict[str, Any]] = {
    "one message": {"messages": [{"role": "user", "content": LINE * 45_000}]},
    "20,000 messages": {
        "messages": [
            {"role": "assistant" if i % 2 else "user", "content": f"{i} {LINE}"}
            for i in range(20_000)
        ]
    },
    "a prompt": {"prompt": LINE * 45_000},
    "token ids": {"prompt": list(range(40_000)) * 12},
}


async def send(fleet: Fleet, body: dict[str, Any]) -> Any:
    path = "chat/completions" if "messages" in body else "completions"
    raw = json.dumps({"model": "smollm2", **body}).encode()
    async with fleet.http.post(f"{fleet.url}/v1/{path}", data=io.BytesIO(raw)) as response:
        return await response.json()


async def others_answered(fleet: Fleet, body: dict[str, Any]) -> int:
    """How many others were answered while `body` was looked at, which is too long."""
    large = asyncio.create_task(send(fleet, body))
    answered = 0
    while not large.done():
        assert (await fleet.get("/health")).status == 200
        answered += 1
    assert (await large)["error"]["code"] == "context_length_exceeded"
    return answered


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_two_megabytes_let_others_be_answered(
    start_fleet: StartFleet, body: dict[str, Any]
) -> None:
    fleet = await start_fleet([simulated(**CONTEXT)])

    assert await others_answered(fleet, body) > 3
    assert await fleet.metric("inferway_render_off_loop_total") >= 1


@pytest.mark.slow
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_two_megabytes_with_the_fallback_tokenizer_let_others_be_answered(
    start_fleet: StartFleet, falcon: Path, body: dict[str, Any]
) -> None:
    fleet = await start_fleet(
        [simulated(**CONTEXT)],
        models={"smollm2": ModelSettings(tokenizer=str(falcon))},
        probe=ProbeSettings(join=False, one_in=0),  # the engine itself has another one
    )

    assert await others_answered(fleet, body) > 3
    assert await fleet.metric("inferway_render_off_loop_total") >= 1


async def test_a_stream_goes_on_while_a_large_chat_is_rendered(start_fleet: StartFleet) -> None:
    slow = simulated(**CONTEXT, latency=LatencyModel(inter_token_latency=0.002))
    fleet = await start_fleet([slow])
    ordinary = {"model": "smollm2", "prompt": "Hi", "max_tokens": 4_000, "stream": True}
    async with fleet.http.post(f"{fleet.url}/v1/completions", json=ordinary) as stream:
        await anext(aiter(stream.content))
        large = asyncio.create_task(send(fleet, BODIES["20,000 messages"]))
        pieces = 0
        async for _ in stream.content:  # on a slow machine to its end
            if large.done():
                break
            pieces += 1
        await large

    assert pieces > 3
    assert await fleet.metric("inferway_helper_jobs_total", work="large-chats") >= 1


async def test_a_prompt_whose_characters_cannot_fit_is_not_even_encoded(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(1)

    answer = await send(fleet, BODIES["one message"])

    assert "your prompt contains 2025148 characters (more than" in answer["error"]["message"]
