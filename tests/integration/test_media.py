"""Chats with pictures, through the whole gateway."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.integration.conftest import StartFleet, simulated, until
from tests.integration.recorders import Front, Recorder, in_front_of
from tests.prompts.media.pictures import data_url, picture, png, text, vision_model

from inferway.config import MediaSettings, ModelSettings
from inferway.routing.limits.callers import hash_of
from inferway_sim.config import LatencyModel
from inferway_sim.engine import SimulatedEngine
from inferway_sim.prepare import prepare_smollm2

CHAT = "/v1/chat/completions"
RED = png(200, 150)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vision_model(prepare_smollm2(), tmp_path_factory.mktemp("vision") / "model")


def digest(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()


def chat(*parts: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": list(parts)}], **fields}


class Vision(Recorder):
    """Serves the model `m`, of a folder, in blocks of 16 tokens."""

    root: Path

    async def handle(self, request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "m", "root": str(self.root)}]})
        if request.path.startswith("/metrics"):
            return web.Response(text='vllm:cache_config_info{block_size="16"} 1.0\n')
        return await super().handle(request)


@pytest.fixture
def engine(folder: Path) -> Vision:
    made = Vision()
    made.root = folder
    return made


async def ready(front: Front) -> None:
    """Waits until prompts of the model are known."""

    async def is_ready() -> bool:
        status, _, _ = await front.ask("/ready", method="GET")
        return status == 200

    await until(is_ready)


async def asked(front: Front, body: object, path: str = CHAT, **headers: str) -> dict[str, str]:
    """Return the headers of an answer that is 200."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, told, answer = await front.ask(path, data, **headers)
    assert status == 200, answer
    return told


def sent(engine: Vision) -> list[dict[str, Any]]:
    """The parts of the first message of the last request."""
    parts: list[dict[str, Any]] = json.loads(engine.seen[-1].body)["messages"][0]["content"]
    return parts


async def test_engine_gets_the_picture_that_the_gateway_has_read(
    engine: Vision, tmp_path: Path
) -> None:
    data = base64.b64decode(RED.partition(",")[2])
    (tmp_path / "red.png").write_bytes(data)
    url = f"file://{tmp_path}/red.png"
    async with in_front_of(engine, media=MediaSettings(local_path=str(tmp_path))) as front:
        await ready(front)
        body = chat(text("Look: " * 30), picture(url), picture("file:///etc/passwd"))
        told = await asked(front, body)
        page = (await front.ask("/metrics", method="GET"))[2].decode()

    read = data_url(data, "application/octet-stream")
    assert sent(engine)[1] == picture(read, uuid=digest(read))
    assert sent(engine)[2] == picture("file:///etc/passwd")
    assert told["x-inferway-edited"] == "uuid, media"
    # 30 times "Look: ", its frame and 35 tokens of the picture, but not the second one
    assert int(told["x-inferway-prompt-blocks"]) == (1 + 2 + 60 + 1 + 35 + 2) // 16
    assert 'inferway_media_fetches_total{outcome="fetched"} 1.0' in page
    assert 'inferway_media_fetches_total{outcome="not-allowed"} 1.0' in page


@pytest.mark.parametrize("url", ["https://example.org/cat.png?signature=1", "file:///etc/passwd"])
async def test_nothing_is_fetched_unless_the_operator_allows_it(engine: Vision, url: str) -> None:
    body = json.dumps(chat(text("Look: " * 30), picture(url, uuid="mine"))).encode()
    async with in_front_of(engine) as front:
        await ready(front)
        told = await asked(front, body)

    assert engine.seen[-1].body == body
    assert "x-inferway-edited" not in told
    assert int(told["x-inferway-prompt-blocks"]) > 0
