"""Turns -> what vLLM 0.32 answers at /v1/responses, whole or as events.

Text alone: no reasoning, no calls. Which keys there are follows entrypoints/openai/responses/
{protocol,streaming_events}.py.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec

from inferway.openai_api.requests import ResponsesRequest
from inferway_sim.planning import PlannedReply

Json = dict[str, Any]


class ResponsesAnswer:
    """Writes answers of `/v1/responses`. Its events must be taken in order, because they are
    numbered."""

    def __init__(self, model: str, body: ResponsesRequest) -> None:
        self._id, self._item_id = f"resp_{uuid.uuid4().hex}", f"msg_{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._model = model
        self._body = body
        self._number = 0

    def opening(self) -> Iterator[bytes]:
        begun = self._response("in_progress", [], None)
        yield self._event("response.created", response=begun)
        yield self._event("response.in_progress", response=begun)
        item = {**self._item("", "in_progress"), "content": []}
        yield self._event("response.output_item.added", output_index=0, item=item)
        yield self._part_event("response.content_part.added", part={**_part(""), "logprobs": []})

    def delta(self, text: str) -> bytes:
        return self._part_event("response.output_text.delta", delta=text, logprobs=[])

    def closing(self, turn: PlannedReply, text: str) -> Iterator[bytes]:
        yield self._part_event("response.output_text.done", text=text, logprobs=[])
        yield self._part_event("response.content_part.done", part=_part(text))
        item = self._item(text, "completed")
        yield self._event("response.output_item.done", output_index=0, item=item)
        yield self._event("response.completed", response=self.whole(turn, text))

    def whole(self, turn: PlannedReply, text: str) -> Json:
        is_whole = turn.finish_reason == "stop"
        status = "completed" if is_whole else "incomplete"
        response = self._response(status, [self._item(text, "completed")], _usage(turn))
        if not is_whole:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        response["kv_transfer_params"] = turn.reference
        return response

    def _response(self, status: str, output: list[Json], usage: Json | None) -> Json:
        body = self._body
        return {
            "id": self._id,
            "created_at": self._created,
            "incomplete_details": None,
            "instructions": body.instructions,
            "metadata": None,
            "model": self._model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": body.tool_choice or ("auto" if body.tools else "none"),
            "tools": body.tools or [],
            "top_p": 1.0,
            "background": False,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": None,
            "previous_response_id": None,
            "prompt": None,
            "reasoning": body.reasoning,
            "service_tier": "auto",
            "status": status,
            "text": None,
            "top_logprobs": None,
            "truncation": "disabled" if body.cuts_nothing else "auto",
            "usage": usage,
            "user": None,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
        }

    def _item(self, text: str, status: str) -> Json:
        return {
            "id": self._item_id,
            "content": [_part(text)],
            "role": "assistant",
            "status": status,
            "type": "message",
            "phase": None,
        }

    def _part_event(self, kind: str, **fields: Any) -> bytes:
        return self._event(kind, item_id=self._item_id, output_index=0, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(data))


def _part(text: str) -> Json:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}


def _usage(turn: PlannedReply) -> Json:
    num_prompt, num_generated = len(turn.prompt_ids), turn.job.num_emitted
    return {
        "input_tokens": num_prompt,
        "input_tokens_details": {
            "cached_tokens": turn.job.num_cached_tokens,
            "cache_write_tokens": 0,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": num_generated,
        "output_tokens_details": {
            "reasoning_tokens": 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": num_prompt + num_generated,
    }
