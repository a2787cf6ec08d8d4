"""The media items of a chat: where they stand, the bytes that they bring, and their names.

An engine that is told a `uuid` with an item takes it for the item's hash (vLLM 0.32,
multimodal/processing/inputs.py, `get_mm_hashes`): in its caches, and in the keys of blocks. So an
item that brings its bytes gets a digest of them for its `uuid`. That spares the engine to hash the
pixels, tells us the keys, and lets nobody put other bytes under a name that is another client's.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from inferway.model import MediaName
from inferway.prompts.chat.conversation import is_media
from inferway.prompts.media.picture import UnknownPictureError, size_of
from inferway.prompts.media.rule import Size, Sound
from inferway.prompts.media.sound import UnknownSoundError, sound_of

JsonObject = dict[str, Any]

MOST_REMEMBERED = 10_000  # items that clients have named, of one model: 200 bytes each

# What vLLM calls an item in front of a template, by the field that has its content; in the order in
# which it looks for them where the part has a `uuid`, or no type (renderers/chat_utils.py).
MODALITIES = {
    "image_url": "image",
    "image_pil": "image",
    "image_embeds": "image",
    "audio_embeds": "audio",
    "video_embeds": "video",
    "prompt_embeds": "prompt_embeds",
    "audio_url": "audio",
    "input_audio": "audio",
    "video_url": "video",
}
_TYPES = {**MODALITIES, "input_image": "image"}
# Types beside those of the same name as their field.
_OTHER_TYPES: Mapping[str | None, str] = {"image_url": "input_image"}
_AT_ONCE = 256 * 1024  # characters of an item's content
_UNNAMED = object()
_DIGEST = re.compile("[0-9a-f]{64}")  # names that are given here


class MediaItem(NamedTuple):
    """An item of a chat: the part `part` of the content of message `message`, from 0. `name` is the
    uuid that the engine is to get; None: the part's own, if any. `size` is a picture's, or a
    sound's length; None: it is not known."""

    message: int
    part: int
    modality: Any  # whatever stands there as its type
    name: str | None = None
    size: Size | Sound | None = None
    num_bytes: int = 0  # of its content, in base64
    url: str | None = None  # of a picture whose bytes are elsewhere


def modality(part: JsonObject) -> Any:
    """Return what vLLM calls the item in front of a template: it goes by the type, or by the first
    field that it knows if there is no type, or a `uuid`."""
    kind = part.get("type")
    if part.get("uuid") is None and kind is not None:
        return _TYPES.get(kind, kind) if isinstance(kind, str) else kind
    return next((name for field, name in MODALITIES.items() if field in part), kind)


def names_of(items: Iterable[MediaItem], *, with_urls: bool = False) -> list[MediaName]:
    """Return the names that are to be written into a body; `with_urls`: and the URLs of pictures
    that get one if somebody fetches them."""
    named = [each for each in items if each.name or (with_urls and each.url)]
    return [
        MediaName(each.message, each.part, each.name, each.num_bytes, each.url) for each in named
    ]


class MediaItems:
    """Reads the items of one model's chats. A client may name an item once and send its name alone
    from then on: what it stood for is remembered. Any thread may call it."""

    def __init__(self) -> None:
        self._named: OrderedDict[str | None, tuple[str, Size | Sound | None]] = OrderedDict()

    def of(self, messages: Iterable[JsonObject], cache_salt: str | None) -> list[MediaItem]:
        """Return the items in the order in which engines number them. `cache_salt` is the
        request's: digests of requests with different ones differ, as their blocks do."""
        return list(self._items(messages, cache_salt))

    def _items(self, messages: Iterable[JsonObject], cache_salt: str | None) -> Iterator[MediaItem]:
        for i, message in enumerate(messages):
            content = message.get("content")
            for j, part in enumerate(content if isinstance(content, list) else ()):
                if is_media(part):
                    yield self._item(i, j, part, cache_salt)

    def _item(self, i: int, j: int, part: JsonObject, cache_salt: str | None) -> MediaItem:
        kind, uuid = modality(part), part.get("uuid")
        key = None if uuid is None else _digest(f"uuid:{uuid}", cache_salt)
        content = _content(part)
        if content is None and key in self._named:
            return MediaItem(i, j, kind, *self._named[key])
        if not isinstance(content, str) or content[:5].lower() != "data:":
            # No bytes may come under a name that we have given to others.
            name = key if isinstance(uuid, str) and _DIGEST.fullmatch(uuid) else None
            url = content if kind == "image" and isinstance(content, str) else None
            return MediaItem(i, j, kind, name, url=url)
        # the bytes of a video, named as a picture, are not the same input
        name = _digest(content if kind == "image" else f"{kind}:{content}", cache_salt)
        size = _size(kind, content)
        if key is not None:
            self._remember(key, (name, size))
        return MediaItem(i, j, kind, name, size, len(content))

    def _remember(self, key: str, item: tuple[str, Size | Sound | None]) -> None:
        self._named[key] = item
        drop_oldest(self._named, MOST_REMEMBERED)


def drop_oldest(kept: OrderedDict[Any, Any], most: int) -> None:
    """Leave the newest items, `most` at most. Several threads may do so at the same time."""
    while len(kept) > most:
        with suppress(KeyError):  # another thread was faster
            kept.popitem(last=False)


def _content(part: JsonObject) -> object:
    """Return the URL of an item; None if it is to be known by its `uuid` alone, and something else
    for one that cannot be named: with a `uuid`, its engine would look for it elsewhere."""
    field = next((field for field in MODALITIES if field in part), None)
    kind = part.get("type")
    if part.get("uuid") is None and kind not in (None, field, _OTHER_TYPES.get(field)):
        return _UNNAMED
    value = None if field is None else part[field]
    if not value:
        return None
    if field == "input_audio" and isinstance(value, dict):
        data = value.get("data")
        if isinstance(data, str) and data:
            return f"data:audio/{value.get('format')};base64,{data}"
        return _UNNAMED if data else None
    if field in ("image_url", "audio_url", "video_url"):
        return (value.get("url") or None) if isinstance(value, dict) else value
    return _UNNAMED


def _size(kind: Any, content: str) -> Size | Sound | None:
    with suppress(UnknownPictureError, UnknownSoundError):  # the engine says what is wrong with it
        if kind == "image":
            return size_of(content)
        if kind == "audio":
            return sound_of(content)
    return None


def _digest(content: str, cache_salt: str | None) -> str:
    digest = hashlib.sha256()
    for at in range(0, len(content), _AT_ONCE):  # between two pieces another thread may run
        digest.update(content[at : at + _AT_ONCE].encode("utf-8", "surrogatepass"))
    if cache_salt:
        digest.update(b"\0" + cache_salt.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
