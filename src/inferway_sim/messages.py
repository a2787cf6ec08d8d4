"""Turns -> what vLLM 0.32 answers at /v1/messages, whole or as events.

Thoughts are blocks of their own in a stream alone, and there are no calls. Which keys there are,
and when each event comes, follows entrypoints/anthropic/serving.py, which writes a chat's answer
anew; it sends no `ping`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import msgspec

from inferway.errors import InferwayError
from inferway.openai_api.sent_messages import ThoughtMarks
from inferway_sim.planning import PlannedReply

Json = dict[str, Any]

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


class MessagesAnswer:
    """Writes answers of `/v1/messages`."""

    def __init__(self, model: str, marks: ThoughtMarks | None = None) -> None:
        """`marks`: the tokens around the model's thoughts; None: it has none."""
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._model = model
        self._marks = marks
        self._kind = "text"  # of what the next token says
        self._open = ""  # the kind of the block that has begun; empty: none has
        self._index = 0  # of this block, or of the next one

    def opening(self, turn: PlannedReply) -> bytes:
        """Return the events that come with the first token; what is cached is told at the end."""
        if self._marks is not None and self._marks.is_open(turn.prompt_ids.tolist()):
            self._kind = "thinking"
        usage = {"input_tokens": len(turn.prompt_ids), "output_tokens": 0}
        reason = {"stop_reason": None, "stop_sequence": None}
        message = {**self._message([]), **reason, "usage": usage}
        return _event("message_start", message=message)

    def delta(self, token: int, text: str) -> Iterator[bytes]:
        """Yield the events that come with a token, which completes `text`."""
        if self._marks is not None and token in (self._marks.start, self._marks.end):
            self._kind = "thinking" if token == self._marks.start else "text"
        if not text:
            return
        kind = self._kind
        if self._open != kind:
            yield from self._end_block()
            self._open = kind
            block = {"type": kind, kind: ""}
            yield _event("content_block_start", content_block=block, index=self._index)
        yield self._delta({"type": f"{kind}_delta", kind: text})

    def _delta(self, delta: Json) -> bytes:
        return _event("content_block_delta", delta=delta, index=self._index)

    def _end_block(self) -> Iterator[bytes]:
        kind, self._open = self._open, ""
        if kind == "thinking":
            yield self._delta({"type": "signature_delta", "signature": uuid.uuid4().hex})
        if kind:
            yield _event("content_block_stop", index=self._index)
            self._index += 1

    def closing(self, turn: PlannedReply) -> Iterator[bytes]:
        yield from self._end_block()
        delta = _ending(turn)
        yield _event("message_delta", delta=delta, usage=_usage(turn))
        yield _event("message_stop")

    def whole(self, turn: PlannedReply, text: str) -> Json:
        return {
            **self._message([_text(text)]),
            **{name: value for name, value in _ending(turn).items() if value is not None},
            "usage": _usage(turn),
            **({} if turn.reference is None else {"kv_transfer_params": turn.reference}),
        }

    def failure(self, error: InferwayError) -> bytes:
        """Return the event that ends a stream that began and cannot go on."""
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
    """Return the answer of `/v1/messages/count_tokens`."""
    return {
        "input_tokens": num_tokens,
        "context_management": {"original_input_tokens": num_tokens},
    }


def message_error(error: InferwayError, kind: str) -> Json:
    """Return an error of a body that could be read, as Anthropic's clients read it."""
    return {"type": "error", "error": {"type": kind, "message": str(error)}}


def _ending(turn: PlannedReply) -> Json:
    """Return why the message ends."""
    if turn.stop_reason is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": turn.stop_reason}
    return {"stop_reason": _STOP_REASONS[turn.finish_reason], "stop_sequence": None}


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
