"""Each field of the requests of the installed vLLM is known to the gateway, which says for each
whether an answer to a request that has it can be gone on with."""

from __future__ import annotations

import json

import pytest
from tests.engines.vllm_code import VllmCode

from inferway.openai_api.stream_rest import why_not

PRINTS = """
import json
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
kinds = (ChatCompletionRequest, CompletionRequest, AnthropicMessagesRequest)
print(json.dumps(sorted({name for kind in kinds for name in kind.model_fields})))
"""
# What ends a stream with its engine, whatever it says.
REFUSED = """
    chat_template ec_transfer_params kv_transfer_params logprob_token_ids
    prompt_embeds prompt_logprobs repetition_detection structured_outputs
    truncate_prompt_tokens truncation_side vllm_xargs
"""


@pytest.fixture(scope="module")
def fields(vllm_code: VllmCode) -> list[str]:
    found: list[str] = json.loads(vllm_code.run(["-c", PRINTS]).splitlines()[-1])
    return found


def test_what_ends_a_stream_is_what_is_listed(fields: list[str]) -> None:
    refused = [name for name in fields if why_not({name: {"some": "value"}}) == name]
    conditional = {name for name in refused if any(why_not({name: v}) is None for v in PLAIN)}

    assert sorted({*refused} - conditional) == REFUSED.split()


# One of them is what such a field says if it asks for nothing.
PLAIN: tuple[object, ...] = (*(False, True, 0, 1, "", [], "auto", {"type": "text"}),)
