"""`truncate_prompt_tokens` and `truncation_side` leave the tokens that vLLM leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.prompts.conftest import BOS_EOS
from tests.stored import tokenizer_json

from inferway.errors import PromptTooLongError, RenderError, RequestError
from inferway.model import ContextLengths
from inferway.openai_api.requests import ChatRequest, CompletionRequest
from inferway.prompts import (
    GetOrCreateTokenizerKeyRequest,
    ModelPrompts,
    RenderChatRequest,
    Renderer,
    RenderRequest,
)
from inferway.prompts.version_rules import VersionRules

GOLDEN = Path(__file__).parents[1] / "golden" / "prompts" / "vllm_truncation.jsonl.gz"
GOLDEN_0_33 = GOLDEN.with_name("vllm_truncation_0_33.jsonl.gz")

Row = dict[str, Any]
Body = ChatRequest | CompletionRequest

# Writes a chat's text as it is.
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(params=[(0, 32), (0, 33)], ids=["0.32", "0.33"])
def version(request: pytest.FixtureRequest) -> tuple[int, int]:
    found: tuple[int, int] = request.param
    return found


@pytest.fixture
def rows(read_golden: Callable[[Path], list[Row]], version: tuple[int, int]) -> list[Row]:
    return read_golden(GOLDEN if version < (0, 33) else GOLDEN_0_33)


@pytest.fixture(scope="module")
def key(renderer: Renderer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that puts <s> before a text and </s> behind it."""
    whole = {**json.loads(tokenizer_json("phi-3")), "post_processor": BOS_EOS}
    directory = tmp_path_factory.mktemp("phi-3")
    (directory / "tokenizer.json").write_text(json.dumps(whole))
    (directory / "chat_template.jinja").write_text(PLAIN)
    request = GetOrCreateTokenizerKeyRequest(str(directory), is_local=True)
    return renderer.get_or_create_tokenizer_key(request)


async def differing(prompts: ModelPrompts, rows: list[Row], endpoint: str) -> list[Row]:
    differ = []
    for row in rows:
        expected = row[endpoint]
        # What vLLM's engine core refuses, after this step: prompts that leave no room.
        assert prompts.max_model_len is not None
        if expected is not None and not 0 < len(expected) < prompts.max_model_len:
            expected = None
        fields = {**row["fields"], "model": "m"}
        if endpoint == "chat":
            messages = [{"role": "user", "content": row["prompt"]}]
            body: Body = ChatRequest(messages=messages, **fields)
        else:
            body = CompletionRequest(prompt=row["prompt"], **fields)
        try:
            [ids] = (await prompts.tokenize(body)).token_ids
        except RequestError:
            ours = None
        else:
            ours = ids.tolist()
        if ours != expected:
            differ.append({**row, "ours": ours})
    return differ


@pytest.mark.parametrize("endpoint", ["completion", "chat"])
async def test_what_is_left_of_a_prompt_is_what_vllm_leaves(
    renderer: Renderer, key: str, rows: list[Row], endpoint: str, version: tuple[int, int]
) -> None:
    meta, *cases = rows
    limit = meta["max_model_len"]
    contexts = ContextLengths(limit, limit)
    prompts = ModelPrompts(renderer, key).within(contexts, VersionRules.of([version]))
    asked = [row for row in cases if endpoint == "completion" or isinstance(row["prompt"], str)]

    assert len(asked) > 500
    assert await differing(prompts, asked, endpoint) == []


async def test_a_long_chat_of_engines_that_truncate_otherwise_is_not_rendered(
    renderer: Renderer, key: str
) -> None:
    rules = VersionRules.of([(0, 32), (0, 33)])
    prompts = ModelPrompts(renderer, key).within(ContextLengths(9, 9), rules)
    content = "a b c d e f g h i j k"
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": content}], "model": "m"}
    both_agree = ChatRequest(**chat, truncate_prompt_tokens=-1, max_tokens=2)

    with pytest.raises(RenderError, match="engines have vLLM before") as raised:
        await prompts.tokenize(ChatRequest(**chat, truncate_prompt_tokens=-1))
    [ids] = (await prompts.tokenize(both_agree)).token_ids

    assert raised.value.reason == "unknown-context-length"
    assert len(ids) == 8


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("keep", [3, 5, 100])
def test_offsets_are_those_of_the_tokens_that_are_left(
    renderer: Renderer, key: str, side: Any, keep: int
) -> None:
    text = "one two three four"
    request = RenderRequest(key, text, truncate_prompt_tokens=keep, truncation_side=side)
    ids = renderer.render(request).input_ids

    with_offsets = renderer.render(
        RenderRequest(
            key,
            text,
            truncate_prompt_tokens=keep,
            truncation_side=side,
            return_offsets_mapping=True,
        )
    )

    assert np.array_equal(with_offsets.input_ids, ids)
    assert with_offsets.offset_mapping is not None
    words = [text[start:end].strip() for start, end in with_offsets.offset_mapping]
    decoded = [renderer.loaded(key).tokenizer.decode([id]).strip() for id in ids]
    assert words == [word if word not in ("<s>", "</s>") else "" for word in decoded]


def test_a_text_over_its_characters_is_refused(renderer: Renderer, key: str) -> None:
    with pytest.raises(PromptTooLongError, match="100 characters") as e:
        renderer.render(RenderRequest(key, "x" * 100, max_chars=99))

    assert e.value.param == "prompt"


def test_a_chat_over_its_characters_names_its_messages(renderer: Renderer, key: str) -> None:
    messages = [{"role": "user", "content": "x" * 100}]

    with pytest.raises(PromptTooLongError) as e:
        renderer.render_chat(RenderChatRequest(key, messages, max_chars=99))

    assert e.value.param == "messages"


@pytest.mark.parametrize(("side", "kept"), [("left", "bbc"), ("right", "abb"), (None, "abbbbc")])
def test_a_text_over_its_characters_is_cut_before_it_is_encoded(
    renderer: Renderer, key: str, side: Any, kept: str
) -> None:
    request = RenderRequest(
        key, "abbbbc", truncate_prompt_tokens=50, truncation_side=side, max_chars=3
    )

    assert renderer.render(request).text == kept


def test_a_side_alone_cuts_nothing(renderer: Renderer, key: str) -> None:
    prompts = ModelPrompts(renderer, key)
    asked = [
        CompletionRequest(model="m", prompt="one two", truncation_side=side)
        for side in (None, "right")
    ]

    [[plain], [sided]] = [asyncio.run(prompts.tokenize(body)).token_ids for body in asked]

    assert plain.tolist() == sided.tolist()
