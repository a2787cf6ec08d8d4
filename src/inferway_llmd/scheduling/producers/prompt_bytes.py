"""The bytes that the approximate producer hashes of a request: its own, in order, no prompt made of
them.

body             what makes up its prompts            what sets prompts apart that have these alike
chat             messages, one after another          tools, documents, chat_template(_kwargs)
completions      each prompt: its text, or its ids    -
responses        input: its text, or its items        instructions, tools, chat_template_kwargs
messages         messages, one after another          system, tools, chat_template_kwargs
embeddings       each input, or messages              -

Objects count by their JSON, keys in the order in which they came. So a conversation that goes on
begins with the bytes of its past, whatever it is rendered to. (llm-d hashes the messages' JSON with
the brackets around it, and leaves tools out.)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
from xxhash import xxh3_64_intdigest

from inferway.openai_api.requests import Body

_ENCODER = msgspec.json.Encoder()


def prompt_bytes(body: Body, most: int) -> list[bytes]:
    """Return of each prompt of the request no less than its first `most` bytes, or all."""
    return [_given(each, most) for each in body.given_prompts]


def setting_bytes(body: Body) -> bytes:
    """Return what is the same in all requests whose prompts may have a beginning in common."""
    given = body.prompt_settings
    return as_json(given) if any(each is not None for each in given) else b""


def _given(given: Any, most: int) -> bytes:
    """A text, ids, or objects; engines refuse what is none of them."""
    if not isinstance(given, list):
        if isinstance(given, str):  # a character has a byte at least
            return given[:most].encode("utf-8", "surrogatepass")
        return _joined([given], most)
    try:
        return _ids(given, most) if isinstance(next(iter(given), 0), int) else _joined(given, most)
    except (TypeError, ValueError):
        return _joined(given, most)


def _ids(ids: Sequence[int], most: int) -> bytes:
    """Four bytes each, as many as a token is taken to have."""
    ids = ids[: most // 4 + 1]
    try:
        return np.array(ids, np.int64).astype(np.uint32).tobytes()
    except OverflowError:  # no token has such an id; engines say so
        return np.array([each & 0xFFFFFFFF for each in ids], np.uint32).tobytes()


def _joined(items: Iterable[object], most: int) -> bytes:
    size, encoded = 0, []
    for item in items:
        encoded.append(as_json(item))
        size += len(encoded[-1]) + 1
        if size > most:
            break
    return b",".join(encoded)


def as_json(value: object) -> bytes:
    """Return the value as JSON, keys in their order."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(value).encode()


def block_hashes(prompt: bytes, block_bytes: int, most_blocks: int, seed: int) -> list[int]:
    """Return a hash for each block. It depends on the block's bytes, on all blocks before it and on
    `seed`. The last block may be a short one; a prompt shorter than one block has none."""
    if len(prompt) < block_bytes:
        return []
    hashes = []
    for start in range(0, min(len(prompt), block_bytes * most_blocks), block_bytes):
        seed = xxh3_64_intdigest(prompt[start : start + block_bytes], seed)
        hashes.append(seed)
    return hashes
