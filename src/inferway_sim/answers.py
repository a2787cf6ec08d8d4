"""Turns -> the JSON that vLLM 0.32 answers with, whole or in pieces.

Which keys are there, null or not, follows vLLM's serving code: entrypoints/openai/
{chat_completion,completion}/{serving,protocol}.py.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from inferway_sim.planning import Options, PlannedReply

Json = dict[str, Any]


class AnswerFormat(Protocol):
    """Writes one request's answer in one of OpenAI's formats."""

    def opening(self, turns: Sequence[PlannedReply]) -> list[Json]:
        """Return the chunks that come before the first token's."""

    def chunk(self, turn: PlannedReply, text: str, token: int, finish_reason: str | None) -> Json:
        """Return one token's chunk. With a finish reason it is the last one of its reply."""

    def usage_chunk(self, turns: Sequence[PlannedReply]) -> Json:
        """Return the chunk at the end that `include_usage` asks for."""

    def whole(self, turns: Sequence[PlannedReply], texts: Sequence[str]) -> Json:
        """Return the whole answer at once."""


class ChatAnswer:
    """Writes answers of `/v1/chat/completions`."""

    def __init__(self, model: str, options: Options) -> None:
        self._head = _head("chatcmpl", model)
        self._options = options

    def opening(self, turns: Sequence[PlannedReply]) -> list[Json]:
        turn = turns[0]
        choice = {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        return [
            {
                **self._chunk(choice),
                **_running_usage(self._options, turn, 0),
                "prompt_token_ids": self._prompt_ids(turn),
                "prompt_text": None,
            }
        ]

    def chunk(self, turn: PlannedReply, text: str, token: int, finish_reason: str | None) -> Json:
        choice: Json = {
            "index": 0,
            "delta": {"content": text},
            "logprobs": None,
            "finish_reason": finish_reason,
        }
        if finish_reason is not None:
            choice["stop_reason"] = turn.stop_reason
        choice["token_ids"] = [token] if self._options.return_token_ids else None
        usage = _running_usage(self._options, turn, turn.job.num_emitted)
        return {**self._chunk(choice), **usage}

    def usage_chunk(self, turns: Sequence[PlannedReply]) -> Json:
        return {**self._chunk(), "usage": _usage(turns, turns[0])}

    def whole(self, turns: Sequence[PlannedReply], texts: Sequence[str]) -> Json:
        turn = turns[0]
        choice = {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": texts[0],
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
            },
            "logprobs": None,
            "finish_reason": turn.finish_reason,
            "stop_reason": turn.stop_reason,
            "token_ids": list(turn.job.planned) if self._options.return_token_ids else None,
            "routed_experts": None,
        }
        return {
            **self._head("chat.completion"),
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": _whole_usage(turns),
            "prompt_logprobs": None,
            "prompt_token_ids": self._prompt_ids(turn),
            "prompt_text": None,
            "kv_transfer_params": turn.reference,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _chunk(self, *choices: Json) -> Json:
        return {**self._head("chat.completion.chunk"), "choices": choices}

    def _prompt_ids(self, turn: PlannedReply) -> list[int] | None:
        return _prompt_ids(turn) if self._options.return_token_ids else None


class CompletionAnswer:
    """`/v1/completions`; one choice per prompt."""

    def __init__(self, model: str, options: Options) -> None:
        self._head = _head("cmpl", model)
        self._options = options

    def opening(self, turns: Sequence[PlannedReply]) -> list[Json]:  # noqa: ARG002
        return []

    def chunk(self, turn: PlannedReply, text: str, token: int, finish_reason: str | None) -> Json:
        shown = bool(self._options.return_token_ids)
        is_first = turn.job.num_emitted == 1
        choice = {
            "index": turn.index,
            "text": text,
            "logprobs": None,
            "finish_reason": finish_reason,
            "stop_reason": turn.stop_reason if finish_reason else None,
            "prompt_token_ids": _prompt_ids(turn) if shown and is_first else None,
            "token_ids": [token] if shown else None,
        }
        usage = _running_usage(self._options, turn, turn.job.num_emitted)
        return {**self._head("text_completion"), "choices": [choice], **usage}

    def usage_chunk(self, turns: Sequence[PlannedReply]) -> Json:
        return {**self._head("text_completion"), "choices": [], "usage": _usage(turns, turns[0])}

    def whole(self, turns: Sequence[PlannedReply], texts: Sequence[str]) -> Json:
        pairs = zip(turns, texts, strict=True)
        return {
            **self._head("text_completion"),
            "choices": [self._whole_choice(turn, text) for turn, text in pairs],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": _whole_usage(turns),
            "kv_transfer_params": turns[0].reference,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _whole_choice(self, turn: PlannedReply, text: str) -> Json:
        shown = bool(self._options.return_token_ids)
        return {
            "index": turn.index,
            "text": text,
            "logprobs": None,
            "finish_reason": turn.finish_reason,
            "stop_reason": turn.stop_reason,
            "token_ids": list(turn.job.planned) if shown else None,
            "prompt_logprobs": None,
            "prompt_token_ids": _prompt_ids(turn) if shown else None,
            "routed_experts": None,
        }


def _head(prefix: str, model: str) -> Callable[[str], Json]:
    """Return what every piece of one answer begins with; the argument is its `object`."""
    request_id, created = f"{prefix}-{uuid.uuid4().hex}", int(time.time())
    return lambda kind: {"id": request_id, "object": kind, "created": created, "model": model}


def _prompt_ids(turn: PlannedReply) -> list[int]:
    ids: list[int] = turn.prompt_ids.tolist()
    return ids


def _usage(turns: Sequence[PlannedReply], told: PlannedReply) -> Json:
    """`told`: of several prompts, vLLM tells the cached tokens of one."""
    num_prompt = sum(len(turn.prompt_ids) for turn in turns)
    num_generated = sum(turn.job.num_emitted for turn in turns)
    return {
        "prompt_tokens": num_prompt,
        "total_tokens": num_prompt + num_generated,
        "completion_tokens": num_generated,
        "prompt_tokens_details": {"cached_tokens": told.job.num_cached_tokens},
    }


def _whole_usage(turns: Sequence[PlannedReply]) -> Json:
    usage = _usage(turns, turns[-1])
    usage["prompt_tokens_details"] |= {"created_cache_tokens": None, "multimodal_tokens": None}
    return {**usage, "completion_tokens_details": None}


def _running_usage(options: Options, turn: PlannedReply, num_generated: int) -> Json:
    """With `continuous_usage_stats` each chunk carries the usage so far."""
    wanted = options.stream_options
    if wanted is None or not (wanted.include_usage and wanted.continuous_usage_stats):
        return {}
    num_prompt = len(turn.prompt_ids)
    return {
        "usage": {
            "prompt_tokens": num_prompt,
            "total_tokens": num_prompt + num_generated,
            "completion_tokens": num_generated,
        }
    }
