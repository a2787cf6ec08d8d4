"""How long a request's prompts are."""

from __future__ import annotations

from inferway.openai_api.llm_request import LLMRequest

BYTES_PER_TOKEN = 4  # llm-d's estimate (averageCharactersPerToken)


def prompt_tokens(request: LLMRequest) -> int:
    """Of all its prompts: exact where they are known, else a quarter of the body's bytes."""
    tokens = request.num_prompt_tokens
    return len(request.raw) // BYTES_PER_TOKEN if tokens is None else tokens
