"""A chat whose pictures are behind URLs -> the chat with the pictures themselves.

The engine gets the bytes that were read here: whoever answers a URL may answer something else next
time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from inferway.model import FetchedMedia, MediaName
from inferway.openai_api.requests import ChatRequest
from inferway.scheduling.plugin import RequestListener, RequestOutcome

# Returns those of some URLs that could be fetched (prompts.media.fetch.MediaFetch).
Fetch = Callable[[Collection[str]], Awaitable[FetchedMedia]]

_Place = tuple[int, int]


class FetchedChat(msgspec.Struct, frozen=True):
    """A chat with fetched pictures: `urls` are the data URLs of its parts."""

    chat: ChatRequest
    urls: Mapping[_Place, str]
    lease: object

    def named(self, names: Sequence[MediaName]) -> list[MediaName]:
        """Return the names with the data URLs that the parts get with them."""
        return [each._replace(url=self.urls.get((each.message, each.part))) for each in names]


class UntilAnswered(RequestListener):
    """Keeps the lease of a request's pictures until its answer has begun, or it has ended."""

    __slots__ = ("_lease",)

    def __init__(self, lease: object) -> None:
        self._lease: object = lease

    def on_first_chunk(self, now: float) -> None:
        del now
        self._lease = None

    def on_end(self, ending: RequestOutcome) -> None:
        del ending
        self._lease = None


async def fetched_media(
    fetch: Fetch, chat: ChatRequest, names: Sequence[MediaName]
) -> FetchedChat | None:
    """Return the chat with those pictures that could be fetched; None if there are none."""
    wanted = {(each.message, each.part): each.url for each in names if each.url is not None}
    if not wanted:
        return None
    found, lease = await fetch(wanted.values())
    urls = {place: found[url] for place, url in wanted.items() if url in found}
    if not urls:
        return None
    return FetchedChat(_with_urls(chat, urls), urls, lease)


def _with_urls(chat: ChatRequest, urls: Mapping[_Place, str]) -> ChatRequest:
    messages: list[dict[str, Any]] = [*chat.messages]
    for (number, place), url in urls.items():
        parts = [*messages[number]["content"]]
        parts[place] = {**parts[place], "image_url": {"url": url}}
        messages[number] = {**messages[number], "content": parts}
    return msgspec.structs.replace(chat, messages=messages)
