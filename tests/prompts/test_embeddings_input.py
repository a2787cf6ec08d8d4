"""What of an embeddings body becomes a completion's prompts, or a chat's. Fleet tests compare them
with the engine's."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from inferway.errors import InvalidRequestError, RenderError
from inferway.model import Reason
from inferway.openai_api.requests import (
    EmbeddingsRequest,
    PromptBody,
    parse_classify,
    parse_embeddings,
    parse_pooling,
)
from inferway.prompts import ModelPrompts, Renderer
from inferway.prompts.embeddings_input import MAX_CHATS, as_prompts, check_uncut
from inferway.prompts.scoring_input import PoolingFacts
from inferway.prompts.served import ServedModel

HI, HO = {"role": "user", "content": "Hi"}, {"role": "user", "content": "Ho"}


def parsed(**fields: Any) -> EmbeddingsRequest:
    return parse_embeddings(msgspec.json.encode({"model": "m", **fields}))


def made(**fields: Any) -> list[PromptBody]:
    return [*as_prompts(parsed(**fields))]


@pytest.mark.parametrize("given", ["Hi", ["Hi", "Ho"], [1, 2], [[1, 2], [3]]])
def test_texts_and_ids_are_the_prompts_of_a_completion(given: object) -> None:
    [completion] = made(input=given, add_special_tokens=False)

    assert (completion.path, completion.prompt) == ("/v1/completions", given)
    assert completion.add_special_tokens is False


@pytest.mark.parametrize(
    ("fields", "messages"),
    [
        ({"messages": [HI, HO]}, [[HI, HO]]),
        ({"input": [HI]}, [[HI]]),
        ({"messages": [[HI], [HO]]}, [[HI], [HO]]),
        ({"input": [[HI, HO]]}, [[HI, HO]]),
    ],
)
def test_chats_end_without_the_start_of_an_answer(
    fields: dict[str, Any], messages: list[object]
) -> None:
    chats = [each.chat for each in made(**fields, chat_template_kwargs={"a": 1})]

    assert [chat and chat.messages for chat in chats] == messages
    assert [chat and chat.add_generation_prompt for chat in chats] == [False] * len(messages)
    assert [chat and chat.chat_template_kwargs for chat in chats] == [{"a": 1}] * len(messages)


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "Hi", "messages": [HI]},
        {"input": "Hi", "padding": "max_length"},
        {"input": [1.5]},
        {"input": ["Hi", 1]},
        {"input": [[1], ["Hi"]]},
        {"input": []},
        {"input": [[]]},
        {"messages": [[HI]] * (MAX_CHATS + 1)},
        {"messages": [HI], "add_generation_prompt": "perhaps"},
    ],
)
def test_what_is_not_known_is_left_to_the_engine(fields: dict[str, Any]) -> None:
    with pytest.raises(RenderError) as left:
        made(**fields)

    assert left.value.reason is Reason.EMBEDDINGS


def test_messages_that_are_none_are_named() -> None:
    with pytest.raises(InvalidRequestError, match=r"messages\[0\]\.role"):
        made(messages=[{"content": "Hi"}])


@pytest.mark.parametrize(
    ("fields", "keep"),
    [({"truncation_side": "left"}, 3), ({"truncation_side": "right"}, 3), ({}, None)],
)
def test_prompts_are_cut_at_the_side_that_is_named(
    fields: dict[str, Any], keep: int | None
) -> None:
    [completion] = made(input="Hi", truncate_prompt_tokens=3, **fields)

    assert completion.truncate_prompt_tokens == keep


@pytest.mark.parametrize(("keep", "is_cut"), [(1, True), (2, False), (-1, False), (None, False)])
def test_a_prompt_that_is_cut_at_no_named_side_is_not_known(keep: int | None, is_cut: bool) -> None:
    body = parsed(input="Hi", truncate_prompt_tokens=keep)
    prompts = [np.array([1], np.uint32), np.array([1, 2], np.uint32)]

    if not is_cut:
        check_uncut(body, prompts)
        return
    with pytest.raises(RenderError, match="truncate_prompt_tokens"):
        check_uncut(body, prompts)


@pytest.mark.parametrize(
    ("parse", "fields", "task"),
    [
        (parse_classify, {"input": "Hi"}, "classify"),
        (parse_classify, {"messages": [HI]}, "classify"),
        (parse_pooling, {"input": ["Hi"]}, "embed"),
        (parse_pooling, {"input": [1, 2], "task": "classify"}, "classify"),
    ],
)
async def test_texts_for_the_engines_task_are_tokenized(
    key: str, own_renderer: Renderer, parse: Any, fields: dict[str, Any], task: str
) -> None:
    body = parse(msgspec.json.encode(fields))
    model = pooling_model(own_renderer, key, task)
    [expected] = as_prompts(body)

    found = (await body.tokenized_by(model)).token_ids

    same = (await model.prompts.tokenize(expected)).token_ids
    assert [ids.tolist() for ids in found] == [ids.tolist() for ids in same]


@pytest.mark.parametrize(
    ("parse", "fields", "task"),
    [
        (parse_classify, {"input": "Hi"}, "embed"),
        (parse_classify, {"input": "Hi"}, None),
        (parse_classify, {"input": [HI]}, "classify"),
        (parse_classify, {"messages": [[HI]]}, "classify"),
        (parse_classify, {"messages": {"role": "user"}}, "classify"),
        (parse_classify, {"input": 5}, "classify"),
        (parse_classify, {}, "classify"),
        (parse_classify, {"input": "Hi", "truncation_side": "up"}, "classify"),
        (parse_classify, {"input": "Hi", "truncate_prompt_tokens": "x"}, "classify"),
        (parse_pooling, {"input": "Hi"}, None),
        (parse_pooling, {"input": "Hi", "task": "token_embed"}, "embed"),
        (parse_pooling, {"input": "Hi", "task": ["embed"]}, "embed"),
        (parse_pooling, {"input": "Hi", "data": {}}, "embed"),
        (parse_pooling, {"input": "Hi", "padding": "max_length"}, "embed"),
    ],
)
async def test_what_the_engine_pools_otherwise_is_left_to_it(
    key: str, own_renderer: Renderer, parse: Any, fields: dict[str, Any], task: str | None
) -> None:
    body = parse(msgspec.json.encode(fields))

    with pytest.raises(RenderError) as left:
        await body.tokenized_by(pooling_model(own_renderer, key, task))

    assert left.value.reason is Reason.EMBEDDINGS


def pooling_model(renderer: Renderer, key: str, task: str | None) -> ServedModel:
    prompts = ModelPrompts(renderer, key)
    return ServedModel("m", prompts, caches_prefixes=True, pooling=PoolingFacts(task))
