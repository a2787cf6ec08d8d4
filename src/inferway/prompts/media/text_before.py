"""A chat with images, sound or other parts that are not text -> its text up to the first of them.

What such a part becomes is known to the model's processor only. But what comes before it is text:
the chat is rendered twice, with different things in place of those parts, and what both have in
common does not depend on them. vLLM 0.32 (renderers/chat_utils.py) gives a template either

"openai"  parts, `{"type": "image"}` among them, for which it writes tokens of its own choice:
          so one rendering is the engine's own text, the other has a marker in their place;
"string"  text, with the processor's placeholders before it, or (--interleave-mm-strings) where
          the parts were: so the renderings have markers at either place.

The processor then replaces the first placeholders that it finds: text that looks like one ends
what is known, too. `Tokenizer.encode_settled` says how much of it makes tokens of its own.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from inferway.errors import RenderError, TemplateError
from inferway.model import Reason
from inferway.openai_api.requests import ChatRequest
from inferway.prompts.chat.content_format import ContentFormat
from inferway.prompts.chat.conversation import MediaPart, extra_fields, is_media
from inferway.prompts.media.items import modality

JsonObject = dict[str, Any]
Render = Callable[[ChatRequest], str]

# Nothing a client could write, nothing a template would strip or split.
_MARKER = f"inferway-media-{secrets.token_hex(16)}"

# All placeholders of vLLM's models (`get_placeholder_str`) and all tokens that templates write
# for media are of this kind: <image>, <|vision_start|>, <|image_1|>, [IMG], (<audio>./</audio>).
_PLACEHOLDER = re.compile(
    r"[<\[][^<>\[\]\s]{0,40}(?:image|img|video|audio|vision|media|patch|unused)[^<>\[\]\s]{0,40}[>\]]",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class KnownText:
    """`text[:end]` comes before all media. `whole`: `text` is the engine's to its end, with
    placeholders; else something unknown follows at `end`."""

    text: str
    end: int
    whole: bool


def text_before_media(
    body: ChatRequest, content_format: ContentFormat, render: Render
) -> KnownText:
    """Raises RenderError if nothing can be known. `render` writes a chat as its template does."""
    _refuse_embeddings(body.messages)
    marked = written(body, render, _marked)
    if content_format == "openai":
        text = written(body, render, as_parts)
    else:
        text = written(body, render, _marked_in_front)
    end = min(_common_length(text, marked), _place(_MARKER, text), _place(_MARKER, marked))
    looks_like_one = _PLACEHOLDER.search(text, 0, end)
    if looks_like_one is not None:
        end = looks_like_one.start()
    return KnownText(text, end, whole=content_format == "openai")


def written(body: ChatRequest, render: Render, change: Callable[[list[Any]], list[Any]]) -> str:
    """Return the chat as `render` writes it, with `change` of the contents that have media. Raises
    RenderError."""
    messages = [
        {**message, "content": change(message["content"])} if _has_media(message) else message
        for message in body.messages
    ]
    try:
        return render(msgspec.structs.replace(body, messages=messages))
    except TemplateError as e:  # it may take what the engine gives it in place of ours
        raise unknown(str(e)) from e


def _has_media(message: JsonObject) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(map(is_media, content))


def _marked(parts: list[Any]) -> list[Any]:
    return [_MARKER if is_media(part) else part for part in parts]


def _marked_in_front(parts: list[Any]) -> list[Any]:
    return sorted(_marked(parts), key=lambda part: part != _MARKER)


def as_parts(parts: list[Any]) -> list[Any]:
    """Return the parts as vLLM gives them to a template that wants parts."""
    return [
        MediaPart(type=modality(part), **extra_fields(part)) if is_media(part) else part
        for part in parts
    ]


def _refuse_embeddings(messages: Iterable[JsonObject]) -> None:
    """Embeddings in place of a prompt's tokens set every block of it apart."""
    for message in filter(_has_media, messages):
        for part in message["content"]:
            if is_media(part) and "prompt_embeds" in (part.get("type"), *part):
                raise unknown("a prompt with embeddings has no blocks that others share")


def _common_length(a: str, b: str) -> int:
    """How many characters two texts begin with in common."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[:middle] == b[:middle] else (low, middle - 1)
    return low


def _place(marker: str, text: str) -> int:
    place = text.find(marker)
    return len(text) if place < 0 else place


def unknown(why: str) -> RenderError:
    """Return the error for a chat of which nothing is known."""
    return RenderError(f"nothing is known before the first media part: {why}", reason=Reason.MEDIA)
