"""Engines that render teach a rule for pictures; those that do not are asked again later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest

from inferway.config import EngineSettings, ModelSettings
from inferway.fleet.engine import Engine
from inferway.fleet.media_learning import MediaLearning
from inferway.model import Headers, TokenIds
from inferway.openai_api.requests import ChatRequest
from inferway.prompts.media.learned import SEVERAL, LearnedRule
from inferway.prompts.media.rule import Size
from inferway.prompts.served import ModelSource

TEXT, IMAGE, PAD = 1, 7, 8
SIZE = Size(40, 30)


def pictures(messages: list[dict[str, Any]]) -> int:
    return sum(part["type"] == "image_url" for part in messages[0]["content"])


@dataclass
class Media:
    learned: LearnedRule = field(default_factory=LearnedRule)


@dataclass
class Local:
    """A model whose chats are a text, and a placeholder for each picture."""

    media: Media = field(default_factory=Media)

    async def before_expansion(self, body: ChatRequest) -> TokenIds:
        return np.array([TEXT, *[IMAGE] * pictures(body.messages), TEXT], np.uint32)


@dataclass
class Client:
    """Engines that put `pads` tokens in place of each picture, or answer with a status."""

    pads: int = 3
    status: dict[str, int] = field(default_factory=dict)  # by URL; absent: 200
    raw: bytes | None = None
    asked: list[tuple[str, str, int]] = field(default_factory=list)  # URL, model, pictures

    async def post(
        self, url: str, path: str, body: bytes, headers: Headers, seconds: float
    ) -> tuple[int, bytes]:
        del headers, seconds
        assert path == "/v1/chat/completions/render"
        fields = msgspec.json.decode(body)
        assert fields["mm_payload"] == "none"
        count = pictures(fields["messages"])
        self.asked.append((url, fields["model"], count))
        status = self.status.get(url, 200)
        places = [{"offset": 1 + n * self.pads, "length": self.pads} for n in range(count)]
        answer = {
            "token_ids": [TEXT, *[PAD] * (self.pads * count), TEXT],
            "features": {"mm_placeholders": {"image": places}},
        }
        return status, self.raw or msgspec.json.encode(answer)


@dataclass
class World:
    client: Client = field(default_factory=Client)
    local: Local = field(default_factory=Local)
    urls: tuple[str, ...] = ("http://a:1", "http://b:1")
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    learning: MediaLearning = field(init=False)
    source: ModelSource = field(init=False)
    engines: list[Engine] = field(init=False)

    def __post_init__(self) -> None:
        self.source = ModelSource("m", "m", ModelSettings())
        self.engines = [Engine(EngineSettings(url=url), (), healthy=True) for url in self.urls]
        self.learning = MediaLearning(self, self.source)  # type: ignore[arg-type]

    def names(self, engine: Engine) -> dict[str, str]:
        return {self.source.key: f"m@{engine.settings.url[7]}"}

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    async def want(self, size: Size) -> None:
        """A chat has a picture of this size, and what that causes is over."""
        self.local.media.learned.want(size)
        self.learning.learn(self.local)  # type: ignore[arg-type]
        await asyncio.gather(*self.tasks)

    @property
    def known(self) -> list[int] | None:
        rule = self.local.media.learned.rule
        tokens = None if rule is None else rule.expand(SIZE)
        return None if tokens is None else [*tokens]


async def test_engine_is_asked_for_one_picture_and_for_several_under_its_own_name() -> None:
    world = World()

    await world.want(SIZE)

    assert world.known == [PAD] * 3
    assert world.client.asked == [("http://a:1", "m@a", 1), ("http://a:1", "m@a", SEVERAL)]


async def test_known_sizes_are_not_asked_for_again() -> None:
    world = World()
    await world.want(SIZE)
    world.client.asked.clear()

    await world.want(SIZE)
    await world.want(Size(1, 2))

    assert [count for _, _, count in world.client.asked] == [1]


async def test_next_engine_is_asked_where_one_does_not_render() -> None:
    world = World(Client(status={"http://a:1": 403}))

    await world.want(SIZE)

    assert world.known == [PAD] * 3


@pytest.mark.parametrize(
    "raw",
    [
        b"no json",
        b'{"token_ids":[1]}',
        b'{"token_ids":[1],"features":{"mm_placeholders":{}}}',
        b'{"token_ids":[1],"features":{"mm_placeholders":{"video":[{"offset":0,"length":1}]}}}',
    ],
)
async def test_engines_that_tell_nothing_are_left_alone_for_a_while(raw: bytes) -> None:
    world = World(Client(raw=raw))

    await world.want(SIZE)
    await world.want(SIZE)

    assert world.known is None
    assert [url for url, _, _ in world.client.asked] == list(world.urls)


async def test_why_no_rule_can_be_learned_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "inferway.remote")
    answer = {
        "token_ids": [5, PAD, TEXT],
        "features": {"mm_placeholders": {"image": [{"offset": 1, "length": 1}]}},
    }
    world = World(Client(raw=msgspec.json.encode(answer)))

    await world.want(SIZE)
    await world.want(Size(1, 2))

    [message] = [record.getMessage() for record in caplog.records]
    assert "a picture changes tokens beside it" in message
    assert len(world.client.asked) == 1


async def test_only_one_question_is_on_its_way() -> None:
    world = World()
    for size in (SIZE, Size(1, 2), Size(3, 4)):
        world.local.media.learned.want(size)
        world.learning.learn(world.local)  # type: ignore[arg-type]

    assert len(world.tasks) == 1
    await asyncio.gather(*world.tasks)
    assert len(world.client.asked) == 4
