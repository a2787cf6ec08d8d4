"""One request, and how long its first token took."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from inferway.errors import InferwayError

_EVENT = b"data: "
_END = b"[DONE]"


@dataclass(frozen=True, slots=True)
class MeasuredAnswer:
    """An answered request. Engine and blocks are known of a gateway's answers only."""

    text: str
    first_token_ms: float
    prompt_tokens: int
    cached_tokens: int  # as the engine says
    engine: str = ""
    matched_blocks: int = 0  # that the engine held when it was chosen
    prompt_blocks: int = 0


async def ask(http: aiohttp.ClientSession, url: str, body: Mapping[str, Any]) -> MeasuredAnswer:
    """Streams the answer to its end. Raises InferwayError for any other than 200."""
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    begun = time.perf_counter()
    async with http.post(url, json=streamed) as response:
        if response.status != 200:
            raise InferwayError(f"{url} answered {response.status}: {await response.text()}")
        first, words = 0.0, []
        usage: dict[str, Any] = {}
        async for line in response.content:
            if not line.startswith(_EVENT) or line.strip().endswith(_END):
                continue
            event = msgspec.json.decode(line[len(_EVENT) :])
            word = "".join(_text(choice) for choice in event["choices"])
            first = first or (time.perf_counter() - begun if word else 0.0)
            words.append(word)
            usage = event.get("usage") or usage
        headers = response.headers
        return MeasuredAnswer(
            "".join(words),
            first * 1000,
            int(usage.get("prompt_tokens", 0)),
            int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
            headers.get("x-inferway-engine", ""),
            int(headers.get("x-inferway-matched-blocks", 0)),
            int(headers.get("x-inferway-prompt-blocks", 0)),
        )


def _text(choice: Mapping[str, Any]) -> str:
    return str(choice.get("text") or choice.get("delta", {}).get("content") or "")
