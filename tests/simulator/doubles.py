"""A text model small enough to check by eye: one token per byte."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inferway.model import TokenIds
from inferway.openai_api.requests import Body, ChatRequest


class ByteModel:
    """A chat is its messages as `<role>content`, then `<assistant>`; byte = token id."""

    eos_token_id = 256

    async def tokenize(self, body: Body) -> list[TokenIds]:
        if isinstance(body, ChatRequest):
            text = "".join(f"<{m['role']}>{m['content']}" for m in body.messages)
            return [_ids(text.encode() + b"<assistant>")]
        return [_ids(p.encode() if isinstance(p, str) else p) for p in body.prompts]

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")


def _ids(values: bytes | list[int]) -> TokenIds:
    return np.array(list(values), dtype=np.uint32)
