"""What a served model makes of requests of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.golden.prompts.responses_rules import IMAGE, words

from inferway.errors import InvalidRequestError, PromptTooLongError, RenderError
from inferway.model import Reason
from inferway.openai_api.requests import (
    Body,
    ChatRequest,
    CompletionRequest,
    CountTokensRequest,
    EmbeddingsRequest,
    MessagesRequest,
    ResponsesRequest,
)
from inferway.prompts.model_prompts import ModelPrompts
from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest
from inferway.prompts.renderer import Renderer
from inferway.prompts.served import NoPrompts, PromptSource, ServedModel
from inferway_sim.prepare import prepare_smollm2


@pytest.fixture(scope="module")
def prompts() -> Iterator[ModelPrompts]:
    renderer = Renderer(num_threads=1)
    wanted = GetOrCreateTokenizerKeyRequest(str(prepare_smollm2()))
    yield ModelPrompts(renderer, renderer.get_or_create_tokenizer_key(wanted), 100)
    renderer.close()


class Elsewhere:
    """Prompts that engines render."""

    local = None

    def within(self, contexts: object, rules: object) -> Elsewhere:  # noqa: ARG002
        return self

    async def tokenize(self, body: Body) -> Any:
        raise AssertionError(f"asked for {type(body).__name__}")

    async def chat_of(self, body: CountTokensRequest) -> ChatRequest:
        return ChatRequest(messages=body.messages)


async def ids(source: PromptSource, body: Body) -> list[int]:
    tokenized = await body.tokenized_by(ServedModel("m", source))
    return list(tokenized.token_ids[0].tolist())


async def test_a_response_has_the_tokens_of_its_chat(prompts: ModelPrompts) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]

    chat = await ids(prompts, ChatRequest(model="m", messages=messages))

    assert await ids(prompts, ResponsesRequest(model="m", input="hi", instructions="s")) == chat


async def test_a_response_is_known_up_to_its_first_image_as_its_chat_is(
    prompts: ModelPrompts,
) -> None:
    said, picture = "look at this", IMAGE["image_url"]
    asked = [{"role": "user", "content": [*words(said), IMAGE]}]
    parts = [
        {"type": "text", "text": said},
        {"type": "image_url", "image_url": {"url": picture}},
    ]
    chat = ChatRequest(
        model="m", messages=[{"role": "user", "content": parts}], add_special_tokens=True
    )

    tokenized = await ResponsesRequest(model="m", input=asked).tokenized_by(
        ServedModel("m", prompts)
    )

    assert tokenized.reason == Reason.MEDIA_PREFIX
    assert tokenized.token_ids[0].tolist() == await ids(prompts, chat)


async def test_messages_have_the_tokens_of_their_chat(prompts: ModelPrompts) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
    text = [{"type": "text", "text": "hi"}]

    chat = await ids(prompts, ChatRequest(model="m", messages=messages))
    body = MessagesRequest(model="m", system="s", messages=[{"role": "user", "content": text}])

    assert await ids(prompts, body) == chat


async def test_they_are_too_long_as_chats_are(prompts: ModelPrompts) -> None:
    said = [{"role": "user", "content": "word " * 200}]

    with pytest.raises(PromptTooLongError, match="context length is 100 tokens") as e:
        await ids(prompts, MessagesRequest(model="m", messages=said))
    with pytest.raises(InvalidRequestError, match=r"^max_tokens=101 cannot be greater"):
        await ids(
            prompts, MessagesRequest(model="m", messages=said[:0], system="s", max_tokens=101)
        )

    assert e.value.param == "messages"


async def test_messages_say_why_they_have_no_prompt_here() -> None:
    with pytest.raises(RenderError) as e:
        await ids(NoPrompts(Reason.BAD_TOKENIZER, "none"), MessagesRequest(model="m", messages=[]))

    assert e.value.reason == Reason.BAD_TOKENIZER


async def test_completions_go_to_the_models_prompts(prompts: ModelPrompts) -> None:
    assert await ids(prompts, CompletionRequest(model="m", prompt=[1, 2])) == [1, 2]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (EmbeddingsRequest(model="m", input="x"), Reason.EMBEDDINGS),
        (
            ResponsesRequest(model="m", input="x", previous_response_id="r"),
            Reason.RESPONSE_ITEMS,
        ),
    ],
)
async def test_what_has_no_prompt_here_says_why(
    prompts: ModelPrompts, body: Body, reason: Reason
) -> None:
    with pytest.raises(RenderError) as e:
        await ids(prompts, body)

    assert e.value.reason == reason


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (NoPrompts(Reason.TOKENIZER_LOADING, "it loads"), Reason.TOKENIZER_LOADING),
        (Elsewhere(), Reason.RESPONSE_ITEMS),  # an engine would be asked for a chat
    ],
)
async def test_a_response_is_not_rendered_by_others(source: PromptSource, reason: Reason) -> None:
    with pytest.raises(RenderError) as e:
        await ids(source, ResponsesRequest(model="m", input="x"))

    assert e.value.reason == reason


async def test_a_response_too_long_is_told_of_its_input(prompts: ModelPrompts) -> None:
    with pytest.raises(PromptTooLongError, match="context length is 100 tokens") as e:
        await ids(prompts, ResponsesRequest(model="m", input="word " * 200))

    assert e.value.param == "input"
