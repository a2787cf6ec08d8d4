"""The pictures of a chat that are behind URLs take their places before it is matched."""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import Collection
from typing import Any

import numpy as np
import pytest
from tests.routing.test_director import BLOCK, CHAT, Letters, TwoEngines, director, open_chat

from inferway.errors import UnknownMediaError
from inferway.model import FetchedMedia, MediaName, MediaSpan, Reason, RequestHead, Tokenized
from inferway.openai_api.kinds import PARSERS
from inferway.openai_api.requests import ChatRequest, PromptBody
from inferway.routing.director import Director

DATA = "data:"
TEXT = "abcdefgh"


class Lease:
    """That of one chat."""


class Fetcher:
    """Fetches what is in `there`."""

    def __init__(self, **there: str) -> None:
        self.there = there
        self.asked: list[list[str]] = []
        self.lease: weakref.ref[Lease] | None = None

    async def __call__(self, urls: Collection[str]) -> FetchedMedia:
        self.asked.append([*urls])
        lease = Lease()
        self.lease = weakref.ref(lease)
        return FetchedMedia({url: self.there[url] for url in urls if url in self.there}, lease)

    @property
    def is_held(self) -> bool:
        assert self.lease is not None
        return self.lease() is not None


class Pictures(Letters):
    """A picture is four tokens if its bytes are there, and ends what is known if they are not."""

    async def tokenize(self, body: PromptBody) -> Tokenized:
        assert isinstance(body, ChatRequest)
        parts = body.messages[0]["content"]
        names: list[MediaName] = []
        ids: list[int] = []
        spans: list[MediaSpan] = []
        reason = Reason.KV_AWARE
        for place, part in enumerate(parts):
            if "text" in part:
                found = [ord(letter) for letter in part["text"]]
            else:
                url = part["image_url"]["url"]
                is_there = url.startswith(DATA)
                names.append(
                    MediaName(0, place, url[5:]) if is_there else MediaName(0, place, None, url=url)
                )
                spans += [MediaSpan(url[5:], len(ids), 4)] * is_there
                reason = reason if is_there else Reason.MEDIA_PREFIX
                found = [7] * 4
            ids += found if reason is Reason.KV_AWARE else []
        if not ids:
            raise UnknownMediaError("a picture first", names)
        return Tokenized([np.array(ids, np.uint32)], reason, spans, names)


def chat(*parts: str) -> bytes:
    content = [{"text": part} if part == TEXT else {"image_url": {"url": part}} for part in parts]
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    return json.dumps(body, separators=(",", ":")).encode()


def fetching(**there: str) -> tuple[Director, Fetcher]:
    to, fetch = director(TwoEngines(prompts=Pictures())), Fetcher(**there)
    to.fetch = fetch
    return to, fetch


def members(body: bytes) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = json.loads(body)["messages"][0]["content"]
    return parts


@pytest.mark.parametrize(
    ("parts", "asked", "blocks", "reason"),
    [
        ([TEXT, "cat", TEXT], [["cat"]], 20 // BLOCK, Reason.KV_AWARE),
        (["cat", TEXT], [["cat"]], 12 // BLOCK, Reason.KV_AWARE),
        ([TEXT, "data:x", "cat"], [["cat"]], 16 // BLOCK, Reason.KV_AWARE),
        ([TEXT, "cat", "dog", "cat"], [["cat", "dog", "cat"]], 12 // BLOCK, Reason.MEDIA_PREFIX),
        ([TEXT, "dog", "cat"], [["dog", "cat"]], 8 // BLOCK, Reason.MEDIA_PREFIX),
        ([TEXT, "dog"], [["dog"]], 8 // BLOCK, Reason.MEDIA_PREFIX),
        ([TEXT, "data:x"], [], 12 // BLOCK, Reason.KV_AWARE),
    ],
)
async def test_chat_is_known_as_far_as_its_pictures_are_there(
    parts: list[str], asked: list[list[str]], blocks: int, reason: Reason
) -> None:
    to, fetch = fetching(cat="data:meow")
    journey = open_chat(to, chat(*parts))

    decision = await journey.decide()
    journey.close("ok")

    assert (decision.reason, decision.targets[0].prompt_blocks) == (reason, blocks)
    assert fetch.asked == asked
    got = {"cat": ("data:meow", "meow"), "dog": ("dog", None), "data:x": ("data:x", "x")}
    sent = [
        (part["image_url"]["url"], part.get("uuid"))
        for part in members(journey.body)
        if "image_url" in part
    ]
    assert sent == [got[part] for part in parts if part != TEXT]
    named = [b"uuid"] * ("cat" in parts or "data:x" in parts) + [b"media"] * ("cat" in parts)
    assert journey.edits == named


async def test_pictures_are_held_until_the_answer_begins() -> None:
    to, fetch = fetching(cat="data:meow")
    journey = open_chat(to, chat(TEXT, "cat"))
    journey.attempt((await journey.decide()).targets[0])
    journey.on_head(200)
    assert fetch.is_held

    journey.on_chunk(b"{")

    assert not fetch.is_held
    journey.close("ok")


async def test_pictures_are_let_go_if_the_request_ends_without_an_answer() -> None:
    to, fetch = fetching(cat="data:meow")
    journey = open_chat(to, chat(TEXT, "cat"))
    await journey.decide()
    assert fetch.is_held

    journey.close("client_gone")

    assert not fetch.is_held


async def test_nothing_is_fetched_for_a_request_that_is_only_weighed() -> None:
    to, fetch = fetching(cat="data:meow")

    await to.weigh(RequestHead("POST", CHAT, "", ()), chat(TEXT, "cat"), None, parse=PARSERS[CHAT])

    assert fetch.asked == []


async def test_request_that_is_given_up_while_it_waits_for_pictures_leaves_nothing() -> None:
    to, _ = fetching()
    started = asyncio.Event()

    async def silent(urls: Collection[str]) -> FetchedMedia:
        started.set()
        await asyncio.Event().wait()
        return FetchedMedia(dict.fromkeys(urls, ""), None)

    to.fetch = silent
    journey = open_chat(to, chat(TEXT, "cat"))
    deciding = asyncio.create_task(journey.decide())
    await started.wait()
    deciding.cancel()

    with pytest.raises(asyncio.CancelledError):
        await deciding
    journey.close("client_gone")
    assert to.fleet.booked.tolist() == [0, 0]  # type: ignore[attr-defined]
