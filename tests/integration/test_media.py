"""Chats with pictures, through the whole gateway."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.integration.conftest import StartFleet, simulated, until
from tests.integration.recorders import Front, Recorder, in_front_of
from tests.prompts.media.pictures import (
    data_url,
    picture,
    png,
    png_header,
    text,
    vision_model,
)

from inferway.config import MediaSettings, ModelRewrite, RewriteTarget
from inferway.routing.limits.callers import hash_of, new_key
from inferway_sim.config import LatencyModel
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


Q = text("Look: " * 30)
NAME = digest(RED)

ODD = {
    "no-picture": chat(Q, picture(data_url(b"none"))),
    "empty": chat(Q, picture("data:image/png;base64,")),
    "no-comma": chat(Q, picture("data:")),
    "header-of-a-bomb": chat(Q, picture(png_header(100_000, 100_000))),
    "header-of-no-size": chat(Q, picture(png_header(0, 5))),
    "header-alone": chat(Q, picture(png_header(200, 150))),
    "cut-within-four-letters": chat(Q, picture(RED[:-7])),
    "cut": chat(Q, picture(RED[:-40])),
    "line-break": chat(Q, picture(f"{RED[:60]}\n{RED[60:]}")),
    "upper-case": chat(Q, picture(RED.replace("data:image/png", "DATA:IMAGE/PNG"))),
    "odd-type": chat(Q, picture(RED.replace("image/png", 'a"b,c;x=y'))),
    "uuid-of-900-kb": chat(Q, picture(RED, uuid="x" * 900_000)),
    "uuid-object": chat(Q, picture(RED, uuid={"a": [1]})),
    "type-object": chat(Q, {"type": {}, "image_url": {"url": RED}}),
    "no-members": chat(Q, {}, picture(RED)),
    "nested": chat(Q, {"type": "text", "text": "a", "content": [picture(RED)]}),
    "1000-pictures": chat(Q, *[picture(RED)] * 1000),
    "500-messages": {
        "model": "m",
        "messages": [{"role": "user", "content": [Q, picture(RED)]}] * 500,
    },
    "several-answers": chat(Q, picture(RED), n=3),
    "echo": chat(Q, picture(RED), echo=True, add_generation_prompt=False),
    "cut-prompt": chat(Q, picture(RED), truncate_prompt_tokens=20),
}


async def test_engine_says_what_is_wrong_with_a_picture(engine: Vision) -> None:
    async with in_front_of(engine) as front:
        await ready(front)
        for name, body in ODD.items():
            told = await asked(front, body)

            assert told.get("x-inferway-reason") != "our-fault", name
            assert without_uuids(json.loads(engine.seen[-1].body)) == without_uuids(body), name


def without_uuids(value: Any) -> Any:
    """A body, but for the names of its media."""
    if isinstance(value, dict):
        return {name: without_uuids(each) for name, each in value.items() if name != "uuid"}
    return [without_uuids(each) for each in value] if isinstance(value, list) else value


async def test_pictures_of_messages_and_responses_are_known_by_no_name(engine: Vision) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": RED.partition(",")[2]}
    message = {"role": "user", "content": [Q, {"type": "image", "source": source}]}
    parts = [{"type": "input_text", "text": Q["text"]}, {"type": "input_image", "image_url": RED}]
    responses = {"model": "m", "input": [{"role": "user", "content": parts}]}
    messages = {"model": "m", "max_tokens": 1, "messages": [message]}
    async with in_front_of(engine) as front:
        await ready(front)
        for path, body in (("/v1/messages", messages), ("/v1/responses", responses)):
            told = await asked(front, body, path)

            assert json.loads(engine.seen[-1].body) == body
            assert "x-inferway-edited" not in told
            assert int(told["x-inferway-prompt-blocks"]) == 4  # up to the picture


async def test_tenants_have_names_of_their_own_and_cannot_take_anothers(
    engine: Vision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SALT", "a secret")
    keys = {name: new_key() for name in ("a", "b")}
    listed = [f"- {{name: {name}, hash: '{hash_of(key)}'}}\n" for name, key in keys.items()]
    (tmp_path / "keys.yaml").write_text("keys:\n" + "".join(listed))
    settings = {"api_keys": str(tmp_path / "keys.yaml"), "salt_per_tenant_env": "SALT"}
    names: dict[str, list[str]] = {}
    async with in_front_of(engine, **settings) as front:
        await ready(front)
        for name, key in keys.items():
            body = chat(Q, picture(RED), picture("https://a/", uuid=NAME), picture(RED, uuid=NAME))
            told = await asked(front, body, authorization=f"Bearer {key}")
            assert told["x-inferway-edited"] == "uuid, cache_salt"
            names[name] = [part["uuid"] for part in sent(engine)[1:]]

    for own in names.values():
        assert own[0] == own[2] != own[1]
    assert not {*names["a"], NAME} & {*names["b"]}


async def test_model_is_rewritten_and_pictures_are_named_in_one_body(engine: Vision) -> None:
    rule = ModelRewrite(models=["best"], targets=[RewriteTarget(model="m")])
    async with in_front_of(engine, model_rewrites=[rule]) as front:
        await ready(front)
        told = await asked(front, {**chat(Q, picture(RED)), "model": "best"})

    assert told["x-inferway-edited"] == "model, uuid"
    assert json.loads(engine.seen[-1].body) == chat(Q, picture(RED, uuid=NAME))


async def test_ids_are_not_sent_in_place_of_pictures(start_fleet: StartFleet, folder: Path) -> None:
    config = simulated(model=str(folder), served_model_names=("m",))
    fleet = await start_fleet([config], tokens_once="on")
    for part, edits in ((text("it"), "tokens"), (picture(RED), "uuid")):
        answer = await fleet.post(CHAT, chat(Q, part, max_tokens=1))

        assert answer.headers["x-inferway-edited"] == edits


async def test_stream_with_a_picture_is_not_gone_on_with(
    start_fleet: StartFleet, folder: Path
) -> None:
    slow = LatencyModel(inter_token_latency=0.01)
    config = simulated(mode="recite", latency=slow, model=str(folder), served_model_names=("m",))
    fleet = await start_fleet([config] * 2)
    lines = []
    body = chat(Q, picture(RED), stream=True, max_tokens=600)
    async with fleet.http.post(fleet.url + CHAT, json=body) as answer:
        async for line in answer.content:
            lines.append(line)
            if len(lines) == 9:
                [busy] = [e for e in fleet.engines if answer.headers["x-inferway-engine"] in e.url]
                await busy.stop()

    assert not [line for line in lines if b"x-inferway-continued" in line]
    assert lines[-1] != b"data: [DONE]\n"
    assert await fleet.metric("inferway_continued_streams_total", outcome="messages") == 1
