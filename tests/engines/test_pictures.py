"""A vision engine: what the gateway matches of chats with pictures is what the engine reuses."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.engines import client
from tests.engines.conftest import Say, ServingProgram
from tests.engines.engine import BLOCK_SIZE, MODEL, RealEngine, wait_until_ready
from tests.engines.tiny_vision import write_vision_model
from tests.prompts.media.pictures import png

TEXT = "The keeper of the tower counted every boat that passed by in winter. "
SMALLEST = 56  # pixels: smaller ones are all of the same tokens


class Vision(NamedTuple):
    engine: RealEngine
    url: str  # the gateway's

    def ask(self, *messages: dict[str, Any], **fields: Any) -> client.Answer:
        body = {"model": MODEL, "max_tokens": 2, "messages": messages, **fields}
        answer = client.post(f"{self.url}/v1/chat/completions", body)
        assert answer.status == 200, answer.raw
        return answer


@pytest.fixture(scope="module")
def vision(
    vllm: Path,
    torchvision: Path,
    new_log: Callable[[str], Path],
    say: Say,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Vision]:
    folder = write_vision_model("qwen2_vl", tmp_path_factory.mktemp("vision") / "model")
    engine = RealEngine(
        vllm,
        folder,
        new_log("engine-vision"),
        ("--load-format", "dummy", "--enable-scale-out"),
        {"PYTHONPATH": str(torchvision)},
        alone=True,
    )
    try:
        engine.start()
        wait_until_ready([engine], say)
        log = new_log("gateway-vision")
        with ServingProgram(["serve", "--engine", engine.url], log, "kv-aware") as gateway:
            yield Vision(engine, gateway.url)
    finally:
        engine.kill()


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def text(number: int = 1) -> dict[str, Any]:
    return {"type": "text", "text": TEXT * number}


def picture(url: str | None, **members: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": None if url is None else {"url": url}, **members}


def matched(answer: client.Answer) -> int:
    return int(answer.headers["x-inferway-matched-blocks"])


def reused(answer: client.Answer) -> int:
    cached: int = answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached // BLOCK_SIZE


def test_conversations_with_drawn_pictures_match_what_the_engine_reuses(vision: Vision) -> None:
    draw = random.Random(48)
    for _ in range(4):
        messages: list[dict[str, Any]] = []
        for turn in range(3):
            sizes = [(draw.randint(1, 400), draw.randint(SMALLEST, 400)) for _ in range(2)]
            pictures = [picture(png(*size)) for size in sizes]
            messages.append(user(text(draw.randint(1, 4)), *pictures, text(2)))
            answer = vision.ask(*messages)

            usage = answer.json["usage"]
            prompt_blocks = int(answer.headers["x-inferway-prompt-blocks"])
            assert prompt_blocks == usage["prompt_tokens"] // BLOCK_SIZE, (sizes, turn)
            assert matched(answer) == reused(answer), (sizes, turn)
            assert (turn == 0) or reused(answer) > 0
            messages.append({"role": "assistant", "content": "Yes."})


def test_another_picture_under_the_same_uuid_is_not_answered_from_the_first(vision: Vision) -> None:
    first = vision.ask(user(picture(png(200, 150, "red"), uuid="mine"), text(4)))
    same = vision.ask(user(picture(png(200, 150, "red"), uuid="mine"), text(4)))
    other = vision.ask(user(picture(png(200, 150, "blue"), uuid="mine"), text(4)))

    assert (reused(first), reused(other)) == (0, 0)
    assert reused(same) == matched(same) > 0


def test_a_picture_sent_by_its_uuid_alone_is_the_one_that_came_before(vision: Vision) -> None:
    whole = vision.ask(user(picture(png(300, 100, "green"), uuid="green"), text(4)))
    again = vision.ask(user(picture(None, uuid="green"), text(4)))

    assert reused(again) == matched(again) > 0
    assert again.json["usage"]["prompt_tokens"] == whole.json["usage"]["prompt_tokens"]


def test_pictures_of_requests_with_different_salts_share_nothing(vision: Vision) -> None:
    url = png(120, 250, "white")
    vision.ask(user(picture(url), text(4)), cache_salt="a")

    assert reused(vision.ask(user(picture(url), text(4)), cache_salt="b")) == 0
    again = vision.ask(user(picture(url), text(4)), cache_salt="a")
    assert reused(again) == matched(again) > 0


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png;base64,AAAA",
        "data:image/png;base64,%%%%",
        "data:image/png,plain",
        "data:text/plain;base64,aGVsbG8=",
    ],
)
def test_bad_pictures_get_the_engines_own_answer(vision: Vision, url: str) -> None:
    body = {"model": MODEL, "max_tokens": 2, "messages": [user(text(), picture(url))]}
    answers = [
        client.post(f"{base}/v1/chat/completions", body) for base in (vision.engine.url, vision.url)
    ]

    assert answers[0].status == answers[1].status >= 400
