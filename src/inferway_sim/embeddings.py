"""Embeddings as vLLM 0.32 answers at /v1/embeddings (entrypoints/pooling/embed): vectors without
meaning, the same for the same tokens. Prompts are computed and kept as those of completions are."""

from __future__ import annotations

import base64
import hashlib
import struct
import time
import uuid
from typing import Any

from inferway.errors import InvalidRequestError
from inferway.model import TokenIds
from inferway.openai_api.requests import CompletionRequest, EmbeddingsRequest

DIMENSIONS = 8


def as_completion(body: EmbeddingsRequest) -> CompletionRequest:
    """Texts or token ids are tokenized as a completion's prompts are. Raises InvalidRequestError
    for chats."""
    given = body.given
    if given is body.messages or any(isinstance(item, dict) for item in given):
        raise InvalidRequestError("input: chats are not simulated, give text", param="input")
    return CompletionRequest(
        model=body.model, prompt=given, cache_salt=body.cache_salt, max_tokens=1
    )


def embeddings_answer(
    model: str, prompts: list[TokenIds], encoding_format: str | None
) -> dict[str, Any]:
    """Return the answer of `/v1/embeddings`. `encoding_format` is "float" or "base64"."""
    num_tokens = sum(map(len, prompts))
    return {
        "id": f"embd-{uuid.uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": [
            {"index": i, "object": "embedding", "embedding": _vector(ids, encoding_format)}
            for i, ids in enumerate(prompts)
        ],
        "usage": {
            "prompt_tokens": num_tokens,
            "total_tokens": num_tokens,
            "completion_tokens": 0,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        },
    }


def _vector(ids: TokenIds, encoding_format: str | None) -> list[float] | str:
    digest = hashlib.blake2b(ids.tobytes(), digest_size=DIMENSIONS).digest()
    numbers = [byte / 128 - 1 for byte in digest]
    if encoding_format == "base64":
        return base64.b64encode(struct.pack(f"<{DIMENSIONS}f", *numbers)).decode()
    return numbers
