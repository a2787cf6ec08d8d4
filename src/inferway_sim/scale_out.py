"""vLLM's render endpoints (`--enable-scale-out`): a request -> what its engine would be given.

The shape is GenerateRequest's of vLLM 0.32 (entrypoints/scale_out/token_in_token_out/protocol.py).
"""

from __future__ import annotations

import uuid
from typing import Any

from inferway.model import TokenIds
from inferway.openai_api.requests import PromptBody

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
