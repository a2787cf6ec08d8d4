"""What context a request needs, by vLLM's rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inferway.openai_api.requests import (
    Body,
    ChatRequest,
    CompletionRequest,
    EmbeddingsRequest,
    MessagesRequest,
    ResponsesRequest,
)
from inferway.prompts.body_size import context_needed


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest(model="m", messages=[], **fields)


@pytest.mark.parametrize(
    ("body", "known", "needed"),
    [
        (chat(), 9, 10),  # one token more is generated
        (chat(max_tokens=5), 9, 10),  # what does not fit is cut by the engine
        (chat(max_tokens=50), 9, 50),
        (chat(max_tokens=50, max_completion_tokens=20), 9, 20),
        (chat(truncate_prompt_tokens=30), 9, 30),
        (chat(truncate_prompt_tokens=-1), 9, 10),
        (CompletionRequest(model="m", prompt="x", max_tokens=12), 0, 12),
        (CompletionRequest(model="m", prompt=[1, 2, 3]), 0, 4),  # though nothing is rendered
        (CompletionRequest(model="m", prompt=[1, 2, 3], truncate_prompt_tokens=2), 0, 2),
        (ResponsesRequest(model="m", input="x", max_output_tokens=40), 9, 40),
        (MessagesRequest(model="m", messages=[], max_tokens=40), 9, 40),
        (EmbeddingsRequest(model="m", input="x"), 0, 0),
    ],
)
def test_a_request_needs_its_prompt_and_one_token_or_what_it_asks_for(
    body: Body, known: int, needed: int
) -> None:
    prompts = [np.zeros(known, np.uint32)] if known else []

    assert context_needed(body, prompts) == needed
