"""Text models small enough to check by eye, and what an engine has published."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zmq
import zmq.asyncio

from inferway.model import TokenIds
from inferway.openai_api.requests import ChatRequest, CountTokensRequest, PromptBody
from inferway.prompts.chat.messages_input import as_chat
from inferway_sim.engine import SimulatedEngine
from inferway_sim.publisher import END_OF_REPLAY


class ByteModel:
    """A chat is its messages as `<role>content`, then `<assistant>`; byte = token id."""

    eos_token_id = 256

    async def tokenize(self, body: PromptBody) -> list[TokenIds]:
        if isinstance(body, ChatRequest):
            text = "".join(f"<{m['role']}>{m['content']}" for m in body.messages)
            return [_ids(text.encode() + b"<assistant>")]
        return [_ids(p.encode() if isinstance(p, str) else p) for p in body.prompts]

    async def chat_of(self, body: CountTokensRequest) -> ChatRequest:
        return as_chat(body, merge_inline_system=False, no_thinking_effort="none")

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")


def _ids(values: bytes | list[int]) -> TokenIds:
    return np.array(list(values), dtype=np.uint32)


TINY_ALPHABET = " abcdefghijklmnopqrstuvwxyz"
TINY_EOS = len(TINY_ALPHABET)


def write_tiny_model(directory: Path) -> None:
    """The files of a model with one token per letter; a chat is its contents, one by one."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    end = {"id": TINY_EOS, "content": "<|end|>", "special": True, **flags}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [end],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "BPE",
            "vocab": {letter: i for i, letter in enumerate([*TINY_ALPHABET, "<|end|>"])},
            "merges": [],
        },
    }
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    config = {"eos_token": "<|end|>", "chat_template": template}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def named_events(text: str) -> list[dict[str, Any]]:
    """The data of a stream of events, each of which is named by its type."""
    *blocks, end = text.split("\n\n")
    assert end == ""
    found = []
    for block in blocks:
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


async def all_events(engine: SimulatedEngine) -> list[Any]:
    """Everything it ever published, by replay."""
    context = zmq.asyncio.Context()
    try:
        socket = context.socket(zmq.DEALER)
        assert engine.replay_endpoint is not None
        socket.connect(engine.replay_endpoint)
        await socket.send_multipart([b"", bytes(8)])
        events: list[Any] = []
        while True:
            _, _, seq, payload = await asyncio.wait_for(socket.recv_multipart(), 10)
            if seq == END_OF_REPLAY:
                return events
            events += msgspec.msgpack.decode(payload)[1]
    finally:
        context.destroy(linger=0)


def believed(events: list[Any]) -> set[int]:
    """What a reader of maps, or of arrays, makes of them; copies counted."""
    held: Counter[int] = Counter()
    for event in events:
        kind, hashes = (
            (event["type"], event.get("block_hashes"))
            if isinstance(event, dict)
            else (event[0], event[1] if len(event) > 1 else None)
        )
        match kind:
            case "BlockStored":
                held.update(hashes)
            case "BlockRemoved":
                held.subtract(hashes)
            case "AllBlocksCleared":
                held.clear()
    return set(+held)
