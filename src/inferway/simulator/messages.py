"""Turns -> what vLLM 0.32 answers at /v1/messages, whole or as events.

Text alone: no thinking, no calls. Which keys there are, and when each event comes, follows
entrypoints/anthropic/serving.py, which writes a chat's answer anew; it sends no `ping`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import msgspec

from inferway.errors import InferwayError
from inferway.simulator.planning import PlannedReply

Json = dict[str, Any]

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


class MessagesAnswer:
    """Writes answers of `/v1/messages`."""

    def __init__(self, model: str) -> None:
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._model = model
        self._is_open = False  # the block of text has begun

    def opening(self, turn: PlannedReply) -> bytes:
        """What comes with the first token; what is cached is told at the end."""
        usage = {"input_tokens": len(turn.prompt_ids), "output_tokens": 0}
        reason = {"stop_reason": None, "stop_sequence": None}
        message = {**self._message([]), **reason, "usage": usage}
        return _event("message_start", message=message)

    def delta(self, text: str) -> Iterator[bytes]:
        if not self._is_open:
            self._is_open = True
            yield _event("content_block_start", content_block=_text(""), index=0)
        delta = {"type": "text_delta", "text": text}
        yield _event("content_block_delta", delta=delta, index=0)

    def closing(self, turn: PlannedReply) -> Iterator[bytes]:
        if self._is_open:
            yield _event("content_block_stop", index=0)
        delta = {"stop_reason": _STOP_REASONS[turn.finish_reason], "stop_sequence": None}
        yield _event("message_delta", delta=delta, usage=_usage(turn))
        yield _event("message_stop")

    def whole(self, turn: PlannedReply, text: str) -> Json:
        return {
            **self._message([_text(text)]),
            "stop_reason": _STOP_REASONS[turn.finish_reason],
            "usage": _usage(turn),
            **({} if turn.reference is None else {"kv_transfer_params": turn.reference}),
        }

    def failure(self, error: InferwayError) -> bytes:
        """What ends a stream that began and cannot go on."""
        return _event("error", error={"type": "internal_error", "message": str(error)})

    def _message(self, content: list[Json]) -> Json:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self._model,
        }


def token_count(num_tokens: int) -> Json:
    """The answer of `/v1/messages/count_tokens`."""
    return {
        "input_tokens": num_tokens,
        "context_management": {"original_input_tokens": num_tokens},
    }


def message_error(error: InferwayError, kind: str) -> Json:
    """An error of a body that could be read, as Anthropic's clients read it."""
    return {"type": "error", "error": {"type": kind, "message": str(error)}}


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _usage(turn: PlannedReply) -> Json:
    """What is read from the cache, or written to it, is no input here."""
    read, written = turn.job.num_cached_tokens, turn.job.num_stored_tokens
    return {
        "input_tokens": len(turn.prompt_ids) - read - written,
        "output_tokens": turn.job.num_emitted,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read,
    }


def _event(kind: str, **fields: Any) -> bytes:
    data = msgspec.json.encode({"type": kind, **fields})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)
