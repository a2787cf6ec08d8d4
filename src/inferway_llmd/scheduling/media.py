"""The images, audio and video of a request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from inferway.openai_api.requests import Body

_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "thinking"})


def media_parts(body: Body) -> Iterator[dict[str, Any]]:
    """Yield the parts of the request's messages that are neither text nor a refusal."""
    for name in ("messages", "input", "items"):
        items = getattr(body, name, None)
        for item in items if isinstance(items, list) else ():
            yield from _of(item)


def _of(item: Any) -> Iterator[dict[str, Any]]:
    content = item.get("content") if isinstance(item, dict) else None
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type", "text") not in _TEXT_PARTS:
            yield part
