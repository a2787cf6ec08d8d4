"""A request as scheduling sees it (seed 001): structured, nothing flattened into a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from inferway.model import Headers, MediaSpan, Prompt
from inferway.openai_api.requests import Body, decode_fields

BYTES_PER_TOKEN = 4  # llm-d's estimate (averageCharactersPerToken)


class Objectives(msgspec.Struct, frozen=True):
    """The objectives that the caller gives the gateway in headers; the engine gets none of them."""

    priority: int = 0  # negative: may be refused when engines are full (sheddable)
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    session: bytes = b""  # the request's, as x-session-id names it


class LLMRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as scheduling sees it. `body` is a member of a disjoint union, unchanged.
    `target_model` is the model that the engine is asked for; it differs from `body.model` if a
    rewrite says so."""

    request_id: str
    target_model: str
    body: Body
    headers: Headers = ()  # the client's, names in lower case, and its session's if we found it
    objectives: Objectives = Objectives()
    tenant: str = ""  # whose share of the engines it takes
    raw: bytes = b""  # the client's bytes, what the engine gets unless an edit is named
    prompts: Mapping[int, Sequence[Prompt]] = {}  # by block size; empty when they are not known
    prompts_are_whole: bool = True  # the known ones are everything that the engine will see
    media: Sequence[MediaSpan] = ()  # of its only prompt, where they are known
    media_bytes: int = 0  # of `raw`: pictures, sound and video
    is_hypothetical: bool = False  # it is sent nowhere: who counts requests does not count it

    def header(self, name: bytes) -> bytes | None:
        """Return the last value of the header of that name, which is in lower case."""
        return next((value for key, value in reversed(self.headers) if key == name), None)

    @property
    def num_prompt_tokens(self) -> int:
        """The tokens of all its prompts: exact where they are known, else a quarter of the body's
        bytes, those of media left out."""
        prompts = next(iter(self.prompts.values()), None)
        if prompts is None:
            return (len(self.raw) - self.media_bytes) // BYTES_PER_TOKEN
        return sum(len(prompt.token_ids) for prompt in prompts)

    @property
    def fields(self) -> dict[str, Any]:
        """All fields of the body, unchanged, including those unknown to us. They are decoded at
        each call: routing needs none of them."""
        return decode_fields(self.raw)
