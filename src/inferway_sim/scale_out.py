"""vLLM's endpoints for engines that share their work (`--enable-scale-out`): a request -> what its
engine would be given, and the answer to that.

The shapes are those of vLLM 0.32 (entrypoints/scale_out/token_in_token_out/protocol.py).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from inferway.model import TokenIds
from inferway.openai_api.generate import GenerateRequest
from inferway.openai_api.requests import CompletionRequest, PromptBody
from inferway_sim.planning import Options, PlannedReply

DISABLED = (
    "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
)


def rendered(body: PromptBody, prompts: list[TokenIds], max_model_len: int) -> list[dict[str, Any]]:
    """Return one rendered entry for each prompt; a chat has one."""
    id = f"{body.id_prefix}-{uuid.uuid4().hex[:16]}"
    ids = [id] if len(prompts) == 1 else [f"{id}-{i}" for i in range(len(prompts))]
    return [
        _generate_request(body, id, prompt, max_model_len)
        for id, prompt in zip(ids, prompts, strict=True)
    ]


def _generate_request(
    body: PromptBody, id: str, prompt: TokenIds, max_model_len: int
) -> dict[str, Any]:
    room = max_model_len - len(prompt)
    return {
        "request_id": id,
        "token_ids": prompt.tolist(),
        "token_offsets": None,
        "features": None,
        "content_parts": None,
        "sampling_params": {"max_tokens": min(body.max_tokens or room, room)},
        "model": body.model,
        "reasoning_ended": None,
        "reasoning_parser_kwargs": None,
        "return_token_ids": None,
        "output_mode": "tokens",
        "stream": bool(body.stream),
        "stream_options": None,
        "cache_salt": body.cache_salt,
        "priority": 0,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
    }


def as_completion(body: GenerateRequest, max_model_len: int) -> CompletionRequest:
    """Return the completion of the same ids, as many times as answers are wanted. Unlike a
    completion's, the answer goes on to the context's end where no limit is given."""
    return CompletionRequest(
        model=body.model,
        prompt=[body.token_ids.tolist()] * (body.n or 1),
        max_tokens=max_model_len if body.answer_limit is None else body.answer_limit,
        prompt_logprobs=None if body.reads_cache else 0,
        cache_salt=body.cache_salt,
        kv_transfer_params=body.kv_transfer_params,
    )


class GenerateAnswer:
    """Writes answers of `/inference/v1/generate`, without texts."""

    def __init__(self, model: str, options: Options) -> None:
        self._model = model
        self._options = options
        self._id = f"generate-tokens-{uuid.uuid4().hex[:16]}"

    def opening(self, turns: Sequence[PlannedReply]) -> list[dict[str, Any]]:  # noqa: ARG002
        return []

    def chunk(
        self,
        turn: PlannedReply,
        text: str,  # noqa: ARG002
        token: int,
        finish_reason: str | None,
    ) -> dict[str, Any]:
        return self._chunk([_choice(turn, [token], finish_reason)])

    def usage_chunk(self, turns: Sequence[PlannedReply]) -> dict[str, Any]:
        return {**self._chunk([]), "usage": _usage(turns)}

    def whole(self, turns: Sequence[PlannedReply], texts: Sequence[str]) -> dict[str, Any]:  # noqa: ARG002
        shown = self._options.return_token_ids
        return {
            "request_id": self._id,
            "model": self._model,
            "created": int(time.time()),
            "usage": _usage(turns),
            "prompt_logprobs": None,
            "prompt_token_ids": turns[0].prompt_ids.tolist() if shown else None,
            "kv_transfer_params": turns[0].reference,
            "output_mode": "tokens",
            "choices": [
                _choice(turn, list(turn.job.planned), turn.finish_reason) for turn in turns
            ],
        }

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"request_id": self._id, "usage": None, "output_mode": "tokens", "choices": choices}


def _choice(turn: PlannedReply, ids: list[int], finish_reason: str | None) -> dict[str, Any]:
    return {
        "index": turn.index,
        "finish_reason": finish_reason,
        "stop_reason": turn.stop_reason if finish_reason else None,
        "token_ids": ids,
        "logprobs": None,
    }


def _usage(turns: Sequence[PlannedReply]) -> dict[str, Any]:
    """All answers are of one prompt, which counts once."""
    num_prompt = len(turns[0].prompt_ids)
    num_generated = sum(turn.job.num_emitted for turn in turns)
    return {
        "prompt_tokens": num_prompt,
        "total_tokens": num_prompt + num_generated,
        "completion_tokens": num_generated,
        "prompt_tokens_details": {"cached_tokens": turns[0].job.num_cached_tokens},
    }
