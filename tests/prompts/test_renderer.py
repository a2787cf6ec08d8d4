"""The library's face: keys, chats, texts; from many threads, and beside an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inferway
from inferway.config import ModelSettings
from inferway.errors import InvalidRequestError, RenderError, TemplateError
from inferway.model import Reason
from inferway.openai_api.requests import parse_completion
from inferway.prompts import (
    GetOrCreateTokenizerKeyRequest,
    RenderChatRequest,
    Renderer,
    RenderRequest,
)
from inferway.prompts.loaded_model import MAX_GIVEN_TEMPLATES
from inferway.prompts.model_prompts import load_prompts
from inferway.prompts.served import ModelSource, NoPrompts

MakeModel = Callable[..., Path]
Row = dict[str, Any]

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
# What vLLM 0.32 fed to SmolLM2 for QUESTION (prompt_token_ids of its answer).
QUESTION_IDS = [
    *(1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411),
    *(407, 19712, 8182, 2, 198, 1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1),
    *(520, 9531, 198),
]


def local(directory: Path) -> GetOrCreateTokenizerKeyRequest:
    return GetOrCreateTokenizerKeyRequest(str(directory), is_local=True)


def test_a_chat_gets_the_ids_that_vllm_saw(renderer: Renderer, smollm2_key: str) -> None:
    result = renderer.render_chat(RenderChatRequest(smollm2_key, QUESTION))

    assert result.input_ids.tolist() == QUESTION_IDS


def test_a_result_has_its_text_and_no_more_than_was_asked_for(
    renderer: Renderer, smollm2_key: str
) -> None:
    result = renderer.render_chat(RenderChatRequest(smollm2_key, QUESTION))

    assert result.text.endswith("What is the capital of France?<|im_end|>\n<|im_start|>assistant\n")
    assert (result.offset_mapping, result.assistant_mask) == (None, None)


def test_a_key_names_model_revision_and_place(renderer: Renderer, smollm2: Path) -> None:
    assert renderer.get_or_create_tokenizer_key(local(smollm2)) == f"{smollm2}:main:True"


def test_the_path_of_a_tokenizer_file_will_do(renderer: Renderer, smollm2: Path) -> None:
    key = renderer.get_or_create_tokenizer_key(local(smollm2 / "tokenizer.json"))

    assert renderer.render_chat(RenderChatRequest(key, QUESTION)).input_ids.tolist() == QUESTION_IDS


def test_many_callers_load_a_model_once(renderer: Renderer, make_model: MakeModel) -> None:
    directory = make_model("gpt-2")

    def load(_: int) -> object:
        return renderer.loaded(renderer.get_or_create_tokenizer_key(local(directory)))

    with ThreadPoolExecutor(8) as threads:
        models = list(threads.map(load, range(16)))

    assert len(set(map(id, models))) == 1


def test_a_model_that_failed_to_load_may_be_tried_again(
    renderer: Renderer, tmp_path: Path, make_model: MakeModel
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(RenderError):
        renderer.get_or_create_tokenizer_key(local(place))
    for file in make_model("bert-bge").iterdir():
        file.rename(place / file.name)

    assert renderer.get_or_create_tokenizer_key(local(place)) == f"{place}:main:True"


@pytest.mark.parametrize(
    ("changes", "config"),
    [
        ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, {}),  # a panic on every text
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}}, {}),
        ({}, {"chat_template": [{"name": "default"}]}),
        ({}, {"chat_template": 7}),
        ({}, {"added_tokens_decoder": {"x": {"content": "<x>"}}}),
        ({}, {"added_tokens_decoder": []}),
    ],
)
async def test_files_that_cannot_be_used_mark_their_model_and_are_named(
    changes: Row, config: Row, make_model: MakeModel
) -> None:
    directory = make_model("gpt-2", changes, **config)
    source = ModelSource("m", str(directory), ModelSettings())
    renderer = Renderer(num_threads=1)

    prompts = await load_prompts(renderer, None, source)
    renderer.close()

    assert isinstance(prompts, NoPrompts)
    assert prompts.reason is Reason.BAD_TOKENIZER
    assert str(directory) in prompts.why
    with pytest.raises(RenderError):
        await prompts.tokenize(parse_completion(b'{"model": "m", "prompt": "x"}'))


def test_a_path_that_is_not_there_is_told(renderer: Renderer) -> None:
    with pytest.raises(RenderError, match="'/nowhere': no such path"):
        renderer.get_or_create_tokenizer_key(GetOrCreateTokenizerKeyRequest("/nowhere", True))


def test_a_token_is_not_shown() -> None:
    assert "hf_secret" not in repr(GetOrCreateTokenizerKeyRequest("m", token="hf_secret"))


def test_many_threads_get_the_same_ids(renderer: Renderer, smollm2_key: str) -> None:
    def ids(_: int) -> list[int]:
        result = renderer.render_chat(RenderChatRequest(smollm2_key, QUESTION))
        return [int(id) for id in result.input_ids]

    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(ids, range(200)))

    assert results == [QUESTION_IDS] * 200


def test_an_unknown_key_names_the_field(renderer: Renderer) -> None:
    with pytest.raises(InvalidRequestError, match="'nope' is not loaded") as e:
        renderer.render(RenderRequest("nope", "x"))

    assert e.value.param == "key"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"conversation": []}, "conversation"),
        ({"truncate_prompt_tokens": -1}, "truncate_prompt_tokens"),
        (
            {"return_assistant_tokens_mask": True, "continue_final_message": True},
            "return_assistant_tokens_mask",
        ),
        (
            {"add_generation_prompt": True, "continue_final_message": True},
            "continue_final_message",
        ),
    ],
)
def test_what_cannot_be_combined_names_the_field(
    renderer: Renderer, smollm2_key: str, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises((InvalidRequestError, TemplateError)) as e:
        renderer.render_chat(RenderChatRequest(smollm2_key, **{"conversation": QUESTION, **fields}))

    assert e.value.param == param


def test_a_continued_message_needs_no_word_on_the_generation_prompt(
    renderer: Renderer, smollm2_key: str
) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": "It is"}]

    result = renderer.render_chat(
        RenderChatRequest(smollm2_key, messages, continue_final_message=True)
    )

    assert result.text.endswith("<|im_start|>assistant\nIt is")


def test_a_request_may_bring_a_template_and_its_variables(
    renderer: Renderer, smollm2_key: str
) -> None:
    result = renderer.render_chat(
        RenderChatRequest(
            smollm2_key,
            QUESTION,
            chat_template="{{ bos_token }}{{ x }}{{ documents[0].t }}{{ tools[0].n }}",
            chat_template_kwargs={"x": 7},
            documents=[{"t": "doc"}],
            tools=[{"n": "tool"}],
        )
    )

    assert result.text == "<|im_start|>7doctool"


def test_a_template_that_is_brought_again_is_compiled_once(
    renderer: Renderer, smollm2_key: str
) -> None:
    model = renderer.loaded(smollm2_key)
    first = model.template("{{ 0 }}")

    assert model.template("{{ 0 }}") is first
    for i in range(MAX_GIVEN_TEMPLATES):
        model.template(f"{{{{ {i + 1} }}}}")
    assert model.template("{{ 0 }}") is not first


def test_special_tokens_may_be_overridden(renderer: Renderer, smollm2_key: str) -> None:
    request = RenderChatRequest(
        smollm2_key,
        QUESTION,
        chat_template="{{ bos_token }}",
        chat_template_kwargs={"bos_token": "B"},
    )

    assert renderer.render_chat(request).text == "B"


NAMED = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]


@pytest.mark.parametrize(
    ("fields", "text"),
    [({}, "D"), ({"tools": [{}]}, "T"), ({"chat_template": "tool_use"}, "T")],
)
def test_named_templates_are_chosen_by_name_or_by_tools(
    renderer: Renderer, make_model: MakeModel, fields: dict[str, Any], text: str
) -> None:
    directory = make_model("bert-bge", chat_template=NAMED)
    key = renderer.get_or_create_tokenizer_key(local(directory))

    assert renderer.render_chat(RenderChatRequest(key, QUESTION, **fields)).text == text


def test_a_model_without_template_says_so(renderer: Renderer, make_model: MakeModel) -> None:
    key = renderer.get_or_create_tokenizer_key(local(make_model("bert-bge", chat_template=None)))

    with pytest.raises(RenderError) as e:
        renderer.render_chat(RenderChatRequest(key, QUESTION))

    assert e.value.reason == "no-template"


def test_offsets_are_characters_of_the_text(renderer: Renderer, smollm2_key: str) -> None:
    text = "naïve 東京 <|im_end|> x"

    result = renderer.render(RenderRequest(smollm2_key, text, return_offsets_mapping=True))

    assert result.offset_mapping is not None
    assert result.offset_mapping[-2:].tolist() == [[9, 19], [19, 21]]
    assert len(result.offset_mapping) == len(result.input_ids)


MASKED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
    "{{ '\n' }}{% endfor %}"
)


def test_the_mask_marks_what_the_assistant_said(renderer: Renderer, smollm2_key: str) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": "Paris it is"}, *QUESTION]

    result = renderer.render_chat(
        RenderChatRequest(
            smollm2_key, messages, chat_template=MASKED, return_assistant_tokens_mask=True
        )
    )

    assert result.assistant_mask is not None
    said = result.input_ids[result.assistant_mask == 1]
    assert renderer.loaded(smollm2_key).tokenizer.decode(said) == "Paris it is"


def test_truncation_keeps_the_end_of_ids_and_offsets(renderer: Renderer, smollm2_key: str) -> None:
    full = renderer.render(RenderRequest(smollm2_key, "a b c d", return_offsets_mapping=True))

    last = renderer.render(
        RenderRequest(smollm2_key, "a b c d", truncate_prompt_tokens=2, return_offsets_mapping=True)
    )

    assert np.array_equal(last.input_ids, full.input_ids[-2:])
    assert last.offset_mapping is not None
    assert last.offset_mapping.tolist() == [[3, 5], [5, 7]]


async def count_turns(turns: list[int]) -> None:
    while True:
        turns[0] += 1
        await asyncio.sleep(0)


async def render_beside_a_counter(renderer: Renderer, request: RenderChatRequest) -> int:
    """How often the event loop came round while `request` was rendered."""
    turns = [0]
    counting = asyncio.create_task(count_turns(turns))
    await renderer.render_chat_async(request)
    counting.cancel()
    return turns[0]


@pytest.mark.slow
def test_two_megabytes_for_the_fallback_encoder_leave_the_event_loop_alone(
    renderer: Renderer, make_model: MakeModel
) -> None:
    key = renderer.get_or_create_tokenizer_key(local(make_model("falcon")))
    words = "The quick brown fox jumps over the lazy dog.\n" * 45_000
    request = RenderChatRequest(key, [{"role": "user", "content": words}])

    before = renderer.num_off_loop

    turns = asyncio.run(render_beside_a_counter(renderer, request))

    assert renderer.loaded(key).tokenizer.encoder == "tokenizers"
    assert turns > 10
    assert renderer.num_off_loop - before == 1


@pytest.mark.parametrize(("num_chars", "num_off_loop"), [(1_000, 0), (70_000, 1)])
def test_only_large_chats_leave_the_event_loop(
    renderer: Renderer, smollm2_key: str, num_chars: int, num_off_loop: int
) -> None:
    parts = [{"type": "text", "text": "x" * num_chars}]
    request = RenderChatRequest(
        smollm2_key, [{"role": "user", "content": parts}], chat_template="{{ messages }}"
    )

    before = renderer.num_off_loop

    asyncio.run(renderer.render_chat_async(request))

    assert renderer.num_off_loop - before == num_off_loop


def off_loop_of_each(renderer: Renderer, requests: Sequence[RenderChatRequest]) -> list[int]:
    """How often each left the event loop; all get the ids that they get without one."""
    counts = []
    for request in requests:
        before = renderer.num_off_loop
        result = asyncio.run(renderer.render_chat_async(request))
        counts.append(renderer.num_off_loop - before)
        assert result.input_ids.tolist() == renderer.render_chat(request).input_ids.tolist()
    return counts


def test_a_large_chat_stays_on_the_event_loop_while_little_of_it_is_new(smollm2: Path) -> None:
    with contextlib.closing(Renderer()) as renderer:
        key = renderer.get_or_create_tokenizer_key(local(smollm2))
        chat = [{"role": "user", "content": f"{i}: " + "old words " * 1_000} for i in range(10)]
        new = {"role": "user", "content": "new words " * 10_000}
        large = RenderChatRequest(key, chat)

        counts = off_loop_of_each(
            renderer,
            [
                large,
                RenderChatRequest(key, [*chat, {"role": "user", "content": "Go on."}]),
                RenderChatRequest(key, [*chat, new]),
                RenderChatRequest(key, large.conversation, return_offsets_mapping=True),
            ],
        )

    assert counts == [1, 0, 1, 1]


def test_a_large_chat_leaves_the_event_loop_where_templates_are_slow(smollm2: Path) -> None:
    slow = "{% for i in range(20000) %}{% endfor %}{{ messages[0]['content'] }}"
    with contextlib.closing(Renderer()) as renderer:
        key = renderer.get_or_create_tokenizer_key(local(smollm2))
        chat = [{"role": "user", "content": "old words " * 7_000}]
        request = RenderChatRequest(key, chat, chat_template=slow)

        assert off_loop_of_each(renderer, [request, request]) == [1, 1]


def test_a_large_text_leaves_the_event_loop_too(renderer: Renderer, smollm2_key: str) -> None:
    before = renderer.num_off_loop

    result = asyncio.run(renderer.render_async(RenderRequest(smollm2_key, "word " * 20_000)))

    assert (len(result.input_ids), renderer.num_off_loop - before) == (20_001, 1)


def test_models_load_beside_the_event_loop(renderer: Renderer, smollm2: Path) -> None:
    key = asyncio.run(renderer.get_or_create_tokenizer_key_async(local(smollm2)))

    assert key == f"{smollm2}:main:True"


def test_the_package_exports_the_renderer() -> None:
    assert inferway.Renderer is Renderer
