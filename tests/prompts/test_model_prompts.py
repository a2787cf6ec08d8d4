"""From a body to token ids, with the engine's limits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferway.errors import InvalidRequestError, PromptTooLongError, RenderError
from inferway.openai_api.requests import ChatRequest, CompletionRequest, PromptBody
from inferway.prompts import GetOrCreateTokenizerKeyRequest, ModelPrompts, Renderer
from inferway.prompts.model_prompts import MAX_PROMPTS

MakeModel = Callable[..., Path]
MakePrompts = Callable[..., ModelPrompts]

FRANCE = "The capital of France is"
FRANCE_IDS = [504, 3575, 282, 4649, 314]


@pytest.fixture
def prompts(renderer: Renderer, smollm2_key: str) -> MakePrompts:
    def make(max_model_len: int | None = 8192) -> ModelPrompts:
        return ModelPrompts(renderer, smollm2_key, max_model_len)

    return make


def tokenize(prompts: ModelPrompts, body: PromptBody) -> list[list[int]]:
    return [ids.tolist() for ids in asyncio.run(prompts.tokenize(body)).token_ids]


def completion(prompt: Any, **fields: Any) -> CompletionRequest:
    return CompletionRequest(model="m", prompt=prompt, **fields)


def chat(content: Any = "Hi", **fields: Any) -> ChatRequest:
    return ChatRequest(model="m", messages=[{"role": "user", "content": content}], **fields)


def test_a_chat_is_one_prompt(prompts: MakePrompts) -> None:
    [ids] = asyncio.run(prompts().tokenize(chat())).token_ids

    assert ids.dtype == np.uint32
    assert ids[-4:].tolist() == [1, 520, 9531, 198]


def test_a_chat_can_be_read(prompts: MakePrompts) -> None:
    result = asyncio.run(prompts().render_chat(chat()))

    assert result.text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        (FRANCE, [FRANCE_IDS]),
        ([FRANCE, "The"], [FRANCE_IDS, [504]]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ([4294967295], [[4294967295]]),
    ],
)
def test_a_completion_has_as_many_prompts_as_were_sent(
    prompts: MakePrompts, prompt: Any, ids: list[list[int]]
) -> None:
    assert tokenize(prompts(), completion(prompt)) == ids


@pytest.mark.parametrize("prompt", [[-1], [2**32], [[1], [2**70]]])
def test_ids_that_are_no_tokens_are_refused(prompts: MakePrompts, prompt: Any) -> None:
    with pytest.raises(InvalidRequestError) as e:
        tokenize(prompts(), completion(prompt))

    assert e.value.param == "prompt"


@pytest.fixture
def with_specials(renderer: Renderer, phi3_with_specials: Path) -> ModelPrompts:
    request = GetOrCreateTokenizerKeyRequest(str(phi3_with_specials), is_local=True)
    return ModelPrompts(renderer, renderer.get_or_create_tokenizer_key(request), 512)


@pytest.mark.parametrize(("given", "added"), [(None, 2), (True, 2), (False, 0)])
def test_prompts_get_special_tokens_unless_refused(
    with_specials: ModelPrompts, given: bool | None, added: int
) -> None:
    [ids] = tokenize(with_specials, completion("hello", add_special_tokens=given))

    assert len(ids) == 1 + added


@pytest.mark.parametrize(("given", "added"), [(None, 0), (False, 0), (True, 2)])
def test_chats_get_special_tokens_only_if_asked_for(
    with_specials: ModelPrompts, given: bool | None, added: int
) -> None:
    [without] = tokenize(with_specials, chat("hello", add_special_tokens=False))

    [ids] = tokenize(with_specials, chat("hello", add_special_tokens=given))

    assert len(ids) == len(without) + added


@pytest.mark.parametrize(
    ("limit", "says", "param"),
    [
        (4, "context length is 4 tokens. However, your prompt contains 5 input tokens", "prompt"),
        (5, "^max_tokens must be at least 1, got 0. Your prompt contains 5 ", "max_tokens"),
    ],
)
def test_a_prompt_must_leave_room_for_one_token(
    prompts: MakePrompts, limit: int, says: str, param: str
) -> None:
    """As vLLM's API server says it."""
    with pytest.raises(PromptTooLongError, match=says) as e:
        tokenize(prompts(limit), completion(FRANCE))

    assert (e.value.param, e.value.code) == (param, "context_length_exceeded")


def test_a_prompt_that_leaves_room_for_one_token_is_fine(prompts: MakePrompts) -> None:
    assert tokenize(prompts(6), completion(FRANCE)) == [FRANCE_IDS]


def test_a_chat_that_is_too_long_names_its_messages(prompts: MakePrompts) -> None:
    with pytest.raises(PromptTooLongError) as e:
        tokenize(prompts(10), chat())

    assert e.value.param == "messages"


def test_a_text_that_cannot_fit_is_not_even_encoded(prompts: MakePrompts) -> None:
    with pytest.raises(PromptTooLongError, match="contains 10000 characters"):
        tokenize(prompts(16), completion("x" * 10_000))


def test_an_unknown_context_length_limits_nothing(prompts: MakePrompts) -> None:
    [ids] = tokenize(prompts(None), completion("word " * 10_000))

    assert len(ids) == 10_001


@pytest.mark.parametrize("body", [completion(""), completion([[]])])
def test_an_empty_prompt_is_refused(prompts: MakePrompts, body: PromptBody) -> None:
    with pytest.raises(InvalidRequestError, match="no tokens"):
        tokenize(prompts(), body)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (completion("x", max_tokens=17), "max_tokens"),
        (chat(max_tokens=17), "max_tokens"),
        (chat(max_completion_tokens=17, max_tokens=1), "max_completion_tokens"),
        (completion("x", truncate_prompt_tokens=17), "truncate_prompt_tokens"),
        (chat(truncate_prompt_tokens=-2), "truncate_prompt_tokens"),
    ],
)
def test_settings_beyond_the_context_are_refused(
    prompts: MakePrompts, body: PromptBody, param: str
) -> None:
    with pytest.raises(InvalidRequestError) as e:
        tokenize(prompts(16), body)

    assert e.value.param == param


@pytest.mark.parametrize("prompt", [FRANCE, FRANCE_IDS])
def test_truncation_keeps_the_end(prompts: MakePrompts, prompt: Any) -> None:
    assert tokenize(prompts(), completion(prompt, truncate_prompt_tokens=2)) == [FRANCE_IDS[-2:]]


def test_truncation_to_what_fits_leaves_room_for_an_answer(prompts: MakePrompts) -> None:
    body = completion(FRANCE, truncate_prompt_tokens=-1, max_tokens=1)

    assert tokenize(prompts(4), body) == [FRANCE_IDS[-3:]]


def test_truncation_to_what_fits_needs_the_context_length(prompts: MakePrompts) -> None:
    with pytest.raises(RenderError) as e:
        tokenize(prompts(None), completion(FRANCE, truncate_prompt_tokens=-1))

    assert e.value.reason == "unknown-context-length"


def test_a_model_that_vllm_renders_in_code_is_not_rendered_here(
    renderer: Renderer, make_model: MakeModel
) -> None:
    directory = make_model("bert-bge")
    (directory / "config.json").write_text(json.dumps({"architectures": ["GptOssForCausalLM"]}))
    request = GetOrCreateTokenizerKeyRequest(str(directory), is_local=True)
    prompts = ModelPrompts(renderer, renderer.get_or_create_tokenizer_key(request))

    with pytest.raises(RenderError) as e:
        tokenize(prompts, chat())

    assert e.value.reason == "own-renderer"


def test_the_encoder_and_its_reason_can_be_told(prompts: MakePrompts) -> None:
    encoder, why = prompts().encoder

    assert (encoder, why[:6]) == ("fastokens", "agrees")


def test_more_prompts_in_one_request_than_are_looked_at_go_by_load_only(
    prompts: MakePrompts,
) -> None:
    assert len(tokenize(prompts(), completion(["a"] * MAX_PROMPTS))) == MAX_PROMPTS

    with pytest.raises(RenderError) as e:
        tokenize(prompts(), completion(["a"] * (MAX_PROMPTS + 1)))

    assert e.value.reason == "many-prompts"


def test_a_completion_leaves_room_for_16_tokens_unless_told_otherwise(
    prompts: MakePrompts,
) -> None:
    kept = [
        tokenize(prompts(4), completion(FRANCE, truncate_prompt_tokens=-1, **more))
        for more in ({}, {"max_tokens": 3})
    ]

    assert kept == [[FRANCE_IDS[-3:]]] * 2


def test_ids_that_a_chat_carries_are_its_prompt(prompts: MakePrompts) -> None:
    body = chat("not looked at", kv_transfer_params={"prompt_token_ids": [5, 6, 7]})

    assert tokenize(prompts(), body) == [[5, 6, 7]]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"prompt_embeds": "AAAA"}, "media"), ({"suffix": "end"}, "own-renderer")],
)
def test_prompts_that_the_engine_makes_of_more_than_text_are_beyond_us(
    prompts: MakePrompts, fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(RenderError) as e:
        tokenize(prompts(), completion(FRANCE, **fields))

    assert e.value.reason == reason


def test_a_chat_that_others_would_wait_for_is_not_rendered_for_people(
    prompts: MakePrompts,
) -> None:
    texts = [prompts().rendered_text(chat("word " * count)) for count in (10, 20_000)]

    assert [text is not None for text in texts] == [True, False]
