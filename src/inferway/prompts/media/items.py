"""The media items of a chat: where they stand, the bytes that they bring, and their names.

An engine that is told a `uuid` with an item takes it for the item's hash (vLLM 0.32,
multimodal/processing/inputs.py, `get_mm_hashes`): in its caches, and in the keys of blocks. So an
item that brings its bytes gets a digest of them for its `uuid`. That spares the engine to hash the
pixels, tells us the keys, and lets nobody put other bytes under a name that is another client's.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
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


def modality(part: JsonObject) -> Any:
    """Return what vLLM calls the item in front of a template: it goes by the type, or by the first
    field that it knows if there is no type, or a `uuid`."""
    kind = part.get("type")
    if part.get("uuid") is None and kind is not None:
        return _TYPES.get(kind, kind) if isinstance(kind, str) else kind
    return next((name for field, name in MODALITIES.items() if field in part), kind)


def names_of(items: Iterable[MediaItem]) -> list[MediaName]:
    """Return the names that are to be written into a body."""
    return [
        MediaName(each.message, each.part, each.name, each.num_bytes) for each in items if each.name
    ]


class MediaItems:
    """Reads the items of one model's chats. A client may name an item once and send its name alone
    from then on: what it stood for is remembered. Any thread may call it."""

    def __init__(self) -> None:
        self._named: OrderedDict[tuple[str | None, str], tuple[str, Size | Sound | None]] = (
            OrderedDict()
        )

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
        kind = modality(part)
        uuid = part.get("uuid")
        content = _content(part)
        if content is None:
            known = None if uuid is None else self._named.get((cache_salt, str(uuid)))
            return MediaItem(i, j, kind) if known is None else MediaItem(i, j, kind, *known)
        if content[:5].lower() != "data:":
            return MediaItem(i, j, kind)
        name, size = _digest(content, cache_salt), _size(kind, content)
        if uuid is not None:
            self._remember((cache_salt, str(uuid)), (name, size))
        return MediaItem(i, j, kind, name, size, len(content))

    def _remember(self, key: tuple[str | None, str], item: tuple[str, Size | Sound | None]) -> None:
        self._named[key] = item
        while len(self._named) > MOST_REMEMBERED:
            try:
                self._named.popitem(last=False)
            except KeyError:  # another thread was faster
                return


def _content(part: JsonObject) -> str | None:
    """Return the URL of an item; None if it has none."""
    for field in ("image_url", "audio_url", "video_url"):
        value = part.get(field)
        url = value.get("url") if isinstance(value, dict) else value
        if isinstance(url, str):
            return url
    sound = part.get("input_audio")
    if isinstance(sound, dict) and isinstance(sound.get("data"), str):
        return f"data:audio/{sound.get('format')};base64,{sound['data']}"
    return None


def _size(kind: Any, content: str) -> Size | Sound | None:
    with suppress(UnknownPictureError, UnknownSoundError):  # the engine says what is wrong with it
        if kind == "image":
            return size_of(content)
        if kind == "audio":
            return sound_of(content)
    return None


def _digest(content: str, cache_salt: str | None) -> str:
    digest = hashlib.sha256(content.encode("utf-8", "surrogatepass"))
    if cache_salt:
        digest.update(b"\0" + cache_salt.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
