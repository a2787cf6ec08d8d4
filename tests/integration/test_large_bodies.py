"""A client that sends megabytes must not hold up the others."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import Fleet, StartFleet

FALCON = Path(__file__).parents[3] / "shared/data/tokenizers/falcon.tokenizer.json.gz"
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


@pytest.fixture
def falcon(tmp_path: Path) -> Path:
    """A model's directory with a tokenizer that the fast encoder refuses."""
    (tmp_path / "tokenizer.json").write_bytes(gzip.decompress(FALCON.read_bytes()))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return tmp_path


async def send(fleet: Fleet, body: bytes) -> Any:
    url = f"{fleet.url}/v1/chat/completions"
    async with fleet.http.post(url, data=io.BytesIO(body)) as response:
        return await response.json()


async def test_two_megabytes_with_the_fallback_tokenizer_let_others_be_answered(
    start_fleet: StartFleet, falcon: Path
) -> None:
    fleet = await start_fleet(1, tokenizers={"smollm2": str(falcon)})
    words = "The quick brown fox jumps over the lazy dog.\n" * 45_000
    body = {"model": "smollm2", "messages": [{"role": "user", "content": words}]}
    large = asyncio.create_task(send(fleet, json.dumps(body).encode()))

    answered = 0
    while not large.done():
        assert (await fleet.get("/health")).status == 200
        answered += 1

    assert answered > 10
    assert (await large)["error"]["code"] == "context_length_exceeded"
    assert await fleet.metric("inferway_render_off_loop_total") >= 1
